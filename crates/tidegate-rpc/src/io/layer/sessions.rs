//! The bounded table of a server's sessions: who is heard, and who has been silent for a lease.
//!
//! HTTP connections cannot be sessions: proxies and connection pools put many clients on one, and one client on many.
//! So a client names itself by a random number; who does not is known by its address, without one by its
//! connection, and where the server tells neither, all of them are one.
//!
//! A name costs nothing to invent. So it has a session of its own only once a call of it was served, and shares its
//! address's until then: whoever invents a name for each call is one client, and whoever keeps his is soon himself.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use std::collections::VecDeque;
use std::task::Waker;

use hashbrown::HashMap;
use tidegate_core::Instant;

use super::stamp::ConnectionId;
use crate::machine::{Grant, Server, SessionId, Tenant};
use crate::telemetry::Calls;

/// What tells the networks of 64 bits apart.
const NETWORK: u128 = u128::MAX << 64;

/// Whose session a request belongs to. A client that works for several tenants has a session for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub(super) who: Who,
    pub(super) tenant: Tenant,
}

impl Key {
    pub(super) const NOBODY: Self = Self { who: Who::Nobody, tenant: Tenant(0) };
}

/// Whom a request comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Who {
    /// A client with the layer, by its number.
    Client(u64),
    /// A client without, by its address.
    Peer(IpAddr),
    /// One whose address nobody knows, as on Unix sockets, by its connection.
    Connection(ConnectionId),
    /// Nobody knows.
    Nobody,
}

impl Who {
    /// The one at `address`. Who has one address of version 6 has all of its network of 64 bits.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Peer(match address.to_canonical() {
            IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & NETWORK)),
            four @ IpAddr::V4(_) => four,
        })
    }
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) in_flight: u32,
    pub(super) demand: u32,
    pub(super) grant: Grant,
    pub(super) tenant: Tenant,
    /// Counted while somebody may ask.
    pub(super) calls: Calls,
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
        machine: &mut S,
        now: Instant,
    ) -> Option<(Key, &mut Session)> {
        let [_, address] = keys;
        let known = keys.into_iter().find(|key| self.by_key.contains_key(key));
        let key = known.or_else(|| self.open(address, machine, now).then_some(address))?;
        let session = self.by_key.get_mut(&key)?;
        session.heard = now;
        Some((key, session))
    }

    /// From now on `key` has a session of its own, if there is room: an eighth of the table is kept for those who are
    /// known by address, so that no flood of names can shut them out.
    pub(super) fn admit<S: Server>(&mut self, key: Key, machine: &mut S, now: Instant) {
        if !self.by_key.contains_key(&key) {
            self.open(key, machine, now);
        }
    }

    fn open<S: Server>(&mut self, key: Key, machine: &mut S, now: Instant) -> bool {
        let room = match key.who {
            Who::Client(_) => self.bound - self.bound / 8,
            Who::Peer(_) | Who::Connection(_) | Who::Nobody => self.bound,
        };
        if self.by_key.len() >= room {
            return false;
        }
        let Ok(id) = machine.open(key.tenant, now) else { return false };
        let session = Session {
            id,
            in_flight: 0,
            demand: 0,
            grant: Grant::default(),
            tenant: key.tenant,
            calls: Calls::default(),
            pushed: None,
            listener: None,
            heard: now,
        };
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
            // Who calls seldom is told a level that holds until his next calls: until then it is known what he was told.
            let until = session.heard + self.lease.max(session.grant.lease);
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

    fn of(who: Who) -> Key {
        Key { who, tenant: Tenant(0) }
    }

    fn name(name: u64) -> Key {
        of(Who::Client(name))
    }

    fn peer(peer: IpAddr) -> Key {
        of(Who::Peer(peer))
    }

    #[test]
    fn an_address_of_version_6_is_its_network() {
        let at = |text: &str| Who::at(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2:3::4"), at("2001:db8:1:2:ffff::"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_silent_session_is_closed_after_its_lease_and_not_while_a_call_runs() {
        let (mut table, mut machine) = (Sessions::new(8, LEASE), Recorder::default());
        let keys = [name(1), Key::NOBODY];
        table.admit(keys[0], &mut machine, at(0));
        let (key, session) = table.enter(keys, &mut machine, at(0)).unwrap();
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
        table.admit(name(1), &mut machine, at(0));
        for ms in (0..10_000).step_by(300) {
            table.enter([name(1), Key::NOBODY], &mut machine, at(ms)).unwrap();
            table.expire(&mut machine, at(ms));
        }
        assert_eq!((table.len(), machine.opened), (1, 1));
    }

    #[test]
    fn a_name_that_was_not_served_is_its_address() {
        let (mut table, mut machine) = (Sessions::new(16, LEASE), Recorder::default());
        let address = peer(IpAddr::from([10, 0, 0, 1]));
        for number in 0..1_000 {
            assert_eq!(table.enter([name(number), address], &mut machine, at(0)).unwrap().0, address);
        }
        assert_eq!(table.len(), 1);
        table.admit(name(7), &mut machine, at(0));
        let (key, _) = table.enter([name(7), address], &mut machine, at(0)).unwrap();
        assert_eq!((key, machine.opened), (name(7), 2));
    }

    #[test]
    fn names_leave_room_for_addresses() {
        let (mut table, mut machine) = (Sessions::new(16, LEASE), Recorder::default());
        for number in 0..1_000 {
            table.admit(name(number), &mut machine, at(0));
            let (key, _) = table.enter([name(number), Key::NOBODY], &mut machine, at(0)).unwrap();
            assert_eq!(key == Key::NOBODY, number >= 14);
        }
        let address = peer(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(table.enter([name(5_000), address], &mut machine, at(0)).unwrap().0, address);
        let other = peer(IpAddr::from([10, 0, 0, 2]));
        assert!(table.enter([other, other], &mut machine, at(0)).is_none(), "full");
    }
}
