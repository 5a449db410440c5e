//! The admitted calls of a shard that wait for its thread, by name and by connection. Their order is the desk's.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;

use crate::machine::desk;

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
    pub(super) waiting: desk::Waiting,
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
    before_here: usize,
    after_here: usize,
}

/// Both ends of a list: what each connection keeps of its calls.
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
    /// By connection and id.
    names: HashMap<(usize, u64), usize, RandomState>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl Waiting {
    pub(super) fn new(room: Room) -> Self {
        Self { room, entries: Slab::new(), names: HashMap::default(), bytes: 0, spare: Vec::new() }
    }

    /// True if a call with this payload may be pushed.
    pub(super) fn has_room(&self, payload: &[u8]) -> bool {
        self.entries.len() < self.room.calls && self.bytes + payload.len() <= self.room.bytes
    }

    pub(super) fn contains(&self, connection: usize, id: u64) -> bool {
        self.names.contains_key(&(connection, id))
    }

    /// The key that the next call will have.
    pub(super) fn next_key(&self) -> usize {
        self.entries.vacant_key()
    }

    /// Adds a call; `here` is its connection's list. Its name must be new.
    pub(super) fn push(&mut self, connection: usize, id: u64, waiting: desk::Waiting, payload: &[u8], here: &mut Ends) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(payload);
        self.bytes += payload.len();
        let call = Call { connection, id, waiting, payload: copy };
        let before_here = here.last;
        let key = self.entries.insert(Entry { call, before_here, after_here: NIL });
        match self.entries.get_mut(before_here) {
            Some(entry) => entry.after_here = key,
            None => here.first = key,
        }
        here.last = key;
        self.names.insert((connection, id), key);
    }

    /// The connection of a call.
    pub(super) fn connection(&self, key: usize) -> Option<usize> {
        self.entries.get(key).map(|entry| entry.call.connection)
    }

    /// Takes a call; `here` is the list of its [`connection`](Self::connection).
    pub(super) fn pop(&mut self, key: usize, here: &mut Ends) -> Option<Call> {
        self.remove(key, here)
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
        let Entry { call, before_here, after_here } = self.entries.try_remove(key)?;
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
    use crate::machine::desk::{Called, Desk};
    use crate::machine::none::{Config, OpenServer};
    use crate::machine::{Ask, Done, Server as _, SessionId, Tenant};
    use proptest::prelude::*;
    use tidegate_core::Instant;

    struct Shard {
        desk: Desk<OpenServer, usize>,
        session: SessionId,
        waiting: Waiting,
        ends: [Ends; 4],
    }

    impl Shard {
        fn new(room: Room) -> Self {
            let mut machine = OpenServer::new(Config::default());
            let session = machine.open(Tenant(0), Instant::ZERO).unwrap();
            let desk = Desk::new(machine, 1);
            Self { desk, session, waiting: Waiting::new(room), ends: [Ends::default(); 4] }
        }

        fn push(&mut self, connection: usize, id: u64, payload: &[u8], now: Instant) {
            let ask = Ask::default();
            let arrival = desk::Arrival::new(self.session, &ask, now);
            let waiting = self.desk.on_request(&arrival, self.waiting.next_key(), now).unwrap();
            self.waiting.push(connection, id, waiting, payload, &mut self.ends[connection]);
        }

        /// Runs the call whose turn it is.
        fn pop(&mut self, now: Instant) -> Option<(usize, u64)> {
            let Called::Start(key) = self.desk.poll_call(now)? else { panic!("nothing goes on") };
            let connection = self.waiting.connection(key).unwrap();
            let Call { id, waiting, payload, .. } = self.waiting.pop(key, &mut self.ends[connection]).unwrap();
            let running = self.desk.start(waiting, now).unwrap();
            self.desk.end(running, Done::Served, now);
            self.waiting.recycle(payload);
            Some((connection, id))
        }

        fn cancel(&mut self, call: Call, now: Instant) -> (usize, u64) {
            self.desk.cancel(call.waiting, now);
            (call.connection, call.id)
        }
    }

    #[test]
    fn room_is_counted_in_calls_and_in_bytes() {
        let now = Instant::from_nanos(1);
        let mut shard = Shard::new(Room { calls: 2, bytes: 5 });
        assert!(shard.waiting.has_room(b"12345") && !shard.waiting.has_room(b"123456"));
        shard.push(0, 1, b"1234", now);
        assert!(shard.waiting.has_room(b"1") && !shard.waiting.has_room(b"12"));
        shard.push(0, 2, b"", now);
        assert!(!shard.waiting.has_room(b""));
        assert_eq!(shard.pop(now), Some((0, 1)));
        assert!(shard.waiting.has_room(b"12345"));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_list(steps in prop::collection::vec((0..5_u8, 0..4_usize, 0..6_u64), 0..200)) {
            let mut shard = Shard::new(Room { calls: 1_000, bytes: 1_000 });
            let mut list: Vec<(usize, u64)> = Vec::new();
            for (now, (step, connection, id)) in (0_u64..).zip(steps) {
                let now = Instant::from_nanos(now);
                match step {
                    0 | 1 if !shard.waiting.contains(connection, id) => {
                        shard.push(connection, id, b"x", now);
                        list.push((connection, id));
                    }
                    2 => {
                        let expected = if list.is_empty() { None } else { Some(list.remove(0)) };
                        prop_assert_eq!(shard.pop(now), expected);
                    }
                    3 => {
                        let at = list.iter().position(|&name| name == (connection, id));
                        let found = shard.waiting.take(connection, id, &mut shard.ends[connection]);
                        let found = found.map(|call| shard.cancel(call, now));
                        prop_assert_eq!(found, at.map(|at| list.remove(at)));
                    }
                    4 => {
                        while let Some(call) = shard.waiting.take_first(&mut shard.ends[connection]) {
                            let name = shard.cancel(call, now);
                            prop_assert_eq!(name.0, connection);
                            list.retain(|&other| other != name);
                        }
                        prop_assert!(list.iter().all(|&(of, _)| of != connection));
                    }
                    _ => {}
                }
                prop_assert_eq!((shard.waiting.entries.len(), shard.desk.waiting()), (list.len(), list.len()));
            }
        }
    }
}
