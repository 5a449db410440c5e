//! Names that anybody can make up: all that one source says share like one tenant, in virtual time.

use core::time::Duration;
use std::collections::BTreeSet;

use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::neighbours::{
    Capacity, Claimant, Lane, Neighbours, NeighboursConfig, Source, Stage, Tenant, Verdict,
};
use tidegate_proxy::machine::resource::Resource;
use tidegate_proxy::machine::seats::{For, Group, Seats};

const RESOURCE: Resource = Resource::Handshakes;
const CAPACITY: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

fn source(number: u32) -> Source {
    Source::of(core::net::Ipv4Addr::from_bits(0xc000_0200 + number).into())
}

struct World {
    neighbours: Neighbours,
    now: Instant,
    ticked: Instant,
}

impl World {
    fn new(resource: Resource, capacity: u64) -> Self {
        let config = NeighboursConfig::default().with(resource, Capacity::Fixed(capacity));
        Self { neighbours: Neighbours::new(config, Instant::ZERO), now: Instant::ZERO, ticked: Instant::ZERO }
    }

    /// With room for so many tenants.
    fn small(tenants_max: u32) -> Self {
        let config = NeighboursConfig { tenants_max, ..NeighboursConfig::default() };
        let config = config.with(RESOURCE, Capacity::Fixed(CAPACITY));
        Self { neighbours: Neighbours::new(config, Instant::ZERO), ..Self::new(RESOURCE, CAPACITY) }
    }

    fn move_to(&mut self, now: Instant) {
        while let Some(at) = self.neighbours.next_timeout().filter(|at| *at <= now) {
            self.neighbours.on_timeout(at);
        }
        self.now = now;
        if self.neighbours.ticked() != self.ticked {
            self.ticked = self.neighbours.ticked();
            self.check();
        }
    }

    /// The books add up: shares and what is nobody's are the capacity, exactly.
    fn check(&self) {
        for resource in [Resource::Handshakes, Resource::EventTime, Resource::Connections] {
            let books = self.neighbours.ledger(resource);
            assert_eq!(books.kept, books.counted, "{resource:?}");
            if let Some(capacity) = books.capacity {
                assert_eq!(i128::from(books.kept.shares) + i128::from(books.global), i128::from(capacity));
            }
        }
    }

    fn ask(&mut self, tenant: Tenant) -> Option<Lane> {
        match self.neighbours.try_take(tenant, Stage::Hello, &[(RESOURCE, 1)], self.now) {
            Verdict::Admit { lane, .. } => Some(lane),
            Verdict::Refuse(_) => None,
        }
    }
}

/// What A asked for and got beside names that one source makes up.
struct Outcome {
    asked: u64,
    answered: u64,
    /// Of these, at once.
    in_share: u64,
    names_answered: u64,
    seconds: u64,
}

/// A asks 100 times a second, evenly, and from the second second on a name is said `per_s` times a second that `name` gives,
/// for ten seconds.
fn beside_names(per_s: u64, mut name: impl FnMut(u64, &mut Rng) -> String) -> (World, Outcome) {
    let mut world = World::new(RESOURCE, CAPACITY);
    let mut rng = Rng::new(7);
    let seconds = 10;
    let mut out = Outcome { asked: 0, answered: 0, in_share: 0, names_answered: 0, seconds };
    let (mut next_a, mut next_name, mut said) = (0, SECOND + 1, 0);
    while next_a.min(next_name) < (seconds + 1) * SECOND {
        if next_a <= next_name {
            world.move_to(Instant::from_nanos(next_a));
            let a = world.neighbours.tenant("a.example", world.now);
            let lane = world.ask(a);
            out.asked += 1;
            out.answered += u64::from(lane.is_some());
            out.in_share += u64::from(lane == Some(Lane::Share));
            next_a += SECOND / 100;
        } else {
            world.move_to(Instant::from_nanos(next_name));
            let tenant = world.neighbours.tenant_from(&name(said, &mut rng), source(1), world.now);
            out.names_answered += u64::from(world.ask(tenant).is_some());
            said += 1;
            next_name += SECOND / per_s;
        }
    }
    (world, out)
}

#[test]
fn names_that_one_source_makes_up_cost_a_tenant_nothing() {
    // What `tidegate sim neighbours` showed A lose 34 % and 58 % to, when each name was a tenant.
    for (names, per_s) in [(9_900, 1_980), (2_000, 2_000), (10, 10_000)] {
        let (_, out) = beside_names(per_s, |_, rng| format!("n{}.example", rng.below(names)));
        assert_eq!(out.answered, out.asked, "{names} names, {per_s}/s");
        let (at_once, asked) = (out.in_share, out.asked);
        assert!(at_once >= asked * 98 / 100, "{at_once} of {asked} at once beside {names} names");
        // What A leaves is theirs.
        // In the first seconds very many buckets fill.
        let most = (out.seconds * (CAPACITY - 100)).min(out.seconds * per_s);
        assert!(out.names_answered >= most * 88 / 100, "{} of {most}, {names} names", out.names_answered);
    }
}

#[test]
fn a_hundred_thousand_names_said_once_each_cost_a_tenant_nothing_and_have_an_eighth_of_the_table() {
    let (world, out) = beside_names(10_000, |said, _| format!("n{said}.example"));
    assert_eq!(out.answered, out.asked);
    assert!(out.names_answered <= out.seconds * CAPACITY * 11 / 10 + CAPACITY);
    assert!(world.neighbours.find("n99999.example").is_some(), "there is room for 131,072 of one source");

    let config = NeighboursConfig { tenants_max: 1_000, ..NeighboursConfig::default() };
    let mut small = Neighbours::new(config.with(RESOURCE, Capacity::Fixed(CAPACITY)), Instant::ZERO);
    let mut all = BTreeSet::new();
    for number in 0..100_000 {
        let tenant = small.tenant_from(&format!("n{number}.example"), source(1), Instant::ZERO);
        assert_ne!(tenant, Tenant::OTHER, "it takes nothing from those that there is no room for");
        all.insert(tenant.number());
        let _ = small.try_take(tenant, Stage::Hello, &[(RESOURCE, 1)], Instant::ZERO);
    }
    assert_eq!(all.len(), 126, "an eighth of the table, and a place for the rest");
    let other = small.tenant_from("b.example", source(2), Instant::ZERO);
    assert_eq!(small.name_of(other), "b.example");
}

#[test]
fn a_source_that_has_said_very_many_names_has_places_for_those_that_it_says_now() {
    let mut world = World::small(1_000);
    for number in 0..2_000 {
        let tenant = world.neighbours.tenant_from(&format!("n{number}.example"), source(1), world.now);
        world.ask(tenant);
    }
    assert_eq!(world.neighbours.find("n1999.example"), None);
    world.move_to(Instant::from_nanos(35 * SECOND));
    for number in 0..500 {
        let name = format!("new{number}.example");
        world.neighbours.tenant_from(&name, source(1), world.now);
    }
    let own = (0..500).filter(|number| world.neighbours.find(&format!("new{number}.example")).is_some()).count();
    assert!((100..=125).contains(&own), "the last ones have the places of those that are idle: {own}");
}

#[test]
fn made_up_names_of_very_many_sources_leave_room_for_names_that_nobody_makes_up() {
    let mut world = World::small(1_000);
    for number in 0..20_000_u32 {
        let tenant = world.neighbours.tenant_from(&format!("n{number}.example"), source(number % 5_000), world.now);
        world.ask(tenant);
    }
    for number in 0..60 {
        let name = format!("known{number}.example");
        let tenant = world.neighbours.tenant(&name, world.now);
        assert_eq!(world.neighbours.name_of(tenant), name);
    }
    world.check();
}

#[test]
fn all_names_of_a_source_get_together_what_one_tenant_gets() {
    let mut world = World::new(RESOURCE, CAPACITY);
    let mut got = [0_u64; 3];
    for turn in 0..200_000_u64 {
        world.move_to(Instant::from_nanos(turn * SECOND / 20_000));
        let at = usize::try_from(turn % 4).unwrap().min(2);
        let tenant = match at {
            0 => world.neighbours.tenant("a.example", world.now),
            1 => world.neighbours.tenant_from("b.example", source(2), world.now),
            _ => world.neighbours.tenant_from(&format!("n{}.example", turn % 997), source(1), world.now),
        };
        got[at] += u64::from(world.ask(tenant).is_some());
    }
    let all: u64 = got.iter().sum();
    assert!(all >= 9_500, "{got:?}");
    for part in got {
        assert!((all * 27 / 100..=all * 40 / 100).contains(&part), "a third each: {got:?}");
    }
}

#[test]
fn names_of_one_source_are_kept_from_each_other() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(RESOURCE, CAPACITY);
        let others = rng.range(1..20);
        // What a name of a source is guaranteed, beside all others of it.
        let quiet = (750 / (others + 1)) * 8 / 10;
        let (mut refused, mut next) = (0, 0);
        for turn in 0..60_000_u64 {
            let now = turn * SECOND / 6_000;
            world.move_to(Instant::from_nanos(now));
            let noisy = world.neighbours.tenant_from(&format!("n{}.example", rng.below(others)), source(1), world.now);
            let _ = world.ask(noisy);
            if now >= next {
                next += SECOND / quiet;
                let tenant = world.neighbours.tenant_from("quiet.example", source(1), world.now);
                let answered = world.ask(tenant).is_some();
                refused += u64::from(!answered && now > SECOND / 2);
            }
        }
        assert_eq!(refused, 0, "seed {seed}, {others} others");
    }
}

#[test]
fn a_name_stands_with_the_source_that_says_the_fewest() {
    let mut world = World::new(RESOURCE, CAPACITY);
    let now = world.now;
    // A source that says others' names first takes nothing from them.
    for number in 0..1_000 {
        world.neighbours.tenant_from(&format!("n{number}.example"), source(1), now);
    }
    let before = world.neighbours.tenant_from("shop.example", source(1), now);
    let mut answered = [0_u64; 2];
    for turn in 0..40_000_u64 {
        world.move_to(Instant::from_nanos(turn * SECOND / 8_000));
        let noisy = world.neighbours.tenant_from(&format!("n{}.example", turn % 1_000), source(1), world.now);
        answered[0] += u64::from(world.ask(noisy).is_some());
        if turn % 40 == 0 {
            assert!(world.neighbours.is_here_from(before, source(2), world.now));
            let is_answered = world.ask(before).is_some();
            answered[1] += u64::from(is_answered || turn < 4_000);
        }
    }
    assert_eq!(answered[1], 1_000, "of 200 a second, but for the first moments: {answered:?}");
    // Who is named by the configuration after all leaves its crowd.
    assert_eq!(world.neighbours.tenant("shop.example", world.now), before);
    world.move_to(world.now + Duration::from_secs(1));
}

#[test]
fn connections_of_made_up_names_leave_room_for_others() {
    let mut world = World::new(Resource::Connections, 1_000);
    let hold = |world: &mut World, tenant| {
        let costs = [(Resource::Connections, 1)];
        matches!(world.neighbours.try_take(tenant, Stage::Hello, &costs, world.now), Verdict::Admit { .. })
    };
    let mut taken = Vec::new();
    for turn in 0..20_000_u64 {
        world.move_to(Instant::from_nanos(turn * SECOND / 5_000));
        let a = world.neighbours.tenant("a.example", world.now);
        if turn == 0 {
            assert!(hold(&mut world, a));
        }
        let tenant = world.neighbours.tenant_from(&format!("n{turn}.example"), source(1), world.now);
        if hold(&mut world, tenant) {
            taken.push(tenant);
        }
    }
    assert!((900..=950).contains(&taken.len()), "all but what is for newcomers is lent: {}", taken.len());
    let mut got = 0;
    for _ in 0..100 {
        let a = world.neighbours.tenant("a.example", world.now);
        got += (0..10).filter(|_| hold(&mut world, a)).count();
        // What idle connections are ended for: in half a tick.
        let excess = usize::try_from(world.neighbours.excess_connections()).unwrap();
        for tenant in taken.drain(..excess.min(taken.len())) {
            world.neighbours.release(tenant, Resource::Connections, 1, world.now);
        }
        world.move_to(world.now + Duration::from_millis(50));
    }
    assert!(got >= 370, "A is guaranteed 375: {got}");
}

/// Idle connections of one thread, as it ends them when others need some.
struct Idle {
    seats: Seats,
    holders: std::collections::BTreeMap<usize, Tenant>,
}

impl Idle {
    fn new(most: usize) -> Self {
        Self { seats: Seats::new(most), holders: std::collections::BTreeMap::new() }
    }

    /// A connection of `tenant` that has had its answer; false if it may have none more.
    fn open(&mut self, world: &mut World, tenant: Tenant, from: u8) -> bool {
        let costs = [(Resource::Connections, 1)];
        let verdict = world.neighbours.try_take(tenant, Stage::Hello, &costs, world.now);
        if !matches!(verdict, Verdict::Admit { .. }) {
            return false;
        }
        let address = std::net::IpAddr::from([198, 51, 100, from]);
        let Some(number) = self.seats.take(address.into()) else { return false };
        self.seats.awaits(number, For::Next, Group::Claimant(world.neighbours.claimant(tenant)));
        self.holders.insert(number, tenant);
        self.end_lost(world);
        true
    }

    /// What a thread does in each round.
    fn round(&mut self, world: &mut World) {
        let excess = usize::try_from(world.neighbours.excess_connections()).expect("it is below 1,000");
        if excess > 0 {
            self.seats.give_back(excess.min(256), |claimant| world.neighbours.excess_connections_of(claimant));
        }
        self.end_lost(world);
        world.move_to(world.now + Duration::from_millis(60));
    }

    fn end_lost(&mut self, world: &mut World) {
        while let Some(number) = self.seats.poll_ended() {
            let tenant = self.holders.remove(&number).expect("somebody had the place");
            self.seats.leave(number);
            world.neighbours.release(tenant, Resource::Connections, 1, world.now);
        }
    }

    fn of(&self, claimant: Claimant, world: &World) -> usize {
        self.holders.values().filter(|tenant| world.neighbours.claimant(**tenant) == claimant).count()
    }
}

#[test]
fn idle_connections_of_one_for_each_made_up_name_are_given_back_and_nobody_elses() {
    let mut world = World::new(Resource::Connections, 1_000);
    let mut idle = Idle::new(2_000);
    let name = |world: &mut World, name: &str| world.neighbours.tenant(name, world.now);
    let (a, shield) = (name(&mut world, "a.example"), name(&mut world, "heavy.example"));
    // A has two, and another within its share has more than any name that is made up.
    (0..2).for_each(|_| assert!(idle.open(&mut world, a, 1)));
    for _ in 0..40 {
        idle.open(&mut world, shield, 2);
        idle.round(&mut world);
    }
    let mut held = 0;
    for turn in 0..20_000_u64 {
        let tenant = world.neighbours.tenant_from(&format!("n{turn}.example"), source(3), world.now);
        held += u64::from(idle.open(&mut world, tenant, 3));
        if turn % 500 == 0 {
            idle.round(&mut world);
        }
    }
    assert!(held >= 800, "what nobody else has is lent: {held}");
    // It is guaranteed 250.
    for _ in 0..100 {
        while idle.of(Claimant::Tenant(a), &world) < 230 && idle.open(&mut world, a, 1) {}
        idle.round(&mut world);
    }
    assert_eq!(idle.of(Claimant::Tenant(a), &world), 230);
    assert_eq!(idle.of(Claimant::Tenant(shield), &world), 40, "who keeps to its share loses nothing");
}
