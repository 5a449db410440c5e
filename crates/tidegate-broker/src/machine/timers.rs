//! What a shard's timers are for.

use super::channel::ChannelKey;
use super::log::QueueId;
use super::output::ConnId;
use super::topic::TopicKey;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// A delivered message was not answered.
    Message {
        conn: ConnId,
        id: [u8; 16],
    },
    /// A deferred message is due.
    Deferred {
        of: Gated,
        id: [u8; 16],
    },
    Heartbeat(ConnId),
    /// A failed append is tried again.
    LogRetry(QueueId),
    /// The next slice of a snapshot.
    Survey,
    /// The next slice of a list of publishers.
    Listing,
}

/// A topic or a channel: what has a contract, a queue and deferred messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Gated {
    Topic(TopicKey),
    Channel(ChannelKey),
}
