//! Bars of the layer where calls or callers of very different kinds meet.

use miette::Result;
use serde_json::json;

use super::bench::{Bench, median, number, range};
use super::broker::pinned;
use super::rpc_server::{self, load};
use super::rpc_tonic::{build, program};
use super::table::Figure;

/// Share of the calls that are reports, and the deadline of the others.
const REPORTS: f64 = 0.1;
const DEADLINE_MS: u32 = 100;
/// Twenty reports of 2 s.
const SLICE_MS: u32 = 40_000;
/// Slices are long: five pairs are twenty minutes with both loads.
const PAIRS: u32 = 5;
/// Each load with the share of their fair part that pings are answered at least, in time.
const LOADS: [(f64, f64); 2] = [(0.5, 0.99), (3.0, 0.9)];

/// Pings beside reports, on the service with the layer and on the bare one by turns.
pub(super) fn reports(bench: &Bench) -> Result<Vec<Figure>> {
    build(bench)?;
    let mut command = pinned("0");
    command.arg(program(bench)).args(["serve", "--work-us", "1000", "--stock"]);
    let server = rpc_server::start(bench, "calls", &mut command)?;
    let closed =
        format!("load --addr {} --closed 8 --seconds 2 --warm-up 0.5 --slo-us 10000000", server.said("bare_addr")?);
    let capacity = number(&load(&program(bench), &closed)?, "/served_per_s")?;
    let mut figures = Vec::new();
    for (factor, bar) in LOADS {
        let arguments = format!(
            "pair --addr {} --bare {} --rate {:.0} --slo-us {DEADLINE_MS}000 --deadline-ms {DEADLINE_MS} --reports {REPORTS} --slice-ms {} --pairs {} --warm-up 1",
            server.said("addr")?,
            server.said("bare_addr")?,
            capacity * factor,
            bench.size(SLICE_MS, 4_000),
            bench.size(PAIRS, 1),
        );
        let report = load(&program(bench), &arguments)?;
        let share = |side: &str| -> Result<f64> {
            let of = |key: &str| number(&report, &format!("/{side}/{key}"));
            // Everybody's fair part is the same share of what he wants.
            Ok(of("good")? / (of("offered")? - of("met_gap")?) * factor.max(1.0))
        };
        let (ours, bare) = (share("ours")?, share("bare")?);
        let reports = |side: &str| -> Result<f64> {
            Ok(number(&report, &format!("/{side}/reports_served"))? / number(&report, &format!("/{side}/reports"))?)
        };
        figures.push(Figure {
            what: format!("pings at {factor}x of {capacity:.0}/s, a tenth of the calls reports"),
            value: format!("{ours:.4} of their fair part in time (bar {bar}), bare {bare:.4}"),
            spread: format!(
                "reports served: {:.3}, bare {:.3}; {} pairs, {} dropped for gaps",
                reports("ours")?,
                reports("bare")?,
                number(&report, "/pairs")?,
                number(&report, "/dropped")?
            ),
            passes: ours >= bar,
            runs: report,
        });
    }
    server.stop()?;
    Ok(figures)
}

/// Honest callers want so much of the capacity in all, the attacker so much.
const HONEST: f64 = 0.5;
const ATTACK: f64 = 10.0;
const HONEST_LEAST: f64 = 0.95;
const ATTACKS: usize = 5;
/// The objective of the honest calls: their deadline.
const HONEST_SLO_US: u32 = 50_000;

/// Honest callers beside one who invents a name, a tenant and the best priority for each call.
pub(super) fn invented(bench: &Bench) -> Result<Vec<Figure>> {
    build(bench)?;
    // Who is beside whom: honest callers without the layer have their address, those with it their grants.
    let cases = [
        ("plain callers, attacker from another address", "none", "127.0.0.2"),
        ("callers with the layer, attacker from another address", "tidegate", "127.0.0.2"),
        ("callers with the layer, attacker from theirs", "tidegate", "127.0.0.1"),
    ];
    cases.into_iter().map(|(what, control, attacker)| beside(bench, what, control, attacker)).collect()
}

fn beside(bench: &Bench, what: &str, control: &str, attacker: &str) -> Result<Figure> {
    let seconds = bench.size(4.0, 1.0);
    let mut shares = Vec::new();
    for seed in 1..=bench.size(ATTACKS, 1) {
        let mut command = pinned("0");
        command.arg(program(bench)).args(["serve", "--work-us", "1000", "--stock"]);
        let server = rpc_server::start(bench, "calls", &mut command)?;
        let bare = server.said("bare_addr")?;
        let closed = format!("load --addr {bare} --closed 8 --seconds 1 --warm-up 0.2 --slo-us 10000000");
        let capacity = number(&load(&program(bench), &closed)?, "/served_per_s")?;
        // One generator for both: two that spin on one CPU would take it from each other for milliseconds.
        let both = format!(
            "load --addr {} --rate {:.0} --attack-rate {:.0} --attack-from {attacker} --control {control} --from 127.0.0.1 \
             --seconds {seconds} --warm-up 1 --slo-us {HONEST_SLO_US} --seed {seed}",
            server.said("addr")?,
            capacity * HONEST,
            capacity * ATTACK,
        );
        let honest = load(&program(bench), &both)?;
        server.stop()?;
        shares.push(number(&honest, "/goodput_per_s")? / number(&honest, "/offered_per_s")?);
    }
    Ok(Figure {
        what: format!("{what} at {ATTACK}x"),
        value: format!("{:.4} of the honest calls in time (bar {HONEST_LEAST})", median(&shares)),
        spread: format!("{} over {}; honest callers want {HONEST} of the capacity", range(&shares), shares.len()),
        passes: median(&shares) >= HONEST_LEAST,
        runs: json!({ "shares": shares }),
    })
}
