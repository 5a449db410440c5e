//! What buckets held when they were taken away.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::Instant;
use crate::limit::{Limit, TokenBucket};

/// Remembers buckets that were taken away before they were full again, so that making one anew under the same key mints
/// nothing. A bucket is forgotten when it would be full: a new one holds no more.
///
/// At most `capacity` buckets are remembered. One that does not fit is lost, and from then on every bucket that is not
/// remembered counts as empty at that moment: it gets less than it may have held, never more. O(log n).
#[derive(Clone, Debug)]
pub struct SpentBuckets<K> {
    buckets: BTreeMap<K, TokenBucket>,
    /// The same by the instant at which each is full; those that never fill stand at [`Instant::MAX`].
    by_full: BTreeSet<(Instant, K)>,
    capacity: usize,
    unknown_before: Option<Instant>,
}

impl<K: Ord + Clone> SpentBuckets<K> {
    /// Remembers nothing yet, and all is known: a bucket made now is full.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { buckets: BTreeMap::new(), by_full: BTreeSet::new(), capacity, unknown_before: None }
    }

    /// What was taken before `now` is not known: buckets that are not remembered held nothing then.
    pub fn forget_before(&mut self, now: Instant) {
        self.unknown_before = self.unknown_before.max(Some(now));
    }

    /// Since when all is known that was taken; `None` if it ever was.
    #[must_use]
    pub fn unknown_before(&self) -> Option<Instant> {
        self.unknown_before
    }

    /// Buckets that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// True if none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Keys and buckets, in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &TokenBucket)> {
        self.buckets.iter()
    }

    /// Takes note of a bucket that goes away at `now`.
    pub fn remember(&mut self, key: K, bucket: TokenBucket, now: Instant) {
        self.sweep(now);
        self.remove(&key);
        let full_at = bucket.full_at().unwrap_or(Instant::MAX);
        if full_at <= now {
            return;
        }
        if self.buckets.len() >= self.capacity {
            self.forget_before(now);
            return;
        }
        self.by_full.insert((full_at, key.clone()));
        self.buckets.insert(key, bucket);
    }

    /// The bucket of `key`: the one that was remembered, under its own contract, else a full one under `limit`, or one
    /// that was empty when memory was last lost.
    pub fn recall(&mut self, key: &K, limit: Limit, now: Instant) -> TokenBucket {
        self.sweep(now);
        if let Some(bucket) = self.remove(key) {
            return bucket;
        }
        match self.unknown_before {
            Some(since) => TokenBucket::empty(limit, since.min(now)),
            None => TokenBucket::new(limit, now),
        }
    }

    fn remove(&mut self, key: &K) -> Option<TokenBucket> {
        let Entry::Occupied(entry) = self.buckets.entry(key.clone()) else { return None };
        let bucket = entry.remove();
        self.by_full.remove(&(bucket.full_at().unwrap_or(Instant::MAX), key.clone()));
        Some(bucket)
    }

    /// Forgets what is full again.
    fn sweep(&mut self, now: Instant) {
        while self.by_full.first().is_some_and(|(full_at, _)| *full_at <= now) {
            if let Some((_, key)) = self.by_full.pop_first() {
                self.buckets.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn limit(burst: u64) -> Limit {
        Limit::new(Rate::per_s(1_000), burst)
    }

    fn spent(burst: u64, now: Instant) -> TokenBucket {
        let mut bucket = TokenBucket::new(limit(burst), now);
        bucket.try_take(burst, now).unwrap();
        bucket
    }

    #[test]
    fn a_bucket_made_anew_holds_what_the_old_one_would() {
        let mut memory = SpentBuckets::new(10);
        memory.remember("a", spent(5, at(0)), at(0));
        assert!((memory.recall(&"a", limit(5), at(2)).tokens(at(2)) - 2.0).abs() < 1e-9);
        assert!(memory.is_empty(), "it is in use again");
        assert!((memory.recall(&"b", limit(5), at(2)).tokens(at(2)) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_bucket_comes_back_under_its_own_contract() {
        let mut memory = SpentBuckets::new(10);
        memory.remember("a", spent(5, at(0)), at(0));
        assert_eq!(memory.recall(&"a", limit(500), at(2)).limit(), limit(5));
    }

    #[test]
    fn what_is_full_again_is_forgotten() {
        let mut memory = SpentBuckets::new(1);
        memory.remember("a", spent(5, at(0)), at(0));
        memory.remember("a", spent(7, at(1)), at(1));
        memory.remember("b", spent(5, at(8)), at(8));
        assert_eq!(memory.iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["b"]);
        assert!((memory.recall(&"a", limit(5), at(8)).tokens(at(8)) - 5.0).abs() < 1e-9, "it was full at 8 ms");
        memory.remember("full", TokenBucket::new(limit(1), at(8)), at(8));
        assert_eq!(memory.len(), 1);
    }

    #[test]
    fn at_the_bound_what_is_not_remembered_begins_empty() {
        let mut memory = SpentBuckets::new(1);
        memory.remember("a", spent(5, at(0)), at(0));
        memory.remember("b", spent(5, at(1)), at(1));
        for key in ["b", "c"] {
            assert!((memory.recall(&key, limit(5), at(3)).tokens(at(3)) - 2.0).abs() < 1e-9, "empty at 1 ms");
        }
        assert!((memory.recall(&"a", limit(5), at(3)).tokens(at(3)) - 3.0).abs() < 1e-9);
        assert!((memory.recall(&"d", limit(5), at(9)).tokens(at(9)) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_bucket_that_never_fills_is_remembered_for_good() {
        let mut memory = SpentBuckets::new(1);
        let none = Limit::new(Rate::ZERO, 3);
        let mut bucket = TokenBucket::new(none, at(0));
        bucket.try_take(2, at(0)).unwrap();
        memory.remember("a", bucket, at(0));
        memory.remember("b", spent(5, at(1)), at(1));
        assert!((memory.recall(&"a", none, at(1_000)).tokens(at(1_000)) - 1.0).abs() < 1e-9);
    }
}
