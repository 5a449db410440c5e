//! The law of conservation: whatever happens in whatever order, shares and what is nobody's share are the capacity, what
//! is held is what was taken and not given back, and when all is given back nothing is left behind.
//!
//! Everything that a proxy does with the machine is drawn: questions about several resources at once, true costs above and
//! below the estimate, gauges given back in parts, work that was not done, other settings, a capacity that is learnt,
//! tenants that come, fall silent and are forgotten, timers that come late. `TIDEGATE_SEEDS=10000` as for the other laws.

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::neighbours::{
    Capacity, Ledger, Mode, Neighbours, NeighboursConfig, Stage, Sums, Tenant, Verdict,
};
use tidegate_proxy::machine::{Kind, Resource};

const MS: u64 = 1_000_000;
const SHORTEST: Duration = Duration::from_millis(10);

fn seeds(usual: u64) -> u64 {
    std::env::var("TIDEGATE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// One that is drawn.
fn any<T: Copy>(of: &[T], rng: &mut Rng) -> T {
    of[usize::try_from(rng.below(of.len() as u64)).expect("a list's place")]
}

/// An amount from 0 to some capacities, small ones as often as large ones.
fn amount(rng: &mut Rng) -> u64 {
    let most = 1 << rng.range(1..14);
    rng.below(most)
}

/// A charge whose true cost is not known yet.
#[derive(Clone, Copy)]
struct Open {
    tenant: Tenant,
    resource: Resource,
    estimated: u64,
}

/// What a tenant should hold of a gauge.
#[derive(Clone, Copy)]
struct Held {
    tenant: Tenant,
    resource: Resource,
    units: u64,
}

struct World {
    neighbours: Neighbours,
    now: Instant,
    rng: Rng,
    held: Vec<Held>,
    open: Vec<Open>,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let now = Instant::from_nanos(1_000 * MS);
        let neighbours = Neighbours::new(settings(&mut rng), now);
        Self { neighbours, now, rng, held: Vec::new(), open: Vec::new(), seed }
    }

    fn tenant(&mut self) -> Tenant {
        let name = if self.rng.chance(0.02) { String::new() } else { self.rng.below(20).to_string() };
        self.neighbours.tenant(&name, self.now)
    }

    fn resource(&mut self) -> Resource {
        any(&Resource::ALL, &mut self.rng)
    }

    /// Asks for some resources at once, or for one of them twice.
    fn ask(&mut self) {
        let tenant = self.tenant();
        let costs: Vec<_> = (0..self.rng.range(1..5)).map(|_| (self.resource(), amount(&mut self.rng))).collect();
        let stage = any(&[Stage::Hello, Stage::Request, Stage::Queue], &mut self.rng);
        let Verdict::Admit { .. } = self.neighbours.try_take(tenant, stage, &costs, self.now) else { return };
        for &(resource, cost) in &costs {
            match resource.kind() {
                Kind::Gauge => self.enter(tenant, resource, cost),
                Kind::Counter => self.open.push(Open { tenant, resource, estimated: cost }),
            }
            let Ledger { capacity, counted, .. } = self.neighbours.ledger(resource);
            if self.neighbours.config().mode == Mode::Restrict && resource.kind() == Kind::Gauge && cost > 0 {
                assert!(capacity.is_none_or(|most| counted.held <= most), "{}: {resource:?} {counted:?}", self.at());
            }
        }
        if self.rng.chance(0.05) {
            let resource = costs[0].0;
            self.neighbours.turn_away(tenant, stage, resource, &costs, self.now);
            for &(resource, cost) in costs.iter().filter(|(resource, _)| resource.kind() == Kind::Gauge) {
                self.held_by(tenant, resource).units -= cost;
            }
            self.open.retain(|open| open.tenant != tenant);
        }
    }

    fn enter(&mut self, tenant: Tenant, resource: Resource, cost: u64) {
        self.held_by(tenant, resource).units += cost;
    }

    fn held_by(&mut self, tenant: Tenant, resource: Resource) -> &mut Held {
        let known = self.held.iter().position(|held| held.tenant == tenant && held.resource == resource);
        let at = known.unwrap_or(self.held.len());
        if known.is_none() {
            self.held.push(Held { tenant, resource, units: 0 });
        }
        &mut self.held[at]
    }

    /// The truth about an earlier charge, or something that was never charged.
    fn settle(&mut self) {
        let usual = Open { tenant: self.tenant(), resource: self.resource(), estimated: 0 };
        let at = self.rng.below(self.open.len() as u64 + 1);
        let at = usize::try_from(at).expect("a list's place");
        let Open { tenant, resource, estimated } = if at < self.open.len() { self.open.swap_remove(at) } else { usual };
        let actual = match self.rng.below(4) {
            0 => estimated / 2,
            1 => estimated,
            2 => estimated * 3,
            _ => amount(&mut self.rng) * 10,
        };
        let (limiter, now) = (&mut self.neighbours, self.now);
        match self.rng.below(4) {
            _ if resource.kind() == Kind::Gauge => {
                limiter.hold(tenant, resource, actual, now);
                self.enter(tenant, resource, actual);
            }
            0 => limiter.give_back(tenant, resource, estimated, now),
            1 => limiter.correct(tenant, resource, estimated, actual, now),
            2 => limiter.hold(tenant, resource, actual, now),
            _ => limiter.settle(tenant, resource, estimated, actual, now),
        }
    }

    /// Gives some of what one holds back, or all, or more than there is.
    fn release(&mut self) {
        self.held.retain(|held| held.units > 0);
        if self.held.is_empty() {
            return;
        }
        let Held { tenant, resource, units } = any(&self.held, &mut self.rng);
        let back = match self.rng.below(3) {
            0 => self.rng.below(units + 1),
            1 => units,
            _ => units + amount(&mut self.rng),
        };
        let before = self.neighbours.ledger(resource).counted.held;
        self.neighbours.release(tenant, resource, back, self.now);
        let after = self.neighbours.ledger(resource).counted.held;
        assert_eq!(before - after, back.min(units), "{}", self.at());
        self.held_by(tenant, resource).units -= back.min(units);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..55 => self.ask(),
            55..75 => self.settle(),
            75..90 => self.release(),
            90..94 => {
                let span = Duration::from_millis(100);
                let idle = span.mul_f64(self.rng.f64());
                self.neighbours.on_idle(idle, span, self.now);
            }
            94..96 => {
                let config = settings(&mut self.rng);
                self.neighbours.reconfigure(config, self.now);
            }
            kind => {
                let ms = if kind == 96 { 200..2_500 } else { 1..60 };
                let span = Duration::from_millis(self.rng.range(ms));
                self.pass(span);
            }
        }
        self.check();
        self.now = self.now.plus_nanos(self.rng.below(8 * MS));
        // A timer that comes late leaves its work to questions.
        if self.rng.chance(0.6) {
            self.turn();
        }
    }

    /// Time in which only the timer does something.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.neighbours.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.neighbours.on_timeout(self.now);
            self.check();
        }
        self.now = end;
    }

    fn turn(&mut self) {
        if self.neighbours.next_timeout().is_some_and(|at| at <= self.now) {
            self.neighbours.on_timeout(self.now);
            self.check();
        }
    }

    fn check(&self) {
        for resource in Resource::ALL {
            let Ledger { capacity, global, kept, counted } = self.neighbours.ledger(resource);
            assert_eq!(kept, counted, "{}: {resource:?}", self.at());
            if let Some(capacity) = capacity {
                let sum = i128::from(counted.shares) + i128::from(global);
                assert_eq!(sum, i128::from(capacity), "{}: {resource:?}", self.at());
            }
            let held = self.held.iter().filter(|held| held.resource == resource);
            assert_eq!(counted.held, held.map(|held| held.units).sum::<u64>(), "{}: {resource:?}", self.at());
        }
    }

    /// Everything is given back, everybody is silent, and settings stay: nothing is left.
    fn end(&mut self) {
        for Held { tenant, resource, units } in core::mem::take(&mut self.held) {
            self.neighbours.release(tenant, resource, units, self.now);
        }
        let config = NeighboursConfig { mode: Mode::Restrict, ..self.neighbours.config().clone() };
        let span = config.idle_after + config.tick * 5;
        self.neighbours.reconfigure(config, self.now);
        self.check();
        self.pass(Duration::from_millis(300));
        for resource in Resource::ALL {
            let ledger = self.neighbours.ledger(resource);
            assert!(ledger.global >= 0, "{}: {resource:?}: nothing changes any more, and {ledger:?}", self.at());
        }
        self.pass(span);
        for resource in Resource::ALL {
            let Ledger { capacity, global, counted, .. } = self.neighbours.ledger(resource);
            assert_eq!(counted, Sums::default(), "{}: {resource:?}", self.at());
            let all = capacity.map_or(0, |capacity| i64::try_from(capacity).expect("capacities are below 2^63"));
            assert_eq!(global, all, "{}: {resource:?}", self.at());
        }
    }

    fn at(&self) -> String {
        format!("seed {} at {:?}", self.seed, self.now)
    }
}

/// Settings that a reload may bring.
fn settings(rng: &mut Rng) -> NeighboursConfig {
    let mut config = NeighboursConfig {
        mode: any(&[Mode::Restrict, Mode::Restrict, Mode::Restrict, Mode::Restrict, Mode::Stats, Mode::Off], rng),
        weights: (0..rng.below(6)).map(|_| (rng.below(20).to_string(), amount(rng).try_into().unwrap_or(1))).collect(),
        tenants_max: any(&[3, 8, 1_000], rng),
        tick: any(&[SHORTEST, Duration::from_millis(50), Duration::from_millis(100)], rng),
        reserve: any(&[0.0, 0.2, 0.9], rng),
        newcomers: any(&[0.0, 0.05], rng),
        headroom: any(&[0.0, 0.1, 2.0], rng),
        burst: any(&[Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)], rng),
        idle_after: any(&[SHORTEST, Duration::from_millis(300), Duration::from_secs(2)], rng),
        ..NeighboursConfig::default()
    };
    for resource in Resource::ALL {
        if rng.chance(0.6) {
            let most = any(&[1, 7, 100, 1_000, 10_000, 1 << 40], rng);
            config = config.with(resource, Capacity::Fixed(most));
        }
    }
    config
}

#[test]
fn nothing_is_lost_and_nothing_is_made() {
    let (count, cores) = (seeds(60), std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64));
    std::thread::scope(|scope| {
        for first in 0..cores {
            scope.spawn(move || {
                for seed in (first..count).step_by(usize::try_from(cores).expect("few cores")) {
                    let mut world = World::new(seed);
                    (0..400).for_each(|_| world.step());
                    world.end();
                }
            });
        }
    });
}
