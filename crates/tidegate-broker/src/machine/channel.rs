//! A channel: its queue, its contract, and who reads it.

use std::collections::VecDeque;

use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_wire::nsq::ChannelName;

use super::arena::Key;
use super::deferred::Deferred;
use super::limiter::Limiter;
use super::output::ConnId;
use super::queue::{Queue, Queued};
use super::topic::TopicKey;

/// A channel's place in its shard.
pub(super) type ChannelKey = Key<Channel>;

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) name: ChannelName,
    pub(super) topic: TopicKey,
    pub(super) queue: Queue<Queued>,
    pub(super) paused: bool,
    pub(super) limiter: Option<Limiter>,
    pub(super) clients: Vec<ConnId>,
    /// Clients that may get a message, each once, in turn. One that no longer may is dropped when met.
    pub(super) ready: VecDeque<ConnId>,
    /// Messages that wait for their time.
    pub(super) deferred: Deferred<Queued>,
    pub(super) in_flight: u64,
    pub(super) counts: ChannelCounts,
    pub(super) access_delay: WindowedHistogram,
    pub(super) end_to_end: WindowedHistogram,
    /// The same over nsqd's longer window, if its quantiles are asked for.
    pub(super) e2e: Option<WindowedHistogram>,
    /// It stands in the shard's list of channels with something to deliver.
    pub(super) dirty: bool,
}

#[derive(Default, Debug)]
pub(super) struct ChannelCounts {
    pub(super) messages: u64,
    pub(super) delivered: u64,
    pub(super) finished: u64,
    pub(super) requeued: u64,
    pub(super) timed_out: u64,
    pub(super) dropped: u64,
    pub(super) shadow: u64,
}
