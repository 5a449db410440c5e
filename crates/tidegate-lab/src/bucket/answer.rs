//! What comes out.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rate};

use crate::table::{Table, number};

/// How an answer was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Computed: exact.
    Theory,
    /// The production bucket in virtual time.
    Simulation,
}

/// The access delays of messages: how long they wait for tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BucketAnswer {
    /// How it was found.
    pub method: Method,
    /// Messages for each token; absent for a list.
    pub load: Option<f64>,
    /// The bucket's parts.
    pub parts: Vec<Part>,
    /// Messages counted; absent where theory speaks of all there could be.
    pub messages: Option<u64>,
    /// The share of messages that wait at all.
    pub share_delayed: f64,
    /// The truth is in between, with `confidence`; absent where the value is exact, or the run too short to tell.
    pub share_delayed_interval: Option<[f64; 2]>,
    /// The mean delay, over all messages.
    pub delay_us_mean: f64,
    /// As for the share.
    pub delay_us_mean_interval: Option<[f64; 2]>,
    /// Half of all messages wait no longer.
    pub delay_us_p50: f64,
    /// Nine of ten.
    pub delay_us_p90: f64,
    /// 19 of 20.
    pub delay_us_p95: f64,
    /// 99 of 100.
    pub delay_us_p99: f64,
    /// 999 of 1,000.
    pub delay_us_p999: f64,
    /// The longest; absent where there is none.
    pub delay_us_max: Option<f64>,
    /// How likely each interval holds the truth.
    pub confidence: f64,
    /// Each message's delay, in order of arrival, for a list.
    pub delays: Option<Vec<MessageDelay>>,
}

/// One part of the bucket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Its tokens per second.
    pub rate: Rate,
    /// Its depth.
    pub burst: u64,
    /// The share of messages that came to it.
    pub message_share: f64,
}

/// One message's way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MessageDelay {
    /// When it arrived.
    pub arrival_ns: Instant,
    /// At which part, from 0.
    pub part: usize,
    /// How long it waited.
    pub delay_us: f64,
}

impl fmt::Display for BucketAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Table::new(["part", "rate", "burst", "share of messages"]);
        for (i, part) in self.parts.iter().enumerate() {
            parts.push([
                (i + 1).to_string(),
                part.rate.to_string(),
                part.burst.to_string(),
                number(part.message_share),
            ]);
        }
        writeln!(f, "{parts}")?;
        let mut results = Table::new(["", "value", "uncertainty"]);
        let delay_us_mean = plus_minus(self.delay_us_mean_interval, self.confidence);
        results.push(["mean delay, us".to_owned(), number(self.delay_us_mean), delay_us_mean]);
        let quantiles = [
            ("p50 delay, us", Some(self.delay_us_p50)),
            ("p90 delay, us", Some(self.delay_us_p90)),
            ("p95 delay, us", Some(self.delay_us_p95)),
            ("p99 delay, us", Some(self.delay_us_p99)),
            ("p99.9 delay, us", Some(self.delay_us_p999)),
            ("max delay, us", self.delay_us_max),
        ];
        for (name, value) in quantiles {
            results.push([name.to_owned(), value.map_or("unbounded".to_owned(), number), String::new()]);
        }
        let share = plus_minus(self.share_delayed_interval, self.confidence);
        results.push(["share delayed".to_owned(), number(self.share_delayed), share]);
        if let Some(load) = self.load {
            results.push(["load".to_owned(), number(load), String::new()]);
        }
        if let Some(messages) = self.messages {
            results.push(["messages".to_owned(), messages.to_string(), String::new()]);
        }
        write!(f, "{results}")?;
        let Some(delays) = &self.delays else { return Ok(()) };
        let mut table = Table::new(["arrival ns", "part", "delay us"]);
        for delay in delays {
            let (arrival, part) = (delay.arrival_ns.as_nanos(), delay.part + 1);
            table.push([arrival.to_string(), part.to_string(), exact_us(delay.delay_us)]);
        }
        write!(f, "\n{table}")
    }
}

fn plus_minus(interval: Option<[f64; 2]>, confidence: f64) -> String {
    interval.map_or_else(String::new, |[low, high]| {
        format!("± {} ({} %)", number((high - low) / 2.0), number(100.0 * confidence))
    })
}

/// To the nanosecond: a list is asked for to see each of them.
fn exact_us(us: f64) -> String {
    format!("{us:.3}")
}
