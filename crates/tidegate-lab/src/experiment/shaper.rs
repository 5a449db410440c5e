//! Classes of HTB with TCP flows, and what keeps their queues short.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::shaper::{Metric, Report, Scenario, Scheme, play};
use crate::table::{Table, number};

/// A quick run counts no longer than this.
const QUICK_MS: u64 = 300;

/// Settings of the kind `shaper`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shaper {
    /// Each is run under each of its schemes, with the same random numbers.
    pub case: Vec<Case>,
}

/// A scenario, and what should be seen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// In the table.
    pub name: String,
    /// What keeps the queues short.
    pub schemes: Vec<Scheme>,
    /// What is run.
    pub scenario: Scenario,
    /// What should be seen.
    #[serde(default)]
    pub bar: Vec<Bar>,
}

/// A claim about a number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Each of these schemes must keep the bar.
    pub schemes: Vec<Scheme>,
    /// The number.
    pub metric: Metric,
    /// Divided by that of something else.
    pub relative_to: Option<Relative>,
    /// Not above this.
    pub at_most: Option<f64>,
    /// Not below this.
    pub at_least: Option<f64>,
}

/// What a number is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relative {
    /// The median round trip of the mice without any other flow.
    Idle,
    /// The same number under another scheme of the case.
    Scheme(Scheme),
}

/// A case's reports.
struct Played<'a> {
    case: &'a Case,
    idle: Report,
    reports: Vec<Report>,
}

impl Shaper {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless(!self.case.is_empty(), "shaper.case", "nothing to run")?;
        for (at, case) in self.case.iter().enumerate() {
            let table = format!("shaper.case[{at}]");
            Complaint::unless(!case.schemes.is_empty(), &format!("{table}.schemes"), "name at least one scheme")?;
            if let Some((key, message)) = case.scenario.complaint() {
                Complaint::unless(false, &format!("{table}.scenario.{key}"), message)?;
            }
            for bar in &case.bar {
                let other = bar.relative_to.and_then(Relative::scheme);
                let known = bar.schemes.iter().chain(&other).all(|scheme| case.schemes.contains(scheme));
                Complaint::unless(known, &format!("{table}.bar"), "a bar is about schemes of its case")?;
                let bounded = bar.at_most.is_some() || bar.at_least.is_some();
                Complaint::unless(bounded, &format!("{table}.bar"), "say at_most or at_least")?;
            }
        }
        Ok(())
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Results {
        let played: Vec<Played<'_>> = self.case.iter().map(|case| Played::new(case, experiment.seed, size)).collect();
        let mut table = Table::new([
            "case",
            "scheme",
            "efficiency",
            "srtt us p50",
            "p99",
            "mice us p50",
            "p99",
            "drops",
            "Jain",
            "stall ms",
            "stuck",
            "segments a packet",
            "ms to the new share",
        ]);
        let mut numbers = Vec::new();
        let mut claims = Vec::new();
        let mut figures = Vec::new();
        for played in &played {
            let name = &played.case.name;
            table.push(row(name, "idle", &played.idle));
            for report in &played.reports {
                table.push(row(name, &report.scheme.name(), report));
            }
            claims.extend(played.case.bar.iter().flat_map(|bar| played.claims(bar)));
            numbers.push(json!({ "case": name, "idle": played.idle, "reports": played.reports }));
            figures.push((name.replace(' ', "_"), played.figure(&experiment.title)));
        }
        Results { claims, numbers: json!(numbers), table, figures, ..Results::default() }
    }
}

impl<'a> Played<'a> {
    fn new(case: &'a Case, seed: u64, size: Size) -> Self {
        let mut scenario = case.scenario.clone();
        if size == Size::Quick {
            scenario.length_ms = scenario.length_ms.min(scenario.warm_up_ms + QUICK_MS);
        }
        let idle = play(&scenario.idle(), Scheme::Htb, seed);
        Self { case, idle, reports: case.schemes.iter().map(|scheme| play(&scenario, *scheme, seed)).collect() }
    }

    fn metric(&self, scheme: Scheme, metric: Metric) -> f64 {
        let report = self.reports.iter().find(|report| report.scheme == scheme);
        report.expect("a checked bar is about schemes of its case").metric(metric)
    }

    fn claims(&self, bar: &Bar) -> Vec<Claim> {
        let claim = |&scheme: &Scheme| {
            let value = self.metric(scheme, bar.metric);
            let (value, unit) = match bar.relative_to {
                None => (value, String::new()),
                Some(Relative::Idle) => (value / self.idle.mice_us.p50, " times the idle round trip".to_owned()),
                Some(Relative::Scheme(other)) => {
                    (value / self.metric(other, bar.metric), format!(" times that of {}", other.name()))
                }
            };
            let above = bar.at_least.is_none_or(|least| value >= least);
            let below = bar.at_most.is_none_or(|most| value <= most);
            let bound = |word: &str, bound: Option<f64>| bound.map(|bound| format!("{word} {}", number(bound)));
            let bounds: Vec<String> =
                [bound("at least", bar.at_least), bound("at most", bar.at_most)].into_iter().flatten().collect();
            Claim {
                claim: format!(
                    "{}, {}: {} {}{unit}",
                    self.case.name,
                    scheme.name(),
                    bar.metric.words(),
                    bounds.join(" and ")
                ),
                held: above && below,
                seen: number(value),
            }
        };
        bar.schemes.iter().map(claim).collect()
    }

    fn figure(&self, title: &str) -> Figure {
        let series = |name: String, report: &Report| Series {
            name,
            points: report.mice_curve.iter().map(|&[percent, us]| [percent, us, 0.0]).collect(),
            stroke: Stroke::Solid,
        };
        let idle = series("no other flow".to_owned(), &self.idle);
        let others = self.reports.iter().map(|report| series(report.scheme.name(), report));
        Figure {
            title: format!("{title}: {}", self.case.name),
            x_label: "share of requests, %".to_owned(),
            y_label: "TCP round trip of requests, us".to_owned(),
            y_scale: Scale::Log,
            series: std::iter::once(idle).chain(others).collect(),
        }
    }
}

impl Relative {
    fn scheme(self) -> Option<Scheme> {
        match self {
            Self::Idle => None,
            Self::Scheme(scheme) => Some(scheme),
        }
    }
}

fn row(case: &str, scheme: &str, report: &Report) -> [String; 13] {
    [
        case.to_owned(),
        scheme.to_owned(),
        number(report.metric(Metric::Efficiency)),
        number(report.srtt_us.p50),
        number(report.srtt_us.p99),
        number(report.mice_us.p50),
        number(report.mice_us.p99),
        report.drops.to_string(),
        number(report.metric(Metric::Jain)),
        number(report.stall_ms),
        report.stuck.to_string(),
        number(report.segments_per_packet),
        number(report.settle_ms),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn held(name: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../lab/{name}.toml"));
        let outcome = crate::experiment::read(&file).unwrap().run(name, Size::Quick).unwrap();
        assert!(outcome.holds(), "{outcome}");
    }

    #[test]
    fn one_limiter_makes_round_trips_long_and_two_do_in_each() {
        held("shaper_fig1");
        held("shaper_fig2");
    }

    #[test]
    fn the_shaper_makes_them_short_again() {
        held("shaper_fig4");
    }

    #[test]
    fn the_shaper_beside_what_else_one_would_choose() {
        held("shaper_baselines");
    }

    #[test]
    fn what_neighbours_leave_is_used_and_left_within_five_milliseconds() {
        held("shaper_borrowing");
    }

    #[test]
    fn the_shaper_in_places_that_it_was_not_made_for() {
        held("shaper_in_use");
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/shaper_fig1.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let error = |from: &str, to: &str| {
            crate::experiment::parse(&file, &text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        let wrong = error("flows = 1", "flows = 100_000");
        assert!(wrong.contains("shaper.case[0]") && wrong.contains("at most 1000"), "{wrong}");
        let unknown = error("schemes = [\"htb\"]", "schemes = [\"dctcp\"]");
        assert!(unknown.contains("a bar is about schemes of its case"), "{unknown}");
    }
}
