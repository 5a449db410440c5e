//! Parts of a contract as whole shares, so that sums of parts are exact.

use serde::{Deserialize, Serialize};
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_core::number::{float, whole};

/// The whole rate of a contract, in shares: a share is a billionth.
pub const WHOLE: u64 = 1_000_000_000;

/// A part of a contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Portion {
    /// Billionths of the contract's rate; see [`WHOLE`].
    pub rate_shares: u64,
    /// Whole tokens of its burst.
    pub burst: u64,
}

impl Portion {
    /// Nothing passes.
    pub const NONE: Self = Self { rate_shares: 0, burst: 0 };

    /// The part of `contract` that is at most `limit`.
    #[must_use]
    pub fn of(contract: Limit, limit: Limit) -> Self {
        Self { rate_shares: shares(limit.rate, contract.rate, Rounding::Down).min(WHOLE), burst: limit.burst }
    }

    /// The part as a limit of its own.
    ///
    /// Exact if 64-bit fractions can express it, else less than 2^-62 of the rate, or of a token per nanosecond, too low:
    /// parts whose shares sum to [`WHOLE`] at most never exceed the contract together.
    #[must_use]
    pub fn limit(self, contract: Limit) -> Limit {
        let (tokens, period_ns) = (contract.rate.tokens(), contract.rate.period_ns());
        let exact = || {
            let tokens = u128::from(tokens) * u128::from(self.rate_shares);
            Rate::from_fraction(tokens, u128::from(period_ns).checked_mul(WHOLE.into())?)
        };
        let fine = || {
            let fineness = u64::MAX / tokens.max(period_ns).max(1);
            let tokens = u128::from(tokens * fineness) * u128::from(self.rate_shares) / u128::from(WHOLE);
            Rate::from_fraction(tokens, u128::from(period_ns * fineness))
        };
        Limit { rate: exact().or_else(fine).unwrap_or(Rate::ZERO), burst: self.burst }
    }

    /// The larger rate and the larger burst of two.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self { rate_shares: self.rate_shares.max(other.rate_shares), burst: self.burst.max(other.burst) }
    }

    /// The smaller rate and the smaller burst of two.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { rate_shares: self.rate_shares.min(other.rate_shares), burst: self.burst.min(other.burst) }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rate_shares: self.rate_shares.saturating_add(other.rate_shares),
            burst: self.burst.saturating_add(other.burst),
        }
    }

    /// What `self` has more than `other`.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        Self {
            rate_shares: self.rate_shares.saturating_sub(other.rate_shares),
            burst: self.burst.saturating_sub(other.burst),
        }
    }

    /// True if both its rate and its burst are at most those of `other`.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.rate_shares <= other.rate_shares && self.burst <= other.burst
    }

    /// The same rate as a part of another contract, rounded up.
    pub(super) fn under(self, now: Limit, before: Limit) -> Self {
        if now.rate == before.rate || self.rate_shares == 0 {
            return self;
        }
        let rate = Self { burst: 0, ..self }.limit(before).rate;
        // What was rounded down when it became a limit is below one share.
        Self { rate_shares: shares(rate, now.rate, Rounding::Up).saturating_add(1), burst: self.burst }
    }
}

/// The sum of all.
#[must_use]
pub fn sum<'a>(portions: impl IntoIterator<Item = &'a Portion>) -> Portion {
    portions.into_iter().fold(Portion::NONE, |sum, portion| sum.plus(*portion))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    Down,
    Up,
}

/// `rate` in shares of `of`. Where 128 bits are too few, to 50 bits, rounded to the side that was asked for.
fn shares(rate: Rate, of: Rate, rounding: Rounding) -> u64 {
    if of.is_zero() {
        return if rate.is_zero() { 0 } else { u64::MAX };
    }
    let numerator = (u128::from(rate.tokens()) * u128::from(of.period_ns())).checked_mul(WHOLE.into());
    let denominator = u128::from(rate.period_ns()) * u128::from(of.tokens());
    let shares = match (numerator, rounding) {
        (Some(numerator), Rounding::Down) => numerator / denominator,
        (Some(numerator), Rounding::Up) => numerator.div_ceil(denominator),
        (None, rounding) => {
            let about = rate.as_per_s() / of.as_per_s() * float(WHOLE);
            let off = about * 1e-15;
            match rounding {
                Rounding::Down => whole((about - off).floor()).into(),
                Rounding::Up => whole((about + off).ceil()).into(),
            }
        }
    };
    u64::try_from(shares).unwrap_or(u64::MAX)
}

/// `total` in whole shares in proportion to `weights`, but at least `floor` for each; `result[i]` belongs to `weights[i]`.
///
/// Sums to `total`. If there is less than the floor for each, all get the same. What does not divide goes to the largest
/// remainders, of equal ones to the lowest indices. Without any weight above zero all get the same. O(n^2) at most, for
/// each that is raised to the floor may lower others to it; O(n log n) as a rule.
#[must_use]
pub fn divide(total: u64, weights: &[u64], floor: u64) -> Vec<u64> {
    let many = weights.len() as u64;
    if many == 0 {
        return Vec::new();
    }
    let floor = floor.min(total / many);
    let even = vec![1; weights.len()];
    let weights = if weights.iter().all(|&weight| weight == 0) { &even[..] } else { weights };
    let mut raised = vec![false; weights.len()];
    let (mut left, mut sum): (u64, u128);
    loop {
        left = total - floor * raised.iter().filter(|&&raised| raised).count() as u64;
        sum = weights.iter().zip(&raised).filter(|(_, raised)| !**raised).map(|(&weight, _)| u128::from(weight)).sum();
        let mut settled = true;
        for (&weight, raised) in weights.iter().zip(&mut raised) {
            if !*raised && u128::from(left) * u128::from(weight) < u128::from(floor) * sum {
                (*raised, settled) = (true, false);
            }
        }
        if settled {
            break;
        }
    }
    // Of those that are not raised the largest has at least the mean of what is left, which is at least the floor.
    let exact = |at: usize| u128::from(left) * u128::from(weights[at]);
    let mut shares: Vec<u64> = vec![floor; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).filter(|&at| !raised[at]).collect();
    for &at in &open {
        shares[at] = u64::try_from(exact(at) / sum.max(1)).expect("a share is at most the total");
    }
    let given: u64 = shares.iter().sum();
    open.sort_by_key(|&at| (core::cmp::Reverse(exact(at) % sum.max(1)), at));
    for at in open.into_iter().take(usize::try_from(total - given).unwrap_or(usize::MAX)) {
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAPER: Limit = Limit::new(Rate::per_s(11_000), 26);

    #[test]
    fn a_portion_is_the_limit_that_it_came_from() {
        let half = Portion { rate_shares: WHOLE / 2, burst: 13 };
        assert_eq!(half.limit(PAPER), Limit::new(Rate::per_s(5_500), 13));
        assert_eq!(Portion::of(PAPER, half.limit(PAPER)), half);
        assert_eq!(Portion::NONE.limit(PAPER), Limit::new(Rate::ZERO, 0));
        // Under a contract of twice the rate it is half the shares, and never less than what it was.
        let twice = Limit::new(Rate::per_s(22_000), 26);
        let under = half.under(twice, PAPER);
        assert_eq!(under.rate_shares, WHOLE / 4 + 1);
        assert_eq!(half.under(Limit::new(Rate::ZERO, 1), PAPER).rate_shares, u64::MAX);
    }

    #[test]
    fn floors_are_kept_and_the_rest_is_in_proportion() {
        assert_eq!(divide(100, &[1, 1, 98], 10), [10, 10, 80]);
        assert_eq!(divide(10, &[0, 0, 0], 1), [4, 3, 3]);
        assert_eq!(divide(2, &[5, 5, 5], 1), [1, 1, 0]);
        assert_eq!(divide(26, &[3, 1], 1), [20, 6]);
        assert!(divide(5, &[], 1).is_empty());
        // Raising the first leaves too little for the second.
        assert_eq!(divide(30, &[0, 11, 19], 10), [10, 10, 10]);
    }

    proptest! {
        #[test]
        fn whatever_is_divided_sums_to_the_whole(
            total in 0..=WHOLE,
            weights in proptest::collection::vec(0..u64::MAX / 64, 1..40),
            floor in 0..50_000_000u64,
        ) {
            let shares = divide(total, &weights, floor);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            let least = floor.min(total / weights.len() as u64);
            prop_assert!(shares.iter().all(|&share| share >= least));
            for (share, weight) in shares.iter().zip(&weights) {
                for (other, heavier) in shares.iter().zip(&weights) {
                    prop_assert!(weight > heavier || *share <= other + 1, "{shares:?} of {weights:?}");
                }
            }
        }

        #[test]
        fn parts_never_exceed_the_contract_together(
            tokens in 1..u64::MAX,
            period in 1..u64::MAX,
            weights in proptest::collection::vec(0..1_000u64, 1..12),
        ) {
            let rate = Rate::from_fraction(tokens.into(), period.into()).unwrap();
            let contract = Limit::new(rate, 1);
            let parts: Vec<Limit> = divide(WHOLE, &weights, 0)
                .into_iter()
                .map(|rate_shares| Portion { rate_shares, burst: 0 }.limit(contract))
                .collect();
            // Each part is at most its share: t / p <= tokens * shares / (period * WHOLE).
            for (part, shares) in parts.iter().zip(divide(WHOLE, &weights, 0)) {
                let given = part.rate.as_per_s();
                let due = contract.rate.as_per_s() * float(shares) / float(WHOLE);
                prop_assert!(given <= due * (1.0 + 1e-12), "{given} for {due}");
                prop_assert!(given >= due * (1.0 - 1e-9) - 1e-9, "{given} for {due}");
                let back = Portion::of(contract, *part).rate_shares;
                prop_assert!(back <= shares + 1 && back + 1 >= shares, "{back} for {shares}");
            }
        }
    }
}
