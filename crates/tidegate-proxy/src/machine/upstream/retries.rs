//! Who may take a retry out of an upstream's budget.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::limit::{RetryBudget, RetryTerms};

use super::company::Company;
use crate::machine::neighbours::Claimant;

/// Retries are counted for about so long, and a claimant is alone if no other has come for so long.
const LATELY: Duration = Duration::from_secs(10);
/// Claimants whose retries are counted; of more, those with the fewest are forgotten, and have taken none.
const COUNTED: usize = 64;

/// The budget of an upstream's retries, which its claimants share.
///
/// Everybody pays into it and takes from it. Beside others, the last eighth is for claimants that took less than their
/// fair part of late: one whose every request fails, and is retried, leaves something for another's.
#[derive(Clone, Debug)]
pub(super) struct Retries {
    budget: RetryBudget,
    total: u64,
    company: Company<Claimant>,
    /// Retries of late, by claimant.
    taken: Vec<(Claimant, u32)>,
    since: Instant,
}

impl Retries {
    /// Nobody took any.
    pub(super) fn new(terms: RetryTerms, now: Instant) -> Self {
        let budget = RetryBudget::new(terms, now);
        Self { budget, total: 0, company: Company::default(), taken: Vec::new(), since: now }
    }

    /// Goes on with what is left in `old`, and with what was counted there.
    pub(super) fn inherit(&mut self, old: &Self, now: Instant) {
        let mut budget = self.budget.clone();
        budget.inherit(&old.budget, now);
        *self = Self { budget, ..old.clone() };
    }

    /// How many were taken.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// A request of `claimant` came, which pays its share of a retry.
    #[inline]
    pub(super) fn pay(&mut self, claimant: Claimant, now: Instant) {
        self.company.on_arrival(claimant, now);
        self.budget.pay();
    }

    /// Takes one for a request of `claimant`, if there is one for it.
    pub(super) fn try_take(&mut self, claimant: Claimant, now: Instant) -> bool {
        if now.since(self.since) >= LATELY {
            self.since = now;
            self.taken.retain_mut(|(_, taken)| {
                *taken /= 2;
                *taken > 0
            });
        }
        let may_have_all = self.company.is_alone(claimant, LATELY, now) || self.has_had_little(claimant);
        let granted = if may_have_all { self.budget.try_retry(now) } else { self.budget.try_retry_beside(now) };
        if granted {
            self.total += 1;
            self.count(claimant);
        }
        granted
    }

    /// Whether a claimant took less than all would have with one more of them.
    fn has_had_little(&self, claimant: Claimant) -> bool {
        let all: u64 = self.taken.iter().map(|(_, taken)| u64::from(*taken)).sum();
        let own = self.taken.iter().find(|(other, _)| *other == claimant).map_or(0, |(_, taken)| u64::from(*taken));
        own == 0 || own * (self.taken.len() as u64 + 1) < all
    }

    fn count(&mut self, claimant: Claimant) {
        if let Some((_, taken)) = self.taken.iter_mut().find(|(other, _)| *other == claimant) {
            *taken = taken.saturating_add(1);
        } else if self.taken.len() < COUNTED {
            self.taken.push((claimant, 1));
        } else if let Some(fewest) = self.taken.iter_mut().min_by_key(|(_, taken)| *taken) {
            *fewest = (claimant, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries() -> Retries {
        Retries::new(RetryTerms { share: 0.2, saved: 100, floor_per_s: 10 }, at(0))
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    const LOUD: Claimant = Claimant::numbered(1);
    const QUIET: Claimant = Claimant::numbered(2);

    #[test]
    fn one_whose_requests_all_fail_leaves_retries_for_another() {
        let mut retries = retries();
        for ms in 0..30_000 {
            if ms % 100 == 0 {
                retries.pay(QUIET, at(ms));
            }
            retries.pay(LOUD, at(ms));
            retries.try_take(LOUD, at(ms));
            if ms % 500 == 50 {
                assert!(retries.try_take(QUIET, at(ms)), "it pays for one in five at {ms} ms");
            }
        }
        // All that is paid for is taken but what is left for others.
        assert!((30_000 / 5..30_000 / 5 + 300 + 100).contains(&retries.total()), "{}", retries.total());
    }

    #[test]
    fn one_that_is_alone_has_all_of_them() {
        let mut retries = retries();
        (0..1_000).for_each(|_| retries.pay(LOUD, at(0)));
        assert_eq!((0..1_000).filter(|_| retries.try_take(LOUD, at(0))).count(), 110);
        retries.pay(QUIET, at(10_000));
        assert_eq!((0..1_000).filter(|_| retries.try_take(LOUD, at(10_000))).count(), 9, "beside another");
        assert_eq!((0..1_000).filter(|_| retries.try_take(LOUD, at(20_000))).count(), 10, "and when that has gone");
    }

    #[test]
    fn those_who_retry_alike_have_like_parts_and_few_are_counted() {
        let mut retries = retries();
        let mut had = [0_u32; 2];
        for ms in 0..20_000 {
            for (had, claimant) in had.iter_mut().zip([LOUD, QUIET]) {
                retries.pay(claimant, at(ms));
                *had += u32::from(retries.try_take(claimant, at(ms)));
            }
        }
        assert!(had[0].abs_diff(had[1]) < had[0] / 5, "{had:?}");
        for number in 0..10_000 {
            retries.pay(Claimant::numbered(number), at(20_000));
            retries.try_take(Claimant::numbered(number), at(20_000));
        }
        assert!(retries.taken.len() <= COUNTED);
    }
}
