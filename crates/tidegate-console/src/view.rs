//! What a page is shown: one row for each topic and channel, one entry for each broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::rates::Window;
use crate::snapshot::{BrokerSnapshot, Channel, Delay, Limit, Topic};

/// Rows shown at most, over all brokers; the first by broker and name. What is left out is counted.
pub(crate) const MAX_ROWS: usize = 5_000;

/// Which topic or channel of which broker. In this order channels follow their topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(crate) struct RowId {
    pub(crate) broker: Arc<str>,
    pub(crate) topic: Arc<str>,
    pub(crate) channel: Option<Arc<str>>,
}

/// The figures of a topic or channel, ready to be shown. Rates are per second.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) id: RowId,
    paused: bool,
    pub(crate) limit: Option<Limit>,
    /// Messages that came: from publishers for a topic, from its topic for a channel.
    pub(crate) offered_per_s: f64,
    /// Messages that passed: the topic's limit, or on to the channel's clients.
    pub(crate) admitted_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offered_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requeued_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out_per_s: Option<f64>,
    dropped_per_s: f64,
    /// Since the broker started; a page that tries a limit in shadow subtracts what it saw first.
    #[serde(skip_serializing_if = "Option::is_none")]
    delayed_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_total: Option<u64>,
    offered_total: u64,
    waiting: u64,
    blocked_publishers: u64,
    pub(crate) depth: u64,
    backend_depth: u64,
    memory_bytes: u64,
    /// A topic's is the sum over its channels, like `deferred` and `clients`.
    pub(crate) in_flight: u64,
    deferred: u64,
    clients: u64,
    pub(crate) access_delay_us: Delay,
    /// A topic's is that of its slowest channel.
    pub(crate) end_to_end_us: Delay,
}

/// What is known of a broker as a whole.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Broker {
    pub(crate) name: Arc<str>,
    /// Why the newest poll failed; its rows are then missing.
    pub(crate) error: Option<String>,
    /// The broker's clock; zero while it is down.
    pub(crate) now_ms: u64,
    version: String,
    node: String,
    durability: String,
    uptime_s: f64,
    connections: u64,
    memory_bytes: u64,
    warnings: Vec<String>,
}

impl Broker {
    pub(crate) fn up(name: Arc<str>, snapshot: &BrokerSnapshot) -> Self {
        Self {
            name,
            error: None,
            now_ms: snapshot.now_ms,
            version: snapshot.version.clone(),
            node: snapshot.node.clone(),
            durability: snapshot.durability.clone(),
            uptime_s: snapshot.uptime_s.floor(),
            connections: snapshot.connections,
            memory_bytes: snapshot.memory_bytes,
            warnings: snapshot.warnings.clone(),
        }
    }

    pub(crate) fn down(name: Arc<str>, error: String) -> Self {
        Self { error: Some(error), ..Self::up(name, &BrokerSnapshot::default()) }
    }
}

/// Turns snapshots into rows; remembers each row's counters for its rates.
#[derive(Default, Debug)]
pub(crate) struct Ledger {
    windows: BTreeMap<RowId, Window<6>>,
}

impl Ledger {
    /// The rows of one round of polls, in order, at most [`MAX_ROWS`], and how many were left out.
    ///
    /// Counters of rows that are not in `snapshots` are forgotten.
    pub(crate) fn rows(&mut self, snapshots: &[(Arc<str>, BrokerSnapshot)]) -> (Vec<Row>, usize) {
        let mut windows = BTreeMap::new();
        let mut rows = Vec::new();
        let mut left_out = 0;
        for (broker, snapshot) in snapshots {
            for topic in &snapshot.topics {
                let topic_id = RowId { broker: broker.clone(), topic: topic.name.as_str().into(), channel: None };
                let channels = topic.channels.iter().map(|channel| {
                    let id = RowId { channel: Some(channel.name.as_str().into()), ..topic_id.clone() };
                    (id, channel_counters(channel), Figures::Channel(channel))
                });
                let own = (topic_id.clone(), topic_counters(topic), Figures::Topic(topic));
                for (id, counters, figures) in std::iter::once(own).chain(channels) {
                    if rows.len() == MAX_ROWS {
                        left_out += 1;
                        continue;
                    }
                    let mut window = self.windows.remove(&id).unwrap_or_default();
                    window.push(snapshot.now_ms, counters);
                    let per_s = window.per_s().map(round);
                    rows.push(match figures {
                        Figures::Topic(topic) => topic_row(id.clone(), topic, per_s),
                        Figures::Channel(channel) => channel_row(id.clone(), channel, per_s),
                    });
                    windows.insert(id, window);
                }
            }
        }
        self.windows = windows;
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        (rows, left_out)
    }
}

enum Figures<'a> {
    Topic(&'a Topic),
    Channel(&'a Channel),
}

fn topic_counters(topic: &Topic) -> [u64; 6] {
    [
        topic.offered_total,
        topic.admitted_total,
        topic.dropped_total,
        topic.offered_bytes_total,
        topic.admitted_bytes_total,
        topic.refused_total,
    ]
}

fn channel_counters(channel: &Channel) -> [u64; 6] {
    [
        channel.message_total,
        channel.delivered_total,
        channel.dropped_total,
        channel.finished_total,
        channel.requeued_total,
        channel.timed_out_total,
    ]
}

fn topic_row(id: RowId, topic: &Topic, per_s: [f64; 6]) -> Row {
    let [offered, admitted, dropped, offered_bytes, admitted_bytes, refused] = per_s;
    let sum = |of: fn(&Channel) -> u64| topic.channels.iter().map(of).sum();
    let slowest = topic.channels.iter().map(|channel| channel.end_to_end_us);
    Row {
        id,
        paused: topic.paused,
        limit: topic.limit.as_ref().map(rounded_limit),
        offered_per_s: offered,
        admitted_per_s: admitted,
        offered_bytes_per_s: Some(offered_bytes),
        admitted_bytes_per_s: Some(admitted_bytes),
        refused_per_s: Some(refused),
        finished_per_s: None,
        requeued_per_s: None,
        timed_out_per_s: None,
        dropped_per_s: dropped,
        delayed_total: Some(topic.delayed_total),
        shadow_total: Some(topic.shadow_total),
        offered_total: topic.offered_total,
        waiting: topic.waiting,
        blocked_publishers: topic.blocked_publishers,
        depth: topic.depth,
        backend_depth: topic.backend_depth,
        memory_bytes: topic.memory_bytes,
        in_flight: sum(|channel| channel.in_flight),
        deferred: sum(|channel| channel.deferred),
        clients: sum(|channel| channel.client_count),
        access_delay_us: rounded_delay(topic.access_delay_us),
        end_to_end_us: rounded_delay(slowest.max_by(|a, b| a.p99.total_cmp(&b.p99)).unwrap_or_default()),
    }
}

fn channel_row(id: RowId, channel: &Channel, per_s: [f64; 6]) -> Row {
    let [entered, delivered, dropped, finished, requeued, timed_out] = per_s;
    Row {
        id,
        paused: channel.paused,
        limit: channel.limit.as_ref().map(rounded_limit),
        offered_per_s: entered,
        admitted_per_s: delivered,
        offered_bytes_per_s: None,
        admitted_bytes_per_s: None,
        refused_per_s: None,
        finished_per_s: Some(finished),
        requeued_per_s: Some(requeued),
        timed_out_per_s: Some(timed_out),
        dropped_per_s: dropped,
        delayed_total: channel.delayed_total,
        shadow_total: channel.shadow_total,
        offered_total: channel.message_total,
        waiting: channel.waiting,
        blocked_publishers: 0,
        depth: channel.depth,
        backend_depth: channel.backend_depth,
        memory_bytes: 0,
        in_flight: channel.in_flight,
        deferred: channel.deferred,
        clients: channel.client_count,
        access_delay_us: rounded_delay(channel.access_delay_us),
        end_to_end_us: rounded_delay(channel.end_to_end_us),
    }
}

/// One decimal: an idle row then compares equal to itself, and the stream stays short.
fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

fn rounded_limit(limit: &Limit) -> Limit {
    Limit { tokens: round(limit.tokens), ..limit.clone() }
}

fn rounded_delay(delay: Delay) -> Delay {
    Delay { count: delay.count, p50: round(delay.p50), p99: round(delay.p99), p999: round(delay.p999) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(json: serde_json::Value) -> (Arc<str>, BrokerSnapshot) {
        ("b".into(), serde_json::from_value(json).expect("a snapshot"))
    }

    fn orders(now_ms: u64, offered: u64, admitted: u64) -> (Arc<str>, BrokerSnapshot) {
        snapshot(serde_json::json!({
            "now_ms": now_ms,
            "topics": [{
                "name": "orders", "offered_total": offered, "admitted_total": admitted, "depth": 7,
                "channels": [
                    {"name": "a", "in_flight": 2, "client_count": 1, "end_to_end_us": {"p50": 9.0, "p99": 10.0}},
                    {"name": "b", "in_flight": 3, "client_count": 4, "end_to_end_us": {"p50": 1.0, "p99": 20.0}}
                ]
            }]
        }))
    }

    #[test]
    fn rates_come_from_differences_of_counters() {
        let mut ledger = Ledger::default();
        ledger.rows(&[orders(1_000, 500, 400)]);
        let (rows, left_out) = ledger.rows(&[orders(1_500, 1_000, 600)]);
        assert_eq!((rows.len(), left_out), (3, 0));
        assert!((rows[0].offered_per_s - 1_000.0).abs() < 1e-9);
        assert!((rows[0].admitted_per_s - 400.0).abs() < 1e-9);
    }

    #[test]
    fn a_topic_sums_its_channels_and_shows_the_slowest() {
        let (rows, _) = Ledger::default().rows(&[orders(0, 0, 0)]);
        assert_eq!((rows[0].in_flight, rows[0].clients), (5, 5));
        assert!((rows[0].end_to_end_us.p99 - 20.0).abs() < 1e-9);
        assert!((rows[0].end_to_end_us.p50 - 1.0).abs() < 1e-9, "all quantiles are of one channel");
    }

    #[test]
    fn a_row_that_was_gone_for_a_round_starts_anew() {
        let mut ledger = Ledger::default();
        ledger.rows(&[orders(0, 0, 0)]);
        ledger.rows(&[snapshot(serde_json::json!({"now_ms": 250}))]);
        assert!(ledger.windows.is_empty());
        let (rows, _) = ledger.rows(&[orders(500, 1_000, 0)]);
        assert!(rows[0].offered_per_s.abs() < 1e-9);
    }

    #[test]
    fn rows_are_bounded_and_the_rest_is_counted() {
        let topics: Vec<_> = (0..MAX_ROWS + 3).map(|i| serde_json::json!({"name": format!("t{i}")})).collect();
        let mut ledger = Ledger::default();
        let (rows, left_out) = ledger.rows(&[snapshot(serde_json::json!({ "topics": topics }))]);
        assert_eq!((rows.len(), left_out, ledger.windows.len()), (MAX_ROWS, 3, MAX_ROWS));
    }
}
