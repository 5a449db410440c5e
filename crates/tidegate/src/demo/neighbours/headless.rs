//! The demo without a page: a noisy neighbour by script, a table, a verdict.

use std::time::Duration;

use serde_json::json;

use super::plan::{NOISE, Tenant};
use super::stage::Stage;
use crate::demo::control::Controlled;
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// What comes before the noise, so that neither side starts with a line.
const CALM: Duration = Duration::from_secs(2);
/// The part of A's requests that must be answered; the goal speaks of 99 %.
const ANSWERED_PERCENT: f64 = 99.0;

/// Calm, then the most noise, and for how long.
pub(super) fn script(noise: Duration) -> [(f64, Duration); 2] {
    [(*NOISE.start(), CALM), (*NOISE.end(), noise)]
}

/// Prints what both sides' meters show, and fails if A misses the goal on the right.
pub(super) fn report(stage: &Stage, style: Style) -> Result<(), Failure> {
    let shown = stage.state();
    let [_, right] = &shown.sides;
    let goal_ms = stage.plan.goal.as_secs_f64() * 1e3;
    let met = right.quiet.answered_percent >= ANSWERED_PERCENT && right.quiet.p99_ms <= goal_ms;
    match style {
        Style::Json => output::json(&json!({
            "noise_per_s": NOISE.end(),
            "capacity_per_s": stage.plan.capacity_per_s,
            "admitted_per_s": stage.plan.admitted_per_s,
            "goal": { "p99_ms": goal_ms, "answered_percent": ANSWERED_PERCENT, "met": met },
            "sides": shown.sides,
        }))?,
        Style::Table => {
            let header = ["proxy", "tenant", "offered/s", "answered/s", "refused/s", "answered %", "p50 ms", "p99 ms"];
            let mut table = Table::new(&header);
            for (side, tenant) in shown.sides.iter().flat_map(|side| Tenant::BOTH.map(|tenant| (side, tenant))) {
                let figures = if tenant == Tenant::Quiet { side.quiet } else { side.noisy };
                table.row([
                    side.title.to_owned(),
                    tenant.host().to_owned(),
                    figure(figures.offered_per_s),
                    figure(figures.answered_per_s),
                    figure(figures.refused_per_s),
                    figure(figures.answered_percent),
                    figure(figures.p50_ms),
                    figure(figures.p99_ms),
                ]);
            }
            table.print()?;
        }
    }
    if met {
        return Ok(());
    }
    Err(Failure::slo_missed(format!(
        "with Tidegate, {} got {} % of its answers, with a p99 of {} ms",
        Tenant::Quiet.host(),
        figure(right.quiet.answered_percent),
        figure(right.quiet.p99_ms)
    ))
    .help(format!(
        "the goal is {ANSWERED_PERCENT} % and {} ms; a machine that is busy with other work misses it",
        figure(goal_ms)
    )))
}
