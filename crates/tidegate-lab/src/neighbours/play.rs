//! A trace against a limiter, in virtual time.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::Serialize;
use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::resource::{Kind, Resource};

use super::scheme::{Limiter, Scheme};
use super::trace::{Arrivals, Trace, TraceError};
use crate::statistics::float;

/// What a limiter gave.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Played {
    /// Who limited.
    pub scheme: Scheme,
    /// Tick by tick.
    pub ticks: Vec<Tick>,
}

/// One tick.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tick {
    /// From 0.
    pub tick: u32,
    /// In the order of the trace.
    pub tenants: Vec<Row>,
}

/// One tenant in one tick.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Pieces of work it asked for.
    pub offered: u64,
    /// Those that were admitted.
    pub admitted: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those of the admitted that a machine of this capacity can do which serves them in order of arrival.
    pub served: f64,
    /// What it may use in a tick of its own right at the end of this one: units by resource; empty where nobody has
    /// shares.
    pub share: BTreeMap<Resource, f64>,
}

/// Plays `trace` against `scheme`. Same trace, same answer.
///
/// # Errors
/// If the trace makes no sense.
pub fn play(trace: &Trace, scheme: Scheme) -> Result<Played, TraceError> {
    trace.check()?;
    let tick_ns = trace.tick_ms * 1_000_000;
    let start = Instant::from_nanos(1_000_000_000);
    let mut player = Player {
        trace,
        costs: trace.tenants.iter().map(|tenant| trace.costs(tenant)).collect(),
        limiter: Limiter::new(scheme, trace, start),
        held: BinaryHeap::new(),
        amounts: BTreeMap::new(),
    };
    // Every tenant has numbers of its own: another tenant changes none of them.
    let mut rngs: Vec<_> = (0..trace.tenants.len() as u64).map(|at| Rng::stream(trace.seed, at)).collect();
    let ticks = (0..trace.ticks).map(|tick| {
        let begin = start.plus_nanos(tick_ns.saturating_mul(tick.into()));
        player.tick(tick, begin, tick_ns, &mut rngs)
    });
    let ticks = ticks.collect();
    Ok(Played { scheme, ticks })
}

struct Player<'a> {
    trace: &'a Trace,
    costs: Vec<Vec<(Resource, u64)>>,
    limiter: Limiter,
    /// What is given back when: instant, tenant, piece.
    held: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    /// How much of each gauge is held.
    amounts: BTreeMap<Resource, u64>,
}

/// What happened in a tick.
struct Counts {
    offered: Vec<u64>,
    admitted: Vec<u64>,
    /// Of counters what was admitted, of gauges the most that was held.
    used: BTreeMap<Resource, u64>,
}

impl Player<'_> {
    fn tick(&mut self, tick: u32, begin: Instant, tick_ns: u64, rngs: &mut [Rng]) -> Tick {
        let none = || vec![0; self.trace.tenants.len()];
        let mut counts = Counts { offered: none(), admitted: none(), used: BTreeMap::new() };
        for (at, tenant) in arrivals(self.trace, tick, begin, tick_ns, rngs) {
            self.give_back(at);
            self.limiter.pass(at);
            counts.offered[tenant] += 1;
            if self.limiter.ask(tenant, &self.costs[tenant], at) {
                counts.admitted[tenant] += 1;
                self.hold(tenant, at, &mut counts);
            }
        }
        let end = begin.plus_nanos(tick_ns);
        self.give_back(end);
        self.limiter.pass(end);
        self.limiter.tick();
        let served = self.served(&counts.used);
        let shares = self.limiter.shares(self.trace);
        let rows = self.trace.tenants.iter().zip(shares).enumerate().map(|(at, (tenant, share))| Row {
            name: tenant.name.clone(),
            offered: counts.offered[at],
            admitted: counts.admitted[at],
            refused: counts.offered[at] - counts.admitted[at],
            served: float(counts.admitted[at]) * served,
            share,
        });
        Tick { tick, tenants: rows.collect() }
    }

    fn hold(&mut self, tenant: usize, now: Instant, counts: &mut Counts) {
        for (resource, cost) in &self.costs[tenant] {
            let used = counts.used.entry(*resource).or_default();
            if resource.kind() == Kind::Counter {
                *used = used.saturating_add(*cost);
            } else {
                let amount = self.amounts.entry(*resource).or_default();
                *amount = amount.saturating_add(*cost);
                *used = (*used).max(*amount);
            }
        }
        let until = now.plus_nanos(self.trace.tenants[tenant].hold_ms.saturating_mul(1_000_000));
        self.held.push(Reverse((until, tenant, self.limiter.piece())));
    }

    fn give_back(&mut self, now: Instant) {
        while let Some(Reverse((until, tenant, piece))) = self.held.peek().copied().filter(|held| held.0.0 <= now) {
            self.held.pop();
            self.limiter.pass(until);
            self.limiter.release(tenant, piece, &self.costs[tenant], until);
            for (resource, cost) in &self.costs[tenant] {
                if let Some(amount) = self.amounts.get_mut(resource) {
                    *amount = amount.saturating_sub(*cost);
                }
            }
        }
    }

    /// The part of what was admitted that the machine can do.
    fn served(&self, used: &BTreeMap<Resource, u64>) -> f64 {
        let parts = self.trace.capacity.iter().map(|(resource, capacity)| {
            let most = match resource.kind() {
                Kind::Counter => float(*capacity) * float(self.trace.tick_ms) / 1e3,
                Kind::Gauge => float(*capacity),
            };
            used.get(resource).map_or(1.0, |used| (most / float(*used)).min(1.0))
        });
        parts.fold(1.0, f64::min)
    }
}

/// Who asks when, in order.
fn arrivals(trace: &Trace, tick: u32, begin: Instant, tick_ns: u64, rngs: &mut [Rng]) -> Vec<(Instant, usize)> {
    let mut all = Vec::new();
    for (at, (tenant, rng)) in trace.tenants.iter().zip(rngs).enumerate() {
        let work = tenant.work_in(tick);
        match tenant.arrivals {
            Arrivals::Even => all.extend((0..work).map(|piece| {
                // In the middle of its part of the tick.
                let nanos = u128::from(tick_ns) * (2 * u128::from(piece) + 1) / (2 * u128::from(work));
                (begin.plus_nanos(u64::try_from(nanos).unwrap_or(tick_ns)), at)
            })),
            Arrivals::Poisson => {
                // Without work the first gap has no end.
                let mut moment = rng.exponential() / float(work);
                while moment < 1.0 {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the tick")]
                    let nanos = (moment * float(tick_ns)) as u64;
                    all.push((begin.plus_nanos(nanos), at));
                    moment += rng.exponential() / float(work);
                }
            }
        }
    }
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLIDES: &str = r#"
ticks = 30
capacity = { handshakes = 2560 }
[[tenants]]
name = "a"
work = [100]
[[tenants]]
name = "b"
work = [100, 100, 100, 100, 100, 3200]
"#;

    fn last(scheme: Scheme) -> Vec<Row> {
        let played = play(&toml::from_str(SLIDES).unwrap(), scheme).unwrap();
        played.ticks.into_iter().next_back().unwrap().tenants
    }

    #[test]
    fn a_quiet_tenant_loses_without_limits_and_not_with_them() {
        let none = last(Scheme::None);
        assert_eq!((none[0].admitted, none[1].admitted), (100, 3_200));
        assert!((75.0..80.0).contains(&none[0].served), "its part of what can be done: {}", none[0].served);
        let by_hand = last(Scheme::RateLimit);
        assert_eq!((by_hand[0].refused, by_hand[1].admitted), (0, 1_280), "half of the capacity, whoever is there");
        let tidegate = last(Scheme::Tidegate);
        assert_eq!(tidegate[0].refused, 0);
        assert!((2_400..=2_480).contains(&tidegate[1].admitted), "{}", tidegate[1].admitted);
        assert!(tidegate[0].share[&Resource::Handshakes] >= 100.0);
    }

    #[test]
    fn what_is_held_is_given_back() {
        let held = SLIDES.replace("handshakes", "connections").replace("work", "hold_ms = 1000\nwork");
        for scheme in Scheme::ALL {
            let played = play(&toml::from_str(&held).unwrap(), scheme).unwrap();
            let rows = &played.ticks[29].tenants;
            assert_eq!(rows[0].refused, 0, "{scheme}");
            assert!(rows[1].admitted > 1_200, "{scheme}: {}", rows[1].admitted);
        }
    }

    #[test]
    fn a_trace_that_makes_no_sense_is_not_played() {
        let wrong = |from: &str, to: &str| {
            let trace: Trace = toml::from_str(&SLIDES.replacen(from, to, 1)).unwrap();
            play(&trace, Scheme::None).unwrap_err()
        };
        assert_eq!(wrong("ticks = 30", "ticks = 0"), TraceError::Shape);
        assert_eq!(wrong("handshakes = 2560", ""), TraceError::Capacity);
        assert_eq!(wrong("\"b\"", "\"a\""), TraceError::Twice { name: "a".to_owned() });
        assert_eq!(wrong("work = [100]", "work = []"), TraceError::Tenant { name: "a".to_owned() });
        assert!(matches!(wrong("3200", "1000000000"), TraceError::Long { .. }));
    }

    #[test]
    fn random_arrivals_are_the_same_for_the_same_seed() {
        let random = SLIDES.replace("work", "arrivals = \"poisson\"\nwork");
        let trace: Trace = toml::from_str(&random).unwrap();
        let once = play(&trace, Scheme::Tidegate).unwrap();
        assert_eq!(once, play(&trace, Scheme::Tidegate).unwrap());
        let offered: u64 = once.ticks.iter().map(|tick| tick.tenants[0].offered).sum();
        assert!((2_700..3_300).contains(&offered), "{offered}");
        assert_eq!(once.ticks.iter().map(|tick| tick.tenants[0].refused).sum::<u64>(), 0);
    }
}
