//! Which nodes there are, and which of them can take work.
//!
//! A node is known from the configuration or by its own word, ready from its first answer on, and gone when it has not
//! answered for a lease. One that answers again is ready again.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::name::Name;
use super::types::NODES_MAX;

/// What can be asked of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It has not answered yet.
    Known,
    /// It takes publishers.
    Ready,
    /// It answers, keeps what it has until that is moved, and takes nothing new.
    Draining,
    /// It does not answer, or was taken from the roster.
    Gone,
}

/// How long silence is borne.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RosterConfig {
    /// A node that has not answered for so long is gone. 3 s: two lost polls of a second each are borne.
    pub silence: Duration,
}

impl Default for RosterConfig {
    fn default() -> Self {
        Self { silence: Duration::from_secs(3) }
    }
}

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// It takes publishers.
    Ready,
    /// It is being emptied.
    Draining,
}

/// A node whose state changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which.
    pub node: Name,
    /// Its state now.
    pub state: NodeState,
}

/// More than [`NODES_MAX`] nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

#[derive(Clone, Debug)]
struct Member {
    state: NodeState,
    /// Its last answer.
    seen: Instant,
}

/// The nodes and their states; at most [`NODES_MAX`].
#[derive(Clone, Debug)]
pub struct Roster {
    config: RosterConfig,
    members: BTreeMap<Name, Member>,
    changes: VecDeque<Change>,
}

impl Roster {
    /// No nodes.
    #[must_use]
    pub fn new(config: RosterConfig) -> Self {
        Self { config, members: BTreeMap::new(), changes: VecDeque::new() }
    }

    /// A node is to be asked from now on. One that is there already stays as it is.
    ///
    /// # Errors
    /// [`Full`] at [`NODES_MAX`] nodes: it is not asked.
    pub fn add(&mut self, node: &Name, now: Instant) -> Result<(), Full> {
        if self.members.contains_key(node) {
            return Ok(());
        }
        if self.members.len() >= NODES_MAX {
            return Err(Full);
        }
        self.members.insert(node.clone(), Member { state: NodeState::Known, seen: now });
        self.changes.push_back(Change { node: node.clone(), state: NodeState::Known });
        Ok(())
    }

    /// A node is not asked any more.
    pub fn remove(&mut self, node: &str) {
        if let Some((node, member)) = self.members.remove_entry(node)
            && member.state != NodeState::Gone
        {
            self.changes.push_back(Change { node, state: NodeState::Gone });
        }
    }

    /// A node answered. One that is not on the roster says nothing.
    pub fn on_answer(&mut self, node: &str, says: Says, now: Instant) {
        let state = match says {
            Says::Ready => NodeState::Ready,
            Says::Draining => NodeState::Draining,
        };
        if let Some(member) = self.members.get_mut(node) {
            member.seen = member.seen.max(now);
        }
        self.set(node, state);
    }

    /// Its state; `None` if it is not on the roster.
    #[must_use]
    pub fn state(&self, node: &str) -> Option<NodeState> {
        self.members.get(node).map(|member| member.state)
    }

    /// All nodes by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&Name, NodeState)> {
        self.members.iter().map(|(node, member)| (node, member.state))
    }

    /// When the next node is gone unless it answers.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let answers = |member: &&Member| matches!(member.state, NodeState::Ready | NodeState::Draining);
        self.members.values().filter(answers).map(|member| member.seen + self.config.silence).min()
    }

    /// Whoever asks the nodes stood still for `stood`: so long nobody could be heard.
    pub fn on_standstill(&mut self, stood: Duration) {
        for member in self.members.values_mut() {
            member.seen += stood;
        }
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant) {
        let silent: Vec<Name> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.state, NodeState::Ready | NodeState::Draining))
            .filter(|(_, member)| member.seen + self.config.silence <= now)
            .map(|(node, _)| node.clone())
            .collect();
        for node in silent {
            self.set(node.as_str(), NodeState::Gone);
        }
    }

    /// The next change; call until `None`.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    fn set(&mut self, node: &str, state: NodeState) {
        let Some((name, _)) = self.members.get_key_value(node) else { return };
        let name = name.clone();
        let Some(member) = self.members.get_mut(node) else { return };
        if member.state != state {
            member.state = state;
            self.changes.push_back(Change { node: name, state });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn changes(roster: &mut Roster) -> Vec<(String, NodeState)> {
        std::iter::from_fn(|| roster.poll_change()).map(|change| (change.node.to_string(), change.state)).collect()
    }

    #[test]
    fn a_node_is_known_ready_gone_and_ready_again() {
        let mut roster = Roster::new(RosterConfig::default());
        let a: Name = "a".into();
        roster.add(&a, at(0)).unwrap();
        roster.add(&a, at(0)).unwrap();
        assert_eq!(roster.next_timeout(), None, "one that never answered is not lost");
        roster.on_answer("a", Says::Ready, at(1));
        roster.on_answer("a", Says::Ready, at(2));
        assert_eq!(roster.next_timeout(), Some(at(5)));
        roster.on_timeout(at(4));
        assert_eq!(roster.state("a"), Some(NodeState::Ready));
        roster.on_timeout(at(5));
        roster.on_answer("a", Says::Draining, at(9));
        let states = [NodeState::Known, NodeState::Ready, NodeState::Gone, NodeState::Draining];
        assert_eq!(changes(&mut roster), states.map(|state| ("a".to_owned(), state)));
    }

    #[test]
    fn who_could_not_be_heard_is_not_gone() {
        let mut roster = Roster::new(RosterConfig::default());
        roster.add(&"a".into(), at(0)).unwrap();
        roster.on_answer("a", Says::Ready, at(1));
        roster.on_standstill(Duration::from_secs(20));
        roster.on_timeout(at(22));
        assert_eq!((roster.state("a"), roster.next_timeout()), (Some(NodeState::Ready), Some(at(24))));
    }

    #[test]
    fn one_that_is_not_on_the_roster_says_nothing() {
        let mut roster = Roster::new(RosterConfig::default());
        roster.on_answer("b", Says::Ready, at(1));
        let b: Name = "b".into();
        roster.add(&b, at(1)).unwrap();
        roster.remove("b");
        roster.remove("b");
        roster.on_answer("b", Says::Ready, at(2));
        let expected = [NodeState::Known, NodeState::Gone].map(|state| ("b".to_owned(), state));
        assert_eq!((changes(&mut roster), roster.nodes().count()), (expected.to_vec(), 0));
    }

    #[test]
    fn nodes_are_bounded() {
        let mut roster = Roster::new(RosterConfig::default());
        for number in 0..NODES_MAX {
            roster.add(&number.to_string().into(), at(0)).unwrap();
        }
        assert_eq!(roster.add(&"one more".into(), at(0)), Err(Full));
        assert_eq!(roster.add(&"7".into(), at(0)), Ok(()));
    }
}
