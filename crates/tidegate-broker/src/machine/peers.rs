//! Publishes that cross from shard to shard.
//!
//! What the connections of a shard publish to topics of another goes there in one batch for each wake-up, bodies back to
//! back in one buffer, and the buffers come back with the answers: in the steady state nothing is allocated. Each publish
//! keeps its arrival stamp, and those of one connection their order.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::lend::Frame;
use tidegate_wire::nsq::TopicName;

use super::acks::{Origin, Publisher};
use super::admin::PublishRefused;
use super::lanes::{Way, Word};
use super::output::{Output, PeerMessage};
use super::publishers::PublisherRef;
use super::who::Who;

/// Buffers kept for the next batches.
const SPARE_MAX: usize = 4;
/// A buffer larger than this is given back to the system.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// Publishes of one shard for topics of another, in order.
#[derive(Debug, Default)]
pub struct PeerBatch {
    pub(super) from_shard: usize,
    pub(super) entries: Vec<PeerEntry>,
    /// Each comes before the entry of this number.
    pub(super) notes: VecDeque<(usize, Note)>,
    bytes: Vec<u8>,
    /// An empty list for the answers, which comes back with them.
    answers: Vec<PeerAnswer>,
}

/// What a shard is told of the connections of another that publish to its topics, by their serials there.
#[derive(Debug)]
pub(super) enum Note {
    /// This one is about to.
    Introduction(u64, Arc<Who>),
    /// It is gone, or comes back under another name.
    Goodbye(u64),
    /// Of a lane of this topic.
    Lane(TopicName, Word),
    /// The shares of lanes lend each other.
    Lend(Frame),
    /// The shard ends.
    Ends,
}

/// One publish of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerEntry {
    pub(super) way: Way,
    pub(super) publisher: Publisher,
    pub(super) parcel: Parcel,
    topic: (usize, usize),
    bodies: (usize, usize),
}

/// What is told of a publish beside its bodies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    pub(super) count: usize,
    /// Of all bodies.
    pub(super) bytes: usize,
    pub(super) defer_ns: u64,
    pub(super) arrival: Instant,
    pub(super) read: Instant,
    /// In the topic's own shard: who it is there.
    pub(super) publisher: PublisherRef,
}

impl PeerBatch {
    fn push<'b>(
        &mut self,
        topic: &str,
        bodies: impl Iterator<Item = &'b [u8]>,
        (way, publisher): (Way, Publisher),
        parcel: Parcel,
    ) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(topic.as_bytes());
        let middle = self.bytes.len();
        put_bodies(&mut self.bytes, bodies);
        let (topic, bodies) = ((from, middle), (middle, self.bytes.len()));
        self.entries.push(PeerEntry { way, publisher, parcel, topic, bodies });
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.notes.is_empty()
    }

    /// The note that comes before the entry of this number, if there is one left.
    pub(super) fn note_before(&mut self, entry: usize) -> Option<Note> {
        self.notes.pop_front_if(|(before, _)| *before <= entry).map(|(_, note)| note)
    }

    /// The topic of `entry`, which was valid when it was published.
    pub(super) fn topic(&self, entry: &PeerEntry) -> &str {
        std::str::from_utf8(&self.bytes[entry.topic.0..entry.topic.1]).expect("it was a name")
    }

    pub(super) fn bodies(&self, entry: &PeerEntry) -> Bodies<'_> {
        Bodies(&self.bytes[entry.bodies.0..entry.bodies.1])
    }
}

/// What became of publishes, and the batches that they came in, to be used again.
#[derive(Debug, Default)]
pub struct PeerAnswers {
    pub(super) answers: Vec<PeerAnswer>,
    spare: Option<PeerBatch>,
}

#[derive(Debug)]
pub(super) struct PeerAnswer {
    pub(super) publisher: Publisher,
    pub(super) result: Result<(), PublishRefused>,
    /// The topic wants to know when its messages arrived.
    pub(super) stamp: bool,
}

/// A publish that waits for room in its topic while its connection goes on.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) origin: Origin,
    pub(super) parcel: Parcel,
    bodies: Vec<u8>,
}

impl Parked {
    pub(super) fn new<'b>(origin: Origin, parcel: Parcel, bodies: impl Iterator<Item = &'b [u8]>) -> Self {
        let mut bytes = Vec::with_capacity(parcel.bytes + 4 * parcel.count);
        put_bodies(&mut bytes, bodies);
        Self { origin, parcel, bodies: bytes }
    }

    pub(super) fn bodies(&self) -> Bodies<'_> {
        Bodies(&self.bodies)
    }
}

/// Publishes that wait for room in one topic, in order. Some may be of connections that have gone meanwhile.
#[derive(Debug, Default)]
pub(super) struct ParkedLine {
    line: VecDeque<Parked>,
    /// Bytes of all bodies in `line`.
    bytes: u64,
}

impl ParkedLine {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Parked> {
        self.line.iter()
    }

    pub(super) fn front(&self) -> Option<&Parked> {
        self.line.front()
    }

    pub(super) fn push_back(&mut self, parked: Parked) {
        self.bytes += parked.bodies.len() as u64;
        self.line.push_back(parked);
    }

    pub(super) fn push_front(&mut self, parked: Parked) {
        self.bytes += parked.bodies.len() as u64;
        self.line.push_front(parked);
    }

    pub(super) fn pop_front(&mut self) -> Option<Parked> {
        let parked = self.line.pop_front()?;
        self.bytes -= parked.bodies.len() as u64;
        Some(parked)
    }
}

fn put_bodies<'b>(out: &mut Vec<u8>, bodies: impl Iterator<Item = &'b [u8]>) {
    for body in bodies {
        let size = u32::try_from(body.len()).expect("bodies are bounded below 4 GiB");
        out.extend_from_slice(&size.to_ne_bytes());
        out.extend_from_slice(body);
    }
}

/// Bodies back to back, each with its size in front.
#[derive(Clone, Debug)]
pub(super) struct Bodies<'a>(&'a [u8]);

impl<'a> Iterator for Bodies<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.0.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(u32::from_ne_bytes(*size) as usize)?;
        self.0 = rest;
        Some(body)
    }
}

/// What waits to go to the other shards at the end of a wake-up.
#[derive(Debug)]
pub(super) struct Peers {
    own: usize,
    /// By shard.
    out: Vec<(PeerBatch, PeerAnswers)>,
    spare: Vec<PeerBatch>,
    spare_answers: Vec<Vec<PeerAnswer>>,
}

impl Peers {
    pub(super) fn new(own: usize, shards: usize) -> Self {
        let out = (0..shards).map(|_| Default::default()).collect();
        Self { own, out, spare: Vec::new(), spare_answers: Vec::new() }
    }

    /// A publish goes to `shard` with this wake-up.
    pub(super) fn publish<'b>(
        &mut self,
        shard: usize,
        topic: &str,
        bodies: impl Iterator<Item = &'b [u8]>,
        by: (Way, Publisher),
        parcel: Parcel,
    ) {
        self.batch_to(shard).push(topic, bodies, by, parcel);
    }

    /// A word goes to `shard` with this wake-up, behind what it has published.
    pub(super) fn note(&mut self, shard: usize, note: Note) {
        let batch = self.batch_to(shard);
        batch.notes.push_back((batch.entries.len(), note));
    }

    fn batch_to(&mut self, shard: usize) -> &mut PeerBatch {
        let batch = &mut self.out[shard].0;
        if batch.is_empty()
            && let Some(spare) = self.spare.pop()
        {
            *batch = spare;
        }
        if batch.answers.capacity() == 0
            && let Some(spare) = self.spare_answers.pop()
        {
            batch.answers = spare;
        }
        batch.from_shard = self.own;
        batch
    }

    /// An answer goes to `shard` with this wake-up.
    pub(super) fn answer(&mut self, shard: usize, answer: PeerAnswer) {
        self.out[shard].1.answers.push(answer);
    }

    /// A batch is about to be carried out: its answers go where it brought room for them.
    pub(super) fn received(&mut self, batch: &mut PeerBatch) {
        let answers = &mut self.out[batch.from_shard].1.answers;
        if answers.capacity() == 0 {
            std::mem::swap(answers, &mut batch.answers);
        }
    }

    /// A batch was carried out: its buffers go back with the answers.
    pub(super) fn carried_out(&mut self, mut batch: PeerBatch) {
        let shard = batch.from_shard;
        batch.entries.clear();
        batch.bytes.clear();
        if batch.bytes.capacity() <= SPARE_BYTES_MAX {
            self.out[shard].1.spare = Some(batch);
        }
    }

    /// Answers were read: their buffers are used again.
    pub(super) fn read(&mut self, answers: PeerAnswers) {
        let PeerAnswers { answers: mut list, spare } = answers;
        if let Some(batch) = spare
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(batch);
        }
        list.clear();
        if list.capacity() > 0 && self.spare_answers.len() < SPARE_MAX {
            self.spare_answers.push(list);
        }
    }

    /// The messages of this wake-up.
    pub(super) fn flush(&mut self, mut out: impl FnMut(Output)) {
        for (shard, (batch, answers)) in self.out.iter_mut().enumerate() {
            if !batch.is_empty() {
                out(Output::Peer { shard, message: PeerMessage::Publish(std::mem::take(batch)) });
            }
            if !answers.answers.is_empty() || answers.spare.is_some() {
                out(Output::Peer { shard, message: PeerMessage::Answers(std::mem::take(answers)) });
            }
        }
    }
}
