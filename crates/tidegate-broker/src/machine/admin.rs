//! What the HTTP APIs may ask of a shard, and its answers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_wire::nsq::{ChannelName, TopicName};

use super::lending::LendSnapshot;
use super::limiter::{Contract, Source};
use super::parts::{PartOrder, PartRefused, PartStatus};
use super::publishers::HttpPublisher;
use super::snapshot::ShardSnapshot;
use super::watch::PublishersReport;

/// A request from outside the NSQ protocol. Requests that name a topic go to the shard that owns it.
#[derive(Clone, Debug)]
pub enum AdminRequest {
    /// Publishes all bodies to `topic`, created if need be, or none.
    Publish {
        /// The topic.
        topic: TopicName,
        /// Each at least one byte and at most `max_msg_size`.
        bodies: Vec<Vec<u8>>,
        /// Deliver not before this span is over.
        defer: Option<Duration>,
        /// The publisher: its address and correlation key.
        by: HttpPublisher,
    },
    /// Creates the topic if it does not exist.
    CreateTopic(TopicName),
    /// Deletes the topic with its channels and messages; subscribers are disconnected.
    DeleteTopic(TopicName),
    /// Drops the messages that wait in the topic (not in its channels).
    EmptyTopic(TopicName),
    /// Stops (or resumes) the flow from the topic to its channels.
    PauseTopic(TopicName, Pause),
    /// Creates the channel if it does not exist; the topic must.
    CreateChannel(TopicName, ChannelName),
    /// Deletes the channel with its messages; subscribers are disconnected.
    DeleteChannel(TopicName, ChannelName),
    /// Drops the channel's messages: queued, deferred and in flight.
    EmptyChannel(TopicName, ChannelName),
    /// Stops (or resumes) the flow from the channel to its clients.
    PauseChannel(TopicName, ChannelName, Pause),
    /// Puts a contract in force on the topic, or removes it; it also holds for a topic that does not exist yet. Answered
    /// with the node's part of it, if there is one, which goes on to rule the bucket.
    SetTopicLimit(TopicName, Option<(Contract, Source)>),
    /// The same for a channel.
    SetChannelLimit(TopicName, ChannelName, Option<(Contract, Source)>),
    /// Lets what waits in the topic's line go at once, though it came under a contract that was taken away or set to
    /// shadow; a contract in force is not touched.
    ReleaseLine(TopicName),
    /// Starts or stops a trace of the topic's messages.
    Record(TopicName, Recording),
    /// Reads the shard's state.
    Snapshot(SnapshotScope),
    /// Lists who publishes to a topic.
    Publishers(PublishersScope),
    /// Ensures these channels exist and lets the topic flow: the answer to a new topic's question to nsqlookupd.
    StartTopic(TopicName, Vec<ChannelName>),
    /// Carries out a step of an order for parts of limits, of the topics that the shard owns.
    PutParts(PartOrder),
    /// Takes the topic's part away, by an order of this revision.
    RemovePart {
        /// The topic.
        topic: TopicName,
        /// An older one than the part's is refused.
        revision: u64,
    },
    /// Lists the parts of the shard's topics.
    Parts,
    /// Tells what was lent and borrowed.
    Lending,
    /// Asks whether each of these channels, or of all that the topic has if none is named, has a consumer here.
    Prepare {
        /// The topic.
        topic: TopicName,
        /// The channels that are asked for.
        channels: Vec<ChannelName>,
        /// What becomes of those that do not exist.
        creation: Creation,
    },
    /// Closes the connections of this shard that publish to the topic under one of these identities, each when all that
    /// the shard has taken from it is answered.
    Disconnect {
        /// The topic.
        topic: TopicName,
        /// The publishers' identities.
        identities: Arc<[String]>,
    },
    /// Takes connections that have not published yet as publishers, or refuses them.
    SetNewcomers(Newcomers),
}

/// Whether what is asked for is made if it does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Creation {
    /// It is.
    IfMissing,
    /// It is not.
    Never,
}

/// What a shard does with connections that have not published yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Newcomers {
    /// They may publish.
    #[default]
    Welcome,
    /// Their first publish is refused, and their connection closed. HTTP has no connections that count: each publish is
    /// refused.
    Refused,
}

/// The two directions of pausing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Nothing flows.
    Paused,
    /// Everything flows.
    Flowing,
}

/// Whether a topic's messages are written to a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recording {
    /// They are.
    On,
    /// They are not.
    Off,
}

/// How much a snapshot holds.
#[derive(Clone, Default, Debug)]
pub struct SnapshotScope {
    /// Only this topic.
    pub topic: Option<TopicName>,
    /// Only this channel of each topic.
    pub channel: Option<ChannelName>,
    /// With every client's numbers, not only their count.
    pub clients: bool,
    /// With the quantiles of delays.
    pub delays: Delays,
}

/// What a list of publishers is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishersScope {
    /// The topic.
    pub topic: TopicName,
    /// Whole seconds that are looked back, 1 to 60.
    pub seconds: u64,
    /// Delays above it are counted, from the first time on that it is asked for.
    pub slo_ns: Option<u64>,
}

/// Whether quantiles of delays are computed for a snapshot, which is most of its cost. Those of nsqd's end-to-end latency
/// are there in any case, if the configuration asks for some.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Delays {
    /// They are.
    #[default]
    With,
    /// They are all zero.
    Without,
}

/// When a shard answers.
#[derive(Debug)]
pub enum Answered {
    /// Now.
    Now(AdminReply),
    /// With [`super::output::Output::AdminReply`] of this number: what was published is not in the log yet, a snapshot is
    /// of many topics, or a list of many publishers.
    Later(u64),
}

/// A shard's answer.
#[derive(Debug)]
pub enum AdminReply {
    /// It is done.
    Done,
    /// There is no such topic on this shard.
    TopicNotFound,
    /// There is no such channel in the topic.
    ChannelNotFound,
    /// The publish was refused; nothing of it was taken.
    Refused(PublishRefused),
    /// The state asked for.
    Snapshot(Box<ShardSnapshot>),
    /// The list asked for.
    Publishers(Box<PublishersReport>),
    /// The parts that were ordered, as they stand; all of them; or the one that was removed, as it stood.
    Parts(Vec<PartStatus>),
    /// The order for parts changed nothing on this shard, or, with [`PartRefused::Lent`], is not wholly in force.
    PartsRefused(PartRefused),
    /// What was lent and borrowed.
    Lending(Box<LendSnapshot>),
    /// Whether the topic can take publishers.
    Readiness(Readiness),
    /// The identities whose connections are being closed, each once, in order.
    Disconnected(Vec<String>),
}

/// Whether a topic can take publishers here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// False until nsqlookupd has said which channels the topic has elsewhere.
    pub started: bool,
    /// Channels without a consumer, in order of their names.
    pub missing: Vec<ChannelName>,
}

/// Why a publish was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishRefused {
    /// The topic's contract is in discipline `refuse` and has no token.
    #[error("rate limit of topic exceeded, retry in {}.{:03} ms", us_up(*retry_after) / 1_000, us_up(*retry_after) % 1_000)]
    Throttled {
        /// A retry after this span finds the tokens, if nobody else takes them.
        retry_after: Duration,
    },
    /// More tokens than the bucket can ever hold.
    #[error("cost {cost} exceeds the topic's burst of {burst}")]
    ExceedsBurst {
        /// What it would take.
        cost: u64,
        /// What the bucket holds at most.
        burst: u64,
    },
    /// Deferred messages stay in memory, and they fill their part of it.
    #[error("deferred messages fill their {bound} bytes")]
    DeferredFull {
        /// `max_queue_bytes`.
        bound: u64,
    },
    /// A queue is at its bound and its policy is to refuse.
    #[error("queue is full")]
    QueueFull,
    /// The log cannot be written; messages already accepted are kept in memory.
    #[error("message log cannot be written: {error}")]
    LogFailed {
        /// What the system said.
        error: String,
    },
    /// The node takes no new publishers.
    #[error("draining: this node takes no new publishers")]
    Draining,
    /// The broker is shutting down.
    #[error("exiting")]
    Exiting,
}

/// Whole microseconds, rounded up: who comes back after them does not come too early.
fn us_up(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000)
}
