//! The first law of limiters: in any window of length t, at most burst + rate * t.

use std::time::Duration;

use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate};

/// Follows `n_i - rate * e_i` over the releases `e_1 <= e_2 <= ...`: a window from release j to release i is too full
/// if that difference has grown by more than burst - 1 between them. Integers, O(1) for each.
#[derive(Clone, Debug)]
pub struct Windows {
    rate: Rate,
    /// How much it may grow, in units of `1 / period_ns` message.
    growth_allowed: i128,
    least: i128,
    growth_max: i128,
    messages: u64,
    violations: u64,
}

impl Windows {
    /// Windows that may be `slack` longer than they look.
    #[must_use]
    pub fn new(limit: Limit, slack: Duration) -> Self {
        let (token, per_ns) = (i128::from(limit.rate.period_ns()), i128::from(limit.rate.tokens()));
        Self {
            rate: limit.rate,
            growth_allowed: (i128::from(limit.burst) - 1) * token + i128::from(nanos(slack)) * per_ns,
            least: i128::MAX,
            growth_max: i128::MIN,
            messages: 0,
            violations: 0,
        }
    }

    /// The next release, of one token, not before the one before.
    pub fn observe(&mut self, at: Instant) {
        let sent = i128::from(self.messages) * i128::from(self.rate.period_ns());
        let level = sent - i128::from(at.as_nanos()) * i128::from(self.rate.tokens());
        self.least = self.least.min(level);
        let growth = level - self.least;
        self.growth_max = self.growth_max.max(growth);
        self.messages += 1;
        self.violations += u64::from(growth > self.growth_allowed);
    }

    /// Releases so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Releases that completed a window that was too full.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The fullest window, in messages above what is allowed.
    #[must_use]
    pub fn excess_max(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for people; the verdict is the count")]
        let (above, token) = ((self.growth_max - self.growth_allowed) as f64, self.rate.period_ns() as f64);
        above / token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The law as it is stated, over all windows.
    fn violations(times: &[u64], limit: Limit) -> u64 {
        let (token, per_ns) = (u128::from(limit.rate.period_ns()), u128::from(limit.rate.tokens()));
        let breaks = |last: usize| {
            (0..=last).any(|first| {
                let messages = (last - first + 1) as u128 * token;
                messages > u128::from(limit.burst) * token + per_ns * u128::from(times[last] - times[first])
            })
        };
        (0..times.len()).filter(|&last| breaks(last)).count() as u64
    }

    proptest! {
        #[test]
        fn every_window_is_checked(gaps in proptest::collection::vec(0..4_000_000_u64, 1..60), burst in 1..5_u64) {
            let times: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let limit = Limit::new(Rate::per_s(700), burst);
            let mut windows = Windows::new(limit, Duration::ZERO);
            for &at in &times {
                windows.observe(Instant::from_nanos(at));
            }
            prop_assert_eq!(windows.violations(), violations(&times, limit));
        }
    }
}
