//! The recording of a topic's messages, on its way to a trace.

use serde::Serialize;
use tidegate_core::Instant;

/// Messages of a trace that are handed over in one go.
const BATCH: usize = 1024;

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
    /// Who published it, as the recording numbers them; 0 if that is not known: it came from the log, or before the
    /// topic was watched, or its publisher is one of those that are not told apart.
    pub publisher: u32,
}

/// The identity behind a number in the passages of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TracedPublisher {
    /// From 1 on; each recording begins anew.
    #[serde(rename = "publisher")]
    pub number: u32,
    /// As in the list of the topic's publishers.
    pub identity: String,
    /// What it is correlated with, as it said.
    pub correlation: Option<String>,
}

/// A piece of a recording. An empty one ends the trace.
#[derive(Default, Debug)]
pub struct Traced {
    /// Publishers of which passages from here on speak for the first time.
    pub publishers: Vec<TracedPublisher>,
    /// Messages, in the order in which they went.
    pub passages: Vec<Passage>,
}

impl Traced {
    /// Nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.publishers.is_empty() && self.passages.is_empty()
    }
}

/// A recording under way.
#[derive(Debug)]
pub(super) struct Recording {
    id: u32,
    /// Publishers that have a number.
    publishers: u32,
    traced: Traced,
}

impl Recording {
    /// `id` is not zero, and another one than those of earlier recordings.
    pub(super) fn new(id: u32) -> Self {
        Self { id, publishers: 0, traced: Traced::default() }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Gives a publisher its number.
    pub(super) fn introduce(&mut self, publisher: impl FnOnce(u32) -> TracedPublisher) -> u32 {
        self.publishers += 1;
        self.traced.publishers.push(publisher(self.publishers));
        self.publishers
    }

    /// Adds a message; a piece that is full is to be handed over.
    pub(super) fn push(&mut self, passage: Passage) -> Option<Traced> {
        self.traced.passages.push(passage);
        (self.traced.passages.len() >= BATCH).then(|| std::mem::take(&mut self.traced))
    }

    /// What has not been handed over.
    pub(super) fn finish(self) -> Traced {
        self.traced
    }
}
