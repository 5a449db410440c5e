//! Tests of the pool.

use proptest::prelude::*;

use tidegate_core::Rng;

use super::*;
use crate::machine::upstream::Key;
use crate::machine::upstream::config::{Balance, PassiveConfig};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn config(servers: usize, max_connections: u32, max_pending: u32) -> PoolConfig {
    PoolConfig {
        servers: vec![ServerConfig { max_connections, ..ServerConfig::default() }; servers],
        balance: Balance::RoundRobin,
        max_pending,
        pending_timeout: Duration::from_millis(100),
        ..PoolConfig::default()
    }
}

struct Fixture {
    pool: Pool,
    rng: Rng,
}

impl Fixture {
    fn new(config: PoolConfig) -> Self {
        Self { pool: Pool::new(config, at(0)), rng: Rng::new(7) }
    }

    fn ask(&mut self, request: u64, ms: u64) -> Acquire {
        self.ask_as(Flow::http1(0), request, ms)
    }

    fn ask_as(&mut self, flow: Flow, request: u64, ms: u64) -> Acquire {
        self.pool.acquire(request, flow.into(), Tried::default(), || 1, &mut self.rng, at(ms))
    }

    fn end(&mut self, server: usize, ms: u64) -> Vec<Output> {
        self.end_as(Flow::http1(0), server, ms)
    }

    fn end_as(&mut self, flow: Flow, server: usize, ms: u64) -> Vec<Output> {
        self.pool.on_end(server, flow, &mut self.rng, at(ms));
        std::iter::from_fn(|| self.pool.poll_output()).collect()
    }

    fn time(&mut self, ms: u64) -> Vec<Output> {
        self.pool.on_timeout(&mut self.rng, at(ms));
        std::iter::from_fn(|| self.pool.poll_output()).collect()
    }

    /// Sends one request that fails, to wherever it goes.
    fn fail(&mut self, ms: u64) -> usize {
        let Acquire::Start(server) = self.ask(0, ms) else { panic!("a slot is free") };
        self.pool.on_failure(server, at(ms));
        self.end(server, ms);
        server
    }
}

#[test]
fn a_slot_that_frees_anywhere_starts_the_one_that_waits_longest() {
    let mut fixture = Fixture::new(config(2, 1, 2));
    assert_eq!((fixture.ask(1, 0), fixture.ask(2, 0)), (Acquire::Start(0), Acquire::Start(1)));
    assert_eq!((fixture.ask(3, 1), fixture.ask(4, 2)), (Acquire::Queued, Acquire::Queued));
    assert_eq!(fixture.ask(5, 3), Acquire::Refused(Refusal::QueueFull));
    let start = Output::Start { request: 3, server: 1, waited: Duration::from_millis(4), call: Call::default() };
    assert_eq!(fixture.end(1, 5), [start]);
}

#[test]
fn a_flow_that_floods_a_slow_server_delays_another_by_one_request() {
    let mut fixture = Fixture::new(config(1, 1, 4));
    for request in 0..5 {
        fixture.ask_as(Flow::http1(1), request, 0);
    }
    assert_eq!(fixture.ask_as(Flow::http1(1), 5, 1), Acquire::Refused(Refusal::QueueFull));
    assert_eq!(fixture.ask_as(Flow::http1(2), 6, 1), Acquire::Queued, "the longest flow makes room");
    let evicted = Output::Refused { request: 4, refusal: Refusal::QueueFull };
    assert_eq!(fixture.pool.poll_output(), Some(evicted));
    assert!(matches!(fixture.end(0, 2)[..], [Output::Start { request: 1, .. }]));
    assert!(matches!(fixture.end(0, 3)[..], [Output::Start { request: 6, .. }]));
    assert!(matches!(fixture.end(0, 4)[..], [Output::Start { request: 2, .. }]));
}

#[test]
fn nobody_waits_longer_than_he_may() {
    let mut fixture = Fixture::new(config(1, 1, 9));
    fixture.ask(1, 0);
    fixture.ask(2, 10);
    assert_eq!(fixture.pool.next_timeout(), Some(at(110)));
    assert_eq!(fixture.time(109), []);
    assert_eq!(fixture.time(110), [Output::Refused { request: 2, refusal: Refusal::TimedOut }]);
    assert_eq!(fixture.pool.next_timeout(), None);
}

#[test]
fn who_gave_up_waits_no_more() {
    let mut fixture = Fixture::new(config(1, 1, 9));
    fixture.ask(1, 0);
    fixture.ask(2, 0);
    assert!(fixture.pool.cancel(2) && !fixture.pool.cancel(2) && !fixture.pool.cancel(1));
    assert_eq!(fixture.end(0, 1), []);
}

#[test]
fn a_retry_goes_where_it_has_not_been() {
    let mut fixture = Fixture::new(config(3, 9, 9));
    let tried = Tried::default().and(0).and(2);
    for _ in 0..5 {
        assert_eq!(
            fixture.pool.acquire(1, Flow::http1(0).into(), tried, || 1, &mut fixture.rng, at(0)),
            Acquire::Start(1)
        );
    }
    let tried = tried.and(1);
    assert!(
        matches!(
            fixture.pool.acquire(1, Flow::http1(0).into(), tried, || 1, &mut fixture.rng, at(0)),
            Acquire::Start(_)
        ),
        "rather twice than never"
    );
}

#[test]
fn a_key_meets_its_server_and_the_next_one_when_that_is_full_down_or_tried() {
    let servers = (1..4).map(|id| ServerConfig { id, max_connections: 2, ..ServerConfig::default() }).collect();
    let mut fixture = Fixture::new(PoolConfig { servers, balance: Balance::Hash, ..config(3, 2, 9) });
    let asker = |key: &str| Asker { key: Some(Key::of(key.as_bytes())), ..Flow::http1(0).into() };
    let ask = |fixture: &mut Fixture, tried| {
        let Acquire::Start(server) = fixture.pool.acquire(0, asker("a"), tried, || 1, &mut fixture.rng, at(0)) else {
            panic!("a slot is free")
        };
        server
    };
    let home = ask(&mut fixture, Tried::default());
    assert_eq!(ask(&mut fixture, Tried::default()), home);
    let next = ask(&mut fixture, Tried::default());
    assert_ne!(next, home, "it is full");
    fixture.end(home, 0);
    assert_eq!(ask(&mut fixture, Tried::default()), home);
    fixture.end(home, 0);
    assert_eq!(ask(&mut fixture, Tried::default().and(home)), next, "it was tried");
    fixture.end(next, 0);
    fixture.pool.set_up(home, false, &mut fixture.rng, at(0));
    assert_eq!(ask(&mut fixture, Tried::default()), next, "it is down");
    fixture.end(next, 0);
    fixture.pool.set_up(home, true, &mut fixture.rng, at(0));
    assert_eq!(ask(&mut fixture, Tried::default()), home);
}

#[test]
fn a_server_that_is_down_gets_nothing_and_drops_nothing_that_runs() {
    let mut fixture = Fixture::new(config(2, 7, 9));
    let Acquire::Start(server) = fixture.ask(1, 0) else { panic!("a slot is free") };
    fixture.pool.set_up(server, false, &mut fixture.rng, at(0));
    assert!((0..7).all(|request| fixture.ask(request, 1) == Acquire::Start(1 - server)));
    assert_eq!(fixture.end(server, 2), []);
    fixture.pool.set_up(1 - server, false, &mut fixture.rng, at(3));
    assert_eq!(fixture.ask(1, 3), Acquire::Refused(Refusal::NoServer));
}

#[test]
fn those_who_wait_hear_at_once_that_the_last_server_went_down() {
    let mut fixture = Fixture::new(config(1, 1, 9));
    fixture.ask(1, 0);
    fixture.ask(2, 0);
    fixture.pool.set_up(0, false, &mut fixture.rng, at(1));
    assert_eq!(fixture.pool.poll_output(), Some(Output::Refused { request: 2, refusal: Refusal::NoServer }));
}

fn ejecting(servers: usize, max_ejected: f64) -> Fixture {
    let passive = PassiveConfig { failures: 2, max_ejected, ..PassiveConfig::default() };
    Fixture::new(PoolConfig { passive: Some(passive), ..config(servers, 9, 9) })
}

#[test]
fn at_most_the_stated_share_of_the_servers_is_ejected() {
    let mut fixture = ejecting(4, 0.5);
    for _ in 0..40 {
        fixture.fail(0);
    }
    assert_eq!(fixture.pool.servers(at(0)).filter(|server| server.ejected).count(), 2);
    let mut alone = ejecting(1, 0.5);
    assert!((0..10).all(|_| alone.fail(0) == 0), "the only server is never ejected");
}

#[test]
fn when_all_are_ejected_they_are_asked_all_the_same() {
    let mut fixture = ejecting(2, 1.0);
    for _ in 0..4 {
        fixture.fail(0);
    }
    assert!(fixture.pool.servers(at(0)).all(|server| server.ejected));
    assert!(matches!(fixture.ask(1, 0), Acquire::Start(_)));
}

#[test]
fn those_who_wait_start_when_an_ejection_ends() {
    let mut fixture = ejecting(2, 0.5);
    fixture.pool.config.pending_timeout = Duration::from_mins(1);
    while fixture.pool.servers(at(0)).all(|server| !server.ejected) {
        fixture.fail(0);
    }
    for request in 0..9 {
        assert!(matches!(fixture.ask(request, 1), Acquire::Start(_)));
    }
    assert_eq!(fixture.ask(9, 1), Acquire::Queued);
    assert_eq!(fixture.pool.next_timeout(), Some(at(10_000)));
    assert!(matches!(fixture.time(10_000)[..], [Output::Start { request: 9, .. }]));
}

#[test]
fn a_server_that_comes_back_starts_slowly() {
    let mut fixture = Fixture::new(PoolConfig { slow_start: Duration::from_secs(10), ..config(2, 10_000, 0) });
    fixture.pool.set_up(1, false, &mut fixture.rng, at(0));
    fixture.pool.set_up(1, true, &mut fixture.rng, at(1_000));
    let mut share = |ms| (0..1_000).filter(|_| fixture.ask(0, ms) == Acquire::Start(1)).count();
    assert!((40..60).contains(&share(1_000)), "a twentieth of the other's");
    assert!((325..340).contains(&share(6_000)), "half of the other's");
    assert!((495..505).contains(&share(11_000)), "its full share");
}

#[test]
fn a_server_that_comes_starts_slowly_beside_those_that_stay() {
    let slow = |servers| PoolConfig { slow_start: Duration::from_secs(10), ..config(servers, 10_000, 0) };
    let old = Fixture::new(slow(1));
    let mut new = Fixture::new(slow(2));
    new.pool.inherit(&old.pool, &[Some(0)], at(1_000));
    let mut share = |ms| (0..1_000).filter(|_| new.ask(0, ms) == Acquire::Start(1)).count();
    assert!((40..60).contains(&share(1_000)) && (495..505).contains(&share(11_000)));
    let mut other = Fixture::new(slow(2));
    other.pool.inherit(&old.pool, &[None], at(1_000));
    let share = (0..1_000).filter(|_| other.ask(0, 1_000) == Acquire::Start(1)).count();
    assert_eq!(share, 500, "where none stays, all are equal");
}

#[test]
fn a_reload_keeps_what_is_known_of_a_server() {
    let mut old = Fixture::new(config(2, 9, 9));
    old.pool.set_up(1, false, &mut old.rng, at(0));
    let mut new = Fixture::new(config(3, 9, 9));
    new.pool.inherit(&old.pool, &[None, Some(0)], at(0));
    assert_eq!(new.pool.servers(at(0)).map(|server| server.up).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn a_reload_forgets_neither_what_is_under_way_nor_totals_nor_spent_retries() {
    let mut old = Fixture::new(config(1, 2, 9));
    assert_eq!((old.ask(1, 0), old.ask(2, 0), old.ask(3, 0)), (Acquire::Start(0), Acquire::Start(0), Acquire::Queued));
    while old.pool.try_retry(Flow::http1(0), at(0)) {}
    let mut new = Fixture::new(config(2, 2, 9));
    new.pool.inherit(&old.pool, &[Some(1)], at(0));
    assert!(!new.pool.try_retry(Flow::http1(0), at(0)) && new.pool.retries() == old.pool.retries());
    let figures =
        |new: &Fixture| new.pool.servers(at(0)).map(|server| (server.active, server.requests)).collect::<Vec<_>>();
    assert_eq!(figures(&new), [(0, 0), (2, 2)]);
    assert_eq!((new.ask(4, 1), new.ask(5, 1), new.ask(6, 1)), (Acquire::Start(0), Acquire::Start(0), Acquire::Queued));
    // The slot that frees is for him who waits longest, at the pool of before.
    assert!(matches!(old.end(0, 2)[..], [Output::Start { request: 3, server: 0, .. }]));
    new.pool.on_inherited_start(Some(1), Flow::http1(0));
    new.pool.on_inherited_end(Some(1), Flow::http1(0), &mut new.rng, at(2));
    assert_eq!((new.pool.poll_output(), figures(&new)), (None, vec![(2, 2), (2, 3)]));
    new.pool.on_inherited_end(Some(1), Flow::http1(0), &mut new.rng, at(3));
    assert!(matches!(new.pool.poll_output(), Some(Output::Start { request: 6, server: 1, .. })));
    // One end too many, of a server that was gone in between, takes no slot away from others.
    new.pool.on_inherited_end(Some(1), Flow::http1(0), &mut new.rng, at(4));
    new.pool.on_inherited_end(Some(1), Flow::http1(0), &mut new.rng, at(4));
    assert_eq!(figures(&new), [(2, 2), (1, 4)]);
}

#[test]
fn who_does_not_let_go_leaves_an_eighth_to_others() {
    let mut fixture = Fixture::new(config(2, 8, 100));
    let greedy: Vec<_> = (0..20).map(|request| fixture.ask_as(Flow::http1(1), request, 0)).collect();
    assert_eq!(greedy.iter().filter(|answer| matches!(answer, Acquire::Start(_))).count(), 14);
    // Others start at once, though six of the first one wait; and they share what is kept.
    assert!(matches!(fixture.ask_as(Flow::http1(2), 20, 0), Acquire::Start(_)));
    assert!(matches!(fixture.ask_as(Flow::http1(3), 21, 0), Acquire::Start(_)));
    assert_eq!(fixture.ask_as(Flow::http1(4), 22, 0), Acquire::Queued, "there is no slot at all");
    // A slot that the first one gives back is for those who have less.
    let Acquire::Start(server) = greedy[0] else { panic!("the first one started") };
    let started = fixture.end_as(Flow::http1(1), server, 1);
    assert_eq!(
        started,
        [Output::Start { request: 22, server, waited: Duration::from_millis(1), call: Call::default() }]
    );
}

#[test]
fn names_that_one_source_makes_up_have_the_slots_of_one_tenant() {
    let mut fixture = Fixture::new(config(2, 8, 100));
    let started = |answers: Vec<Acquire>| answers.iter().filter(|answer| matches!(answer, Acquire::Start(_))).count();
    let loud = (0..20).map(|request| fixture.ask_as(Flow::made_up(1, 1), request, 0)).collect();
    assert_eq!(started(loud), 12, "an eighth is for other names, and one for other claimants");
    let others = (20_u32..40).map(|name| fixture.ask_as(Flow::made_up(1, name), name.into(), 0)).collect();
    assert_eq!(started(others), 2);
    assert!(matches!(fixture.ask_as(Flow::http1(2), 40, 0), Acquire::Start(_)));
    // They have one turn together.
    fixture.ask_as(Flow::http1(2), 41, 0);
    fixture.ask_as(Flow::http1(2), 42, 0);
    let Some(Output::Start { request: first, .. }) = fixture.end_as(Flow::made_up(1, 1), 0, 1).pop() else {
        panic!("a slot is free")
    };
    assert_eq!(first, 42, "and hold more than their part");
}

#[test]
fn names_that_one_source_makes_up_fill_no_queue() {
    let mut fixture = Fixture::new(config(1, 1, 4));
    for name in 0..5 {
        fixture.ask_as(Flow::made_up(1, name), name.into(), 0);
    }
    assert_eq!(fixture.ask_as(Flow::made_up(1, 5), 5, 1), Acquire::Refused(Refusal::QueueFull));
    assert_eq!(fixture.ask_as(Flow::http1(2), 6, 1), Acquire::Queued, "one of theirs makes room");
    let evicted = fixture.pool.poll_output();
    assert!(matches!(evicted, Some(Output::Refused { refusal: Refusal::QueueFull, .. })), "{evicted:?}");
    assert!(matches!(fixture.end_as(Flow::made_up(1, 0), 0, 2)[..], [Output::Start { request: 1, .. }]));
    assert!(matches!(fixture.end_as(Flow::made_up(1, 1), 0, 3)[..], [Output::Start { request: 6, .. }]));
}

#[test]
fn streams_have_their_part_and_share_it() {
    let settings = PoolConfig { max_streams: 8, ..config(1, 32, 100) };
    let mut fixture = Fixture::new(settings);
    let stream = |tenant| Flow { is_stream: true, ..Flow::http1(tenant) };
    let greedy: Vec<_> = (0..20).map(|request| fixture.ask_as(stream(1), request, 0)).collect();
    assert_eq!(greedy.iter().filter(|answer| matches!(answer, Acquire::Start(_))).count(), 7);
    assert!(matches!(fixture.ask_as(stream(2), 20, 0), Acquire::Start(_)), "the eighth is kept for it");
    assert_eq!(fixture.ask_as(stream(3), 21, 0), Acquire::Queued, "there is no slot for streams");
    for request in 22..26 {
        assert!(
            matches!(fixture.ask_as(Flow::http1(1), request, 0), Acquire::Start(_)),
            "others do not wait behind them"
        );
    }
    assert_eq!(fixture.end_as(Flow::http1(1), 0, 1), [], "not theirs");
    let started = fixture.end_as(stream(1), 0, 2);
    assert_eq!(
        started,
        [Output::Start { request: 21, server: 0, waited: Duration::from_millis(2), call: Call::default() }]
    );
}

proptest! {
    #[test]
    fn slots_are_kept_and_nobody_is_lost(
        steps in proptest::collection::vec((0u8..6, 0u64..30, any::<bool>()), 1..300),
        servers in 1usize..4,
        max_connections in 1u32..4,
        max_pending in 0u32..6,
        least_loaded in any::<bool>(),
    ) {
        let balance = if least_loaded { Balance::LeastLoaded } else { Balance::RoundRobin };
        let mut fixture = Fixture::new(PoolConfig { balance, ..config(servers, max_connections, max_pending) });
        let (mut now, mut running, mut waiting) = (0, Vec::new(), [Vec::new(), Vec::new()]);
        let flow_of = |request: u64| usize::from(request.is_multiple_of(3));
        for (request, (step, value, flag)) in (0u64..).zip(steps) {
            now += value;
            let some = usize::try_from(value).unwrap();
            match step {
                0..=2 => match fixture.ask_as(Flow::http1(u32::from(request.is_multiple_of(3))), request, now) {
                    Acquire::Start(server) => running.push((request, server)),
                    Acquire::Queued => waiting[flow_of(request)].push(request),
                    Acquire::Refused(Refusal::QueueFull) => {
                        prop_assert_eq!(fixture.pool.pending(), max_pending as usize);
                    }
                    Acquire::Refused(refusal) => prop_assert_eq!(refusal, Refusal::NoServer),
                },
                3 if !running.is_empty() => {
                    let (request, server) = running.swap_remove(some % running.len());
                    if flag {
                        fixture.pool.on_success(server);
                    } else {
                        fixture.pool.on_failure(server, at(now));
                    }
                    let flow = Flow::http1(u32::from(request.is_multiple_of(3)));
                    fixture.pool.on_end(server, flow, &mut fixture.rng, at(now));
                }
                4 => fixture.pool.set_up(some % servers, flag, &mut fixture.rng, at(now)),
                _ => fixture.pool.on_timeout(&mut fixture.rng, at(now)),
            }
            while let Some(output) = fixture.pool.poll_output() {
                let (Output::Start { request, .. } | Output::Refused { request, .. }) = output;
                let flow = &mut waiting[flow_of(request)];
                let evicted = matches!(output, Output::Refused { refusal: Refusal::QueueFull, .. });
                let left = if evicted { flow.pop() } else { Some(flow.remove(0)) };
                prop_assert_eq!(left, Some(request), "first come, first served within a flow");
                if let Output::Start { request, server, .. } = output {
                    running.push((request, server));
                }
            }
            let pending = waiting[0].len() + waiting[1].len();
            prop_assert!(fixture.pool.pending() == pending && pending <= max_pending as usize);
            for (place, server) in fixture.pool.servers(at(now)).enumerate() {
                let under_way = running.iter().filter(|(_, at)| *at == place).count();
                prop_assert!(server.active as usize == under_way && server.active <= max_connections);
            }
            prop_assert!(pending == 0 || fixture.pool.next_timeout().is_some_and(|timeout| timeout > at(now)));
        }
    }
}
