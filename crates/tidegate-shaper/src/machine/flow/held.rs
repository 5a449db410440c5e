//! The flows of a device's classes: held, opening, or unknown.

use std::collections::BTreeMap;

use super::table::Recent;
use super::{Flow, FlowKey};
use crate::machine::packet::Flags;

/// Most flows that are held at once.
pub const FLOWS_MAX: usize = 65_536;
/// Most flows whose handshake is not complete, and as many that were not seen to open.
const LOOSE_MAX: usize = 16_384;
/// A class holds no more flows than this many times what is free, so that two thirds are the most that one class holds, and a
/// class that comes later finds room. Source: Dynamic Queue Length Thresholds for Shared-Memory Packet Switches, 1998.
const ROOM: usize = 2;

/// Flows by their addresses.
///
/// A flow is opening until the first packet that follows its handshake. Then it is held, if its class has room, until it
/// ends; a flow that finds no room has its peer's own windows until it opens anew. Of those that are opening the one longest
/// unused goes first, and so of the strangers, whose handshakes were not seen: neither takes room from flows that are held.
#[derive(Clone, Debug)]
pub struct Flows {
    held: BTreeMap<FlowKey, Held>,
    held_by_class: BTreeMap<usize, usize>,
    opening: Recent<FlowKey, Flow>,
    strangers: Recent<FlowKey, Flow>,
    most: usize,
    unheld: u64,
}

#[derive(Clone, Debug)]
struct Held {
    class: usize,
    flow: Flow,
}

/// A flow found no room in its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

impl Default for Flows {
    fn default() -> Self {
        Self::new(FLOWS_MAX)
    }
}

impl Flows {
    /// An empty table that holds at most `most` flows.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            held_by_class: BTreeMap::new(),
            opening: Recent::new(LOOSE_MAX),
            strangers: Recent::new(LOOSE_MAX),
            most,
            unheld: 0,
        }
    }

    /// Number of flows that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Flows that found no room.
    #[must_use]
    pub fn unheld(&self) -> u64 {
        self.unheld
    }

    /// The flow of a packet with these flags that goes out. A guest that begins a flow anew has ended the one before.
    pub(crate) fn of_sent(&mut self, key: FlowKey, flags: Flags, unknown: Flow) -> Option<&mut Flow> {
        let opens = flags.has(Flags::SYN);
        if opens {
            self.remove_held(&key);
            if !flags.has(Flags::ACK) {
                // One that resets too opens nothing.
                return (!flags.has(Flags::RST)).then(|| {
                    let flow = self.opening.entry(key, unknown);
                    *flow = unknown;
                    flow
                });
            }
        }
        let is_new = self.lookup_loose(&key, opens).is_none() && !self.held.contains_key(&key);
        if is_new && !flags.has(Flags::RST) {
            let table = if opens { &mut self.opening } else { &mut self.strangers };
            return Some(table.entry(key, unknown));
        }
        self.lookup_with(&key, opens)
    }

    /// The flow of a packet with these flags that comes in. A SYN proves nothing: it changes no flow that is held.
    pub(crate) fn of_received(&mut self, key: FlowKey, flags: Flags, unknown: Flow) -> Option<&mut Flow> {
        let opens = flags.has(Flags::SYN);
        if opens && !flags.has(Flags::ACK) {
            let flow = self.opening.entry(key, unknown);
            *flow = unknown;
            return Some(flow);
        }
        self.lookup_with(&key, opens)
    }

    /// The flow with this key.
    pub fn lookup(&mut self, key: &FlowKey) -> Option<&mut Flow> {
        self.lookup_with(key, false)
    }

    /// The flow with this key. If `opens`, the segment has SYN, and a flow that is held is an earlier one.
    fn lookup_with(&mut self, key: &FlowKey, opens: bool) -> Option<&mut Flow> {
        if !opens && self.held.contains_key(key) {
            return self.held.get_mut(key).map(|held| &mut held.flow);
        }
        self.lookup_loose(key, opens)
    }

    fn lookup_loose(&mut self, key: &FlowKey, opens: bool) -> Option<&mut Flow> {
        if opens || self.opening.contains(key) {
            return self.opening.lookup(key);
        }
        self.strangers.lookup(key)
    }

    /// Whether the flow is held.
    pub(crate) fn is_held(&self, key: &FlowKey) -> bool {
        self.held.contains_key(key)
    }

    /// Holds a flow whose handshake is complete.
    ///
    /// # Errors
    /// [`NoRoom`] if its class has none. Then the flow is forgotten.
    pub(crate) fn hold(&mut self, key: FlowKey, class: usize) -> Result<(), NoRoom> {
        let flow = self.lookup_loose(&key, false).copied();
        self.remove_loose(&key);
        let all = self.held.len();
        let of_class = self.held_by_class.entry(class).or_default();
        if all >= self.most || *of_class >= ROOM * (self.most - all) {
            self.unheld += 1;
            return Err(NoRoom);
        }
        if let Some(flow) = flow {
            *of_class += 1;
            self.held.insert(key, Held { class, flow });
        }
        Ok(())
    }

    /// Puts a flow back to those that open. True if it was held.
    pub(crate) fn let_go(&mut self, key: &FlowKey) -> bool {
        let Some(flow) = self.held.get(key).map(|held| held.flow) else { return false };
        *self.opening.entry(*key, flow) = flow;
        self.remove_held(key)
    }

    /// Forgets a flow. True if it was held.
    pub fn remove(&mut self, key: &FlowKey) -> bool {
        self.remove_held(key) || {
            self.remove_loose(key);
            false
        }
    }

    fn remove_held(&mut self, key: &FlowKey) -> bool {
        let Some(Held { class, .. }) = self.held.remove(key) else { return false };
        if let Some(held) = self.held_by_class.get_mut(&class) {
            *held -= 1;
        }
        true
    }

    fn remove_loose(&mut self, key: &FlowKey) {
        self.opening.remove(key);
        self.strangers.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::flow::Scale;
    use crate::machine::packet::Endpoint;

    fn key(port: u16) -> FlowKey {
        let end = |port| Endpoint { address: [0; 16], port };
        FlowKey { local: end(port), remote: end(1) }
    }

    fn unknown() -> Flow {
        Flow::of_open(Scale::Offered(None))
    }

    fn open(flows: &mut Flows, port: u16, class: usize) -> Result<(), NoRoom> {
        flows.of_sent(key(port), Flags::SYN, unknown()).unwrap().mss = port.into();
        flows.hold(key(port), class)
    }

    #[test]
    fn no_class_takes_all_the_room_and_none_loses_a_flow_to_another() {
        let mut flows = Flows::new(90);
        let taken = (1..=90).filter(|&port| open(&mut flows, port, 0).is_ok()).count();
        assert_eq!((taken, flows.unheld()), (60, 30), "two thirds are the most");
        let taken = (101..=190).filter(|&port| open(&mut flows, port, 1).is_ok()).count();
        assert_eq!(taken, 20, "two thirds of what is left");
        assert!((1..=60).all(|port| flows.is_held(&key(port))));
        assert!(flows.remove(&key(1)) && open(&mut flows, 91, 0).is_err(), "the others need it");
        (101..=120).for_each(|port| assert!(flows.remove(&key(port))));
        assert!(open(&mut flows, 91, 0).is_ok());
        assert_eq!(flows.held(), 60);
    }

    #[test]
    fn a_flood_of_syns_takes_no_room() {
        let mut flows = Flows::new(90);
        open(&mut flows, 1, 0).unwrap();
        for port in 2..40_000 {
            flows.of_received(key(port), Flags::SYN, unknown());
        }
        assert_eq!((flows.held(), flows.opening.len()), (1, LOOSE_MAX));
        // Not even with the addresses of a flow that is held.
        flows.of_received(key(1), Flags::SYN, unknown());
        assert_eq!(flows.lookup(&key(1)).unwrap().mss, 1);
        // Its own guest may end it.
        flows.of_sent(key(1), Flags::SYN, unknown());
        assert_eq!((flows.held(), flows.lookup(&key(1)).copied()), (0, Some(unknown())));
    }
}
