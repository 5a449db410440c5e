//! Single numbers of all repeats of a series at a value of the axis.

use serde::{Deserialize, Serialize};

use crate::placement::{BrokerFigures, Played};
use crate::statistics::{Spread, count, float, spread_of};

/// A single number of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Seconds until the placement stood; the median of the repeats.
    Seconds,
    /// Seconds until the placement that it ended with was in force; the median.
    PlacedSeconds,
    /// The most seconds of all repeats until the placement stood.
    MostSeconds,
    /// Measurements; the median.
    Rounds,
    /// Measurements of the last iteration; the median.
    LastRounds,
    /// Iterations; the median.
    Iterations,
    /// Brokers with publishers; the median.
    Brokers,
    /// The part of the publishers that is on the broker with the fewest, or on a named one, in percent; the mean.
    SharePercent,
    /// Tokens of the whole bucket; the median.
    Burst,
    /// The topic's p99 from arrival to the end of processing, or that of a named broker, in milliseconds; the mean.
    P99Ms,
    /// The same; the median, which a single repeat with a long tail does not move.
    MiddleP99Ms,
    /// The p99 of the broker with the longest, in milliseconds; the mean.
    WorstP99Ms,
    /// The p99 of waiting for tokens, of the topic or of a named broker, in milliseconds; the mean.
    AccessP99Ms,
    /// The part of the repeats in which the objective was met by what is shown.
    Met,
    /// The part of the repeats in which the planner itself ended with the objective met.
    Fitted,
    /// The part of the repeats in which the model and a measurement disagreed.
    Disagreed,
}

impl Metric {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Seconds => "seconds until it stands",
            Self::PlacedSeconds => "seconds until it is in force",
            Self::MostSeconds => "most seconds until it stands",
            Self::Rounds => "rounds",
            Self::LastRounds => "rounds of the last iteration",
            Self::Iterations => "iterations",
            Self::Brokers => "brokers",
            Self::SharePercent => "smallest part of the publishers, %",
            Self::Burst => "burst",
            Self::P99Ms => "p99, ms",
            Self::MiddleP99Ms => "median p99, ms",
            Self::WorstP99Ms => "p99 of the worst broker, ms",
            Self::AccessP99Ms => "p99 of the access delay, ms",
            Self::Met => "objective met",
            Self::Fitted => "objective met by fitting",
            Self::Disagreed => "model and measurement disagree",
        }
    }

    /// True if it is a delay, which has an objective.
    pub(super) fn is_delay(self) -> bool {
        matches!(self, Self::P99Ms | Self::MiddleP99Ms | Self::WorstP99Ms)
    }

    /// True if single brokers have it.
    pub(super) fn is_of_brokers(self) -> bool {
        matches!(self, Self::P99Ms | Self::MiddleP99Ms | Self::AccessP99Ms | Self::SharePercent)
    }
}

/// What is asked of a point: a number, of the topic or of one broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) what: Metric,
    /// From 1.
    pub(super) broker: Option<u32>,
}

impl From<Metric> for Asked {
    fn from(what: Metric) -> Self {
        Self { what, broker: None }
    }
}

/// All repeats of a series at a value.
pub(super) struct Point {
    pub(super) series: String,
    pub(super) value: f64,
    pub(super) runs: Vec<Run>,
}

/// One repeat.
pub(super) struct Run {
    pub(super) placed: Played,
    /// If the placement missed the objective: the best with a forced number of brokers.
    pub(super) best: Option<Played>,
}

impl Run {
    pub(super) fn shown(&self) -> &Played {
        self.best.as_ref().unwrap_or(&self.placed)
    }

    /// Not a number of a broker that serves none of the topic's publishers.
    fn value(&self, Asked { what, broker }: Asked) -> f64 {
        let shown = self.shown();
        if let Some(broker) = broker {
            let Some(figures) = shown.assignment.iter().find(|figures| figures.broker == broker) else {
                return f64::NAN;
            };
            return match what {
                Metric::SharePercent => share_percent(figures, shown),
                Metric::AccessP99Ms => figures.access_us_p99 / 1e3,
                _ => figures.us_p99 / 1e3,
            };
        }
        let of_brokers = |of: &dyn Fn(&BrokerFigures) -> f64| shown.assignment.iter().map(of).collect::<Vec<f64>>();
        match what {
            Metric::Seconds | Metric::MostSeconds => self.placed.seconds,
            Metric::PlacedSeconds => self.placed.placed_s,
            Metric::Rounds => f64::from(self.placed.rounds.iter().sum::<u32>()),
            Metric::LastRounds => f64::from(self.placed.rounds.last().copied().unwrap_or(0)),
            Metric::Iterations => count(self.placed.rounds.len()),
            Metric::Brokers => count(shown.assignment.len()),
            Metric::SharePercent => {
                of_brokers(&|figures| share_percent(figures, shown)).into_iter().fold(100.0, f64::min)
            }
            Metric::Burst => float(shown.limit.burst),
            Metric::P99Ms | Metric::MiddleP99Ms => shown.us_p99 / 1e3,
            Metric::WorstP99Ms => of_brokers(&|figures| figures.us_p99).into_iter().fold(0.0, f64::max) / 1e3,
            Metric::AccessP99Ms => shown.access_us_p99 / 1e3,
            Metric::Met => f64::from(u8::from(shown.meets_slo)),
            Metric::Fitted => f64::from(u8::from(self.placed.meets_slo)),
            Metric::Disagreed => f64::from(u8::from(self.placed.disagreed)),
        }
    }
}

fn share_percent(figures: &BrokerFigures, shown: &Played) -> f64 {
    let all: u32 = shown.assignment.iter().map(|figures| figures.publishers).sum();
    100.0 * f64::from(figures.publishers) / f64::from(all.max(1))
}

impl Point {
    pub(super) fn values(&self, asked: impl Into<Asked>) -> Vec<f64> {
        let asked = asked.into();
        self.runs.iter().map(|run| run.value(asked)).collect()
    }

    pub(super) fn value(&self, asked: impl Into<Asked>) -> f64 {
        let asked = asked.into();
        let values = self.values(asked);
        match asked.what {
            Metric::MostSeconds => values.into_iter().fold(0.0, f64::max),
            Metric::Seconds
            | Metric::PlacedSeconds
            | Metric::Rounds
            | Metric::LastRounds
            | Metric::Iterations
            | Metric::Brokers
            | Metric::Burst
            | Metric::MiddleP99Ms => median(values),
            Metric::SharePercent
            | Metric::P99Ms
            | Metric::WorstP99Ms
            | Metric::AccessP99Ms
            | Metric::Met
            | Metric::Fitted
            | Metric::Disagreed => values.iter().sum::<f64>() / count(values.len()),
        }
    }

    pub(super) fn deviation(&self, what: Metric) -> f64 {
        spread_of(&self.values(what)).map_or(0.0, |Spread { deviation, .. }| deviation)
    }

    /// Rounds of each iteration, of a run that took as long as the middle one.
    pub(super) fn typical_rounds(&self) -> &[u32] {
        let mut runs: Vec<&Played> = self.runs.iter().map(|run| &run.placed).collect();
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        runs.get(runs.len() / 2).copied().map(|run| &run.rounds[..]).unwrap_or_default()
    }
}

/// Rounds of each iteration, as in `5+3+1`.
pub(super) fn in_words(rounds: &[u32]) -> String {
    rounds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}

/// The middle of `values`, or between the two middle ones; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        many if many % 2 == 1 => values[many / 2],
        many => f64::midpoint(values[many / 2 - 1], values[many / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_between_two_or_one_of_them() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12 && (median(vec![3.0, 1.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn iterations_are_written_one_after_the_other() {
        assert_eq!(in_words(&[5, 3, 1]), "5+3+1");
    }
}
