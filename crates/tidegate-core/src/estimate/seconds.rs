//! A value for each of the last whole seconds. Seconds are those of the caller's clock: number `n` begins `n` seconds
//! after its origin.

use core::ops::Range;

use crate::Instant;

/// Whole seconds that are kept.
pub const SECONDS_MAX: u64 = 60;

/// The whole seconds, the running one, and one to spare, as a list of many publishers takes a while to make.
const SLOTS: u64 = SECONDS_MAX + 2;
const SECOND_NS: u64 = 1_000_000_000;

/// The number of the second that `now` is in.
#[must_use]
pub fn second_of(now: Instant) -> u64 {
    now.as_nanos() / SECOND_NS
}

fn slot_of(second: u64) -> usize {
    usize::try_from(second % SLOTS).expect("a ring has few slots")
}

/// A value for each of the last seconds.
#[derive(Clone, Debug)]
pub struct Ring<T> {
    slots: Box<[T]>,
    /// The last second that has a value.
    newest: u64,
}

impl<T: Copy + Default> Ring<T> {
    /// All values are the default until they are changed.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { slots: (0..SLOTS).map(|_| T::default()).collect(), newest: second_of(now) }
    }

    /// The value of the second that `now` is in, or of the newest one if time stepped back. O(1), but for the first
    /// call in a second, which forgets at most all values.
    #[inline]
    pub fn at(&mut self, now: Instant) -> &mut T {
        let second = second_of(now);
        if second > self.newest {
            self.advance(second);
        }
        &mut self.slots[slot_of(self.newest)]
    }

    fn advance(&mut self, second: u64) {
        let first = (self.newest + 1).max((second + 1).saturating_sub(SLOTS));
        for passed in first..=second {
            self.slots[slot_of(passed)] = T::default();
        }
        self.newest = second;
    }

    /// The value of `second`; the default if it is not kept.
    #[must_use]
    pub fn get(&self, second: u64) -> T {
        let kept = second <= self.newest && self.newest - second < SLOTS;
        if kept { self.slots[slot_of(second)] } else { T::default() }
    }

    /// The last second in which a value was changed, or the one in which the ring was made.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }
}

/// Whole seconds on end that have passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    first: u64,
    end: u64,
}

impl Window {
    /// The last `seconds` whole seconds before `now`, at most [`SECONDS_MAX`], and none before the second `since`.
    #[must_use]
    pub fn before(now: Instant, seconds: u64, since: u64) -> Self {
        let end = second_of(now);
        let first = end.saturating_sub(seconds.min(SECONDS_MAX)).max(since).min(end);
        Self { first, end }
    }

    /// Their numbers.
    #[must_use]
    pub fn seconds(self) -> Range<u64> {
        self.first..self.end
    }

    /// How many seconds it is long.
    #[must_use]
    pub fn length(self) -> u64 {
        self.end - self.first
    }

    /// The sum of all that was counted in them.
    #[must_use]
    pub fn sum(self, counts: &Ring<u32>) -> u64 {
        self.seconds().map(|second| u64::from(counts.get(second))).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn time_that_steps_back_counts_in_the_newest_second() {
        let mut ring = Ring::<u32>::new(at(0));
        *ring.at(at(5_000)) += 1;
        *ring.at(at(1_000)) += 1;
        assert_eq!((ring.get(5), ring.get(1), ring.newest()), (2, 0, 5));
    }

    proptest! {
        #[test]
        fn a_ring_holds_exactly_the_last_seconds(steps in proptest::collection::vec(0u64..90_000, 1..60)) {
            let mut ring = Ring::<u32>::new(at(0));
            let (mut ms, mut log) = (0, Vec::new());
            for step in steps {
                ms += step;
                *ring.at(at(ms)) += 1;
                log.push(ms / 1_000);
                let window = Window::before(at(ms), SECONDS_MAX, 0);
                let expected = log.iter().filter(|second| window.seconds().contains(*second)).count();
                prop_assert_eq!(window.sum(&ring), expected as u64);
            }
        }
    }
}
