use super::super::neighbours::{Capacity, NeighboursConfig, Source};
use super::*;

/// Handshakes a second, but where time is what is short.
const C: u64 = 1_000;

/// A thread's limiter and the hellos that wait there, with a clock.
struct Desk {
    limiter: Neighbours,
    hellos: Hellos<u32>,
    now: Instant,
    second: Second,
    /// Connections whose clients have closed.
    gone: Vec<u32>,
    next: u32,
}

impl Desk {
    fn new(config: NeighboursConfig, patience_ms: u64) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let hellos = Hellos::new(Tuning::default(), Duration::from_millis(patience_ms), usize::MAX, now);
        Self {
            limiter: Neighbours::new(config, now),
            hellos,
            now,
            second: Second::default(),
            gone: Vec::new(),
            next: 0,
        }
    }

    fn handshakes(patience_ms: u64) -> Self {
        Self::new(NeighboursConfig::default().with(Resource::Handshakes, Capacity::Fixed(C)), patience_ms)
    }

    fn tenant(&mut self, name: &str) -> Tenant {
        self.limiter.tenant(name, self.now)
    }

    /// So many names that one source makes up.
    fn made_up(&mut self, names: usize) -> Vec<Tenant> {
        let source = Source::of("192.0.2.1".parse().unwrap());
        (0..names).map(|at| self.limiter.tenant_from(&format!("made-up-{at}"), source, self.now)).collect()
    }

    fn arrive(&mut self, tenant: Tenant) -> Arrival {
        let arrival = self.hellos.arrive(&mut self.limiter, tenant, true, self.second, self.now);
        if arrival == Arrival::Wait {
            self.hellos.push(&self.limiter, tenant, self.next, self.now);
            self.next += 1;
        }
        arrival
    }

    /// The number of one that has to wait.
    fn waits(&mut self, tenant: Tenant) -> u32 {
        assert_eq!(self.arrive(tenant), Arrival::Wait);
        self.next - 1
    }

    /// Uses up what the tenant can have now; the number of the first one that waits.
    fn exhaust(&mut self, tenant: Tenant) -> u32 {
        while self.arrive(tenant) != Arrival::Wait {}
        self.next - 1
    }

    fn turn(&mut self) -> Vec<Output<u32>> {
        let Self { limiter, hellos, now, second, gone, .. } = self;
        let mut turn = hellos.turn(limiter, *now);
        let is_gone = |connection: &u32| gone.contains(connection);
        core::iter::from_fn(|| hellos.next(&mut turn, limiter, *second, is_gone, *now)).collect()
    }

    /// A millisecond passes.
    fn pass(&mut self) -> Vec<Output<u32>> {
        self.now += Duration::from_millis(1);
        self.limiter.on_timeout(self.now);
        self.turn()
    }

    /// The next so many that go on.
    fn go(&mut self, many: usize) -> Vec<u32> {
        let mut went = Vec::new();
        while went.len() < many {
            went.extend(went_on(&self.pass()));
        }
        went
    }
}

fn went_on(told: &[Output<u32>]) -> Vec<u32> {
    told.iter().filter_map(|told| if let Output::Go(at, ..) = told { Some(*at) } else { None }).collect()
}

fn refused(told: &[Output<u32>]) -> usize {
    told.iter().filter(|told| matches!(told, Output::Refuse(..))).count()
}

#[test]
fn a_tenant_beyond_its_share_gets_all_that_is_left_and_none_is_refused_and_the_other_never_waits() {
    let mut desk = Desk::handshakes(1_000);
    let [quiet, noisy] = ["quiet", "noisy"].map(|name| desk.tenant(name));
    let (mut served, mut waited, mut ended) = ([0_u64; 2], 0, 0);
    for ms in 0..10_000 {
        let counts = u64::from(ms >= 5_000);
        let told = desk.pass();
        served[1] += counts * went_on(&told).len() as u64;
        ended += refused(&told);
        if ms % 5 == 0 {
            let admitted = matches!(desk.arrive(quiet), Arrival::Admit(_));
            served[0] += counts * u64::from(admitted);
            waited += counts * u64::from(!admitted);
        }
        // As with so many clients, each of which comes again when it is answered.
        while desk.hellos.len() < 500 {
            if let Arrival::Admit(_) = desk.arrive(noisy) {
                served[1] += counts;
            }
        }
    }
    assert_eq!((served[0], waited, ended), (1_000, 0, 0), "200 a second for 5 seconds");
    assert!((3_900..=4_050).contains(&served[1]), "{served:?}: all of the other 800 a second");
}

#[test]
fn one_that_waits_is_no_refusal_and_is_wanted_in_each_tick() {
    let mut desk = Desk::handshakes(60_000);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    for _ in 0..2_000 {
        desk.waits(noisy);
    }
    for _ in 0..500 {
        desk.pass();
    }
    let shown = desk.limiter.snapshot(desk.now);
    let resource = &shown.tenants[0].resources[0];
    assert_eq!((resource.refused_share, resource.refused_full), (0, 0));
    assert!(resource.demand >= 999.0, "as much as there is: {}", resource.demand);
    assert_eq!(shown.tenants[0].lane, Lane::Overflow);
}

#[test]
fn those_that_waited_too_long_are_ended_by_a_small_part_of_the_core_and_counted_once() {
    let mut desk = Desk::handshakes(100);
    let noisy = desk.tenant("noisy");
    let (mut ended, mut went) = (0, 0);
    for ms in 0..2_000 {
        for _ in 0..10 {
            went += usize::from(matches!(desk.arrive(noisy), Arrival::Admit(_)));
        }
        let told = desk.pass();
        assert!(ms >= 99 || refused(&told) == 0, "{ms} ms are not too long");
        ended += refused(&told);
        went += went_on(&told).len();
    }
    // 1,000 in a second for 1.9 s, and what had come together before.
    assert!((1_800..=2_010).contains(&ended), "{ended}");
    assert!(went >= 1_900, "the others are served: {went}");
    let counts = desk.limiter.snapshot(desk.now).tenants[0].refused;
    let full = 20_000 - went - ended - desk.hellos.len();
    assert_eq!(counts.hello, (ended + full) as u64, "one that only waits is not counted");
}

#[test]
fn with_no_patience_all_is_refused_at_once_and_so_is_what_may_not_wait() {
    let mut desk = Desk::handshakes(0);
    let noisy = desk.tenant("noisy");
    let refused = (0..2 * C).filter(|_| matches!(desk.arrive(noisy), Arrival::Refuse(_))).count();
    assert!(refused > 0 && desk.hellos.is_empty());
    let mut desk = Desk::handshakes(1_000);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    let second = desk.second;
    let arrival = desk.hellos.arrive(&mut desk.limiter, noisy, false, second, desk.now);
    assert!(matches!(arrival, Arrival::Refuse(_)), "it comes before none of those that wait");
    desk.hellos.set_patience(Duration::ZERO);
    let told: Vec<_> = (0..2_000).flat_map(|_| desk.pass()).collect();
    assert!(told.len() == 1 && desk.hellos.is_empty(), "{told:?}");
}

#[test]
fn lines_take_turns_and_within_one_the_first_is_first() {
    let mut desk = Desk::handshakes(60_000);
    let [one, two] = ["one", "two"].map(|name| desk.tenant(name));
    let first = [desk.exhaust(one), desk.exhaust(two)];
    let ones = [(); 3].map(|()| desk.waits(one));
    let twos = [(); 3].map(|()| desk.waits(two));
    let all = [first[0], first[1], ones[0], twos[0], ones[1], twos[1], ones[2], twos[2]];
    assert_eq!(desk.go(8), all);
    assert!(desk.hellos.is_empty() && desk.hellos.lines.is_empty() && desk.hellos.claimants.is_empty());
    assert!(desk.hellos.order.is_empty() && desk.hellos.next_timeout(desk.now).is_none());
}

#[test]
fn one_whose_client_has_closed_takes_no_turn_and_is_charged_nothing() {
    let mut desk = Desk::handshakes(60_000);
    let [one, two] = ["one", "two"].map(|name| desk.tenant(name));
    let first = [desk.exhaust(one), desk.exhaust(two)];
    let last = [desk.waits(one), desk.waits(two)];
    desk.gone = vec![first[0], last[1]];
    let mut told = Vec::new();
    while !desk.hellos.is_empty() {
        told.extend(desk.pass());
    }
    assert_eq!(went_on(&told), [last[0], first[1]]);
    let gone: Vec<_> =
        told.iter().filter_map(|told| if let Output::Gone(at, _) = told { Some(*at) } else { None }).collect();
    assert_eq!(gone, [first[0], last[1]]);
    assert_eq!(desk.limiter.snapshot(desk.now).tenants.iter().map(|tenant| tenant.refused.hello).sum::<u64>(), 0);
}

#[test]
fn one_tenants_line_has_half_of_the_room_at_most_and_others_find_some() {
    let mut desk = Desk::handshakes(60_000);
    let [noisy, other] = ["noisy", "other"].map(|name| desk.tenant(name));
    desk.exhaust(other);
    desk.exhaust(noisy);
    let waits = (0..5_000).filter(|_| desk.arrive(noisy) == Arrival::Wait).count();
    assert!((2_040..=2_048).contains(&waits), "{waits}");
    desk.waits(other);
    assert!(matches!(desk.arrive(noisy), Arrival::Refuse(_)), "a full room refuses at once");
    // Fewer places, as when files run out.
    desk.hellos.set_places(64);
    assert!(matches!(desk.arrive(other), Arrival::Refuse(_)));
}

#[test]
fn made_up_names_have_the_room_and_the_turns_of_one_tenant() {
    let mut desk = Desk::new(NeighboursConfig::default(), 60_000);
    let (honest, names) = (desk.tenant("honest"), desk.made_up(100));
    let mut own = vec![desk.exhaust(honest)];
    for &name in &names {
        desk.exhaust(name);
    }
    own.extend((0..99).map(|_| desk.waits(honest)));
    desk.second.has_spare = true;
    let went = desk.go(100);
    let own = went[..100].iter().filter(|at| own.contains(at)).count();
    assert!((45..=55).contains(&own), "{own} of 100: every other one");

    let mut desk = Desk::handshakes(60_000);
    let names = desk.made_up(200);
    for &name in names.iter().cycle().take(10_000) {
        let _ = desk.arrive(name);
    }
    assert_eq!(desk.hellos.len(), Tuning::default().waiting_max / 2);
}

#[test]
fn time_to_spare_lets_go_on_what_only_the_cores_time_was_short_for() {
    let mut desk = Desk::new(NeighboursConfig::default(), 60_000);
    let noisy = desk.tenant("noisy");
    desk.second.has_spare = false;
    desk.exhaust(noisy);
    let more = [(); 20].map(|()| desk.waits(noisy));
    desk.turn();
    desk.second.has_spare = true;
    let went = went_on(&desk.turn());
    assert_eq!(went.len(), Tuning::default().looked_at, "no more in one turn");
    assert!(went.iter().all(|at| more.contains(at) || *at + 1 == more[0]));
}

#[test]
fn one_that_the_second_thread_has_no_room_for_waits_unless_it_is_owed() {
    let mut desk = Desk::new(NeighboursConfig::default(), 60_000);
    let [noisy, quiet] = ["noisy", "quiet"].map(|name| desk.tenant(name));
    for ms in 0..2_000 {
        desk.pass();
        if ms % 10 == 0 {
            let _ = desk.arrive(quiet);
        }
        for _ in 0..4 {
            let _ = desk.arrive(noisy);
        }
    }
    assert_eq!(desk.limiter.lane(noisy), Lane::Overflow);
    desk.second.is_full = true;
    let waiting = desk.hellos.len();
    assert!(waiting > 0);
    let went: usize = (0..50).map(|_| went_on(&desk.pass()).len()).sum();
    assert_eq!((went, desk.hellos.len()), (0, waiting), "it would be computed by a thread that has no room");
    assert!(matches!(desk.arrive(quiet), Arrival::Admit(_)));
    desk.second.is_full = false;
    assert!(!desk.go(1).is_empty());
}

#[test]
fn those_of_the_largest_claimant_give_up_their_files_first() {
    let mut desk = Desk::handshakes(60_000);
    let [few, many] = ["few", "many"].map(|name| desk.tenant(name));
    desk.exhaust(few);
    let first = desk.exhaust(many);
    let next = desk.waits(many);
    let largest = desk.hellos.largest().unwrap();
    let gone = [(); 3].map(|()| desk.hellos.give_up(largest, &mut desk.limiter, desk.now).map(|(at, ..)| at));
    assert_eq!(gone, [Some(first), Some(next), None]);
    assert_eq!((desk.hellos.len(), desk.hellos.order.len()), (1, 1));
    assert_eq!(desk.go(1).len(), 1);
    assert!(desk.hellos.largest().is_none());
}

#[test]
fn without_limits_those_that_wait_go_on() {
    let mut desk = Desk::handshakes(60_000);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    for _ in 0..100 {
        desk.waits(noisy);
    }
    let config = NeighboursConfig { mode: Mode::Off, ..NeighboursConfig::default() };
    desk.limiter.reconfigure(config, desk.now);
    assert!(matches!(desk.arrive(noisy), Arrival::Admit(_)));
    let turns = 101_usize.div_ceil(Tuning::default().looked_at);
    let told: Vec<_> = (0..turns).flat_map(|_| desk.turn()).collect();
    assert_eq!(went_on(&told).len(), 101);
    assert!(desk.hellos.is_empty());
}
