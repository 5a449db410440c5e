//! The waiting discipline of the token bucket.

use std::collections::VecDeque;

use crate::Instant;
use crate::limit::{Limit, Pacer, Throttled, TokenBucket};

/// A first-in first-out line behind a [`Pacer`]: nothing is refused while the line has room, and each item
/// leaves at the first instant at which the bucket holds its cost.
///
/// Arrivals carry their own stamp: an item that is looked at late is charged at the time it came, so a late reader or a
/// late timer delays it but does not push those behind it further back. A stamp older than the one before counts as
/// that one: the line is first come, first served, and its caller merges stamps.
///
/// The delay of an item of cost `c` is max(0, U + c - b) / r, with `U` the work in tokens found on arrival, rounded up to
/// the nanosecond; the part of a token minted in that nanosecond is kept, so that the rounding does not add up. Only a
/// bucket that cannot hold both, because `c` is the burst or more, loses it: there the first law of limiters, at most
/// burst (or `c`) and rate times span in any span, leaves no choice.
/// Source: SRTM, §5.2 and Eq. 2.
#[derive(Clone, Debug)]
pub struct Gate<T> {
    pacer: Pacer,
    waiting: VecDeque<Waiting<T>>,
    /// Sum of the costs in `waiting`.
    waiting_cost: u64,
    capacity: u64,
    /// The latest stamp of an arrival.
    latest: Instant,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    item: T,
    cost: u64,
    arrival: Instant,
}

/// An item that has got its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released<T> {
    /// What was pushed.
    pub item: T,
    /// When it came, in the line's order: not before the one ahead of it.
    pub arrival: Instant,
    /// When it could go: `arrival` if it was never delayed by the bucket.
    pub release: Instant,
    /// The tokens it was charged.
    pub cost: u64,
}

/// The line is full; the item comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full<T>(pub T);

impl<T> Gate<T> {
    /// A full bucket and an empty line that holds at most `capacity` tokens' worth of items (and always one item).
    /// A free item takes the room of one token.
    #[must_use]
    pub fn new(limit: Limit, capacity: u64, now: Instant) -> Self {
        let pacer = Pacer::new(TokenBucket::new(limit, now));
        Self { pacer, waiting: VecDeque::new(), waiting_cost: 0, capacity, latest: now }
    }

    /// The contract in force.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.pacer.limit()
    }

    /// Puts `limit` in force from `now` on; tokens earned and the order of the line are kept.
    ///
    /// Call [`Gate::pop`] until it returns `None` first: what was due before `now` is due under the old limit.
    pub fn set_limit(&mut self, limit: Limit, now: Instant) {
        self.pacer.set_limit(limit, now);
    }

    /// The tokens.
    #[must_use]
    pub fn bucket(&self) -> &TokenBucket {
        self.pacer.bucket()
    }

    /// The tokens, for those who lend them. Call [`Gate::pop`] until it returns `None` first.
    pub fn bucket_mut(&mut self) -> &mut TokenBucket {
        self.pacer.bucket_mut()
    }

    /// Tokens in the bucket at `now`.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> f64 {
        self.pacer.tokens(now)
    }

    /// Items in the line.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True if nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sum of the costs of the items in the line, each at least 1.
    #[must_use]
    pub fn waiting_cost(&self) -> u64 {
        self.waiting_cost
    }

    /// Joins the line at its end.
    ///
    /// # Errors
    /// [`Full`] gives the item back when the line is full.
    pub fn push(&mut self, item: T, cost: u64, arrival: Instant) -> Result<(), Full<T>> {
        let waiting_cost = self.waiting_cost.checked_add(cost.max(1));
        let Some(waiting_cost) = waiting_cost.filter(|&sum| sum <= self.capacity || self.waiting.is_empty()) else {
            return Err(Full(item));
        };
        self.waiting_cost = waiting_cost;
        self.latest = self.latest.max(arrival);
        self.waiting.push_back(Waiting { item, cost, arrival: self.latest });
        Ok(())
    }

    /// Takes `cost` tokens past the line, all or none, as a [`TokenBucket`] would; nobody overtakes those who wait.
    ///
    /// # Errors
    /// [`Throttled`] says when to come back; while somebody waits, that is when the head of the line leaves.
    pub fn try_pass(&mut self, cost: u64, now: Instant) -> Result<(), Throttled> {
        if self.waiting.is_empty() {
            return self.pacer.try_pass(cost, now);
        }
        Err(self.head_release().map_or(Throttled::Never, Throttled::Until))
    }

    /// The next item that has its tokens at `now`; call until `None`.
    pub fn pop(&mut self, now: Instant) -> Option<Released<T>> {
        let release = self.head_release()?;
        if release > now {
            return None;
        }
        let Waiting { item, cost, arrival } = self.waiting.pop_front()?;
        self.waiting_cost -= cost.max(1);
        self.pacer.take(cost, release);
        Some(Released { item, arrival, release, cost })
    }

    /// Takes the oldest item out of the line without charging it.
    pub fn drop_oldest(&mut self) -> Option<T> {
        let head = self.waiting.pop_front()?;
        self.waiting_cost -= head.cost.max(1);
        Some(head.item)
    }

    /// When the head of the line gets its tokens; `None` when nobody waits or the rate is zero.
    #[must_use]
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.head_release()
    }

    fn head_release(&mut self) -> Option<Instant> {
        let head = self.waiting.front()?;
        self.pacer.release_of(head.cost, head.arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn items_leave_in_order_when_their_token_is_there() {
        let mut gate = Gate::new(Limit::new(Rate::per_s(1_000), 2), 100, at(0));
        for i in 0..4 {
            gate.push(i, 1, at(0)).unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| gate.pop(at(10))).map(|r| (r.item, r.release)).collect();
        assert_eq!(out, [(0, at(0)), (1, at(0)), (2, at(1)), (3, at(2))]);
    }

    #[test]
    fn a_late_look_does_not_delay_those_behind() {
        let mut gate = Gate::new(Limit::new(Rate::per_s(1_000), 1), 100, at(0));
        gate.push('a', 1, at(0)).unwrap();
        gate.push('b', 1, at(0)).unwrap();
        gate.pop(at(7)).unwrap();
        assert_eq!(gate.pop(at(7)).map(|r| r.release), Some(at(1)));
    }

    #[test]
    fn a_stamp_older_than_the_one_before_counts_as_that_one() {
        let mut gate = Gate::new(Limit::new(Rate::per_s(1_000), 2), 100, at(0));
        for (item, stamp) in [(0, 0), (1, 0), (2, 2), (3, 0)] {
            gate.push(item, 1, at(stamp)).unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| gate.pop(at(10))).map(|r| (r.item, r.arrival, r.release)).collect();
        // At 2 ms the bucket is full again: taken at its own stamp, item 3 would be the third at 0.
        assert_eq!(out[2..], [(2, at(2), at(2)), (3, at(2), at(2))]);
    }

    #[test]
    fn a_dear_item_holds_up_the_cheap_one_behind_it() {
        let mut gate = Gate::new(Limit::new(Rate::per_s(1_000), 4), 100, at(0));
        for (item, cost) in [(0, 4), (1, 3), (2, 0)] {
            gate.push(item, cost, at(0)).unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| gate.pop(at(10))).map(|r| (r.item, r.release)).collect();
        assert_eq!(out, [(0, at(0)), (1, at(3)), (2, at(3))]);
    }

    #[test]
    fn a_full_line_gives_the_item_back() {
        let mut gate = Gate::new(Limit::new(Rate::per_s(1), 1), 2, at(0));
        gate.push('a', 1, at(0)).unwrap();
        gate.push('b', 1, at(0)).unwrap();
        assert_eq!(gate.push('c', 1, at(0)), Err(Full('c')));
    }
}
