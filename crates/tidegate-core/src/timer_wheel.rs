//! Many timers, each cheap: a hierarchical timing wheel.
//!
//! Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7. Departures: each wheel keeps a
//! bit map of its occupied slots, so that idle time costs nothing, and each slot the earliest tick put into it, so that
//! the next timeout is known without a walk.

use core::time::Duration;

use crate::{Instant, time};

/// A wheel turns through 2^6 slots, the bits of one word.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Enough wheels for any 64-bit tick: nothing is too far in the future.
const LEVELS: usize = 64usize.div_ceil(SLOT_BITS as usize);
/// The list of timers whose tick has come, behind those of the slots.
const DUE: u16 = list_of(LEVELS, 0);
/// No timer.
const NIL: u32 = u32::MAX;

/// Names one timer in one [`TimerWheel`]. It stays harmless after the timer fired or was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerKey {
    index: u32,
    /// How often the entry had been used; comes round after 2^32 uses of the same entry.
    generation: u32,
}

/// Timers with an item each, which fire in order of their ticks and, within a tick, in order of insertion.
///
/// A timer never fires early, and can fire less than one tick after its deadline. [`insert`](Self::insert) and
/// [`cancel`](Self::cancel) are O(1); a timer moves at most 10 times towards the first wheel before it fires. Entries
/// live in one slab that grows to the greatest number of timers ever held at once: no allocation after that.
#[derive(Clone, Debug)]
pub struct TimerWheel<T> {
    tick_ns: u64,
    /// The tick that the wheels stand at: every timer in a slot has a greater one.
    position: u64,
    entries: Vec<Entry<T>>,
    /// Head of the list of unused entries, chained by `next`.
    free: u32,
    len: usize,
    /// All slots of the first level, of the second and so on; then `DUE`.
    lists: Box<[List]>,
    /// Bit `s` of `occupied[l]`: slot `s` of level `l` is not empty.
    occupied: [u64; LEVELS],
}

#[derive(Clone, Debug)]
struct Entry<T> {
    at: Instant,
    item: Option<T>,
    previous: u32,
    next: u32,
    generation: u32,
    list: u16,
}

/// A doubly linked list of entries.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    /// No entry has a smaller tick; less than the least one only after that one was cancelled.
    earliest: u64,
}

const EMPTY: List = List { head: NIL, tail: NIL, earliest: u64::MAX };

impl<T> TimerWheel<T> {
    /// An empty wheel that divides time into spans of `tick`, which must not be zero.
    #[must_use]
    pub fn new(tick: Duration, now: Instant) -> Self {
        let tick_ns = time::nanos(tick);
        assert!(tick_ns > 0, "the tick of a timer wheel is a positive span");
        Self {
            tick_ns,
            position: now.as_nanos() / tick_ns,
            entries: Vec::new(),
            free: NIL,
            len: 0,
            lists: vec![EMPTY; DUE as usize + 1].into_boxed_slice(),
            occupied: [0; LEVELS],
        }
    }

    /// Timers not yet fired or cancelled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts a timer that fires at `at`; at the next [`pop`](Self::pop) if `at` is past, never if it is
    /// [`Instant::MAX`].
    ///
    /// # Panics
    /// If 2^32 - 1 timers are held already.
    pub fn insert(&mut self, at: Instant, item: T) -> TimerKey {
        let index = self.take_entry(at, item);
        self.len += 1;
        self.place(index);
        TimerKey { index, generation: self.entries[index as usize].generation }
    }

    /// Stops a timer and gives its item back; `None` if it fired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation || entry.item.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.release(key.index).map(|(_, item)| item)
    }

    /// When the timer fires; `None` if it fired or was cancelled before.
    #[must_use]
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        let entry = self.entries.get(key.index as usize)?;
        (entry.generation == key.generation && entry.item.is_some()).then_some(entry.at)
    }

    /// When to call [`pop`](Self::pop) next; `None` if there are no timers. O(1).
    ///
    /// That is the first instant at which a timer fires, never later. It can be earlier only while a timer that would
    /// have fired then was cancelled; such a vain call moves the timers on, so that at most 10 follow one another.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if let Some(head) = self.entries.get(self.list(DUE).head as usize) {
            return Some(head.at);
        }
        let (_, list) = self.first_slot()?;
        Some(Instant::from_nanos(self.list(list).earliest.saturating_mul(self.tick_ns)))
    }

    /// The next timer whose time has come at `now`, with its deadline; call until `None`.
    pub fn pop(&mut self, now: Instant) -> Option<(TimerKey, Instant, T)> {
        let tick = now.as_nanos() / self.tick_ns;
        loop {
            let index = self.list(DUE).head;
            if let Some(entry) = self.entries.get(index as usize) {
                if entry.at > now {
                    return None; // Time stepped back between two calls.
                }
                let key = TimerKey { index, generation: entry.generation };
                self.unlink(index);
                return self.release(index).map(|(at, item)| (key, at, item));
            }
            let Some((start, list)) = self.first_slot().filter(|&(start, _)| start <= tick) else {
                // No slot begins before `tick`: every timer keeps its place as seen from there.
                self.position = self.position.max(tick);
                return None;
            };
            self.position = start;
            self.spread(list);
        }
    }

    /// The first occupied slot, as the tick at which it begins and the number of its list.
    ///
    /// A timer's level is the highest group of bits in which its tick differs from `position`, so all timers of a level
    /// come before those of the next, and all slots of a level are ahead of the one that `position` is in.
    fn first_slot(&self) -> Option<(u64, u16)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = SLOT_BITS * u32::try_from(level).expect("a level is below 11");
        let above = self.position.checked_shr(shift + SLOT_BITS).unwrap_or(0);
        let start = above.checked_shl(shift + SLOT_BITS).unwrap_or(0) | u64::from(slot) << shift;
        Some((start, list_of(level, slot)))
    }

    /// Moves the timers of a slot that `position` has just entered into lower levels or among the due.
    fn spread(&mut self, list: u16) {
        let mut index = self.list(list).head;
        self.lists[list as usize] = EMPTY;
        self.mark_empty(list);
        while index != NIL {
            let next = self.entries[index as usize].next;
            self.place(index);
            index = next;
        }
    }

    /// Links an entry into the list that its deadline belongs to as seen from `position`.
    fn place(&mut self, index: u32) {
        // Rounded up, so that the tick never begins before the deadline.
        let tick = self.entries[index as usize].at.as_nanos().div_ceil(self.tick_ns);
        let list = if tick <= self.position {
            DUE
        } else {
            let level = (tick ^ self.position).ilog2() / SLOT_BITS;
            #[expect(clippy::cast_possible_truncation, reason = "cut to 6 bits")]
            let slot = (tick >> (level * SLOT_BITS)) as u32 % SLOTS as u32;
            self.occupied[level as usize] |= 1 << slot;
            list_of(level as usize, slot)
        };
        let List { head, tail, earliest } = self.lists[list as usize];
        self.lists[list as usize] =
            List { head: if head == NIL { index } else { head }, tail: index, earliest: earliest.min(tick) };
        if let Some(last) = self.entries.get_mut(tail as usize) {
            last.next = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next, entry.list) = (tail, NIL, list);
    }

    fn unlink(&mut self, index: u32) {
        let &Entry { previous, next, list, .. } = &self.entries[index as usize];
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => self.lists[list as usize].head = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(after) => after.previous = previous,
            None => self.lists[list as usize].tail = previous,
        }
        if self.list(list).head == NIL {
            self.lists[list as usize] = EMPTY;
            self.mark_empty(list);
        }
    }

    fn mark_empty(&mut self, list: u16) {
        if let Some(slots) = self.occupied.get_mut(list as usize / SLOTS) {
            *slots &= !(1 << (list as usize % SLOTS));
        }
    }

    fn list(&self, list: u16) -> List {
        self.lists[list as usize]
    }

    fn take_entry(&mut self, at: Instant, item: T) -> u32 {
        let index = self.free;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            self.free = entry.next;
            (entry.at, entry.item) = (at, Some(item));
            return index;
        }
        let index = u32::try_from(self.entries.len()).ok().filter(|&index| index != NIL);
        let index = index.expect("a timer wheel holds fewer than 2^32 timers");
        self.entries.push(Entry { at, item: Some(item), previous: NIL, next: NIL, generation: 0, list: DUE });
        index
    }

    /// Puts an unlinked entry among the unused ones; keys made for it are stale from now on.
    fn release(&mut self, index: u32) -> Option<(Instant, T)> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        entry.item.take().map(|item| (entry.at, item))
    }
}

const fn list_of(level: usize, slot: u32) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "at most LEVELS * SLOTS = 704")]
    let list = (level * SLOTS) as u16 + slot as u16;
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn wheel(tick_ns: u64) -> TimerWheel<u64> {
        TimerWheel::new(Duration::from_nanos(tick_ns), at(0))
    }

    #[test]
    fn a_timer_fires_within_the_tick_after_its_deadline() {
        let mut wheel = wheel(1_000);
        let key = wheel.insert(at(5_001), 7);
        assert_eq!(wheel.next_timeout(), Some(at(6_000)));
        assert_eq!(wheel.pop(at(5_999)), None);
        assert_eq!(wheel.pop(at(6_000)), Some((key, at(5_001), 7)));
        assert_eq!((wheel.pop(Instant::MAX), wheel.next_timeout()), (None, None));
    }

    #[test]
    fn a_stale_key_cancels_nothing() {
        let mut wheel = wheel(1);
        let first = wheel.insert(at(5), 1);
        assert_eq!(wheel.cancel(first), Some(1));
        let second = wheel.insert(at(6), 2);
        assert_eq!((wheel.cancel(first), wheel.deadline(first)), (None, None));
        assert_eq!(wheel.deadline(second), Some(at(6)));
        assert_eq!(wheel.pop(at(6)).map(|(_, _, item)| item), Some(2));
        assert_eq!(wheel.cancel(second), None);
    }

    #[test]
    fn past_deadlines_fire_at_once_and_the_end_of_time_never() {
        let mut wheel = wheel(1_000_000);
        assert_eq!(wheel.pop(at(9_000_000)), None);
        wheel.insert(at(3), 1);
        wheel.insert(Instant::MAX, 2);
        assert_eq!(wheel.next_timeout(), Some(at(3)));
        assert_eq!(wheel.pop(at(9_000_000)).map(|(_, _, item)| item), Some(1));
        assert_eq!(wheel.pop(Instant::MAX), None);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn time_that_steps_back_fires_nothing_early() {
        let mut wheel = wheel(10);
        wheel.insert(at(20), 1);
        wheel.insert(at(20), 2);
        assert!(wheel.pop(at(20)).is_some());
        assert!(wheel.pop(at(19)).is_none());
        assert!(wheel.pop(at(20)).is_some());
    }

    #[test]
    fn a_million_timers_fire_in_order_without_growing_the_slab() {
        let mut wheel = wheel(1_000);
        let mut rng = crate::rng::Rng::new(1);
        for round in 0..2 {
            let start = round * 4_000_000_000_000;
            for i in 0..1_000_000 {
                wheel.insert(at(start + rng.below(3_600_000_000_000)), i);
            }
            let (mut fired, mut last) = (0, 0);
            while let Some(now) = wheel.next_timeout() {
                while let Some((_, deadline, _)) = wheel.pop(now) {
                    let tick = deadline.as_nanos().div_ceil(1_000);
                    assert!(tick >= last && deadline <= now);
                    (fired, last) = (fired + 1, tick);
                }
            }
            assert_eq!((fired, wheel.entries.len()), (1_000_000, 1_000_000));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(usize),
        Advance(u64),
        FollowTimeout,
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = (0u32..40).prop_flat_map(|bits| 0..(1u64 << bits).max(2));
        prop_oneof![
            4 => span.clone().prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Cancel),
            1 => span.prop_map(Step::Advance),
            2 => Just(Step::FollowTimeout),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_an_ordered_map(steps in proptest::collection::vec(step(), 1..200), tick in 1u64..2_000) {
            let mut wheel = wheel(tick);
            let (mut model, mut keys, mut now) = (BTreeMap::new(), Vec::new(), 0u64);
            for (id, step) in (0u64..).zip(steps) {
                match step {
                    // Half of the span back, so that some deadlines are past.
                    Step::Insert(span) => {
                        let deadline = (now + span).saturating_sub(span / 2 * (id % 2) * 2);
                        let key = wheel.insert(at(deadline), id);
                        // What is past is due now, behind what is due already.
                        let fires = deadline.div_ceil(tick).max(now / tick);
                        model.insert((fires, id), (key, deadline));
                        keys.push((key, fires, id));
                    }
                    Step::Cancel(pick) if !keys.is_empty() => {
                        let (key, fires, id) = keys[pick % keys.len()];
                        prop_assert_eq!(wheel.cancel(key), model.remove(&(fires, id)).map(|_| id));
                    }
                    Step::Cancel(_) => {}
                    Step::Advance(span) => now += span,
                    Step::FollowTimeout => {
                        let Some(next) = wheel.next_timeout() else { continue };
                        now = now.max(next.as_nanos());
                    }
                }
                if let Some((&(fires, _), _)) = model.first_key_value() {
                    let next = wheel.next_timeout().unwrap().as_nanos();
                    prop_assert!(next <= (fires * tick).max(now), "{next} is later than tick {fires}");
                }
                while let Some((key, deadline, item)) = wheel.pop(at(now)) {
                    let ((fires, id), expected) = model.pop_first().unwrap();
                    prop_assert_eq!((item, (key, deadline.as_nanos())), (id, expected));
                    prop_assert!(fires <= now / tick);
                }
                prop_assert!(model.first_key_value().is_none_or(|(&(fires, _), _)| fires > now / tick));
                prop_assert_eq!(wheel.len(), model.len());
            }
        }

        #[test]
        fn without_cancels_the_timeout_is_exact(
            deadlines in proptest::collection::vec((0u32..50).prop_flat_map(|bits| 0..(1u64 << bits).max(2)), 1..50),
        ) {
            let mut wheel = wheel(1);
            let mut sorted = deadlines.clone();
            sorted.sort_unstable();
            for deadline in deadlines {
                wheel.insert(at(deadline), deadline);
            }
            for deadline in sorted {
                prop_assert_eq!(wheel.next_timeout(), Some(at(deadline)));
                prop_assert_eq!(wheel.pop(at(deadline)).map(|(_, _, item)| item), Some(deadline));
            }
        }
    }
}
