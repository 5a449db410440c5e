//! The demo without a page: an overload by script, a table, a verdict.

use std::time::Duration;

use serde_json::json;

use super::control::Controlled;
use super::plan::Role;
use super::stage::{Name, Stage};
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// What comes before the overload: both sides well below capacity, so that neither starts with a queue.
const CALM: (f64, Duration) = (0.5, Duration::from_secs(2));
/// The overload, in capacities.
const OVERLOAD: f64 = 2.0;
/// Loss that the objective allows: a hundredth, as it speaks of 99 % of the messages.
const LOSS_PERCENT: f64 = 1.0;

/// What is offered, and for how long.
pub(crate) fn script(overload: Duration) -> [(f64, Duration); 2] {
    [CALM, (OVERLOAD, overload)]
}

/// Prints what both sides' meters show, and fails if the limited side misses its objective.
pub(crate) fn report(stage: &Stage, style: Style) -> Result<(), Failure> {
    let shown = stage.state();
    let good = shown.sides[Name::With as usize].good;
    let slo_ms = stage.plan.slo.as_secs_f64() * 1e3;
    let met = good.delivered_per_s > 0.0 && good.p99_ms <= slo_ms && good.loss_percent <= LOSS_PERCENT;
    match style {
        Style::Json => output::json(&json!({
            "load": OVERLOAD,
            "capacity_per_s": stage.plan.capacity_per_s,
            "deadline_ms": stage.plan.deadline.as_secs_f64() * 1e3,
            "slo": { "p99_ms": slo_ms, "loss_percent": LOSS_PERCENT, "met": met },
            "sides": shown.sides,
        }))?,
        Style::Table => {
            let mut table = Table::new(&["broker", "topic", "offered/s", "delivered/s", "p50 ms", "p99 ms", "lost %"]);
            for (side, role) in shown.sides.iter().flat_map(|side| Role::BOTH.map(|role| (side, role))) {
                let figures = if role == Role::Good { side.good } else { side.noisy };
                table.row([
                    side.title.to_owned(),
                    role.topic().to_owned(),
                    figure(figures.offered_per_s),
                    figure(figures.delivered_per_s),
                    figure(figures.p50_ms),
                    figure(figures.p99_ms),
                    figure(figures.loss_percent),
                ]);
            }
            table.print()?;
        }
    }
    if met {
        return Ok(());
    }
    Err(Failure::slo_missed(format!(
        "with the limit, {} took {} ms at p99 and lost {} %",
        Role::Good.topic(),
        figure(good.p99_ms),
        figure(good.loss_percent)
    ))
    .help(format!(
        "the objective is {} ms and {LOSS_PERCENT} %; a machine that is busy with other work misses it",
        figure(slo_ms)
    )))
}
