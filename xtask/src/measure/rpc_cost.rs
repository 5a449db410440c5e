//! What control itself costs: a decision, the layer in a call, and the tests that its books balance.

use std::path::Path;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, number, range};
use super::rpc_server::load;
use super::rpc_tonic;
use super::table::Figure;
use crate::peers::cargo;
use crate::{setup, steps};

/// Criterion's estimates of the decision that every call needs.
pub(super) fn decision(bench: &Bench) -> Result<Vec<Figure>> {
    let mut command = cargo(bench.places);
    command.args(["bench", "--locked", "--package", "tidegate-rpc", "--bench", "decision", "--"]);
    if bench.quick {
        command.args(["--warm-up-time", "0.2", "--measurement-time", "0.5"]);
    }
    let done = steps::run(bench.places, "rpc decision", &mut command, Duration::from_mins(20), steps::quiet)?;
    steps::finish(&command, &done)?;
    [("rpc_decision/uncontended", 50.0), ("rpc_decision/two_threads", 150.0)]
        .into_iter()
        .map(|(case, bar)| {
            // Criterion names the folder of a case after it, without the slash.
            let file = bench.places.target.join("criterion").join(case.replace('/', "_")).join("new/estimates.json");
            let text = std::fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
            let estimates: Value = serde_json::from_str(&text).into_diagnostic()?;
            let ns = number(&estimates, "/median/point_estimate")?;
            let (low, high) = ("/median/confidence_interval/lower_bound", "/median/confidence_interval/upper_bound");
            Ok(Figure {
                what: case.to_owned(),
                value: format!("{ns:.1} ns (bar {bar} ns)"),
                spread: format!("{:.1} to {:.1} ns", number(&estimates, low)?, number(&estimates, high)?),
                passes: ns <= bar,
                runs: estimates,
            })
        })
        .collect()
}

/// Work of a call: about a tenth of a millisecond, and about one.
const ROUNDS: [u64; 2] = [50_000, 500_000];

/// Instructions of a call with the layer against those without it, in the same program.
pub(super) fn in_service(bench: &Bench) -> Result<Vec<Figure>> {
    rpc_tonic::build(bench)?;
    if setup::find("valgrind").is_none() {
        return cpu_in_service(bench);
    }
    let each = |rounds: u64| -> Result<Figure> {
        let idle = instructions(bench, rounds, None)?.0;
        let call = |port: &str, control: &str| -> Result<f64> {
            let (all, calls) = instructions(bench, rounds, Some((port, control)))?;
            Ok((all - idle) / calls)
        };
        let (bare, layered) = (call("bare_addr", "none")?, call("addr", "tidegate")?);
        let more = layered / bare - 1.0;
        Ok(Figure {
            what: format!("instructions of a call of {rounds} rounds"),
            value: format!("{:+.2} % with the layer", more * 100.0),
            spread: format!("{bare:.0} without, {layered:.0} with it"),
            passes: more <= 0.01,
            runs: json!({ "bare": bare, "layered": layered }),
        })
    };
    ROUNDS.into_iter().map(each).collect()
}

/// Instructions that the server executes, and the calls that it served: one at a time, so that nothing waits and nothing
/// is shed while the processor is imitated.
fn instructions(bench: &Bench, rounds: u64, caller: Option<(&str, &str)>) -> Result<(f64, f64)> {
    let counts = bench.folder("callgrind")?;
    let before = format!("valgrind --quiet --tool=callgrind --callgrind-out-file={}", counts.display());
    let server = rpc_tonic::serve_rounds(bench, rounds, &before.split_whitespace().collect::<Vec<_>>())?;
    let mut calls = 0.0;
    if let Some((port, control)) = caller {
        let arguments = format!(
            "load --addr {} --control {control} --closed 1 --connections 1 --warm-up 0 --seconds {} --slo-us 10000000",
            server.said(port)?,
            bench.size(8, 2)
        );
        let report = load(&rpc_tonic::program(bench), &arguments)?;
        calls = number(&report, "/served_us/calls")?;
        let shed = number(&report, "/shed_remote_us/calls")?;
        if calls < 1.0 || shed > calls / 100.0 {
            miette::bail!("{calls} calls were served and {shed} shed: no count of instructions comes of that");
        }
    }
    server.stop()?;
    Ok((total(&counts)?, calls))
}

/// The sum that callgrind writes at the end of its file.
fn total(file: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    let sum = text.lines().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")));
    let sum = sum.and_then(|sum| sum.trim().parse().ok());
    sum.ok_or_else(|| miette::miette!("{} has no total", file.display()))
}

/// Where instructions cannot be counted: CPU time of a call with the layer and without it, in pairs.
fn cpu_in_service(bench: &Bench) -> Result<Vec<Figure>> {
    let each = |rounds: u64| -> Result<Figure> {
        let server = rpc_tonic::serve_rounds(bench, rounds, &[])?;
        let call = |port: &str, control: &str| -> Result<f64> {
            let arguments = format!(
                "load --addr {} --control {control} --closed 1 --connections 1 --warm-up 0 --seconds {} --slo-us 10000000",
                server.said(port)?,
                bench.size(1.5, 0.3)
            );
            let before = server.cpu_ns()?;
            let calls = number(&load(&rpc_tonic::program(bench), &arguments)?, "/served_us/calls")?;
            #[expect(clippy::cast_precision_loss, reason = "a few seconds in nanoseconds are far below 2^53")]
            let used = (server.cpu_ns()? - before) as f64;
            Ok(used / calls)
        };
        let mut more = Vec::new();
        for _ in 0..bench.size(7, 2) {
            more.push(call("addr", "tidegate")? / call("bare_addr", "none")? - 1.0);
        }
        server.stop()?;
        Ok(Figure {
            what: format!("CPU time of a call of {rounds} rounds"),
            value: format!("{:+.2} % with the layer", median(&more) * 100.0),
            spread: format!(
                "{} over {} pairs (valgrind, which counts instructions, is not installed)",
                range(&more),
                more.len()
            ),
            passes: median(&more) <= 0.01,
            runs: json!(more),
        })
    };
    ROUNDS.into_iter().map(each).collect()
}

/// No credit is lost or made, and every client with demand is served or told: the test programs about that, exhaustive
/// and sampled, by their names; and how large a session is.
pub(super) fn conservation(bench: &Bench) -> Result<Vec<Figure>> {
    let folder = bench.places.root.join("crates/tidegate-rpc/tests");
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&folder).into_diagnostic()? {
        let name = entry.into_diagnostic()?.file_name().to_string_lossy().into_owned();
        programs.extend(name.strip_suffix(".rs").filter(|name| name.starts_with("credits_")).map(str::to_owned));
    }
    programs.sort_unstable();
    let mut figures: Vec<Figure> =
        programs.iter().map(|name| run_test(bench, &["--test", name])).collect::<Result<_>>()?;
    figures.push(run_test(bench, &["--lib", "machine::credits::session"])?);
    Ok(figures)
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
