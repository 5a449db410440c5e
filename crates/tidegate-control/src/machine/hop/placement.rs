//! Where the publishers of a topic go, as the control plane tells it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_core::number::float;
use tidegate_wire::nsq::TopicName;

/// Most nodes of one placement.
pub const PLACEMENT_NODES_MAX: usize = 1_024;

/// A broker of a placement.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct PlacedNode {
    /// For people, and for the hash that spreads publishers who are not named.
    pub name: String,
    /// `host:port` of its NSQ TCP protocol.
    pub nsq: String,
}

/// The nodes of a topic, and which of its publishers goes to which of them.
///
/// This is the answer of `GET /api/v1/placement/{topic}` of the control plane, and an entry of a placement file.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Placement {
    /// The topic's name.
    pub topic: String,
    /// Grows with each change; 0 where nothing counts them.
    #[serde(default)]
    pub revision: u64,
    /// Where the topic is served.
    pub nodes: Vec<PlacedNode>,
    /// Identity of a publisher to its node, by the place in `nodes`.
    #[serde(default)]
    pub publishers: BTreeMap<String, usize>,
    /// Weights of the nodes for publishers that are not named, in the order of `nodes`; none: all alike.
    #[serde(default)]
    pub default: Vec<f64>,
}

/// Why a placement cannot be followed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadPlacement {
    /// Its topic has no name that NSQ knows.
    #[error("{topic:?} is no name of a topic")]
    Topic {
        /// As found.
        topic: String,
    },
    /// It is about another topic.
    #[error("it is the placement of {topic:?}")]
    OtherTopic {
        /// As found.
        topic: String,
    },
    /// No node, or too many.
    #[error("it has {nodes} nodes, expected 1 to {PLACEMENT_NODES_MAX}")]
    Nodes {
        /// How many.
        nodes: usize,
    },
    /// A node's address is none.
    #[error("node {name:?} has the address {nsq:?}, expected host:port")]
    Address {
        /// Of the node.
        name: String,
        /// As found.
        nsq: String,
    },
    /// A publisher is at a node that is not there.
    #[error("{identity:?} is at node {node}, and there are {nodes}")]
    Publisher {
        /// Of the publisher.
        identity: String,
        /// As found.
        node: usize,
        /// How many there are.
        nodes: usize,
    },
    /// Weights that are not one for each node, or not numbers from 0.
    #[error("expected a weight from 0 for each of the {nodes} nodes, or none at all")]
    Weights {
        /// How many nodes there are.
        nodes: usize,
    },
}

/// Whether `text` is `host:port` with a port from 1.
#[must_use]
pub fn is_authority(text: &str) -> bool {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    parts.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

impl Placement {
    /// Checks it as a whole; returns the topic's name.
    ///
    /// # Errors
    /// [`BadPlacement`] names the first fault.
    pub fn check(&self) -> Result<TopicName, BadPlacement> {
        let topic = TopicName::new(&self.topic).map_err(|_| BadPlacement::Topic { topic: self.topic.clone() })?;
        let nodes = self.nodes.len();
        if !(1..=PLACEMENT_NODES_MAX).contains(&nodes) {
            return Err(BadPlacement::Nodes { nodes });
        }
        if let Some(node) = self.nodes.iter().find(|node| !is_authority(&node.nsq)) {
            return Err(BadPlacement::Address { name: node.name.clone(), nsq: node.nsq.clone() });
        }
        if let Some((identity, node)) = self.publishers.iter().find(|(_, node)| **node >= nodes) {
            return Err(BadPlacement::Publisher { identity: identity.clone(), node: *node, nodes });
        }
        let weights = &self.default;
        let fits = weights.is_empty() || weights.len() == nodes;
        if !fits || !weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0) {
            return Err(BadPlacement::Weights { nodes });
        }
        Ok(topic)
    }

    /// Places in `nodes` in the order in which `identity` goes there: where it is named, then by weighted rendezvous
    /// hashing, each next one when those before it are down. Every node once. O(n log n).
    ///
    /// Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996), with the weights of Schindler
    /// and Schomaker (2005): scores are weight / -ln(hash). A changed weight moves no publisher between two others.
    #[must_use]
    pub fn rank(&self, identity: &str) -> Vec<usize> {
        let all_alike = self.default.iter().all(|weight| *weight <= 0.0);
        let score = |place: usize| {
            let weight = if all_alike { 1.0 } else { self.default[place] };
            let spread = -fraction(identity, &self.nodes[place].name).ln();
            weight / spread
        };
        let named = self.publishers.get(identity).copied();
        let mut ranked: Vec<(bool, f64, usize)> =
            (0..self.nodes.len()).map(|place| (named == Some(place), score(place), place)).collect();
        ranked.sort_by(|a, b| {
            Reverse(a.0).cmp(&Reverse(b.0)).then_with(|| b.1.total_cmp(&a.1)).then_with(|| a.2.cmp(&b.2))
        });
        ranked.into_iter().map(|(_, _, place)| place).collect()
    }
}

/// A number between 0 and 1, both excluded, that `identity` and `node` alone decide, on every machine.
fn fraction(identity: &str, node: &str) -> f64 {
    let mut hasher = SipHasher13::new();
    hasher.write(identity.as_bytes());
    // No text holds this byte, so that no two pairs are one.
    hasher.write_u8(0xff);
    hasher.write(node.as_bytes());
    // 52 bits and a half: the sum is exact in 53, and neither 0 nor 1 comes of it.
    (float(hasher.finish() >> 12) + 0.5) / float(1 << 52)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn placement(weights: &[f64]) -> Placement {
        let node = |name: &str| PlacedNode { name: name.to_owned(), nsq: format!("{name}:4150") };
        Placement {
            topic: "orders".to_owned(),
            revision: 1,
            nodes: ["a", "b", "c"].map(node).to_vec(),
            publishers: BTreeMap::from([("p".to_owned(), 2)]),
            default: weights.to_vec(),
        }
    }

    fn firsts(placement: &Placement, publishers: u32) -> [u32; 3] {
        let mut counts = [0; 3];
        for number in 0..publishers {
            counts[placement.rank(&format!("svc@host#{number}"))[0]] += 1;
        }
        counts
    }

    #[test]
    fn a_named_publisher_goes_to_its_node_and_the_others_are_spread() {
        let placement = placement(&[]);
        assert_eq!(placement.check().unwrap().as_str(), "orders");
        assert_eq!(placement.rank("p")[0], 2);
        for count in firsts(&placement, 9_000) {
            // A binomial of 9,000 and 1/3 has a standard deviation of 45.
            assert!((2_775..=3_225).contains(&count), "{count}");
        }
    }

    #[test]
    fn weights_divide_publishers_and_a_node_without_weight_gets_none() {
        let [a, b, c] = firsts(&placement(&[3.0, 1.0, 0.0]), 8_000);
        assert_eq!(c, 0);
        assert!((5_800..=6_200).contains(&a) && a + b == 8_000, "{a} and {b}");
    }

    #[test]
    fn a_node_that_gains_weight_takes_from_others_and_moves_nobody_between_them() {
        let (before, after) = (placement(&[1.0, 1.0, 1.0]), placement(&[1.0, 1.0, 2.0]));
        for number in 0..1_000 {
            let identity = format!("x{number}");
            let (old, new) = (before.rank(&identity)[0], after.rank(&identity)[0]);
            assert!(old == new || new == 2, "{identity} moves from {old} to {new}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let mut wrong = placement(&[1.0]);
        assert_eq!(wrong.check(), Err(BadPlacement::Weights { nodes: 3 }));
        wrong.default = vec![1.0, f64::NAN, 1.0];
        assert_eq!(wrong.check(), Err(BadPlacement::Weights { nodes: 3 }));
        wrong = placement(&[]);
        wrong.publishers.insert("q".to_owned(), 3);
        assert!(matches!(wrong.check(), Err(BadPlacement::Publisher { node: 3, nodes: 3, .. })));
        wrong = placement(&[]);
        wrong.nodes[1].nsq = "b".to_owned();
        assert!(matches!(wrong.check(), Err(BadPlacement::Address { .. })));
        wrong.nodes.clear();
        assert_eq!(wrong.check(), Err(BadPlacement::Nodes { nodes: 0 }));
        wrong.topic = "no topic".to_owned();
        assert!(matches!(wrong.check(), Err(BadPlacement::Topic { .. })));
    }

    proptest! {
        #[test]
        fn every_node_is_ranked_once(identity in ".{0,20}", weights in proptest::collection::vec(0.0..9.0_f64, 3)) {
            let mut ranked = placement(&weights).rank(&identity);
            ranked.sort_unstable();
            prop_assert_eq!(ranked, vec![0, 1, 2]);
        }
    }
}
