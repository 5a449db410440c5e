//! Histograms of delays.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

/// The longest delay told apart: an hour. Longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Delays; each is kept to three significant digits.
#[derive(Clone, Debug)]
pub struct Latency {
    delays: Histogram<u64>,
    early: u64,
    early_ns_max: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self::of(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds that the crate accepts"))
    }
}

impl Latency {
    /// Two digits, and nothing below a microsecond: a tenth of the memory.
    fn coarse() -> Self {
        Self::of(Histogram::new_with_bounds(1_000, LONGEST_NS, 2).expect("constant bounds that the crate accepts"))
    }

    fn of(delays: Histogram<u64>) -> Self {
        Self { delays, early: 0, early_ns_max: 0 }
    }

    /// Records that what was due at `due` happened at `at`. Early is counted on its own and as no delay.
    pub fn record(&mut self, due: Instant, at: Instant) {
        if at < due {
            self.early += 1;
            self.early_ns_max = self.early_ns_max.max(due.nanos_since(at));
        }
        self.delays.saturating_record(at.nanos_since(due));
    }

    /// Adds another's delays.
    pub fn merge(&mut self, other: &Self) {
        self.delays.add(&other.delays).expect("no delay is beyond the bounds of either");
        self.early += other.early;
        self.early_ns_max = self.early_ns_max.max(other.early_ns_max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.delays.reset();
        (self.early, self.early_ns_max) = (0, 0);
    }

    /// Number of delays.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.delays.len()
    }

    /// The figures.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile| micros(self.delays.value_at_quantile(quantile));
        LatencySummary {
            count: self.delays.len(),
            mean_us: self.delays.mean() / 1e3,
            us_p50: at(0.5),
            us_p90: at(0.9),
            us_p99: at(0.99),
            us_p999: at(0.999),
            us_max: micros(self.delays.max()),
            early: self.early,
            early_us_max: micros(self.early_ns_max),
        }
    }
}

/// Figures of a histogram, in microseconds; all zero if it is empty.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of delays.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub us_p50: f64,
    /// 90 % are not longer.
    pub us_p90: f64,
    /// 99 % are not longer.
    pub us_p99: f64,
    /// 99.9 % are not longer.
    pub us_p999: f64,
    /// The longest.
    pub us_max: f64,
    /// How many happened before they were due; they count as delays of zero.
    pub early: u64,
    /// The earliest of these.
    pub early_us_max: f64,
}

/// Delays of the last few seconds, to watch; to two digits.
#[derive(Clone, Debug)]
pub struct RollingLatency {
    slot_ns: u64,
    /// The slot of each histogram, by number since the clock's origin.
    slots: Vec<(u64, Latency)>,
}

impl RollingLatency {
    /// Forgets after `slots * slot_ns`, a slot at a time.
    ///
    /// # Panics
    /// If either is zero.
    #[must_use]
    pub fn new(slots: usize, slot_ns: u64) -> Self {
        assert!(slots > 0 && slot_ns > 0, "a window has a length");
        Self { slot_ns, slots: vec![(0, Latency::coarse()); slots] }
    }

    /// Records that what was due at `due` happened at `now`.
    pub fn record(&mut self, due: Instant, now: Instant) {
        let number = now.as_nanos() / self.slot_ns;
        let at = usize::try_from(number % self.slots.len() as u64).expect("a remainder below a length");
        let (of, latency) = &mut self.slots[at];
        if *of != number {
            *of = number;
            latency.clear();
        }
        latency.record(due, now);
    }

    /// The figures of the window that ends at `now`.
    #[must_use]
    pub fn summary(&self, now: Instant) -> LatencySummary {
        let newest = now.as_nanos() / self.slot_ns;
        let mut sum = Latency::coarse();
        for (number, latency) in &self.slots {
            if number + self.slots.len() as u64 > newest {
                sum.merge(latency);
            }
        }
        sum.summary()
    }
}

fn micros(ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits are kept")]
    let ns = ns as f64;
    ns / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let mut latency = Latency::default();
        for us in 1..=1_000_u64 {
            latency.record(Instant::ZERO, Instant::from_nanos(us * 1_000));
        }
        let summary = latency.summary();
        for (found, expected) in [
            (summary.mean_us, 500.5),
            (summary.us_p50, 500.0),
            (summary.us_p99, 990.0),
            (summary.us_p999, 999.0),
            (summary.us_max, 1_000.0),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}");
        }
    }

    #[test]
    fn early_is_told_apart_from_on_time() {
        let mut latency = Latency::default();
        latency.record(Instant::from_nanos(5_000), Instant::from_nanos(2_000));
        latency.record(Instant::from_nanos(5_000), Instant::from_nanos(5_000));
        let mut sum = Latency::default();
        sum.merge(&latency);
        let summary = sum.summary();
        assert_eq!((summary.count, summary.early), (2, 1));
        assert!((summary.early_us_max - 3.0).abs() < 1e-9 && summary.us_max == 0.0);
        sum.clear();
        assert_eq!(sum.summary(), Latency::default().summary());
    }

    #[test]
    fn a_rolling_window_forgets_by_slots() {
        let mut window = RollingLatency::new(2, 100);
        for now in [0, 99, 100, 250] {
            window.record(Instant::ZERO, Instant::from_nanos(now));
        }
        // Slot 0 has made room for slot 2; slots 1 and 2 are left, then only 2, then none.
        assert_eq!(window.summary(Instant::from_nanos(299)).count, 2);
        assert_eq!(window.summary(Instant::from_nanos(300)).count, 1);
        assert_eq!(window.summary(Instant::from_nanos(400)).count, 0);
    }
}
