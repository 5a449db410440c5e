//! What proxying costs: CPU of a request and of a new connection, memory of an idle one, a reload, the limiters.

use miette::{Result, WrapErr as _};
use serde_json::{Map, Value, json};

use super::bench::{Bench, median, number, range};
use super::proxy_load::{A, B, Load, Phase, capacity, cpu_s, execute, new_tls, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure, files_max};
use super::rows;
use super::table::Figure;
use crate::peers::cargo;
use crate::steps;

const REPETITIONS: usize = 5;
/// Requests a second on kept connections, at most.
const KEPT_PER_S: f64 = 15_000.0;
/// New connections a second, at most.
const NEW_PER_S: f64 = 300.0;

/// CPU of the proxy for each answered request, in microseconds.
fn cost_us(bench: &Bench, setting: &Setting, load: &Load) -> Result<f64> {
    let proxy = Running::start(bench, setting)?;
    let report = load.run(bench, &proxy).wrap_err_with(|| setting.proxy.name().to_owned())?;
    proxy.stop()?;
    let phase = Phase::of(&report, 0, 0)?;
    if phase.share()? < 0.999 {
        miette::bail!("{} did not answer all of an easy load: {}", setting.proxy.name(), phase.endings());
    }
    Ok(cpu_s(&report, 0)? * 1e6 / phase.answered()?)
}

/// One tenant's requests: on new connections with TLS, on kept ones without.
fn steady(bench: &Bench, tls: bool, rate_per_s: f64) -> Load {
    let keys = if tls { new_tls() } else { json!({ "connections": 64 }) };
    let duration = bench.size(20_000, 2_000);
    Load { tls, keys: json!({ "sources": [source(A, rate_per_s, keys)], "duration_ms": duration }) }
}

/// Half of what the slowest of `proxies` can do on this machine now: near its bound each request waits for others, and what
/// one costs is no longer what is measured.
fn easy_per_s(bench: &Bench, proxies: &[Proxy], key: KeyKind, service: &str, tls: bool) -> Result<f64> {
    let mut rate = if tls { NEW_PER_S } else { KEPT_PER_S };
    for &proxy in proxies {
        let setting = Setting::new(proxy, Limiting::Off, key, service);
        rate = rate.min(capacity(bench, &setting, tls).wrap_err(proxy.name())? / 2.0);
    }
    Ok(rate)
}

/// The same load on all proxies in turn, and ours by one of theirs.
fn beside(bench: &Bench, what: &str, key: KeyKind, tls: bool, rival: Proxy, gate: f64) -> Result<Figure> {
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let rate = easy_per_s(bench, &Proxy::ALL, key, service, tls)?;
    let load = steady(bench, tls, rate);
    let mut found: Vec<Vec<f64>> = Proxy::ALL.iter().map(|_| Vec::new()).collect();
    for repetition in 0..bench.size(REPETITIONS, 1) {
        for turn in 0..Proxy::ALL.len() {
            // Who is first changes, so that a machine that slows down slows all.
            let index = (turn + repetition) % Proxy::ALL.len();
            let proxy = Proxy::ALL[index];
            let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
            let setting = Setting::new(proxy, limiting, key, service);
            found[index].push(cost_us(bench, &setting, &load)?);
        }
    }
    upstream.stop()?;
    let theirs = Proxy::ALL.iter().position(|proxy| *proxy == rival).expect("all proxies are in the list");
    let ratios: Vec<f64> = found[0].iter().zip(&found[theirs]).map(|(ours, theirs)| ours / theirs).collect();
    let all = Proxy::ALL.iter().zip(&found).map(|(proxy, each)| format!("{} {:.1}", proxy.name(), median(each)));
    let runs = Proxy::ALL.iter().zip(&found).map(|(proxy, each)| (proxy.name().to_owned(), json!(each)));
    Ok(Figure {
        what: format!("{what} (gate: {gate}x {}'s)", rival.name()),
        value: format!("{:.2}x; us: {}", median(&ratios), all.collect::<Vec<_>>().join(", ")),
        spread: format!("{} over {} at {rate:.0}/s", range(&ratios), ratios.len()),
        passes: median(&ratios) <= gate,
        runs: runs.collect::<Map<_, _>>().into(),
    })
}

/// CPU of a request on a kept connection, limiters on.
pub(super) fn keep_alive(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    Ok(vec![beside(bench, "CPU of a kept connection's request", KeyKind::P256, false, Proxy::Haproxy, 1.2)?])
}

/// CPU of a new TLS connection with one request.
pub(super) fn tls(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    [KeyKind::P256, KeyKind::Rsa]
        .into_iter()
        .map(|key| {
            let what = format!("CPU of a new connection, {}", key.name());
            beside(bench, &what, key, true, Proxy::Nginx, 1.0)
        })
        .collect()
}

/// What a request costs more with limiters than without, in the same build.
pub(super) fn limiters(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let rate = easy_per_s(bench, &[Proxy::Tidegate], KeyKind::P256, service, false)?;
    let load = steady(bench, false, rate);
    let (mut more, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..bench.size(11, 1) {
        let cost = |limiting| {
            let setting = Setting::new(Proxy::Tidegate, limiting, KeyKind::P256, service);
            cost_us(bench, &setting, &load)
        };
        let (on, off) = if pair % 2 == 0 {
            let on = cost(Limiting::On)?;
            (on, cost(Limiting::Off)?)
        } else {
            let off = cost(Limiting::Off)?;
            (cost(Limiting::On)?, off)
        };
        more.push(on - off);
        with.push(on);
        without.push(off);
    }
    upstream.stop()?;
    Ok(vec![Figure {
        what: "limiters on against off, CPU of a request (bar: 0.3 us)".to_owned(),
        value: format!("{:+.2} us ({:.2} and {:.2})", median(&more), median(&with), median(&without)),
        spread: format!("{} over {} pairs at {rate:.0}/s", range(&more), more.len()),
        passes: median(&more) <= 0.3,
        runs: json!({ "more_us": more, "on_us": with, "off_us": without }),
    }])
}

/// Memory of connections that say nothing.
pub(super) fn idle_memory(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    // Each may need a second file for its upstream, and a tenant does not get all: a quarter is always had.
    let connections = bench.size(10_000.min(files_max() / 4), 500);
    let mut found: Vec<Vec<f64>> = Proxy::ALL.iter().map(|_| Vec::new()).collect();
    let mut lost = 0.0;
    for _ in 0..bench.size(3, 1) {
        for (proxy, bytes) in Proxy::ALL.into_iter().zip(&mut found) {
            let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
            let setting = Setting::new(proxy, limiting, KeyKind::P256, service);
            let running = Running::start(bench, &setting)?;
            let config = json!({
                "address": running.tls, "pids": running.pids(), "connections": connections, "name": A,
                "certificate": running.certificate, "local_addresses": 4,
            });
            let Value::Object(config) = config else { unreachable!("an object was made above") };
            let report = execute(bench, &["http", "idle"], &config)?;
            running.stop()?;
            bytes.push(number(&report, "/rss_bytes_per_connection")?);
            if proxy == Proxy::Tidegate {
                lost += number(&report, "/failed")? + number(&report, "/closed")?;
            }
        }
    }
    upstream.stop()?;
    let haproxy = Proxy::ALL.iter().position(|proxy| *proxy == Proxy::Haproxy).expect("it is in the list");
    let ratio = median(&found[0]) / median(&found[haproxy]);
    let all = Proxy::ALL.iter().zip(&found).map(|(proxy, each)| format!("{} {:.0}", proxy.name(), median(each)));
    let runs = Proxy::ALL.iter().zip(&found).map(|(proxy, each)| (proxy.name().to_owned(), json!(each)));
    Ok(vec![Figure {
        what: format!("{connections} idle TLS connections, bytes each (gate: 2x haproxy's)"),
        value: format!("{ratio:.2}x: {}", all.collect::<Vec<_>>().join(", ")),
        spread: format!("{}; {lost:.0} of ours refused or closed", range(&found[0])),
        passes: ratio <= 2.0 && lost == 0.0,
        runs: runs.collect::<Map<_, _>>().into(),
    }])
}

/// Reloads while both tenants are served, kept and new connections.
pub(super) fn reload(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let duration = bench.size(20_000_u64, 4_000);
    let keys = json!({
        "sources": [source(A, 2_000.0, json!({ "tls": true, "connections": 16 })), source(B, 100.0, new_tls())],
        "duration_ms": duration,
        // Those of others do not outlive a reload.
        "pids": [],
    });
    let load = Load { tls: true, keys };
    let mut figures = Vec::new();
    for proxy in [Proxy::Tidegate, Proxy::Nginx] {
        // Limits by hand would refuse this load at nginx: it stands beside as it comes.
        let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
        let setting = Setting::new(proxy, limiting, KeyKind::P256, service);
        let running = Running::start(bench, &setting)?;
        let report = std::thread::scope(|scope| {
            let run = scope.spawn(|| load.run(bench, &running));
            let mut reloads = 0;
            crate::clock::poll(std::time::Duration::from_millis(duration), || {
                if run.is_finished() {
                    return Some(());
                }
                // Every half second; a failure shows in the count.
                crate::clock::poll(std::time::Duration::from_millis(500), || None::<()>);
                reloads += u32::from(running.reload(reloads).is_ok());
                None
            });
            let report = run.join().map_err(|_| miette::miette!("the load panicked"))??;
            Ok::<_, miette::Report>((report, reloads))
        });
        let (report, reloads) = report?;
        // Signals are not reloads: those that were made it counts itself.
        let made = if proxy == Proxy::Tidegate { reloads_made(&running.admin, reloads) } else { reloads };
        running.stop()?;
        let mut failed = 0.0;
        for index in 0..2 {
            let phase = Phase::of(&report, index, 0)?;
            failed += phase.offered()? - phase.answered()?;
        }
        let is_ours = proxy == Proxy::Tidegate;
        figures.push(Figure {
            what: format!("{}{made} reloads of {reloads} at load", if is_ours { "" } else { "beside it: nginx, " }),
            value: format!("{failed:.0} failed requests"),
            spread: format!("A {}, B {}", Phase::of(&report, 0, 0)?.endings(), Phase::of(&report, 1, 0)?.endings()),
            passes: !is_ours || (failed == 0.0 && reloads > 2 && made == reloads),
            runs: json!({ "failed": failed, "signals": reloads, "reloads": made }),
        });
    }
    upstream.stop()?;
    Ok(figures)
}

/// Reloads that Tidegate counts, once they are `wanted` or it has had time.
fn reloads_made(admin: &str, wanted: u32) -> u32 {
    let mut made = 0;
    crate::clock::poll(std::time::Duration::from_secs(5), || {
        let answer = crate::http::request(admin, "GET", "/api/v1/proxy", b"").ok()?;
        let status: Value = serde_json::from_str(&answer.body).ok()?;
        made = u32::try_from(status["reloads"].as_u64()?).unwrap_or(u32::MAX);
        (made >= wanted).then_some(())
    });
    made
}

/// A decision of the limiter, and what a rebalancing takes.
pub(super) fn decision(bench: &Bench) -> Result<Vec<Figure>> {
    let cases = [
        ("neighbours_resolved", 40.0),
        ("neighbours_random", 300.0),
        ("neighbours_rebalance", 5_000_000.0),
        ("neighbours_slice_max", 200_000.0),
    ];
    rows::decisions(bench, "tidegate-proxy", &cases)
}

/// Laws over ten thousand seeds, and the slides' experiment for every resource, both in virtual time.
pub(super) fn invariants(bench: &Bench) -> Result<Vec<Figure>> {
    let seeds = bench.size("10000", "20");
    let mut command = cargo(bench.places);
    command.args(["test", "--release", "--locked", "--package", "tidegate-proxy"]);
    command.args(["--test", "neighbours_properties", "--test", "neighbours_conservation"]);
    command.env("TIDEGATE_SEEDS", seeds);
    let limit = std::time::Duration::from_hours(2);
    let done = steps::run(bench.places, "proxy laws", &mut command, limit, steps::quiet)?;
    let mut figures = vec![Figure {
        what: format!("seven laws, {seeds} seeds each"),
        value: done.ending(),
        spread: String::new(),
        passes: done.success(),
        runs: json!({ "output": done.tail }),
    }];
    figures.extend(rows::lab(bench, "neighbours_slides")?);
    Ok(figures)
}
