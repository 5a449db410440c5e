//! One limit over several proxies: six in virtual time, three real ones.

use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::table::Figure;
use crate::peers::cargo;
use crate::steps;

/// Of all requests.
const REFUSED_MAX: f64 = 0.01;

/// Admissions against b + r·t, and requests that were refused while an undivided bucket had tokens.
pub(super) fn run(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = simulated(bench)?;
    figures.extend(real(bench)?);
    Ok(figures)
}

/// `lab/divided_limit.toml`: every way to divide the limit, the same requests for each.
fn simulated(bench: &Bench) -> Result<Vec<Figure>> {
    let folder = bench.folder("divided_limit")?;
    let mut command = Command::new(bench.places.tidegate());
    command.args(["lab", "run", "lab/divided_limit.toml", "--out"]).arg(&folder).current_dir(&bench.places.root);
    if bench.size(false, true) {
        command.arg("--quick");
    }
    let done = steps::run(bench.places, "lab divided_limit", &mut command, Duration::from_hours(1), steps::quiet)?;
    let file = folder.join("divided_limit.json");
    let text = std::fs::read_to_string(&file)
        .into_diagnostic()
        .wrap_err_with(|| format!("{}\n{}", file.display(), done.tail))?;
    let outcome: Value = serde_json::from_str(&text).into_diagnostic()?;
    let rows = outcome["numbers"].as_array().cloned().unwrap_or_default();
    let mut figures = rows
        .iter()
        .map(|row| {
            let (case, report) = (row["case"].as_str().unwrap_or(""), &row["report"]);
            let scheme = report["scheme"].as_str().unwrap_or("");
            // The bar is that of the whole; each part stands beside it.
            let has_bar = case == "steady" && scheme == "both";
            figure(&format!("simulated, {case}, {scheme}"), report, has_bar)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.push(Figure {
        what: "claims of lab/divided_limit.toml".to_owned(),
        value: done.ending(),
        spread: String::new(),
        passes: done.success(),
        runs: json!({ "output": done.tail }),
    });
    Ok(figures)
}

/// Three proxies and control in one process, with requests on sockets; a window's admissions are those that were sent in it
/// and answered in it.
fn real(bench: &Bench) -> Result<Vec<Figure>> {
    let seconds = bench.size("180", "40");
    let mut command = cargo(bench.places);
    command.args(["run", "--release", "--locked", "--package", "tidegate", "--example", "divided_limit", seconds]);
    let done = steps::run(bench.places, "divided limit", &mut command, Duration::from_hours(1), steps::quiet)?;
    steps::finish(&command, &done)?;
    let reports = done.tail.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    reports
        .filter(|report| report["scheme"].is_string())
        .map(|report| {
            let scheme = report["scheme"].as_str().unwrap_or("");
            figure(&format!("3 real proxies, {scheme}"), &report, scheme == "both")
        })
        .collect()
}

fn figure(what: &str, report: &Value, has_bar: bool) -> Result<Figure> {
    let at = |name: &str| number(report, &format!("/{name}"));
    let (requests, violations, excess) = (at("requests")?, at("violations")?, at("excess_max")?);
    let share = at("refused_with_tokens")? / requests.max(1.0);
    let undivided = at("refused_undivided")? / requests.max(1.0);
    Ok(Figure {
        what: what.to_owned(),
        value: format!("{:.3} % refused with tokens, {violations} violations", share * 100.0),
        spread: format!(
            "undivided refuses {:.3} %, fullest window {excess:+.2} above b + r t, {requests} requests",
            undivided * 100.0
        ),
        passes: violations == 0.0 && requests > 0.0 && (!has_bar || share <= REFUSED_MAX),
        runs: report.clone(),
    })
}
