//! A histogram of the last few seconds.

use core::ops::Range;
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
/// Nothing is allocated until the first value, then 2.5 KiB for each slot at once and nothing after, unless it is asked to
/// [`keep`](Self::keep) more. A value recorded at a time that stepped back counts in the newest slot.
#[derive(Clone, Debug)]
pub struct WindowedHistogram {
    config: WindowConfig,
    /// Spans that are kept, at least `config.slots`,
    kept: u32,
    /// and until when they are more than these.
    until: Instant,
    /// `kept` rows of `BUCKETS` counts, or empty before the first value. Four bytes are enough for what one
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
        let (kept, until) = (config.slots, Instant::ZERO);
        Self { config, kept, until, counts: Box::default(), summaries: Box::default(), newest: 0 }
    }

    /// Keeps at least `slots` spans for [`merge_slots`](Self::merge_slots) until `until`, and what is kept already; the window
    /// stays as long as it is. O(1) if so many are kept.
    pub fn keep(&mut self, slots: u32, until: Instant) {
        self.until = self.until.max(until);
        if slots > self.kept {
            self.resize(slots);
        }
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
        let last = self.slot_of(now).max(self.newest);
        let first = (last + 1).saturating_sub(u64::from(self.config.slots));
        self.merge_slots(all, first..last + 1);
    }

    /// Adds everything that is kept of the spans with these numbers to `all`, allocating nothing. Span `n` begins `n` spans
    /// after the origin of time.
    pub fn merge_slots(&self, all: &mut Histogram, slots: Range<u64>) {
        if self.counts.is_empty() {
            return;
        }
        let first = (self.newest + 1).saturating_sub(u64::from(self.kept)).max(slots.start);
        for slot in first..slots.end.min(self.newest + 1) {
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
            (self.counts, self.summaries) = rows(self.kept);
            self.newest = slot;
        }
        if slot <= self.newest {
            return;
        }
        if self.kept > self.config.slots && now >= self.until {
            self.resize(self.config.slots);
        }
        let stale = (slot - self.newest).min(u64::from(self.kept));
        for forgotten in (slot + 1 - stale)..=slot {
            let row = self.row(forgotten);
            self.counts[row * BUCKETS..][..BUCKETS].fill(0);
            self.summaries[row] = Summary::default();
        }
        self.newest = slot;
    }

    /// Keeps so many spans from now on, and what it has of them.
    fn resize(&mut self, slots: u32) {
        let before = core::mem::replace(&mut self.kept, slots);
        if self.counts.is_empty() {
            return;
        }
        let (counts, summaries) = rows(slots);
        let (counts, summaries) =
            (core::mem::replace(&mut self.counts, counts), core::mem::replace(&mut self.summaries, summaries));
        for slot in (self.newest + 1).saturating_sub(u64::from(before.min(slots)))..=self.newest {
            let (from, to) = (row_of(slot, before), row_of(slot, slots));
            self.counts[to * BUCKETS..][..BUCKETS].copy_from_slice(&counts[from * BUCKETS..][..BUCKETS]);
            self.summaries[to] = summaries[from];
        }
    }

    fn slot_of(&self, now: Instant) -> u64 {
        now.as_nanos() / time::nanos(self.config.slot)
    }

    fn row(&self, slot: u64) -> usize {
        row_of(slot, self.kept)
    }
}

fn row_of(slot: u64, slots: u32) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below `slots`, a u32")]
    let row = (slot % u64::from(slots)) as usize;
    row
}

/// Empty rows for so many spans.
fn rows(slots: u32) -> (Box<[u32]>, Box<[Summary]>) {
    let slots = slots as usize;
    (vec![0; slots * BUCKETS].into_boxed_slice(), vec![Summary::default(); slots].into_boxed_slice())
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

    #[test]
    fn more_is_kept_for_as_long_as_it_is_asked_for() {
        let mut window = WindowedHistogram::default();
        let kept = |window: &WindowedHistogram, slots: Range<u64>| {
            let mut all = Histogram::new();
            window.merge_slots(&mut all, slots);
            all.count()
        };
        for second in 100..130 {
            window.record(second, at(second));
            if second == 109 {
                window.keep(60, at(130));
            }
        }
        // What it had when it was asked to keep more, and all since.
        assert_eq!((kept(&window, 0..1_000), kept(&window, 105..110), kept(&window, 90..101)), (30, 5, 1));
        assert_eq!(window.snapshot(at(129)).count(), 10);
        window.record(130, at(130));
        assert_eq!((window.kept, kept(&window, 0..1_000), window.snapshot(at(130)).count()), (10, 10, 10));
    }

    proptest! {
        #[test]
        fn a_window_holds_exactly_the_last_slots(
            steps in proptest::collection::vec((0u64..4, 0u64..1_000_000), 1..60),
            slots in 1u32..6,
            keeps in proptest::collection::vec((0usize..60, 1u32..12, 0u64..100), 0..4),
        ) {
            let mut window = WindowedHistogram::new(WindowConfig { slots, slot: Duration::from_nanos(3) });
            let (mut now, mut log) = (0, Vec::new());
            for (at, (step, value)) in steps.into_iter().enumerate() {
                now += step;
                for (_, slots, until) in keeps.iter().filter(|keep| keep.0 == at) {
                    window.keep(*slots, Instant::from_nanos(*until));
                }
                window.record(value, Instant::from_nanos(now));
                log.push((now / 3, value));
                let kept = log.iter().filter(|(slot, _)| slot + u64::from(slots) > now / 3);
                let expected: Histogram = kept.map(|&(_, value)| value).collect();
                prop_assert_eq!(window.snapshot(Instant::from_nanos(now)), expected);
            }
        }
    }
}
