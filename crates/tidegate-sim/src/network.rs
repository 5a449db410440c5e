//! Links that delay, lose, repeat and reorder, and partitions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use crate::distribution::Distribution;

/// A node of the simulated network; the caller numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// What a message meets on its way; probabilities are from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Time on the way.
    pub delay: Distribution,
    /// How likely a message never comes.
    #[serde(default)]
    pub loss: f64,
    /// How likely it comes twice, each time with a delay of its own.
    #[serde(default)]
    pub duplicate: f64,
    /// How likely it may overtake those before it; the others keep their order, as in one connection.
    #[serde(default)]
    pub reorder: f64,
}

impl Link {
    /// A link that only delays.
    #[must_use]
    pub const fn reliable(delay: Distribution) -> Self {
        Self { delay, loss: 0.0, duplicate: 0.0, reorder: 0.0 }
    }
}

/// Nodes, each linked with each, one way at a time.
#[derive(Clone, Debug)]
pub struct Network {
    default: Link,
    links: BTreeMap<(NodeId, NodeId), Link>,
    /// When the latest message that keeps its order arrives, by link.
    latest: BTreeMap<(NodeId, NodeId), Instant>,
    islands: Vec<BTreeSet<NodeId>>,
}

impl Network {
    /// All links are like `default`.
    #[must_use]
    pub fn new(default: Link) -> Self {
        Self { default, links: BTreeMap::new(), latest: BTreeMap::new(), islands: Vec::new() }
    }

    /// The link from one node to another, and not the way back, is like `link` from now on.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, link: Link) {
        self.links.insert((from, to), link);
    }

    /// Cuts `island` off: nothing sent from now on goes in or out. Partitions add up until [`heal`](Self::heal).
    pub fn partition(&mut self, island: impl IntoIterator<Item = NodeId>) {
        self.islands.push(island.into_iter().collect());
    }

    /// Ends all partitions.
    pub fn heal(&mut self) {
        self.islands.clear();
    }

    /// True if a message sent now would meet no partition.
    #[must_use]
    pub fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        self.islands.iter().all(|island| island.contains(&from) == island.contains(&to))
    }

    /// When a message sent at `now` arrives: never, once or twice.
    pub fn send(
        &mut self,
        from: NodeId,
        to: NodeId,
        now: Instant,
        rng: &mut Rng,
    ) -> impl Iterator<Item = Instant> + use<> {
        let link = *self.links.get(&(from, to)).unwrap_or(&self.default);
        let lost = rng.chance(link.loss) || !self.reaches(from, to);
        let copies = if lost { 0 } else { 1 + usize::from(rng.chance(link.duplicate)) };
        let mut arrivals = [None; 2];
        for arrival in &mut arrivals[..copies] {
            let at = now.plus_nanos(link.delay.sample_ns(rng));
            let latest = self.latest.entry((from, to)).or_default();
            *arrival = Some(if rng.chance(link.reorder) {
                at
            } else {
                *latest = at.max(*latest);
                *latest
            });
        }
        arrivals.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn arrivals(link: Link, messages: u64) -> Vec<Instant> {
        let mut network = Network::new(link);
        let mut rng = Rng::new(1);
        (0..messages).flat_map(|ms| network.send(A, B, Instant::from_nanos(ms * 1_000), &mut rng)).collect()
    }

    #[test]
    fn a_reliable_link_keeps_order_whatever_the_delays() {
        let all = arrivals(Link::reliable(Distribution::Exponential { mean_us: 50.0 }), 1_000);
        assert_eq!(all.len(), 1_000);
        assert!(all.is_sorted());
    }

    #[test]
    fn losses_and_repeats_come_as_often_as_stated() {
        let delay = Distribution::Constant { us: 5.0 };
        let lossy = arrivals(Link { loss: 0.25, ..Link::reliable(delay) }, 10_000);
        assert!(lossy.len().abs_diff(7_500) < 200, "{}", lossy.len());
        let doubling = arrivals(Link { duplicate: 0.25, ..Link::reliable(delay) }, 10_000);
        assert!(doubling.len().abs_diff(12_500) < 200, "{}", doubling.len());
    }

    #[test]
    fn reordering_lets_messages_overtake() {
        let delay = Distribution::Uniform { from_us: 0.0, to_us: 100.0 };
        assert!(!arrivals(Link { reorder: 0.5, ..Link::reliable(delay) }, 1_000).is_sorted());
    }

    #[test]
    fn a_partition_stops_what_crosses_it() {
        let mut network = Network::new(Link::reliable(Distribution::Constant { us: 1.0 }));
        let mut rng = Rng::new(1);
        let c = NodeId(2);
        network.partition([A, c]);
        assert_eq!(network.send(A, B, Instant::ZERO, &mut rng).count(), 0);
        assert_eq!(network.send(A, c, Instant::ZERO, &mut rng).count(), 1);
        network.heal();
        assert_eq!(network.send(A, B, Instant::ZERO, &mut rng).count(), 1);
    }

    #[test]
    fn links_differ_by_direction() {
        let mut network = Network::new(Link::reliable(Distribution::Constant { us: 1.0 }));
        network.set_link(A, B, Link { loss: 1.0, ..Link::reliable(Distribution::Constant { us: 1.0 }) });
        let mut rng = Rng::new(1);
        assert_eq!(network.send(A, B, Instant::ZERO, &mut rng).count(), 0);
        assert_eq!(network.send(B, A, Instant::ZERO, &mut rng).count(), 1);
    }
}
