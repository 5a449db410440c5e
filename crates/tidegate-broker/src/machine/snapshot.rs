//! A shard's state as plain numbers.
//!
//! The admin API serves these as they are; nsqd's `/stats` is made from them. Counters only grow; rates are for the
//! reader to derive. Delays are over the last ten seconds or so.

use serde::Serialize;

/// Everything a shard knows about itself.
#[derive(Clone, Default, Debug, Serialize)]
pub struct ShardSnapshot {
    /// Number of the shard.
    pub shard: usize,
    /// Its topics, in no order.
    pub topics: Vec<TopicSnapshot>,
    /// Connections that have published, when clients were asked for.
    pub producers: Vec<ClientSnapshot>,
    /// Open connections.
    pub connections: u64,
    /// Set while the log cannot be written: the last error.
    pub log_error: Option<String>,
}

/// A topic's numbers.
#[derive(Clone, Default, Debug, Serialize)]
pub struct TopicSnapshot {
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Its contract, if it has one.
    pub limit: Option<LimitSnapshot>,
    /// Messages that publishers sent, refused ones included.
    pub offered_total: u64,
    /// Their bodies' bytes.
    pub offered_bytes_total: u64,
    /// Messages that passed the contract.
    pub admitted_total: u64,
    /// Their bodies' bytes.
    pub admitted_bytes_total: u64,
    /// Messages that waited for a token.
    pub delayed_total: u64,
    /// Messages refused by the contract.
    pub refused_total: u64,
    /// Messages that a contract in shadow mode would have delayed or refused.
    pub shadow_total: u64,
    /// Messages dropped by the queue's policy at its bound.
    pub dropped_total: u64,
    /// Messages waiting for a token now.
    pub waiting: u64,
    /// Their bodies' bytes.
    pub waiting_bytes: u64,
    /// Connections held back because the line or queue is full.
    pub blocked_publishers: u64,
    /// Shards beside the topic's own on which a share of its limit is at work.
    pub lanes: u64,
    /// From arrival to the token.
    pub access_delay_us: DelaySnapshot,
    /// Messages waiting in the topic, memory and log together.
    pub depth: u64,
    /// Those of them in the log.
    pub backend_depth: u64,
    /// Bytes of the topic's messages in memory.
    pub memory_bytes: u64,
    /// As in its channels, of all of them together.
    pub e2e_count: u64,
    /// As in its channels, of all of them together; empty without a channel.
    pub e2e_percentiles_ns: Vec<u64>,
    /// Its channels, in order of name.
    pub channels: Vec<ChannelSnapshot>,
}

/// A channel's numbers.
#[derive(Clone, Default, Debug, Serialize)]
pub struct ChannelSnapshot {
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Its contract, if it has one.
    pub limit: Option<LimitSnapshot>,
    /// Messages that ever entered it.
    pub message_total: u64,
    /// Deliveries, repeated ones included.
    pub delivered_total: u64,
    /// Messages finished.
    pub finished_total: u64,
    /// Messages requeued by clients.
    pub requeued_total: u64,
    /// Messages whose client let them time out.
    pub timed_out_total: u64,
    /// Messages dropped by the queue's policy at its bound.
    pub dropped_total: u64,
    /// Messages that a contract in shadow mode would have delayed.
    pub shadow_total: u64,
    /// Messages waiting, memory and log together.
    pub depth: u64,
    /// Those of them in the log.
    pub backend_depth: u64,
    /// Delivered and unanswered.
    pub in_flight: u64,
    /// Waiting for their time.
    pub deferred: u64,
    /// Subscribers.
    pub client_count: u64,
    /// From entering the channel to the token of its contract.
    pub access_delay_us: DelaySnapshot,
    /// From arrival at the broker to FIN.
    pub end_to_end_us: DelaySnapshot,
    /// Messages finished within nsqd's `-e2e-processing-latency-window-time`, if quantiles of it are asked for.
    pub e2e_count: u64,
    /// End-to-end quantiles over that window that nsqd's `-e2e-processing-latency-percentile` asked for, in ns, in that
    /// order.
    pub e2e_percentiles_ns: Vec<u64>,
    /// The subscribers, when asked for.
    pub clients: Vec<ClientSnapshot>,
}

/// A contract and its bucket.
#[derive(Clone, Default, Debug, Serialize)]
pub struct LimitSnapshot {
    /// Tokens per second.
    pub rate_per_s: f64,
    /// Depth of the bucket.
    pub burst: u64,
    /// `messages` or `bytes`.
    pub unit: &'static str,
    /// `wait` or `refuse`.
    pub discipline: &'static str,
    /// `enforce` or `shadow`.
    pub mode: &'static str,
    /// `file`, `admin`, or `part` where nobody set one and the part makes it.
    pub source: &'static str,
    /// Tokens in the bucket now.
    pub tokens: f64,
    /// In mode `shadow`: what discipline `wait` would do to messages.
    pub shadow: Option<ShadowSnapshot>,
    /// The node's part of it, which rules the bucket.
    pub part: Option<PartSnapshot>,
}

/// A node's part of a topic's limit.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct PartSnapshot {
    /// Tokens per second in force.
    pub rate_per_s: f64,
    /// Depth in force.
    pub burst: u64,
    /// Of the order that it came with.
    pub revision: u64,
    /// Until its lease ends, rounded down; `None` if it has ended.
    pub lapses_in_ms: Option<u64>,
    /// What holds then: `local`, `open` or `closed`.
    pub on_lapse: &'static str,
}

/// The line that a contract in shadow mode would form.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct ShadowSnapshot {
    /// How long messages would wait for tokens. `shadow_total` counts those that would wait at all.
    pub delay_us: DelaySnapshot,
    /// Tokens' worth of messages that would be in line now.
    pub line: u64,
}

/// Quantiles of a delay, in microseconds.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct DelaySnapshot {
    /// Messages counted.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// A connection's numbers.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a connection")]
#[derive(Clone, Default, Debug, Serialize)]
pub struct ClientSnapshot {
    /// As it said in IDENTIFY, or the host part of its address.
    pub client_id: String,
    /// As it said in IDENTIFY, or its address.
    pub hostname: String,
    /// `V2`.
    pub version: &'static str,
    /// `address:port`.
    pub remote_address: String,
    /// nsqd's state number: 0 init, 1 disconnected, 2 connected, 3 subscribed, 4 closing.
    pub state: u8,
    /// RDY.
    pub ready_count: i64,
    /// Unanswered deliveries.
    pub in_flight_count: i64,
    /// Deliveries.
    pub message_count: u64,
    /// FINs.
    pub finish_count: u64,
    /// REQs.
    pub requeue_count: u64,
    /// Unix time of the connection, s.
    pub connect_ts: i64,
    /// SAMPLE rate, percent; 0 is all.
    pub sample_rate: i32,
    /// Compression.
    pub deflate: bool,
    /// Compression.
    pub snappy: bool,
    /// As it said in IDENTIFY.
    pub user_agent: String,
    /// Published messages by topic.
    pub pub_counts: Vec<(String, u64)>,
    /// Whether AUTH succeeded.
    pub authed: bool,
    /// From the AUTH server.
    pub auth_identity: String,
    /// From the AUTH server.
    pub auth_identity_url: String,
    /// Encrypted.
    pub tls: bool,
    /// e.g. `TLS_AES_128_GCM_SHA256`, empty without TLS.
    pub tls_cipher_suite: String,
    /// e.g. `TLS1.3`, empty without TLS.
    pub tls_version: String,
    /// ALPN.
    pub tls_negotiated_protocol: String,
    /// ALPN was mutual.
    pub tls_negotiated_protocol_is_mutual: bool,
}
