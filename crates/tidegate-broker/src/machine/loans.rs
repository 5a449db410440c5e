//! How a shard lends tokens to the same topics' shards of other brokers.
//!
//! An order for a part may say how the burst is split among brokers. While the part is in force as the split says, the
//! topic is in a circle with those brokers: its bucket is the purse, and [`Lending`] decides who gives what to whom. As
//! soon as anything else holds - another split, a lapsed part, a smaller contract, another mode - the shard leaves the
//! circle: it gives back what it has of the others, and waits for its own. Until that is over there is no other circle,
//! and the part is a static one.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::lend::{Circle, Frame, Leave, Lending, Purse, Purses};
use tidegate_core::limit::Limit;
use tidegate_wire::nsq::TopicName;

use super::arena::Arena;
use super::contracts::LimitKey;
use super::lending::{LendSnapshot, LendState, Lender, Place, Split, WhySplit};
use super::limiter::{Discipline, Limiter, Mode, PartRule, Unit};
use super::output::Output;
use super::parts::{PARTS_MAX, Part};
use super::shard::Shard;
use super::topic::{Topic, TopicKey};

/// Frames that wait for the end of a batch; beyond, they count as lost.
const INBOX_MAX: usize = 1_024;

/// The buckets of a shard's topics, by circle.
struct Buckets<'a> {
    topics: &'a mut Arena<Topic>,
    places: &'a BTreeMap<Circle, Place<TopicKey>>,
    nothing: NoPurse,
}

impl Purses for Buckets<'_> {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        let place = self.places.get(&circle)?;
        let key = place.key.filter(|key| self.topics.get(*key).is_some_and(|topic| topic.limiter.is_some()));
        match key.and_then(|key| self.topics.get_mut(key)?.limiter.as_mut()) {
            Some(limiter) => Some(limiter),
            None => Some(&mut self.nothing),
        }
    }
}

/// The purse of a topic that is gone: what comes back to it is lost.
pub(super) struct NoPurse;

impl Purse for NoPurse {
    fn give(&mut self, _most: u64, _keep: u64, _now: Instant) -> u64 {
        0
    }

    fn receive(&mut self, tokens: u64, _now: Instant) -> u64 {
        tokens
    }

    fn cut(&mut self, by: u64, _keep: u64, _now: Instant) -> u64 {
        by
    }

    fn deepen(&mut self, _by: u64, _now: Instant) {}

    fn tokens(&self, _now: Instant) -> u64 {
        0
    }

    fn limit(&self) -> Limit {
        Limit::new(tidegate_core::Rate::ZERO, 0)
    }
}

/// Depth that is never lent, where a token counts as `grain`: what one message costs. Of bytes, a quarter: the size of the next message is not known.
pub(super) fn kept(unit: Unit, grain: u64, base: u64) -> u64 {
    match unit {
        Unit::Messages => grain,
        Unit::Bytes => (base / 4).max(1),
    }
}

impl Shard {
    /// Lets the shard lend, from the start on, which is `now`. `boot` is the first of
    /// [`BOOTS_PER_START`](super::lending::BOOTS_PER_START) numbers that no start of this broker had before. Without it
    /// every part is a static one.
    pub fn start_lending(&mut self, boot: u32, now: Instant) {
        self.lender = Some(Box::new(Lender::new(boot, (self.config.shard, PARTS_MAX), now)));
    }

    /// A datagram of another broker came. It is looked at in [`Shard::end_batch`], whose `now` is not before this one.
    pub fn on_lend_frame(&mut self, frame: Frame, now: Instant) {
        if let Some(lender) = &mut self.lender {
            lender.receive(frame, now, INBOX_MAX);
        }
    }

    /// A datagram came that cannot be read.
    pub fn on_bad_datagram(&mut self) {
        if let Some(lender) = &mut self.lender {
            lender.refused += 1;
        }
    }

    /// The machine has slept, and the driver's clock stood still meanwhile: what is borrowed is gone.
    pub fn on_slept(&mut self, now: Instant) {
        self.with_lending(|lending, purses| lending.on_slept(purses, now));
    }

    /// Ends the loans whose lease is over; before anything takes a token.
    #[inline]
    pub(super) fn settle_loans(&mut self, now: Instant) {
        if self.laning.is_some() {
            self.with_shares(|lending, shares| lending.settle(shares, now));
        }
        if self.lender.is_some() {
            self.with_lending(|lending, purses| lending.settle(purses, now));
        }
    }

    #[inline]
    fn with_lending<T>(&mut self, act: impl FnOnce(&mut Lending, &mut Buckets<'_>) -> T) -> Option<T> {
        let Self { lender, topics, .. } = self;
        let (lending, places) = lender.as_deref_mut()?.machine()?;
        Some(act(lending, &mut Buckets { topics, places, nothing: NoPurse }))
    }

    /// An order says, or no longer says, how the burst of `topic` is split.
    pub(super) fn wish_split(&mut self, topic: &TopicName, split: Option<Arc<Split>>) {
        if let Some(lender) = &mut self.lender {
            lender.wish(topic, split);
        }
    }

    /// Leaves the circle of `topic` if what stands for it now does not lend there; then joins the one that it asks for, if
    /// nothing is in the way.
    pub(super) fn review_lending(&mut self, topic: &TopicName, now: Instant) {
        self.leave_unwished(topic, now);
        self.join_wished(topic, now);
    }

    /// The first half: before other terms rule the bucket, so that what is borrowed is given back out of all there is.
    pub(super) fn leave_unwished(&mut self, topic: &TopicName, now: Instant) {
        let Some(lender) = &self.lender else { return };
        let Some(circle) = lender.circle_of(topic).filter(|circle| !lender.is_leaving(*circle)) else { return };
        if self.split_in_force(topic).is_ok_and(|split| lender.is_circle_of(&split, circle)) {
            return;
        }
        self.leave_circle(topic, circle, now);
    }

    /// Gives back what the topic has of others, and waits for what it lent.
    fn leave_circle(&mut self, topic: &TopicName, circle: Circle, now: Instant) {
        if let Some(key) = self.topics_by_name.get(topic).copied()
            && !self.draining
        {
            self.drain_topic(key, now);
        }
        self.with_lending(|lending, purses| lending.close(circle, purses, now));
        if let Some(lender) = &mut self.lender {
            lender.leave(circle);
        }
    }

    /// Leaves all circles: the shard ends.
    pub(super) fn leave_all_circles(&mut self, now: Instant) {
        let circles = self.lender.as_ref().map(|lender| lender.open_circles()).unwrap_or_default();
        for (topic, circle) in circles {
            self.leave_circle(&topic, circle, now);
        }
    }

    /// Nothing is lent any more.
    pub(super) fn has_left_all_circles(&self) -> bool {
        self.lender.as_ref().is_none_or(|lender| !lender.is_in_a_circle())
    }

    /// The topic at `key` is deleted. What it lent is lost to it; its bucket holds nothing before all loans have ended.
    pub(super) fn forfeit_loans(&mut self, topic: &mut Topic, now: Instant) {
        let name = topic.name.clone();
        let Some(circle) = self.lender.as_ref().and_then(|lender| lender.circle_of(&name)) else { return };
        let Some(limiter) = &mut topic.limiter else { return };
        let Some(lender) = &mut self.lender else { return };
        let Some((lending, places)) = lender.machine() else { return };
        debug_assert!(places.contains_key(&circle), "a topic's circle has a place");
        // The topic has left its arena: its purse is here.
        let leave = lending.close(circle, &mut OnePurse { circle, purse: limiter, others: NoPurse }, now);
        let until = match leave {
            Leave::Over => now,
            Leave::Waits { until } => until,
        };
        if !limiter.is_unlent() {
            limiter.forfeit(until);
        }
        lender.leave(circle);
        lender.forfeit(circle, until);
    }

    /// The split that rules `topic` now.
    fn split_in_force(&self, topic: &TopicName) -> Result<Arc<Split>, WhySplit> {
        let lender = self.lender.as_ref().ok_or(WhySplit::Starting)?;
        let split = lender.wished(topic).ok_or(WhySplit::Contract)?;
        let part = self.contracts.parts.get(topic).filter(Part::is_leased).ok_or(WhySplit::Lapsed)?;
        let terms = self.contracts.terms(&LimitKey::topic(topic)).ok_or(WhySplit::Contract)?;
        let base = split.own().map(|own| own.burst);
        let rules = terms.part == Some(PartRule::Limit(part.limit())) && Some(terms.limit().burst) == base;
        let acts = terms.contract.mode == Mode::Enforce && terms.contract.discipline == Discipline::Wait;
        if rules && acts && base > Some(0) { Ok(split) } else { Err(WhySplit::Contract) }
    }

    /// Joins the circle that `topic` asks for.
    pub(super) fn join_wished(&mut self, topic: &TopicName, now: Instant) {
        if self.is_ending() || self.lender.as_ref().is_none_or(|lender| lender.circle_of(topic).is_some()) {
            return;
        }
        let joined = self.split_in_force(topic).and_then(|split| self.join(topic, &split, now));
        if let Some(lender) = &mut self.lender {
            lender.note(topic, joined.err());
        }
    }

    fn join(&mut self, topic: &TopicName, split: &Arc<Split>, now: Instant) -> Result<(), WhySplit> {
        let key = self.topics_by_name.get(topic).copied().ok_or(WhySplit::Starting)?;
        // What is due before is due from what there was.
        self.drain_topic(key, now);
        let Self { lender, topics, .. } = self;
        let (Some(lender), Some(limiter)) = (lender, topics[key].limiter.as_mut()) else {
            return Err(WhySplit::Starting);
        };
        if !limiter.is_unlent() || limiter.own_limit() != limiter.limit() || limiter.is_retiring() {
            return Err(WhySplit::Starting);
        }
        limiter.refine();
        let base = Purse::limit(limiter).burst;
        let (grain, keep) = (limiter.grain(), kept(limiter.contract.unit, limiter.grain(), base));
        lender.join((topic, key), split, (base, keep, grain), limiter, now)
    }

    /// What the topic at `key` waits for, now that whatever has its tokens is gone.
    #[inline]
    pub(super) fn look_for_loans(&mut self, key: TopicKey, now: Instant) {
        if self.lender.is_none() {
            return;
        }
        let topic = &self.topics[key];
        let Some(limiter) = &topic.limiter else { return };
        let Some(circle) = self.lender.as_ref().and_then(|lender| lender.circle_of(&topic.name)) else { return };
        // With their headers: it is only what is asked for at most.
        let (messages, bytes) = (topic.queue.depth(), topic.queue.bytes());
        let waiting = if topic.flows() { limiter.wanted(messages, bytes) } else { 0 };
        self.with_lending(|lending, purses| lending.look(circle, waiting, purses, now));
    }

    /// Hands in what others sent, when everything that had its tokens is gone, and does what is due. `true` if messages
    /// may move again.
    pub(super) fn trade(&mut self, now: Instant) -> bool {
        if self.lender.is_none() {
            return false;
        }
        self.settle_loans(now);
        let frames = self.lender.as_mut().map(|lender| lender.take_inbox()).unwrap_or_default();
        for (frame, received) in &frames {
            // Not earlier than it was read: a lease that is granted to its sender counts from then.
            let now = now.max(*received);
            self.with_lending(|lending, purses| lending.on_frame(frame, purses, now));
            for entry in &frame.entries {
                let key = self.lender.as_ref().and_then(|lender| lender.place(entry.circle)?.key);
                if let Some(key) = key.filter(|key| self.topics.contains(*key)) {
                    self.mark_topic(key);
                }
            }
        }
        self.with_lending(|lending, purses| {
            if lending.next_timeout().is_some_and(|at| at <= now) {
                lending.on_timeout(purses, now);
            }
        });
        let left = self.lender.as_mut().map(|lender| lender.sweep(now)).unwrap_or_default();
        for topic in left {
            // Its limiter may have waited for this to go; another split may wait for it.
            if let Some(key) = self.topics_by_name.get(&topic).copied() {
                self.mark_topic(key);
            }
            self.join_wished(&topic, now);
        }
        while let Some((to, frame)) = self.lender.as_mut().and_then(|lender| lender.poll_frame()) {
            self.outputs.push_back(Output::Lend(to, frame));
        }
        !self.changed.topics.is_empty()
    }

    /// How `topic` lends; `None` if no order asks for it.
    pub(super) fn lend_state(&self, topic: &TopicName) -> Option<LendState> {
        self.lender.as_ref()?.state_of(topic)
    }

    /// More of the burst of `topic` is lent than its part has now: it counts as larger until that has come back.
    pub(super) fn is_overlent(&self, topic: &TopicName) -> bool {
        let Some(topic) = self.topics_by_name.get(topic).map(|key| &self.topics[*key]) else { return false };
        // What lanes have left when they are shut lets nothing pass.
        let in_lanes = topic.host.as_ref().is_some_and(|host| !host.is_all_in());
        !in_lanes && topic.limiter.as_ref().is_some_and(Limiter::is_overlent)
    }

    /// All circles and what went through them.
    pub(super) fn lend_snapshot(&self) -> LendSnapshot {
        self.lender.as_ref().map_or_else(LendSnapshot::default, |lender| lender.snapshot())
    }
}

/// The purse of one circle alone.
struct OnePurse<'a> {
    circle: Circle,
    purse: &'a mut dyn Purse,
    others: NoPurse,
}

impl Purses for OnePurse<'_> {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        if circle == self.circle { Some(self.purse) } else { Some(&mut self.others) }
    }
}
