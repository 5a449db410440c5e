//! End-to-end latency of a topic whose bucket is split over 1 to n brokers: Fig. 6 of the paper.
//!
//! Publishers are shared out evenly, and so is the bucket, once and for all. At each broker a message waits for its
//! token in the production gate, then for one of the broker's cores; the rest of its way takes a constant time. What
//! distribution costs is then the difference to one broker with the whole bucket.
//! Source: SRTM, §6.1.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::limit::{Limit, split};
use tidegate_core::theory::md1::{self, AccessDelay, Bucket, Traffic};
use tidegate_core::{Instant, Rate, Rng};
use tidegate_sim::Distribution;
use tidegate_sim::host::Host;
use tidegate_sim::line::Line;
use tidegate_sim::workload::{Poisson, Publishers};

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::bucket::BucketError;
use crate::figure::{Figure, Scale, Series, Stroke};
use crate::statistics::{Spread, float, spread_of};
use crate::table::{Table, number};

/// A quick run takes this much less time and repeats.
const QUICK: u32 = 5;
/// Messages that a broker holds at most; a run of an overloaded one ends long before.
const QUEUE_MAX: usize = 10_000_000;

/// Settings of the kind `drl_penalty`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrlPenalty {
    /// Publishers of the topic, each a Poisson process.
    pub publishers: u32,
    /// Messages per second of each.
    pub publisher_rate: Rate,
    /// Messages in a batch.
    pub batch: u32,
    /// The bucket is split over 1 to so many brokers.
    pub brokers_max: u32,
    /// Simulated seconds of a run.
    pub seconds: u32,
    /// Runs with different random numbers, for the spread.
    pub repeats: u32,
    /// How the topic's bucket is found.
    pub profile: ProfileSettings,
    /// What a broker does with messages.
    pub broker: BrokerModel,
    /// What the paper says of it.
    pub paper: Paper,
}

/// How the topic's bucket is found: as the profile of an endless trace, which for Poisson publishers is computed.
///
/// Source: SRTM, §6 (Workload), and its footnote 8. A finite trace gives a burst that is now one more, now one less.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSettings {
    /// Tokens for each message of the mean rate.
    pub margin: f64,
    /// The share of messages that one whole bucket lets pass undelayed.
    pub undelayed: f64,
}

/// A broker as a queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerModel {
    /// Its cores.
    pub cores: usize,
    /// How long a message keeps one of them busy.
    pub service: Distribution,
    /// The rest of the way, from publisher to subscriber.
    pub way_us: f64,
}

/// What the paper's text states, to be compared with what is seen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The number of brokers with the least p99; from there on it rises.
    pub best_k: u32,
    /// The p99 with the most brokers, if it says.
    pub p99_ms_at_most_brokers: Option<f64>,
    /// One broker alone cannot keep up.
    #[serde(default)]
    pub one_is_overloaded: bool,
}

/// Latencies of one run, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    p50: f64,
    p95: f64,
    p99: f64,
    access_p99: f64,
}

/// All runs with one number of brokers, in milliseconds: mean and standard deviation of the runs' quantiles.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Row {
    brokers: u32,
    /// Of each broker's cores.
    utilisation: f64,
    p50_ms: [f64; 2],
    p95_ms: [f64; 2],
    p99_ms: [f64; 2],
    /// Waiting for tokens alone.
    access_ms_p99: [f64; 2],
    /// The same, computed.
    access_ms_p99_exact: f64,
}

impl DrlPenalty {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let within = |number: u32, max: u32| (1..=max).contains(&number);
        let key = |name: &str| format!("drl_penalty.{name}");
        let counts = [
            ("publishers", self.publishers, 1_000_000),
            ("batch", self.batch, 1_000),
            ("brokers_max", self.brokers_max, 100),
            ("seconds", self.seconds, 10_000),
            ("repeats", self.repeats, 1_000),
        ];
        for (name, found, max) in counts {
            Complaint::unless(within(found, max), &key(name), format!("{found} is not from 1 to {max}"))?;
        }
        Complaint::unless(self.publishers >= self.brokers_max, &key("publishers"), "fewer than there are brokers")?;
        Complaint::unless(self.repeats > 1, &key("repeats"), "one run has no spread: write 2 or more")?;
        Complaint::unless(!self.publisher_rate.is_zero(), &key("publisher_rate"), "publishers that send nothing")?;
        let ProfileSettings { margin, undelayed } = self.profile;
        Complaint::unless(margin > 1.0, &key("profile.margin"), format!("{margin} is not above 1"))?;
        let is_share = undelayed > 0.0 && undelayed < 1.0;
        Complaint::unless(is_share, &key("profile.undelayed"), format!("{undelayed} is not above 0 and below 1"))?;
        let BrokerModel { cores, service, way_us } = &self.broker;
        Complaint::unless((1..=1_000).contains(cores), &key("broker.cores"), format!("{cores} is not from 1 to 1000"))?;
        Complaint::unless(service.is_valid(), &key("broker.service"), "a span that is negative or not finite")?;
        let is_span = way_us.is_finite() && *way_us >= 0.0;
        Complaint::unless(is_span, &key("broker.way_us"), format!("{way_us} is no span"))
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, BucketError> {
        let (seconds, repeats) = match size {
            Size::Full => (self.seconds, self.repeats),
            Size::Quick => (self.seconds.div_ceil(QUICK), self.repeats.div_ceil(QUICK).max(2)),
        };
        let limit = self.limit()?;
        let mut rows = Vec::new();
        for brokers in 1..=self.brokers_max {
            let parts = split::evenly(limit, brokers as usize)?;
            let runs: Vec<Latencies> = (0..repeats)
                .map(|repeat| {
                    let stream = u64::from(brokers) * 1_000 + u64::from(repeat);
                    self.run_once(&parts, seconds, &mut Rng::stream(experiment.seed, stream))
                })
                .collect();
            rows.push(self.row(&parts, &runs)?);
        }
        Ok(Results {
            claims: self.claims(&rows),
            numbers: json!({ "rate": limit.rate, "burst": limit.burst, "brokers": rows }),
            table: table(&rows, limit),
            figure: Some(self.figure(&rows)),
            ..Results::default()
        })
    }

    /// The topic's contract.
    fn limit(&self) -> Result<Limit, BucketError> {
        let traffic = self.traffic();
        let rate = Rate::from_per_s_f64(traffic.rate_per_s * self.profile.margin);
        let burst = md1::smallest_burst(traffic, rate.as_per_s(), self.profile.undelayed)?;
        Ok(Limit::new(rate, burst))
    }

    fn traffic(&self) -> Traffic {
        Traffic { rate_per_s: self.share(self.publishers).rate.as_per_s(), batch: self.batch }
    }

    /// Some of the publishers.
    fn share(&self, count: u32) -> Publishers {
        let rate = Rate::from_per_s_f64(self.publisher_rate.as_per_s() * f64::from(count));
        Publishers { count, rate, batch: self.batch }
    }

    /// Publishers at broker `index` of `brokers`.
    fn publishers_at(&self, index: u32, brokers: u32) -> u32 {
        self.publishers / brokers + u32::from(index < self.publishers % brokers)
    }

    fn run_once(&self, parts: &[Limit], seconds: u32, rng: &mut Rng) -> Latencies {
        let end = Instant::from_nanos(u64::from(seconds) * 1_000_000_000);
        let histogram = || hdrhistogram::Histogram::<u64>::new(3).expect("three digits are within its range");
        let (mut latencies_ns, mut access_ns) = (histogram(), histogram());
        let brokers = u32::try_from(parts.len()).expect("a small number");
        for (index, part) in (0..).zip(parts) {
            let publishers = self.share(self.publishers_at(index, brokers));
            let mut line = Line::new(*part, Instant::ZERO);
            let mut host = Host::new(self.broker.cores, self.broker.service, QUEUE_MAX);
            let arrivals = Poisson::new(publishers, Instant::ZERO, rng.split());
            for arrival in arrivals.take_while(|arrival| arrival.at < end) {
                for _ in 0..arrival.messages {
                    let release = line.release(arrival.at);
                    let served = host.arrive(release, rng).expect("the queue holds a whole run");
                    latencies_ns.record(served.done.nanos_since(arrival.at)).expect("the histogram grows");
                    access_ns.record(release.nanos_since(arrival.at)).expect("the histogram grows");
                }
            }
        }
        let ms = |ns: u64| float(ns) / 1e6;
        let quantile_ms = |q| ms(latencies_ns.value_at_quantile(q)) + self.broker.way_us / 1e3;
        Latencies {
            p50: quantile_ms(0.5),
            p95: quantile_ms(0.95),
            p99: quantile_ms(0.99),
            access_p99: ms(access_ns.value_at_quantile(0.99)),
        }
    }

    fn row(&self, parts: &[Limit], runs: &[Latencies]) -> Result<Row, BucketError> {
        let brokers = u32::try_from(parts.len()).expect("a small number");
        let of = |latency: fn(&Latencies) -> f64| {
            let values: Vec<f64> = runs.iter().map(latency).collect();
            let Spread { mean, deviation } = spread_of(&values).expect("at least two runs");
            [mean, deviation]
        };
        let per_broker = self.traffic().rate_per_s / f64::from(brokers);
        let cores = float(self.broker.cores as u64);
        Ok(Row {
            brokers,
            utilisation: per_broker * self.broker.service.mean_us() / 1e6 / cores,
            p50_ms: of(|run| run.p50),
            p95_ms: of(|run| run.p95),
            p99_ms: of(|run| run.p99),
            access_ms_p99: of(|run| run.access_p99),
            access_ms_p99_exact: self.exact(parts)?.quantile_s(0.99) * 1e3,
        })
    }

    fn exact(&self, parts: &[Limit]) -> Result<AccessDelay, BucketError> {
        let bucket = |part: &Limit| Bucket { rate_per_s: part.rate.as_per_s(), burst: float(part.burst) };
        Ok(AccessDelay::split(self.traffic(), parts.iter().map(bucket).collect())?)
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let p99_ms: Vec<f64> = rows.iter().map(|row| row.p99_ms[0]).collect();
        let seen = p99_ms.iter().map(|ms| number(*ms)).collect::<Vec<_>>().join(", ") + " ms";
        let best = p99_ms.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(index, _)| index);
        let mut claims = vec![
            Claim {
                claim: format!("the p99 is least with {} of the brokers", self.paper.best_k),
                held: best + 1 == self.paper.best_k as usize,
                seen: seen.clone(),
            },
            Claim { claim: "from there on it rises".to_owned(), held: p99_ms[best..].is_sorted(), seen },
        ];
        if self.paper.one_is_overloaded {
            let [first, .., last] = &p99_ms[..] else { return claims };
            claims.push(Claim {
                claim: "one broker alone is overloaded: a tail longer than any split causes".to_owned(),
                held: rows[0].utilisation >= 1.0 && first > last,
                seen: format!("{} ms at utilisation {}", number(*first), number(rows[0].utilisation)),
            });
        }
        if let (Some(paper_ms), Some(last)) = (self.paper.p99_ms_at_most_brokers, p99_ms.last()) {
            claims.push(Claim {
                claim: format!("with {} brokers the p99 is of the order of {paper_ms} ms", rows.len()),
                held: (paper_ms / 2.0..paper_ms * 2.0).contains(last),
                seen: format!("{} ms", number(*last)),
            });
        }
        claims
    }

    fn figure(&self, rows: &[Row]) -> Figure {
        let line = |name: &str, stroke, y: fn(&Row) -> [f64; 2]| Series {
            name: name.to_owned(),
            points: rows
                .iter()
                .map(|row| {
                    let [ms, sd] = y(row);
                    [f64::from(row.brokers), ms, sd]
                })
                .collect(),
            stroke,
        };
        Figure {
            title: format!("{} publishers of {}, batches of {}", self.publishers, self.publisher_rate, self.batch),
            x_label: "brokers that share the topic and its bucket".to_owned(),
            y_label: "end-to-end latency, ms".to_owned(),
            y_scale: Scale::Log,
            series: vec![
                line("p50", Stroke::Solid, |row| row.p50_ms),
                line("p95", Stroke::Solid, |row| row.p95_ms),
                line("p99", Stroke::Solid, |row| row.p99_ms),
                line("p99 of the access delay alone, exact", Stroke::Dashed, |row| [row.access_ms_p99_exact, 0.0]),
            ],
        }
    }
}

fn table(rows: &[Row], limit: Limit) -> Table {
    let bucket = format!("brokers ({}, {})", limit.rate, limit.burst);
    let header = [&bucket, "utilisation", "p50 ms", "sd", "p95 ms", "sd", "p99 ms", "sd", "access p99 ms", "exact"];
    let mut table = Table::new(header);
    for row in rows {
        let [p50, p95, p99] = [row.p50_ms, row.p95_ms, row.p99_ms].map(|pair| pair.map(number));
        let [p50, p50_sd] = p50;
        let [p95, p95_sd] = p95;
        let [p99, p99_sd] = p99;
        let (access, exact) = (number(row.access_ms_p99[0]), number(row.access_ms_p99_exact));
        let (brokers, utilisation) = (row.brokers.to_string(), number(row.utilisation));
        table.push([brokers, utilisation, p50, p50_sd, p95, p95_sd, p99, p99_sd, access, exact]);
    }
    table
}
