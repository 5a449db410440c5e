use super::super::neighbours::{Capacity, NeighboursConfig, Source};
use super::*;

const C: u64 = 1_000;

/// A thread's limiter and those who wait there, with a clock.
struct Desk {
    limiter: Neighbours,
    admission: Admission,
    now: Instant,
    costs: Costs,
}

impl Desk {
    fn new(config: NeighboursConfig, patience_ms: u64, costs: Costs) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let admission = Admission::new(Tuning::default(), Duration::from_millis(patience_ms), now);
        Self { limiter: Neighbours::new(config, now), admission, now, costs }
    }

    fn requests(patience_ms: u64) -> Self {
        let config = NeighboursConfig::default().with(Resource::Requests, Capacity::Fixed(C));
        Self::new(config, patience_ms, Costs::new().and(Resource::Requests, 1))
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
        self.admission.arrive(&mut self.limiter, tenant, &self.costs, self.now)
    }

    fn waits(&mut self, tenant: Tenant) -> Ticket {
        match self.arrive(tenant) {
            Arrival::Wait(ticket) => ticket,
            other => panic!("it should wait: {other:?}"),
        }
    }

    /// Uses up what the tenant can have now; the ticket of the first that waits.
    fn exhaust(&mut self, tenant: Tenant) -> Ticket {
        loop {
            if let Arrival::Wait(ticket) = self.arrive(tenant) {
                return ticket;
            }
        }
    }

    /// A millisecond passes; who went on or was refused meanwhile.
    fn pass(&mut self) -> Vec<Output> {
        self.now += Duration::from_millis(1);
        self.limiter.on_timeout(self.now);
        self.admission.turn(&mut self.limiter, self.now);
        self.told()
    }

    fn told(&mut self) -> Vec<Output> {
        core::iter::from_fn(|| self.admission.poll_output()).collect()
    }
}

fn went(told: &[Output]) -> Vec<Ticket> {
    told.iter().filter_map(|told| if let Output::Go(ticket, _) = told { Some(*ticket) } else { None }).collect()
}

#[test]
fn who_wants_more_than_its_share_gets_all_that_is_left_and_who_does_not_never_waits() {
    let mut desk = Desk::requests(1_000);
    let [quiet, noisy] = ["quiet", "noisy"].map(|name| desk.tenant(name));
    let (mut served, mut waited) = ([0_u64; 2], 0);
    for ms in 0..10_000 {
        let counts = ms >= 5_000;
        served[1] += u64::from(counts) * went(&desk.pass()).len() as u64;
        if ms % 5 == 0 {
            let admitted = matches!(desk.arrive(quiet), Arrival::Admit(_));
            served[0] += u64::from(counts && admitted);
            waited += u64::from(counts && !admitted);
        }
        // As with so many connections, each of which asks again when it is answered.
        while desk.admission.len() < 50 {
            if let Arrival::Admit(_) = desk.arrive(noisy) {
                served[1] += u64::from(counts);
            }
        }
    }
    assert_eq!((served[0], waited), (1_000, 0), "200 a second for 5 seconds");
    assert!((3_900..=4_050).contains(&served[1]), "{served:?}: all of the other 800 a second");
}

#[test]
fn who_waits_is_no_refusal_and_is_wanted_in_each_tick() {
    let mut desk = Desk::requests(60_000);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    for _ in 0..4_999 {
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
fn what_very_many_lines_want_is_counted_in_each_tick_a_few_lines_at_a_time() {
    let mut desk = Desk::requests(60_000);
    let names = desk.made_up(5_000);
    for &name in &names {
        while !matches!(desk.arrive(name), Arrival::Wait(_)) {}
    }
    let most = Tuning::default().looked_at;
    let counted = |desk: &Desk| {
        let ticked = desk.limiter.ticked();
        desk.admission.lines.values().filter(|line| line.ticked == ticked).count()
    };
    for _ in 0..20 {
        let ticked = desk.limiter.ticked();
        while desk.limiter.ticked() == ticked {
            desk.pass();
        }
        let mut before = counted(&desk);
        assert!(before <= 2 * most, "those whose count goes on, and those whose turn it is: {before}");
        // A tick has turns enough for all.
        for _ in 0..=5_000 / most {
            desk.pass();
            let now = counted(&desk);
            assert!(now <= before + 2 * most);
            before = now;
        }
        assert_eq!(before, desk.admission.lines.len());
    }
    let demand = |desk: &Desk| desk.limiter.snapshot(desk.now).tenants.iter().map(|one| one.resources[0].demand).sum();
    let demand: f64 = demand(&desk);
    // A tick that is longer for one than for another looks like a rise, and a rise is followed faster than a fall.
    assert!((9_000.0..14_000.0).contains(&demand), "1,000 that are shown want 10 a second each: {demand}");
}

#[test]
fn lines_come_and_go_while_they_are_counted() {
    let mut desk = Desk::requests(60_000);
    let names = desk.made_up(3_000);
    let mut rng = tidegate_core::Rng::new(5);
    let mut waiting = Vec::new();
    for _ in 0..500 {
        for _ in 0..100 {
            let name = names[usize::try_from(rng.below(3_000)).unwrap()];
            if let Arrival::Wait(ticket) = desk.arrive(name) {
                waiting.push(ticket);
            }
        }
        for _ in 0..60.min(waiting.len()) {
            let at = usize::try_from(rng.below(waiting.len() as u64)).unwrap();
            desk.admission.leave(waiting.swap_remove(at));
        }
        desk.pass();
        let Admission { all, lines, .. } = &desk.admission;
        assert_eq!(all.len(), lines.len());
        assert!(all.iter().enumerate().all(|(place, tenant)| lines[tenant].place == place));
    }
}

#[test]
fn who_waited_too_long_is_told_so_by_a_small_part_of_the_core() {
    let mut desk = Desk::requests(100);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    for _ in 0..8_000 {
        desk.waits(noisy);
    }
    let (mut refused, mut went_on) = (0, 0);
    for ms in 0..2_000 {
        let told = desk.pass();
        went_on += went(&told).len();
        let now = told.len() - went(&told).len();
        assert!(ms >= 99 || now == 0, "{ms} ms are not too long");
        refused += now;
    }
    // 1,000 in a second for 1.9 s, and what had come together before.
    assert!((1_800..=2_010).contains(&refused), "{refused}");
    assert!(went_on >= 1_900, "those who are still there are served: {went_on}");
}

#[test]
fn with_no_patience_all_is_refused_at_once() {
    let mut desk = Desk::requests(0);
    let noisy = desk.tenant("noisy");
    let refused = (0..2 * C).filter(|_| matches!(desk.arrive(noisy), Arrival::Refuse(_))).count();
    assert!(refused > 0 && desk.admission.is_empty());
}

#[test]
fn lines_take_turns_and_within_one_the_first_is_first() {
    let mut desk = Desk::requests(60_000);
    let [a, b] = ["a", "b"].map(|name| desk.tenant(name));
    let first = desk.exhaust(a);
    let mut tickets = [vec![first], Vec::new()];
    tickets[0].extend((0..99).map(|_| desk.waits(a)).collect::<Vec<_>>());
    let first = desk.exhaust(b);
    tickets[1].push(first);
    tickets[1].extend((0..99).map(|_| desk.waits(b)).collect::<Vec<_>>());
    let mut went_on = Vec::new();
    while went_on.len() < 100 {
        went_on.extend(went(&desk.pass()));
    }
    for tickets in &tickets {
        let own: Vec<_> = went_on.iter().filter(|ticket| tickets.contains(ticket)).collect();
        assert!(own.len() >= 30, "{} of 100", own.len());
        assert!(own.is_sorted());
    }
}

#[test]
fn who_has_gone_takes_no_turn_and_leaves_nothing_behind() {
    let mut desk = Desk::requests(60_000);
    let noisy = desk.tenant("noisy");
    let first = desk.exhaust(noisy);
    let stays = desk.waits(noisy);
    desk.admission.leave(first);
    for _ in 0..10_000 {
        let ticket = desk.waits(noisy);
        desk.admission.leave(ticket);
    }
    assert!(desk.admission.lines[&noisy].tickets.len() < 5);
    assert_eq!(desk.admission.lines[&noisy].wanted[Resource::Requests.index()], 1);
    let went_on: Vec<_> = (0..100).flat_map(|_| went(&desk.pass())).collect();
    assert_eq!(went_on, [stays]);
    assert!(desk.admission.is_empty());
    desk.pass();
    assert!(desk.admission.lines.is_empty() && desk.admission.order.is_empty());
}

#[test]
fn one_tenants_line_has_half_of_the_room_at_most_and_others_find_some() {
    let mut desk = Desk::requests(60_000);
    let [a, b] = ["a", "b"].map(|name| desk.tenant(name));
    let mut fill = |tenant| (0..20_000).filter(|_| matches!(desk.arrive(tenant), Arrival::Wait(_))).count();
    let most = Tuning::default().waiting_max;
    assert_eq!(fill(a), most / 2);
    assert_eq!(fill(b), most / 4);
    assert!(matches!(desk.arrive(a), Arrival::Refuse(_)));
}

#[test]
fn made_up_names_have_the_room_and_the_turns_of_one_tenant() {
    let time = Costs::new().and(Resource::EventTime, 50_000);
    let mut desk = Desk::new(NeighboursConfig::default(), 60_000, time);
    let (noisy, names) = (desk.tenant("noisy"), desk.made_up(100));
    let own = desk.exhaust(noisy);
    let mut tickets = vec![own];
    for &name in &names {
        desk.exhaust(name);
    }
    tickets.extend((0..99).map(|_| desk.waits(noisy)));
    let mut told = Vec::new();
    while told.len() < 100 {
        desk.admission.spare(&mut desk.limiter, desk.now);
        told.extend(went(&desk.told()));
    }
    let own = told.iter().filter(|ticket| tickets.contains(ticket)).count();
    assert!((45..=55).contains(&own), "{own} of 100: every other one");

    let mut desk = Desk::requests(60_000);
    let names = desk.made_up(1_000);
    for &name in names.iter().cycle().take(40_000) {
        let _ = desk.arrive(name);
    }
    assert_eq!(desk.admission.len(), Tuning::default().waiting_max / 2);
}

#[test]
fn a_core_that_is_idle_lets_go_on_what_only_its_time_was_short_for() {
    let time = Costs::new().and(Resource::EventTime, 50_000);
    let mut desk = Desk::new(NeighboursConfig::default(), 60_000, time);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    desk.waits(noisy);
    desk.waits(noisy);
    desk.admission.spare(&mut desk.limiter, desk.now);
    assert_eq!(desk.told().len(), 2, "a tenth of a millisecond");
    let fixed = NeighboursConfig::default().with(Resource::EventTime, Capacity::Fixed(500_000_000));
    let mut desk = Desk::new(fixed, 60_000, time);
    let noisy = desk.tenant("noisy");
    desk.exhaust(noisy);
    desk.admission.spare(&mut desk.limiter, desk.now);
    assert!(desk.told().is_empty(), "somebody said that there is no more");
}

#[test]
fn without_limits_those_who_wait_go_on() {
    for mode in [super::super::neighbours::Mode::Off, super::super::neighbours::Mode::Stats] {
        let mut desk = Desk::requests(60_000);
        let noisy = desk.tenant("noisy");
        desk.exhaust(noisy);
        for _ in 0..99 {
            desk.waits(noisy);
        }
        desk.limiter.reconfigure(NeighboursConfig { mode, ..desk.limiter.config().clone() }, desk.now);
        assert_eq!(went(&desk.pass()).len(), 100);
    }
}

/// A long body that asks for the next 256 KiB as soon as it has these, up to 1,000 times in a second.
struct Body {
    tenant: Tenant,
    waits: Option<Ticket>,
    parts: u64,
}

const PART: u64 = 256 << 10;

impl Body {
    fn new(tenant: Tenant) -> Self {
        Self { tenant, waits: None, parts: 0 }
    }

    /// A millisecond of the body's.
    fn step(&mut self, desk: &mut Desk) {
        if self.waits.is_some() {
            return;
        }
        let costs = Costs::new().and(Resource::EventTime, 100_000).and(Resource::NetworkBytes, PART);
        match desk.admission.go_on(&mut desk.limiter, self.tenant, &costs, desk.now) {
            Onward::Go => self.parts += 1,
            Onward::Wait(ticket) => self.waits = Some(ticket),
            Onward::Later => panic!("there is room"),
        }
    }

    fn told(&mut self, told: &[Output]) {
        if self.waits.is_some_and(|ticket| went(told).contains(&ticket)) {
            self.waits = None;
            self.parts += 1;
        }
    }
}

/// What a long body gets in five seconds of 100 MB/s beside a tenant that asks for so many answers of 100 kB each
/// second; and how many of these waited.
fn beside(answers_per_s: u64) -> (u64, u64) {
    let config = NeighboursConfig::default().with(Resource::NetworkBytes, Capacity::Fixed(100_000_000));
    let answer = Costs::new().and(Resource::Requests, 1).and(Resource::NetworkBytes, 100_000);
    let mut desk = Desk::new(config, 1_000, answer);
    let [quiet, noisy] = ["quiet", "noisy"].map(|name| desk.tenant(name));
    let (mut body, mut waited, mut before) = (Body::new(noisy), 0, 0);
    for ms in 0..10_000 {
        if ms == 5_000 {
            before = body.parts;
        }
        let told = desk.pass();
        body.told(&told);
        if answers_per_s > 0 && ms % (1_000 / answers_per_s) == 0 {
            waited += u64::from(!matches!(desk.arrive(quiet), Arrival::Admit(_)) && ms >= 5_000);
        }
        body.step(&mut desk);
    }
    ((body.parts - before) * PART, waited)
}

#[test]
fn a_long_body_has_what_the_others_leave_and_they_wait_for_nothing() {
    let (moved, waited) = beside(200);
    assert_eq!(waited, 0, "20 MB/s are less than the tenant's share");
    assert!((380_000_000..=410_000_000).contains(&moved), "{moved} of 400 MB");
}

#[test]
fn a_long_body_that_is_alone_has_all_there_is() {
    let (moved, _) = beside(0);
    assert!((480_000_000..=510_000_000).contains(&moved), "{moved} of 500 MB");
}

#[test]
fn a_body_is_never_told_that_it_waited_too_long_and_takes_turns_with_its_tenants_requests() {
    let mut desk = Desk::requests(10);
    let noisy = desk.tenant("noisy");
    let first = desk.exhaust(noisy);
    let costs = Costs::new().and(Resource::Requests, 50);
    let Onward::Wait(body) = desk.admission.go_on(&mut desk.limiter, noisy, &costs, desk.now) else {
        panic!("it is behind a request")
    };
    desk.now += Duration::from_millis(20);
    let mut all = Vec::new();
    for _ in 0..200 {
        all.extend(desk.pass());
    }
    assert!(matches!(all[..], [_, Output::Go(ticket, _)] if ticket == body), "{first} first: {all:?}");
}
