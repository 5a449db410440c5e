//! A topic: its contract, its own queue, and its channels.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_core::limit::Gate;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::channel::ChannelKey;
use super::limiter::{Contract, Discipline, Mode, Source, Unit};
use super::output::{ConnId, PeerPublish};
use super::queue::{MessageKey, Queue};

/// A topic's place in its shard.
pub(super) type TopicKey = usize;

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) channels: BTreeMap<ChannelName, ChannelKey>,
    /// The same channels, for the way of every message.
    pub(super) routes: Vec<ChannelKey>,
    /// Messages that wait for the first channel, or for the end of a pause.
    pub(super) queue: Queue,
    pub(super) paused: bool,
    /// False until nsqlookupd has said which channels the topic has elsewhere.
    pub(super) started: bool,
    pub(super) limiter: Option<TopicLimiter>,
    /// Publishers held back because the line or a queue is full.
    pub(super) blocked: Vec<ConnId>,
    /// The same of other shards: one publish of each connection at most.
    #[expect(clippy::vec_box, reason = "they come in boxes and go on in them")]
    pub(super) blocked_peers: Vec<Box<PeerPublish>>,
    pub(super) memory_bytes: u64,
    pub(super) counts: TopicCounts,
    pub(super) access_delay: WindowedHistogram,
    /// While it is recorded: what has been admitted since the last hand-over.
    pub(super) recording: Option<Vec<Passage>>,
    /// It stands in the shard's list of topics with work to do at the end of a batch.
    pub(super) dirty: bool,
}

/// One message's way through its topic's contract, for traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    /// When it arrived, as the contract charged it: after a pause of the reader, at the earliest possible.
    pub arrival: Instant,
    /// When the broker had read it. What the contract released before then, the reader delayed and not the contract.
    pub read: Instant,
    /// When the contract let it go, by its own reckoning.
    pub release: Instant,
    /// When it really went.
    pub passed: Instant,
    /// Bytes of its body.
    pub bytes: u32,
}

impl Topic {
    /// Arrival times matter: there is a contract, or a trace is being recorded.
    pub(super) fn needs_stamps(&self) -> bool {
        self.limiter.is_some() || self.recording.is_some()
    }
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

/// A message between its publish and its token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) message: MessageKey,
    /// Not to be delivered before; zero if it was not deferred.
    pub(super) due: Instant,
}

/// A message on its way to its topic's contract, and in line there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrant {
    pub(super) pending: Pending,
    /// When it was read, for traces.
    pub(super) read: Instant,
}

/// A topic's contract at work. One gate serves every discipline, so that changing it keeps tokens and line.
#[derive(Debug)]
pub(super) struct TopicLimiter {
    pub(super) contract: Contract,
    pub(super) source: Source,
    pub(super) gate: Gate<Entrant>,
    /// Arrivals of this batch, not yet in order of their stamps.
    pub(super) staged: Vec<Staged>,
    /// Bytes staged and in line.
    pub(super) waiting_bytes: u64,
    /// When the head of the line gets its tokens; the shard has set a timer for it.
    pub(super) waiting_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) arrival: Instant,
    pub(super) cost: u64,
    pub(super) entrant: Entrant,
}

impl TopicLimiter {
    pub(super) fn new(contract: Contract, source: Source, now: Instant) -> Self {
        // The topic bounds the line in bytes before a message gets here.
        let gate = Gate::new(contract.limit, u64::MAX, now);
        Self { contract, source, gate, staged: Vec::new(), waiting_bytes: 0, waiting_until: None }
    }

    /// Messages wait in line here.
    pub(super) fn delays(&self) -> bool {
        self.contract.mode == Mode::Enforce && self.contract.discipline == Discipline::Wait
    }

    /// What a body of `bytes` costs.
    pub(super) fn cost(&self, bytes: usize) -> u64 {
        match self.contract.unit {
            Unit::Messages => 1,
            Unit::Bytes => bytes as u64,
        }
    }

    /// What a publish of `count` messages with `bytes` in all costs.
    pub(super) fn cost_of_all(&self, count: u64, bytes: u64) -> u64 {
        match self.contract.unit {
            Unit::Messages => count,
            Unit::Bytes => bytes,
        }
    }

    /// Puts `contract` in force; tokens and line are kept.
    pub(super) fn rule(&mut self, contract: Contract, source: Source, now: Instant) {
        self.gate.set_limit(contract.limit, now);
        (self.contract, self.source, self.waiting_until) = (contract, source, None);
    }

    /// Messages staged and in line.
    pub(super) fn waiting(&self) -> u64 {
        (self.gate.len() + self.staged.len()) as u64
    }
}
