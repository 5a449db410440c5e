//! `/stats` in nsqd's shape, made from the shards' snapshots.
//!
//! Field names, their order, and when a list is `null` are nsqd's: nsqadmin and `nsq_stat` read them.

use std::cmp::Reverse;

use serde::Serialize;

use crate::machine::snapshot::{ChannelSnapshot, ClientSnapshot, ShardSnapshot, TopicSnapshot};

/// What `/stats` shows of one moment.
pub(super) struct Stats {
    /// In order of name; `None` if one topic was asked for and does not exist.
    pub(super) topics: Option<Vec<TopicSnapshot>>,
    /// Connections that have published, newest last.
    pub(super) producers: Vec<ClientSnapshot>,
    /// `OK`, or what is wrong.
    pub(super) health: String,
    /// Unix time, s.
    pub(super) start_time: i64,
    /// Bytes of the process in memory, if they were asked for.
    pub(super) resident_bytes: Option<u64>,
    /// The quantiles of end-to-end latency that the configuration asks for.
    pub(super) quantiles: Vec<f64>,
    /// Whether each client was asked for.
    pub(super) clients: bool,
}

/// `OK`, or the first error of any shard's log, as `/ping` and `/stats` say it.
pub(super) fn health<'a>(shards: impl IntoIterator<Item = &'a ShardSnapshot>) -> Result<String, String> {
    let error = shards.into_iter().find_map(|shard| shard.log_error.as_ref());
    error.map_or_else(|| Ok("OK".to_owned()), |error| Err(format!("NOK - {error}")))
}

/// The topics of all shards in order of name, and their producers.
pub(super) fn merge(shards: Vec<ShardSnapshot>) -> (Vec<TopicSnapshot>, Vec<ClientSnapshot>) {
    let (mut topics, mut producers) = (Vec::new(), Vec::new());
    for shard in shards {
        topics.extend(shard.topics);
        producers.extend(shard.producers);
    }
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    producers.sort_by(|a, b| (a.connect_ts, &a.remote_address).cmp(&(b.connect_ts, &b.remote_address)));
    (topics, producers)
}

/// Messages that the topic took, those included that wait for a token: the sender of each was told OK.
pub(in crate::io) fn accepted(topic: &TopicSnapshot) -> u64 {
    topic.admitted_total + topic.waiting
}

/// The bytes of their bodies.
pub(in crate::io) fn accepted_bytes(topic: &TopicSnapshot) -> u64 {
    topic.admitted_bytes_total + topic.waiting_bytes
}

/// Messages that the topic has not given to its channels, those included that wait for a token.
pub(in crate::io) fn depth(topic: &TopicSnapshot) -> u64 {
    topic.depth + topic.waiting
}

/// End-to-end latency of a channel or topic.
#[derive(Serialize)]
pub(super) struct Latency {
    count: u64,
    pub(super) percentiles: Option<Vec<Percentile>>,
}

#[derive(Serialize)]
pub(super) struct Percentile {
    quantile: f64,
    /// Nanoseconds.
    pub(super) value: u64,
}

impl Latency {
    pub(super) fn of_channel(channel: &ChannelSnapshot, quantiles: &[f64]) -> Self {
        Self::new(channel.e2e_count, quantiles, &channel.e2e_percentiles_ns)
    }

    /// Of all channels of the topic together; nothing without a channel, as in nsqd.
    pub(super) fn of_topic(topic: &TopicSnapshot, quantiles: &[f64]) -> Self {
        let quantiles = if topic.channels.is_empty() { &[] } else { quantiles };
        Self::new(topic.e2e_count, quantiles, &topic.e2e_percentiles_ns)
    }

    fn new(count: u64, quantiles: &[f64], values: &[u64]) -> Self {
        if quantiles.is_empty() {
            return Self { count: 0, percentiles: None };
        }
        let values = values.iter().copied().chain(std::iter::repeat(0));
        let percentiles = quantiles.iter().zip(values).map(|(&quantile, value)| Percentile { quantile, value });
        Self { count, percentiles: Some(percentiles.collect()) }
    }
}

#[derive(Serialize)]
struct StatsJson<'a> {
    version: &'static str,
    health: &'a str,
    start_time: i64,
    topics: Option<Vec<TopicJson<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryJson>,
    producers: Option<Vec<ClientJson<'a>>>,
}

#[derive(Serialize)]
struct TopicJson<'a> {
    topic_name: &'a str,
    channels: Vec<ChannelJson<'a>>,
    depth: u64,
    backend_depth: u64,
    message_count: u64,
    message_bytes: u64,
    paused: bool,
    e2e_processing_latency: Latency,
}

#[derive(Serialize)]
struct ChannelJson<'a> {
    channel_name: &'a str,
    depth: u64,
    backend_depth: u64,
    in_flight_count: u64,
    deferred_count: u64,
    message_count: u64,
    requeue_count: u64,
    timeout_count: u64,
    client_count: u64,
    clients: Option<Vec<ClientJson<'a>>>,
    paused: bool,
    e2e_processing_latency: Latency,
}

/// A connection. Fields of AUTH and publishing are left out when they say nothing.
#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the shape is nsqd's")]
struct ClientJson<'a> {
    client_id: &'a str,
    hostname: &'a str,
    version: &'a str,
    remote_address: &'a str,
    state: u8,
    ready_count: i64,
    in_flight_count: i64,
    message_count: u64,
    finish_count: u64,
    requeue_count: u64,
    connect_ts: i64,
    sample_rate: i32,
    deflate: bool,
    snappy: bool,
    user_agent: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    authed: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    auth_identity: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    auth_identity_url: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub_counts: Vec<PubCountJson<'a>>,
    tls: bool,
    tls_cipher_suite: &'a str,
    tls_version: &'a str,
    tls_negotiated_protocol: &'a str,
    tls_negotiated_protocol_is_mutual: bool,
}

#[derive(Serialize)]
struct PubCountJson<'a> {
    topic: &'a str,
    count: u64,
}

/// Go's view of its heap. We have no collector, and show what the process holds as the heap in use.
#[derive(Clone, Default, Serialize)]
pub(super) struct MemoryJson {
    heap_objects: u64,
    heap_idle_bytes: u64,
    heap_in_use_bytes: u64,
    heap_released_bytes: u64,
    gc_pause_usec_100: u64,
    gc_pause_usec_99: u64,
    gc_pause_usec_95: u64,
    next_gc_bytes: u64,
    gc_total_runs: u64,
}

impl Stats {
    /// The text of `/stats?format=json`.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let topics = self.topics.as_ref().map(|topics| topics.iter().map(|topic| self.topic(topic)).collect());
        let producers: Vec<_> = self.producers.iter().map(ClientJson::from).collect();
        let stats = StatsJson {
            version: super::NSQD_VERSION,
            health: &self.health,
            start_time: self.start_time,
            topics,
            memory: self.resident_bytes.map(|bytes| MemoryJson { heap_in_use_bytes: bytes, ..MemoryJson::default() }),
            producers: (!producers.is_empty()).then_some(producers),
        };
        serde_json::to_vec(&stats).expect("numbers and strings are JSON")
    }

    fn topic<'a>(&self, topic: &'a TopicSnapshot) -> TopicJson<'a> {
        TopicJson {
            topic_name: &topic.name,
            channels: topic.channels.iter().map(|channel| self.channel(channel)).collect(),
            depth: depth(topic),
            backend_depth: topic.backend_depth,
            message_count: accepted(topic),
            message_bytes: accepted_bytes(topic),
            paused: topic.paused,
            e2e_processing_latency: Latency::of_topic(topic, &self.quantiles),
        }
    }

    fn channel<'a>(&self, channel: &'a ChannelSnapshot) -> ChannelJson<'a> {
        ChannelJson {
            channel_name: &channel.name,
            depth: channel.depth,
            backend_depth: channel.backend_depth,
            in_flight_count: channel.in_flight,
            deferred_count: channel.deferred,
            message_count: channel.message_total,
            requeue_count: channel.requeued_total,
            timeout_count: channel.timed_out_total,
            client_count: channel.client_count,
            clients: self.clients.then(|| channel.clients.iter().map(ClientJson::from).collect()),
            paused: channel.paused,
            e2e_processing_latency: Latency::of_channel(channel, &self.quantiles),
        }
    }
}

impl<'a> From<&'a ClientSnapshot> for ClientJson<'a> {
    fn from(client: &'a ClientSnapshot) -> Self {
        let mut pub_counts: Vec<_> =
            client.pub_counts.iter().map(|(topic, count)| PubCountJson { topic, count: *count }).collect();
        pub_counts.sort_by_key(|published| Reverse(published.count));
        Self {
            client_id: &client.client_id,
            hostname: &client.hostname,
            version: client.version,
            remote_address: &client.remote_address,
            state: client.state,
            ready_count: client.ready_count,
            in_flight_count: client.in_flight_count,
            message_count: client.message_count,
            finish_count: client.finish_count,
            requeue_count: client.requeue_count,
            connect_ts: client.connect_ts,
            sample_rate: client.sample_rate,
            deflate: client.deflate,
            snappy: client.snappy,
            user_agent: &client.user_agent,
            authed: client.authed,
            auth_identity: &client.auth_identity,
            auth_identity_url: &client.auth_identity_url,
            pub_counts,
            tls: client.tls,
            tls_cipher_suite: &client.tls_cipher_suite,
            tls_version: &client.tls_version,
            tls_negotiated_protocol: &client.tls_negotiated_protocol,
            tls_negotiated_protocol_is_mutual: client.tls_negotiated_protocol_is_mutual,
        }
    }
}
