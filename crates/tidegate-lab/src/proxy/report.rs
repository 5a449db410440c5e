//! The figures of a run.

use serde::Serialize;

use super::clients::Side;
use super::scenario::{ClientKind, Scenario};
use crate::statistics::{count, float};

/// What became of the time of a core, and of each tenant's requests, while it was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// In the order of the scenario.
    pub tenants: Vec<Row>,
    /// The part of the time that the core had which became answers to clients that still waited.
    pub useful: f64,
    /// The part that it had nothing to do in.
    pub idle: f64,
    /// The part that went on work that was refused.
    pub refusing: f64,
    /// The part that looks at the sockets took.
    pub looking: f64,
    /// The part that setting shares took.
    pub sharing: f64,
    /// Times at which the shares and what is nobody's did not add up to the capacity.
    pub books_wrong: u64,
}

/// One tenant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What the scenario calls it, and others like it.
    pub client: String,
    /// Requests that came.
    pub offered: u64,
    /// Those that were answered in time.
    pub answered: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those whose clients waited too long.
    pub lost: u64,
    /// Answers per second.
    pub goodput_per_s: f64,
    /// Half of the answers came in so many milliseconds,
    pub p50_ms: f64,
    /// 99 %,
    pub p99_ms: f64,
    /// the last.
    pub max_ms: f64,
    /// What it asks for is less than its equal part of what the core can be expected to give tenants.
    pub is_within: bool,
}

/// Time that a core spent while it was measured, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Spent {
    pub(super) idle: u64,
    pub(super) refusing: u64,
    pub(super) looking: u64,
    pub(super) sharing: u64,
    pub(super) books_wrong: u64,
}

/// A tenant's equal part of so much of the core is surely its own: the reserve, what newcomers get, and what the loop costs
/// are not.
const SURE: f64 = 0.6;

impl Report {
    pub(super) fn new(scenario: &Scenario, sides: &[Side], spent: Spent) -> Self {
        let seconds = float(scenario.measured_ms) / 1e3;
        let available_us = seconds * 1e6 * scenario.supply.part();
        let useful_us: f64 = sides.iter().map(|side| float(side.tally.goodput) * cost_us(scenario, side.kind)).sum();
        let equal_us = SURE * available_us / count(sides.len());
        let rows = sides.iter().map(|side| {
            let tally = &side.tally;
            let at = |quantile| float(tally.latency.value_at_quantile(quantile)) / 1e6;
            let has_some = !tally.latency.is_empty();
            Row {
                name: side.name.clone(),
                client: side.client.clone(),
                offered: tally.offered,
                answered: tally.answered,
                refused: tally.refused,
                lost: tally.lost,
                goodput_per_s: float(tally.goodput) / seconds,
                p50_ms: if has_some { at(0.5) } else { 0.0 },
                p99_ms: if has_some { at(0.99) } else { 0.0 },
                max_ms: if has_some { float(tally.latency.max()) / 1e6 } else { 0.0 },
                is_within: float(tally.offered) * cost_us(scenario, side.kind) <= equal_us,
            }
        });
        let part = |ns: u64| float(ns) / 1e3 / available_us;
        Self {
            tenants: rows.collect(),
            useful: useful_us / available_us,
            idle: part(spent.idle),
            refusing: part(spent.refusing),
            looking: part(spent.looking),
            sharing: part(spent.sharing),
            books_wrong: spent.books_wrong,
        }
    }

    /// Requests of tenants within their shares that were refused: there are to be none.
    #[must_use]
    pub fn wrongly_refused(&self) -> u64 {
        self.tenants.iter().filter(|row| row.is_within).map(|row| row.refused).sum()
    }
}

fn cost_us(scenario: &Scenario, kind: ClientKind) -> f64 {
    match kind {
        ClientKind::KeepAlive | ClientKind::ClosedLoop => scenario.costs.answer_us,
        ClientKind::NewTls => scenario.costs.connection_us(),
    }
}
