//! A broker's admin API, as far as control uses it: what is sent and what is answered.
//!
//! What a broker leaves out is zero or empty, what it says beyond is ignored: control and broker may be of different
//! releases.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tidegate_core::Rate;

/// `GET /api/v1/node`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAnswer {
    /// What it calls itself.
    pub name: String,
    /// It takes no new publishers.
    pub draining: bool,
    /// Where publishers reach it, as it believes.
    pub nsq_address: String,
    /// Its shards, each a core.
    pub shards: u32,
    /// Messages per second that it takes, if it knows.
    pub mcap_per_s: Option<f64>,
    /// Where its shards take the datagrams of lending, by their numbers; empty if they take none.
    pub lend_addresses: Vec<SocketAddr>,
}

/// `GET /api/v1/parts`, of which only the clock is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClockAnswer {
    /// The node's monotonic clock, microseconds.
    pub now_us: u64,
}

/// `GET /api/v1/lending`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LendingAnswer {
    /// Datagrams that the node sent since it was started.
    pub frames_sent: u64,
    /// Topics whose tokens it lends, or is to lend.
    pub topics: Vec<LendingTopicAnswer>,
}

/// Lending of one topic.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LendingTopicAnswer {
    /// The topic.
    pub topic: String,
    /// `lends` once it has joined the others.
    pub state: String,
    /// Tokens that it holds back, since others may still have them.
    pub withheld: u64,
}

/// `GET /api/v1/publishers/{topic}?seconds=N&slo_us=M`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PublishersAnswer {
    /// The node's monotonic clock.
    pub now_us: u64,
    /// The last whole seconds, newest last.
    pub seconds: Vec<SecondAnswer>,
    /// Who publishes there, at most 65,536.
    pub publishers: Vec<PublisherAnswer>,
    /// The rest, summed.
    pub others: OthersAnswer,
    /// How long messages took.
    pub delay: DelayAnswer,
}

/// A whole second of a topic at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SecondAnswer {
    /// When it began, on the node's clock.
    pub start_us: u64,
    /// Messages that came.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The most that waited at one moment, in the unit of the limit.
    pub backlog_max: u64,
}

/// A publisher of a topic at a node.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PublisherAnswer {
    /// Its name.
    pub identity: String,
    /// The key that it sent.
    pub correlation: Option<String>,
    /// Its client id.
    pub client_id: String,
    /// Its host name.
    pub hostname: String,
    /// Messages within the window.
    pub messages: u64,
    /// Commands within the window.
    pub batches: u64,
    /// Messages per second, the mean over the window.
    pub rate_per_s: f64,
}

/// Publishers that are not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OthersAnswer {
    /// How many.
    pub publishers: u64,
    /// Their messages within the window.
    pub messages: u64,
}

/// Delays of a topic's messages at a node, over the window.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DelayAnswer {
    /// Messages that were finished.
    pub count: u64,
    /// Those beyond the objective.
    pub over_slo: u64,
    /// From arrival to FIN.
    pub e2e_p99_us: f64,
    /// Waiting for tokens.
    pub access_p99_us: f64,
}

/// `PUT /api/v1/parts`; `P` is a part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartsBody<P> {
    /// Fences older parts.
    pub revision: u64,
    /// How long they hold from their arrival.
    pub lease_ms: u64,
    /// Of the node's clock: later, the order is not obeyed.
    pub until_us: u64,
    /// `local`, `open` or `closed`.
    pub on_lapse: &'static str,
    /// The parts.
    pub parts: Vec<P>,
}

/// A node's part of a topic's limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PartBody<'a> {
    /// The topic.
    pub topic: &'a str,
    /// Tokens per second; a text, which is exact.
    pub rate_per_s: Rate,
    /// Depth in tokens.
    pub burst: u64,
    /// `messages` or `bytes`.
    pub unit: &'static str,
    /// How the burst is split among nodes that lend; `None`: the part is a static one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lend: Option<SplitBody<'a>>,
}

/// How a burst is split.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SplitBody<'a> {
    /// Greater than of any earlier split of the topic.
    pub generation: u64,
    /// The number of the node that is told.
    pub own: u16,
    /// All nodes with a part.
    pub nodes: Vec<SplitNodeBody<'a>>,
}

/// One node of a split.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SplitNodeBody<'a> {
    /// Its place among the nodes of the configuration, by name.
    pub number: u16,
    /// Its name.
    pub name: &'a str,
    /// Its share of the burst.
    pub burst: u64,
    /// Where its shards take datagrams.
    pub addresses: Vec<SocketAddr>,
}

/// Answer to `PUT /api/v1/parts`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PutAnswer {
    /// The parts that were ordered.
    pub in_force: Vec<PartAnswer>,
}

/// A part as it stands.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PartAnswer {
    /// Its topic.
    pub topic: String,
    /// How it lends: `left` if it has been in that split, and waits for another.
    pub lends: Option<String>,
}

/// `POST /api/v1/topics/{topic}/prepare`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PrepareBody<'a> {
    /// Each is created, and is to have a consumer.
    pub channels: &'a [String],
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PrepareAnswer {
    /// Every channel has a consumer, and the node takes publishers.
    pub ready: bool,
    /// Those that have none.
    pub missing: Vec<String>,
}

/// `POST /api/v1/publishers/{topic}/disconnect`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DisconnectBody {
    /// At most 1,000.
    pub identities: Vec<String>,
}
