//! The demo without a page: an overload by script, its figures second by second, a verdict.
//!
//! It does not wait: virtual time passes as fast as this machine computes it.

use serde::Serialize;

use super::figures::{Figures, Inside};
use super::show::{STEPS_PER_S, Show};
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// What comes before the overload: well below capacity, so that nobody starts with a queue. Load and seconds.
const CALM: (f64, u64) = (0.4, 2);
/// The overload, in capacities.
const OVERLOAD: f64 = 10.0;
/// The goodput that Tidegate must keep.
const GOODPUT: f64 = 0.9;

/// A second on screen.
#[derive(Serialize)]
struct Second {
    played_s: f64,
    load: f64,
    slo_us: f64,
    schemes: Vec<Figures>,
    tidegate: Option<Inside>,
}

/// Plays `seconds` of overload; as JSON it prints a line for each second on screen.
pub(crate) fn run(seconds: u64, style: Style) -> Result<(), Failure> {
    let mut show = Show::new().map_err(Failure::new)?;
    let mut loads = vec![CALM.0; usize::try_from(CALM.1).unwrap_or_default()];
    loads.extend((0..seconds).map(|_| OVERLOAD));
    for load in loads {
        for _ in 0..STEPS_PER_S {
            show.step(load);
        }
        if style == Style::Json {
            json_line(&show, load)?;
        }
    }
    if style == Style::Table {
        table(&show)?;
    }
    verdict(&show)
}

fn json_line(show: &Show, load: f64) -> Result<(), Failure> {
    let (schemes, tidegate) = (show.figures(), show.inside());
    let second = Second { played_s: show.played_s(), load, slo_us: show.plan.slo_us, schemes, tidegate };
    let text = serde_json::to_string(&second)
        .map_err(|error| Failure::new("the result cannot be written as JSON").because(error))?;
    output::line(text)
}

fn table(show: &Show) -> Result<(), Failure> {
    output::line(format_args!(
        "load {OVERLOAD}, capacity {} calls/s, SLO {} us, virtual time",
        figure(show.plan.capacity_per_s),
        figure(show.plan.slo_us)
    ))?;
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let mut table =
        Table::new(&["scheme", "goodput", "late", "p99 us", "refused at client", "at server", "notice p99 us"]);
    for each in show.figures() {
        table.row([
            each.name.to_owned(),
            percent(each.goodput),
            percent(each.late),
            figure(each.p99_us),
            percent(each.refused_local / each.offered.max(f64::MIN_POSITIVE)),
            percent(each.refused_remote / each.offered.max(f64::MIN_POSITIVE)),
            figure(each.notice_p99_us),
        ]);
    }
    table.print()
}

fn verdict(show: &Show) -> Result<(), Failure> {
    let ours = show.figures().into_iter().find(|each| each.name == "tidegate").unwrap_or_default();
    if ours.goodput >= GOODPUT && ours.p99_us <= show.plan.slo_us {
        return Ok(());
    }
    Err(Failure::slo_missed(format!(
        "tidegate kept {:.1} % of the capacity, with a p99 of {} us",
        100.0 * ours.goodput,
        figure(ours.p99_us)
    ))
    .help(format!("the objective is {} % and {} us", 100.0 * GOODPUT, figure(show.plan.slo_us))))
}
