//! What is shown of compared schemes: single figures of a run, a table, and figures.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::rpc::Rpc;
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::rpc::{Bin, Report, Scenario};
use crate::statistics::float;
use crate::table::{Table, number};

/// One run of one case.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Measured {
    pub(super) case: usize,
    pub(super) scheme: String,
    pub(super) scenario: Scenario,
    pub(super) report: Report,
}

/// A single number of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Calls answered within the SLO, as a share of the lesser of load and capacity.
    Goodput,
    /// Calls answered, as a share of the capacity.
    Throughput,
    /// p99 of the response times of answered calls, as a multiple of the SLO.
    P99,
    /// The same, p99.9.
    P999,
    /// From a call to its refusal: p99, in microseconds.
    NoticeUs,
    /// Messages without a call, for each answered call.
    ExtraMessages,
    /// Goodput of the 20 ms after the first step of the load, as a share of what is possible then. Needs bins.
    After20ms,
    /// The worst p99 of any bin from that step on, as a multiple of the SLO. Needs bins.
    WorstBinP99,
    /// From that step until goodput is, for 20 ms, at least nine tenths of what is possible, in milliseconds; not a
    /// number if it never is. Needs bins.
    ConvergedMs,
    /// Of the calls of the highest priority, those answered within the SLO.
    TopInSlo,
    /// Jain's index of the tenants' goodput.
    Jain,
    /// Jain's index of what each client got over its max-min share.
    MaxMinJain,
    /// Share of the cores' time that was spent on calls and messages.
    Busy,
}

impl Metric {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Goodput => "goodput of possible",
            Self::Throughput => "throughput of capacity",
            Self::P99 => "p99 of SLO",
            Self::P999 => "p99.9 of SLO",
            Self::NoticeUs => "notice p99, us",
            Self::ExtraMessages => "extra messages",
            Self::After20ms => "goodput, first 20 ms",
            Self::WorstBinP99 => "worst bin p99 of SLO",
            Self::ConvergedMs => "converged, ms",
            Self::TopInSlo => "top priority in SLO",
            Self::Jain => "Jain's index",
            Self::MaxMinJain => "Jain's index of shares",
            Self::Busy => "cores busy",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Throughput => "throughput",
            Self::P99 => "p99",
            Self::P999 => "p999",
            Self::NoticeUs => "notice",
            Self::ExtraMessages => "extra",
            Self::After20ms => "after_20ms",
            Self::WorstBinP99 => "worst_bin",
            Self::ConvergedMs => "converged",
            Self::TopInSlo => "top",
            Self::Jain => "jain",
            Self::MaxMinJain => "max_min_jain",
            Self::Busy => "busy",
        }
    }

    fn scale(self) -> Scale {
        match self {
            Self::P99 | Self::P999 | Self::NoticeUs | Self::WorstBinP99 | Self::ConvergedMs => Scale::Log,
            _ => Scale::Linear,
        }
    }

    pub(super) fn of(self, run: &Measured) -> f64 {
        let (report, scenario) = (&run.report, &run.scenario);
        let step = step_at(scenario);
        let possible = |at: Duration| report.capacity_per_s * scenario.load_at(at).min(1.0);
        match self {
            Self::Goodput => report.goodput_of_possible,
            Self::Throughput => report.served_per_s / report.capacity_per_s,
            Self::P99 => report.response.p99_us / report.slo_us,
            Self::P999 => report.response.p999_us / report.slo_us,
            Self::NoticeUs => report.notice.p99_us,
            Self::ExtraMessages => report.extra_messages_per_call,
            Self::After20ms => report.goodput_between(step, step + SPAN) / possible(step),
            Self::WorstBinP99 => report.worst_bin_p99_us(step) / report.slo_us,
            Self::ConvergedMs => converged(report, scenario, 0.9 * possible(step)),
            Self::TopInSlo => report.by_priority.first().map_or(f64::NAN, |share| share.in_slo),
            Self::Jain => report.jain,
            Self::MaxMinJain => report.max_min_jain,
            Self::Busy => report.busy,
        }
    }
}

/// What counts as lasting.
const SPAN: Duration = Duration::from_millis(20);

/// When the load first changes; the start of the run if it never does.
fn step_at(scenario: &Scenario) -> Duration {
    scenario.groups.iter().flat_map(|group| &group.steps).map(|step| step.at).min().unwrap_or_default()
}

fn converged(report: &Report, scenario: &Scenario, enough: f64) -> f64 {
    let step = step_at(scenario);
    let starts = report.bins.iter().map(|bin| Duration::from_secs_f64(bin.at_s)).filter(|at| *at >= step);
    let end = scenario.warm_up + scenario.duration;
    let mut starts = starts.take_while(|at| *at + SPAN <= end);
    let first = starts.find(|at| report.goodput_between(*at, *at + SPAN) >= enough);
    first.map_or(f64::NAN, |at| at.saturating_sub(step).as_secs_f64() * 1e3)
}

fn of_case<'a>(runs: &'a [Measured], case: usize, scheme: &'a str) -> impl Iterator<Item = &'a Measured> {
    runs.iter().filter(move |run| run.case == case && run.scheme == scheme)
}

/// Mean and deviation over the seeds; not a number if nothing was run.
fn over_seeds<'a>(runs: impl Iterator<Item = &'a Measured>, metric: Metric) -> (f64, f64) {
    let values: Vec<f64> = runs.map(|run| metric.of(run)).collect();
    let count = float(values.len() as u64);
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// A row for each case and scheme, means over the seeds.
pub(super) fn table(rpc: &Rpc, runs: &[Measured]) -> Table {
    let mut table = Table::new(["scheme", "case"]);
    table.header.extend(rpc.show.iter().map(|metric| metric.title().to_owned()));
    for (index, case) in rpc.case.iter().enumerate() {
        for choice in &rpc.schemes {
            if of_case(runs, index, choice.name()).next().is_none() {
                continue;
            }
            let mut row = vec![choice.name().to_owned(), case.name.clone()];
            row.extend(rpc.show.iter().map(|metric| {
                let (mean, _) = over_seeds(of_case(runs, index, choice.name()), *metric);
                if mean.is_nan() { "-".to_owned() } else { number(mean) }
            }));
            table.rows.push(row);
        }
    }
    table
}

/// A figure for each metric, and one over time for each case if that is wanted.
pub(super) fn figures(rpc: &Rpc, runs: &[Measured]) -> Vec<(String, Figure)> {
    let mut figures: Vec<_> =
        rpc.show.iter().map(|metric| (metric.file().to_owned(), of_metric(rpc, runs, *metric))).collect();
    if rpc.over_time {
        let cases = 0..rpc.case.len();
        figures.extend(cases.map(|case| (format!("time_{}", case + 1), over_time(rpc, runs, case))));
    }
    figures
}

fn of_metric(rpc: &Rpc, runs: &[Measured], metric: Metric) -> Figure {
    let at = |index: usize| rpc.case[index].x.unwrap_or(float(index as u64 + 1));
    let point = |index: usize, scheme: &str| {
        let (mean, deviation) = over_seeds(of_case(runs, index, scheme), metric);
        mean.is_finite().then_some([at(index), mean, deviation])
    };
    let series = rpc.schemes.iter().map(|choice| Series {
        name: choice.name().to_owned(),
        points: (0..rpc.case.len()).filter_map(|index| point(index, choice.name())).collect(),
        stroke: Stroke::Solid,
    });
    let numbered = || rpc.case.iter().enumerate().map(|(index, case)| format!("{} {}", index + 1, case.name));
    Figure {
        title: metric.title().to_owned(),
        x_label: rpc.x.clone().unwrap_or_else(|| numbered().collect::<Vec<_>>().join(", ")),
        y_label: metric.title().to_owned(),
        y_scale: metric.scale(),
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

/// What is seen before the step of the load, and after it, in milliseconds.
const AROUND_MS: (f64, f64) = (-20.0, 200.0);

/// The bins near the step, with the milliseconds since it.
pub(super) fn around_step(run: &Measured) -> Vec<(f64, Bin)> {
    let step_s = step_at(&run.scenario).as_secs_f64();
    let since = run.report.bins.iter().map(|bin| ((bin.at_s - step_s) * 1e3, *bin));
    since.filter(|(ms, _)| (AROUND_MS.0..AROUND_MS.1).contains(ms)).collect()
}

/// Goodput over the time since the step: the first seed's.
fn over_time(rpc: &Rpc, runs: &[Measured], case: usize) -> Figure {
    let series = rpc.schemes.iter().filter_map(|choice| {
        let run = of_case(runs, case, choice.name()).next()?;
        let points = around_step(run).into_iter();
        let points = points.map(|(ms, bin)| [ms, bin.goodput_per_s / run.report.capacity_per_s, 0.0]).collect();
        Some(Series { name: choice.name().to_owned(), points, stroke: Stroke::Solid })
    });
    Figure {
        title: format!("goodput over time: {}", rpc.case[case].name),
        x_label: "ms since the step".to_owned(),
        y_label: "goodput of capacity".to_owned(),
        y_scale: Scale::Linear,
        series: series.collect(),
    }
}
