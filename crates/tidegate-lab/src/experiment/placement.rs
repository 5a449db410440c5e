//! A topic placed on brokers by several policies, along an axis: Fig. 7 to 11 and Table 1 of the paper.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Rng;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::placement::{Played, Policy, Scenario, place};
use crate::statistics::{Spread, count, float, spread_of};
use crate::table::{Table, number};

/// A quick run simulates so many seconds of each measurement. It has all repeats: claims are about their medians.
const QUICK_S: u32 = 10;
/// By so much a value may fall and still be said to rise: the mean of two has a last digit.
const ROUNDING: f64 = 1e-9;
/// Messages of the trace that a quick run profiles.
const QUICK_PROFILE: u32 = 300_000;

/// Settings of the kind `placement`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// What differs from point to point.
    pub axis: Axis,
    /// Its values.
    pub values: Vec<f64>,
    /// What is compared; each with the same publishers and seeds.
    pub policies: Vec<Policy>,
    /// Runs with different random numbers.
    pub repeats: u32,
    /// Where no placement meets the objective, the best with a forced number of brokers is taken for the p99, as the
    /// paper does.
    #[serde(default)]
    pub best_if_missed: bool,
    /// What is drawn.
    pub show: Metric,
    /// What the paper states of it, for each value.
    #[serde(default)]
    pub paper: Vec<f64>,
    /// Everything else.
    #[serde(default)]
    pub scenario: Scenario,
    /// What should be seen.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// What differs from point to point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Publishers in a group.
    Group,
    /// The topic's publishers.
    Publishers,
    /// Over how many microseconds a group's batches are spread.
    SpreadUs,
}

impl Axis {
    fn title(self) -> &'static str {
        match self {
            Self::Group => "publishers in a group",
            Self::Publishers => "publishers",
            Self::SpreadUs => "spread of a group, us",
        }
    }
}

/// A single number of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Seconds until the placement stood; the median of the repeats.
    Seconds,
    /// Measurements; the median.
    Rounds,
    /// Brokers with publishers; the median.
    Brokers,
    /// The topic's p99 from arrival to the end of processing, in milliseconds; the mean.
    P99Ms,
    /// The p99 of the broker with the longest, in milliseconds; the mean.
    WorstP99Ms,
    /// The p99 of waiting for tokens, in milliseconds; the mean.
    AccessP99Ms,
    /// The part of the repeats in which the objective was met.
    Met,
}

impl Metric {
    fn title(self) -> &'static str {
        match self {
            Self::Seconds => "seconds until it stands",
            Self::Rounds => "rounds",
            Self::Brokers => "brokers",
            Self::P99Ms => "p99, ms",
            Self::WorstP99Ms => "p99 of the worst broker, ms",
            Self::AccessP99Ms => "p99 of the access delay, ms",
            Self::Met => "objective met",
        }
    }
}

/// A claim. It must hold at every value that it names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Of which policy.
    pub policy: Policy,
    /// What.
    pub what: Metric,
    /// At which values of the axis; at all if there is none.
    #[serde(default)]
    pub at: Vec<f64>,
    /// It is not less.
    pub at_least: Option<f64>,
    /// It is not more.
    pub at_most: Option<f64>,
    /// It is less than that of this policy at the same value.
    pub below: Option<Policy>,
    /// From value to value it does not fall.
    #[serde(default)]
    pub rises: bool,
    /// The paper states it, the model does not show it, and this is why. It is shown and does not count.
    pub not_reproduced: Option<String>,
}

/// All repeats of a policy at a value.
struct Point {
    policy: Policy,
    value: f64,
    runs: Vec<Run>,
}

struct Run {
    placed: Played,
    /// If the placement missed the objective: the best with a forced number of brokers.
    best: Option<Played>,
}

impl Run {
    fn shown(&self) -> &Played {
        self.best.as_ref().unwrap_or(&self.placed)
    }
}

impl Point {
    fn values(&self, what: Metric) -> Vec<f64> {
        let value = |run: &Run| match what {
            Metric::Seconds => run.placed.seconds,
            Metric::Rounds => f64::from(run.placed.rounds.iter().sum::<u32>()),
            Metric::Brokers => count(run.shown().assignment.len()),
            Metric::P99Ms => run.shown().us_p99 / 1e3,
            Metric::WorstP99Ms => run.shown().assignment.iter().map(|broker| broker.us_p99).fold(0.0, f64::max) / 1e3,
            Metric::AccessP99Ms => run.shown().access_us_p99 / 1e3,
            Metric::Met => f64::from(u8::from(run.shown().meets_slo)),
        };
        self.runs.iter().map(value).collect()
    }

    fn value(&self, what: Metric) -> f64 {
        let values = self.values(what);
        match what {
            Metric::Seconds | Metric::Rounds | Metric::Brokers => median(values),
            Metric::P99Ms | Metric::WorstP99Ms | Metric::AccessP99Ms | Metric::Met => {
                values.iter().sum::<f64>() / count(values.len())
            }
        }
    }

    fn deviation(&self, what: Metric) -> f64 {
        spread_of(&self.values(what)).map_or(0.0, |Spread { deviation, .. }| deviation)
    }

    /// Rounds of each iteration, of a run that took as long as the middle one.
    fn typical_rounds(&self) -> String {
        let mut runs: Vec<&Played> = self.runs.iter().map(|run| &run.placed).collect();
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let rounds = runs.get(runs.len() / 2).map(|run| &run.rounds[..]).unwrap_or_default();
        rounds.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        many if many % 2 == 1 => values[many / 2],
        many => f64::midpoint(values[many / 2 - 1], values[many / 2]),
    }
}

impl Placement {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless(!self.policies.is_empty(), "placement.policies", "nothing to compare")?;
        Complaint::unless(!self.values.is_empty(), "placement.values", "no point")?;
        let some = (2..=1_000).contains(&self.repeats);
        Complaint::unless(some, "placement.repeats", format!("{} is not from 2 to 1000", self.repeats))?;
        let fits = self.paper.is_empty() || self.paper.len() == self.values.len();
        Complaint::unless(fits, "placement.paper", "not as many as there are values")?;
        for value in &self.values {
            let is_whole = value.fract() == 0.0 && (0.0..=1e6).contains(value);
            let right = is_whole || (self.axis == Axis::SpreadUs && value.is_finite());
            Complaint::unless(right, "placement.values", format!("{value} is no number of {}", self.axis.title()))?;
            let checked = self.scenario_at(*value, self.policies[0], Size::Full, 0).check();
            let message = checked.as_ref().err().map(ToString::to_string).unwrap_or_default();
            Complaint::unless(checked.is_ok(), "placement.scenario", message)?;
        }
        for (index, bar) in self.claim.iter().enumerate() {
            let key = format!("placement.claim[{index}]");
            for policy in std::iter::once(bar.policy).chain(bar.below) {
                Complaint::unless(self.policies.contains(&policy), &key, format!("{policy} is not compared"))?;
            }
            let known = bar.at.iter().all(|value| self.values.contains(value));
            Complaint::unless(known, &format!("{key}.at"), "no such value on the axis")?;
            let says = bar.at_least.is_some() || bar.at_most.is_some() || bar.below.is_some() || bar.rises;
            Complaint::unless(says, &key, "at_least, at_most, below or rises is missing")?;
            let reason = bar.not_reproduced.as_ref().is_none_or(|reason| !reason.trim().is_empty());
            Complaint::unless(reason, &format!("{key}.not_reproduced"), "the reason is missing")?;
        }
        Ok(())
    }

    fn scenario_at(&self, value: f64, policy: Policy, size: Size, seed: u64) -> Scenario {
        let whole = u32::try_from(tidegate_core::number::whole(value)).unwrap_or(u32::MAX);
        let mut scenario = Scenario { policy, seed, ..self.scenario.clone() };
        match self.axis {
            Axis::Group => scenario.group = whole,
            Axis::Publishers => scenario.publishers = whole,
            Axis::SpreadUs => scenario.spread_us = value,
        }
        if size == Size::Quick {
            scenario.simulated_s_max = scenario.simulated_s_max.min(QUICK_S);
            scenario.profile_messages = scenario.profile_messages.min(QUICK_PROFILE);
        }
        scenario
    }

    fn run_once(&self, scenario: &Scenario) -> Result<Run, RunError> {
        let placed = place(scenario)?;
        let mut best: Option<Played> = None;
        if self.best_if_missed && !placed.meets_slo {
            for brokers in 1..=scenario.brokers {
                let forced = place(&Scenario { force_brokers: Some(brokers), ..scenario.clone() })?;
                let is_better = best.as_ref().is_none_or(|best| forced.us_p99 < best.us_p99);
                if is_better && forced.cause.is_none() {
                    best = Some(forced);
                }
            }
        }
        Ok(Run { placed, best })
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let mut points = Vec::new();
        for (at, &value) in (0u64..).zip(&self.values) {
            for &policy in &self.policies {
                let run = |repeat: u32| {
                    let seed = Rng::stream(experiment.seed, at * 1_000 + u64::from(repeat)).u64();
                    self.run_once(&self.scenario_at(value, policy, size, seed))
                };
                points.push(Point { policy, value, runs: (0..self.repeats).map(run).collect::<Result<_, _>>()? });
            }
        }
        let numbers = points.iter().map(|point| {
            json!({
                "value": point.value,
                "policy": point.policy,
                "seconds": point.values(Metric::Seconds),
                "rounds": point.runs.iter().map(|run| &run.placed.rounds).collect::<Vec<_>>(),
                "burst": point.runs.iter().map(|run| run.placed.limit.burst).collect::<Vec<_>>(),
                "brokers": point.values(Metric::Brokers),
                "p99_ms": point.values(Metric::P99Ms),
                "worst_p99_ms": point.values(Metric::WorstP99Ms),
                "access_p99_ms": point.values(Metric::AccessP99Ms),
                "met": point.values(Metric::Met),
            })
        });
        Ok(Results {
            claims: self.claim.iter().map(|bar| Self::judge(bar, &points)).collect(),
            numbers: json!({ "axis": self.axis, "points": numbers.collect::<Vec<_>>() }),
            table: self.table(&points),
            figure: Some(self.figure(&points)),
            ..Results::default()
        })
    }

    fn judge(bar: &Bar, points: &[Point]) -> Claim {
        let concerned = |policy: Policy| {
            let is =
                move |point: &&Point| point.policy == policy && (bar.at.is_empty() || bar.at.contains(&point.value));
            points.iter().filter(is).map(|point| point.value(bar.what)).collect::<Vec<f64>>()
        };
        let values = concerned(bar.policy);
        let others = bar.below.map(concerned).unwrap_or_default();
        let within = values.iter().all(|value| {
            bar.at_least.is_none_or(|bound| *value >= bound) && bar.at_most.is_none_or(|bound| *value <= bound)
        });
        let below = bar.below.is_none() || values.iter().zip(&others).all(|(value, other)| value < other);
        let held = within && below && (!bar.rises || values.is_sorted_by(|one, next| *one <= *next + ROUNDING));
        let mut says: Vec<String> = Vec::new();
        says.extend(bar.at_least.map(|bound| format!("at least {}", number(bound))));
        says.extend(bar.at_most.map(|bound| format!("at most {}", number(bound))));
        says.extend(bar.below.map(|policy| format!("below that of {policy}")));
        says.extend(bar.rises.then(|| "rises".to_owned()));
        let list = |values: &[f64]| values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(", ");
        let place = if bar.at.is_empty() { String::new() } else { format!(" at {}", list(&bar.at)) };
        let mut seen = list(&values);
        if !others.is_empty() {
            seen = format!("{seen} against {}", list(&others));
        }
        let mut claim = format!("{}: {}{place} {}", bar.policy, bar.what.title(), says.join(" and "));
        if let Some(reason) = &bar.not_reproduced {
            claim = format!("stated in the paper and not expected here ({reason}): {claim}");
            seen = format!("{seen}; {}", if held { "seen all the same" } else { "not seen" });
        }
        Claim { claim, held: held || bar.not_reproduced.is_some(), seen }
    }

    fn table(&self, points: &[Point]) -> Table {
        let paper = match self.show {
            Metric::Seconds => "paper".to_owned(),
            show => format!("paper: {}", show.title()),
        };
        let header = [
            self.axis.title(),
            "policy",
            "brokers",
            "rounds",
            "seconds",
            &paper,
            "p99 ms",
            "sd",
            "worst broker",
            "access p99 ms",
            "met",
            "burst",
        ];
        let mut table = Table::new(header);
        for point in points {
            let paper = self.values.iter().zip(&self.paper).find(|(value, _)| value.total_cmp(&point.value).is_eq());
            let bursts = point.runs.iter().map(|run| float(run.placed.limit.burst)).collect();
            table.push([
                number(point.value),
                point.policy.name().to_owned(),
                number(point.value(Metric::Brokers)),
                point.typical_rounds(),
                number(point.value(Metric::Seconds)),
                paper.map_or("-".to_owned(), |(_, stated)| number(*stated)),
                number(point.value(Metric::P99Ms)),
                number(point.deviation(Metric::P99Ms)),
                number(point.value(Metric::WorstP99Ms)),
                number(point.value(Metric::AccessP99Ms)),
                format!("{:.0}%", 100.0 * point.value(Metric::Met)),
                number(median(bursts)),
            ]);
        }
        table
    }

    fn figure(&self, points: &[Point]) -> Figure {
        let line = |policy: Policy| Series {
            name: policy.name().to_owned(),
            points: points
                .iter()
                .filter(|point| point.policy == policy)
                .map(|point| [point.value, point.value(self.show), point.deviation(self.show)])
                .collect(),
            stroke: Stroke::Solid,
        };
        let mut series: Vec<Series> = self.policies.iter().map(|policy| line(*policy)).collect();
        if !self.paper.is_empty() {
            let points = self.values.iter().zip(&self.paper).map(|(value, stated)| [*value, *stated, 0.0]).collect();
            series.push(Series { name: "the paper".to_owned(), points, stroke: Stroke::Dashed });
        }
        Figure {
            title: format!("{} of {} by {}", self.show.title(), self.scenario.publisher_rate, self.axis.title()),
            x_label: self.axis.title().to_owned(),
            y_label: self.show.title().to_owned(),
            y_scale: Scale::Linear,
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = r#"
title = "t"
seed = 1
[placement]
axis = "group"
values = [1, 20]
policies = ["srtm", "max-min"]
repeats = 2
best_if_missed = true
show = "p99_ms"
paper = [0.5, 0.9]
[placement.scenario]
mcap = "62k/s"
[[placement.claim]]
policy = "srtm"
what = "brokers"
rises = true
at_most = 6
[[placement.claim]]
policy = "srtm"
what = "p99_ms"
below = "max-min"
at = [20]
not_reproduced = "a test"
"#;

    fn parse(text: &str) -> Result<Experiment, crate::experiment::ExperimentError> {
        crate::experiment::parse(Path::new("a.toml"), text)
    }

    #[test]
    fn policies_are_compared_along_the_axis() {
        let outcome = parse(TEXT).unwrap().run("placement", Size::Quick).unwrap();
        assert!(outcome.holds(), "{outcome}");
        assert_eq!(outcome.table.rows.len(), 4);
        assert!(outcome.to_string().contains("stated in the paper and not expected here (a test)"), "{outcome}");
        assert!(outcome.figure.is_some_and(|figure| figure.series.len() == 3 && figure.to_svg().is_ok()));
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let wrong = |from: &str, to: &str| parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(wrong("\"a test\"", "\" \"").contains("placement.claim[1].not_reproduced: the reason is missing"));
        assert!(wrong("[1, 20]", "[1, 2000]").contains("group: 2000 is not from 1 to 1000"));
        assert!(wrong("at = [20]", "at = [21]").contains("no such value on the axis"));
        assert!(wrong("paper = [0.5, 0.9]", "paper = [0.5]").contains("placement.paper"));
        assert!(wrong("[\"srtm\", \"max-min\"]", "[\"srtm\"]").contains("max-min is not compared"));
    }

    #[test]
    fn the_middle_is_between_two_or_one_of_them() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12 && (median(vec![3.0, 1.0]) - 2.0).abs() < 1e-12);
    }
}
