//! The bounded table of a server's sessions: who is heard, and who has been silent for a lease.
//!
//! HTTP connections cannot be sessions: proxies and connection pools put many clients on one, and one client on many.
//! So a client names itself by a random number; who does not is known by its address, without one by its
//! connection, and where the server tells neither, all of them are one.
//!
//! A name costs nothing to invent. So it has a session of its own only once a call of it was served, and shares its
//! address's until then: whoever invents a name for each call is one client, and whoever keeps his is soon himself.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::task::Waker;

use hashbrown::HashMap;
use tidegate_core::Instant;

use super::stamp::ConnectionId;
use crate::machine::{Grant, Server, SessionId, Tenant};

/// Whom a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// A client with the layer, by its number.
    Client(u64),
    /// A client without, by its address.
    Peer(IpAddr),
    /// One whose address nobody knows, as on Unix sockets, by its connection.
    Connection(ConnectionId),
    /// Nobody knows.
    Nobody,
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) in_flight: u32,
    pub(super) demand: u32,
    pub(super) grant: Grant,
    /// A grant that no answer has carried yet.
    pub(super) pushed: Option<Grant>,
    /// Who waits for one.
    pub(super) listener: Option<Waker>,
    heard: Instant,
}

/// See the module.
pub(super) struct Sessions {
    by_key: HashMap<Key, Session, foldhash::fast::RandomState>,
    keys: HashMap<SessionId, Key, foldhash::fast::RandomState>,
    /// When to look at a session again; one entry for each.
    looks: VecDeque<(Instant, Key)>,
    bound: usize,
    lease: Duration,
}

impl Sessions {
    /// At most `bound` sessions, closed after a silence of `lease`.
    pub(super) fn new(bound: usize, lease: Duration) -> Self {
        Self {
            by_key: HashMap::default(),
            keys: HashMap::default(),
            looks: VecDeque::new(),
            bound: bound.max(1),
            lease,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Session> {
        self.by_key.get_mut(&key)
    }

    /// The session that the machine calls `id`.
    pub(super) fn named(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_key.get_mut(self.keys.get(&id)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_key.values()
    }

    /// The session of the first of `keys` that has one, else of the last, its address; `None` if the table is full.
    pub(super) fn enter<S: Server>(
        &mut self,
        keys: [Key; 2],
        tenant: Tenant,
        machine: &mut S,
        now: Instant,
    ) -> Option<(Key, &mut Session)> {
        let [_, address] = keys;
        let known = keys.into_iter().find(|key| self.by_key.contains_key(key));
        let key = known.or_else(|| self.open(address, tenant, machine, now).then_some(address))?;
        let session = self.by_key.get_mut(&key)?;
        session.heard = now;
        Some((key, session))
    }

    /// From now on `key` has a session of its own, if there is room: an eighth of the table is kept for those who are
    /// known by address, so that no flood of names can shut them out.
    pub(super) fn admit<S: Server>(&mut self, key: Key, tenant: Tenant, machine: &mut S, now: Instant) {
        if !self.by_key.contains_key(&key) {
            self.open(key, tenant, machine, now);
        }
    }

    fn open<S: Server>(&mut self, key: Key, tenant: Tenant, machine: &mut S, now: Instant) -> bool {
        let room = match key {
            Key::Client(_) => self.bound - self.bound / 8,
            Key::Peer(_) | Key::Connection(_) | Key::Nobody => self.bound,
        };
        if self.by_key.len() >= room {
            return false;
        }
        let Ok(id) = machine.open(tenant, now) else { return false };
        let session =
            Session { id, in_flight: 0, demand: 0, grant: Grant::default(), pushed: None, listener: None, heard: now };
        self.by_key.insert(key, session);
        self.keys.insert(id, key);
        self.looks.push_back((now + self.lease, key));
        true
    }

    /// Closes sessions that have been silent for a lease and have nothing in flight. Looks at two at most: each arrival
    /// opens one session at most, so the table shrinks faster than it grows.
    pub(super) fn expire<S: Server>(&mut self, machine: &mut S, now: Instant) {
        for _ in 0..2 {
            let Some((_, key)) = self.looks.pop_front_if(|(look, _)| *look <= now) else { return };
            let Some(session) = self.by_key.get(&key) else { continue };
            let until = session.heard + self.lease;
            if session.in_flight == 0 && until <= now {
                machine.close(session.id, now);
                self.keys.remove(&session.id);
                self.by_key.remove(&key);
            } else {
                self.looks.push_back((until.max(now + self.lease / 2), key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Recorder;
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_silent_session_is_closed_after_its_lease_and_not_while_a_call_runs() {
        let (mut table, mut machine) = (Sessions::new(8, LEASE), Recorder::default());
        let keys = [Key::Client(1), Key::Nobody];
        table.admit(keys[0], Tenant(0), &mut machine, at(0));
        let (key, session) = table.enter(keys, Tenant(0), &mut machine, at(0)).unwrap();
        session.in_flight = 1;
        table.expire(&mut machine, at(1_000));
        assert_eq!(table.len(), 1);
        table.get_mut(key).unwrap().in_flight = 0;
        table.expire(&mut machine, at(1_499));
        assert_eq!(table.len(), 1, "looked at again after half a lease");
        table.expire(&mut machine, at(1_500));
        assert_eq!((table.len(), machine.open), (0, 0));
    }

    #[test]
    fn a_session_that_speaks_stays() {
        let (mut table, mut machine) = (Sessions::new(8, LEASE), Recorder::default());
        table.admit(Key::Client(1), Tenant(0), &mut machine, at(0));
        for ms in (0..10_000).step_by(300) {
            table.enter([Key::Client(1), Key::Nobody], Tenant(0), &mut machine, at(ms)).unwrap();
            table.expire(&mut machine, at(ms));
        }
        assert_eq!((table.len(), machine.opened), (1, 1));
    }

    #[test]
    fn a_name_that_was_not_served_is_its_address() {
        let (mut table, mut machine) = (Sessions::new(16, LEASE), Recorder::default());
        let peer = Key::Peer(IpAddr::from([10, 0, 0, 1]));
        for name in 0..1_000 {
            assert_eq!(table.enter([Key::Client(name), peer], Tenant(0), &mut machine, at(0)).unwrap().0, peer);
        }
        assert_eq!(table.len(), 1);
        table.admit(Key::Client(7), Tenant(0), &mut machine, at(0));
        let (key, _) = table.enter([Key::Client(7), peer], Tenant(0), &mut machine, at(0)).unwrap();
        assert_eq!((key, machine.opened), (Key::Client(7), 2));
    }

    #[test]
    fn names_leave_room_for_addresses() {
        let (mut table, mut machine) = (Sessions::new(16, LEASE), Recorder::default());
        for name in 0..1_000 {
            table.admit(Key::Client(name), Tenant(0), &mut machine, at(0));
            let (key, _) = table.enter([Key::Client(name), Key::Nobody], Tenant(0), &mut machine, at(0)).unwrap();
            assert_eq!(key == Key::Nobody, name >= 14);
        }
        let peer = Key::Peer(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(table.enter([Key::Client(5_000), peer], Tenant(0), &mut machine, at(0)).unwrap().0, peer);
        let other = Key::Peer(IpAddr::from([10, 0, 0, 2]));
        assert!(table.enter([other, other], Tenant(0), &mut machine, at(0)).is_none(), "full");
    }
}
