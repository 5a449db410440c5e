//! Clients that are refused and come back: at once, or later each time.

use miette::Result;
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::proxy_load::{A, B, Load, Phase, capacity, new_tls, source, upstream};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;

const ROUNDS: usize = 5;
const QUIET_PER_S: f64 = 100.0;
/// Clients of B, each of which asks again as soon as it has an answer: far more than the core can serve at a time.
const CLIENTS: u32 = 500;
/// The first pause of a client that backs off; it doubles with each refusal in a row.
const BACK_OFF_MS: u32 = 100;

/// What those do that are refused, and the least of all answers, as a share of the capacity.
const KINDS: [(&str, u32, f64); 2] =
    [("that reconnect at once", 0, 0.6), ("that back off from 100 ms on", BACK_OFF_MS, 0.95)];

struct Came {
    answered: f64,
    goodput: f64,
    refused_per_s: f64,
}

/// Each kind of clients beside A, on new connections with TLS.
pub(super) fn reconnect(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let bare = Setting::new(Proxy::Tidegate, Limiting::Off, KeyKind::Rsa, service);
    let mut figures = Vec::new();
    for (what, back_off_ms, least) in KINDS {
        let mut found = Vec::new();
        for round in 0..bench.size(ROUNDS, 1) {
            let capacity = capacity(bench, &bare, true)?;
            let came = run(bench, &Setting { limiting: Limiting::On, ..bare }, back_off_ms, capacity)?;
            println!(
                "clients {what}, round {}: A {:.4}, goodput {:.3} of {capacity:.0}/s, {:.0}/s refused",
                round + 1,
                came.answered,
                came.goodput,
                came.refused_per_s,
            );
            found.push(came);
        }
        figures.extend(figures_of(what, least, &found));
    }
    upstream.stop()?;
    Ok(figures)
}

fn run(bench: &Bench, setting: &Setting, back_off_ms: u32, capacity: f64) -> Result<Came> {
    let mut again = new_tls();
    (again["closed"], again["connections"], again["back_off_ms"]) = (json!(true), json!(CLIENTS), json!(back_off_ms));
    let proxy = Running::start(bench, setting)?;
    let keys = json!({
        "sources": [source(A, QUIET_PER_S, new_tls()), source(B, 1.0, again)],
        "warm_up_ms": 3_000, "duration_ms": bench.size(20_000, 3_000), "drain_ms": 5_000,
    });
    let report = Load { tls: true, keys }.run(bench, &proxy)?;
    proxy.stop()?;
    let (quiet, noisy) = (Phase::of(&report, 0, 0)?, Phase::of(&report, 1, 0)?);
    Ok(Came {
        answered: quiet.share()?,
        goodput: (quiet.answered_per_s()? + noisy.answered_per_s()?) / capacity.max(1.0),
        refused_per_s: noisy.refused()? / noisy.seconds()?,
    })
}

fn figures_of(what: &str, bar: f64, found: &[Came]) -> Vec<Figure> {
    let of = |pick: fn(&Came) -> f64| found.iter().map(pick).collect::<Vec<f64>>();
    let (answered, goodput, refused) =
        (of(|came| came.answered), of(|came| came.goodput), of(|came| came.refused_per_s));
    let least = answered.iter().copied().fold(f64::INFINITY, f64::min);
    let runs: Value = json!({ "answered": answered, "goodput": goodput, "refused_per_s": refused });
    vec![
        Figure {
            what: format!("beside {CLIENTS} clients {what}: A answered (bar: all)"),
            value: format!("{:.2} %", least * 100.0),
            spread: format!("{} over {}", range(&answered), answered.len()),
            passes: least >= 1.0,
            runs: runs.clone(),
        },
        Figure {
            what: format!("the same: all answers of the capacity (bar: {bar})"),
            value: format!("{:.2}, {:.0} refused a second", median(&goodput), median(&refused)),
            spread: format!("{} over {}", range(&goodput), goodput.len()),
            passes: median(&goodput) >= bar,
            runs,
        },
    ]
}
