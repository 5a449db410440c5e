use super::cell::NOISY_TICKS;
use super::*;

const TERMS: Terms = Terms {
    tick_ns: 100_000_000,
    burst_ns: 100_000_000,
    idle_ticks: 300,
    reserve: 0.2,
    newcomers: 0.05,
    headroom: 0.1,
};

/// A counter of 1,000 units a second, or a gauge of 1,000 units, and its clock.
struct World {
    limiter: Overflow,
    fills: Fills,
    now: Instant,
    closed: Vec<u32>,
}

impl World {
    fn new(kind: Kind) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let limiter = Overflow::new(kind, 1_000, TERMS, Some(1_000), now);
        Self { limiter, fills: Fills::default(), now, closed: Vec::new() }
    }

    fn take(&mut self, place: Place, cost: u64) -> Option<Pay> {
        match self.limiter.ask(place, cost, self.now) {
            Answer::Paid(pay) => {
                self.limiter.commit(place, cost, pay);
                Some(pay)
            }
            Answer::Beyond | Answer::Short => {
                self.limiter.refuse(place, cost, self.now, self.now);
                None
            }
        }
    }

    /// How many of so many single units it gets.
    fn take_many(&mut self, place: Place, count: u32) -> u32 {
        (0..count).map(|_| u32::from(self.take(place, 1).is_some())).sum()
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now = self.now.plus_nanos(ms * 1_000_000);
    }

    /// The rest of a tick passes, and shares are set.
    fn tick(&mut self) {
        self.pass_ms(100);
        self.rebalance();
    }

    fn rebalance(&mut self) {
        self.rebalance_after(100);
    }

    /// Sets shares after a tick of so many milliseconds.
    fn rebalance_after(&mut self, ms: u64) {
        let mut pass = Pass::new(core::time::Duration::from_millis(ms));
        for _ in 0..1_000_000 {
            // Slices of a single claimant: no order of events may matter.
            let mut budget = 1;
            if self.limiter.rebalance(&mut pass, &mut self.fills, &mut budget, &mut self.closed, |_| 0, self.now) {
                let Ledger { capacity, global, kept, counted } = self.limiter.ledger();
                assert_eq!(kept, counted);
                assert_eq!(signed(counted.shares) + global, signed(capacity.unwrap()));
                return;
            }
        }
        panic!("it does not end");
    }
}

#[test]
fn a_newcomer_draws_on_the_reserve_and_has_a_share_from_the_next_tick_on() {
    let mut world = World::new(Kind::Counter);
    world.pass_ms(1_000);
    let a = world.limiter.open(1, 1, world.now);
    assert_eq!(world.take(a, 1), Some(Pay::Newcomer));
    assert_eq!(world.limiter.share(a), 0);
    world.tick();
    assert!(world.limiter.share(a) > 0);
    world.pass_ms(100);
    assert_eq!(world.take(a, 1), Some(Pay::Own));
}

#[test]
fn a_newcomer_beside_a_flood_has_what_it_is_guaranteed_though_shares_are_not_set_for_long() {
    let mut world = World::new(Kind::Counter);
    let flood = world.limiter.open(1, 1, world.now);
    for _ in 0..20 {
        world.take_many(flood, 1_000);
        world.tick();
    }
    // Others that came before have taken the newcomers' part.
    world.limiter.pool.newcomers = 0;
    let a = world.limiter.open(2, 1, world.now);
    let mut got = 0;
    for _ in 0..300 {
        world.pass_ms(10);
        world.take_many(flood, 30);
        got += world.take_many(a, 3);
    }
    assert!(got >= 890, "it asked for 300 a second and is guaranteed 375: {got} of 900");

    let mut world = World::new(Kind::Gauge);
    let flood = world.limiter.open(1, 1, world.now);
    for _ in 0..20 {
        world.take_many(flood, 600);
        world.limiter.release(flood, 100);
        world.tick();
    }
    world.limiter.release(flood, 400);
    let a = world.limiter.open(2, 1, world.now);
    assert!(world.take_many(a, 400) >= 375, "there is room, and it is its own");
}

#[test]
fn who_is_quiet_is_forgotten_after_so_much_time_however_few_passes_there_were() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(7, 1, world.now);
    world.take_many(a, 2_000);
    world.tick();
    world.take_many(a, 2_000);
    world.tick();
    assert!(world.limiter.is_noisy(a));
    let mut passed = 0;
    while world.closed.is_empty() {
        world.pass_ms(2_550);
        world.rebalance_after(2_550);
        assert!(!world.limiter.is_noisy(a), "it is more than a second ago");
        passed += 2_550;
    }
    assert!((30_000..36_000).contains(&passed), "{passed} ms");
}

#[test]
fn shares_are_max_min_and_the_rest_is_the_pool() {
    let mut world = World::new(Kind::Counter);
    let (a, b) = (world.limiter.open(1, 1, world.now), world.limiter.open(2, 1, world.now));
    for _ in 0..100 {
        for n in 0..320 {
            world.pass_ms(u64::from(n % 4 == 0 && n < 400));
            if n % 32 == 0 {
                world.take(a, 1);
            }
            world.take(b, 1);
        }
        world.pass_ms(20);
        world.rebalance();
    }
    let (of_a, of_b) = (world.limiter.share(a), world.limiter.share(b));
    assert!((105..150).contains(&of_a), "a's demand and what it varies by: {of_a}");
    assert!((749..=750).contains(&(of_a + of_b)), "three quarters");
    assert!(world.limiter.is_noisy(b) && !world.limiter.is_noisy(a));
}

#[test]
fn who_is_turned_away_within_its_share_is_not_noisy_though_the_tick_is_late() {
    for (wants, is_noisy) in [(100, false), (300, true)] {
        let mut world = World::new(Kind::Counter);
        let a = world.limiter.open(1, 1, world.now);
        for _ in 0..50 {
            world.take_many(a, 10);
            world.tick();
        }
        assert!((100..150).contains(&world.limiter.share(a)) && !world.limiter.is_noisy(a));
        let began = world.now;
        for _ in 0..10 {
            world.pass_ms(100);
            (0..wants / 10).for_each(|_| world.limiter.miss(a, 1, began, world.now));
        }
        world.rebalance();
        assert_eq!(world.limiter.is_noisy(a), is_noisy, "{wants} in a tick of a second");
    }
}

#[test]
fn what_is_guaranteed_is_given_though_others_took_it() {
    let mut world = World::new(Kind::Counter);
    let (a, b) = (world.limiter.open(1, 1, world.now), world.limiter.open(2, 1, world.now));
    world.take(a, 1);
    for _ in 0..50 {
        world.take_many(b, 1_000);
        world.tick();
    }
    world.take_many(b, 1_000);
    assert_eq!(world.take(b, 1), None);
    // Its part is 375 a second, of which a tenth of a second may come at once.
    let given = (0..1_000).filter(|_| world.take(a, 1).is_some()).count();
    assert!((37..=45).contains(&given), "{given}");
    assert_eq!(world.take(b, 1), None, "the pool owes it");
}

#[test]
fn unused_share_is_lent_within_a_tick() {
    let mut world = World::new(Kind::Counter);
    let (a, b) = (world.limiter.open(1, 1, world.now), world.limiter.open(2, 1, world.now));
    let second = |world: &mut World, want: [u64; 2]| {
        let mut got = [0, 0];
        for _ in 0..100 {
            world.pass_ms(10);
            for (id, at) in [(a, 0), (b, 1)] {
                got[at] += (0..want[at]).filter(|_| world.take(id, 1).is_some()).count();
            }
            if world.now.as_nanos().is_multiple_of(100_000_000) {
                world.rebalance();
            }
        }
        got
    };
    second(&mut world, [20, 20]);
    let both = second(&mut world, [20, 20]);
    assert!(both[0].abs_diff(both[1]) <= 10, "{both:?}");
    assert!(both[0] + both[1] >= 980, "{both:?}");
    let alone = second(&mut world, [0, 20]);
    assert!(alone[1] >= 850, "in the first second: {alone:?}");
    let alone = second(&mut world, [0, 20]);
    assert!(alone[1] >= 980, "then: {alone:?}");
}

#[test]
fn what_turned_out_dearer_is_paid_later() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(1, 1, world.now);
    for _ in 0..10 {
        world.take(a, 10);
        world.tick();
    }
    assert_eq!(world.take(a, 1), Some(Pay::Own));
    let before = world.limiter.pool.level;
    world.limiter.settle(a, 1, 500, world.now);
    assert!(world.limiter.pool.level < before, "the pool pays what the bucket's depth does not cover");
    assert_ne!(world.take(a, 1), Some(Pay::Own));
    world.limiter.settle(a, 500, 1, world.now);
    assert_eq!(world.take(a, 1), Some(Pay::Own), "and back");
}

#[test]
fn a_gauge_keeps_room_for_those_who_are_within_their_part() {
    let mut world = World::new(Kind::Gauge);
    let (a, b) = (world.limiter.open(1, 1, world.now), world.limiter.open(2, 1, world.now));
    world.take_many(a, 10);
    for _ in 0..50 {
        world.take_many(b, 100);
        world.tick();
    }
    assert!((700..=760).contains(&world.limiter.held), "{}", world.limiter.held);
    // From 10 to 200 at once, though b holds all that it could get.
    assert_eq!((0..190).filter(|_| world.take(a, 1).is_none()).count(), 0);
    assert!(world.limiter.held <= 1_000);
    world.limiter.release(a, 1_000);
    assert_eq!(world.limiter.cells[a.cell()].level, 0, "no more than it held");
}

#[test]
fn a_lone_claimant_may_hold_nearly_all() {
    let mut world = World::new(Kind::Gauge);
    let a = world.limiter.open(1, 1, world.now);
    for _ in 0..20 {
        world.take_many(a, 1_000);
        world.tick();
    }
    assert!(world.limiter.held >= 980, "{}", world.limiter.held);
}

#[test]
fn an_idle_claimant_gives_its_place_back_and_one_that_holds_something_does_not() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(7, 3, world.now);
    world.take(a, 1);
    (0..302).for_each(|_| world.tick());
    assert_eq!(world.closed, [7]);
    assert_eq!((world.limiter.weights, world.limiter.shares), (0, 0));
    assert_eq!(world.limiter.open(8, 1, world.now), a, "the place is used again");

    let mut world = World::new(Kind::Gauge);
    let a = world.limiter.open(7, 3, world.now);
    world.take(a, 1);
    (0..400).for_each(|_| world.tick());
    assert!(world.closed.is_empty());
    world.limiter.release(a, 1);
    (0..400).for_each(|_| world.tick());
    assert_eq!(world.closed, [7]);
}

#[test]
fn who_comes_back_just_before_its_place_would_be_given_back_keeps_it() {
    for kind in [Kind::Counter, Kind::Gauge] {
        let mut world = World::new(kind);
        let a = world.limiter.open(7, 3, world.now);
        // Quiet for as long as it may be, the next tick being the one that would close it.
        (0..i32::from(TERMS.idle_ticks)).for_each(|_| world.tick());
        assert!(world.closed.is_empty());
        assert!(world.take(a, 1).is_some());
        world.tick();
        assert!(world.closed.is_empty(), "{kind:?}");
        if kind == Kind::Gauge {
            world.limiter.release(a, 1);
        }
        assert_eq!(world.limiter.held, 0);
        (0..=i32::from(TERMS.idle_ticks) + 1).for_each(|_| world.tick());
        assert_eq!(world.closed, [7]);
    }
}

#[test]
fn what_a_crowd_leaves_behind_when_it_goes_is_no_longer_gone_through() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(0, 1, world.now);
    for owner in 1..3_000 {
        let place = world.limiter.open(owner, 1, world.now);
        world.take(place, 1);
    }
    for _ in 0..=TERMS.idle_ticks + 1 {
        world.take(a, 1);
        world.tick();
    }
    assert_eq!((world.closed.len(), world.limiter.here, world.limiter.pasts.len()), (2_999, 1, 1));
    // The first places are the first to be used again, and none twice.
    let mut places: Vec<_> = (1..2_000).map(|owner| world.limiter.open(owner, 1, world.now).number()).collect();
    assert!(places.iter().copied().eq(1..2_000));
    for at in [1_500, 7, 1_998] {
        let place = world.limiter.place(at, at, NONE);
        world.limiter.close(place, world.now);
    }
    places = (0..4).map(|owner| world.limiter.open(5_000 + owner, 1, world.now).number()).collect();
    assert_eq!(places, [7, 1_500, 1_998, 2_000]);
}

#[test]
fn who_was_noisy_stands_back_for_a_second() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(1, 1, world.now);
    world.tick();
    world.take_many(a, 2_000);
    world.tick();
    assert!(world.limiter.is_noisy(a));
    (0..NOISY_TICKS).for_each(|_| world.tick());
    assert!(!world.limiter.is_noisy(a));
}

#[test]
fn the_pool_serves_those_first_who_use_little() {
    let mut world = World::new(Kind::Counter);
    world.limiter.pool.settle(-100 * 1_000_000_000_000);
    let filled = world.limiter.pool.filled();
    assert!((0.5..0.7).contains(&filled), "{filled}");
    assert!(world.limiter.may_go_beyond(0.1) && !world.limiter.may_go_beyond(0.9));
}

#[test]
fn a_smaller_capacity_takes_from_the_pool_first_and_then_from_shares() {
    let mut world = World::new(Kind::Counter);
    let a = world.limiter.open(1, 1, world.now);
    for _ in 0..20 {
        world.take_many(a, 200);
        world.tick();
    }
    assert_eq!(world.limiter.share(a), 750);
    world.limiter.set_capacity(Some(400), world.now);
    let Ledger { capacity, global, counted, .. } = world.limiter.ledger();
    assert_eq!((counted.shares, global, capacity), (750_000, -350_000, Some(400_000)));
    world.tick();
    assert_eq!(world.limiter.share(a), 300);
}
