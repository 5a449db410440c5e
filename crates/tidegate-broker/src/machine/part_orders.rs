//! How a shard puts parts of limits in force, and what happens when they lapse.

use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_wire::nsq::TopicName;

use super::admin::AdminReply;
use super::contracts::LimitKey;
use super::home_shard;
use super::limiter::{PartRule, Terms};
use super::parts::{KeptPart, PartGrant, PartOrder, PartRefused, PartStatus, PartStep};
use super::shard::Shard;

impl Shard {
    /// Carries out a step of `order` for the topics of this shard.
    pub(super) fn put_parts(&mut self, order: &PartOrder, now: Instant) -> AdminReply {
        let (shard, shards) = (self.config.shard, self.config.shards);
        let own: Vec<_> =
            order.parts.iter().filter(|grant| home_shard(grant.topic.as_str(), shards) == shard).collect();
        if order.ends(now).is_none() {
            return AdminReply::PartsRefused(PartRefused::Late);
        }
        if order.is_of_another_clock(now) {
            return AdminReply::PartsRefused(PartRefused::OtherClock);
        }
        if let Err(why) = self.check_parts(order, &own, now) {
            return AdminReply::PartsRefused(why);
        }
        match order.step {
            PartStep::Check => {}
            PartStep::Shrink => self.shrink_parts(order, &own, now),
            PartStep::All => {
                // Once more, of what has come since.
                self.shrink_parts(order, &own, now);
                for grant in &own {
                    self.put_part(order, grant, grant.limit, now);
                }
            }
        }
        if let Some(grant) = own.iter().find(|grant| order.step != PartStep::Check && self.is_overlent(&grant.topic)) {
            return AdminReply::PartsRefused(PartRefused::Lent { topic: grant.topic.clone() });
        }
        AdminReply::Parts(own.iter().filter_map(|grant| self.part_status(&grant.topic, now)).collect())
    }

    fn check_parts(&self, order: &PartOrder, own: &[&PartGrant], now: Instant) -> Result<(), PartRefused> {
        let parts = &self.contracts.parts;
        parts.check_room(own.iter().copied())?;
        for grant in own {
            parts.check(order, grant, now)?;
            let contract = self.contracts.contract(&LimitKey::topic(&grant.topic));
            if contract.is_some_and(|contract| contract.unit != grant.unit) {
                return Err(PartRefused::OtherUnit { topic: grant.topic.clone(), unit: grant.unit });
            }
        }
        Ok(())
    }

    /// What of the parts is less than what is in force.
    fn shrink_parts(&mut self, order: &PartOrder, own: &[&PartGrant], now: Instant) {
        for grant in own {
            let terms = self.contracts.terms(&LimitKey::topic(&grant.topic));
            let taken = match terms {
                // Whatever opens a part that holds everything lets more pass.
                Some(Terms { part: Some(PartRule::Closed(_)), .. }) => continue,
                Some(terms) => terms.limit().lesser(grant.limit),
                None => grant.limit,
            };
            if terms.is_none_or(|terms| terms.limit() != taken) {
                self.put_part(order, grant, taken, now);
            }
        }
    }

    fn put_part(&mut self, order: &PartOrder, grant: &PartGrant, taken: Limit, now: Instant) {
        let key = LimitKey::topic(&grant.topic);
        let before = self.contracts.terms(&key);
        self.contracts.parts.put(order, grant, taken, now);
        self.wish_split(&grant.topic, grant.split.clone());
        self.put_in_force(&grant.topic, before, now, now);
    }

    /// Takes a part away: the contract alone holds again.
    pub(super) fn remove_part(&mut self, topic: &TopicName, revision: u64, now: Instant) -> AdminReply {
        let status = self.part_status(topic, now);
        let before = self.contracts.terms(&LimitKey::topic(topic));
        match self.contracts.parts.remove(topic, revision, now) {
            Ok(()) => {
                self.wish_split(topic, None);
                self.put_in_force(topic, before, now, now);
                AdminReply::Parts(status.into_iter().collect())
            }
            Err(why) => AdminReply::PartsRefused(why),
        }
    }

    /// All parts of this shard, in order of their topics.
    pub(super) fn part_statuses(&self, now: Instant) -> Vec<PartStatus> {
        self.contracts.parts.topics().filter_map(|topic| self.part_status(topic, now)).collect()
    }

    /// The part of `topic`, if it has one.
    pub(super) fn part_status(&self, topic: &TopicName, now: Instant) -> Option<PartStatus> {
        let part = self.contracts.parts.get(topic)?;
        let terms = self.contracts.terms(&LimitKey::topic(topic));
        let status = part.status(topic, terms.map(|terms| terms.limit()), now);
        Some(PartStatus { lends: self.lend_state(topic), ..status })
    }

    /// Parts as an earlier run left them, after its buckets and before contracts and topics. A lease that has ended since
    /// has ended then.
    pub fn restore_parts(&mut self, kept: impl IntoIterator<Item = KeptPart>, now: Instant) {
        for part in kept {
            self.contracts.parts.restore(part, now);
        }
        self.lapse_parts(now);
    }

    /// Puts in force what holds after the leases that have ended until `now`: from their ends on, however late that is
    /// found out.
    pub(super) fn lapse_parts(&mut self, now: Instant) {
        while let Some((ends, topic)) = self.contracts.parts.next_ended(now) {
            let before = self.contracts.terms(&LimitKey::topic(&topic));
            self.contracts.parts.lapse(&topic);
            self.put_in_force(&topic, before, ends, now);
        }
    }

    /// Puts in force on the topic called `name`, from `at` on, what stands for it now, where `before` stood until then.
    /// What was due until `at` goes as it was due.
    pub(super) fn put_in_force(&mut self, name: &TopicName, before: Option<Terms>, at: Instant, now: Instant) {
        let limit = LimitKey::topic(name);
        let after = self.contracts.terms(&limit);
        let key = self.topics_by_name.get(name).copied();
        if let (Some(before), Some(after)) = (before, after)
            && after.rules_as(&before)
        {
            if let Some(limiter) = key.and_then(|key| self.topics[key].limiter.as_mut()) {
                limiter.part_ends = after.part_ends; // Its lease may have been renewed.
            }
            self.review_lending(name, now);
            return;
        }
        if let Some(key) = key {
            self.drain_topic(key, now);
        }
        self.leave_unwished(name, now);
        let is_at_work = key.is_some_and(|key| self.topics[key].limiter.is_some());
        let parted = |terms: Option<Terms>| terms.is_some_and(|terms| terms.part.is_some());
        if let Some(after) = after
            && !is_at_work
            && (parted(before) || parted(Some(after)))
        {
            self.contracts.carry_over(&limit, before, after, at);
        }
        if let Some(key) = key {
            self.rule_topic(key, &limit, after, at);
        }
        self.join_wished(name, now);
    }
}
