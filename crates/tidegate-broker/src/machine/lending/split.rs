//! How the burst of a topic's limit is split among brokers that lend each other tokens, and how a topic lends.

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip::SipHasher24;
use tidegate_core::lend::{Circle, LendConfig, Member, PEERS_MAX};
use tidegate_core::{Instant, lease};

use crate::machine::home::home_shard;

/// Nodes of a split at most.
pub const SPLIT_NODES_MAX: usize = PEERS_MAX + 1;
/// Numbers of nodes are below.
pub const NODE_NUMBERS: u16 = 1 << 10;
/// Shards of a broker that lends at most: they are numbered with its node.
pub const LENDING_SHARDS_MAX: usize = 1 << 6;

/// One broker of a split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SplitNode {
    /// Its number, below [`NODE_NUMBERS`]; no other node of any split that a broker is in has it.
    pub number: u16,
    /// Its name, for people.
    pub name: String,
    /// Its share of the burst, in whole tokens.
    pub burst: u64,
    /// Where its shards take datagrams, by their numbers; 1 to [`LENDING_SHARDS_MAX`].
    pub addresses: Vec<SocketAddr>,
}

/// A split, as all its brokers are told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// Greater than of any earlier split of the topic.
    pub generation: u64,
    /// The number of the broker that is told.
    pub own: u16,
    /// All brokers with a part, by number; 2 to [`SPLIT_NODES_MAX`].
    pub nodes: Vec<SplitNode>,
}

/// How a topic lends whose order asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LendState {
    /// It is in a circle.
    Lends,
    /// It has left one, gives back, and waits for what it lent.
    Leaves,
    /// Its part is a static one.
    Split(WhySplit),
}

/// Why a part that asks for lending is a static one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhySplit {
    /// The split is not newer than one that this broker has left.
    Left,
    /// The split is not what is in force: the contract is smaller than the part, refuses or only counts, or the order is
    /// not carried out yet.
    Contract,
    /// Its lease has ended.
    Lapsed,
    /// The topic is not there yet, or its bucket waits for an earlier circle to end.
    Starting,
    /// A bound is reached: circles, other brokers, or restarts under another number.
    Full,
}

impl LendState {
    /// As it is written: `lends`, `leaves` or `split`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lends => "lends",
            Self::Leaves => "leaves",
            Self::Split(_) => "split",
        }
    }

    /// The same in one word: of a split, why it is one.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.why().unwrap_or(self.name())
    }

    /// Why, if it is a split.
    #[must_use]
    pub fn why(self) -> Option<&'static str> {
        let Self::Split(why) = self else { return None };
        Some(match why {
            WhySplit::Left => "left",
            WhySplit::Contract => "contract",
            WhySplit::Lapsed => "lapsed",
            WhySplit::Starting => "starting",
            WhySplit::Full => "full",
        })
    }
}

/// When all loans of an earlier run have ended, which ended at `from` or before.
pub(crate) fn loans_over(from: Instant) -> Instant {
    let LendConfig { lease, drift_ppm, .. } = LendConfig::new(Member(0));
    lease::Terms::new(lease, drift_ppm).granter_end(from)
}

/// A split that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadSplit {
    /// Too few nodes, or too many.
    #[error("a split has 2 to {SPLIT_NODES_MAX} nodes, not {nodes}")]
    Nodes {
        /// How many.
        nodes: usize,
    },
    /// A number that is none, or stands twice.
    #[error("node number {number} stands twice, or is not below {NODE_NUMBERS}")]
    Number {
        /// Which.
        number: u16,
    },
    /// A node without an address, or with too many.
    #[error("node {number} has {addresses} addresses; give one for each shard, 1 to {LENDING_SHARDS_MAX}")]
    Addresses {
        /// Which node.
        number: u16,
        /// How many.
        addresses: usize,
    },
    /// The broker that is told is not among the nodes.
    #[error("the node's own number {own} is not among the nodes")]
    Own {
        /// Which.
        own: u16,
    },
}

impl Split {
    /// Puts the nodes in order and looks at the numbers.
    ///
    /// # Errors
    /// [`BadSplit`].
    pub fn checked(mut self) -> Result<Self, BadSplit> {
        let nodes = self.nodes.len();
        if !(2..=SPLIT_NODES_MAX).contains(&nodes) {
            return Err(BadSplit::Nodes { nodes });
        }
        self.nodes.sort_by_key(|node| node.number);
        let twice = self.nodes.windows(2).find(|pair| pair[0].number == pair[1].number).map(|pair| pair[0].number);
        let large = self.nodes.last().map(|node| node.number).filter(|number| *number >= NODE_NUMBERS);
        if let Some(number) = twice.or(large) {
            return Err(BadSplit::Number { number });
        }
        let none = self.nodes.iter().find(|node| !(1..=LENDING_SHARDS_MAX).contains(&node.addresses.len()));
        if let Some(SplitNode { number, addresses, .. }) = none {
            return Err(BadSplit::Addresses { number: *number, addresses: addresses.len() });
        }
        if self.own().is_none() {
            return Err(BadSplit::Own { own: self.own });
        }
        Ok(self)
    }

    /// The broker that is told.
    pub(crate) fn own(&self) -> Option<&SplitNode> {
        self.nodes.iter().find(|node| node.number == self.own)
    }

    /// The circle of `topic`, whose tokens are lent in `grain` parts: brokers that were told the same and lend the same parts
    /// are in the same one, and no others.
    pub(crate) fn circle(&self, topic: &str, grain: u64) -> Circle {
        let mut hasher = SipHasher24::new();
        let number = |hasher: &mut SipHasher24, number: u64| hasher.write(&number.to_le_bytes());
        let text = |hasher: &mut SipHasher24, text: &str| {
            number(hasher, text.len() as u64);
            hasher.write(text.as_bytes());
        };
        text(&mut hasher, topic);
        number(&mut hasher, grain);
        number(&mut hasher, self.generation);
        for node in &self.nodes {
            number(&mut hasher, node.number.into());
            number(&mut hasher, node.burst);
            number(&mut hasher, node.addresses.len() as u64);
            for address in &node.addresses {
                text(&mut hasher, &address.to_string());
            }
        }
        Circle(hasher.finish())
    }
}

impl SplitNode {
    /// The shard that has its part of `topic`, and where it takes datagrams.
    pub(crate) fn shard_of(&self, topic: &str) -> (Member, SocketAddr) {
        let shard = home_shard(topic, self.addresses.len());
        (member(self.number, shard), self.addresses[shard])
    }
}

/// The number of a shard among those of all brokers.
pub(crate) fn member(node: u16, shard: usize) -> Member {
    let shard = u16::try_from(shard % LENDING_SHARDS_MAX).expect("below 64");
    Member((node % NODE_NUMBERS) << 6 | shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, burst: u64, ports: &[u16]) -> SplitNode {
        let addresses = ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        SplitNode { number, name: format!("n{number}"), burst, addresses }
    }

    fn split(nodes: &[SplitNode]) -> Result<Split, BadSplit> {
        Split { generation: 7, own: 1, nodes: nodes.to_vec() }.checked()
    }

    #[test]
    fn brokers_that_were_told_the_same_are_in_one_circle() {
        let (a, b) = (node(0, 5, &[1]), node(1, 6, &[2, 3]));
        let [one, other] = [split(&[a.clone(), b.clone()]).unwrap(), split(&[b.clone(), a.clone()]).unwrap()];
        let elsewhere = Split { own: 0, ..other.clone() };
        assert_eq!(one.circle("t", 1), elsewhere.circle("t", 1));
        let later = Split { generation: 8, ..one.clone() };
        let moved = split(&[node(0, 6, &[1]), node(1, 5, &[2, 3])]).unwrap();
        let restarted = split(&[a, node(1, 6, &[2, 4])]).unwrap();
        for different in [later, moved, restarted] {
            assert_ne!(different.circle("t", 1), one.circle("t", 1), "{different:?}");
        }
        assert_ne!(one.circle("u", 1), one.circle("t", 1));
        assert_ne!(one.circle("t", 16), one.circle("t", 1), "what is a token to one is a part of one to the other");
    }

    #[test]
    fn whoever_orders_is_told_why_a_part_is_a_static_one() {
        assert_eq!(LendState::Split(WhySplit::Left).word(), "left", "another generation is needed");
        assert_eq!([LendState::Lends, LendState::Leaves].map(LendState::word), ["lends", "leaves"]);
    }

    #[test]
    fn a_split_that_is_none_is_refused() {
        let (a, b) = (node(0, 5, &[1]), node(1, 6, &[2]));
        assert_eq!(split(std::slice::from_ref(&b)), Err(BadSplit::Nodes { nodes: 1 }));
        assert_eq!(split(&[b.clone(), b.clone()]), Err(BadSplit::Number { number: 1 }));
        assert_eq!(split(&[b.clone(), node(1024, 1, &[2])]), Err(BadSplit::Number { number: 1024 }));
        assert_eq!(split(&[b.clone(), node(0, 1, &[])]), Err(BadSplit::Addresses { number: 0, addresses: 0 }));
        assert_eq!(split(&[a, node(2, 1, &[3])]), Err(BadSplit::Own { own: 1 }));
    }

    #[test]
    fn a_shard_has_one_number_among_those_of_all_nodes() {
        assert_eq!([member(0, 0), member(0, 63), member(1, 0), member(1023, 63)].map(|it| it.0), [0, 63, 64, u16::MAX]);
        let node = node(3, 1, &[10, 11, 12]);
        let shard = home_shard("orders", 3);
        assert_eq!(node.shard_of("orders"), (member(3, shard), node.addresses[shard]));
    }
}
