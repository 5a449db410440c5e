//! The broker on a simulated machine: restarts, kills, power cuts, reconnects, deletions, edits and shards at random.

use std::time::Duration;

use miette::Result;
use serde_json::json;

use super::bench::Bench;
use super::table::Figure;
use crate::peers::cargo;
use crate::steps;

/// Limits at consumers' sockets, messages by what publishers were answered, and replay, over many seeds.
pub(super) fn simulation(bench: &Bench) -> Result<Vec<Figure>> {
    let seeds = bench.size("100000", "200");
    let mut command = cargo(bench.places);
    command.args(["test", "--release", "--locked", "--package", "tidegate-broker", "--test", "simulation"]);
    command.env("TIDEGATE_SEEDS", seeds);
    let done = steps::run(bench.places, "broker simulation", &mut command, Duration::from_hours(4), steps::quiet)?;
    Ok(vec![Figure {
        what: format!("limits and messages, {seeds} seeds"),
        value: done.ending(),
        spread: String::new(),
        passes: done.success(),
        runs: json!({ "output": done.tail }),
    }])
}
