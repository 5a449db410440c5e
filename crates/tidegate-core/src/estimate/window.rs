//! A histogram of the last few seconds.

use core::time::Duration;

use super::histogram::{BUCKETS, Summary, bucket_of};
use crate::estimate::Histogram;
use crate::{Instant, time};

/// How long a [`WindowedHistogram`] remembers and how finely it forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowConfig {
    /// Spans that the window is cut into; the oldest is forgotten as a whole. At least 1.
    pub slots: u32,
    /// Length of one; not zero.
    pub slot: Duration,
}

impl Default for WindowConfig {
    /// 10 x 1 s: a person watching sees a change within a second, and 1000 messages/s still give a p99.9.
    fn default() -> Self {
        Self { slots: 10, slot: Duration::from_secs(1) }
    }
}

/// A [`Histogram`] of what was recorded in the last `slots` spans, the running one included.
///
/// Nothing is allocated until the first value, then 2.5 KiB for each slot at once and nothing after. A value recorded
/// at a time that stepped back counts in the newest slot.
#[derive(Clone, Debug)]
pub struct WindowedHistogram {
    config: WindowConfig,
    /// `config.slots` rows of `BUCKETS` counts, or empty before the first value. Four bytes are enough for what one
    /// core can count in a slot.
    counts: Box<[u32]>,
    summaries: Box<[Summary]>,
    /// The number of the running slot since the origin of time.
    newest: u64,
}

impl WindowedHistogram {
    /// An empty window; does not allocate.
    #[must_use]
    pub fn new(config: WindowConfig) -> Self {
        assert!(config.slots > 0 && !config.slot.is_zero(), "a window has slots and its slots have a length");
        Self { config, counts: Box::default(), summaries: Box::default(), newest: 0 }
    }

    /// Counts `value` at `now`. O(1), but for the first value after a slot ended, which forgets an old slot.
    #[inline]
    pub fn record(&mut self, value: u64, now: Instant) {
        self.rotate(now);
        let row = self.row(self.newest);
        let count = &mut self.counts[row * BUCKETS + bucket_of(value)];
        *count = count.saturating_add(1);
        self.summaries[row].add(value, 1);
    }

    /// Everything recorded in the window that ends at `now`.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Histogram {
        let mut all = Histogram::new();
        self.merge_into(&mut all, now);
        all
    }

    /// Adds everything recorded in the window that ends at `now` to `all`, allocating nothing.
    pub fn merge_into(&self, all: &mut Histogram, now: Instant) {
        if self.counts.is_empty() {
            return;
        }
        let last = self.slot_of(now).max(self.newest);
        let first = (last + 1).saturating_sub(u64::from(self.config.slots));
        for slot in first..=self.newest {
            let row = self.row(slot);
            all.merge_slot(&self.counts[row * BUCKETS..][..BUCKETS], &self.summaries[row]);
        }
    }

    /// Forgets everything and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::new(self.config);
    }

    fn rotate(&mut self, now: Instant) {
        let slot = self.slot_of(now);
        if self.counts.is_empty() {
            let slots = self.config.slots as usize;
            self.counts = vec![0; slots * BUCKETS].into_boxed_slice();
            self.summaries = vec![Summary::default(); slots].into_boxed_slice();
            self.newest = slot;
        }
        if slot <= self.newest {
            return;
        }
        let stale = (slot - self.newest).min(u64::from(self.config.slots));
        for forgotten in (slot + 1 - stale)..=slot {
            let row = self.row(forgotten);
            self.counts[row * BUCKETS..][..BUCKETS].fill(0);
            self.summaries[row] = Summary::default();
        }
        self.newest = slot;
    }

    fn slot_of(&self, now: Instant) -> u64 {
        now.as_nanos() / time::nanos(self.config.slot)
    }

    fn row(&self, slot: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below config.slots, a u32")]
        let row = (slot % u64::from(self.config.slots)) as usize;
        row
    }
}

impl Default for WindowedHistogram {
    fn default() -> Self {
        Self::new(WindowConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn the_oldest_slot_is_forgotten_as_a_whole() {
        let mut window = WindowedHistogram::default();
        window.record(7, at(100));
        window.record(9, at(105));
        assert_eq!(window.snapshot(at(109)).count(), 2);
        assert_eq!(window.snapshot(at(110)).max(), 9);
        assert_eq!(window.snapshot(at(110)).count(), 1);
        assert_eq!(window.snapshot(at(1_000_000)).count(), 0);
    }

    #[test]
    fn time_that_steps_back_counts_in_the_newest_slot() {
        let mut window = WindowedHistogram::default();
        window.record(1, at(50));
        window.record(2, at(3));
        assert_eq!(window.snapshot(at(3)).count(), 2);
        assert_eq!(window.snapshot(at(59)).count(), 2);
    }

    #[test]
    fn nothing_is_allocated_before_the_first_value() {
        let mut window = WindowedHistogram::default();
        assert!(window.counts.is_empty() && window.snapshot(at(1)).is_empty());
        window.record(1, Instant::MAX);
        window.clear();
        assert!(window.counts.is_empty());
    }

    proptest! {
        #[test]
        fn a_window_holds_exactly_the_last_slots(
            steps in proptest::collection::vec((0u64..4, 0u64..1_000_000), 1..60),
            slots in 1u32..6,
        ) {
            let mut window = WindowedHistogram::new(WindowConfig { slots, slot: Duration::from_nanos(3) });
            let (mut now, mut log) = (0, Vec::new());
            for (step, value) in steps {
                now += step;
                window.record(value, Instant::from_nanos(now));
                log.push((now / 3, value));
                let kept = log.iter().filter(|(slot, _)| slot + u64::from(slots) > now / 3);
                let expected: Histogram = kept.map(|&(_, value)| value).collect();
                prop_assert_eq!(window.snapshot(Instant::from_nanos(now)), expected);
            }
        }
    }
}
