//! Consistent hashing with bounded loads: requests with the same key meet the same server, while that one has room.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_core::Rng;

use super::balance::Candidate;
use super::config::ServerConfig;

/// Points of a server of weight 1. Shares differ by some 8 % from what the weights say: one part in the root of it.
const POINTS: u64 = 160;

/// Points of all servers, but for one that each has at least: a mebibyte.
const POINTS_MAX: u64 = 1 << 16;

/// Requests under way at a server, as one thread sees it, that overload nobody.
const AT_EASE: u32 = 4;

/// What requests have in common that should meet the same server. The same on every thread, machine and run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64);

impl Key {
    /// Of these bytes. Whoever chooses them can make many keys of one server; its bound then spreads them.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(bytes);
        Self(hasher.finish())
    }

    /// As a number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Servers as points on a circle, on which keys have places too. A key belongs to the server of the next point; where that
/// one may not be asked or is overloaded, to that of the point behind it, and so on.
///
/// A server that comes takes from each other a part of its keys, one that goes leaves its own to all others, and no key moves
/// between two servers that stay. A server is overloaded when it has more than 1.25 times its part of the requests under
/// way. O(log n) in the points for a key whose server takes it, and a step for each point of one that does not.
/// Sources: Karger et al., "Consistent hashing and random trees" (STOC 1997); Mirrokni, Thorup and Zadimoghaddam,
/// "Consistent hashing with bounded loads" (SODA 2018).
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// Each with the place of its server, in order.
    points: Vec<(u64, u32)>,
}

impl Ring {
    pub(super) fn new(servers: &[ServerConfig]) -> Self {
        let sum: u64 = servers.iter().map(|server| u64::from(server.weight)).sum();
        let mut points = Vec::new();
        for (place, server) in (0..).zip(servers) {
            // A server's points depend on nothing but itself; where there is no room for all, each loses its last ones.
            let mut rng = Rng::new(server.id);
            points.extend((0..points_of(server.weight, sum)).map(|_| (rng.u64(), place)));
        }
        points.sort_unstable();
        Self { points }
    }

    /// The place of the one to ask; `None` if all weights are 0.
    pub(super) fn pick(&self, key: Key, candidates: &[Candidate]) -> Option<usize> {
        let asked = || candidates.iter().filter(|candidate| candidate.weight > 0);
        let weights: u128 = asked().map(|candidate| u128::from(candidate.weight)).sum();
        let active: u128 = asked().map(|candidate| u128::from(candidate.active)).sum();
        // With this request, and rounded up. Not all can be beyond it.
        let has_room = |candidate: Candidate| {
            let part = 5 * (active + 1) * u128::from(candidate.weight);
            candidate.weight > 0 && (candidate.active < AT_EASE || 4 * u128::from(candidate.active) * weights < part)
        };
        let next = self.points.partition_point(|&(point, _)| point < key.0);
        let (before, behind) = self.points.split_at(next);
        let order = behind.iter().chain(before).filter_map(|&(_, place)| usize::try_from(place).ok());
        let mut order = order.filter(|&place| candidates.get(place).is_some_and(|&candidate| has_room(candidate)));
        order.next()
    }
}

/// Points of a server of this weight, where `sum` is that of all.
fn points_of(weight: u16, sum: u64) -> u64 {
    let (wanted, all) = (u64::from(weight) * POINTS, sum * POINTS);
    if weight == 0 || all <= POINTS_MAX { wanted } else { (wanted * POINTS_MAX / all).max(1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Servers by their names, of these weights.
    fn servers(weights: &[(u64, u16)]) -> Vec<ServerConfig> {
        let one = |&(name, weight): &(u64, u16)| ServerConfig {
            id: Key::of(&name.to_be_bytes()).number(),
            weight,
            ..ServerConfig::default()
        };
        weights.iter().map(one).collect()
    }

    fn idle(servers: &[ServerConfig]) -> Vec<Candidate> {
        servers.iter().map(|server| Candidate { weight: server.weight.into(), active: 0 }).collect()
    }

    fn keys(number: u32) -> impl Iterator<Item = Key> {
        (0..number).map(|key| Key::of(&key.to_be_bytes()))
    }

    #[test]
    fn keys_are_the_same_everywhere() {
        // SipHash-1-3 of nothing with a key of zeros, by its reference program.
        assert_eq!(Key::of(b"").number(), 0xd1fb_a762_150c_532c);
        assert_ne!(Key::of(b"a"), Key::of(b"b"));
    }

    #[test]
    fn servers_have_keys_by_their_weights() {
        let servers = servers(&[(1, 1), (2, 2), (3, 1), (4, 0)]);
        let (ring, idle) = (Ring::new(&servers), idle(&servers));
        let mut had = [0u32; 4];
        keys(40_000).for_each(|key| had[ring.pick(key, &idle).unwrap()] += 1);
        for (had, part) in had.into_iter().zip([10_000, 20_000, 10_000, 0]) {
            assert!(had.abs_diff(part) <= part / 4, "{had} of {part}");
        }
    }

    #[test]
    fn no_server_has_more_than_its_bound_of_one_hot_key() {
        let servers = servers(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
        let (ring, mut candidates) = (Ring::new(&servers), idle(&servers));
        let key = Key::of(b"hot");
        let home = ring.pick(key, &candidates).unwrap();
        for _ in 0..1_000 {
            let picked = ring.pick(key, &candidates).unwrap();
            candidates[picked].active += 1;
        }
        let mut active: Vec<_> = candidates.iter().map(|candidate| candidate.active).collect();
        assert_eq!(active[home], *active.iter().max().unwrap(), "its own server has the most");
        active.sort_unstable();
        // A quarter of 1,000 by 1.25, rounded up; the last has what the bound leaves of three.
        assert!(active[3] == 313 && active[0] <= 1_000 - 3 * 310, "{active:?}");
    }

    #[test]
    fn a_few_requests_overload_nobody() {
        let servers = servers(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]);
        let (ring, mut candidates) = (Ring::new(&servers), idle(&servers));
        let home = ring.pick(Key::of(b"a"), &candidates).unwrap();
        for _ in 0..AT_EASE {
            assert_eq!(ring.pick(Key::of(b"a"), &candidates), Some(home));
            candidates[home].active += 1;
        }
        assert_ne!(ring.pick(Key::of(b"a"), &candidates), Some(home));
    }

    #[test]
    fn many_heavy_servers_share_a_bounded_ring() {
        let servers: Vec<_> = (0..200).map(|name| (name, 1_000)).collect();
        let ring = Ring::new(&self::servers(&servers));
        assert!(ring.points.len() <= 1 << 16 && ring.points.len() > 1 << 15, "{}", ring.points.len());
    }

    proptest! {
        #[test]
        fn who_comes_takes_its_part_and_who_goes_leaves_its_own(
            weights in proptest::collection::vec(1u16..5, 1..8),
            came in 1u16..5,
            seed in any::<u32>(),
        ) {
            let all: Vec<_> = (u64::from(seed)..).zip(weights.iter().copied().chain([came])).collect();
            let (few, many) = (servers(&all[..weights.len()]), servers(&all));
            let (before, after) = (Ring::new(&few), Ring::new(&many));
            let (few, mut many) = (idle(&few), idle(&many));
            let new = weights.len();
            let mut moved = 0u32;
            for key in keys(2_000) {
                let (old, now) = (before.pick(key, &few).unwrap(), after.pick(key, &many).unwrap());
                prop_assert!(now == old || now == new, "no key moves between those who stay");
                moved += u32::from(now == new);
            }
            let part = 2_000 * u32::from(came) / weights.iter().map(|&weight| u32::from(weight)).sum::<u32>().max(1);
            prop_assert!(moved <= part * 3 / 2 + 60, "{} of {}", moved, part);
            // One that may not be asked is as good as gone, and each of its keys has its next server.
            many[new].weight = 0;
            for key in keys(2_000) {
                prop_assert_eq!(after.pick(key, &many), before.pick(key, &few));
            }
        }

        #[test]
        fn whoever_may_be_asked_is_found(
            candidates in proptest::collection::vec((0u32..3, 0u32..50), 1..8),
            key in any::<u64>(),
        ) {
            let servers: Vec<_> = (0..).zip(candidates.iter().map(|_| 1)).collect();
            let ring = Ring::new(&self::servers(&servers));
            let candidates: Vec<_> =
                candidates.into_iter().map(|(weight, active)| Candidate { weight, active }).collect();
            let picked = ring.pick(Key(key), &candidates);
            prop_assert_eq!(picked.is_some(), candidates.iter().any(|candidate| candidate.weight > 0));
            prop_assert!(picked.is_none_or(|place| candidates[place].weight > 0));
        }
    }
}
