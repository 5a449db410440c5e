//! Round robin, least loaded and by key, by weight.

use tidegate_core::Rng;

use super::config::{Balance, ServerConfig};
use super::ring::{Key, Ring};

/// A server as a balancer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Candidate {
    /// Its share; 0 if it may not be asked.
    pub(super) weight: u32,
    /// Requests under way at it.
    pub(super) active: u32,
}

/// Picks among candidates; remembers whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Balancer {
    balance: Balance,
    /// Round robin: what each is ahead of its share (negative) or behind it, in weights.
    behind: Vec<i64>,
    /// By key: where each is; empty else.
    ring: Ring,
}

impl Balancer {
    pub(super) fn new(balance: Balance, servers: &[ServerConfig]) -> Self {
        let ring = Ring::new(if balance == Balance::Hash { servers } else { &[] });
        Self { balance, behind: vec![0; servers.len()], ring }
    }

    /// The place of the one to ask; `None` if all weights are 0. O(n), and n is the number of servers.
    pub(super) fn pick(&mut self, candidates: &[Candidate], key: Option<Key>, rng: &mut Rng) -> Option<usize> {
        match self.balance {
            Balance::RoundRobin => self.next_in_turn(candidates),
            Balance::LeastLoaded => less_loaded_of_two(candidates, rng),
            Balance::Hash => match key {
                Some(key) => self.ring.pick(key, candidates),
                None => less_loaded_of_two(candidates, rng),
            },
        }
    }

    /// Everybody gains its weight, who is furthest behind is picked and pays what all gained.
    ///
    /// So the picks of a server are spread evenly between those of the others: weights 5, 1, 1 give a a b a c a a, not
    /// five in a row. This is the smooth weighted round robin that nginx made known.
    fn next_in_turn(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (place, candidate) in candidates.iter().enumerate().filter(|(_, candidate)| candidate.weight > 0) {
            self.behind[place] += i64::from(candidate.weight);
            total += i64::from(candidate.weight);
            if best.is_none_or(|best| self.behind[place] > self.behind[best]) {
                best = Some(place);
            }
        }
        self.behind[best?] -= total;
        best
    }
}

/// Draws two by weight and takes the one with less under way for its weight; the first of equals, so that without load
/// everybody gets its weight's share.
///
/// Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001).
fn less_loaded_of_two(candidates: &[Candidate], rng: &mut Rng) -> Option<usize> {
    let total: u64 = candidates.iter().map(|candidate| u64::from(candidate.weight)).sum();
    let first = draw(candidates, None, total, rng)?;
    let rest = total - u64::from(candidates[first].weight);
    let Some(second) = draw(candidates, Some(first), rest, rng) else { return Some(first) };
    let (a, b) = (candidates[first], candidates[second]);
    let second_is_less = u64::from(b.active) * u64::from(a.weight) < u64::from(a.active) * u64::from(b.weight);
    Some(if second_is_less { second } else { first })
}

/// One of the candidates but `except`, by weight; `total` is the sum of their weights.
fn draw(candidates: &[Candidate], except: Option<usize>, total: u64, rng: &mut Rng) -> Option<usize> {
    if total == 0 {
        return None;
    }
    let mut left = rng.below(total);
    for (place, candidate) in candidates.iter().enumerate() {
        if Some(place) == except {
            continue;
        }
        match left.checked_sub(u64::from(candidate.weight)) {
            Some(rest) => left = rest,
            None => return Some(place),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::Rng;

    fn idle(weights: &[u32]) -> Vec<Candidate> {
        weights.iter().map(|&weight| Candidate { weight, active: 0 }).collect()
    }

    #[test]
    fn turns_are_spread_evenly() {
        let mut balancer = Balancer::new(Balance::RoundRobin, &[ServerConfig::default(); 3]);
        let candidates = idle(&[5, 1, 1]);
        let picks: Vec<_> = (0..7).filter_map(|_| balancer.pick(&candidates, None, &mut Rng::new(0))).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn who_has_no_weight_is_never_asked() {
        for balance in [Balance::RoundRobin, Balance::LeastLoaded, Balance::Hash] {
            let mut balancer = Balancer::new(balance, &[ServerConfig::default(); 2]);
            let mut rng = Rng::new(1);
            for key in [None, Some(Key::of(b"a"))] {
                assert!((0..100).all(|_| balancer.pick(&idle(&[0, 3]), key, &mut rng) == Some(1)));
                assert_eq!(balancer.pick(&idle(&[0, 0]), key, &mut rng), None);
                assert_eq!(balancer.pick(&[], key, &mut rng), None);
            }
        }
    }

    #[test]
    fn the_less_loaded_of_two_servers_is_always_found() {
        let candidates = [Candidate { weight: 1, active: 2 }, Candidate { weight: 3, active: 5 }];
        let mut rng = Rng::new(2);
        assert!((0..100).all(|_| less_loaded_of_two(&candidates, &mut rng) == Some(1)), "5/3 is less than 2/1");
    }

    #[test]
    fn without_load_everybody_gets_its_share() {
        let (mut rng, mut picks) = (Rng::new(3), [0u32; 3]);
        for _ in 0..60_000 {
            picks[less_loaded_of_two(&idle(&[1, 2, 3]), &mut rng).unwrap()] += 1;
        }
        for (picked, weight) in picks.into_iter().zip(1u32..) {
            assert!(picked.abs_diff(10_000 * weight) < 600, "{picks:?}");
        }
    }

    #[test]
    fn two_choices_keep_the_fullest_server_near_the_mean() {
        // 100 servers, 10,000 requests that never end: one random choice leaves the fullest about 25 above the mean.
        let (mut rng, mut candidates) = (Rng::new(4), idle(&[1; 100]));
        for _ in 0..10_000 {
            let place = less_loaded_of_two(&candidates, &mut rng).unwrap();
            candidates[place].active += 1;
        }
        assert!(candidates.iter().all(|candidate| (95..=104).contains(&candidate.active)));
    }

    proptest! {
        #[test]
        fn a_whole_round_gives_everybody_its_weight(weights in proptest::collection::vec(0u32..20, 1..8)) {
            let mut balancer = Balancer::new(Balance::RoundRobin, &vec![ServerConfig::default(); weights.len()]);
            let mut picks = vec![0; weights.len()];
            for _ in 0..weights.iter().sum() {
                picks[balancer.pick(&idle(&weights), None, &mut Rng::new(0)).unwrap()] += 1;
            }
            prop_assert_eq!(picks, weights);
        }
    }
}
