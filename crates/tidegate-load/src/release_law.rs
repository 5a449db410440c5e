//! The first law of limiters, checked from outside.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rate};

/// Checks that in any window of length `t` at most `burst + rate * (t + slack)` messages came.
///
/// Every window is checked in O(1) memory: it is enough to follow a bucket that fills by one with each message and
/// drains at `rate`, and to see that it never holds more than `burst + rate * slack`. Integer arithmetic, no rounding.
#[derive(Clone, Debug)]
pub struct ReleaseLaw {
    rate: Rate,
    /// In units of `1 / period_ns` message.
    allowed: i128,
    level: i128,
    level_max: i128,
    burst: u64,
    last: Option<Instant>,
    messages: u64,
    violations: u64,
}

/// What the check found.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// Messages seen.
    pub messages: u64,
    /// Messages that completed a window with too many.
    pub violations: u64,
    /// The most messages above `burst + rate * t` in any window; negative if all windows had fewer.
    pub excess_max: f64,
    /// The slack that no window would have violated, in microseconds.
    pub slack_needed_us: f64,
}

impl ReleaseLaw {
    /// The law of `(rate, burst)`; `slack_ns` is what the observer's clock reading may be late by.
    ///
    /// # Panics
    /// If the rate is zero.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, slack_ns: u64) -> Self {
        assert!(!rate.is_zero(), "a law without a rate allows no window at all");
        let allowed =
            i128::from(burst) * i128::from(rate.period_ns()) + i128::from(slack_ns) * i128::from(rate.tokens());
        Self { rate, allowed, level: 0, level_max: 0, burst, last: None, messages: 0, violations: 0 }
    }

    /// A message came at `at`; the instants of successive calls do not step back.
    pub fn observe(&mut self, at: Instant) {
        let passed_ns = at.nanos_since(self.last.unwrap_or(at));
        let drained = i128::from(passed_ns) * i128::from(self.rate.tokens());
        self.level = (self.level - drained).max(0) + i128::from(self.rate.period_ns());
        self.level_max = self.level_max.max(self.level);
        self.last = Some(at);
        self.messages += 1;
        self.violations += u64::from(self.level > self.allowed);
    }

    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> ReleaseReport {
        let above = self.level_max - i128::from(self.burst) * i128::from(self.rate.period_ns());
        #[expect(clippy::cast_precision_loss, reason = "for people; the verdict is the count")]
        let (above, period_ns, tokens) = (above as f64, self.rate.period_ns() as f64, self.rate.tokens() as f64);
        ReleaseReport {
            messages: self.messages,
            violations: self.violations,
            excess_max: above / period_ns,
            slack_needed_us: (above / tokens / 1e3).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The law as it is stated, over all windows.
    fn violations(times: &[u64], rate_per_s: u64, burst: u64) -> u64 {
        let breaks = |last: usize| {
            (0..=last).any(|first| {
                let window = u128::from(times[last] - times[first]);
                (last - first + 1) as u128 * 1_000_000_000
                    > u128::from(burst) * 1_000_000_000 + u128::from(rate_per_s) * window
            })
        };
        (0..times.len()).filter(|&last| breaks(last)).count() as u64
    }

    #[test]
    fn a_nanosecond_too_soon_is_seen() {
        let mut law = ReleaseLaw::new(Rate::per_s(1_000), 2, 0);
        for at in [0, 0, 1_000_000, 2_000_000] {
            law.observe(Instant::from_nanos(at));
        }
        assert_eq!((law.report().violations, law.report().slack_needed_us), (0, 0.0));
        law.observe(Instant::from_nanos(2_999_999));
        assert_eq!(law.report().violations, 1);
        assert!((law.report().slack_needed_us - 0.001).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn every_window_is_checked(gaps in proptest::collection::vec(0..4_000_000_u64, 1..60), burst in 1..5_u64) {
            let times: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let mut law = ReleaseLaw::new(Rate::per_s(700), burst, 0);
            for &at in &times {
                law.observe(Instant::from_nanos(at));
            }
            prop_assert_eq!(law.report().violations, violations(&times, 700, burst));
        }
    }
}
