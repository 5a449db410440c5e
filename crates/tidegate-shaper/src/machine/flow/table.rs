//! A bounded table, of which the longest unused goes first.

use std::collections::BTreeMap;

/// No slot.
const NONE: usize = usize::MAX;

/// Values by their keys. When it is full, the one longest not looked up goes.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    slots: Vec<Slot<K, V>>,
    by_key: BTreeMap<K, usize>,
    /// Slots of values that were removed.
    free: Vec<usize>,
    /// Looked up last, and longest ago.
    newest: usize,
    oldest: usize,
    most: usize,
}

#[derive(Clone, Debug)]
struct Slot<K, V> {
    key: K,
    value: V,
    newer: usize,
    older: usize,
}

impl<K: Ord + Copy, V> Recent<K, V> {
    /// An empty table for at most `most` values, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { slots: Vec::new(), by_key: BTreeMap::new(), free: Vec::new(), newest: NONE, oldest: NONE, most }
    }

    /// Number of values known.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether a value is known; it does not count as used.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// The value of this key, if it is known; it counts as used.
    pub(crate) fn lookup(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.by_key.get(key)?;
        self.touch(at);
        Some(&mut self.slots[at].value)
    }

    /// The value of this key, `value` if it is not known; it counts as used.
    pub(crate) fn entry(&mut self, key: K, value: V) -> &mut V {
        let at = self.by_key.get(&key).copied().unwrap_or_else(|| self.insert(key, value));
        self.touch(at);
        &mut self.slots[at].value
    }

    /// Forgets a value. True if it was known.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        let Some(at) = self.by_key.remove(key) else { return false };
        self.unlink(at);
        self.free.push(at);
        true
    }

    fn insert(&mut self, key: K, value: V) -> usize {
        let slot = Slot { key, value, newer: NONE, older: NONE };
        let at = if let Some(at) = self.free.pop() {
            self.slots[at] = slot;
            at
        } else if self.slots.len() < self.most {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.oldest;
            self.unlink(at);
            self.by_key.remove(&self.slots[at].key);
            self.slots[at] = slot;
            at
        };
        self.by_key.insert(key, at);
        self.link(at);
        at
    }

    fn touch(&mut self, at: usize) {
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
    }

    /// Makes a slot that is in no list the newest.
    fn link(&mut self, at: usize) {
        self.slots[at].older = self.newest;
        self.slots[at].newer = NONE;
        match self.slots.get_mut(self.newest) {
            Some(second) => second.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: usize) {
        let Slot { newer, older, .. } = self.slots[at];
        match self.slots.get_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::machine::flow::{Flow, FlowKey, Scale};
    use crate::machine::packet::Endpoint;

    fn fresh() -> Flow {
        Flow::new(Scale::Known(7), 0)
    }

    fn key(port: u16) -> FlowKey {
        let end = |port| Endpoint { address: [0; 16], port };
        FlowKey { local: end(port), remote: end(1) }
    }

    #[test]
    fn the_longest_unused_flow_goes() {
        let mut flows = Recent::new(2);
        flows.entry(key(1), fresh()).mss = 11;
        flows.entry(key(2), fresh()).mss = 22;
        assert_eq!(flows.lookup(&key(1)).unwrap().mss, 11);
        flows.entry(key(3), fresh());
        assert!(flows.lookup(&key(2)).is_none());
        assert_eq!(flows.lookup(&key(1)).unwrap().mss, 11);
        assert_eq!(flows.len(), 2);
    }

    #[test]
    fn a_removed_flow_makes_room() {
        let mut flows = Recent::new(2);
        flows.entry(key(1), fresh());
        flows.entry(key(2), fresh());
        assert!(flows.remove(&key(1)) && !flows.remove(&key(1)));
        flows.entry(key(3), fresh());
        assert_eq!(flows.len(), 2);
        flows.entry(key(4), fresh());
        assert!(flows.lookup(&key(2)).is_none() && flows.lookup(&key(3)).is_some());
    }

    proptest! {
        #[test]
        fn it_keeps_the_latest_whatever_the_order(ports in proptest::collection::vec(0..12_u16, 1..200), most in 1..9_usize) {
            let mut flows = Recent::new(most);
            // By when they were used last, the latest at the end.
            let mut known: Vec<u16> = Vec::new();
            for &port in &ports {
                prop_assert_eq!(flows.by_key.contains_key(&key(port)), known.contains(&port));
                flows.entry(key(port), fresh());
                known.retain(|other| *other != port);
                known.push(port);
                if known.len() > most {
                    known.remove(0);
                }
                prop_assert_eq!(flows.len(), known.len());
            }
        }
    }
}
