//! The places of a server's connections: how many there are, and which connection ends when a new one finds none.
//!
//! A connection costs its client nothing while it sends nothing, so the server may be full of such ones at any time.
//! Then the one that has waited longest for its client ends, of the address that has the most. Clients that are worked
//! for are never ended, and an address can only push out its own connections while others have fewer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use slab::Slab;

use super::talk::Talk;

/// The clients that share a bound: an IPv4 address, the 64 bits of an IPv6 network that one client can have all of, or `None` for
/// the clients of a unix socket.
pub(super) type Group = Option<IpAddr>;

/// The group of a client of this address.
pub(super) fn group_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Why there is no place; clients are worked for in all that could be given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// In all of the address's places.
    Address,
    /// In all places.
    All,
}

/// All places of a server.
#[derive(Debug)]
pub(super) struct Places {
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    places: Slab<(Group, Arc<Talk>)>,
    counts: BTreeMap<Group, usize>,
}

/// A place, until it is dropped or another connection gets it.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    key: usize,
    pub(super) talk: Arc<Talk>,
}

impl Places {
    /// `all` places, at least two. An address has half of them at most; clients of a unix socket have all.
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all: all.max(2), taken: Mutex::default() })
    }

    /// A place for a new connection, perhaps that of another one, which is told.
    pub(super) fn take(self: &Arc<Self>, group: Group, talk: Arc<Talk>) -> Result<Place, Full> {
        let mut taken = self.lock();
        let of_group = taken.counts.get(&group).copied().unwrap_or(0);
        if group.is_some() && of_group >= self.all / 2 {
            let ended = taken.longest_waiting(|other, _| (other == group).then_some(0)).ok_or(Full::Address)?;
            taken.give_up(ended);
        } else if taken.places.len() >= self.all {
            let ended = taken.longest_waiting(|_, count| Some(count)).ok_or(Full::All)?;
            taken.give_up(ended);
        }
        *taken.counts.entry(group).or_default() += 1;
        let key = taken.places.insert((group, Arc::clone(&talk)));
        Ok(Place { places: Arc::clone(self), key, talk })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Taken {
    /// Of the places with the highest `rank` (of a group and how many places it has), the one whose client is awaited
    /// longest. Looks at all.
    fn longest_waiting(&self, rank: impl Fn(Group, usize) -> Option<usize>) -> Option<usize> {
        let waiting = self.places.iter().filter_map(|(key, (group, talk))| {
            let rank = rank(*group, self.counts.get(group).copied().unwrap_or(0))?;
            Some((std::cmp::Reverse(rank), talk.waits_since()?, key))
        });
        waiting.min().map(|(_, _, key)| key)
    }

    fn give_up(&mut self, key: usize) {
        let (group, talk) = self.places.remove(key);
        talk.end();
        if let Some(count) = self.counts.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&group);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        // Another connection may have it by now.
        if taken.places.get(self.key).is_some_and(|(_, talk)| Arc::ptr_eq(talk, &self.talk)) {
            taken.give_up(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// Talks that began one after the other; the last one is the newest.
    fn talks<const N: usize>() -> [Arc<Talk>; N] {
        let start = Instant::now();
        std::array::from_fn(|n| Arc::new(Talk::new(start + Duration::from_secs(n as u64))))
    }

    fn address(last: u8) -> IpAddr {
        group_of(IpAddr::from([10, 0, 0, last]))
    }

    fn ended<const N: usize>(talks: &[Arc<Talk>; N]) -> Vec<usize> {
        (0..N).filter(|n| talks[*n].is_ended()).collect()
    }

    #[tokio::test]
    async fn a_full_server_ends_the_longest_wait_of_the_address_with_the_most() {
        let places = Places::new(4);
        let talks = talks::<7>();
        let mut held = Vec::new();
        for (n, of) in [(0, 1), (1, 2), (2, 2), (3, 3)] {
            held.push(places.take(Some(address(of)), Arc::clone(&talks[n])).unwrap());
        }
        assert_eq!(ended(&talks), [0_usize; 0]);
        held.push(places.take(Some(address(4)), Arc::clone(&talks[4])).unwrap());
        assert_eq!(ended(&talks), [1], "the oldest of address 2, which has two");
        held.push(places.take(Some(address(5)), Arc::clone(&talks[5])).unwrap());
        assert_eq!(ended(&talks), [0, 1], "all have one: the oldest");
        // The places of the ended are others' by now.
        held.drain(..2);
        assert_eq!(places.lock().places.len(), 4);
        drop(held);
        let taken = places.lock();
        assert!(taken.places.is_empty() && taken.counts.is_empty());
    }

    #[tokio::test]
    async fn an_address_with_half_of_the_places_pushes_out_its_own() {
        let places = Places::new(4);
        let talks = talks::<5>();
        let mut held: Vec<_> =
            (0..3).map(|n| places.take(Some(address(1 + u8::from(n == 0))), Arc::clone(&talks[n])).unwrap()).collect();
        held.push(places.take(Some(address(1)), Arc::clone(&talks[3])).unwrap());
        assert_eq!(ended(&talks), [1], "of four places, two are another's or free");
    }

    #[tokio::test]
    async fn clients_that_are_worked_for_stay() {
        let places = Places::new(2);
        let talks = talks::<4>();
        let _first = places.take(Some(address(1)), Arc::clone(&talks[0])).unwrap();
        talks[0].begin_request(Instant::now());
        assert_eq!(places.take(Some(address(1)), Arc::clone(&talks[1])).unwrap_err(), Full::Address);
        let _other = places.take(Some(address(2)), Arc::clone(&talks[1])).unwrap();
        talks[1].begin_request(Instant::now());
        assert_eq!(places.take(Some(address(3)), Arc::clone(&talks[2])).unwrap_err(), Full::All);
        talks[1].await_body(Instant::now());
        let _third = places.take(Some(address(3)), Arc::clone(&talks[2])).unwrap();
        assert_eq!(ended(&talks), [1]);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let group = |text: &str| group_of(text.parse().unwrap());
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:1:2:3"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
        assert_ne!(group("127.0.0.1"), group("127.0.0.2"));
    }
}
