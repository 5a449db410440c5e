//! The simulated bucket, whole or in parts, against the exact M/D/1 values.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Rate;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::bucket::{self, Arrivals, BucketError, BucketQuestion, PARTS_MAX, Split};
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::statistics::{Interval, float};
use crate::table::{Table, number};

/// A quick run takes this much less, and leaves out the loads nearest saturation: there the queue remembers for longer
/// than a stretch of such a run, and its intervals would be worthless.
const QUICK: u64 = 20;
const QUICK_LOAD_MAX: f64 = 0.9;

/// Settings of the kind `theory_check`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TheoryCheck {
    /// Tokens per second.
    pub rate: Rate,
    /// Sizes of the batches in which messages arrive, as Poisson processes.
    pub batches: Vec<u32>,
    /// Into how many equal parts the bucket is split, each batch going to one of them at random; by default it is whole.
    #[serde(default = "whole")]
    pub splits: Vec<u32>,
    /// How likely each interval holds the exact value.
    pub confidence: f64,
    /// The loads to try, each with every batch size and every number of parts.
    pub load: Vec<Load>,
}

/// One load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Messages for each token, between 0 and 1.
    pub load: f64,
    /// Depth in batches: high enough to matter, low enough that messages are delayed often enough to count.
    pub burst: u64,
    /// Messages counted for each batch size and number of parts; a twentieth more comes first and is not counted.
    pub messages: u64,
}

fn whole() -> Vec<u32> {
    vec![1]
}

/// One exact value, and where the simulation sees it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Comparison {
    quantity: &'static str,
    exact: f64,
    simulated: f64,
    half_width: f64,
    within: bool,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Run {
    load: f64,
    parts: u32,
    batch: u32,
    burst: u64,
    messages: u64,
    comparisons: Vec<Comparison>,
}

impl Run {
    /// The mean delay, which is always compared.
    fn mean(&self) -> Option<&Comparison> {
        self.comparisons.first()
    }
}

impl TheoryCheck {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let within = |number: f64| number > 0.0 && number < 1.0;
        let range = "is not above 0 and below 1";
        Complaint::unless(within(self.confidence), "theory_check.confidence", format!("{} {range}", self.confidence))?;
        let some = !self.batches.is_empty() && self.batches.iter().all(|batch| (1..=1_000).contains(batch));
        Complaint::unless(some, "theory_check.batches", "not a list of numbers from 1 to 1000")?;
        let parts_max = u32::try_from(PARTS_MAX).unwrap_or(u32::MAX);
        let some = !self.splits.is_empty() && self.splits.iter().all(|parts| (1..=parts_max).contains(parts));
        Complaint::unless(some, "theory_check.splits", format!("not a list of numbers from 1 to {parts_max}"))?;
        Complaint::unless(!self.rate.is_zero(), "theory_check.rate", "no tokens: a rate is above zero")?;
        Complaint::unless(
            !self.load.is_empty(),
            "theory_check",
            "nothing to check: write tables [[theory_check.load]]",
        )?;
        for (index, load) in self.load.iter().enumerate() {
            let key = |name: &str| format!("theory_check.load[{index}].{name}");
            Complaint::unless(within(load.load), &key("load"), format!("{} {range}", load.load))?;
            let least = "less than a million messages tell too little";
            Complaint::unless(load.messages >= 1_000_000, &key("messages"), least)?;
            Complaint::unless(load.burst > 0, &key("burst"), "a burst of 0 lets nothing pass")?;
        }
        Ok(())
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, BucketError> {
        let mut runs = Vec::new();
        for load in self.load.iter().filter(|load| size == Size::Full || load.load <= QUICK_LOAD_MAX) {
            for &batch in &self.batches {
                for &parts in &self.splits {
                    // Each run has random numbers of its own.
                    let seed = experiment.seed.wrapping_add(runs.len() as u64);
                    runs.push(self.run_one(load, (batch, parts), seed, size)?);
                }
            }
        }
        let comparisons = || runs.iter().flat_map(|run| &run.comparisons);
        let all = comparisons().count();
        let within = comparisons().filter(|comparison| comparison.within).count();
        let messages: u64 = runs.iter().map(|run| run.messages).sum();
        let claim = Claim {
            claim: format!("exact values within their {} % intervals", number(self.confidence * 100.0)),
            held: within == all,
            seen: format!("{within} of {all}, over {messages} messages"),
        };
        Ok(Results {
            claims: std::iter::once(claim).chain(self.costs(&runs)).collect(),
            numbers: json!({ "messages": messages, "runs": runs }),
            table: table(&runs),
            figure: Some(self.figure(&runs)),
            ..Results::default()
        })
    }

    /// That each further part costs, if the bucket is split: the simulated mean delay of each load and batch size.
    fn costs(&self, runs: &[Run]) -> Option<Claim> {
        (self.splits.len() > 1).then(|| {
            let rises = |runs: &[Run]| {
                let means = runs.iter().filter_map(Run::mean);
                means.map(|mean| mean.simulated).is_sorted_by(|less, more| less < more)
            };
            // The runs of one load and batch size stand together.
            let groups = || runs.chunks(self.splits.len());
            let held = groups().filter(|runs| rises(runs)).count();
            Claim {
                claim: "the mean delay grows with each number of parts".to_owned(),
                held: held == groups().count(),
                seen: format!("in {held} of {} series", groups().count()),
            }
        })
    }

    fn run_one(&self, load: &Load, (batch, parts): (u32, u32), seed: u64, size: Size) -> Result<Run, BucketError> {
        let messages = if size == Size::Quick { load.messages / QUICK } else { load.messages };
        let arrivals = Arrivals::Poisson { rate: Rate::from_per_s_f64(self.rate.as_per_s() * load.load) };
        let question = BucketQuestion {
            batch,
            messages,
            warm_up: messages / 20,
            split: Split::Even(parts),
            seed,
            ..BucketQuestion::new(arrivals, self.rate, load.burst * u64::from(batch))
        };
        let exact = bucket::exact_delay(&question)?;
        // How many exceed an exact quantile is as telling as the simulated quantile, and its spread can be estimated.
        let quantiles = [("share above p90", 0.9), ("share above p99", 0.99)];
        let thresholds_ns = quantiles.map(|(_, q)| whole_ns(exact.quantile_s(q)));
        let observed = bucket::observe(&question, &thresholds_ns, None)?;
        let compare = |quantity, exact: f64, interval: Option<Interval>| {
            let Interval { mean, half_width } = interval.unwrap_or(Interval { mean: f64::NAN, half_width: 0.0 });
            let within = Interval { mean, half_width }.holds(exact);
            Comparison { quantity, exact, simulated: mean, half_width, within }
        };
        let mean_ns = observed.interval(self.confidence, |stretch| stretch.delay_ns);
        let share = observed.interval(self.confidence, |stretch| stretch.delayed.into());
        let mut comparisons = vec![
            compare("mean delay, us", exact.mean_s() * 1e6, mean_ns.map(in_us)),
            compare("share delayed", exact.share_delayed(), share),
        ];
        for (i, (name, _)) in quantiles.into_iter().enumerate() {
            // A quantile of zero is the share delayed once more.
            if thresholds_ns[i] > 0 {
                let longer = observed.interval(self.confidence, |stretch| stretch.longer[i].into());
                comparisons.push(compare(name, exact.share_longer(float(thresholds_ns[i]) / 1e9), longer));
            }
        }
        Ok(Run { load: load.load, parts, batch, burst: question.burst, messages: observed.messages(), comparisons })
    }

    /// The mean delay along the loads, or along the parts if there are several numbers of them.
    fn figure(&self, runs: &[Run]) -> Figure {
        let along_parts = self.splits.len() > 1;
        let mut lines: Vec<(String, Vec<&Run>)> = Vec::new();
        for run in runs {
            let of_batch = format!("batches of {}", run.batch);
            let name = if along_parts { format!("load {}, {of_batch}", number(run.load)) } else { of_batch };
            match lines.iter_mut().find(|(other, _)| *other == name) {
                Some((_, runs)) => runs.push(run),
                None => lines.push((name, vec![run])),
            }
        }
        let mut series = Vec::new();
        for (name, runs) in lines {
            let points = |y: fn(&Comparison) -> [f64; 2]| -> Vec<[f64; 3]> {
                let point = |run: &&Run| {
                    let [y, deviation] = y(run.mean()?);
                    Some([if along_parts { f64::from(run.parts) } else { run.load }, y, deviation])
                };
                runs.iter().filter_map(point).collect()
            };
            series.push(Series {
                name: format!("simulated, {name}"),
                points: points(|mean| [mean.simulated, mean.half_width]),
                stroke: Stroke::Solid,
            });
            series.push(Series {
                name: format!("exact, {name}"),
                points: points(|mean| [mean.exact, 0.0]),
                stroke: Stroke::Dashed,
            });
        }
        let x_label = if along_parts {
            "equal parts of the bucket"
        } else {
            "load, messages for each token (bursts differ, see the table)"
        };
        Figure {
            title: format!("Mean access delay, {} tokens", self.rate),
            x_label: x_label.to_owned(),
            y_label: "mean delay, us".to_owned(),
            y_scale: Scale::Log,
            series,
        }
    }
}

fn table(runs: &[Run]) -> Table {
    let mut table = Table::new([
        "load",
        "parts",
        "batch",
        "burst",
        "messages",
        "quantity",
        "exact",
        "simulated",
        "±",
        "off by",
        "",
    ]);
    for run in runs {
        for comparison in &run.comparisons {
            // How far off, in half widths: what a reader wants to see at a glance.
            let off = (comparison.simulated - comparison.exact) / comparison.half_width;
            table.push([
                number(run.load),
                run.parts.to_string(),
                run.batch.to_string(),
                run.burst.to_string(),
                run.messages.to_string(),
                comparison.quantity.to_owned(),
                number(comparison.exact),
                number(comparison.simulated),
                number(comparison.half_width),
                format!("{off:+.2}"),
                if comparison.within { "within".to_owned() } else { "OUTSIDE".to_owned() },
            ]);
        }
    }
    table
}

fn in_us(interval: Interval) -> Interval {
    Interval { mean: interval.mean / 1e3, half_width: interval.half_width / 1e3 }
}

fn whole_ns(seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let ns = (seconds * 1e9).round() as u64;
    ns
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = r#"
title = "t"
seed = 1
[theory_check]
rate = "11k/s"
batches = [1, 10]
splits = [1, 3]
confidence = 0.9999
[[theory_check.load]]
load = 0.5
burst = 3
messages = 10_000_000
"#;

    #[test]
    fn parts_of_a_bucket_have_their_exact_delays() {
        let experiment = crate::experiment::parse(Path::new("a.toml"), TEXT).unwrap();
        let outcome = experiment.run("split", Size::Quick).unwrap();
        assert!(outcome.holds() && outcome.claims.len() == 2, "{outcome}");
        let runs = outcome.results["runs"].as_array().unwrap();
        let of = |run: usize, key: &str| runs[run][key].as_u64().unwrap();
        assert_eq!(
            (0..4).map(|run| (of(run, "batch"), of(run, "parts"))).collect::<Vec<_>>(),
            [(1, 1), (1, 3), (10, 1), (10, 3)]
        );
        let figure = outcome.figure.unwrap();
        assert_eq!((figure.series.len(), figure.series[0].points.len()), (4, 2));
    }

    #[test]
    fn no_part_is_no_split() {
        let wrong = TEXT.replacen("[1, 3]", "[0]", 1);
        let error = crate::experiment::parse(Path::new("a.toml"), &wrong).unwrap_err().to_string();
        assert_eq!(error, "a.toml:7: theory_check.splits: not a list of numbers from 1 to 10000");
    }
}
