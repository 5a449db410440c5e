//! A channel: its queue, its contract, and who reads it.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_core::limit::TokenBucket;
use tidegate_core::timer_wheel::TimerKey;
use tidegate_wire::nsq::ChannelName;

use super::limiter::{Contract, Source, Unit};
use super::output::ConnId;
use super::queue::{Queue, Queued};
use super::topic::TopicKey;

/// A channel's place in its shard.
pub(super) type ChannelKey = usize;

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) name: ChannelName,
    pub(super) topic: TopicKey,
    pub(super) queue: Queue,
    pub(super) paused: bool,
    pub(super) limiter: Option<ChannelLimiter>,
    pub(super) clients: Vec<ConnId>,
    /// Clients that may get a message, each once, in turn. One that no longer may is dropped when met.
    pub(super) ready: VecDeque<ConnId>,
    /// Messages that wait for their time, by id.
    pub(super) deferred: HashMap<[u8; 16], (TimerKey, Queued), RandomState>,
    pub(super) in_flight: u64,
    pub(super) memory_bytes: u64,
    pub(super) counts: ChannelCounts,
    pub(super) access_delay: WindowedHistogram,
    pub(super) end_to_end: WindowedHistogram,
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

/// A channel's contract at work: what is delivered waits for its token.
#[derive(Debug)]
pub(super) struct ChannelLimiter {
    pub(super) contract: Contract,
    pub(super) source: Source,
    pub(super) bucket: TokenBucket,
    /// When the head of the queue gets its token; the shard has set a timer for it.
    pub(super) waiting_until: Option<Instant>,
}

impl ChannelLimiter {
    pub(super) fn new(contract: Contract, source: Source, now: Instant) -> Self {
        Self { contract, source, bucket: TokenBucket::new(contract.limit, now), waiting_until: None }
    }

    /// What a body of `bytes` costs; never more than the bucket holds, so that everything passes in time.
    pub(super) fn cost(&self, bytes: usize) -> u64 {
        let cost = match self.contract.unit {
            Unit::Messages => 1,
            Unit::Bytes => bytes as u64,
        };
        cost.min(self.contract.limit.burst)
    }
}
