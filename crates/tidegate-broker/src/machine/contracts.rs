//! The contracts of a shard by name, and what is left of the tokens of those that are not at work.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::limit::{Limit, SpentBuckets, TokenBucket};
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::limiter::{Contract, Discipline, Limiter, Mode, Source, Terms};
use super::parts::Parts;

/// Buckets that are remembered after their topic, channel or contract went, for each shard. At this bound a new bucket
/// begins empty.
pub const SPENT_BUCKETS_MAX: usize = 65_536;

/// What a contract is on: a topic, or a channel of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LimitKey {
    /// The topic.
    pub topic: TopicName,
    /// The channel; `None` for what leaves the topic.
    pub channel: Option<ChannelName>,
}

impl LimitKey {
    pub(super) fn topic(topic: &TopicName) -> Self {
        Self { topic: topic.clone(), channel: None }
    }

    pub(super) fn channel(topic: &TopicName, channel: &ChannelName) -> Self {
        Self { topic: topic.clone(), channel: Some(channel.clone()) }
    }
}

/// A bucket as it outlives the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptBucket {
    /// Of what.
    pub key: LimitKey,
    /// The contract it was under.
    pub limit: Limit,
    /// What it held, in the unit of [`TokenBucket::level`].
    pub level: u128,
}

/// Contracts for topics and channels that are there or come to be later, the node's parts of those of topics, and the
/// buckets of those that went.
#[derive(Debug)]
pub(super) struct Contracts {
    by_key: BTreeMap<LimitKey, (Contract, Source)>,
    pub(super) parts: Parts,
    spent: SpentBuckets<LimitKey>,
}

impl Default for Contracts {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), parts: Parts::default(), spent: SpentBuckets::new(SPENT_BUCKETS_MAX) }
    }
}

impl Contracts {
    /// Puts down what holds for `key` from now on.
    pub(super) fn set(&mut self, key: LimitKey, contract: Option<(Contract, Source)>) {
        match contract {
            Some(contract) => self.by_key.insert(key, contract),
            None => self.by_key.remove(&key),
        };
    }

    /// What a person or the file set for `key`.
    pub(super) fn contract(&self, key: &LimitKey) -> Option<Contract> {
        self.by_key.get(key).map(|(contract, _)| *contract)
    }

    /// What stands for `key` now.
    pub(super) fn terms(&self, key: &LimitKey) -> Option<Terms> {
        if self.by_key.is_empty() && self.parts.is_empty() {
            return None;
        }
        let set = self.by_key.get(key).copied();
        let part = if key.channel.is_none() { self.parts.get(&key.topic) } else { None };
        let rule = part.and_then(|part| Some((part, part.rule()?)));
        match (set, rule) {
            (set, None) => set.map(Terms::of),
            (Some(set), Some((part, rule))) => {
                Some(Terms { part: Some(rule), part_ends: part.ends(), ..Terms::of(set) })
            }
            (None, Some((part, rule))) => {
                let (limit, unit) = (part.limit(), part.unit());
                let contract = Contract { limit, unit, discipline: Discipline::Wait, mode: Mode::Enforce };
                Some(Terms { part: Some(rule), part_ends: part.ends(), ..Terms::of((contract, Source::Part)) })
            }
        }
    }

    /// A limiter for `key`, which came to be now, if something stands for it.
    pub(super) fn limiter(&mut self, key: &LimitKey, now: Instant) -> Option<Limiter> {
        let terms = self.terms(key)?;
        Some(self.limiter_under(key, terms, 0, now))
    }

    /// A limiter for `key` under `terms`, with the tokens that are left of an earlier one; `line_cost` waits already.
    pub(super) fn limiter_under(&mut self, key: &LimitKey, terms: Terms, line_cost: u64, now: Instant) -> Limiter {
        Limiter::new(terms, self.spent.recall(key, terms.limit(), now), line_cost, now)
    }

    /// A part of `key`, which has no limiter at work, comes, changes or goes: what stands is `after` and was `before`.
    /// Tokens stay what they were, as if one had been at work. Where nothing stood and nothing is remembered there are
    /// none: what there is of the whole is on other nodes.
    pub(super) fn carry_over(&mut self, key: &LimitKey, before: Option<Terms>, after: Terms, now: Instant) {
        let limit = after.limit();
        let before = before.map_or(Limit::new(limit.rate, 0), |before| before.limit());
        let mut bucket = self.spent.recall(key, before, now);
        // As deep as it was, so that it is not taken for full before it would have been.
        let depth = bucket.limit().burst.max(limit.burst);
        bucket.set_limit(Limit::new(limit.rate, depth), now);
        self.spent.remember(key.clone(), bucket, now);
    }

    /// The limiter of `key` goes; its tokens are remembered.
    pub(super) fn retire(&mut self, key: LimitKey, limiter: Limiter, now: Instant) {
        self.spent.remember(key, limiter.into_bucket(now), now);
    }

    /// See [`SpentBuckets::unknown_before`].
    pub(super) fn unknown_before(&self) -> Option<Instant> {
        self.spent.unknown_before()
    }

    /// What was taken before `now` is not known.
    pub(super) fn forget_before(&mut self, now: Instant) {
        self.spent.forget_before(now);
    }

    /// Remembers a bucket of an earlier run, which held its level at `at`. It may be full by now; but its limit may have
    /// changed meanwhile, when the lease of a part ended.
    pub(super) fn restore(&mut self, kept: KeptBucket, at: Instant) {
        self.spent.remember(kept.key, TokenBucket::with_level(kept.limit, kept.level, at), at);
    }

    /// The buckets that are remembered, as they are at `now`.
    pub(super) fn kept(&self, now: Instant) -> impl Iterator<Item = KeptBucket> {
        self.spent.iter().map(move |(key, bucket)| KeptBucket {
            key: key.clone(),
            limit: bucket.limit(),
            level: bucket.level(now),
        })
    }
}
