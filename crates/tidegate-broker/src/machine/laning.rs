//! The lanes of a shard at work: what is published on it to topics that live elsewhere and are spread.
//!
//! What homes do with their lanes is in `hosting`.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::lend::{Circle, Lending, Memory, Purse, Purses};
use tidegate_core::limit::TokenBucket;
use tidegate_wire::nsq::TopicName;

use super::acks::Publisher;
use super::arena::Arena;
use super::client::Hold;
use super::lanes::{Bounds, Lane, Laning, Passed, Rest, Waiting, Way, Word, shard_of};
use super::limiter::Unit;
use super::loans::{NoPurse, kept};
use super::output::{ConnId, Output};
use super::peers::{Note, Parcel, Peers};
use super::publish::Publish;
use super::publishers::PublisherRef;
use super::shard::Shard;
use super::topic::{Topic, TopicKey};

/// The shares that this shard has, by the circles in which they lend.
pub(super) struct Shares<'a> {
    topics: &'a mut Arena<Topic>,
    homes: &'a BTreeMap<Circle, TopicKey>,
    lanes: &'a mut hashbrown::HashMap<TopicName, Lane, foldhash::fast::RandomState>,
    guests: &'a BTreeMap<Circle, TopicName>,
    nothing: NoPurse,
}

impl Purses for Shares<'_> {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        if let Some(key) = self.homes.get(&circle) {
            return match self.topics.get_mut(*key).and_then(|topic| topic.limiter.as_mut()) {
                Some(limiter) => Some(limiter),
                None => Some(&mut self.nothing),
            };
        }
        match self.guests.get(&circle).and_then(|topic| self.lanes.get_mut(topic)).and_then(Lane::purse) {
            Some(bucket) => Some(bucket),
            // A circle that was shut: what comes back of it is worth nothing.
            None => Some(&mut self.nothing),
        }
    }
}

impl Shard {
    /// It takes nothing any more.
    pub(super) fn is_ending(&self) -> bool {
        self.draining || self.laning.as_ref().is_some_and(|laning| laning.ends_by.is_some())
    }

    /// Publishers of `topic`, which lives elsewhere, stay where they are.
    pub(super) fn is_spread(&self, topic: &TopicName) -> bool {
        self.laning.as_ref().is_some_and(|laning| laning.lanes.contains_key(topic))
    }

    #[inline]
    pub(super) fn with_shares<T>(&mut self, act: impl FnOnce(&mut Lending, &mut Shares<'_>) -> T) -> Option<T> {
        let Self { laning, topics, .. } = self;
        let Laning { lending, homes, lanes, guests, .. } = laning.as_deref_mut()?;
        Some(act(lending, &mut Shares { topics, homes, lanes, guests, nothing: NoPurse }))
    }

    fn lane_bounds(&self) -> Bounds {
        let shards = self.config.shards;
        Bounds {
            messages: (self.config.mem_queue_size / shards).max(1),
            bytes: (self.config.line_bytes.min(self.config.max_queue_bytes) / shards as u64).max(1),
        }
    }

    /// Takes a publish of `conn` into the lane of `topic`; the publish back if none takes it now.
    pub(super) fn publish_in_lane<'b, B: Iterator<Item = &'b [u8]>>(
        &mut self,
        conn: ConnId,
        topic: &TopicName,
        publish: Publish<B>,
    ) -> InLane<B> {
        let bounds = self.lane_bounds();
        let Self { laning: Some(laning), clients, peers, outputs, .. } = self else { return InLane::Not(publish) };
        let Some(lane) = laning.lanes.get_mut(topic).filter(|lane| lane.takes()) else { return InLane::Not(publish) };
        let client = &mut clients[conn];
        // What is deferred takes its token when it is due, at home. And a subscriber goes on while it waits for room.
        if publish.defer_ns > 0 || client.channel.is_some() {
            return InLane::Not(publish);
        }
        if !lane.has_room(bounds) {
            client.hold = Hold::LineFull;
            lane.block(conn);
            laning.mark(topic);
            return InLane::Blocked;
        }
        client.count_publishes(topic, publish.count as u64);
        client.introduce_to(lane.home, peers);
        if !client.stamped {
            client.stamped = true;
            outputs.push_back(Output::Stamp(conn));
        }
        let (arrival, read, serial) = (publish.arrival, publish.read, client.serial);
        for body in publish.bodies {
            lane.take(Waiting { arrival, read, serial, body: body.into() });
        }
        laning.mark(topic);
        InLane::Taken
    }

    /// Whether what `conn` published may still wait in a lane here: then it does not move to another shard. It goes on
    /// when the lane does.
    pub(super) fn waits_in_lanes(&mut self, conn: ConnId) -> bool {
        let Self { laning: Some(laning), clients, .. } = self else { return false };
        let client = &mut clients[conn];
        let mut lanes = laning.lanes.iter_mut();
        let waits = lanes.find(|(topic, lane)| !lane.is_empty() && client.publishes_to(topic));
        if let Some((_, lane)) = waits {
            client.hold = Hold::LineFull;
            lane.block(conn);
            return true;
        }
        false
    }

    /// A connection that may be held back by a lane is gone.
    pub(super) fn leave_lanes(&mut self, conn: ConnId) {
        let Some(laning) = &mut self.laning else { return };
        for lane in laning.lanes.values_mut() {
            lane.blocked.retain(|blocked| *blocked != conn);
        }
    }

    /// The home of `topic` speaks to its lane here.
    pub(super) fn on_home_word(&mut self, topic: &TopicName, word: Word, now: Instant) {
        let ending = self.is_ending();
        let Some(laning) = &mut self.laning else { return };
        let Some(lane) = laning.lanes.get_mut(topic) else { return };
        let home = lane.home;
        match word {
            Word::Hold { epoch } if ending => {
                self.peers.note(home, Note::Lane(topic.clone(), Word::IsShut { epoch, left: None }));
            }
            Word::Hold { epoch } => {
                lane.hold(epoch);
                self.peers.note(home, Note::Lane(topic.clone(), Word::Holds { epoch }));
            }
            Word::Go { epoch, bucket, unit } => self.open_lane(topic, epoch, (*bucket, unit), now),
            Word::Shut { epoch, rest } => {
                if lane.epoch() == Some(epoch) {
                    self.shut_lane(topic, rest, now);
                }
            }
            Word::Landed(landed) => {
                lane.on_landed(landed);
                laning.mark(topic);
            }
            Word::Holds { .. } | Word::IsShut { .. } | Word::Stands(_) => {}
        }
    }

    fn open_lane(&mut self, topic: &TopicName, epoch: u64, (bucket, unit): (TokenBucket, Unit), now: Instant) {
        let Some(laning) = &mut self.laning else { return };
        let members = laning.members();
        let Some(lane) = laning.lanes.get_mut(topic) else { return };
        let (base, circle) = (bucket.limit().burst, Circle(epoch));
        if !lane.go(epoch, bucket, unit) {
            return;
        }
        let Some(purse) = lane.purse() else { return };
        let share = (base, kept(unit, 1, base));
        // Without lending, should that be impossible, the share is a static one.
        if laning.lending.open(circle, &members, share, Memory::Fresh, purse, now).is_ok() {
            laning.guests.insert(circle, topic.clone());
        }
        laning.mark(topic);
    }

    /// Sends to the home what waits in the lane of `topic`, or drops it.
    fn shut_lane(&mut self, topic: &TopicName, rest: Rest, now: Instant) {
        let Self { laning: Some(laning), peers, .. } = self else { return };
        let Some(lane) = laning.lanes.get_mut(topic) else { return };
        let Some(epoch) = lane.epoch() else { return };
        let (home, blocked) = (lane.home, lane.unblock());
        let (waiting, left) = lane.shut(now);
        for message in waiting.filter(|_| rest == Rest::Comes) {
            send(peers, home, topic, message, Way::Unpaid);
        }
        peers.note(home, Note::Lane(topic.clone(), Word::IsShut { epoch, left }));
        if laning.guests.remove(&Circle(epoch)).is_some() {
            self.with_shares(|lending, shares| lending.close(Circle(epoch), shares, now));
        }
        for conn in blocked {
            self.resume(conn);
        }
    }

    /// The shard ends: its lanes are shut, and nobody is to open them again.
    pub(super) fn end_own_lanes(&mut self, now: Instant) {
        let Some(laning) = &self.laning else { return };
        let topics: Vec<TopicName> = laning.lanes.keys().cloned().collect();
        for topic in topics {
            self.shut_lane(&topic, Rest::Comes, now);
        }
        for shard in (0..self.config.shards).filter(|shard| *shard != self.config.shard) {
            self.peers.note(shard, Note::Ends);
        }
    }

    /// Lets go what has its tokens, asks for more and gives; `true` if topics of this shard may have more to move.
    pub(super) fn run_lanes(&mut self, now: Instant) -> bool {
        if self.laning.is_none() {
            return false;
        }
        self.settle_loans(now);
        self.step_lanes(now);
        let frames = self.laning.as_mut().map(|laning| std::mem::take(&mut laning.inbox)).unwrap_or_default();
        for frame in frames {
            // All shards have one clock: it came after it was sent.
            let now = now.max(frame.sent.instant());
            self.with_shares(|lending, shares| lending.on_frame(&frame, shares, now));
            for entry in &frame.entries {
                self.mark_circle(entry.circle);
            }
        }
        self.with_shares(|lending, shares| {
            if lending.next_timeout().is_some_and(|at| at <= now) {
                lending.on_timeout(shares, now);
            }
        });
        self.step_lanes(now);
        let Self { laning: Some(laning), peers, .. } = self else { return false };
        while let Some(frame) = laning.lending.poll_output() {
            peers.note(shard_of(frame.to), Note::Lend(frame));
        }
        !self.changed.topics.is_empty()
    }

    /// Something came to a share of `circle`.
    fn mark_circle(&mut self, circle: Circle) {
        let Some(laning) = &mut self.laning else { return };
        if let Some(topic) = laning.guests.get(&circle).cloned() {
            laning.mark(&topic);
        } else if let Some(key) = laning.homes.get(&circle).copied().filter(|key| self.topics.contains(*key)) {
            self.mark_topic(key);
        }
    }

    fn step_lanes(&mut self, now: Instant) {
        let Some(laning) = &mut self.laning else { return };
        laning.mark_due(now);
        for topic in std::mem::take(&mut laning.dirty) {
            self.step_lane(&topic, now);
        }
    }

    fn step_lane(&mut self, topic: &TopicName, now: Instant) {
        let bounds = self.lane_bounds();
        let Self { laning: Some(laning), peers, .. } = self else { return };
        let Some(lane) = laning.lanes.get_mut(topic) else { return };
        let home = lane.home;
        lane.step(now, |passed| {
            let Passed { message, epoch, since, release } = passed;
            send(peers, home, topic, message, Way::Released { epoch, since, release });
        });
        let blocked = if lane.has_room(bounds) { lane.unblock() } else { Vec::new() };
        if let Some(stand) = lane.news() {
            peers.note(home, Note::Lane(topic.clone(), Word::Stands(stand)));
        }
        let (wanted, circle) = (lane.wanted(), lane.epoch().filter(|_| lane.is_open()).map(Circle));
        if let Some(circle) = circle {
            self.with_shares(|lending, shares| lending.look(circle, wanted, shares, now));
        }
        for conn in blocked {
            self.resume(conn);
        }
    }
}

/// What became of a publish to a topic that is spread.
pub(super) enum InLane<B> {
    Taken,
    /// The line is full: the connection is held back.
    Blocked,
    /// It goes to the home as it is.
    Not(Publish<B>),
}

/// Sends a message that a lane had to the topic's home. It was answered.
fn send(peers: &mut Peers, home: usize, topic: &TopicName, message: Waiting, way: Way) {
    let Waiting { arrival, read, serial, body } = message;
    let publisher = Publisher { conn: ConnId::MAX, serial, answer: 0, verb: "PUB" };
    let (bytes, nobody) = (body.len(), PublisherRef::default());
    let parcel = Parcel { count: 1, bytes, defer_ns: 0, arrival, read, publisher: nobody };
    peers.publish(home, topic.as_str(), std::iter::once(&*body), (way, publisher), parcel);
}
