//! One contract into several whose sum it is.

use core::fmt;

use crate::Rate;
use crate::limit::Limit;

/// Why a contract cannot be split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SplitError {
    /// There is no part, or all weights are zero.
    NoParts,
    /// A part with less than one token of burst would never let anything pass.
    BurstTooSmall {
        /// What there is to share out.
        burst: u64,
        /// Among how many.
        parts: usize,
    },
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoParts => f.write_str("a limit is split into at least one part with a weight above zero"),
            Self::BurstTooSmall { burst, parts } => {
                write!(f, "a burst of {burst} gives none of {parts} parts the whole token that each needs")
            }
        }
    }
}

impl core::error::Error for SplitError {}

/// Splits `limit` into `parts` as equal as whole tokens of burst allow; the remainder goes to the first.
///
/// # Errors
/// As [`by_weights`].
pub fn evenly(limit: Limit, parts: usize) -> Result<Vec<Limit>, SplitError> {
    by_weights(limit, &vec![1; parts])
}

/// Splits `limit` in proportion to `weights`; `result[i]` belongs to `weights[i]`.
///
/// The bursts sum to the burst to the token, the rates to the rate exactly. Each part has a burst of at least 1, also
/// one of weight 0, which has a rate of zero. What does not divide goes to the largest remainders, of equal ones to the
/// lowest indices. Rates are in exact proportion if 64-bit fractions can express that; else each is off by less than
/// 2^-63 of the rate or of a token per nanosecond, whichever is more.
/// O(n log n) times one more than the number of turns in which parts had to be raised to 1.
/// Source: SRTM, §1.2; every burst at least 1 because a message needs a whole token.
///
/// # Errors
/// If there are no parts, or more than tokens of burst.
pub fn by_weights(limit: Limit, weights: &[u64]) -> Result<Vec<Limit>, SplitError> {
    if weights.iter().all(|&weight| weight == 0) {
        return Err(SplitError::NoParts);
    }
    if limit.burst < weights.len() as u64 {
        return Err(SplitError::BurstTooSmall { burst: limit.burst, parts: weights.len() });
    }
    let bursts = bursts(limit.burst, weights.to_vec());
    Ok(rates(limit.rate, weights).into_iter().zip(bursts).map(|(rate, burst)| Limit { rate, burst }).collect())
}

/// Shares in proportion, but 1 for whoever would get none. `burst` is at least the number of weights.
fn bursts(burst: u64, mut weights: Vec<u64>) -> Vec<u64> {
    loop {
        let raised = weights.iter().filter(|&&weight| weight == 0).count();
        let shares = apportion(burst - raised as u64, &weights);
        // There is at least a token for each weight left, so somebody keeps a share and this ends.
        let mut settled = true;
        for (weight, share) in weights.iter_mut().zip(&shares) {
            if *share == 0 && *weight > 0 {
                *weight = 0;
                settled = false;
            }
        }
        if settled {
            return shares.into_iter().map(|share| share.max(1)).collect();
        }
    }
}

fn rates(rate: Rate, weights: &[u64]) -> Vec<Rate> {
    let (tokens, period_ns) = (u128::from(rate.tokens()), u128::from(rate.period_ns()));
    let total: u128 = weights.iter().copied().map(u128::from).sum();
    let exact = |weight: u64| Rate::from_fraction(tokens * u128::from(weight), period_ns.checked_mul(total)?);
    if let Some(rates) = weights.iter().copied().map(exact).collect() {
        return rates;
    }
    // The finest fraction that both numbers of the rate leave room for.
    let fineness = u64::MAX / rate.tokens().max(rate.period_ns());
    let shares = apportion(rate.tokens() * fineness, weights);
    let fine = |share: u64| Rate::from_fraction(share.into(), u128::from(rate.period_ns() * fineness));
    shares.into_iter().map(|share| fine(share).expect("both are 64-bit numbers")).collect()
}

/// `total` in whole shares, in proportion to `weights`, which are not all zero; largest remainders first.
fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().copied().map(u128::from).sum();
    let exact = |&weight: &u64| u128::from(total) * u128::from(weight);
    let whole = |weight| u64::try_from(exact(weight) / sum).expect("a share is at most the total");
    let mut shares: Vec<u64> = weights.iter().map(whole).collect();
    let left = total - shares.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&i| core::cmp::Reverse(exact(&weights[i]) % sum));
    // Fewer are left than there are weights with a remainder.
    for i in order.into_iter().take(usize::try_from(left).expect("below the number of weights")) {
        shares[i] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bursts_of(limits: &[Limit]) -> Vec<u64> {
        limits.iter().map(|limit| limit.burst).collect()
    }

    #[test]
    fn the_contract_of_the_paper_splits_evenly() {
        let parts = evenly(Limit::new(Rate::per_s(11_000), 26), 4).unwrap();
        assert_eq!(bursts_of(&parts), [7, 7, 6, 6]);
        assert!(parts.iter().all(|part| part.rate == Rate::per_s(2_750)));
    }

    #[test]
    fn every_part_can_hold_a_token() {
        let limit = Limit::new(Rate::per_s(7), 10);
        assert_eq!(bursts_of(&by_weights(limit, &[1, 1_000, 0, 1_000]).unwrap()), [1, 4, 1, 4]);
        assert_eq!(by_weights(limit, &[1, 2, 0]).unwrap()[2].rate, Rate::ZERO);
        assert_eq!(evenly(limit, 11), Err(SplitError::BurstTooSmall { burst: 10, parts: 11 }));
        assert_eq!(by_weights(limit, &[0, 0]), Err(SplitError::NoParts));
        assert_eq!(evenly(limit, 0), Err(SplitError::NoParts));
    }

    /// The sum of rates as a fraction over `period_ns`, which all their periods divide.
    fn sum_over(period_ns: u128, parts: &[Limit]) -> u128 {
        parts.iter().map(|part| u128::from(part.rate.tokens()) * (period_ns / u128::from(part.rate.period_ns()))).sum()
    }

    #[test]
    fn a_rate_too_fine_to_divide_keeps_its_sum() {
        let rate = Rate::from_fraction(7, (1 << 60) + 1).unwrap();
        let parts = by_weights(Limit::new(rate, 9), &[3, 1, u64::MAX]).unwrap();
        assert_eq!(sum_over(((1 << 60) + 1) * 15, &parts), 7 * 15);
    }

    proptest! {
        #[test]
        fn sums_are_kept_and_shares_are_fair(
            tokens in 0..=10_000_000u64,
            burst in 0..1_000u64,
            weights in proptest::collection::vec(0..1_000u64, 0..20),
        ) {
            let limit = Limit::new(Rate::per_s(tokens), burst);
            let total: u64 = weights.iter().sum();
            let Ok(parts) = by_weights(limit, &weights) else {
                prop_assert!(total == 0 || burst < weights.len() as u64);
                return Ok(());
            };
            prop_assert_eq!(bursts_of(&parts).iter().sum::<u64>(), burst);
            let sum = parts.iter().try_fold(Rate::ZERO, |sum, part| sum.checked_add(part.rate));
            prop_assert_eq!(sum, Some(limit.rate));
            let spare = weights.len() as u64;
            for (part, weight) in parts.iter().zip(weights) {
                prop_assert!(part.burst >= 1);
                prop_assert!(part.burst * total + spare * total >= burst * weight);
                prop_assert!(part.burst == 1 || part.burst * total <= burst * weight + total);
                prop_assert_eq!(Some(part.rate), Rate::from_fraction((tokens * weight).into(), u128::from(total) * 1_000_000_000));
            }
        }
    }
}
