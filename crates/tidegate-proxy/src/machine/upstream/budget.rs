//! How many retries the requests have paid for.

use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

use super::config::RetryConfig;

/// A retry costs this many parts; a request pays its share of them.
const PARTS: u64 = 1_000_000;
/// Unused shares add up to this many retries: what a second of outage may ask for, not what a day of calm has saved.
const SAVED: u64 = 100;

/// Bounds retries to a share of the requests and a few per second, so that they cannot multiply an overload.
///
/// In any span, retries <= share × requests + `min_per_s` × span + 100 + `min_per_s`. Without it, three tries of
/// everything turn a server at its capacity into one at three times that.
/// Source: the retry budgets of Finagle and Envoy. Departure: the two parts are kept apart, and savings have a bound in
/// place of a time to live.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    share: u64,
    /// In parts, at most `SAVED` retries.
    earned: u64,
    floor: TokenBucket,
}

impl RetryBudget {
    /// Nothing is earned yet; the free retries of one second are there.
    #[must_use]
    pub fn new(config: &RetryConfig, now: Instant) -> Self {
        let free = u64::from(config.min_per_s);
        let floor = TokenBucket::new(Limit::new(Rate::per_s(free), free), now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "float casts saturate; NaN gives 0, and a share is at most one"
        )]
        let share = (config.share.clamp(0.0, 1.0) * 1e6).round() as u64;
        Self { share, earned: 0, floor }
    }

    /// Goes on with what is left in `old`, under the settings of this one: a reload grants no retries.
    pub fn inherit(&mut self, old: &Self, now: Instant) {
        self.earned = old.earned;
        let limit = self.floor.limit();
        self.floor = old.floor.clone();
        self.floor.set_limit(limit, now);
    }

    /// A request was sent for the first time.
    pub fn on_request(&mut self) {
        self.earned = (self.earned + self.share).min(SAVED * PARTS);
    }

    /// Takes one retry if there is one.
    pub fn try_retry(&mut self, now: Instant) -> bool {
        if let Some(left) = self.earned.checked_sub(PARTS) {
            self.earned = left;
            return true;
        }
        self.floor.try_take(1, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(share: f64, min_per_s: u32) -> RetryBudget {
        RetryBudget::new(&RetryConfig { share, min_per_s, ..RetryConfig::default() }, Instant::ZERO)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn five_requests_pay_for_one_retry_at_a_fifth() {
        let mut budget = budget(0.2, 0);
        for _ in 0..4 {
            budget.on_request();
        }
        assert!(!budget.try_retry(at(0)));
        budget.on_request();
        assert!(budget.try_retry(at(0)) && !budget.try_retry(at(0)));
    }

    #[test]
    fn a_quiet_proxy_can_retry_too() {
        let mut budget = budget(0.0, 2);
        assert!(budget.try_retry(at(0)) && budget.try_retry(at(0)) && !budget.try_retry(at(0)));
        assert!(budget.try_retry(at(500)) && !budget.try_retry(at(999)));
    }

    #[test]
    fn a_day_of_calm_saves_no_more_than_a_hundred() {
        let mut budget = budget(1.0, 0);
        for _ in 0..100_000 {
            budget.on_request();
        }
        assert_eq!((0..1_000).filter(|_| budget.try_retry(at(0))).count(), 100);
    }

    proptest! {
        #[test]
        fn retries_stay_within_share_and_floor(
            steps in proptest::collection::vec((0u8..3, 0u64..400), 1..400),
            percent in 0u32..=100,
            floor in 0u32..5,
        ) {
            let mut budget = budget(f64::from(percent) / 100.0, floor);
            let (mut now, mut requests, mut retries) = (0, 0u64, 0u64);
            for (step, ms) in steps {
                match step {
                    0 => now += ms,
                    1 => {
                        budget.on_request();
                        requests += 1;
                    }
                    _ => retries += u64::from(budget.try_retry(at(now))),
                }
                let free = u64::from(floor) * 1_000 + u64::from(floor) * now;
                prop_assert!(retries * 1_000 <= requests * u64::from(percent) * 10 + free);
            }
        }
    }
}
