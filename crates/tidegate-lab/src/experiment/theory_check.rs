//! The simulated bucket against the exact M/D/1 values.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Rate;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::bucket::{self, Arrivals, BucketError, BucketQuestion};
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
    /// How likely each interval holds the exact value.
    pub confidence: f64,
    /// The loads to try, each with every batch size.
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
    /// Messages counted for each batch size; a twentieth more comes first and is not counted.
    pub messages: u64,
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
    batch: u32,
    burst: u64,
    messages: u64,
    comparisons: Vec<Comparison>,
}

impl TheoryCheck {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let within = |number: f64| number > 0.0 && number < 1.0;
        let range = "is not above 0 and below 1";
        Complaint::unless(within(self.confidence), "theory_check.confidence", format!("{} {range}", self.confidence))?;
        let some = !self.batches.is_empty() && self.batches.iter().all(|batch| (1..=1_000).contains(batch));
        Complaint::unless(some, "theory_check.batches", "not a list of numbers from 1 to 1000")?;
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
                // Each run has random numbers of its own.
                let seed = experiment.seed.wrapping_add(runs.len() as u64);
                runs.push(self.run_one(load, batch, seed, size)?);
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
            claims: vec![claim],
            numbers: json!({ "messages": messages, "runs": runs }),
            table: table(&runs),
            figure: Some(self.figure(&runs)),
            ..Results::default()
        })
    }

    fn run_one(&self, load: &Load, batch: u32, seed: u64, size: Size) -> Result<Run, BucketError> {
        let messages = if size == Size::Quick { load.messages / QUICK } else { load.messages };
        let arrivals = Arrivals::Poisson { rate: Rate::from_per_s_f64(self.rate.as_per_s() * load.load) };
        let question = BucketQuestion {
            batch,
            messages,
            warm_up: messages / 20,
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
        Ok(Run { load: load.load, batch, burst: question.burst, messages: observed.messages(), comparisons })
    }

    fn figure(&self, runs: &[Run]) -> Figure {
        let mut series = Vec::new();
        for &batch in &self.batches {
            let of_batch = || runs.iter().filter(|run| run.batch == batch);
            let points = |y: fn(&Comparison) -> [f64; 2]| {
                of_batch()
                    .filter_map(|run| {
                        run.comparisons.first().map(|mean| {
                            let [y, d] = y(mean);
                            [run.load, y, d]
                        })
                    })
                    .collect()
            };
            series.push(Series {
                name: format!("simulated, batches of {batch}"),
                points: points(|mean| [mean.simulated, mean.half_width]),
                stroke: Stroke::Solid,
            });
            series.push(Series {
                name: format!("exact, batches of {batch}"),
                points: points(|mean| [mean.exact, 0.0]),
                stroke: Stroke::Dashed,
            });
        }
        Figure {
            title: format!("Mean access delay, {} tokens", self.rate),
            x_label: "load, messages for each token (bursts differ, see the table)".to_owned(),
            y_label: "mean delay, us".to_owned(),
            y_scale: Scale::Log,
            series,
        }
    }
}

fn table(runs: &[Run]) -> Table {
    let mut table =
        Table::new(["load", "batch", "burst", "messages", "quantity", "exact", "simulated", "±", "off by", ""]);
    for run in runs {
        for comparison in &run.comparisons {
            // How far off, in half widths: what a reader wants to see at a glance.
            let off = (comparison.simulated - comparison.exact) / comparison.half_width;
            table.push([
                number(run.load),
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
