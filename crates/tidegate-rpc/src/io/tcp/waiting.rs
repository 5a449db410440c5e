//! The admitted calls of a shard that wait for its thread: in order of arrival, and by connection.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::Instant;

use crate::machine::Ticket;

/// No call.
const NIL: usize = usize::MAX;
/// Buffers that are kept for the next payloads.
const SPARE_MAX: usize = 1024;
/// A larger buffer is given back to the system.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// A call that was admitted.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) connection: usize,
    pub(super) id: u64,
    pub(super) ticket: Ticket,
    pub(super) payload: Vec<u8>,
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) calls: usize,
    /// Of payloads.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct Entry {
    call: Call,
    before: usize,
    after: usize,
    before_here: usize,
    after_here: usize,
}

/// Both ends of a list; what each connection has to keep for its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    first: usize,
    last: usize,
}

impl Default for Ends {
    fn default() -> Self {
        Self { first: NIL, last: NIL }
    }
}

impl Ends {
    pub(super) fn is_empty(&self) -> bool {
        self.first == NIL
    }
}

/// Every operation is O(1), so that no client can make the others wait by what it sends and takes back.
#[derive(Debug)]
pub(super) struct Waiting {
    room: Room,
    entries: Slab<Entry>,
    order: Ends,
    /// By connection and id.
    names: HashMap<(usize, u64), usize, RandomState>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl Waiting {
    pub(super) fn new(room: Room) -> Self {
        Self {
            room,
            entries: Slab::new(),
            order: Ends::default(),
            names: HashMap::default(),
            bytes: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the bytes of the oldest were read.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.get(self.order.first).map(|entry| entry.call.ticket.arrived)
    }

    /// True if a call with this payload may be pushed.
    pub(super) fn has_room(&self, payload: &[u8]) -> bool {
        self.entries.len() < self.room.calls && self.bytes + payload.len() <= self.room.bytes
    }

    pub(super) fn contains(&self, connection: usize, id: u64) -> bool {
        self.names.contains_key(&(connection, id))
    }

    /// Adds a call at the end; `here` is its connection's list. Its name must be new.
    pub(super) fn push(&mut self, connection: usize, id: u64, ticket: Ticket, payload: &[u8], here: &mut Ends) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(payload);
        self.bytes += payload.len();
        let call = Call { connection, id, ticket, payload: copy };
        let (before, before_here) = (self.order.last, here.last);
        let key = self.entries.insert(Entry { call, before, after: NIL, before_here, after_here: NIL });
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = key,
            None => self.order.first = key,
        }
        match self.entries.get_mut(before_here) {
            Some(entry) => entry.after_here = key,
            None => here.first = key,
        }
        (self.order.last, here.last) = (key, key);
        self.names.insert((connection, id), key);
    }

    /// The connection of the oldest call.
    pub(super) fn next_connection(&self) -> Option<usize> {
        self.entries.get(self.order.first).map(|entry| entry.call.connection)
    }

    /// Takes the oldest call; `here` is the list of [`next_connection`](Self::next_connection).
    pub(super) fn pop(&mut self, here: &mut Ends) -> Option<Call> {
        self.remove(self.order.first, here)
    }

    /// Takes the named call, if it still waits.
    pub(super) fn take(&mut self, connection: usize, id: u64, here: &mut Ends) -> Option<Call> {
        let key = *self.names.get(&(connection, id))?;
        self.remove(key, here)
    }

    /// Takes any call of the connection whose list this is.
    pub(super) fn take_first(&mut self, here: &mut Ends) -> Option<Call> {
        self.remove(here.first, here)
    }

    /// Gives a payload's buffer back for the next.
    pub(super) fn recycle(&mut self, mut payload: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && payload.capacity() <= SPARE_BYTES_MAX {
            payload.clear();
            self.spare.push(payload);
        }
    }

    fn remove(&mut self, key: usize, here: &mut Ends) -> Option<Call> {
        let Entry { call, before, after, before_here, after_here } = self.entries.try_remove(key)?;
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = after,
            None => self.order.first = after,
        }
        match self.entries.get_mut(after) {
            Some(entry) => entry.before = before,
            None => self.order.last = before,
        }
        match self.entries.get_mut(before_here) {
            Some(entry) => entry.after_here = after_here,
            None => here.first = after_here,
        }
        match self.entries.get_mut(after_here) {
            Some(entry) => entry.before_here = before_here,
            None => here.last = before_here,
        }
        self.names.remove(&(call.connection, call.id));
        self.bytes -= call.payload.len();
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Ask, SessionId};
    use proptest::prelude::*;

    fn ticket(at: u64) -> Ticket {
        Ticket::new(SessionId(0), &Ask::default(), Instant::from_nanos(at))
    }

    #[test]
    fn room_is_counted_in_calls_and_in_bytes() {
        let mut waiting = Waiting::new(Room { calls: 2, bytes: 5 });
        let mut here = Ends::default();
        assert!(waiting.has_room(b"12345") && !waiting.has_room(b"123456"));
        waiting.push(0, 1, ticket(1), b"1234", &mut here);
        assert!(waiting.has_room(b"1") && !waiting.has_room(b"12"));
        waiting.push(0, 2, ticket(2), b"", &mut here);
        assert!(!waiting.has_room(b""));
        assert_eq!((waiting.oldest(), waiting.len()), (Some(Instant::from_nanos(1)), 2));
        let call = waiting.pop(&mut here).unwrap();
        waiting.recycle(call.payload);
        assert!(waiting.has_room(b"12345"));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_list(steps in prop::collection::vec((0..5_u8, 0..4_usize, 0..6_u64), 0..200)) {
            let mut waiting = Waiting::new(Room { calls: 1_000, bytes: 1_000 });
            let mut ends = [Ends::default(); 4];
            let mut list: Vec<(usize, u64)> = Vec::new();
            for (now, (step, connection, id)) in (0_u64..).zip(steps) {
                match step {
                    0 | 1 if !waiting.contains(connection, id) => {
                        waiting.push(connection, id, ticket(now), b"x", &mut ends[connection]);
                        list.push((connection, id));
                    }
                    2 => {
                        let found = waiting.next_connection().and_then(|of| waiting.pop(&mut ends[of]));
                        let expected = if list.is_empty() { None } else { Some(list.remove(0)) };
                        prop_assert_eq!(found.map(|call| (call.connection, call.id)), expected);
                    }
                    3 => {
                        let at = list.iter().position(|&name| name == (connection, id));
                        let found = waiting.take(connection, id, &mut ends[connection]);
                        prop_assert_eq!(found.map(|call| (call.connection, call.id)), at.map(|at| list.remove(at)));
                    }
                    4 => {
                        while let Some(call) = waiting.take_first(&mut ends[connection]) {
                            prop_assert_eq!(call.connection, connection);
                            list.retain(|&name| name != (connection, call.id));
                        }
                        prop_assert!(list.iter().all(|&(of, _)| of != connection));
                    }
                    _ => {}
                }
                prop_assert_eq!(waiting.len(), list.len());
            }
        }
    }
}
