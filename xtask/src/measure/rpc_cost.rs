//! What control itself costs: a decision, the layer in a call, and the tests that its books balance.

use std::time::Duration;

use miette::Result;
use serde_json::json;

use super::bench::{Bench, median, number};
use super::rows;
use super::rpc_server::load;
use super::rpc_tonic;
use super::table::Figure;
use crate::peers::cargo;
use crate::steps;

/// The decision that every call needs.
pub(super) fn decision(bench: &Bench) -> Result<Vec<Figure>> {
    rows::decisions(bench, "tidegate-rpc", &[("rpc_decision/uncontended", 50.0), ("rpc_decision/two_threads", 150.0)])
}

/// The same for calls of a server that is below its capacity, and of one that holds its clients back.
pub(super) fn decision_throttled(bench: &Bench) -> Result<Vec<Figure>> {
    rows::decisions(
        bench,
        "tidegate-rpc",
        &[
            ("rpc_decision/uncontended", 60.0),
            ("rpc_decision/throttled", 60.0),
            ("rpc_decision/two_threads", 150.0),
            ("rpc_decision/throttled_two_threads", 150.0),
        ],
    )
}

/// Work of a call: about a tenth of a millisecond, and about one.
const ROUNDS: [u64; 2] = [50_000, 500_000];

/// Short slices, many of them: a virtual processor's speed drifts, and what is next to each other has the same.
const SLICE_S: f64 = 0.2;
const PAIRS: usize = 75;

/// What the layer adds to a served call at the server, below saturation, in the same program. CPU time stands in for
/// instructions: virtual machines rarely count them, and the programs that imitate a processor do not show the kernel's
/// clock page that the clock needs.
pub(super) fn in_service(bench: &Bench) -> Result<Vec<Figure>> {
    rpc_tonic::build(bench)?;
    let each = |rounds: u64| -> Result<Figure> {
        let server = rpc_tonic::serve_rounds(bench, rounds)?;
        let call = |port: &str, control: &str| -> Result<f64> {
            let arguments = format!(
                "load --addr {} --control {control} --closed 1 --connections 1 --warm-up 0 --seconds {} --slo-us 10000000",
                server.said(port)?,
                bench.size(SLICE_S, 0.3)
            );
            let before = server.cpu_ns()?;
            let calls = number(&load(&rpc_tonic::program(bench), &arguments)?, "/served_us/calls")?;
            #[expect(clippy::cast_precision_loss, reason = "a few seconds in nanoseconds are far below 2^53")]
            let used_us = (server.cpu_ns()? - before) as f64 / 1e3;
            if calls < 1.0 {
                miette::bail!("no call was served");
            }
            Ok(used_us / calls)
        };
        let (mut more, mut bare, mut layered) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..bench.size(PAIRS, 2) {
            // Who is first changes, so that a machine that slows down slows both.
            let ports = [("bare_addr", "none"), ("addr", "tidegate")];
            let found = if pair % 2 == 0 {
                ports.map(|(port, control)| call(port, control))
            } else {
                let [layered, bare] = [ports[1], ports[0]].map(|(port, control)| call(port, control));
                [bare, layered]
            };
            let [without, with] = found;
            let (without, with) = (without?, with?);
            more.push((with / without - 1.0) * 100.0);
            bare.push(without);
            layered.push(with);
        }
        server.stop()?;
        Ok(Figure {
            what: format!("CPU time of a call of {:.0} us", median(&bare)),
            value: format!("{:+.2} %: {:+.1} us with the layer", median(&more), median(&layered) - median(&bare)),
            spread: format!("95 % interval {} over {} pairs of slices", interval(&more), more.len()),
            passes: median(&more) <= 1.0,
            runs: json!({ "more_percent": more, "bare_us": bare, "layered_us": layered }),
        })
    };
    ROUNDS.into_iter().map(each).collect()
}

/// Within which the median lies in 95 of 100 cases, whatever the distribution: by the ranks of the binomial.
#[expect(clippy::cast_precision_loss, reason = "a few dozen values")]
fn interval(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let reach = (values.len() as f64).sqrt() * 0.98;
    let middle = values.len() as f64 / 2.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ranks of a few dozen values")]
    let (from, to) = ((middle - reach).max(0.0) as usize, ((middle + reach) as usize).min(sorted.len() - 1));
    format!("{:+.2} to {:+.2} %", sorted[from], sorted[to])
}

/// No credit is lost or made, and every client with demand is served or told: the test programs about that, exhaustive
/// and sampled, by their names; and how large a session is.
pub(super) fn conservation(bench: &Bench) -> Result<Vec<Figure>> {
    // The exhaustive model and the ledger's own tests look at what only the machine can see: they lie beside it.
    let tests: [&[&str]; 3] =
        [&["--lib", "credits::server::model"], &["--lib", "credits::session"], &["--test", "credits_faults"]];
    tests.into_iter().map(|which| run_test(bench, which)).collect()
}

/// One test program, optimised: the sampled ones run through many seeds.
fn run_test(bench: &Bench, which: &[&str]) -> Result<Figure> {
    let mut command = cargo(bench.places);
    command.args(["test", "--release", "--locked", "--package", "tidegate-rpc"]).args(which);
    let name = format!("test {}", which.join(" "));
    let done = steps::run(bench.places, &name, &mut command, Duration::from_mins(20), steps::quiet)?;
    let result = done.tail.lines().rev().find_map(|line| line.trim().strip_prefix("test result: "));
    let result = result.unwrap_or("no result").to_owned();
    let ran = !result.contains(" 0 passed");
    Ok(Figure {
        what: name,
        value: result,
        spread: String::new(),
        passes: done.success() && ran,
        runs: json!({ "output": done.tail }),
    })
}
