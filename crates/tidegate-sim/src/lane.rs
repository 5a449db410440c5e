//! Things that happen later, most of them in the order in which they were put in.

use core::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::Instant;

/// A queue by time that costs O(1) for what is put in not earlier than the latest before it, such as everything on a
/// link of constant delay, and O(log n) for the rest. Items of one instant come out in the order of putting in, but
/// those that came in order before those that did not.
#[derive(Debug)]
pub struct Lane<T> {
    in_order: VecDeque<(Instant, T)>,
    others: BinaryHeap<Late<T>>,
    /// Number of items ever put into `others`: the tie breaker.
    ever: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { in_order: VecDeque::new(), others: BinaryHeap::new(), ever: 0 }
    }
}

impl<T> Lane<T> {
    /// Puts `item` in, to come out at `at`.
    #[inline]
    pub fn push(&mut self, at: Instant, item: T) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, item));
        } else {
            self.others.push(Late { at, order: self.ever, item });
            self.ever += 1;
        }
    }

    /// When the next item comes out; [`Instant::MAX`] if there is none.
    #[inline]
    #[must_use]
    pub fn next_at(&self) -> Instant {
        let in_order = self.in_order.front().map_or(Instant::MAX, |(at, _)| *at);
        self.others.peek().map_or(in_order, |late| late.at.min(in_order))
    }

    /// The next item with its instant.
    #[inline]
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        let in_order = self.in_order.front().map_or(Instant::MAX, |(at, _)| *at);
        if self.others.peek().is_some_and(|late| late.at < in_order) {
            return self.others.pop().map(|late| (late.at, late.item));
        }
        self.in_order.pop_front()
    }

    /// Number of items inside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// True if nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug)]
struct Late<T> {
    at: Instant,
    order: u64,
    item: T,
}

impl<T> Ord for Late<T> {
    /// The earliest is the greatest, since a binary heap yields the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<T> Eq for Late<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Rng;

    #[test]
    fn items_come_out_by_time_whatever_the_order_of_putting_in() {
        let mut rng = Rng::new(1);
        let mut lane = Lane::default();
        for item in 0..1_000u32 {
            lane.push(Instant::from_nanos(rng.below(500)), item);
        }
        assert_eq!(lane.len(), 1_000);
        let mut seen = Vec::new();
        while !lane.is_empty() {
            let next = lane.next_at();
            let (at, item) = lane.pop().unwrap();
            assert_eq!(at, next);
            seen.push((at, item));
        }
        assert_eq!(seen.len(), 1_000);
        assert!(seen.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(lane.next_at(), Instant::MAX);
        assert!(lane.pop().is_none());
    }

    #[test]
    fn what_comes_in_order_leaves_in_order() {
        let mut lane = Lane::default();
        (0..100u32).for_each(|item| lane.push(Instant::from_nanos(u64::from(item / 10)), item));
        assert!((0..100).all(|item| lane.pop().is_some_and(|(_, first)| first == item)));
    }
}
