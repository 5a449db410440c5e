//! The lanes of topics that live on a shard: when they are opened and shut, and what comes through them.

use std::time::Duration;

use tidegate_core::lend::{Circle, Memory, Purse};
use tidegate_core::limit::{Limit, TokenBucket, split};
use tidegate_core::{Instant, Rate};
use tidegate_wire::nsq::TopicName;

use super::lanes::{Rest, SPREAD_SHARDS_MAX, Way, Word};
use super::limiter::{Mode, Unit};
use super::loans::kept;
use super::peers::{Note, Parcel, PeerBatch, PeerEntry};
use super::publishers::Link;
use super::shard::{Shard, ShardConfig};
use super::topic::{Mark, Pending, TopicKey};

/// Each share is more than what is never lent: else a share that nobody needs would be of no use to others. And that is
/// as much as the dearest message costs: one that is dearer than its bucket is deep would add to the whole.
fn is_divisible(burst: u64, unit: Unit, config: &ShardConfig) -> bool {
    let least = burst / config.shards as u64;
    let kept = kept(unit, 1, least);
    least > kept && kept >= unit.cost(1, config.max_msg_size as u64)
}

/// A shard that drains waits so long for lanes of its topics. They answer at once, unless their thread has died.
const ENDING_MAX: Duration = Duration::from_secs(1);

impl Shard {
    /// A lane on `shard` of the topic called `name` speaks, or the home of a lane here.
    pub(super) fn on_lane_word(&mut self, shard: usize, name: &TopicName, word: Word, now: Instant) {
        if self.is_spread(name) {
            self.on_home_word(name, word, now);
            return;
        }
        // A topic that was deleted has no lanes any more.
        let Some(key) = self.topics_by_name.get(name).copied() else { return };
        let topic = &mut self.topics[key];
        let Some(host) = &mut topic.host else { return };
        match word {
            Word::Holds { epoch } => {
                host.on_holds(shard, epoch);
                self.mark_topic(key);
            }
            Word::Stands(stand) => {
                host.on_stand(shard, stand);
                topic.note_backlog(now);
            }
            Word::IsShut { epoch, left } => {
                host.on_shut(shard, epoch, left);
                let (kept_rate, all_in) = (host.rate_now(), host.epoch().is_none() && host.is_all_in());
                if let Some(limiter) = &mut topic.limiter {
                    limiter.keep_rate(kept_rate, now);
                    // Not before: depth that comes back without its tokens would be filled twice.
                    if all_in {
                        limiter.reclaim(host.take_left(), now);
                    }
                }
                if all_in {
                    self.join_wished(name, now);
                }
                self.mark_topic(key);
                self.end_if_all_in(now);
            }
            Word::Hold { .. } | Word::Go { .. } | Word::Shut { .. } | Word::Landed(_) => {}
        }
    }

    /// Another shard ends.
    pub(super) fn on_shard_ends(&mut self, shard: usize, now: Instant) {
        if let Some(laning) = &mut self.laning {
            laning.on_gone(shard);
        }
        let keys: Vec<TopicKey> = self.topics.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(host) = &mut self.topics[key].host {
                host.on_gone(shard);
            }
        }
        self.end_if_all_in(now);
    }

    // Opening and shutting.

    /// Nothing but tokens holds the topic up, and there is a limit of this broker alone to be shared out.
    fn may_have_lanes(&self, key: TopicKey) -> bool {
        let topic = &self.topics[key];
        let Some(limiter) = &topic.limiter else { return false };
        let limit = limiter.own_limit();
        limiter.delays()
            && !limiter.is_retiring()
            && self.contracts.parts.get(&topic.name).is_none()
            && self.lender.as_ref().is_none_or(|lender| lender.circle_of(&topic.name).is_none())
            && !limit.rate.is_zero()
            && is_divisible(limit.burst, limiter.contract.unit, &self.config)
            && self.config.shards <= SPREAD_SHARDS_MAX
            && self.config.mem_queue_size > 0
            && topic.flows()
            && self.channels_have_room(key, 0)
            && !self.is_ending()
    }

    /// Opens or shuts the lanes of the topic at `key`, as things stand now that whatever has its tokens is gone.
    pub(super) fn review_lanes(&mut self, key: TopicKey, now: Instant) {
        let Some(host) = &self.topics[key].host else { return };
        match (host.epoch(), self.may_have_lanes(key)) {
            (Some(_), false) => self.shut_lanes(key, Rest::Comes, now),
            (None, true) if host.would_open(now) => self.open_lanes(key, now),
            _ => {}
        }
        loop {
            let topic = &mut self.topics[key];
            let Some(host) = topic.host.as_mut().filter(|_| topic.parked.is_empty()) else { return };
            let Some(shard) = host.next_to_go(topic.queue.depth()) else { return };
            self.give_share(key, shard, now);
        }
    }

    fn open_lanes(&mut self, key: TopicKey, now: Instant) {
        let Self { laning: Some(laning), topics, peers, config, .. } = self else { return };
        let topic = &mut topics[key];
        let (Some(limiter), Some(host)) = (&mut topic.limiter, &mut topic.host) else { return };
        let limit = limiter.own_limit();
        if !limiter.is_unlent() || limiter.limit() != limit {
            return;
        }
        limiter.coarsen();
        let Ok(shares) = split::evenly(limit, config.shards) else { return };
        let epoch = laning.next_epoch();
        let circle = Circle(epoch);
        let (members, keep) = (laning.members(), kept(limiter.contract.unit, 1, shares[config.shard].burst));
        if laning.lending.open(circle, &members, (limit.burst, keep), Memory::Fresh, limiter, now).is_err() {
            return;
        }
        laning.homes.insert(circle, key);
        for shard in host.open(epoch, shares) {
            peers.note(shard, Note::Lane(topic.name.clone(), Word::Hold { epoch }));
        }
    }

    /// The lane of `shard` gets its share out of the home's.
    fn give_share(&mut self, key: TopicKey, shard: usize, now: Instant) {
        let topic = &self.topics[key];
        let (Some(host), Some(limiter)) = (&topic.host, &topic.limiter) else { return };
        let (Some(epoch), part, unit) = (host.epoch(), host.share(shard), limiter.contract.unit) else { return };
        let circle = Circle(epoch);
        let tokens = Purse::tokens(limiter, now);
        let moved = self.with_shares(|lending, shares| {
            let base = lending.account(circle).map_or(0, |position| position.base);
            base - lending.set_base(circle, base.saturating_sub(part.burst), shares, now)
        });
        let topic = &mut self.topics[key];
        let (Some(host), Some(limiter)) = (&mut topic.host, &mut topic.limiter) else { return };
        let (depth, rate) = (moved.unwrap_or(0), host.go(shard));
        limiter.keep_rate(rate, now);
        let freed = tokens.saturating_sub(Purse::tokens(limiter, now)).min(depth);
        // Without a rate to be kept here the whole of it is.
        let limit = Limit::new(if rate.is_some() { part.rate } else { Rate::ZERO }, depth);
        let mut bucket = TokenBucket::empty(Limit::new(limit.rate, depth - freed), now);
        bucket.receive(freed, now);
        let word = Word::Go { epoch, bucket: Box::new(bucket), unit };
        self.peers.note(shard, Note::Lane(topic.name.clone(), word));
    }

    /// Shuts the lanes of the topic at `key`, if they are open: from `now` on nothing passes that they release.
    pub(super) fn shut_lanes(&mut self, key: TopicKey, rest: Rest, now: Instant) {
        let Self { laning: Some(laning), topics, peers, .. } = self else { return };
        let topic = &mut topics[key];
        let Some(host) = &mut topic.host else { return };
        let Some(epoch) = host.epoch() else { return };
        for shard in host.shut(now) {
            peers.note(shard, Note::Lane(topic.name.clone(), Word::Shut { epoch, rest }));
        }
        let all_in = host.is_all_in();
        if let Some(limiter) = &mut topic.limiter {
            limiter.keep_rate(None, now);
            if all_in {
                limiter.reclaim(host.take_left(), now);
            }
        }
        let circle = Circle(epoch);
        laning.homes.remove(&circle);
        self.with_shares(|lending, shares| lending.close(circle, shares, now));
        self.mark_topic(key);
    }

    /// What the shares of the topic at `key` are asked for, now that whatever has its tokens is gone.
    #[inline]
    pub(super) fn look_for_shares(&mut self, key: TopicKey, now: Instant) {
        let topic = &self.topics[key];
        let Some(epoch) = topic.host.as_ref().and_then(|host| host.epoch()) else { return };
        let (messages, bytes) = (topic.queue.depth(), topic.queue.bytes());
        let waiting = topic.limiter.as_ref().filter(|_| topic.flows());
        let waiting = waiting.map_or(0, |limiter| limiter.wanted(messages, bytes));
        self.with_shares(|lending, shares| lending.look(Circle(epoch), waiting, shares, now));
    }

    // Ending.

    /// The shard is about to drain: its lanes and those of its topics are shut. `true` if nothing is waited for.
    pub(super) fn end_lanes(&mut self, now: Instant) -> bool {
        self.end_own_lanes(now);
        let keys: Vec<TopicKey> = self.topics.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.shut_lanes(key, Rest::Comes, now);
        }
        let all_in = self.has_all_in();
        if let Some(laning) = self.laning.as_mut().filter(|_| !all_in) {
            laning.ends_by = Some(now + ENDING_MAX);
        }
        all_in
    }

    fn has_all_in(&self) -> bool {
        self.topics.values().all(|topic| topic.host.as_ref().is_none_or(|host| host.is_all_in()))
    }

    /// Drains, if that waited for the last lane, or in vain: a thread may have died.
    pub(super) fn end_if_all_in(&mut self, now: Instant) {
        let Some(ends_by) = self.laning.as_ref().and_then(|laning| laning.ends_by) else { return };
        if !self.draining && (self.has_all_in() || now >= ends_by) {
            self.move_messages(now);
            self.drain_queues();
        }
    }

    // Coming in.

    /// A message came that a lane has taken.
    pub(super) fn land(&mut self, key: TopicKey, batch: &PeerBatch, entry: &PeerEntry, now: Instant) {
        let (shard, Parcel { bytes, arrival, read, .. }) = (batch.from_shard, entry.parcel);
        let link = Link { shard, serial: entry.publisher.serial };
        let publisher = self.publisher_of_guest(link, key, now);
        self.count_sent(key, publisher, 1, bytes as u64, now);
        let passes = self.passes(key, shard, entry, now);
        let (id, timestamp) = (self.next_id(), self.unix_ns(arrival));
        let topic = &mut self.topics[key];
        topic.counts.offered += 1;
        topic.counts.offered_bytes += bytes as u64;
        let mark = if topic.limiter.is_some() || passes.is_some() {
            Mark::in_line(publisher.no())
        } else {
            Mark::admitted(publisher.no())
        };
        for body in batch.bodies(entry) {
            let message = self.messages.insert(id, timestamp, arrival, body);
            let pending = Pending { message, due: Instant::ZERO, read, mark };
            match passes {
                Some(release) => self.leave_topic(key, pending, release, None, now),
                None => self.keep_unpaid(key, pending, now),
            }
        }
    }

    /// When the message got its tokens in a lane, if they count.
    fn passes(&mut self, key: TopicKey, shard: usize, entry: &PeerEntry, now: Instant) -> Option<Instant> {
        let Way::Released { epoch, since, release } = entry.way else { return None };
        let topic = &mut self.topics[key];
        let host = topic.host.as_mut()?;
        if !host.is_open_for(shard, epoch) {
            return None;
        }
        if let Some(landed) = host.on_landed(shard, entry.parcel.bytes as u64) {
            self.peers.note(shard, Note::Lane(topic.name.clone(), Word::Landed(landed)));
        }
        if !topic.flows() || !self.channels_have_room(key, entry.parcel.bytes) {
            self.shut_lanes(key, Rest::Comes, now);
            return None;
        }
        let topic = &mut self.topics[key];
        let delay = release.nanos_since(since);
        topic.access_delay.record(delay, now);
        topic.counts.delayed += u64::from(delay > 0);
        Some(release)
    }

    /// A message that was accepted on another shard goes to the end of the line, behind all that came from there before.
    fn keep_unpaid(&mut self, key: TopicKey, pending: Pending, now: Instant) {
        self.let_in_all(key, now);
        self.enter_staged(key, now);
        let topic = &mut self.topics[key];
        if topic.limiter.is_none() {
            self.admit(key, pending, self.messages.get(pending.message).arrival, now);
        }
        let topic = &mut self.topics[key];
        if topic.queue.log().is_some() {
            self.keep_in_topic(key, pending, None);
        } else {
            // It was accepted: it is not dropped where nothing is behind the queue. Lanes hold as much as one queue.
            topic.queue.push_memory(pending, &self.messages);
            self.mark_topic(key);
        }
        let topic = &mut self.topics[key];
        let line = topic.queue.depth();
        if let Some(limiter) = topic.limiter.as_mut().filter(|limiter| limiter.contract.mode == Mode::Shadow)
            && !limiter.limit().rate.is_zero()
        {
            // The contract under which it was accepted was taken away meanwhile: it goes at that pace.
            limiter.pace(line);
        }
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_lanes(&self) {
        let Some(laning) = &self.laning else { return };
        for (circle, key) in &laning.homes {
            let open = self.topics.get(*key).and_then(|topic| topic.host.as_ref()?.epoch());
            assert_eq!(open, Some(circle.0), "a circle of lanes is that of the opening in force");
        }
        for topic in self.topics.values() {
            let all_in = topic.host.as_ref().is_some_and(|host| host.epoch().is_none() && host.is_all_in());
            let lent = topic.limiter.as_ref().is_some_and(|limiter| !limiter.is_unlent());
            let to_brokers = self.lender.as_ref().is_some_and(|lender| lender.circle_of(&topic.name).is_some());
            assert!(!all_in || !lent || to_brokers, "what is not with lanes or brokers is here");
        }
    }
}
