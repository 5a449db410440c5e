//! Weighted max-min shares of any number of claims, in one pass over them and little memory.

use crate::allocate::{Claim, weighted_max_min};

/// Steps for each doubling of a claim's size. Within a step a share may fall short of the exact one by a sixteenth.
const STEPS_LOG2: u32 = 4;
/// From 2^-20 to 2^44 grains per unit of weight.
const DOUBLINGS: u64 = 64;
const LEAST_LOG2: u64 = 1023 - 20;

/// Claims, sorted by size into steps: those of one step are treated as one claim.
///
/// The level found is never too high: the shares never exceed the supply. Adding is O(1); [`level`](Self::level) is
/// O(1) as well, some ten thousand operations.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    steps: Vec<Claim>,
    claims: Vec<Claim>,
    order: Vec<usize>,
    shares: Vec<f64>,
}

/// The two that a setting of shares needs.
#[derive(Clone, Debug)]
pub struct Fills {
    /// What is expected to be wanted.
    pub(super) demands: Fill,
    /// What of the last tick is beyond the new shares.
    pub(super) needs: Fill,
}

impl Default for Fills {
    fn default() -> Self {
        Self { demands: Fill::new(), needs: Fill::new() }
    }
}

/// How far claims are met.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Level {
    /// Everybody gets what it claims.
    All,
    /// Nobody gets more than this for each unit of its weight.
    PerWeight(f64),
}

impl Level {
    /// True if shares at one level are those at the other, to a hundredth.
    pub(super) fn is_near(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) => true,
            (Self::PerWeight(mine), Self::PerWeight(theirs)) => (mine - theirs).abs() <= 0.01 * theirs,
            _ => false,
        }
    }

    /// The share of a claim of `wanted`.
    #[inline]
    pub(super) fn share(self, wanted: f64, weight: u32) -> f64 {
        match self {
            Self::All => wanted,
            Self::PerWeight(most) => wanted.min(most * f64::from(weight)),
        }
    }
}

impl Fill {
    pub(super) fn new() -> Self {
        let count = usize::try_from(DOUBLINGS << STEPS_LOG2).expect("about a thousand");
        Self { steps: vec![NOTHING; count], claims: Vec::new(), order: Vec::new(), shares: Vec::new() }
    }

    /// Forgets all claims.
    pub(super) fn clear(&mut self) {
        self.steps.fill(NOTHING);
    }

    /// Adds a claim of `wanted`, at least 0, with `weight`, at least 1.
    #[inline]
    pub(super) fn add(&mut self, wanted: f64, weight: u32) {
        // Nearly all weigh 1, and a division takes as long as the rest.
        let size = if weight == 1 { wanted } else { wanted / f64::from(weight) };
        let step = &mut self.steps[step(size)];
        step.demand += wanted;
        step.weight += f64::from(weight);
    }

    /// How far `supply` goes.
    pub(super) fn level(&mut self, supply: f64) -> Level {
        self.claims.clear();
        self.claims.extend(self.steps.iter().filter(|step| step.weight > 0.0));
        weighted_max_min(supply, &self.claims, &mut self.order, &mut self.shares);
        let short = self.claims.iter().zip(&self.shares).filter(|(claim, share)| **share < claim.demand);
        let levels = short.map(|(claim, share)| share / claim.weight);
        levels.reduce(f64::min).map_or(Level::All, Level::PerWeight)
    }
}

const NOTHING: Claim = Claim { demand: 0.0, weight: 0.0 };

/// The step of a claim of `size` for each unit of weight: exponent and first bits of the fraction of a positive `f64`,
/// read as one number, grow with it.
#[inline]
fn step(size: f64) -> usize {
    let bits = size.max(0.0).to_bits() >> (52 - STEPS_LOG2);
    let at = bits.saturating_sub(LEAST_LOG2 << STEPS_LOG2).min((DOUBLINGS << STEPS_LOG2) - 1);
    usize::try_from(at).expect("about a thousand")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(supply: f64, claims: &[(f64, u32)]) -> Vec<f64> {
        let mut fill = Fill::new();
        for &(wanted, weight) in claims {
            fill.add(wanted, weight);
        }
        let level = fill.level(supply);
        claims.iter().map(|&(wanted, weight)| level.share(wanted, weight)).collect()
    }

    #[test]
    fn small_claims_are_met_and_the_rest_is_split_by_weight() {
        assert_eq!(shares(10.0, &[(1.0, 1), (100.0, 1), (100.0, 2)]), [1.0, 3.0, 6.0]);
        assert_eq!(shares(10.0, &[(1.0, 1), (2.0, 1)]), [1.0, 2.0]);
        assert_eq!(shares(0.0, &[(1.0, 1)]), [0.0]);
        assert!(shares(5.0, &[]).is_empty());
    }

    #[test]
    fn steps_grow_with_the_claim() {
        let sizes = [0.0, 1e-7, 1e-3, 0.5, 1.0, 1.0625, 1.125, 2.0, 1e9, 1e13, 1e300];
        let steps: Vec<_> = sizes.iter().map(|size| step(*size)).collect();
        assert!(steps.is_sorted(), "{steps:?}");
        assert_eq!(step(1.1) - step(1.0), 1);
        assert_eq!(step(2.0) - step(1.0), 16);
    }

    proptest! {
        #[test]
        fn shares_are_those_of_the_exact_split_to_a_sixteenth(
            supply in 1.0..1e6f64,
            claims in proptest::collection::vec((0.0..1e5f64, 1..10u32), 1..50),
        ) {
            let found = shares(supply, &claims);
            let exact: Vec<_> =
                claims.iter().map(|&(demand, weight)| Claim { demand, weight: weight.into() }).collect();
            let mut split = Vec::new();
            weighted_max_min(supply, &exact, &mut Vec::new(), &mut split);
            prop_assert!(found.iter().sum::<f64>() <= supply * (1.0 + 1e-9));
            for (found, exact) in found.iter().zip(&split) {
                prop_assert!(*found >= exact * (1.0 - 1.0 / 16.0) - 1e-6, "{found} {exact}");
            }
        }
    }
}
