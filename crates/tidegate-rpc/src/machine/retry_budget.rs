//! How many calls a caller may send again: a share of those that were served, and a few beside.
//!
//! Whoever repeats each refused call multiplies the load just when there is too much of it, and goes on doing so after its
//! cause is gone. Bound to what is served, repeats are few when little is served.

use serde::{Deserialize, Serialize};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

/// A served call earns this many times its `percent` of one that is sent again.
const WHOLE: u64 = 100;

/// What may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Calls that may be sent again for 100 that were served. Default 10: in the worst case a tenth of the load is repeats.
    pub percent: u32,
    /// And each second besides, for callers that make few calls. Default 1; 0 for none.
    pub floor_per_s: u32,
    /// Of what was earned by served calls and not used, as many are kept. Default 10: what served calls of long ago earned
    /// shall not all be sent in the first moment of an overload.
    pub burst: u32,
    /// How often one call is sent at most, the first time included. Default 3.
    pub attempts: u32,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self { percent: 10, floor_per_s: 1, burst: 10, attempts: 3 }
    }
}

/// A caller's budget. In any span `t` in which `n` calls were served, no more calls are sent again than
/// `burst + floor_per_s + n * percent / 100 + t * floor_per_s`. O(1).
#[derive(Clone, Debug)]
pub struct RetryBudget {
    config: RetryConfig,
    /// Earned and not used, in hundredths of a call.
    earned: u64,
    floor: TokenBucket,
}

impl RetryBudget {
    /// A budget to which nothing was added yet but the floor of one second.
    #[must_use]
    pub fn new(config: RetryConfig, now: Instant) -> Self {
        let per_s = u64::from(config.floor_per_s);
        let floor = TokenBucket::new(Limit::new(Rate::per_s(per_s), per_s), now);
        Self { config, earned: 0, floor }
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &RetryConfig {
        &self.config
    }

    /// A handler answered a call. Refusals earn nothing.
    pub fn on_served(&mut self) {
        let most = u64::from(self.config.burst) * WHOLE;
        self.earned = (self.earned + u64::from(self.config.percent)).min(most);
    }

    /// Whether a call may be sent again now; if so, it is taken from the budget.
    pub fn try_retry(&mut self, now: Instant) -> bool {
        if let Some(left) = self.earned.checked_sub(WHOLE) {
            self.earned = left;
            return true;
        }
        self.floor.try_take(1, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn ten_served_calls_earn_one() {
        let mut budget = RetryBudget::new(RetryConfig { floor_per_s: 0, ..RetryConfig::default() }, at(0));
        (0..9).for_each(|_| budget.on_served());
        assert!(!budget.try_retry(at(1)));
        budget.on_served();
        assert_eq!([budget.try_retry(at(1)), budget.try_retry(at(1))], [true, false]);
    }

    #[test]
    fn callers_of_few_calls_have_one_a_second() {
        let mut budget = RetryBudget::new(RetryConfig::default(), at(0));
        let times: Vec<u64> = (0..4_000).step_by(50).filter(|ms| budget.try_retry(at(*ms))).collect();
        assert_eq!(times, [0, 1_000, 2_000, 3_000]);
    }

    proptest! {
        /// What the type promises, over every span of a run.
        #[test]
        fn no_span_has_more_than_its_bound(
            steps in proptest::collection::vec((0_u64..300, 0_u32..40, 0_u32..40), 1..80),
            percent in 0_u32..150, floor_per_s in 0_u32..4, burst in 0_u32..20,
        ) {
            let config = RetryConfig { percent, floor_per_s, burst, attempts: 3 };
            let mut budget = RetryBudget::new(config, at(0));
            // At each step: when, calls served, calls sent again.
            let mut now = 0;
            let done: Vec<(u64, u64, u64)> = steps.into_iter().map(|(later, served, wanted)| {
                now += later;
                (0..served).for_each(|_| budget.on_served());
                (now, u64::from(served), (0..wanted).map(|_| u64::from(budget.try_retry(at(now)))).sum())
            }).collect();
            let (percent, floor, burst) = (u64::from(percent), u64::from(floor_per_s), u64::from(burst));
            for from in 0..done.len() {
                let (mut served, mut again) = (0, 0);
                for (time, of_them, again_then) in &done[from..] {
                    (served, again) = (served + of_them, again + again_then);
                    let span_ms = time - done[from].0;
                    let most = 100_000 * (burst + floor) + 1_000 * served * percent + 100 * span_ms * floor;
                    prop_assert!(again * 100_000 <= most, "{again} in {span_ms} ms with {served} served");
                }
            }
        }
    }
}
