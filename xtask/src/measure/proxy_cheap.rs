//! Answers that cost no more than to refuse them: what a tenant far beyond its share is told eats the core that others, and
//! the tenant itself, could have been served by.

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::proxy_load::{B, Load, Phase, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;

const ROUNDS: usize = 5;
/// Tenants within their share are as fast as behind nginx at the same load, but for this factor, or faster than this.
const SLOWER_MOST: f64 = 1.5;
const FAST_US: f64 = 2_000.0;
/// Of what nginx and the proxy without limits answer in all.
const GOODPUT_LEAST: f64 = 0.9;

/// So many tenants within their share, each with 1,000 requests a second, beside one with more.
struct Mix {
    what: &'static str,
    quiet: usize,
    noisy_per_s: f64,
}

const QUIET_PER_S: f64 = 1_000.0;

const MIXES: [Mix; 3] = [
    Mix { what: "one tenant of 1,000/s beside 10,000/s", quiet: 1, noisy_per_s: 10_000.0 },
    Mix { what: "one tenant of 1,000/s beside 40,000/s", quiet: 1, noisy_per_s: 40_000.0 },
    Mix { what: "nine tenants of 1,000/s beside 60,000/s", quiet: 9, noisy_per_s: 60_000.0 },
];

/// Who stands beside whom: ours with limits, ours without, and nginx.
const SIDES: [(Proxy, Limiting); 3] =
    [(Proxy::Tidegate, Limiting::On), (Proxy::Tidegate, Limiting::Off), (Proxy::Nginx, Limiting::Off)];

/// What one run came to.
struct Came {
    /// Of what tenants within their share asked for.
    share: f64,
    us_p99: f64,
    noisy_per_s: f64,
    all_per_s: f64,
    sent_per_s: f64,
}

/// The mixes, on kept connections.
pub(super) fn beside(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let mut figures = Vec::new();
    for mix in &MIXES {
        let mut found: [Vec<Came>; SIDES.len()] = [const { Vec::new() }; SIDES.len()];
        let rounds = bench.size(ROUNDS, 1);
        for round in 0..rounds {
            for turn in 0..SIDES.len() {
                // Who is first changes, so that a machine that slows down slows all.
                let index = (turn + round) % SIDES.len();
                let (proxy, limiting) = SIDES[index];
                let setting = Setting::new(proxy, limiting, KeyKind::P256, service);
                let came = run(bench, &setting, mix).wrap_err_with(|| proxy.name().to_owned())?;
                println!(
                    "{}, round {} of {rounds}, {} {limiting:?}: {:.4} answered, p99 {:.0} us, noisy {:.0}/s of {:.0}/s sent",
                    mix.what,
                    round + 1,
                    proxy.name(),
                    came.share,
                    came.us_p99,
                    came.noisy_per_s,
                    came.sent_per_s,
                );
                found[index].push(came);
            }
        }
        figures.extend(figures_of(mix, &found));
    }
    upstream.stop()?;
    Ok(figures)
}

fn run(bench: &Bench, setting: &Setting, mix: &Mix) -> Result<Came> {
    let mut sources: Vec<Value> = (0..mix.quiet)
        .map(|number| {
            let name = if number == 0 { "a.example".to_owned() } else { format!("quiet-{number}.example") };
            source(&name, QUIET_PER_S, json!({ "connections": 16 }))
        })
        .collect();
    // What finds no connection free is not sent: it would wait in the generator.
    sources.push(source(B, mix.noisy_per_s, json!({ "connections": 256, "waiting_max": 0 })));
    let keys = json!({ "sources": sources, "warm_up_ms": 2_000, "duration_ms": bench.size(6_000, 1_500) });
    let proxy = Running::start(bench, setting)?;
    let mut load = Load { tls: false, keys };
    // Nine threads beside the upstream on one CPU are late by what they take from each other; it is the same for all.
    load.keys["lateness_us_p99_max"] = json!(1e9);
    let report = load.run(bench, &proxy)?;
    proxy.stop()?;
    let (mut offered, mut answered, mut us_p99) = (0.0, 0.0, 0.0_f64);
    let mut all_per_s = 0.0;
    for number in 0..mix.quiet {
        let phase = Phase::of(&report, number, 0)?;
        offered += phase.offered()?;
        answered += phase.answered()?;
        all_per_s += phase.answered_per_s()?;
        us_p99 = us_p99.max(phase.us_p99()?);
    }
    let noisy = Phase::of(&report, mix.quiet, 0)?;
    let noisy_per_s = noisy.answered_per_s()?;
    let sent = noisy.offered()? - noisy.ended("unsent") - noisy.ended("not_connected");
    Ok(Came {
        share: answered / offered.max(1.0),
        us_p99,
        noisy_per_s,
        all_per_s: all_per_s + noisy_per_s,
        sent_per_s: sent / noisy.seconds()?,
    })
}

fn figures_of(mix: &Mix, found: &[Vec<Came>; SIDES.len()]) -> Vec<Figure> {
    let [ours, off, nginx] = found;
    let of = |side: &[Came], what: fn(&Came) -> f64| side.iter().map(what).collect::<Vec<f64>>();
    let shares = of(ours, |came| came.share);
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let (p99, their_p99) = (of(ours, |came| came.us_p99), of(nginx, |came| came.us_p99));
    let allowed = (SLOWER_MOST * median(&their_p99)).max(FAST_US);
    let ratios = |other: &[Came]| -> Vec<f64> {
        ours.iter().zip(other).map(|(ours, other)| ours.all_per_s / other.all_per_s.max(1.0)).collect()
    };
    let (beside_off, beside_nginx) = (ratios(off), ratios(nginx));
    let runs = |side: &[Came]| -> Value {
        side.iter()
            .map(|came| {
                json!({
                    "share": came.share, "us_p99": came.us_p99, "noisy_per_s": came.noisy_per_s,
                    "all_per_s": came.all_per_s, "sent_per_s": came.sent_per_s,
                })
            })
            .collect()
    };
    let runs = json!({ "ours": runs(ours), "off": runs(off), "nginx": runs(nginx) });
    vec![
        Figure {
            what: format!("{}: tenants within their share", mix.what),
            value: format!("{:.2} % answered, p99 {:.0} us (at most {allowed:.0})", least * 100.0, median(&p99)),
            spread: format!("p99 {} over {}; nginx {}", range(&p99), p99.len(), range(&their_p99)),
            passes: least >= 0.9999 && median(&p99) <= allowed,
            runs: runs.clone(),
        },
        Figure {
            what: format!("{}: all goodput (bar: {GOODPUT_LEAST} of nginx's and of its own without limits)", mix.what),
            value: format!("{:.3} of nginx's, {:.3} of its own", median(&beside_nginx), median(&beside_off)),
            spread: format!(
                "{}, {} over {}; the other tenant {:.0}/s, behind nginx {:.0}/s",
                range(&beside_nginx),
                range(&beside_off),
                beside_off.len(),
                median(&of(ours, |came| came.noisy_per_s)),
                median(&of(nginx, |came| came.noisy_per_s)),
            ),
            passes: median(&beside_nginx) >= GOODPUT_LEAST && median(&beside_off) >= GOODPUT_LEAST,
            runs,
        },
    ]
}

/// Connections of the tenant that is alone.
const ALONE: [usize; 5] = [1, 64, 200, 1_000, 5_000];
/// Of what it is answered without limits.
const ALONE_LEAST: f64 = 0.98;

/// One tenant with so many connections that are always busy, from a cold start.
pub(super) fn alone(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let mut figures = Vec::new();
    for connections in ALONE {
        let mut found: [Vec<(f64, f64, f64)>; SIDES.len()] = [const { Vec::new() }; SIDES.len()];
        for round in 0..bench.size(ROUNDS, 1) {
            for turn in 0..SIDES.len() {
                let index = (turn + round) % SIDES.len();
                let (proxy, limiting) = SIDES[index];
                let setting = Setting::new(proxy, limiting, KeyKind::P256, service);
                found[index].push(all_busy(bench, &setting, connections).wrap_err_with(|| proxy.name().to_owned())?);
            }
        }
        let [ours, off, nginx] = &found;
        let ratios: Vec<f64> = ours.iter().zip(off).map(|(ours, off)| ours.0 / off.0.max(1.0)).collect();
        let refused: f64 = ours.iter().map(|came| came.1).sum();
        let longest = |side: &[(f64, f64, f64)]| median(&side.iter().map(|came| came.2).collect::<Vec<_>>());
        figures.push(Figure {
            what: format!("{connections} busy connections of one tenant, cold"),
            value: format!(
                "{:.3} of mode off, {refused:.0} refused, longest wait {:.0} ms",
                median(&ratios),
                longest(ours)
            ),
            spread: format!(
                "{} over {}; longest wait without limits {:.0} ms, of nginx {:.0} ms",
                range(&ratios),
                ratios.len(),
                longest(off),
                longest(nginx),
            ),
            passes: median(&ratios) >= ALONE_LEAST
                && refused == 0.0
                && longest(ours).max(longest(off)) <= longest(nginx),
            runs: json!({ "ours": ours, "off": off, "nginx": nginx }),
        });
    }
    upstream.stop()?;
    Ok(figures)
}

/// Answers a second, refusals, and the longest wait in milliseconds.
fn all_busy(bench: &Bench, setting: &Setting, connections: usize) -> Result<(f64, f64, f64)> {
    let keys = json!({ "closed": true, "connections": connections, "timeout_ms": 20_000 });
    let duration = bench.size(6_000, 1_500);
    let keys = json!({ "sources": [source(B, 1.0, keys)], "warm_up_ms": 0, "duration_ms": duration });
    let proxy = Running::start(bench, setting)?;
    let report = Load { tls: false, keys }.run(bench, &proxy)?;
    proxy.stop()?;
    let phase = Phase::of(&report, 0, 0)?;
    Ok((phase.answered_per_s()?, phase.refused()?, phase.us_max()? / 1e3))
}
