//! HTTP load against servers in the same process: what is counted, not how fast anything is.

mod tls_server;

use tidegate_load::http::idle::{self, HttpIdleConfig};
use tidegate_load::http::upstream::{Upstream, UpstreamConfig};
use tidegate_load::http::{self, Ending, Http, HttpBenchConfig, HttpBenchReport, Kind, Source, Step};
use tls_server::TlsServer;

/// A few hundredths of a second; how punctual its requests are is no matter here.
fn config(address: std::net::SocketAddr, source: Source) -> HttpBenchConfig {
    HttpBenchConfig {
        address,
        sources: vec![Source { timeout_ms: 60_000, ..source }],
        warm_up_ms: 10,
        duration_ms: 60,
        drain_ms: 60_000,
        lateness_us_p99_max: f64::INFINITY,
        ..HttpBenchConfig::default()
    }
}

/// All of the first source that were offered have ended so.
#[track_caller]
fn all_ended(report: &HttpBenchReport, ending: Ending) {
    let total = &report.sources[0].total;
    assert!(total.offered > 0, "{total:?}");
    assert_eq!(total.endings, [(ending, total.offered)].into(), "{total:?}");
}

#[test]
fn every_request_is_answered_on_kept_and_on_new_connections() {
    let upstream = Upstream::start(UpstreamConfig::default()).unwrap();
    for new_connections in [false, true] {
        let source = Source { rate_per_s: 2_000.0, connections: 100, new_connections, ..Source::default() };
        let mut config = config(upstream.address(), source);
        config.local_addresses = 4;
        config.pids = vec![std::process::id()];
        let report = http::run(&config).unwrap();
        all_ended(&report, Ending::Answered);
        assert_eq!(report.sources[0].total.statuses.keys().copied().collect::<Vec<u16>>(), [200]);
        assert!(report.memory.is_some() && report.spans.len() == 1);
    }
}

#[test]
fn bodies_of_both_directions_are_carried_whole() {
    let upstream = Upstream::start(UpstreamConfig::default()).unwrap();
    let source = Source {
        rate_per_s: 100.0,
        method: "POST".into(),
        path: "/?bytes=300000&work_us=1&delay_ms=1".into(),
        body_bytes: 200_000,
        ..Source::default()
    };
    all_ended(&http::run(&config(upstream.address(), source)).unwrap(), Ending::Answered);
}

#[test]
fn a_closed_loop_rests_while_its_rate_is_zero() {
    let upstream = Upstream::start(UpstreamConfig::default()).unwrap();
    let steps = vec![Step { at_ms: 30, rate_per_s: 1.0 }];
    let source = Source { rate_per_s: 0.0, steps, closed: true, connections: 3, ..Source::default() };
    let report = http::run(&config(upstream.address(), source)).unwrap();
    all_ended(&report, Ending::Answered);
    let offered: Vec<u64> = report.sources[0].phases.iter().map(|phase| phase.offered).collect();
    assert!(offered.len() == 2 && offered[0] == 0 && offered[1] >= 3, "{offered:?}");
}

#[test]
fn requests_over_tls_are_answered_and_the_certificate_must_be_the_one() {
    let server = TlsServer::start("answer");
    let source = |name: &str| Source {
        name: name.into(),
        rate_per_s: 200.0,
        tls: true,
        new_connections: true,
        connections: 100,
        ..Source::default()
    };
    let mut right = config(server.address, source("a.example"));
    right.certificate = Some(server.certificate.clone());
    all_ended(&http::run(&right).unwrap(), Ending::Answered);
    let other = TlsServer::start("other");
    let wrong = HttpBenchConfig { certificate: Some(other.certificate.clone()), ..right };
    all_ended(&http::run(&wrong).unwrap(), Ending::Garbled);
}

#[test]
fn a_hello_is_welcomed_by_tls_and_told_off_by_http() {
    let server = TlsServer::start("hello");
    let source = Source { kind: Kind::Hello, rate_per_s: 500.0, connections: 100, ..Source::default() };
    all_ended(&http::run(&config(server.address, source.clone())).unwrap(), Ending::Welcomed);
    let upstream = Upstream::start(UpstreamConfig::default()).unwrap();
    // The upstream waits for the end of a head that never comes.
    let mut waits = config(upstream.address(), source);
    waits.sources[0].timeout_ms = 20;
    all_ended(&http::run(&waits).unwrap(), Ending::TimedOut);
}

#[test]
fn http2_to_a_server_that_speaks_only_http1_has_no_answer() {
    let upstream = Upstream::start(UpstreamConfig::default()).unwrap();
    let source = Source { http: Http::H2, ..Source::default() };
    let report = http::run(&config(upstream.address(), source)).unwrap();
    assert_eq!(report.sources[0].total.answered, 0);
}

#[test]
fn a_server_that_is_not_there_shows_in_the_figures() {
    // Nobody else listens on this address, whichever port was free a moment ago.
    let address = Upstream::start(UpstreamConfig { address: ([127, 9, 9, 9], 0).into(), ..UpstreamConfig::default() });
    let address = address.unwrap().address();
    all_ended(&http::run(&config(address, Source::default())).unwrap(), Ending::NotConnected);
}

#[test]
fn idle_connections_are_held_and_counted() {
    let server = TlsServer::start("idle");
    let config = HttpIdleConfig {
        address: server.address,
        pids: vec![std::process::id()],
        connections: 20,
        name: "a.example".into(),
        certificate: Some(server.certificate.clone()),
        settle_ms: 1,
        ..HttpIdleConfig::default()
    };
    let report = idle::measure(&config).unwrap();
    assert_eq!((report.opened, report.failed, report.closed), (20, 0, 0));
}
