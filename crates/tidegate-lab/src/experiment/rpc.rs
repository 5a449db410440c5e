//! Schemes of overload control side by side: over loads, numbers of clients, causes or parts of a scheme.

use core::num::NonZero;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::thread;

use serde::{Deserialize, Serialize};
use serde_json::json;
use toml::Table as Settings;

use super::outcome::Results;
use super::rpc_show::{self, Measured, Metric};
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::rpc::{Report, Scenario, ScenarioError, Scheme, measure_scheme};
use crate::table::number;

/// A quick run takes this much less virtual time, and leaves out cases with more clients than that.
const QUICK: u32 = 10;
const QUICK_CLIENTS_MAX: u32 = 100_000;
/// What it leaves of the warm-up, at least.
const QUICK_WARM_UP: Duration = Duration::from_millis(100);
/// What it leaves of a run after a step of the load.
const QUICK_AFTER_STEP: Duration = Duration::from_millis(100);

/// Settings of the kind `rpc`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rpc {
    /// What is compared.
    pub schemes: Vec<Choice>,
    /// How often each case is run, each time with another seed.
    pub seeds: u32,
    /// What the cases differ in, as the label of an axis; without it they have names only.
    pub x: Option<String>,
    /// What the table and the figures show.
    pub show: Vec<Metric>,
    /// True if there is a figure over time as well, for each case.
    #[serde(default)]
    pub over_time: bool,
    /// What all cases have in common: the fields of [`Scenario`].
    #[serde(default)]
    pub scenario: Settings,
    /// The cases.
    pub case: Vec<Case>,
    /// What should be seen.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// A scheme as it is compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    /// With its default settings.
    Named(String),
    /// With others.
    Set(SetScheme),
}

/// A scheme with settings of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetScheme {
    /// What it is called here.
    pub name: String,
    /// Which it is, as `{ kind = "breakwater", aqm = false }`.
    pub scheme: Scheme,
}

/// One point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// Where it is on the axis.
    pub x: Option<f64>,
    /// What differs from the common scenario; whole fields are replaced.
    #[serde(default)]
    pub scenario: Settings,
}

/// A claim about what is measured: it must hold for every seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Of which scheme, by its name here.
    pub scheme: String,
    /// In which case; in all if absent.
    pub case: Option<String>,
    /// What.
    pub what: Metric,
    /// The least it must be.
    pub at_least: Option<f64>,
    /// The most it may be.
    pub at_most: Option<f64>,
}

/// A part of the run, but no step of the load left out.
fn shorten(scenario: &mut Scenario) {
    let steps = scenario.groups.iter().flat_map(|group| &group.steps);
    let last = steps.map(|step| step.at.saturating_sub(scenario.warm_up)).max();
    if last.is_none() {
        scenario.warm_up = scenario.warm_up.min(QUICK_WARM_UP.max(scenario.warm_up / QUICK));
    }
    let enough = last.map_or(Duration::ZERO, |at| at + QUICK_AFTER_STEP);
    scenario.duration = scenario.duration.min(enough.max(scenario.duration / QUICK));
}

impl Choice {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::Set(SetScheme { name, .. }) => name,
        }
    }

    pub(super) fn scheme(&self) -> Result<Scheme, String> {
        match self {
            Self::Named(name) => {
                Scheme::named(name).ok_or_else(|| format!("no scheme; there are {}", Scheme::NAMES.join(", ")))
            }
            Self::Set(set) => {
                set.scheme.check().map_err(|error| error.to_string())?;
                Ok(set.scheme.clone())
            }
        }
    }
}

impl Rpc {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless((1..=100).contains(&self.seeds), "rpc.seeds", "a number from 1 to 100")?;
        Complaint::unless(!self.schemes.is_empty(), "rpc.schemes", "nothing to compare: name a scheme")?;
        for choice in &self.schemes {
            let found = choice.scheme();
            Complaint::unless(
                found.is_ok(),
                "rpc.schemes",
                format!("{}: {}", choice.name(), found.err().unwrap_or_default()),
            )?;
        }
        Complaint::unless(!self.case.is_empty(), "rpc", "nothing to run: write tables [[rpc.case]]")?;
        for (index, case) in self.case.iter().enumerate() {
            let key = format!("rpc.case[{index}]");
            Complaint::unless(case.x.is_some() == self.x.is_some(), &key, "x goes with the label rpc.x")?;
            let found = self.scenario(case);
            Complaint::unless(found.is_ok(), &format!("{key}.scenario"), found.err().unwrap_or_default())?;
        }
        for (index, bar) in self.claim.iter().enumerate() {
            let key = format!("rpc.claim[{index}]");
            let knows_scheme = self.schemes.iter().any(|choice| choice.name() == bar.scheme);
            Complaint::unless(knows_scheme, &key, format!("no scheme is called {}", bar.scheme))?;
            let knows_case = bar.case.as_ref().is_none_or(|name| self.case.iter().any(|case| case.name == *name));
            Complaint::unless(knows_case, &key, "no case is called so")?;
            Complaint::unless(bar.at_least.is_some() || bar.at_most.is_some(), &key, "at_least or at_most is missing")?;
        }
        Ok(())
    }

    /// The scenario of a case.
    fn scenario(&self, case: &Case) -> Result<Scenario, String> {
        let mut settings = self.scenario.clone();
        settings.extend(case.scenario.clone());
        let scenario: Scenario = settings.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
        scenario.check().map_err(|error| error.to_string())?;
        Ok(scenario)
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let mut tasks = Vec::new();
        for (index, case) in self.case.iter().enumerate() {
            let mut scenario = self.scenario(case).map_err(|_| ScenarioError::Invalid("a case makes no sense"))?;
            if size == Size::Quick {
                if scenario.clients() > QUICK_CLIENTS_MAX {
                    continue;
                }
                shorten(&mut scenario);
            }
            if self.over_time && scenario.bin.is_none() {
                scenario.bin = Some(Duration::from_millis(1));
            }
            let seeds = if size == Size::Quick { 1 } else { self.seeds };
            for choice in &self.schemes {
                let scheme = choice.scheme().map_err(|_| ScenarioError::Invalid("a scheme makes no sense"))?;
                for seed in 0..seeds {
                    // Every scheme meets the same arrivals.
                    let seed = experiment.seed.wrapping_add(seed.into());
                    let name = choice.name().to_owned();
                    let scenario = Scenario { seed, ..scenario.clone() };
                    tasks.push(Task { case: index, name, scheme: scheme.clone(), scenario });
                }
            }
        }
        let runs = measure_all(tasks)?;
        Ok(Results {
            claims: self.claim.iter().map(|bar| self.judge(bar, &runs)).collect(),
            numbers: json!({ "runs": runs.iter().map(|run| self.row(run)).collect::<Vec<_>>() }),
            table: rpc_show::table(self, &runs),
            figures: rpc_show::figures(self, &runs),
            ..Results::default()
        })
    }

    /// A run in the results for programs; of the bins those that a figure shows.
    fn row(&self, run: &Measured) -> serde_json::Value {
        let shown = if self.over_time { rpc_show::around_step(run) } else { Vec::new() };
        let bins = shown.into_iter().map(|(_, bin)| bin).collect();
        let report = Report { bins, ..run.report.clone() };
        json!({ "case": self.case[run.case].name, "scheme": run.scheme, "seed": run.scenario.seed, "report": report })
    }

    fn judge(&self, bar: &Bar, runs: &[Measured]) -> Claim {
        let concerned = |run: &&Measured| {
            run.scheme == bar.scheme && bar.case.as_ref().is_none_or(|name| self.case[run.case].name == *name)
        };
        let values: Vec<f64> = runs.iter().filter(concerned).map(|run| bar.what.of(run)).collect();
        let (least, most) = values
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (value.min(least), value.max(most)));
        let held = |value: &f64| {
            bar.at_least.is_none_or(|bound| *value >= bound) && bar.at_most.is_none_or(|bound| *value <= bound)
        };
        let bounds = [("at least", bar.at_least), ("at most", bar.at_most)];
        let bounds: Vec<String> =
            bounds.iter().filter_map(|(word, bound)| bound.map(|bound| format!("{word} {}", number(bound)))).collect();
        let place = bar.case.as_ref().map_or(String::new(), |case| format!(", {case}"));
        Claim {
            claim: format!("{}{place}: {} {}", bar.scheme, bar.what.title(), bounds.join(" and ")),
            held: values.iter().all(held),
            seen: match values.len() {
                0 => "not run".to_owned(),
                1 => number(least),
                count => format!("{} to {} in {count} runs", number(least), number(most)),
            },
        }
    }
}

/// One run to do.
pub(super) struct Task {
    pub(super) case: usize,
    pub(super) name: String,
    pub(super) scheme: Scheme,
    pub(super) scenario: Scenario,
}

/// Runs all of them, one for each of this machine's cores at a time; the results are in the order of the tasks.
pub(super) fn measure_all(tasks: Vec<Task>) -> Result<Vec<Measured>, RunError> {
    let count = tasks.len();
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(count.max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, task)) = next_of(&tasks, &next) {
            done.push((index, measure_scheme(&task.scenario, &task.scheme)));
        }
        done
    };
    let mut reports = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a run does not panic")).collect::<Vec<_>>()
    });
    reports.sort_by_key(|(index, _)| *index);
    let runs = tasks.into_iter().zip(reports).map(|(task, (_, report))| {
        Ok(Measured { case: task.case, scheme: task.name, scenario: task.scenario, report: report? })
    });
    runs.collect()
}

fn next_of<'a>(tasks: &'a [Task], next: &AtomicUsize) -> Option<(usize, &'a Task)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    tasks.get(index).map(|task| (index, task))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SMALL: &str = r#"
title = "t"
seed = 1
[rpc]
schemes = ["none", { name = "late", scheme = { kind = "aqm", drop_delay_us = 40 } }]
seeds = 1
x = "load"
show = ["goodput", "p99"]
over_time = true
scenario = { cores = 2, duration_us = 40000, warm_up_us = 10000 }
[[rpc.case]]
name = "half"
x = 0.5
scenario = { groups = [{ clients = 10, load = 0.5 }] }
[[rpc.case]]
name = "more"
x = 1.5
scenario = { groups = [{ clients = 10, load = 0.1, steps = [{ at_us = 20000, load = 1.5 }] }] }
[[rpc.claim]]
scheme = "none"
case = "half"
what = "goodput"
at_least = 0.9
[[rpc.claim]]
scheme = "none"
what = "p99"
at_most = 1.0
"#;

    fn parse(text: &str) -> Result<Experiment, String> {
        crate::experiment::parse(Path::new("a.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn cases_times_schemes_are_run_shown_and_judged() {
        let outcome = parse(SMALL).unwrap().run("small", Size::Full).unwrap();
        assert_eq!(outcome.table.rows.len(), 4);
        assert_eq!(outcome.figures.len(), 4);
        assert!(outcome.figures.iter().all(|(_, figure)| figure.to_svg().is_ok()));
        let held: Vec<bool> = outcome.claims.iter().map(|claim| claim.held).collect();
        assert_eq!(held, [true, false], "{outcome}");
        let again = parse(SMALL).unwrap().run("small", Size::Full).unwrap();
        assert_eq!(outcome, again);
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let with = |from: &str, to: &str| parse(&SMALL.replacen(from, to, 1)).unwrap_err();
        assert!(with("\"none\", {", "\"nobody\", {").contains("rpc.schemes: nobody: no scheme"));
        assert!(with("drop_delay_us = 40", "drop_delay_us = 0").contains("late: `drop_delay_us` is 0"));
        assert!(with("load = 0.5", "lode = 0.5").contains("rpc.case[0].scenario: unknown field `lode`"));
        assert!(with("x = 0.5\n", "").contains("rpc.case[0]: x goes with"));
        assert!(with("case = \"half\"", "case = \"quarter\"").contains("rpc.claim[0]: no case"));
    }

    #[test]
    fn every_file_of_this_kind_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        for name in ["load", "spike", "clients", "million", "parts", "causes", "shares", "no_tuning"] {
            let experiment = crate::experiment::read(&folder.join(format!("rpc_{name}.toml"))).unwrap();
            assert!(experiment.rpc.is_some());
        }
    }
}
