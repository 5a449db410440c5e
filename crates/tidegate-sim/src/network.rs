//! Links that delay and keep order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use crate::distribution::Distribution;

/// A node of the simulated network; the caller numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// Nodes, each linked with each, one way at a time; what goes over one link keeps its order, as in one connection.
#[derive(Clone, Debug)]
pub struct Network {
    delay: Distribution,
    /// When the latest message arrives, by link.
    latest: BTreeMap<(NodeId, NodeId), Instant>,
}

impl Network {
    /// Messages are so long on their way, or as long as one before them.
    #[must_use]
    pub fn new(delay: Distribution) -> Self {
        Self { delay, latest: BTreeMap::new() }
    }

    /// When a message sent at `now` arrives.
    pub fn send(&mut self, from: NodeId, to: NodeId, now: Instant, rng: &mut Rng) -> Instant {
        let latest = self.latest.entry((from, to)).or_default();
        *latest = now.plus_nanos(self.delay.sample_ns(rng)).max(*latest);
        *latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_order_whatever_the_delays() {
        let mut network = Network::new(Distribution::Exponential { mean_us: 50.0 });
        let mut rng = Rng::new(1);
        let (a, b) = (NodeId(0), NodeId(1));
        let sent = (0..1_000).map(|us| Instant::from_nanos(us * 1_000));
        let arrivals: Vec<_> = sent.map(|at| network.send(a, b, at, &mut rng)).collect();
        assert!(arrivals.is_sorted());
        assert!(network.send(b, a, Instant::ZERO, &mut rng) < arrivals[999], "the way back is another");
    }
}
