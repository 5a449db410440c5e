//! A whole broker with its clients on a simulated machine, over many seeds: restarts, kills, power cuts, reconnects,
//! deletions, edits of limits and shards at random.
//!
//! `TIDEGATE_SEEDS=100000 cargo test --release -p tidegate-broker --test simulation` runs so many; a failure prints the
//! command that repeats its seed alone.

#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;
mod sim;

use std::cell::Cell;

use sim::Report;
use tidegate_sim::replay::SimulationTest;

const SEEDS: u64 = 1_000;

/// The seeds of one of two halves, which run side by side.
fn half(test: &'static str, odd: bool) {
    let total = Cell::new(Report::default());
    let test = SimulationTest { package: env!("CARGO_PKG_NAME"), name: test };
    let half = SimulationTest::seeds(SEEDS) / 2;
    let seeds = if odd { half..2 * half } else { 0..half };
    test.for_each_seed(seeds, |seed| {
        let (trace, report) = sim::run(seed);
        let mut sum = total.get();
        sum += report;
        total.set(sum);
        trace
    });
    eprintln!("{:?}", total.get());
}

#[test]
fn limits_hold_and_nothing_is_lost() {
    half("limits_hold_and_nothing_is_lost", false);
}

#[test]
fn limits_hold_and_nothing_is_lost_on_other_seeds() {
    half("limits_hold_and_nothing_is_lost_on_other_seeds", true);
}
