//! How many retries the work that goes well has paid for.

use super::{Limit, TokenBucket};
use crate::{Instant, Rate};

/// A retry costs this many parts; each payment is a share of them.
const PARTS: u64 = 1_000_000;

/// Of what is saved, and of the free retries of a second, the part that [`RetryBudget::try_retry_beside`] leaves: one
/// in so many.
const KEPT_PART: u64 = 8;

/// What a [`RetryBudget`] allows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryTerms {
    /// Retries for each payment, from 0 to 1000; what is beyond is taken for the nearer end, and no number for 0.
    pub share: f64,
    /// Retries that may be saved up.
    pub saved: u32,
    /// Retries a second that nothing has to pay for.
    pub floor_per_s: u32,
}

/// Bounds retries to a share of what pays for them and a few per second, so that they cannot multiply an overload. O(1).
///
/// In any span, retries <= `share` × payments + `floor_per_s` × span + `saved` + `floor_per_s`. Without it, three tries of
/// everything turn a server at its capacity into one at three times that, and keep it there after the cause has gone.
/// Source: the retry budgets of Finagle and Envoy. Departure: the two parts are kept apart, and savings have a bound in
/// place of a time to live.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// In parts, like `earned`.
    share: u64,
    most: u64,
    earned: u64,
    floor: TokenBucket,
    /// Free retries of a second that are left to others, at least 1.
    kept: u64,
}

impl RetryBudget {
    /// Nothing is earned yet; the free retries of one second are there.
    #[must_use]
    pub fn new(terms: RetryTerms, now: Instant) -> Self {
        let free = u64::from(terms.floor_per_s);
        let floor = TokenBucket::new(Limit::new(Rate::per_s(free), free), now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "float casts saturate, and NaN gives 0; a share is at most 1000"
        )]
        let share = (terms.share.clamp(0.0, 1e3) * 1e6).round() as u64;
        Self { share, most: u64::from(terms.saved) * PARTS, earned: 0, floor, kept: (free / KEPT_PART).max(1) }
    }

    /// Goes on with what is left in `old`, under the terms of this one: new terms grant no retries.
    pub fn inherit(&mut self, old: &Self, now: Instant) {
        self.earned = old.earned.min(self.most);
        let limit = self.floor.limit();
        self.floor = old.floor.clone();
        self.floor.set_limit(limit, now);
    }

    /// Something went well that pays its share of a retry.
    #[inline]
    pub fn pay(&mut self) {
        self.earned = (self.earned + self.share).min(self.most);
    }

    /// Takes one retry if there is one.
    #[inline]
    pub fn try_retry(&mut self, now: Instant) -> bool {
        if let Some(left) = self.earned.checked_sub(PARTS) {
            self.earned = left;
            return true;
        }
        self.floor.try_take(1, now).is_ok()
    }

    /// Takes one retry if an eighth is left for others that share the budget, of what may be saved or of the free
    /// retries of a second.
    pub fn try_retry_beside(&mut self, now: Instant) -> bool {
        if self.earned >= PARTS + self.most / KEPT_PART {
            self.earned -= PARTS;
            return true;
        }
        self.floor.ready_at(1 + self.kept, now) == Some(now) && self.floor.try_take(1, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(share: f64, saved: u32, floor_per_s: u32) -> RetryBudget {
        RetryBudget::new(RetryTerms { share, saved, floor_per_s }, Instant::ZERO)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn five_payments_make_one_retry_at_a_fifth() {
        let mut budget = budget(0.2, 10, 0);
        (0..4).for_each(|_| budget.pay());
        assert!(!budget.try_retry(at(0)));
        budget.pay();
        assert_eq!([budget.try_retry(at(0)), budget.try_retry(at(0))], [true, false]);
    }

    #[test]
    fn who_sends_little_can_retry_too() {
        let mut budget = budget(0.0, 10, 2);
        assert_eq!([0, 0, 0, 500, 999].map(|ms| budget.try_retry(at(ms))), [true, true, false, true, false]);
    }

    #[test]
    fn a_day_of_calm_saves_no_more_than_the_bound() {
        let mut budget = budget(1.0, 100, 0);
        (0..100_000).for_each(|_| budget.pay());
        assert_eq!((0..1_000).filter(|_| budget.try_retry(at(0))).count(), 100);
    }

    #[test]
    fn who_retries_beside_others_leaves_an_eighth() {
        let mut both = budget(1.0, 16, 8);
        (0..50).for_each(|_| both.pay());
        assert_eq!((0..100).filter(|_| both.try_retry_beside(at(0))).count(), 14 + 7);
        assert_eq!((0..100).filter(|_| both.try_retry(at(0))).count(), 2 + 1);
        let mut floor = budget(0.0, 0, 1);
        assert_eq!([floor.try_retry_beside(at(0)), floor.try_retry(at(0))], [false, true]);
    }

    #[test]
    fn new_terms_grant_no_retries_and_keep_what_fits() {
        let mut old = budget(1.0, 100, 3);
        (0..50).for_each(|_| old.pay());
        let mut new = budget(1.0, 20, 3);
        new.inherit(&old, at(0));
        assert_eq!((0..100).filter(|_| new.try_retry(at(0))).count(), 23);
        let mut next = budget(1.0, 20, 3);
        next.inherit(&new, at(0));
        assert!(!next.try_retry(at(0)));
    }

    #[test]
    fn a_share_that_is_no_share_pays_nothing() {
        for share in [-1.0, f64::NAN, f64::NEG_INFINITY] {
            let mut budget = budget(share, 10, 0);
            (0..100).for_each(|_| budget.pay());
            assert!(!budget.try_retry(at(0)), "{share}");
        }
    }

    proptest! {
        /// What the type promises, over every span of a run.
        #[test]
        fn no_span_has_more_than_its_bound(
            steps in proptest::collection::vec((0_u64..300, 0_u32..40, 0_u32..40), 1..80),
            percent in 0_u32..150, saved in 0_u32..20, floor in 0_u32..4,
        ) {
            let mut budget = budget(f64::from(percent) / 100.0, saved, floor);
            // At each step: when, payments, retries.
            let mut now = 0;
            let done: Vec<(u64, u64, u64)> = steps.into_iter().map(|(later, paid, wanted)| {
                now += later;
                (0..paid).for_each(|_| budget.pay());
                (now, u64::from(paid), (0..wanted).map(|_| u64::from(budget.try_retry(at(now)))).sum())
            }).collect();
            let (percent, saved, floor) = (u64::from(percent), u64::from(saved), u64::from(floor));
            for from in 0..done.len() {
                let (mut paid, mut retries) = (0, 0);
                for (time, payments, retries_then) in &done[from..] {
                    (paid, retries) = (paid + payments, retries + retries_then);
                    let span_ms = time - done[from].0;
                    let most = 100_000 * (saved + floor) + 1_000 * paid * percent + 100 * span_ms * floor;
                    prop_assert!(retries * 100_000 <= most, "{retries} in {span_ms} ms for {paid} payments");
                }
            }
        }
    }
}
