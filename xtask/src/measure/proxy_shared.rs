//! Two tenants behind one upstream, one of which floods it or does not read what it asked for.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result, WrapErr as _};
use serde_json::{Value, json};

use crate::clock;

use super::bench::{Bench, median, range};
use super::proxy_load::{A, B, Load, Phase, source, upstream_workers};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;

const ROUNDS: usize = 5;
/// A's p99 beside B, in those of A alone.
const SLOWER_MOST: f64 = 1.5;
/// Requests of A in a second, on connections that are kept.
const QUIET_PER_S: f64 = 100.0;
/// Of the server behind: 3,200 requests a second, of some 5 ms, are no more than a sixth of what the proxy's core can do.
const WORKERS: u32 = 16;
const WORK: &str = "/?delay_ms=5";
/// Requests of B that are always under way.
const FLOOD: usize = 256;
/// Readers of B that read nothing, and what each asked for: more than all buffers on its way hold.
const STALLED: [usize; 4] = [1, 3, 50, 1_000];
const UNREAD: &str = "/?bytes=16777216";
const READ: &str = "/?bytes=100000";
/// Until the buffers on the way are full. 1,000 of them take gigabytes from the server, which has one thread and does
/// nothing else for a second or two: asked without a proxy it is as slow.
const FILL: Duration = Duration::from_secs(4);
const PROTOCOLS: [&str; 2] = ["http1", "h2c"];

/// A alone and beside B, on one proxy.
struct Heard {
    alone_us_p99: f64,
    us_p99: f64,
    missed: f64,
    noisy_per_s: f64,
}

/// The server behind; of HTTP/2 another Tidegate that limits nothing, since that of the bench speaks HTTP/1.
fn behind(bench: &Bench, protocol: &str, service: &str) -> Result<Option<Running>> {
    let setting = Setting::new(Proxy::Tidegate, Limiting::Off, KeyKind::P256, service);
    (protocol == "h2c").then(|| Running::start_named(bench, &setting, "h2c", "")).transpose()
}

/// Runs `hear` on a proxy before such a server, for some rounds.
fn rounds(
    bench: &Bench,
    protocol: &str,
    workers: u32,
    what: &str,
    hear: impl Fn(&Running) -> Result<Heard>,
) -> Result<Vec<Heard>> {
    let upstream = upstream_workers(bench, workers)?;
    let between = behind(bench, protocol, upstream.said("address")?)?;
    let service = between.as_ref().map_or(upstream.said("address")?, |between| between.plain.as_str()).to_owned();
    let mut found = Vec::new();
    for round in 0..bench.size(ROUNDS, 1) {
        let setting = Setting { protocol, ..Setting::new(Proxy::Tidegate, Limiting::On, KeyKind::P256, &service) };
        let proxy = Running::start(bench, &setting)?;
        let heard = hear(&proxy).wrap_err_with(|| format!("{what}, {protocol}"))?;
        proxy.stop()?;
        println!(
            "{what}, {protocol}, round {}: A's p99 {:.0} us, alone {:.0}, {:.0} missed; B {:.0}/s",
            round + 1,
            heard.us_p99,
            heard.alone_us_p99,
            heard.missed,
            heard.noisy_per_s
        );
        found.push(heard);
    }
    if let Some(between) = between {
        between.stop()?;
    }
    upstream.stop()?;
    Ok(found)
}

/// B asks for more than the upstream can do.
pub(super) fn flooded(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let mut figures = Vec::new();
    for protocol in PROTOCOLS {
        let found = rounds(bench, protocol, WORKERS, "shared upstream", |proxy| {
            let (alone, noise) = (bench.size(10_000, 2_000), bench.size(30_000, 4_000));
            let quiet = json!({ "connections": 8, "path": WORK });
            let flood = json!({
                "connections": FLOOD, "path": WORK, "closed": true,
                "steps": [{ "at_ms": alone, "rate_per_s": 1 }],
            });
            let load = Load {
                tls: false,
                keys: json!({
                    "sources": [source(A, QUIET_PER_S, quiet), source(B, 0.0, flood)],
                    "warm_up_ms": 1_000, "duration_ms": alone + noise, "drain_ms": 2_000,
                }),
            };
            let report = load.run(bench, proxy)?;
            let (before, beside) = (Phase::of(&report, 0, 0)?, Phase::of(&report, 0, 1)?);
            Ok(Heard {
                alone_us_p99: before.us_p99()?,
                us_p99: beside.us_p99()?,
                missed: beside.offered()? - beside.answered()?,
                noisy_per_s: Phase::of(&report, 1, 1)?.answered_per_s()?,
            })
        })?;
        // Without a flood there was nothing to bear.
        let is_flooded = found.iter().all(|heard| heard.noisy_per_s > 1_000.0);
        figures.push(figure(&format!("one upstream of {WORKERS} workers, {protocol}"), &found, is_flooded));
    }
    Ok(figures)
}

/// Readers of B stop.
pub(super) fn stalled(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let mut figures = Vec::new();
    for protocol in PROTOCOLS {
        for readers in STALLED {
            let found = rounds(bench, protocol, 0, &format!("{readers} stalled readers"), |proxy| {
                let before = quiet(bench, proxy)?;
                let unread = unread(proxy, readers)?;
                clock::rest(FILL);
                let beside = quiet(bench, proxy)?;
                drop(unread);
                Ok(Heard {
                    alone_us_p99: Phase::of(&before, 0, 0)?.us_p99()?,
                    us_p99: Phase::of(&beside, 0, 0)?.us_p99()?,
                    missed: Phase::of(&beside, 0, 0)?.offered()? - Phase::of(&beside, 0, 0)?.answered()?,
                    noisy_per_s: 0.0,
                })
            })?;
            figures.push(figure(&format!("{readers} stalled readers, {protocol}"), &found, true));
        }
    }
    Ok(figures)
}

/// A's answers of 100 kB.
fn quiet(bench: &Bench, proxy: &Running) -> Result<Value> {
    let keys = json!({ "connections": 8, "path": READ });
    let duration = bench.size(10_000, 2_000);
    let keys = json!({ "sources": [source(A, QUIET_PER_S, keys)], "warm_up_ms": 1_000, "duration_ms": duration });
    Load { tls: false, keys }.run(bench, proxy)
}

/// Connections of B that asked and read nothing.
fn unread(proxy: &Running, readers: usize) -> Result<Vec<TcpStream>> {
    (0..readers)
        .map(|_| {
            let mut stream = TcpStream::connect(&proxy.plain).into_diagnostic()?;
            write!(stream, "GET {UNREAD} HTTP/1.1\r\nHost: {B}\r\n\r\n").into_diagnostic()?;
            Ok(stream)
        })
        .collect()
}

fn figure(what: &str, found: &[Heard], is_valid: bool) -> Figure {
    let ratios: Vec<f64> = found.iter().map(|heard| heard.us_p99 / heard.alone_us_p99.max(1.0)).collect();
    let missed: f64 = found.iter().map(|heard| heard.missed).sum();
    let of_b: Vec<f64> = found.iter().map(|heard| heard.noisy_per_s).collect();
    let runs: Value = found
        .iter()
        .map(|heard| {
            json!({
                "us_p99": heard.us_p99, "alone_us_p99": heard.alone_us_p99,
                "missed": heard.missed, "noisy_per_s": heard.noisy_per_s,
            })
        })
        .collect();
    Figure {
        what: format!("{what} (bar: {SLOWER_MOST}x, 0 missed)"),
        value: format!("{:.2}x alone, {missed:.0} missed", median(&ratios)),
        spread: format!("{} over {}; B {:.0}/s", range(&ratios), ratios.len(), median(&of_b)),
        passes: is_valid && median(&ratios) <= SLOWER_MOST && missed == 0.0,
        runs,
    }
}
