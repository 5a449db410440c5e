//! Where one producer's topics go.

use std::collections::BTreeMap;

use slab::Slab;
use tidegate_wire::nsq::TopicName;

use super::node::NodeId;

/// Topics of one producer. More than [`super::OUTSTANDING_MAX`], so that there is always one without an open command.
pub const TOPICS_MAX: usize = 8_192;

/// One topic.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) topic: TopicName,
    /// Its brokers in the order in which this producer goes there; `None` before the first placement.
    pub(super) candidates: Option<Vec<NodeId>>,
    /// Where its newest command went.
    pub(super) at: Option<NodeId>,
    /// Commands there without an answer. The next one goes elsewhere only when there are none.
    pub(super) outstanding: usize,
}

#[derive(Debug, Default)]
pub(super) struct Routes {
    by_key: Slab<Route>,
    by_topic: BTreeMap<TopicName, usize>,
    /// Found last: most producers have one topic.
    last: Option<usize>,
    /// Grows whenever a topic comes, goes or moves.
    changes: u64,
}

impl Routes {
    /// The route of the topic with this name. O(1) for the topic of the call before, else O(log n).
    pub(super) fn find(&mut self, name: &[u8]) -> Option<usize> {
        let is_last = |key: &usize| self.by_key.get(*key).is_some_and(|route| route.topic.as_str().as_bytes() == name);
        if let Some(key) = self.last.filter(is_last) {
            return Some(key);
        }
        let found = self.by_topic.get(std::str::from_utf8(name).ok()?).copied();
        self.last = found.or(self.last);
        found
    }

    /// A route for a topic that has none.
    pub(super) fn insert(&mut self, topic: TopicName) -> usize {
        let key = self.by_key.insert(Route { topic: topic.clone(), candidates: None, at: None, outstanding: 0 });
        self.by_topic.insert(topic, key);
        self.last = Some(key);
        self.changes += 1;
        key
    }

    pub(super) fn is_full(&self) -> bool {
        self.by_key.len() >= TOPICS_MAX
    }

    /// Takes the routes out that have no open command; returns their topics.
    pub(super) fn evict(&mut self) -> Vec<TopicName> {
        self.last = None;
        self.changes += 1;
        let idle: Vec<usize> =
            self.by_key.iter().filter(|(_, route)| route.outstanding == 0).map(|(key, _)| key).collect();
        let topics: Vec<TopicName> = idle.into_iter().map(|key| self.by_key.remove(key).topic).collect();
        for topic in &topics {
            self.by_topic.remove(topic);
        }
        topics
    }

    /// A route that a command or a placement named.
    pub(super) fn route(&mut self, key: usize) -> &mut Route {
        // Routes with open commands are not evicted, and others are not kept by their key.
        &mut self.by_key[key]
    }

    /// How often something of it changed.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Route)> {
        self.by_key.iter()
    }

    /// The newest command of a topic goes to `node`; returns whether the one before went to another one.
    pub(super) fn go(&mut self, key: usize, node: NodeId) -> bool {
        let before = self.by_key[key].at.replace(node);
        self.changes += u64::from(before != Some(node));
        before.is_some_and(|before| before != node)
    }

    /// Commands of topics at `node` go anywhere from now on.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.changes += 1;
        for (_, route) in &mut self.by_key {
            if route.at == Some(node) {
                route.at = None;
            }
        }
    }

    /// Whether the newest command of some topic went to `node`.
    pub(super) fn uses(&self, node: NodeId) -> bool {
        self.by_key.iter().any(|(_, route)| route.at == Some(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_with_open_commands_are_kept() {
        let mut routes = Routes::default();
        let [a, b] = ["a", "b"].map(|name| routes.insert(TopicName::new(name).unwrap()));
        routes.route(a).outstanding = 1;
        assert_eq!((routes.find(b"a"), routes.find(b"b"), routes.find(b"\xff")), (Some(a), Some(b), None));
        let gone = routes.evict();
        assert_eq!(gone.iter().map(TopicName::as_str).collect::<Vec<_>>(), ["b"]);
        assert_eq!((routes.find(b"a"), routes.find(b"b")), (Some(a), None));
    }

    #[test]
    fn the_topic_of_the_call_before_is_not_taken_for_another() {
        let mut routes = Routes::default();
        let [a, b] = ["a", "b"].map(|name| routes.insert(TopicName::new(name).unwrap()));
        for (name, key) in [(b"a", a), (b"a", a), (b"b", b), (b"a", a)] {
            assert_eq!(routes.find(name), Some(key));
        }
        routes.evict();
        let c = routes.insert(TopicName::new("c").unwrap());
        assert_eq!((routes.find(b"a"), routes.find(b"c")), (None, Some(c)), "keys are used again");
    }
}
