//! Which connection of HTTP/2 to a server a request shares, and with whom.

use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_core::Instant;

use crate::machine::neighbours::Claimant;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionsTuning {
    /// Connections to one server, the common one among them; at least 1. 64: more tenants than that seldom have requests
    /// under way at the same moment on one thread, and all their windows together are 256 MiB.
    pub max: usize,
    /// Streams of a connection up to which its tenant opens no further one; at least 1. 32: with stream windows of a
    /// thirty-second of the connection's window, streams that stand still cannot use it up.
    pub streams: u32,
    /// How long one without streams is kept.
    pub idle: Duration,
}

impl Default for ConnectionsTuning {
    fn default() -> Self {
        Self { max: 64, streams: 32, idle: Duration::from_mins(1) }
    }
}

/// The connections to one server, by tenant.
///
/// What a client does not read fills the windows of the connection it comes over, in both directions. So a connection
/// is shared by requests of one tenant only, and a tenant opens another one when all it has carry
/// [`streams`](ConnectionsTuning::streams). A claimant, with all names that it makes up, opens no more than it leaves
/// to others: alone it has half of the places, and there are some for one who comes. Beyond that its requests share
/// those that it has. When no place is left, a claimant without a connection takes that of the one that has been idle
/// longest; if none is idle, it shares one common connection with others that came too late.
///
/// Whatever began ends once, with [`on_end`](Self::on_end).
/// Source: the threshold is that of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
/// Switches" (1998), with a factor of 1.
#[derive(Clone, Debug)]
pub struct Connections {
    tuning: ConnectionsTuning,
    /// The last of [`ConnectionsTuning::max`] is the common one.
    places: Vec<Place>,
    /// Places of each claimant that has any.
    claimants: BTreeMap<Claimant, Vec<usize>>,
    free: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Whose it is, and which of its tenants came last without a connection; `None` if it is free or common.
    owner: Option<(Claimant, u32)>,
    streams: u32,
    /// When its last stream ended, if it has none.
    idle_since: Instant,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// The connection's place, below [`ConnectionsTuning::max`].
    pub place: usize,
    /// Whatever connection was there is another tenant's, and to be closed.
    pub is_new: bool,
}

impl Connections {
    /// There is none.
    #[must_use]
    pub fn new(tuning: ConnectionsTuning) -> Self {
        let tuning = ConnectionsTuning { max: tuning.max.max(1), streams: tuning.streams.max(1), ..tuning };
        Self { tuning, places: Vec::new(), claimants: BTreeMap::new(), free: Vec::new() }
    }

    /// A request of a tenant begins, which this claimant stands for. O(connections of the claimant); O(`max`) when no
    /// place is left.
    pub fn begin(&mut self, claimant: Claimant, tenant: u32) -> Begun {
        let own = self.claimants.get(&claimant).map_or(&[][..], Vec::as_slice);
        let streams = |place: &usize| self.places[*place].streams;
        let is_its = |place: &usize| self.places[*place].owner == Some((claimant, tenant));
        let has_room = |place: &usize| streams(place) < self.tuning.streams;
        let idle = || own.iter().copied().find(|place| streams(place) == 0);
        let its_own = own.iter().copied().find(|place| is_its(place) && has_room(place)).or_else(idle);
        let least = own.iter().copied().min_by_key(streams);
        let begun = match (its_own, least) {
            (Some(place), _) => Begun { place, is_new: false },
            (None, Some(place)) if own.len() >= self.left() => Begun { place, is_new: false },
            _ => self.open(claimant),
        };
        let place = &mut self.places[begun.place];
        place.streams += 1;
        if let Some((_, last)) = &mut place.owner
            && place.streams == 1
        {
            *last = tenant;
        }
        begun
    }

    /// Whether requests of several tenants may share the connection at this place.
    #[must_use]
    pub fn is_common(&self, place: usize) -> bool {
        place + 1 >= self.tuning.max
    }

    /// A request that began at this place is over.
    ///
    /// # Panics
    /// If none is under way there.
    pub fn on_end(&mut self, place: usize, now: Instant) {
        let place = &mut self.places[place];
        place.streams = place.streams.checked_sub(1).expect("only what began can end");
        if place.streams == 0 {
            place.idle_since = now;
        }
    }

    /// A place whose connection was without streams for too long and is to be closed; call until `None`. O(`max`).
    pub fn expire(&mut self, now: Instant) -> Option<usize> {
        let is_over = |place: &Place| {
            place.owner.is_some() && place.streams == 0 && now.since(place.idle_since) >= self.tuning.idle
        };
        let place = self.places.iter().position(is_over)?;
        self.take_away(place);
        self.free.push(place);
        Some(place)
    }

    /// Places that nobody has, without the common one.
    fn left(&self) -> usize {
        let taken = self.places.len().min(self.tuning.max - 1) - self.free.len();
        self.tuning.max - 1 - taken
    }

    fn open(&mut self, claimant: Claimant) -> Begun {
        let common = self.tuning.max - 1;
        let place = if let Some(free) = self.free.pop() {
            free
        } else if self.places.len() < common {
            self.places.push(Place { owner: None, streams: 0, idle_since: Instant::ZERO });
            self.places.len() - 1
        } else if let Some(idle) = self.longest_idle() {
            self.take_away(idle);
            idle
        } else {
            let is_new = self.places.len() == common;
            if is_new {
                self.places.push(Place { owner: None, streams: 0, idle_since: Instant::ZERO });
            }
            return Begun { place: common, is_new };
        };
        self.places[place].owner = Some((claimant, 0));
        self.claimants.entry(claimant).or_default().push(place);
        Begun { place, is_new: true }
    }

    fn longest_idle(&self) -> Option<usize> {
        let idle = self.places.iter().enumerate().filter(|(_, place)| place.owner.is_some() && place.streams == 0);
        idle.min_by_key(|(_, place)| place.idle_since).map(|(place, _)| place)
    }

    fn take_away(&mut self, place: usize) {
        let Some((claimant, _)) = self.places[place].owner.take() else { return };
        if let Some(own) = self.claimants.get_mut(&claimant) {
            own.retain(|&other| other != place);
            if own.is_empty() {
                self.claimants.remove(&claimant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    fn connections(max: usize, streams: u32) -> Connections {
        Connections::new(ConnectionsTuning { max, streams, idle: Duration::from_mins(1) })
    }

    /// A request of a tenant that stands for itself.
    fn begin(connections: &mut Connections, tenant: u32) -> Begun {
        connections.begin(Claimant::numbered(tenant), tenant)
    }

    fn new(place: usize) -> Begun {
        Begun { place, is_new: true }
    }

    fn same(place: usize) -> Begun {
        Begun { place, is_new: false }
    }

    #[test]
    fn tenants_share_no_connection() {
        let mut connections = connections(8, 2);
        assert_eq!([1, 2, 1, 2].map(|tenant| begin(&mut connections, tenant)), [new(0), new(1), same(0), same(1)]);
        assert_eq!(begin(&mut connections, 1), new(2), "a third stream would be one too many");
        connections.on_end(0, at(1));
        assert_eq!(begin(&mut connections, 1), same(0), "the first with room");
    }

    #[test]
    fn a_tenant_has_no_more_than_half_of_the_places_for_further_connections() {
        let mut connections = connections(8, 1);
        let own: Vec<_> = (0..8).map(|_| begin(&mut connections, 1).place).collect();
        assert_eq!(own, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!([2, 3, 4].map(|tenant| begin(&mut connections, tenant)), [new(4), new(5), new(6)]);
    }

    #[test]
    fn without_a_place_the_longest_idle_one_is_taken_and_then_the_last_is_shared() {
        let mut connections = connections(4, 9);
        assert_eq!([1, 2, 3].map(|tenant| begin(&mut connections, tenant)), [new(0), new(1), new(2)]);
        connections.on_end(1, at(1));
        connections.on_end(0, at(2));
        assert_eq!([4, 5].map(|tenant| begin(&mut connections, tenant)), [new(1), new(0)]);
        assert_eq!([6, 7, 6].map(|tenant| begin(&mut connections, tenant)), [new(3), same(3), same(3)]);
        assert_eq!(begin(&mut connections, 3), same(2), "those with a connection stay apart");
    }

    #[test]
    fn names_that_one_source_makes_up_have_what_one_tenant_has() {
        let mut connections = connections(8, 2);
        let loud: Vec<_> = (0..20).map(|name| connections.begin(Claimant::Source(1), name)).collect();
        assert_eq!(loud[..4], [new(0), new(1), new(2), new(3)], "apart while there is room");
        assert!(loud[4..].iter().all(|begun| *begun == same(begun.place)), "{loud:?}");
        assert_eq!([2, 3, 4].map(|tenant| begin(&mut connections, tenant)), [new(4), new(5), new(6)]);
        // What nobody uses is the next name's.
        (0..5).for_each(|_| connections.on_end(0, at(1)));
        assert_eq!([30, 30].map(|name| connections.begin(Claimant::Source(1), name)), [same(0), same(0)]);
    }

    #[test]
    fn one_place_is_everybodys() {
        let mut connections = connections(1, 1);
        assert!(connections.is_common(0));
        assert_eq!([1, 2, 1].map(|tenant| begin(&mut connections, tenant)), [new(0), same(0), same(0)]);
    }

    #[test]
    fn what_is_idle_for_too_long_is_closed() {
        let mut connections = connections(4, 1);
        assert_eq!([1, 2].map(|tenant| begin(&mut connections, tenant)), [new(0), new(1)]);
        connections.on_end(0, at(5));
        assert_eq!(connections.expire(at(64)), None);
        assert_eq!((connections.expire(at(65)), connections.expire(at(65))), (Some(0), None));
        assert_eq!((begin(&mut connections, 2), begin(&mut connections, 1)), (new(0), new(2)));
    }

    proptest! {
        #[test]
        fn nobody_shares_but_at_the_last_place(
            steps in proptest::collection::vec((0u32..9, any::<bool>(), 0u64..40), 1..300),
            max in 1usize..7,
        ) {
            let mut connections = connections(max, 2);
            let (mut now, mut running) = (0, Vec::<(u32, usize)>::new());
            for (tenant, begins, some) in steps {
                now += some;
                if begins {
                    let Begun { place, is_new } = begin(&mut connections, tenant);
                    prop_assert!(place < max);
                    prop_assert!(!is_new || running.iter().all(|(_, other)| *other != place));
                    running.push((tenant, place));
                } else if !running.is_empty() {
                    let ended = usize::try_from(some).unwrap() % running.len();
                    connections.on_end(running.swap_remove(ended).1, at(now));
                }
                while let Some(place) = connections.expire(at(now)) {
                    prop_assert!(running.iter().all(|(_, other)| *other != place));
                }
                for (tenant, place) in running.iter().filter(|(_, place)| !connections.is_common(*place)) {
                    prop_assert!(running.iter().all(|(other, at)| at != place || other == tenant));
                }
            }
        }
    }
}
