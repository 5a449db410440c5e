//! The contracts of a shard by name, and what is left of the tokens of those that are not at work.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::limit::{Limit, SpentBuckets, TokenBucket};
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::limiter::{Contract, Limiter, Source};

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

/// Contracts for topics and channels that are there or come to be later, and the buckets of those that went.
#[derive(Debug)]
pub(super) struct Contracts {
    by_key: BTreeMap<LimitKey, (Contract, Source)>,
    spent: SpentBuckets<LimitKey>,
}

impl Default for Contracts {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), spent: SpentBuckets::new(SPENT_BUCKETS_MAX) }
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

    /// A limiter for `key`, which came to be now, if it has a contract.
    pub(super) fn limiter(&mut self, key: &LimitKey, now: Instant) -> Option<Limiter> {
        if self.by_key.is_empty() {
            return None;
        }
        let (contract, source) = *self.by_key.get(key)?;
        Some(self.limiter_under(key, (contract, source), 0, now))
    }

    /// A limiter for `key` under `contract`, with the tokens that are left of an earlier one; `line_cost` waits already.
    pub(super) fn limiter_under(
        &mut self,
        key: &LimitKey,
        (contract, source): (Contract, Source),
        line_cost: u64,
        now: Instant,
    ) -> Limiter {
        Limiter::new(contract, source, self.spent.recall(key, contract.limit, now), line_cost, now)
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

    /// Remembers a bucket of an earlier run, which held its level at `at`.
    pub(super) fn restore(&mut self, kept: KeptBucket, at: Instant, now: Instant) {
        self.spent.remember(kept.key, TokenBucket::with_level(kept.limit, kept.level, at), now);
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
