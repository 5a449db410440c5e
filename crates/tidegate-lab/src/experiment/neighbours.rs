//! A quiet tenant and a noisy one, before, during and after a spike: limiters side by side, resource by resource.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::neighbours::{Arrivals, Kind, Played, Resource, Scheme, TenantTrace, Trace, play};
use crate::statistics::float;
use crate::table::{Table, number};

/// Ticks after the start, and after the spike began, that do not count: limiters may take one to see it.
const SETTLING: usize = 1;
/// What is held is held for so long, so that as much is held as comes in a second.
const HOLD_MS: u64 = 1_000;

/// Settings of the kind `neighbours`. Work is in pieces per second, and ticks are seconds, as in the prototype.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// What is compared.
    pub schemes: Vec<Scheme>,
    /// What the machine can do.
    pub limit: u64,
    /// What the quiet tenant asks for all the time, and the noisy one before and after its spike.
    pub quiet: u64,
    /// What the noisy tenant asks for during its spike.
    pub spike: u64,
    /// Ticks before the spike.
    pub calm_ticks: u32,
    /// Ticks of the spike.
    pub spike_ticks: u32,
    /// Ticks after it.
    pub after_ticks: u32,
    /// How work is spread over a tick.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// The resources, one after the other.
    pub case: Vec<Case>,
    /// What should be seen.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// One resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Which.
    pub resource: Resource,
    /// Units that a piece of work takes.
    pub units: u64,
    /// Names that the noisy tenant makes up, if it is not one but an address that does.
    #[serde(default = "one")]
    pub made_up_names: u32,
    /// What is asked for during the spike in this case, if not that of the experiment.
    #[serde(default)]
    pub spike: Option<u64>,
}

const fn one() -> u32 {
    1
}

/// A claim: it must hold for every resource that it names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Of which scheme.
    pub scheme: Scheme,
    /// Of which resource; of all if absent.
    pub resource: Option<Resource>,
    /// What.
    pub what: Metric,
    /// It is not less.
    pub at_least: Option<f64>,
    /// It is not more.
    pub at_most: Option<f64>,
}

/// A single number of a run, of the spike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The part of the quiet tenant's work that was refused.
    QuietRefused,
    /// The part of its work that was done by a machine that serves what was admitted in order of arrival.
    QuietServed,
    /// What was admitted of the noisy tenant's work, as a part of what the quiet one leaves.
    NoisyOfRest,
    /// What was admitted of both, as a part of what the machine can do.
    Admitted,
}

impl Metric {
    fn title(self) -> &'static str {
        match self {
            Self::QuietRefused => "quiet tenant refused",
            Self::QuietServed => "quiet tenant served",
            Self::NoisyOfRest => "noisy tenant, of the rest",
            Self::Admitted => "admitted, of the limit",
        }
    }
}

/// One run.
struct Run<'a> {
    case: &'a Case,
    played: Played,
}

impl Neighbours {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless(!self.schemes.is_empty(), "neighbours.schemes", "nothing to compare")?;
        Complaint::unless(!self.case.is_empty(), "neighbours", "no resource: write tables [[neighbours.case]]")?;
        let some = self.calm_ticks > 1 && self.spike_ticks > 1 && self.after_ticks > 0;
        Complaint::unless(some, "neighbours", "calm and spike take two ticks at least, what is after one")?;
        for (index, case) in self.case.iter().enumerate() {
            let checked = self.trace(case, 0).check();
            let message = checked.as_ref().err().map(ToString::to_string).unwrap_or_default();
            Complaint::unless(checked.is_ok(), &format!("neighbours.case[{index}]"), message)?;
        }
        for (index, bar) in self.claim.iter().enumerate() {
            let key = format!("neighbours.claim[{index}]");
            let known = bar.resource.is_none_or(|resource| self.case.iter().any(|case| case.resource == resource));
            Complaint::unless(known, &key, "no case has this resource")?;
            Complaint::unless(self.schemes.contains(&bar.scheme), &key, format!("{} is not compared", bar.scheme))?;
            Complaint::unless(bar.at_least.is_some() || bar.at_most.is_some(), &key, "at_least or at_most is missing")?;
        }
        Ok(())
    }

    fn trace(&self, case: &Case, seed: u64) -> Trace {
        let times = |work: u64, ticks: u32| std::iter::repeat_n(work, usize::try_from(ticks).unwrap_or(0));
        let spike = times(case.spike.unwrap_or(self.spike), self.spike_ticks);
        let noisy = times(self.quiet, self.calm_ticks).chain(spike).chain([self.quiet]);
        let tenant = |name: &str, made_up_names, work: Vec<u64>| TenantTrace {
            name: name.to_owned(),
            weight: 1,
            made_up_names,
            arrivals: self.arrivals,
            work,
            cost: [(case.resource, case.units)].into(),
            hold_ms: if case.resource.kind() == Kind::Gauge { HOLD_MS } else { 0 },
            rate_limit: None,
        };
        Trace {
            tick_ms: 1_000,
            ticks: self.calm_ticks.saturating_add(self.spike_ticks).saturating_add(self.after_ticks),
            mode: crate::neighbours::Mode::Restrict,
            seed,
            capacity: [(case.resource, self.limit.saturating_mul(case.units))].into(),
            tenants: vec![tenant("a", 1, vec![self.quiet]), tenant("b", case.made_up_names, noisy.collect())],
        }
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let mut runs = Vec::new();
        let count = if size == Size::Quick { 1 } else { self.case.len() };
        for case in self.case.iter().take(count) {
            let trace = self.trace(case, experiment.seed);
            for scheme in &self.schemes {
                runs.push(Run { case, played: play(&trace, *scheme)? });
            }
        }
        let rows = runs
            .iter()
            .map(|run| json!({ "resource": run.case.resource, "units": run.case.units, "played": run.played }));
        Ok(Results {
            claims: self.claim.iter().map(|bar| self.judge(bar, &runs)).collect(),
            numbers: json!({ "runs": rows.collect::<Vec<_>>() }),
            table: self.table(&runs),
            figures: self.figures(&runs),
            ..Results::default()
        })
    }

    /// The ticks of the spike that count, of one tenant: offered, admitted, served.
    fn spike(&self, run: &Run<'_>, tenant: usize) -> [f64; 3] {
        let begin = usize::try_from(self.calm_ticks).unwrap_or(0) + SETTLING;
        let count = usize::try_from(self.spike_ticks).unwrap_or(0) - SETTLING;
        let rows = run.played.ticks.iter().skip(begin).take(count).map(|tick| &tick.tenants[tenant]);
        rows.fold([0.0; 3], |sum, row| [sum[0] + float(row.offered), sum[1] + float(row.admitted), sum[2] + row.served])
    }

    fn metric(&self, run: &Run<'_>, what: Metric) -> f64 {
        let ([offered, admitted, served], [_, noisy, _]) = (self.spike(run, 0), self.spike(run, 1));
        let limit = float(self.limit) * float(u64::from(self.spike_ticks) - SETTLING as u64);
        match what {
            Metric::QuietRefused => 1.0 - admitted / offered,
            Metric::QuietServed => served / offered,
            Metric::NoisyOfRest => noisy / (limit - offered).max(1.0),
            Metric::Admitted => (admitted + noisy) / limit,
        }
    }

    fn judge(&self, bar: &Bar, runs: &[Run<'_>]) -> Claim {
        let concerned = |run: &&Run<'_>| {
            run.played.scheme == bar.scheme && bar.resource.is_none_or(|resource| run.case.resource == resource)
        };
        let values: Vec<f64> = runs.iter().filter(concerned).map(|run| self.metric(run, bar.what)).collect();
        let held = |value: &f64| {
            bar.at_least.is_none_or(|bound| *value >= bound) && bar.at_most.is_none_or(|bound| *value <= bound)
        };
        let bounds = [("at least", bar.at_least), ("at most", bar.at_most)];
        let bounds: Vec<String> =
            bounds.iter().filter_map(|(word, bound)| bound.map(|bound| format!("{word} {}", number(bound)))).collect();
        let place = bar.resource.map_or(String::new(), |resource| format!(", {}", resource.name()));
        let seen: Vec<String> = values.iter().map(|value| number(*value)).collect();
        Claim {
            claim: format!("{}{place}: {} {}", bar.scheme, bar.what.title(), bounds.join(" and ")),
            held: values.iter().all(held),
            seen: if seen.is_empty() { "not run".to_owned() } else { seen.join(", ") },
        }
    }

    fn table(&self, runs: &[Run<'_>]) -> Table {
        let mut table = Table::new([
            "resource",
            "limiter",
            "quiet refused",
            "quiet served",
            "noisy admitted/s",
            "noisy of the rest",
            "all of the limit",
        ]);
        for run in runs {
            let percent = |what| format!("{:.1}%", 100.0 * self.metric(run, what));
            let per_s = self.spike(run, 1)[1] / float(u64::from(self.spike_ticks) - SETTLING as u64);
            table.push([
                run.case.resource.name().to_owned(),
                run.played.scheme.to_string(),
                percent(Metric::QuietRefused),
                percent(Metric::QuietServed),
                number(per_s),
                percent(Metric::NoisyOfRest),
                percent(Metric::Admitted),
            ]);
        }
        table
    }

    /// For each resource what both tenants get under each limiter, tick by tick.
    fn figures(&self, runs: &[Run<'_>]) -> Vec<(String, Figure)> {
        let figure = |case: &Case| {
            let concerned = runs.iter().filter(|run| run.case == case);
            let series = concerned.map(|run| {
                let rows = run.played.ticks.iter().map(|tick| (tick.tick, &tick.tenants[0]));
                Series {
                    name: format!("a, {}", run.played.scheme),
                    points: rows.map(|(tick, row)| [f64::from(tick), row.served, 0.0]).collect(),
                    stroke: if run.played.scheme == Scheme::None { Stroke::Dashed } else { Stroke::Solid },
                }
            });
            let name = case.resource.name();
            let figure = Figure {
                title: format!("What the quiet tenant gets: {}", name.replace('_', " ")),
                x_label: "time, s".to_owned(),
                y_label: "served per second".to_owned(),
                y_scale: Scale::Linear,
                series: series.collect(),
            };
            (name.to_owned(), figure)
        };
        self.case.iter().map(figure).filter(|(_, figure)| !figure.series.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_slides_experiment_shows_what_it_should() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        let experiment = crate::experiment::read(&folder.join("neighbours_slides.toml")).unwrap();
        let outcome = experiment.run("slides", Size::Quick).unwrap();
        assert!(outcome.holds(), "{outcome}");
        assert!(outcome.figures.iter().all(|(_, figure)| figure.to_svg().is_ok()));
        let settings = experiment.neighbours.unwrap();
        assert_eq!(settings.case.len(), Resource::COUNT, "every resource of the slides and ours");
        assert_eq!(outcome.table.rows.len(), settings.schemes.len());
    }

    #[test]
    fn made_up_names_cost_the_quiet_tenant_nothing() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        let experiment = crate::experiment::read(&folder.join("neighbours_names.toml")).unwrap();
        let outcome = experiment.run("names", Size::Full).unwrap();
        assert!(outcome.holds(), "{outcome}");
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/neighbours_slides.toml"))
                .unwrap();
        let wrong = |from: &str, to: &str| {
            let text = text.replacen(from, to, 1);
            crate::experiment::parse(Path::new("a.toml"), &text).unwrap_err().to_string()
        };
        assert!(wrong("units = 1\n", "units = 0\n").contains("neighbours.case[0]"));
        assert!(wrong("scheme = \"tidegate\"", "scheme = \"nobody\"").contains("nobody"));
    }
}
