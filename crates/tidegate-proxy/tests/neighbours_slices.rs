//! Shares of very many tenants are set in slices: how long that takes, and of how much of the core, in virtual time.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_proxy::machine::neighbours::{Capacity, Neighbours, NeighboursConfig, Source, Stage, Tenant, Verdict};
use tidegate_proxy::machine::resource::Resource;

const SECOND: u64 = 1_000_000_000;
/// What a slice is taken to take.
const SLICE: Duration = Duration::from_micros(100);
/// How often a thread looks whether there is something to do, and how exact its clock is in between.
const TICK: Duration = Duration::from_millis(20);
const CLOCK: Duration = Duration::from_millis(1);
const COSTS: [(Resource, u64); 5] = [
    (Resource::Requests, 1),
    (Resource::EventTime, 20_000),
    (Resource::NetworkBytes, 1_000),
    (Resource::Connections, 1),
    (Resource::Memory, 4_096),
];

/// A limiter, and its thread's timer.
struct World {
    neighbours: Neighbours,
    now: Instant,
    looks: Instant,
    /// When a further slice is due before the next look.
    next: Option<Instant>,
    slices: u32,
    ticked: Instant,
    longest: Duration,
}

impl World {
    fn new() -> Self {
        let config = NeighboursConfig { tenants_max: 100_000, ..NeighboursConfig::default() }
            .with(Resource::Requests, Capacity::Fixed(10_000))
            .with(Resource::Connections, Capacity::Fixed(30_000))
            .with(Resource::Memory, Capacity::Fixed(1 << 30));
        Self {
            neighbours: Neighbours::new(config, Instant::ZERO),
            now: Instant::ZERO,
            looks: Instant::ZERO,
            next: None,
            slices: 0,
            ticked: Instant::ZERO,
            longest: Duration::ZERO,
        }
    }

    fn move_to(&mut self, now: Instant) {
        while let Some(at) = Some(self.next.unwrap_or(self.looks)).filter(|at| *at <= now) {
            if self.next.take().is_none() {
                self.looks = at + TICK;
            }
            if self.neighbours.next_timeout().is_none_or(|due| due > at) {
                continue;
            }
            self.neighbours.on_timeout(at);
            self.slices += 1;
            let next = self.neighbours.on_slice(SLICE, at + SLICE);
            self.next = next.map(|next| next + CLOCK).filter(|next| *next < self.looks);
            if self.neighbours.ticked() != self.ticked {
                self.longest = self.longest.max(self.neighbours.ticked().since(self.ticked));
                self.ticked = self.neighbours.ticked();
            }
        }
        self.now = now;
    }

    /// Something is done at once for the tenant; false if it is refused.
    fn ask(&mut self, tenant: Tenant) -> bool {
        let is_admitted =
            matches!(self.neighbours.try_take(tenant, Stage::Request, &COSTS, self.now), Verdict::Admit { .. });
        if is_admitted {
            for (resource, amount) in [(Resource::Connections, 1), (Resource::Memory, 4_096)] {
                self.neighbours.release(tenant, resource, amount, self.now);
            }
        }
        is_admitted
    }

    fn say(&mut self, name: u64) -> bool {
        let source = Source::of([192, 0, 2, u8::try_from(name % 8).expect("below 8")].into());
        let tenant = self.neighbours.tenant_from(&format!("n{name}.example"), source, self.now);
        self.ask(tenant)
    }

    /// The longest tick since the last time, and the part of the time that slices took.
    fn measure(&mut self, since: Instant) -> (Duration, f64) {
        let (longest, slices) = (core::mem::take(&mut self.longest), core::mem::take(&mut self.slices));
        (longest, (SLICE * slices).as_secs_f64() / self.now.since(since).as_secs_f64())
    }
}

#[test]
fn shares_of_fifty_thousand_names_take_a_second_and_a_twentieth_of_the_core_and_are_forgotten() {
    let mut world = World::new();
    let (mut refused, mut admitted) = (0, 0);
    // A burst of names, and a tenant that comes amid it.
    for turn in 0..100_000 {
        world.move_to(Instant::from_nanos(turn * SECOND / 50_000));
        admitted += u64::from(world.say(turn / 2));
        if turn >= 60_000 && turn % 500 == 0 {
            let a = world.neighbours.tenant("a.example", world.now);
            refused += u64::from(!world.ask(a));
        }
    }
    assert_eq!(refused, 0, "100 a second are far below what it is guaranteed");
    assert!(admitted > 10_000);
    let (longest, part) = world.measure(Instant::ZERO);
    assert!(longest <= Duration::from_secs(1), "{longest:?} from one tick to the next");
    assert!(part <= 0.05, "{part} of the core");

    // While they are remembered.
    let since = world.now;
    world.move_to(since + Duration::from_secs(20));
    let (longest, part) = world.measure(since);
    assert!(longest <= Duration::from_millis(1_600), "{longest:?} from one tick to the next");
    assert!(part <= 0.05, "{part} of the core");

    // They asked for nothing for half a minute.
    world.move_to(since + Duration::from_secs(34));
    let since = world.now;
    world.longest = Duration::ZERO;
    world.move_to(since + Duration::from_secs(5));
    let (longest, _) = world.measure(since);
    assert!(longest <= Duration::from_millis(120), "{longest:?} from one tick to the next");
}

#[test]
fn a_slice_that_takes_long_leaves_others_as_much_more_time() {
    let mut world = World::new();
    for name in 0..10_000 {
        world.say(name);
    }
    world.move_to(world.now + Duration::from_millis(100));
    let at = world.now + Duration::from_millis(10);
    for (took, gap) in [(100, 2_000), (10, 2_000), (400, 8_000), (100_000, 20_000)] {
        let mut neighbours = world.neighbours.clone();
        neighbours.on_timeout(at);
        let next = neighbours.on_slice(Duration::from_micros(took), at);
        assert_eq!(next.map(|next| next.since(at)), Some(Duration::from_micros(gap)), "after {took} us");
    }
}
