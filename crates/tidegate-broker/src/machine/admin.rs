//! What the HTTP APIs may ask of a shard, and its answers.

use std::time::Duration;

use tidegate_wire::nsq::{ChannelName, TopicName};

use super::limiter::{Contract, Source};
use super::snapshot::ShardSnapshot;

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
    /// Puts a contract in force on the topic, or removes it; it also holds for a topic that does not exist yet.
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
    /// Ensures these channels exist and lets the topic flow: the answer to a new topic's question to nsqlookupd.
    StartTopic(TopicName, Vec<ChannelName>),
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
    /// With [`super::output::Output::AdminReply`] of this number: what was published is not in the log yet, or a
    /// snapshot is of many topics.
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
    /// The broker is shutting down.
    #[error("exiting")]
    Exiting,
}

/// Whole microseconds, rounded up: who comes back after them does not come too early.
fn us_up(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000)
}
