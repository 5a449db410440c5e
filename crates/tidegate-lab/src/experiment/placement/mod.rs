//! A topic placed on brokers by several policies, along an axis: Fig. 7 to 11 and Table 1 of the paper.
//!
//! | module | its one job |
//! |---|---|
//! | `series` | what is compared |
//! | `point` | single numbers of all repeats of a series at a value |
//! | `claim` | what should be seen of them |
//! | `show` | table and figures |
//!
//! Claims are about series on the paper's brokers. With a calibration, all series run on our own broker as well, and stand
//! beside them in the table and in figures of their own.

mod claim;
mod point;
mod series;
mod show;

pub use claim::Bar;
pub use point::Metric;
pub use series::{Axis, Compared};

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_core::Rng;

use self::point::{Point, Run};
use super::outcome::Results;
use super::{Complaint, Experiment, RunError, Size};
use crate::placement::{Calibration, Policy, Scenario, place};

/// A quick run simulates so many seconds of each measurement. It has all repeats: claims are about their medians.
const QUICK_S: u32 = 10;
/// At the end it simulates as long as a full round.
const QUICK_JUDGED_S: u32 = 60;
/// Messages of the trace that a quick run profiles.
const QUICK_PROFILE: u32 = 300_000;
/// Series in a file at most.
const SERIES_MAX: usize = 64;

/// Settings of the kind `placement`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// What differs from point to point.
    pub axis: Axis,
    /// Its values.
    pub values: Vec<f64>,
    /// What is compared, each with the same publishers and seeds: policies with nothing of their own,
    #[serde(default)]
    pub policies: Vec<Policy>,
    /// and series that have something of their own.
    #[serde(default)]
    pub series: Vec<Compared>,
    /// A file beside this one that says what our own broker takes; all series run on it as well.
    pub calibration: Option<String>,
    /// What it says.
    #[serde(skip_deserializing)]
    pub own: Option<Calibration>,
    /// Runs with different random numbers.
    pub repeats: u32,
    /// Where no placement meets the objective, the best with a forced number of brokers is taken for the p99, as the
    /// paper does.
    #[serde(default)]
    pub best_if_missed: bool,
    /// What is drawn.
    pub show: Metric,
    /// What the paper states of the first series, for each value.
    #[serde(default)]
    pub paper: Vec<f64>,
    /// What it states of single points.
    #[serde(default)]
    pub stated: Vec<Stated>,
    /// Everything else.
    #[serde(default)]
    pub scenario: Scenario,
    /// What should be seen.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// Single points that the paper's text states.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// In the legend.
    pub name: String,
    /// In which figure; the main one if there is none.
    pub panel: Option<String>,
    /// The value of the axis and that of what is drawn.
    pub points: Vec<[f64; 2]>,
}

impl Placement {
    /// Reads the calibration that the file in `folder` names.
    ///
    /// # Errors
    /// If there is none, or it is no calibration.
    pub(super) fn load(&mut self, folder: &Path) -> Result<(), Complaint> {
        let Some(name) = &self.calibration else { return Ok(()) };
        let wrong = |message: String| Complaint {
            key: "placement.calibration".to_owned(),
            message: format!("{name}: {message}"),
        };
        let text = fs::read_to_string(folder.join(name)).map_err(|error| wrong(error.to_string()))?;
        self.own = Some(Calibration::parse(&text).map_err(|error| wrong(error.to_string()))?);
        Ok(())
    }

    /// All series: those of the paper's brokers, then the same on our own.
    fn compared(&self) -> Vec<Compared> {
        let named = || self.policies.iter().map(|policy| Compared::of(*policy)).chain(self.series.iter().cloned());
        let own = named().filter(|_| self.own.is_some()).map(|series| series.on_own());
        named().chain(own).collect()
    }

    pub(super) fn check(&self) -> Result<(), Complaint> {
        let compared = self.compared();
        Complaint::unless(!compared.is_empty(), "placement", "nothing to compare: write policies or series")?;
        let few = compared.len() <= SERIES_MAX;
        Complaint::unless(few, "placement.series", format!("more than {SERIES_MAX} with those on our own broker"))?;
        for (at, series) in compared.iter().enumerate() {
            series.check(&compared[..at], self.own.is_some())?;
        }
        Complaint::unless(!self.values.is_empty(), "placement.values", "no point")?;
        let some = (2..=1_000).contains(&self.repeats);
        Complaint::unless(some, "placement.repeats", format!("{} is not from 2 to 1000", self.repeats))?;
        let fits = self.paper.is_empty() || self.paper.len() == self.values.len();
        Complaint::unless(fits, "placement.paper", "not as many as there are values")?;
        let is_drawn = |stated: &Stated| compared.iter().any(|series| series.panel == stated.panel);
        Complaint::unless(self.stated.iter().all(is_drawn), "placement.stated", "no series has this panel")?;
        for value in &self.values {
            let is_whole = value.fract() == 0.0 && (0.0..=1e6).contains(value);
            let right = is_whole || (self.axis.is_broken() && value.is_finite());
            Complaint::unless(right, "placement.values", format!("{value} is no number of {}", self.axis.title()))?;
            for series in &compared {
                let checked = self.scenario_at(*value, series, Size::Full, 0).check();
                let message = checked.as_ref().err().map(ToString::to_string).unwrap_or_default();
                Complaint::unless(checked.is_ok(), "placement.scenario", message)?;
            }
        }
        self.claim.iter().enumerate().try_for_each(|(index, bar)| bar.check(index, &compared, &self.values))
    }

    fn scenario_at(&self, value: f64, series: &Compared, size: Size, seed: u64) -> Scenario {
        let mut scenario = series.scenario(&self.scenario, self.own.as_ref());
        scenario.seed = seed;
        self.axis.set(value, &mut scenario);
        if size == Size::Quick {
            scenario.simulated_s_max = scenario.simulated_s_max.min(QUICK_S);
            scenario.profile_messages = scenario.profile_messages.min(QUICK_PROFILE);
            scenario.judged_s = scenario.judged_s.map(|seconds| seconds.min(QUICK_JUDGED_S));
        }
        scenario
    }

    /// Places the topic once. The best number of brokers is looked for where the planner chose one and missed.
    fn run_once(&self, scenario: &Scenario) -> Result<Run, RunError> {
        let mut run = Run { placed: place(scenario)?, best: None };
        let has_choice = scenario.policy != Policy::Lb && scenario.force_brokers.is_none();
        if self.best_if_missed && has_choice && !run.placed.meets_slo {
            for brokers in 1..=scenario.brokers {
                let forced = place(&Scenario { force_brokers: Some(brokers), ..scenario.clone() })?;
                let is_better = run.best.as_ref().is_none_or(|best| forced.us_p99 < best.us_p99);
                if is_better && forced.cause.is_none() {
                    run.best = Some(forced);
                }
            }
        }
        Ok(run)
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let compared = self.compared();
        let mut points: Vec<Point> = Vec::new();
        for (at, &value) in (0u64..).zip(&self.values) {
            for series in &compared {
                let mut runs = Vec::new();
                for repeat in 0..self.repeats {
                    let seed = Rng::stream(experiment.seed, at * 1_000 + u64::from(repeat)).u64();
                    let mut scenario = self.scenario_at(value, series, size, seed);
                    if let Some(other) = &series.brokers_of {
                        scenario.force_brokers = brokers_of(&points, other, runs.len());
                    }
                    runs.push(self.run_once(&scenario)?);
                }
                points.push(Point { series: series.name.clone(), value, runs });
            }
        }
        let (figure, figures) = self.figures(&compared, &points);
        Ok(Results {
            claims: self.claim.iter().map(|bar| bar.judge(&points)).collect(),
            numbers: json!({ "axis": self.axis, "points": points.iter().map(numbers).collect::<Vec<_>>() }),
            table: self.table(&points),
            figure,
            figures,
        })
    }
}

/// The number of brokers that the latest point of series `other` shows in this repeat.
fn brokers_of(points: &[Point], other: &str, repeat: usize) -> Option<u32> {
    let run = points.iter().rev().find(|point| point.series == other)?.runs.get(repeat)?;
    u32::try_from(run.shown().assignment.len()).ok().filter(|brokers| *brokers > 0)
}

fn numbers(point: &Point) -> Value {
    let of_runs = |of: &dyn Fn(&Run) -> Value| point.runs.iter().map(of).collect::<Vec<Value>>();
    json!({
        "value": point.value,
        "series": point.series,
        "seconds": point.values(Metric::Seconds),
        "placed_s": point.values(Metric::PlacedSeconds),
        "disagreed": point.values(Metric::Disagreed),
        "rounds": of_runs(&|run| json!(run.placed.rounds)),
        "burst": of_runs(&|run| json!(run.placed.limit.burst)),
        "brokers": point.values(Metric::Brokers),
        "publishers": of_runs(&|run| {
            let each = run.shown().assignment.iter().map(|figures| (figures.broker, figures.publishers));
            json!(each.collect::<Vec<_>>())
        }),
        "p99_ms": point.values(Metric::P99Ms),
        "worst_p99_ms": point.values(Metric::WorstP99Ms),
        "access_p99_ms": point.values(Metric::AccessP99Ms),
        "met": point.values(Metric::Met),
        "fitted": point.values(Metric::Fitted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Model;

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
        assert!(outcome.figure.is_some_and(|figure| figure.series.len() == 6 && figure.to_svg().is_ok()));
        assert!(outcome.figures.is_empty());
    }

    #[test]
    fn a_series_may_have_something_of_its_own() {
        let text = TEXT
            .replace("policies = [\"srtm\", \"max-min\"]", "policies = [\"srtm\"]")
            .replace("[placement.scenario]", "[placement.scenario]\nsimulated_s_max = 3")
            .replace("below = \"max-min\"", "same_as = \"alike\"\nwithin = 0.1")
            + r#"
[[placement.series]]
name = "alike"
policy = "max-min"
brokers_of = "srtm"
panel = "b"
[[placement.series]]
name = "five"
policy = "srtm"
force_brokers = 5
batch = 1
panel = "b"
[[placement.claim]]
series = "alike"
what = "rounds"
at_most = 1
[[placement.claim]]
series = "five"
what = "p99_ms"
broker = 5
at_least = 0.1
stated = "words of the paper"
[[placement.claim]]
series = "srtm"
what = "rounds"
at = [1]
rounds = [1]
"#;
        let outcome = parse(&text).unwrap().run("placement", Size::Quick).unwrap();
        assert!(outcome.holds() && outcome.to_string().contains("[words of the paper]"), "{outcome}");
        let brokers = |name: &str| -> Vec<String> {
            outcome.table.rows.iter().filter(|row| row[1] == name).map(|row| row[2].clone()).collect()
        };
        assert_eq!(brokers("alike"), brokers("srtm"));
        assert_eq!(brokers("five"), ["5", "5"]);
        assert_eq!(outcome.figures.iter().map(|(panel, _)| panel.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(outcome.figures[0].1.to_svg().is_ok());
    }

    #[test]
    fn our_own_broker_stands_beside_the_papers() {
        let missing = parse(&TEXT.replace("axis", "calibration = \"none.toml\"\naxis")).unwrap_err().to_string();
        assert!(missing.contains("placement.calibration: none.toml: "), "{missing}");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/fig9.toml");
        let placement = crate::experiment::read(&file).unwrap().placement.unwrap();
        let compared = placement.compared();
        assert_eq!(compared.iter().filter(|series| series.model == Model::Own).count(), compared.len() / 2);
        let own = placement.scenario_at(5.0, compared.last().unwrap(), Size::Full, 1);
        assert_eq!(own.service, placement.own.unwrap().service());
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
}
