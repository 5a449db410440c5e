//! Runs of calls against a server in the same process: what they count, not how fast it is.

#![expect(clippy::unwrap_used, reason = "an error is to fail the test")]

use tidegate_load::LoadError;
use tidegate_load::rpc::{self, RpcBenchConfig, RpcPace};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::io::tcp::{HandlerFailed, RpcServer, ServerConfig};
use tidegate_rpc::machine::Tenant;
use tidegate_runtime::clock;

fn server(scheme: &Scheme) -> RpcServer {
    let echo = |payload: &[u8], answer: &mut Vec<u8>| -> Result<(), HandlerFailed> {
        answer.extend_from_slice(payload);
        Ok(())
    };
    RpcServer::start(&ServerConfig::default(), |_| (scheme.server(1, clock::now()), echo)).unwrap()
}

/// Some hundred calls in a few hundredths of a second; how punctual they are is no matter here.
fn config(server: &RpcServer, scheme: Scheme) -> RpcBenchConfig {
    RpcBenchConfig {
        address: server.address().clone(),
        scheme,
        connections: 10,
        tenant: Tenant(1),
        warm_up_ms: 10,
        duration_ms: 40,
        slo_us: 10_000_000,
        timeout_ms: 60_000,
        drain_ms: 60_000,
        lateness_us_p99_max: f64::INFINITY,
        ..RpcBenchConfig::default()
    }
}

#[test]
fn every_call_of_an_open_loop_ends_once_whatever_the_scheme() {
    for name in ["tidegate", "breakwater", "dagor", "aqm", "none"] {
        let scheme = Scheme::named(name).unwrap();
        let server = server(&scheme);
        let report = rpc::run(&config(&server, scheme)).unwrap();
        let shed = report.shed_local.count + report.shed_remote.count;
        assert!(report.offered > 0, "{name}");
        assert_eq!(report.offered, report.served + shed, "{name}: {report:?}");
        assert_eq!((report.failed, report.unanswered, report.lost, report.good), (0, 0, 0, report.served), "{name}");
        assert_eq!((report.lateness.early, report.response.early), (0, 0), "{name}");
        assert_eq!(report.sent, report.offered - report.shed_local.count);
    }
}

#[test]
fn a_closed_loop_has_as_many_calls_in_flight_as_it_was_told() {
    let none = Scheme::named("none").unwrap();
    let server = server(&none);
    let pid = Some(std::process::id());
    let config = RpcBenchConfig { pace: RpcPace::Closed { calls: 7 }, pid, ..config(&server, none) };
    let report = rpc::run(&config).unwrap();
    assert!(report.served > 7 && report.served == report.offered, "{report:?}");
    assert!(report.target.unwrap().memory.rss_bytes > 0);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let none = Scheme::named("none").unwrap();
    let server = server(&none);
    let config = config(&server, none);
    server.stop().unwrap();
    assert!(matches!(rpc::run(&config), Err(LoadError::Rpc(_))));
}
