//! How many nodes a rate needs, and how it is divided among them.

use tidegate_core::allocate::{Claim, weighted_max_min};
use tidegate_core::limit::Limit;
use tidegate_core::limit::split::{self, SplitError};
use tidegate_core::number::whole;

use super::types::{Cause, NodeLoad, ShareRule};

/// A weight of one message a second in the division of a limit.
const WEIGHT_PER_RATE: f64 = 1e3;

/// Halvings of the level in [`even_total`]: beyond them a 64-bit fraction has no further digits.
const HALVINGS: u32 = 100;

/// The least number of nodes that have room for `rate`, of `rooms` in falling order; `None` if all together have not.
///
/// Source: concentration, §3.2 of the paper.
#[must_use]
pub fn least_nodes(rate_per_s: f64, rooms: &[f64]) -> Option<usize> {
    let mut sum = 0.0;
    rooms
        .iter()
        .position(|room| {
            sum += room;
            sum >= rate_per_s
        })
        .map(|last| last + 1)
}

/// What each node gets of `rate`; `result[i]` belongs to `nodes[i]`.
///
/// If the nodes have room for it, the result sums to the rate; by [`ShareRule::EvenTopic`] it does in any case.
#[must_use]
pub fn quotas(rule: ShareRule, rate_per_s: f64, nodes: &[NodeLoad]) -> Vec<f64> {
    match rule {
        ShareRule::EvenTopic => {
            let share = rate_per_s / f64::from(u32::try_from(nodes.len()).unwrap_or(u32::MAX).max(1));
            vec![share; nodes.len()]
        }
        ShareRule::EvenTotal => even_total(rate_per_s, nodes),
        ShareRule::MaxMin => {
            let claims: Vec<Claim> =
                nodes.iter().map(|node| Claim { demand: node.rcap_per_s(), weight: 1.0 }).collect();
            let mut shares = Vec::new();
            weighted_max_min(rate_per_s, &claims, &mut Vec::new(), &mut shares);
            shares
        }
    }
}

/// A limit in parts, in proportion to the rates, each at least a thousandth; `result[i]` belongs to `rates[i]`.
///
/// # Errors
/// [`Cause::NoNode`] without a rate, [`Cause::BurstTooSmall`] if there is no token for each part.
pub fn limits(limit: Limit, rates: &[f64]) -> Result<Vec<Limit>, Cause> {
    let weights: Vec<u64> = rates.iter().map(|rate| whole((rate * WEIGHT_PER_RATE).round()).max(1)).collect();
    split::by_weights(limit, &weights).map_err(|error| match error {
        SplitError::BurstTooSmall { burst, parts } => {
            Cause::BurstTooSmall { burst, parts: u32::try_from(parts).unwrap_or(u32::MAX) }
        }
        _ => Cause::NoNode,
    })
}

/// So that all that get something have the same total rate, as far as their capacities go.
fn even_total(rate_per_s: f64, nodes: &[NodeLoad]) -> Vec<f64> {
    let at = |level: f64| -> Vec<f64> {
        nodes.iter().map(|node| (level - node.allocated_per_s).clamp(0.0, node.rcap_per_s())).collect()
    };
    let (mut low, mut high) = (0.0, nodes.iter().map(|node| node.mcap_per_s).fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let level = f64::midpoint(low, high);
        if at(level).iter().sum::<f64>() < rate_per_s { low = level } else { high = level }
    }
    at(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The brokers of Fig. 8: 62,000 messages a second each, loaded before the topic comes.
    fn loaded() -> Vec<NodeLoad> {
        let load = |thousands: f64| NodeLoad { mcap_per_s: 62e3, allocated_per_s: thousands * 1e3 };
        [10.0, 40.0, 50.0, 60.0, 70.0, 80.0].map(load).to_vec()
    }

    fn rounded(quotas: &[f64]) -> Vec<f64> {
        quotas.iter().map(|quota| quota.round()).collect()
    }

    #[test]
    fn as_few_nodes_as_have_room_are_taken() {
        let rooms: Vec<f64> = loaded().iter().map(|node| node.rcap_per_s()).collect();
        assert_eq!(rooms, [52e3, 22e3, 12e3, 2e3, 0.0, 0.0]);
        assert_eq!(least_nodes(40e3, &rooms), Some(1));
        assert_eq!(least_nodes(52e3, &rooms), Some(1));
        assert_eq!(least_nodes(60e3, &rooms), Some(2));
        assert_eq!(least_nodes(80e3, &rooms), Some(3));
        assert_eq!(least_nodes(89e3, &rooms), None);
        assert_eq!(least_nodes(0.0, &[]), None);
    }

    #[test]
    fn totals_are_made_even_or_the_topics_parts_are() {
        let three = &loaded()[..3];
        assert_eq!(rounded(&quotas(ShareRule::EvenTotal, 80e3, three)), [50e3, 20e3, 10e3]);
        // Each a third, as far as there is room; the first has the rest.
        assert_eq!(rounded(&quotas(ShareRule::MaxMin, 80e3, three)), [46e3, 22e3, 12e3]);
        assert_eq!(quotas(ShareRule::EvenTopic, 60e3, three), [20e3; 3]);
        assert!(quotas(ShareRule::MaxMin, 1.0, &[]).is_empty());
    }

    #[test]
    fn who_is_above_the_level_already_gets_nothing() {
        let nodes = [10.0, 50.0].map(|allocated_per_s| NodeLoad { mcap_per_s: 100.0, allocated_per_s });
        assert_eq!(rounded(&quotas(ShareRule::EvenTotal, 20.0, &nodes)), [20.0, 0.0]);
        assert_eq!(rounded(&quotas(ShareRule::EvenTotal, 60.0, &nodes)), [50.0, 10.0]);
    }
}
