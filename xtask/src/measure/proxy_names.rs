//! Names that one address makes up beside a tenant that has one, and the connections that one tenant can hold.

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, number, range};
use super::proxy_load::{A, Load, Phase, execute, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure, files_max};
use super::table::Figure;

const ROUNDS: usize = 5;
const NAMES: u32 = 100_000;
/// The certificate is for one label below `made-up.example`, so each is a tenant that nothing lists.
const MADE_UP: &str = "000000.made-up.example";
const A_PER_S: f64 = 200.0;
/// A's p99 beside the names, against alone; or faster than this.
const SLOWER_MOST: f64 = 1.5;
const FAST_US: f64 = 2_000.0;

/// What names are said with, and how often.
struct Case {
    what: &'static str,
    tls: bool,
    per_s: f64,
}

const CASES: [Case; 4] = [
    Case { what: "SNIs, 2,000/s", tls: true, per_s: 2_000.0 },
    Case { what: "SNIs, all that can be sent", tls: true, per_s: 100_000.0 },
    Case { what: "Hosts, 2,000/s", tls: false, per_s: 2_000.0 },
    Case { what: "Hosts, all that can be sent", tls: false, per_s: 100_000.0 },
];

/// Answers of A as a part of what it asked for, its p99, and answers to made-up names a second.
struct Came {
    share: f64,
    us_p99: f64,
    names_per_s: f64,
    sent_per_s: f64,
}

pub(super) fn invented(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let setting = Setting::new(Proxy::Tidegate, Limiting::On, KeyKind::P256, service);
    let mut figures = Vec::new();
    for case in &CASES {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for round in 0..bench.size(ROUNDS, 1) {
            // Who is first changes, so that a machine that slows down slows both.
            for turn in 0..2 {
                let with_names = (turn + round) % 2 == 0;
                let came = run(bench, &setting, case, with_names).wrap_err(case.what)?;
                println!(
                    "{}, names {with_names}: {:.4} answered, p99 {:.0} us, names {:.0}/s of {:.0}/s",
                    case.what, came.share, came.us_p99, came.names_per_s, came.sent_per_s
                );
                if with_names { beside.push(came) } else { alone.push(came) }
            }
        }
        let p99 = |side: &[Came]| side.iter().map(|came| came.us_p99).collect::<Vec<_>>();
        let least = beside.iter().map(|came| came.share).fold(f64::INFINITY, f64::min);
        let allowed = (SLOWER_MOST * median(&p99(&alone))).max(FAST_US);
        let runs = |side: &[Came]| -> Value {
            let one = |came: &Came| json!({ "share": came.share, "us_p99": came.us_p99, "names_per_s": came.names_per_s, "sent_per_s": came.sent_per_s });
            side.iter().map(one).collect()
        };
        figures.push(Figure {
            what: format!("{NAMES} made-up {}: A", case.what),
            value: format!(
                "{:.2} % answered, p99 {:.0} us (at most {allowed:.0})",
                least * 100.0,
                median(&p99(&beside))
            ),
            spread: format!("p99 {} over {}; alone {}", range(&p99(&beside)), beside.len(), range(&p99(&alone))),
            passes: least >= 0.9999 && median(&p99(&beside)) <= allowed,
            runs: json!({ "alone": runs(&alone), "beside": runs(&beside) }),
        });
    }
    upstream.stop()?;
    Ok(figures)
}

fn run(bench: &Bench, setting: &Setting, case: &Case, with_names: bool) -> Result<Came> {
    let tls = json!({ "tls": case.tls, "connections": 16, "new_connections": case.tls });
    let mut sources = vec![source(A, A_PER_S, tls)];
    if with_names {
        let kind = if case.tls { "hello" } else { "request" };
        let keys = json!({ "kind": kind, "made_up_names": NAMES, "connections": 256, "waiting_max": 0 });
        sources.push(source(MADE_UP, case.per_s, keys));
    }
    let keys = json!({
        "sources": sources, "warm_up_ms": 2_000, "duration_ms": bench.size(6_000, 1_500),
        // All names come from one address.
        "local_addresses": 0, "lateness_us_p99_max": 1e9,
    });
    let proxy = Running::start(bench, setting)?;
    let report = Load { tls: case.tls, keys }.run(bench, &proxy)?;
    proxy.stop()?;
    let phase = Phase::of(&report, 0, 0)?;
    let (mut names_per_s, mut sent_per_s) = (0.0, 0.0);
    if with_names {
        let names = Phase::of(&report, 1, 0)?;
        names_per_s = names.answered_per_s()?;
        sent_per_s = (names.offered()? - names.ended("unsent") - names.ended("not_connected")) / names.seconds()?;
    }
    Ok(Came { share: phase.answered()? / phase.offered()?.max(1.0), us_p99: phase.us_p99()?, names_per_s, sent_per_s })
}

/// Of what the proxy beside it holds.
const IDLE_LEAST: f64 = 0.95;

/// As many idle connections of one tenant as the proxy takes with the open files that it may have.
pub(super) fn idle(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    // The client needs one for each as well, and both have the same limit.
    let wanted = files_max().saturating_sub(100).min(bench.size(60_000, 2_000));
    let mut held: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..bench.size(3, 1) {
        for (proxy, each) in [Proxy::Tidegate, Proxy::Haproxy].into_iter().zip(&mut held) {
            let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
            let running = Running::start(bench, &Setting::new(proxy, limiting, KeyKind::P256, service))?;
            let config = json!({
                "address": running.tls, "pids": running.pids(), "connections": wanted, "name": A,
                "certificate": running.certificate, "local_addresses": 4,
            });
            let Value::Object(config) = config else { unreachable!("an object was made above") };
            let report = execute(bench, &["http", "idle"], &config)?;
            running.stop()?;
            each.push(number(&report, "/opened")? - number(&report, "/closed")?);
        }
    }
    upstream.stop()?;
    let [ours, haproxy] = &held;
    let ratio = median(ours) / median(haproxy).max(1.0);
    Ok(vec![Figure {
        what: format!("idle connections of one tenant of {wanted} wanted (bar: {IDLE_LEAST} of haproxy's)"),
        value: format!("{:.0}, {ratio:.3} of haproxy's", median(ours)),
        spread: format!("{}; haproxy {}", range(ours), range(haproxy)),
        passes: ratio >= IDLE_LEAST,
        runs: json!({ "ours": ours, "haproxy": haproxy }),
    }])
}
