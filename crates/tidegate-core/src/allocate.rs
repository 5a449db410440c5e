//! How a scarce supply is shared out.

/// What one claimant wants, and how much its wish counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Claim {
    /// What it wants, in the unit of the supply; at least 0.
    pub demand: f64,
    /// Its weight beside the others', above 0.
    pub weight: f64,
}

/// Splits `supply` over `claims` by weighted max-min fairness, into `shares`.
///
/// `shares[i]` belongs to `claims[i]` and never exceeds its demand. If the demands exceed the supply the shares sum to
/// it, and whoever gets less than it wants gets at least as much for each unit of weight as anybody else. `order` is
/// scratch space. O(n log n).
pub fn weighted_max_min(supply: f64, claims: &[Claim], order: &mut Vec<usize>, shares: &mut Vec<f64>) {
    order.clear();
    order.extend(0..claims.len());
    // Those that want least for their weight are satisfied first.
    order.sort_unstable_by(|&a, &b| {
        let wish = |claim: Claim| claim.demand / claim.weight;
        wish(claims[a]).total_cmp(&wish(claims[b])).then(a.cmp(&b))
    });
    shares.clear();
    shares.resize(claims.len(), 0.0);
    let mut left = supply.max(0.0);
    let mut weights: f64 = claims.iter().map(|claim| claim.weight).sum();
    for &at in order.iter() {
        let claim = claims[at];
        // The last one's weight may have been rounded away from what is left of the sum.
        let share = if weights > claim.weight { left * claim.weight / weights } else { left };
        shares[at] = claim.demand.min(share);
        left -= shares[at];
        weights -= claim.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(supply: f64, claims: &[(f64, f64)]) -> Vec<f64> {
        let claims: Vec<_> = claims.iter().map(|&(demand, weight)| Claim { demand, weight }).collect();
        let mut shares = Vec::new();
        weighted_max_min(supply, &claims, &mut Vec::new(), &mut shares);
        shares
    }

    #[test]
    fn small_wishes_are_met_and_the_rest_is_split_by_weight() {
        assert_eq!(split(10.0, &[(1.0, 1.0), (100.0, 1.0), (100.0, 2.0)]), [1.0, 3.0, 6.0]);
        assert_eq!(split(10.0, &[(1.0, 1.0), (2.0, 1.0)]), [1.0, 2.0]);
        assert_eq!(split(0.0, &[(1.0, 1.0)]), [0.0]);
        assert!(split(5.0, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn nobody_short_gets_less_for_its_weight_than_another(
            supply in 0.0..1e6f64,
            claims in proptest::collection::vec((0.0..1e5f64, 0.1..10.0f64), 1..20),
        ) {
            let shares = split(supply, &claims);
            let wanted: f64 = claims.iter().map(|claim| claim.0).sum();
            let given: f64 = shares.iter().sum();
            prop_assert!((given - supply.min(wanted)).abs() <= 1e-6 * (1.0 + given));
            for (&(demand, weight), &share) in claims.iter().zip(&shares) {
                prop_assert!(share <= demand);
                let short = share < demand * (1.0 - 1e-9);
                let most = claims.iter().zip(&shares).map(|(other, share)| share / other.1).fold(0.0, f64::max);
                prop_assert!(!short || share / weight >= most * (1.0 - 1e-6));
            }
        }
    }
}
