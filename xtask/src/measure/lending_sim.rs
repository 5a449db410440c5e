//! What lending costs and gains, and its law, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::table::Figure;
use crate::peers::cargo;
use crate::{process, steps};

/// The mean access delay of one bucket, as the exact theory has it.
const ONE_BUCKET_US: f64 = 3.1;

/// Delays and frames of one limit in six parts, beside one bucket and beside parts that do not lend.
pub(super) fn lending(bench: &Bench) -> Result<Vec<Figure>> {
    let mut command = cargo(bench.places);
    command.args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "tidegate-sim",
        "--example",
        "lending",
        "--",
    ]);
    command.arg(bench.size("200", "20"));
    let text = process::output(&mut command).wrap_err("the simulation of lending")?;
    let cases: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>().into_diagnostic()?;
    let by_name: BTreeMap<&str, &Value> =
        cases.iter().filter_map(|case| Some((case.get("name")?.as_str()?, case))).collect();
    let of = |name: &str, key: &str| -> Result<f64> {
        let case = by_name.get(name).ok_or_else(|| miette::miette!("the simulation has no case `{name}`"))?;
        number(case, &format!("/{key}"))
    };
    let figure = |what: &str, value: f64, bar: f64, unit: &str, run: &str| Figure {
        what: what.to_owned(),
        value: format!("{value:.1} {unit} (bar {bar:.1})"),
        spread: String::new(),
        passes: value <= bar,
        runs: by_name.get(run).map_or(Value::Null, |case| (*case).clone()),
    };
    let percent = |name: &str| Ok::<f64, miette::Report>(of(name, "frames")? * 100.0);

    let split = of("split", "mean_us")?;
    let batches = of("batches_split", "mean_us")?;
    let mut figures = vec![
        figure("0.2 ms: p99 access delay", of("lent", "p99_us")? / 1e3, 1.0, "ms", "lent"),
        figure("0.2 ms: mean", of("lent", "mean_us")?, 10.0 * ONE_BUCKET_US, "us", "lent"),
        figure("0.2 ms: frames of messages", percent("lent")?, 15.0, "%", "lent"),
        figure("1 ms: p99 access delay", of("lent_far", "p99_us")? / 1e3, 3.0, "ms", "lent_far"),
        figure("20 topics: frames of messages", percent("lent_20")?, 5.0, "%", "lent_20"),
        figure("batches of 10: mean", of("batches_lent", "mean_us")?, batches / 20.0, "us", "batches_lent"),
    ];
    // Without a bar: what the figures above stand beside.
    for (what, name) in [
        ("one bucket", "single"),
        ("split", "split"),
        ("1 ms", "lent_far"),
        ("5 topics", "lent_5"),
        ("20 topics", "lent_20"),
        ("batches of 10: one bucket", "batches_single"),
        ("batches of 10: split", "batches_split"),
        ("batches of 10: lent", "batches_lent"),
    ] {
        let (mean, p99) = (of(name, "mean_us")?, of(name, "p99_us")? / 1e3);
        figures.push(Figure {
            what: format!("{what}, for comparison"),
            value: format!("mean {mean:.1} us, p99 {p99:.2} ms, frames {:.1} %", percent(name)?),
            spread: format!(
                "{:.1} times less than split",
                if name.starts_with("batches") { batches } else { split } / mean
            ),
            passes: true,
            runs: Value::Null,
        });
    }
    let broken = cases.iter().filter(|case| case["violations"] != 0 || case["conserved"] != true).count();
    figures.push(Figure {
        what: "cases that break the law".to_owned(),
        value: format!("{broken} of {}", cases.len()),
        spread: String::new(),
        passes: broken == 0,
        runs: Value::Null,
    });
    Ok(figures)
}

/// Burst and rate of the whole under loss, duplication, reordering, delay, partitions, crashes, pauses and clock steps.
pub(super) fn law(bench: &Bench) -> Result<Vec<Figure>> {
    let seeds = bench.size("10000", "100");
    let mut command = cargo(bench.places);
    command.args(["test", "--release", "--locked", "--package", "tidegate-sim", "--test", "lending"]);
    command.env("TIDEGATE_SEEDS", seeds);
    let done = steps::run(bench.places, "law of lending", &mut command, Duration::from_hours(2), steps::quiet)?;
    Ok(vec![Figure {
        what: format!("violations of b + r·t, {seeds} seeds"),
        value: done.ending(),
        spread: String::new(),
        passes: done.success(),
        runs: json!({ "output": done.tail }),
    }])
}
