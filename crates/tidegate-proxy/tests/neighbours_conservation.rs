//! The law of conservation: whatever happens in whatever order, shares and what is nobody's share are the capacity, what
//! is held is what was taken and not given back, and when all is given back nothing is left behind. Tokens come with time
//! only, as many as the capacity says: what happens at one moment takes what it is charged from all buckets together, no
//! more and no less, and the setting of shares makes none.
//!
//! Everything that a proxy does with the machine is drawn: questions about several resources at once, true costs above and
//! below the estimate, gauges given back in parts, work that was not done, other settings, a capacity that is learnt,
//! tenants that come, fall silent and are forgotten, timers that come late. `TIDEGATE_SEEDS=10000` as for the other laws.

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::neighbours::{
    Capacity, Ledger, Mode, Neighbours, NeighboursConfig, Stage, Sums, Tenant, Tokens, Verdict,
};
use tidegate_proxy::machine::{Kind, Resource};

const MS: u64 = 1_000_000;
/// Grains per second.
const LARGE: u64 = 100_000_000;
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

/// Units of each resource that something should have cost; below zero what it should have given back.
#[derive(Clone, Copy, Default)]
struct Charged([i128; Resource::COUNT]);

impl Charged {
    /// Time of handshakes is time of the core.
    fn add(&mut self, resource: Resource, units: i128) {
        self.0[resource.index()] += units;
        if resource == Resource::HandshakeTime {
            self.0[Resource::EventTime.index()] += units;
        }
    }

    fn of(costs: &[(Resource, u64)], sign: i128) -> Self {
        let mut charged = Self::default();
        for &(resource, cost) in costs {
            charged.add(resource, sign * i128::from(cost));
        }
        charged
    }
}

/// What was in the buckets before something happened.
type Books = [Option<Tokens>; Resource::COUNT];

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
        let (before, is_late) = (self.books(), self.is_late());
        let verdict = self.neighbours.try_take(tenant, stage, &costs, self.now);
        let is_admitted = matches!(verdict, Verdict::Admit { .. });
        match self.neighbours.config().mode {
            // What would have been refused is not charged.
            Mode::Stats => self.made_none(&before),
            Mode::Restrict if is_late => self.made_none(&before),
            Mode::Restrict if is_admitted => self.cost(&before, Charged::of(&costs, 1)),
            Mode::Restrict | Mode::Off => self.cost(&before, Charged::default()),
        }
        if !is_admitted {
            let (before, ns) = (self.books(), amount(&mut self.rng) * 10);
            let [handshakes, all] = self.neighbours.charge_refusal(tenant, ns, self.now);
            let mut charged = Charged::default();
            charged.add(Resource::HandshakeTime, handshakes.into());
            // The time of handshakes is part of all time, and was added there too.
            charged.add(Resource::EventTime, i128::from(all) - i128::from(handshakes));
            self.cost(&before, charged);
            return;
        }
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
            let before = self.books();
            self.neighbours.turn_away(tenant, stage, resource, &costs, Duration::ZERO, self.now);
            let sign = if self.neighbours.config().mode == Mode::Off { 0 } else { -1 };
            self.cost(&before, Charged::of(&costs, sign));
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
        let before = self.books();
        let mut charged = Charged::default();
        let (limiter, now, kind) = (&mut self.neighbours, self.now, self.rng.below(4));
        if resource.kind() == Kind::Gauge {
            limiter.hold(tenant, resource, actual, now);
            self.enter(tenant, resource, actual);
        } else {
            let (estimated, actual) = match kind {
                0 => (estimated, 0),
                2 => (0, actual),
                _ => (estimated, actual),
            };
            match kind {
                0 => limiter.give_back(tenant, resource, estimated, now),
                1 => limiter.correct(tenant, resource, estimated, actual, now),
                2 => limiter.hold(tenant, resource, actual, now),
                _ => limiter.settle(tenant, resource, estimated, actual, now),
            }
            if limiter.config().mode != Mode::Off {
                charged.add(resource, i128::from(actual) - i128::from(estimated));
            }
        }
        self.cost(&before, charged);
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
        let (books, before) = (self.books(), self.neighbours.ledger(resource).counted.held);
        self.neighbours.release(tenant, resource, back, self.now);
        self.cost(&books, Charged::default());
        let after = self.neighbours.ledger(resource).counted.held;
        assert_eq!(before - after, back.min(units), "{}", self.at());
        self.held_by(tenant, resource).units -= back.min(units);
    }

    fn step(&mut self) {
        let before = self.books();
        match self.rng.below(100) {
            0..55 => self.ask(),
            55..75 => self.settle(),
            75..90 => self.release(),
            90..94 => {
                let span = Duration::from_millis(100);
                let idle = span.mul_f64(self.rng.f64());
                self.neighbours.on_idle(idle, span, self.now);
                self.made_none(&before);
            }
            94..96 => {
                let config = settings(&mut self.rng);
                self.neighbours.reconfigure(config, self.now);
                self.made_none(&before);
            }
            kind => {
                let ms = if kind == 96 { 200..2_500 } else { 1..60 };
                let span = Duration::from_millis(self.rng.range(ms));
                self.pass(span);
            }
        }
        self.check();
        let span_ns = self.rng.below(8 * MS);
        self.elapse(span_ns);
        // A timer that comes late leaves its work to questions.
        if self.rng.chance(0.6) {
            self.turn();
        }
    }

    /// Time in which only the timer does something.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.neighbours.next_timeout().filter(|at| *at <= end) {
            self.elapse(at.nanos_since(self.now));
            let before = self.books();
            self.neighbours.on_timeout(self.now);
            self.made_none(&before);
            self.check();
        }
        self.elapse(end.nanos_since(self.now));
    }

    /// Nothing but time passes: it brings what the capacity says.
    fn elapse(&mut self, span_ns: u64) {
        let before = self.books();
        self.now = self.now.plus_nanos(span_ns);
        for (resource, before) in Resource::ALL.into_iter().zip(before) {
            let (Some(before), Some(after)) = (before, self.neighbours.tokens(resource, self.now)) else { continue };
            let Ledger { capacity, counted, .. } = self.neighbours.ledger(resource);
            let capacity = capacity.expect("who has tokens has a capacity");
            // When the capacity has fallen, shares are those of before until the next tick.
            let most = i128::from(capacity.max(counted.shares)) * i128::from(span_ns);
            let brought = i128::from(capacity) * i128::from(span_ns);
            let after = after.all - before.all;
            // A bucket with a large share that nobody looks at for long stops at what 63 bits can hold.
            let is_exact = capacity.max(counted.shares) <= LARGE;
            assert!(after <= most, "{}: {resource:?} {after} of {most}", self.at());
            assert!(
                !is_exact || capacity < counted.shares || after == brought,
                "{}: {resource:?} {after} of {brought}",
                self.at()
            );
        }
    }

    fn turn(&mut self) {
        if self.is_late() {
            let before = self.books();
            self.neighbours.on_timeout(self.now);
            self.made_none(&before);
            self.check();
        }
    }

    /// True if the timer should have done something by now.
    fn is_late(&self) -> bool {
        self.neighbours.next_timeout().is_some_and(|at| at <= self.now)
    }

    fn books(&self) -> Books {
        Resource::ALL.map(|resource| self.neighbours.tokens(resource, self.now))
    }

    /// What happened at this moment took `charged`; of what it gave back, full buckets may have lost some.
    fn cost(&self, before: &Books, charged: Charged) {
        for ((resource, before), units) in Resource::ALL.into_iter().zip(before).zip(charged.0) {
            let (Some(before), Some(after)) = (before, self.neighbours.tokens(resource, self.now)) else { continue };
            let wanted = before.all - units * before.unit;
            let is_whole = before.room + units.min(0) * before.unit >= 0;
            assert!(after.all <= wanted, "{}: {resource:?} {units} {before:?} {after:?}", self.at());
            assert!(!is_whole || after.all == wanted, "{}: {resource:?} {units} {before:?} {after:?}", self.at());
        }
    }

    /// What happened at this moment made no tokens.
    fn made_none(&self, before: &Books) {
        for (resource, before) in Resource::ALL.into_iter().zip(before) {
            let (Some(before), Some(after)) = (before, self.neighbours.tokens(resource, self.now)) else { continue };
            assert!(after.all <= before.all, "{}: {resource:?} {before:?} {after:?}", self.at());
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
