//! `/metrics`: the broker's numbers for Prometheus.

use super::exposition::{Exposition, Kind, Labels};
use crate::machine::lending::{CircleSnapshot, FlowSnapshot, LendSnapshot, LendState};
use crate::machine::snapshot::{ChannelSnapshot, DelaySnapshot, LimitSnapshot, PartSnapshot, TopicSnapshot};

/// What a page is made from.
pub(super) struct Metrics<'a> {
    /// In order of name.
    pub(super) topics: &'a [TopicSnapshot],
    pub(super) connections: u64,
    /// Shards whose log cannot be written.
    pub(super) broken_logs: u64,
    pub(super) resident_bytes: u64,
    pub(super) uptime_s: f64,
    /// Series joined under `other` on earlier pages.
    pub(super) dropped_before: u64,
    /// The node takes no new publishers.
    pub(super) draining: bool,
    pub(super) lending: &'a LendSnapshot,
}

/// A metric: its name, its help, its kind and its value.
type Metric<S> = (&'static str, &'static str, Kind, fn(&S) -> u64);

const TOPIC: &[Metric<TopicSnapshot>] = &[
    ("tidegate_broker_offered_messages_total", "Messages that publishers sent.", Kind::Counter, |t| t.offered_total),
    ("tidegate_broker_offered_bytes_total", "Bytes of their bodies.", Kind::Counter, |t| t.offered_bytes_total),
    ("tidegate_broker_admitted_messages_total", "Messages past the limit.", Kind::Counter, |t| t.admitted_total),
    ("tidegate_broker_admitted_bytes_total", "Bytes of their bodies.", Kind::Counter, |t| t.admitted_bytes_total),
    ("tidegate_broker_waiting_messages", "Messages that wait for a token.", Kind::Gauge, |t| t.waiting),
    ("tidegate_broker_waiting_bytes", "Bytes of their bodies.", Kind::Gauge, |t| t.waiting_bytes),
    ("tidegate_broker_blocked_connections", "Publishers held back.", Kind::Gauge, |t| t.blocked_publishers),
    ("tidegate_broker_topic_depth_messages", "Messages in the topic.", Kind::Gauge, |t| t.depth),
    ("tidegate_broker_topic_backend_depth_messages", "Those on disk.", Kind::Gauge, |t| t.backend_depth),
    ("tidegate_broker_topic_memory_bytes", "Messages of the topic in memory.", Kind::Gauge, |t| t.memory_bytes),
    ("tidegate_broker_topic_paused_bool", "1 while the topic is paused.", Kind::Gauge, |t| t.paused.into()),
];

const CHANNEL: &[Metric<ChannelSnapshot>] = &[
    ("tidegate_broker_channel_messages_total", "Messages that entered.", Kind::Counter, |c| c.message_total),
    ("tidegate_broker_delivered_messages_total", "Deliveries.", Kind::Counter, |c| c.delivered_total),
    ("tidegate_broker_finished_messages_total", "Messages finished.", Kind::Counter, |c| c.finished_total),
    ("tidegate_broker_requeued_messages_total", "Messages requeued.", Kind::Counter, |c| c.requeued_total),
    ("tidegate_broker_timed_out_messages_total", "Messages timed out.", Kind::Counter, |c| c.timed_out_total),
    ("tidegate_broker_channel_dropped_messages_total", "Messages dropped.", Kind::Counter, |c| c.dropped_total),
    ("tidegate_broker_channel_shadow_messages_total", "Messages that a shadow limit met.", Kind::Counter, |c| {
        c.shadow_total
    }),
    ("tidegate_broker_channel_depth_messages", "Messages that wait.", Kind::Gauge, |c| c.depth),
    ("tidegate_broker_channel_backend_depth_messages", "Those on disk.", Kind::Gauge, |c| c.backend_depth),
    ("tidegate_broker_in_flight_messages", "Delivered and unanswered.", Kind::Gauge, |c| c.in_flight),
    ("tidegate_broker_deferred_messages", "Waiting for their time.", Kind::Gauge, |c| c.deferred),
    ("tidegate_broker_consumer_connections", "Subscribers.", Kind::Gauge, |c| c.client_count),
    ("tidegate_broker_channel_paused_bool", "1 while the channel is paused.", Kind::Gauge, |c| c.paused.into()),
];

type Count = fn(&TopicSnapshot) -> u64;
type Microseconds = fn(&DelaySnapshot) -> f64;

/// What a topic's limit made of the messages that were sent to it.
const DECISIONS: &[(&str, Count)] = &[
    ("allow", |t| t.admitted_total.saturating_sub(t.delayed_total)),
    ("delay", |t| t.delayed_total),
    ("refuse", |t| t.refused_total),
    ("shadow", |t| t.shadow_total),
    ("drop", |t| t.dropped_total),
];

const QUANTILES: &[(&str, Microseconds)] =
    &[("0.5", |d| d.p50), ("0.9", |d| d.p90), ("0.99", |d| d.p99), ("0.999", |d| d.p999), ("1", |d| d.max)];

impl Metrics<'_> {
    /// The page, and the series on it that were joined under `other`.
    pub(super) fn page(&self) -> (String, u64) {
        let mut page = Exposition::default();
        self.process(&mut page);
        for &(name, help, kind, value) in TOPIC {
            page.metric(name, help, kind, self.topics().map(|(labels, topic)| (labels, number(value(topic)))));
        }
        let decided = self.topics().flat_map(|(labels, topic)| {
            let closed = move |decision| Labels { closed: Some(("decision", decision)), ..labels };
            DECISIONS.iter().map(move |(decision, count)| (closed(decision), number(count(topic))))
        });
        page.metric("tidegate_broker_decisions_total", "Messages by what became of them.", Kind::Counter, decided);
        for &(name, help, kind, value) in CHANNEL {
            page.metric(name, help, kind, self.channels().map(|(labels, channel)| (labels, number(value(channel)))));
        }
        self.limits(&mut page);
        self.lends(&mut page);
        let own = self.topics().map(|(labels, topic)| (labels, &topic.access_delay_us));
        let name = "tidegate_broker_access_delay_seconds";
        delays(&mut page, name, "From arrival to the token, lately.", own);
        let own = self.limited().filter_map(|(labels, limit)| Some((labels, &limit.shadow.as_ref()?.delay_us)));
        let name = "tidegate_broker_shadow_delay_seconds";
        delays(&mut page, name, "What a shadow limit would delay, lately.", own);
        let own = self.channels().map(|(labels, channel)| (labels, &channel.end_to_end_us));
        let name = "tidegate_broker_end_to_end_delay_seconds";
        delays(&mut page, name, "From arrival to FIN, lately.", own);
        let dropped = page.dropped;
        let help = "Series joined under `other`, over all pages.";
        page.single("tidegate_series_dropped_total", help, Kind::Counter, number(self.dropped_before + dropped));
        (page.into_text(), dropped)
    }

    fn process(&self, page: &mut Exposition) {
        let version = Labels { closed: Some(("version", env!("CARGO_PKG_VERSION"))), ..Labels::default() };
        page.metric("tidegate_build_info", "The version that runs.", Kind::Gauge, [(version, 1.0)]);
        page.single("tidegate_broker_uptime_seconds", "Time since the start.", Kind::Gauge, self.uptime_s);
        let bytes = number(self.resident_bytes);
        page.single("tidegate_broker_memory_bytes", "The process in memory.", Kind::Gauge, bytes);
        let connections = number(self.connections);
        page.single("tidegate_broker_connections", "Open NSQ connections.", Kind::Gauge, connections);
        let draining = number(self.draining.into());
        page.single("tidegate_broker_draining_bool", "1 while new publishers are refused.", Kind::Gauge, draining);
        let help = "Shards whose message log cannot be written.";
        page.single("tidegate_broker_broken_logs", help, Kind::Gauge, number(self.broken_logs));
    }

    fn limits(&self, page: &mut Exposition) {
        type Value = fn(&LimitSnapshot) -> f64;
        type PartValue = fn(&PartSnapshot) -> Option<f64>;
        let metrics: [(&str, &str, Value); 3] = [
            ("tidegate_broker_tokens_available", "Tokens in the bucket.", |limit| limit.tokens),
            ("tidegate_broker_limit_tokens_per_second", "The limit's rate.", |limit| limit.rate_per_s),
            ("tidegate_broker_limit_burst_tokens", "The limit's burst.", |limit| number(limit.burst)),
        ];
        for (name, help, value) in metrics {
            let limited = self.limited().map(|(labels, limit)| (labels, value(limit)));
            page.metric(name, help, Kind::Gauge, limited);
        }
        let metrics: [(&str, &str, PartValue); 3] = [
            ("tidegate_broker_part_tokens_per_second", "The rate of the node's part.", |part| Some(part.rate_per_s)),
            ("tidegate_broker_part_burst_tokens", "Its burst.", |part| Some(number(part.burst))),
            ("tidegate_broker_part_lease_seconds", "Until its lease ends.", |part| {
                Some(number(part.lapses_in_ms?) / 1e3)
            }),
        ];
        for (name, help, value) in metrics {
            let parted = self.limited().filter_map(|(labels, limit)| Some((labels, value(limit.part.as_ref()?)?)));
            page.metric(name, help, Kind::Gauge, parted);
        }
        let line = |(labels, limit): (_, &LimitSnapshot)| Some((labels, number(limit.shadow.as_ref()?.line)));
        let help = "The line that a shadow limit would form.";
        page.metric("tidegate_broker_shadow_line_tokens", help, Kind::Gauge, self.limited().filter_map(line));
    }

    fn lends(&self, page: &mut Exposition) {
        type Depth = fn(&CircleSnapshot) -> u64;
        let frames =
            [("sent", self.lending.sent), ("received", self.lending.received), ("refused", self.lending.refused)];
        let frames =
            frames.map(|(way, count)| (Labels { closed: Some(("way", way)), ..Labels::default() }, number(count)));
        let help = "Datagrams of lending; refused ones were received, too.";
        page.metric("tidegate_broker_lend_frames_total", help, Kind::Counter, frames);
        let circles = || {
            let labels = |topic| Labels { topic: Some(topic), ..Labels::default() };
            self.lending.circles.iter().map(move |circle| (labels(circle.topic.as_str()), circle))
        };
        let metrics: [(&str, &str, Depth); 4] = [
            ("tidegate_broker_lends_bool", "1 while the topic lends to other nodes and borrows of them.", |circle| {
                u64::from(circle.state == LendState::Lends)
            }),
            ("tidegate_broker_lent_tokens", "Of the part's burst, what others have.", |circle| circle.position.lent),
            ("tidegate_broker_borrowed_tokens", "Of others' bursts, what the part has.", |circle| {
                circle.position.borrowed
            }),
            ("tidegate_broker_withheld_tokens", "Held back: an earlier run may have lent it.", |circle| {
                circle.position.withheld
            }),
        ];
        for (name, help, value) in metrics {
            page.metric(name, help, Kind::Gauge, circles().map(|(labels, circle)| (labels, number(value(circle)))));
        }
        let flows = circles().flat_map(|(labels, circle)| {
            let sum = |of: fn(&FlowSnapshot) -> u64| number(circle.flows.iter().map(of).sum());
            [("gave", sum(|flow| flow.gave)), ("got", sum(|flow| flow.got))]
                .map(|(way, tokens)| (Labels { closed: Some(("way", way)), ..labels }, tokens))
        });
        let help = "Tokens given to other nodes, and got of them, since the topic joined them.";
        page.metric("tidegate_broker_lend_tokens_total", help, Kind::Counter, flows);
    }

    fn limited(&self) -> impl Iterator<Item = (Labels<'_>, &LimitSnapshot)> {
        let topics = self.topics().map(|(labels, topic)| (labels, &topic.limit));
        let channels = self.channels().map(|(labels, channel)| (labels, &channel.limit));
        topics.chain(channels).filter_map(|(labels, limit)| Some((labels, limit.as_ref()?)))
    }

    fn topics(&self) -> impl Iterator<Item = (Labels<'_>, &TopicSnapshot)> {
        self.topics.iter().map(|topic| (Labels { topic: Some(&topic.name), ..Labels::default() }, topic))
    }

    fn channels(&self) -> impl Iterator<Item = (Labels<'_>, &ChannelSnapshot)> {
        self.topics().flat_map(|(labels, topic)| {
            topic.channels.iter().map(move |channel| (Labels { channel: Some(&channel.name), ..labels }, channel))
        })
    }
}

/// Quantiles of the delays that were seen lately; those that saw none are left out.
fn delays<'a>(
    page: &mut Exposition,
    name: &str,
    help: &str,
    delays: impl Iterator<Item = (Labels<'a>, &'a DelaySnapshot)>,
) {
    let seen = delays.filter(|(_, delay)| delay.count > 0).flat_map(|(labels, delay)| {
        let closed = move |quantile| Labels { closed: Some(("quantile", quantile)), ..labels };
        QUANTILES.iter().map(move |(quantile, us)| (closed(quantile), us(delay) / 1e6))
    });
    page.metric(name, help, Kind::Worst, seen);
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}
