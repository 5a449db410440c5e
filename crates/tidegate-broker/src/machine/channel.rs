//! A channel: its queue, its contract, and who reads it.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_core::limit::TokenBucket;
use tidegate_core::timer_wheel::TimerKey;
use tidegate_wire::nsq::ChannelName;

use super::limiter::{Contract, Mode, Source, Unit};
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

/// A channel's contract at work: what is delivered waits for its token.
#[derive(Debug)]
pub(super) struct ChannelLimiter {
    pub(super) contract: Contract,
    pub(super) source: Source,
    pub(super) bucket: TokenBucket,
    /// Since when nothing but tokens has held the head of the queue back.
    in_line_since: Option<Instant>,
    /// When the head gets its tokens; the shard has set a timer for it.
    pub(super) waiting_until: Option<Instant>,
}

/// What a channel's contract says of the head of its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// It goes, and could have gone at this instant.
    Since(Instant),
    /// It goes, though the contract in shadow mode would have held it back.
    Shadow,
    /// Not before this instant.
    Until(Instant),
    /// Not under this contract.
    Never,
}

impl ChannelLimiter {
    pub(super) fn new(contract: Contract, source: Source, now: Instant) -> Self {
        let bucket = TokenBucket::new(contract.limit, now);
        Self { contract, source, bucket, in_line_since: None, waiting_until: None }
    }

    /// Asks for the head of the queue, of `bytes`, which a client is ready to take; charges it if it goes.
    ///
    /// It is charged when it could first go, not when it entered: a consumer that comes back to a backlog does not get
    /// what it left untaken. While nothing but tokens holds the queue back, late timers cost it nothing.
    pub(super) fn pass(&mut self, bytes: usize, entered: Instant, now: Instant) -> Pass {
        let cost = match self.contract.unit {
            Unit::Messages => 1,
            Unit::Bytes => bytes as u64,
        };
        if self.contract.mode == Mode::Shadow {
            return if self.bucket.try_take(cost, now).is_ok() { Pass::Since(now) } else { Pass::Shadow };
        }
        let since = self.in_line_since.unwrap_or(now).max(entered).min(now);
        self.in_line_since = Some(since);
        match self.bucket.ready_in_line(cost, since) {
            Some(at) if at <= now => {
                self.bucket.take_in_line(cost, at);
                self.in_line_since = Some(at);
                Pass::Since(at)
            }
            Some(at) => Pass::Until(at),
            None => Pass::Never,
        }
    }

    /// Something other than tokens holds the queue back, or it is empty.
    pub(super) fn leave_line(&mut self) {
        self.in_line_since = None;
    }
}
