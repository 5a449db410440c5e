//! A topic: its contract, its own queue, which is the line of that contract, and its channels.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Instant;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::acks::AckKey;
use super::arena::Key;
use super::channel::ChannelKey;
use super::deferred::Deferred;
use super::lanes::Host;
use super::limiter::Limiter;
use super::messages::MessageKey;
use super::output::ConnId;
use super::peers::ParkedLine;
use super::publishers::PublisherNo;
use super::queue::{Item, Queue};
use super::trace::Recording;
use super::watch::Watch;

/// A topic's place in its shard.
pub(super) type TopicKey = Key<Topic>;

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) channels: BTreeMap<ChannelName, ChannelKey>,
    /// The same channels, for the way of every message.
    pub(super) routes: Vec<ChannelKey>,
    /// Messages that wait for tokens, for the first channel, or for the end of a pause.
    pub(super) queue: Queue<Pending>,
    /// Under a contract, deferred messages take their token when they are due: here, not in the channels.
    pub(super) deferred: Deferred<Pending>,
    pub(super) paused: bool,
    /// False until nsqlookupd has said which channels the topic has elsewhere.
    pub(super) started: bool,
    pub(super) limiter: Option<Limiter>,
    /// Arrivals of this batch under a contract that delays, not yet in order of their stamps.
    pub(super) staged: Vec<Staged>,
    pub(super) staged_bytes: u64,
    /// What the line may hold, bytes: as configured, or as much as it held when it last began to flow.
    pub(super) line_bytes_max: u64,
    /// Connections held back because the line or a queue is full.
    pub(super) blocked: Vec<ConnId>,
    /// Publishes that wait for room while their connections go on, in order.
    pub(super) parked: ParkedLine,
    /// Logs that records of the topic's log are on their way to, and how many records they will hold ever then.
    pub(super) moving: Vec<(ChannelKey, u64)>,
    pub(super) counts: TopicCounts,
    pub(super) access_delay: WindowedHistogram,
    pub(super) recording: Option<Recording>,
    /// What is counted for planners.
    pub(super) watch: Option<Box<Watch>>,
    /// Its lanes on other shards, if it is one that is spread.
    pub(super) host: Option<Box<Host>>,
    /// It stands in the shard's list of topics with work to do at the end of a batch.
    pub(super) dirty: bool,
}

impl Topic {
    /// Nothing but tokens and the log's pace holds messages back.
    pub(super) fn flows(&self) -> bool {
        !self.paused && self.started && !self.routes.is_empty()
    }

    /// Messages that wait on this shard, staged ones and those in line included.
    pub(super) fn depth(&self) -> u64 {
        self.queue.depth() + self.staged.len() as u64
    }

    /// Messages that nothing but tokens holds back.
    pub(super) fn waiting(&self) -> u64 {
        let acts = self.limiter.as_ref().is_some_and(Limiter::acts);
        if acts && self.flows() { self.depth() } else { self.staged.len() as u64 }
    }

    /// Publishers that wait for room here.
    pub(super) fn blocked_publishers(&self) -> u64 {
        let parked: BTreeSet<_> = self.parked.iter().map(|parked| parked.origin.connection()).collect();
        (self.blocked.len() + parked.len()) as u64
    }

    /// Bytes in line.
    pub(super) fn line_bytes(&self) -> u64 {
        self.queue.bytes() + self.staged_bytes
    }

    /// Arrival times matter: there is a contract, or a trace is being recorded.
    pub(super) fn needs_stamps(&self) -> bool {
        self.limiter.is_some() || self.recording.is_some()
    }
}

/// A message between its publish and its channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) message: MessageKey,
    /// Not to be delivered before; zero if it was not deferred.
    pub(super) due: Instant,
    /// When it was read, for traces.
    pub(super) read: Instant,
    pub(super) mark: Mark,
}

/// Who published a message, and whether it counts as admitted since no contract was there when it came. In four
/// bytes: every message in line has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u32);

impl Mark {
    const ADMITTED: u32 = 1 << 31;

    pub(super) fn admitted(publisher: PublisherNo) -> Self {
        Self(publisher.bits() | Self::ADMITTED)
    }

    pub(super) fn in_line(publisher: PublisherNo) -> Self {
        Self(publisher.bits())
    }

    pub(super) fn is_admitted(self) -> bool {
        self.0 & Self::ADMITTED != 0
    }

    pub(super) fn publisher(self) -> PublisherNo {
        PublisherNo::from_bits(self.0 & !Self::ADMITTED)
    }
}

impl Pending {
    /// From when on it waits for tokens: its arrival, or the end of its deferral. One that was deferred before there was
    /// a contract waits out its time in its channels.
    pub(super) fn in_line_since(&self, arrival: Instant, now: Instant) -> Instant {
        if self.due <= now { arrival.max(self.due) } else { arrival }
    }
}

impl Item for Pending {
    fn message(&self) -> MessageKey {
        self.message
    }

    fn attempts(&self) -> u16 {
        0
    }
}

/// A message on its way to its topic's line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) pending: Pending,
    pub(super) arrival: Instant,
    /// The publish that is answered when the message is safe, if it may have to go to the log.
    pub(super) ack: Option<AckKey>,
}

#[derive(Default, Debug)]
pub(super) struct TopicCounts {
    pub(super) offered: u64,
    pub(super) offered_bytes: u64,
    pub(super) admitted: u64,
    pub(super) admitted_bytes: u64,
    pub(super) delayed: u64,
    pub(super) refused: u64,
    pub(super) shadow: u64,
    pub(super) dropped: u64,
}
