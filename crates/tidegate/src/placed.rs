//! A placed topic in words and a table, as `tidegate place` and `tidegate explain` show it.

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use crate::admin_client::AdminClient;
use crate::failure::Failure;
use crate::output::{self, Table, figure};

/// Where control is looked for if nothing is said.
pub(crate) const CONTROL: &str = "127.0.0.1:4190";

/// Where the running control is.
#[derive(Debug, Args)]
pub(crate) struct ControlAt {
    /// The admin API of a running control
    #[arg(long, value_name = "ADDRESS:PORT", default_value = CONTROL, value_parser = crate::admin_client::authority)]
    pub(crate) control: String,
}

/// The part of control's state that a person reads.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Placed {
    pub(crate) name: String,
    limit: Limit,
    slo: String,
    slo_us: f64,
    principles: String,
    pub(crate) phase: String,
    pub(crate) headline: String,
    words: Vec<String>,
    events: Vec<String>,
    publishers: u32,
    offered_per_s: f64,
    pub(crate) missing_per_s: f64,
    predicted: Option<Predicted>,
    measured: Measured,
    pub(crate) parts: Vec<Part>,
    rounds: Vec<u32>,
    planned_in_s: Option<f64>,
}

impl Default for Placed {
    fn default() -> Self {
        Self {
            name: String::new(),
            limit: Limit::default(),
            slo: String::new(),
            slo_us: f64::INFINITY,
            principles: String::new(),
            phase: String::new(),
            headline: String::new(),
            words: Vec::new(),
            events: Vec::new(),
            publishers: 0,
            offered_per_s: 0.0,
            missing_per_s: 0.0,
            predicted: None,
            measured: Measured::default(),
            parts: Vec::new(),
            rounds: Vec::new(),
            planned_in_s: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Limit {
    rate: String,
    burst: u64,
    unit: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Predicted {
    split: Access,
    single: Access,
    penalty_us_p99: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Access {
    access_us_p99: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Measured {
    messages: u64,
    share_over: f64,
    delay_us_p99: f64,
    access_us_p99: f64,
}

/// A broker's part.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Part {
    node: String,
    state: String,
    publishers: u32,
    share: f64,
    limit_rate_per_s: f64,
    limit_burst: u64,
    in_force: bool,
    measured: Measured,
    predicted: Option<Access>,
    missing: Vec<String>,
    error: Option<String>,
}

/// The state of `topic` as control tells it, and as a person reads it; `None` if control does not know the topic.
pub(crate) fn ask(client: &AdminClient, topic: &str) -> Result<Option<(Value, Placed)>, Failure> {
    let mut state = client.ask(Method::GET, "/api/v1/control", None)?;
    let found = state["topics"].as_array_mut().and_then(|topics| topics.iter_mut().find(|one| one["name"] == topic));
    let Some(found) = found else { return Ok(None) };
    let value = found.take();
    let placed = serde_json::from_value(value.clone()).map_err(|error| {
        Failure::new(format!("{} is no control that this version knows", client.address)).because(error)
    })?;
    Ok(Some((value, placed)))
}

/// Microseconds as milliseconds; a dash if nothing was measured.
fn ms(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| figure(us / 1e3))
}

impl Measured {
    fn delay_us(self) -> Option<f64> {
        (self.messages > 0).then_some(self.delay_us_p99)
    }

    fn access_us(self) -> Option<f64> {
        (self.messages > 0).then_some(self.access_us_p99)
    }
}

impl Placed {
    /// Whether what was measured last misses the objective.
    fn misses_slo(&self) -> bool {
        self.measured.messages > 0 && self.measured.delay_us_p99 > self.slo_us
    }

    /// The decision, its reasons and the parts.
    pub(crate) fn show(&self) -> Result<(), Failure> {
        let Limit { rate, burst, unit } = &self.limit;
        output::line(format_args!("{}: {}", self.name, self.headline))?;
        output::line(format_args!("limit    {rate} burst {burst} {unit}, {}, by {}", self.slo, self.principles))?;
        output::line(format_args!("sent     {}/s by {} publishers", figure(self.offered_per_s), self.publishers))?;
        for word in &self.words {
            output::line(format_args!("because  {word}"))?;
        }
        if let (false, Some(seconds)) = (self.rounds.is_empty(), self.planned_in_s) {
            let rounds: Vec<String> = self.rounds.iter().map(ToString::to_string).collect();
            output::line(format_args!("planned  in {} s, rounds {}", figure(seconds), rounds.join("+")))?;
        }
        let Measured { messages, share_over, delay_us_p99, access_us_p99 } = self.measured;
        if messages == 0 {
            output::line("p99      no message was finished in the last seconds")?;
        } else {
            output::line(format_args!(
                "p99      {} ms; waiting for tokens alone {} ms; {} % of {messages} messages beyond the objective{}",
                figure(delay_us_p99 / 1e3),
                figure(access_us_p99 / 1e3),
                figure(100.0 * share_over),
                if self.misses_slo() { ", which is missed" } else { "" },
            ))?;
        }
        if let Some(predicted) = &self.predicted {
            output::line(format_args!(
                "theory   p99 of waiting for tokens {} ms in these parts, {} ms in one bucket: the split costs {} ms",
                figure(predicted.split.access_us_p99 / 1e3),
                figure(predicted.single.access_us_p99 / 1e3),
                figure(predicted.penalty_us_p99 / 1e3),
            ))?;
        }
        if let Some(event) = self.events.last() {
            output::line(format_args!("lately   {event}"))?;
        }
        if self.parts.is_empty() {
            return Ok(());
        }
        output::line("")?;
        self.table().print()?;
        for part in &self.parts {
            if !part.missing.is_empty() {
                output::line(format_args!("{} has no consumer of {}", part.node, part.missing.join(", ")))?;
            }
            if let Some(error) = &part.error {
                output::line(format_args!("{}: {error}", part.node))?;
            }
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            "broker",
            "publishers",
            "share %",
            "rate",
            "burst",
            "p99 ms",
            "tokens p99 ms",
            "theory ms",
            "beyond %",
            "state",
        ]);
        for part in &self.parts {
            table.row([
                part.node.clone(),
                part.publishers.to_string(),
                figure(100.0 * part.share),
                output::rate(part.limit_rate_per_s),
                part.limit_burst.to_string(),
                ms(part.measured.delay_us()),
                ms(part.measured.access_us()),
                ms(part.predicted.map(|access| access.access_us_p99)),
                figure(100.0 * part.measured.share_over),
                if part.in_force { part.state.clone() } else { format!("{}, not in force", part.state) },
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_topic_is_read_from_what_control_tells() {
        let placed: Placed = serde_json::from_value(json!({
            "name": "orders", "phase": "stands", "headline": "two brokers", "slo_us": 1_000.0,
            "measured": {"messages": 9, "delay_us_p99": 1_500.0},
            "parts": [{"node": "a", "state": "ready", "share": 0.5, "limit_rate_per_s": 5_500.0, "limit_burst": 13,
                "in_force": true}],
            "a later release": 1,
        }))
        .unwrap();
        assert!(placed.misses_slo());
        let table = placed.table().to_string();
        assert!(table.lines().nth(1).unwrap().starts_with("a                0     50.0  5500/s     13"), "{table}");
        assert_eq!(ms(None), "-");
    }
}
