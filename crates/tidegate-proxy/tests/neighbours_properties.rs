//! The laws of overflow token buckets, in virtual time, over many seeds.
//!
//! `TIDEGATE_SEEDS=10000 cargo test --release -p tidegate-proxy --test neighbours_properties` runs ten thousand each. A
//! failure names its seed.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::neighbours::{Capacity, Neighbours, NeighboursConfig, Stage, Tenant, Verdict};
use tidegate_proxy::machine::resource::Resource;

const RESOURCE: Resource = Resource::Handshakes;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The part of the capacity that is shared out: the rest is the reserves.
const SHARED: f64 = 0.75;

fn seeds(usual: u64) -> u64 {
    std::env::var("TIDEGATE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// All seeds, on all cores: a run with ten thousand tenants has as many events as a hundred of the other laws' runs.
fn each_seed(count: u64, law: impl Fn(u64) + Sync) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    std::thread::scope(|scope| {
        for first in 0..cores {
            let law = &law;
            scope.spawn(move || (first..count).step_by(usize::try_from(cores).unwrap()).for_each(law));
        }
    });
}

fn float(n: u64) -> f64 {
    u32::try_from(n).unwrap().into()
}

/// How a tenant's requests are spread over time.
#[derive(Clone, Copy)]
enum Shape {
    Even,
    Poisson,
    /// So many at once.
    Bursts(u32),
}

impl Shape {
    fn any(rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Self::Even,
            1 => Self::Poisson,
            _ => Self::Bursts(u32::try_from(rng.range(2..30)).unwrap()),
        }
    }
}

struct Source {
    tenant: Tenant,
    rate: f64,
    shape: Shape,
    next: u64,
    admitted: u64,
}

impl Source {
    fn new(tenant: Tenant, rate: f64, shape: Shape, rng: &mut Rng) -> Self {
        let mut made = Self { tenant, rate, shape, next: 0, admitted: 0 };
        made.next = nanos(made.gap(rng) * rng.f64());
        made
    }

    fn gap(&self, rng: &mut Rng) -> f64 {
        match self.shape {
            Shape::Even => 1.0 / self.rate,
            Shape::Poisson => rng.exponential() / self.rate,
            Shape::Bursts(size) => f64::from(size) / self.rate * 2.0 * rng.f64(),
        }
    }
}

fn nanos(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds.min(1e6)).as_nanos()).unwrap()
}

struct World {
    neighbours: Neighbours,
    capacity: f64,
    now: u64,
    /// When units were admitted.
    admitted: Vec<u64>,
    /// One bucket for everybody, a tenth of a second deep: what could be had at least.
    ideal: Ideal,
}

#[derive(Default)]
struct Ideal {
    tokens: f64,
    at: u64,
    admitted: u64,
}

impl Ideal {
    fn take(&mut self, capacity: f64, now: u64) {
        self.tokens = (self.tokens + capacity * float((now - self.at) / 1_000) / 1e6).min(0.1 * capacity);
        self.at = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            self.admitted += 1;
        }
    }
}

impl World {
    fn new(capacity: u64) -> Self {
        let config = NeighboursConfig::default().with(RESOURCE, Capacity::Fixed(capacity));
        let neighbours = Neighbours::new(config, Instant::ZERO);
        Self { neighbours, capacity: float(capacity), now: 0, admitted: Vec::new(), ideal: Ideal::default() }
    }

    fn tenant(&mut self, number: usize) -> Tenant {
        self.neighbours.tenant(&number.to_string(), Instant::from_nanos(self.now))
    }

    fn move_to(&mut self, now: u64) {
        let now = Instant::from_nanos(now);
        while let Some(at) = self.neighbours.next_timeout().filter(|at| *at <= now) {
            self.neighbours.on_timeout(at);
        }
        self.now = now.as_nanos();
    }

    fn take(&mut self, tenant: Tenant) -> bool {
        let verdict = self.neighbours.try_take(tenant, Stage::Hello, &[(RESOURCE, 1)], Instant::from_nanos(self.now));
        let admitted = matches!(verdict, Verdict::Admit { .. });
        self.ideal.take(self.capacity, self.now);
        if admitted {
            self.admitted.push(self.now);
        }
        admitted
    }

    /// All sources send until `end`.
    fn run(&mut self, sources: &mut [Source], end: u64, rng: &mut Rng) {
        while let Some(source) = sources.iter_mut().min_by_key(|source| source.next).filter(|first| first.next < end) {
            self.move_to(source.next);
            let count = if let Shape::Bursts(size) = source.shape { size } else { 1 };
            for _ in 0..count {
                source.admitted += u64::from(self.take(source.tenant));
            }
            source.next += nanos(source.gap(rng)).max(1);
        }
        self.move_to(end);
    }

    /// The most that any span got beyond its part of the capacity.
    fn beyond(&self) -> f64 {
        let (mut least, mut most) = (0.0_f64, 0.0_f64);
        for (count, at) in (0_u32..).zip(&self.admitted) {
            let gone = self.capacity * float(at / 1_000) / 1e6;
            // Before this one and with it.
            least = least.min(f64::from(count) - gone);
            most = most.max(f64::from(count + 1) - gone - least);
        }
        most
    }

    /// Pools, buckets and guarantees, all full: what may come at once, and a tick of guarantees that were lent.
    fn burst(&self, tenants: u32) -> f64 {
        self.capacity * 0.6 + f64::from(16 * tenants)
    }
}

/// Some tenants whose demands sum to `load` capacities.
fn crowd(world: &mut World, load: f64, rng: &mut Rng) -> Vec<Source> {
    let count = usize::try_from(rng.range(1..12)).unwrap();
    let parts: Vec<f64> = (0..count).map(|_| rng.exponential() + 0.05).collect();
    let sum: f64 = parts.iter().sum();
    let sources = parts.into_iter().enumerate().map(|(number, part)| {
        let tenant = world.tenant(number);
        let shape = Shape::any(rng);
        Source::new(tenant, world.capacity * load * part / sum, shape, rng)
    });
    sources.collect()
}

#[test]
fn whoever_keeps_to_its_part_is_never_refused_whatever_others_send() {
    for seed in 0..seeds(150) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(200..1_000));
        let load = 1.0 + 4.0 * rng.f64();
        let mut others = crowd(&mut world, load, &mut rng);
        let share = SHARED * world.capacity / f64::from(u32::try_from(others.len() + 1).unwrap());
        // A bucket's depth: a tenth of a second, but of low rates up to eight.
        let burst = (share * 0.1).max((share * 2.0).clamp(1.0, 8.0));
        let quiet = world.tenant(1_000);
        let came = rng.below(SECOND / 2);
        world.run(&mut others, came, &mut rng);
        world.take(quiet);
        world.run(&mut others, came + 100 * MS + 1, &mut rng);
        let (mut tokens, mut at) = (0.0_f64, world.now);
        while world.now < 3 * SECOND {
            let wait = nanos(rng.exponential() * 3.0 / share).max(MS);
            let next = world.now + wait;
            world.run(&mut others, next, &mut rng);
            tokens = (tokens + 0.999 * share * float((world.now - at) / 1_000) / 1e6).min(0.999 * burst);
            at = world.now;
            let mut left = rng.below(30);
            while tokens >= 1.0 && left > 0 {
                assert!(world.take(quiet), "seed {seed} at {:?}", Instant::from_nanos(world.now));
                tokens -= 1.0;
                left -= 1;
            }
        }
    }
}

#[test]
fn nothing_is_wasted_while_somebody_wants_it() {
    for seed in 0..seeds(80) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(100..400));
        let load = 1.2 + 4.0 * rng.f64();
        let mut sources = crowd(&mut world, load, &mut rng);
        world.run(&mut sources, 2 * SECOND, &mut rng);
        // Buckets that fill up in the meantime count as waste: so long that it does not matter.
        world.ideal = Ideal { at: world.now, ..Ideal::default() };
        let before = world.admitted.len();
        world.run(&mut sources, 20 * SECOND, &mut rng);
        let part = float((world.admitted.len() - before) as u64) / float(world.ideal.admitted);
        assert!(part >= 0.98, "seed {seed}: {part}");
    }
}

#[test]
fn no_span_gets_more_than_its_part_and_the_burst() {
    for seed in 0..seeds(150) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(200..1_000));
        let load = 0.2 + 5.0 * rng.f64();
        let mut sources = crowd(&mut world, load, &mut rng);
        for _ in 0..3 {
            // Some pause, some come back.
            let end = world.now + SECOND;
            world.run(&mut sources, end, &mut rng);
            for source in &mut sources {
                if rng.chance(0.3) {
                    source.next = source.next.max(world.now + rng.below(2 * SECOND));
                }
            }
        }
        let (beyond, burst) = (world.beyond(), world.burst(12));
        assert!(beyond <= burst, "seed {seed}: {beyond} above {burst}");
    }
}

#[test]
fn a_lone_tenant_has_it_all() {
    for seed in 0..seeds(150) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(200..1_000));
        let tenant = world.tenant(0);
        let (rate, shape) = (world.capacity * (1.2 + 3.0 * rng.f64()), Shape::any(&mut rng));
        let mut alone = [Source::new(tenant, rate, shape, &mut rng)];
        world.run(&mut alone, SECOND, &mut rng);
        world.ideal = Ideal { at: world.now, ..Ideal::default() };
        let before = alone[0].admitted;
        world.run(&mut alone, 4 * SECOND, &mut rng);
        let part = float(alone[0].admitted - before) / float(world.ideal.admitted);
        assert!(part >= 0.98, "seed {seed}: {part}");
    }
}

#[test]
fn equal_tenants_that_want_too_much_get_the_same() {
    for seed in 0..seeds(100) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(200..1_000));
        let count = rng.range(2..12);
        let mut sources: Vec<_> = (0..usize::try_from(count).unwrap())
            .map(|number| {
                let tenant = world.tenant(number);
                // From one and a half to ten times what it can get.
                let rate = world.capacity / float(count) * (1.5 + 8.5 * rng.f64());
                let shape = if rng.chance(0.5) { Shape::Even } else { Shape::Poisson };
                Source::new(tenant, rate, shape, &mut rng)
            })
            .collect();
        world.run(&mut sources, SECOND, &mut rng);
        let before: Vec<u64> = sources.iter().map(|source| source.admitted).collect();
        world.run(&mut sources, 4 * SECOND, &mut rng);
        let got: Vec<f64> =
            sources.iter().zip(before).map(|(source, before)| float(source.admitted - before)).collect();
        let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|x| x * x).sum::<f64>());
        let jain = sum * sum / (squares * float(count));
        assert!(jain >= 0.99, "seed {seed}: {jain}, {got:?}");
    }
}

#[test]
fn ten_thousand_tiny_tenants_together_get_no_more_than_there_is() {
    each_seed(seeds(2), |seed| {
        let mut rng = Rng::new(seed);
        let mut world = World::new(rng.range(200..1_000));
        let tenants: Vec<_> = (0..10_000).map(|number| world.tenant(number)).collect();
        let mut before = 0;
        for second in 0..5 {
            for tenant in &tenants {
                world.move_to(world.now + SECOND / 10_000);
                world.take(*tenant);
            }
            before = if second < 3 { world.admitted.len() } else { before };
        }
        // Nothing was saved up: only the pools may come at once.
        let (beyond, burst) = (world.beyond(), world.burst(0));
        assert!(beyond <= burst, "seed {seed}: {beyond} above {burst}");
        let got = float((world.admitted.len() - before) as u64) / 2.0;
        assert!(got >= 0.97 * world.capacity, "seed {seed}: {got} of {}", world.capacity);
    });
}
