//! How long answers take: counts by fixed bounds, of few things or of many tenants.
//!
//! One thread counts without a lock. What changed since the last time is copied to where others may read it
//! ([`TenantTimes::publish`]), so the price of that follows the requests, not the tenants.

use core::time::Duration;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::neighbours::Tenant;

/// Upper bounds of the buckets in microseconds, about two in each doubling of ten: 0.5 ms is what a proxy on a fast network
/// adds, 30 s is more than people wait. Beyond is one bucket more.
pub const BOUNDS_US: [u64; 15] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
];
/// Tenants of which one thread keeps times apart: 200 KB. As many as a snapshot lists.
pub const TENANTS_MAX: usize = 1_000;
/// Places that are looked at for an idle tenant when all are taken.
const LOOKED_AT: usize = 16;

/// Times by [`BOUNDS_US`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    /// Counts one. O(1).
    pub fn add(&mut self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        // A bound belongs to its bucket, as Prometheus has it.
        let bucket = BOUNDS_US.partition_point(|bound| bound * 1_000 < ns);
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(other.counts) {
            *sum += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// For each bound, in microseconds, how many were no longer. All are [`count`](Self::count).
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS_US.into_iter().zip(counts)
    }
}

/// Times of one thread's tenants. At the bound a tenant that had no answer lately gives its place away, and what was counted
/// of it joins [`other`](Published::other); if there is none among the few that are looked at, so does the new one.
#[derive(Debug)]
pub struct TenantTimes {
    entries: Vec<Entry>,
    /// By the tenant's number.
    places: HashMap<u32, usize, RandomState>,
    other: Histogram,
    /// Places that changed since they were published.
    changed: Vec<usize>,
    most: usize,
    /// Where the search for an idle tenant goes on.
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    tenant: u32,
    name: Arc<str>,
    times: Histogram,
    /// Counted since the search for an idle one came by.
    seen: bool,
    is_changed: bool,
}

/// What others may read of [`TenantTimes`]. A name may be there twice: its tenant lost its number and came back.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// Times by the tenant's name.
    pub tenants: Vec<(Arc<str>, Histogram)>,
    /// Of tenants without a place.
    pub other: Histogram,
}

impl Default for TenantTimes {
    fn default() -> Self {
        Self::new(TENANTS_MAX)
    }
}

impl TenantTimes {
    /// For at most so many tenants, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            entries: Vec::new(),
            places: HashMap::default(),
            other: Histogram::default(),
            changed: Vec::new(),
            most: most.max(1),
            hand: 0,
        }
    }

    /// Counts an answer of `tenant`; its `name` is asked for if it has no place yet. O(1).
    pub fn add(&mut self, tenant: Tenant, span: Duration, name: impl FnOnce() -> Arc<str>) {
        let known = self.places.get(&tenant.number()).copied();
        let Some(at) = known.or_else(|| self.enter(tenant.number(), name)) else {
            self.other.add(span);
            return;
        };
        let entry = &mut self.entries[at];
        entry.times.add(span);
        entry.seen = true;
        if !std::mem::replace(&mut entry.is_changed, true) {
            self.changed.push(at);
        }
    }

    /// Copies what changed since the last call to `to`, which is always the same. O(tenants that had an answer).
    pub fn publish(&mut self, to: &mut Published) {
        to.other = self.other;
        for at in self.changed.drain(..) {
            let entry = &mut self.entries[at];
            entry.is_changed = false;
            match to.tenants.get_mut(at) {
                Some((name, times)) => {
                    *times = entry.times;
                    if !Arc::ptr_eq(name, &entry.name) {
                        *name = Arc::clone(&entry.name);
                    }
                }
                // Places are taken in order, and each changes when it is.
                None => to.tenants.push((Arc::clone(&entry.name), entry.times)),
            }
        }
    }

    fn enter(&mut self, tenant: u32, name: impl FnOnce() -> Arc<str>) -> Option<usize> {
        if self.entries.len() < self.most {
            let at = self.entries.len();
            let times = Histogram::default();
            self.entries.push(Entry { tenant, name: name(), times, seen: true, is_changed: false });
            self.places.insert(tenant, at);
            return Some(at);
        }
        let at = self.idle()?;
        let entry = &mut self.entries[at];
        self.other.merge(&std::mem::take(&mut entry.times));
        self.places.remove(&std::mem::replace(&mut entry.tenant, tenant));
        entry.name = name();
        self.places.insert(tenant, at);
        Some(at)
    }

    /// A place whose tenant had no answer since the search came by the last time.
    fn idle(&mut self) -> Option<usize> {
        for _ in 0..LOOKED_AT.min(self.entries.len()) {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            if !std::mem::replace(&mut self.entries[at].seen, false) {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::super::neighbours::{Neighbours, NeighboursConfig};
    use super::*;

    #[test]
    fn a_time_is_counted_at_its_bound_and_above() {
        let mut times = Histogram::default();
        for us in [0, 500, 501, 30_000_000, 30_000_001] {
            times.add(Duration::from_micros(us));
        }
        let counts: Vec<_> = times.cumulative().collect();
        assert_eq!((counts[0], counts[1]), ((500, 2), (1_000, 3)));
        assert_eq!(counts.last(), Some(&(30_000_000, 4)), "one took longer than the last bound");
        assert_eq!((times.count(), times.sum()), (5, Duration::from_micros(60_001_002)));
        let mut sum = times;
        sum.merge(&times);
        assert_eq!((sum.count(), sum.sum()), (10, times.sum() * 2));
        times.add(Duration::MAX);
        assert_eq!(times.sum(), Duration::from_nanos(u64::MAX));
    }

    /// Tenants of these names.
    fn tenants(names: core::ops::Range<u32>) -> Vec<(Tenant, Arc<str>)> {
        let mut limiter = Neighbours::new(NeighboursConfig::default(), Instant::ZERO);
        names.map(|n| format!("t{n}")).map(|name| (limiter.tenant(&name, Instant::ZERO), name.into())).collect()
    }

    fn all(published: &Published) -> u64 {
        published.tenants.iter().map(|(_, times)| times.count()).sum::<u64>() + published.other.count()
    }

    #[test]
    fn every_answer_is_counted_once_however_many_names_come() {
        let (mut times, mut published) = (TenantTimes::new(8), Published::default());
        let tenants = tenants(0..100);
        for round in 1..=3 {
            for (tenant, name) in &tenants {
                times.add(*tenant, Duration::from_millis(1), || Arc::clone(name));
            }
            times.publish(&mut published);
            assert_eq!(all(&published), 100 * round);
            assert_eq!(published.tenants.len(), 8);
        }
    }

    #[test]
    fn a_tenant_that_is_busy_keeps_its_place_while_others_come_and_go() {
        let (mut times, mut published) = (TenantTimes::new(2), Published::default());
        let tenants = tenants(0..50);
        let span = Duration::from_millis(1);
        for (tenant, name) in &tenants {
            times.add(tenants[0].0, span, || Arc::clone(&tenants[0].1));
            times.add(*tenant, span, || Arc::clone(name));
        }
        times.publish(&mut published);
        let busy = published.tenants.iter().find(|(name, _)| **name == *"t0").expect("it is there");
        assert_eq!((busy.1.count(), all(&published)), (51, 100));
    }

    #[test]
    fn only_what_changed_is_copied() {
        let (mut times, mut published) = (TenantTimes::new(8), Published::default());
        let tenants = tenants(0..2);
        for (tenant, name) in &tenants {
            times.add(*tenant, Duration::from_millis(1), || Arc::clone(name));
        }
        times.publish(&mut published);
        published.tenants[0].1 = Histogram::default();
        times.add(tenants[1].0, Duration::from_millis(1), || unreachable!("it is known"));
        times.publish(&mut published);
        let counts: Vec<u64> = published.tenants.iter().map(|(_, times)| times.count()).collect();
        assert_eq!(counts, [0, 2]);
    }
}
