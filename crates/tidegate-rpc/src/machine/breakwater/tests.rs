//! The rules of the algorithm one by one, with numbers that fit in the head, and the laws that hold for any history.

use core::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Instant, Rng};

use super::{BreakwaterClient, BreakwaterServer, Config};
use crate::machine::shape::{
    Ask, CallId, Client, ClientOutput, Done, Grant, Outcome, Priority, Reply, Request, Server, SessionId, ShedReason,
    Signal, Step, Tenant, Ticket, Verdict,
};

const CALM: Signal = Signal { queueing_delay: Duration::ZERO };

fn late(us: u64) -> Signal {
    Signal { queueing_delay: Duration::from_micros(us) }
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

fn demand(demand: u32) -> Ask {
    Ask { demand, ..Ask::default() }
}

/// A server of one core with a whole credit of growth for each session and period, and its sessions.
fn server<const N: usize>(change: impl FnOnce(&mut Config)) -> (BreakwaterServer, [SessionId; N]) {
    let mut config = Config { increase: 1.0, ..Config::default() };
    change(&mut config);
    let mut server = BreakwaterServer::new(config, 1, at(0));
    let sessions = core::array::from_fn(|_| server.open(Tenant(0), at(0)).unwrap());
    (server, sessions)
}

fn admitted(server: &mut BreakwaterServer, session: SessionId, ask: Ask) -> Ticket {
    match server.on_request(session, &ask, CALM, at(0), at(0)) {
        Verdict::Admit(ticket) => ticket,
        Verdict::Shed(_, reason) => panic!("shed: {reason:?}"),
    }
}

fn call(server: &mut BreakwaterServer, session: SessionId, ask: Ask) -> u32 {
    let ticket = admitted(server, session, ask);
    server.on_done(ticket, Done::Served, at(0)).window
}

/// Ticks `times` times.
fn ticks(server: &mut BreakwaterServer, signal: Signal, times: u32) {
    for _ in 0..times {
        let now = server.next_timeout().expect("a session is open");
        server.on_timeout(signal, now);
    }
}

fn told(server: &mut BreakwaterServer) -> Vec<(SessionId, u32)> {
    core::iter::from_fn(|| server.poll_output()).map(|(session, grant)| (session, grant.window)).collect()
}

#[test]
fn the_pool_starts_at_the_cores_and_stays_within_its_bounds() {
    let (mut server, _) = server::<2>(|config| config.slots = 4);
    assert_eq!(server.pool(), 1);
    ticks(&mut server, CALM, 100);
    assert_eq!(server.pool(), 8, "slots x sessions");
    ticks(&mut server, late(100_000), 100);
    assert_eq!(server.pool(), 1, "cores");
}

#[test]
fn fractions_of_growth_are_carried_and_lost_in_overload() {
    let (mut server, _) = server::<3>(|config| config.increase = 0.25);
    let mut pools = |signal| {
        ticks(&mut server, signal, 1);
        server.pool()
    };
    assert_eq!([pools(CALM), pools(CALM), pools(CALM), pools(CALM)], [1, 2, 3, 4]);
    assert_eq!(pools(CALM), 4, "0.75 carried");
    assert_eq!(pools(late(80)), 4, "at the target the pool is not cut, but the carry is gone");
    assert_eq!([pools(CALM), pools(CALM)], [4, 5]);
}

#[test]
fn the_pool_shrinks_in_proportion_to_the_excess_and_at_most_to_half() {
    let (mut server, _) = server::<2>(|_| ());
    ticks(&mut server, CALM, 60);
    assert_eq!(server.pool(), 121);
    ticks(&mut server, late(160), 1);
    assert_eq!(server.pool(), 118, "121 x (1 - 0.02 x 1), rounded down");
    ticks(&mut server, late(80 * 1_000), 1);
    assert_eq!(server.pool(), 59);
}

#[test]
fn a_late_tick_moves_the_pool_once_and_an_early_one_not_at_all() {
    let (mut server, _) = server::<1>(|_| ());
    assert_eq!(server.next_timeout(), Some(at(10)));
    server.on_timeout(CALM, at(9));
    assert_eq!(server.pool(), 1);
    server.on_timeout(CALM, at(95));
    assert_eq!((server.pool(), server.next_timeout()), (2, Some(at(105))));
}

#[test]
fn without_sessions_there_are_no_ticks() {
    let (mut server, [only]) = server(|_| ());
    server.close(only, at(3));
    assert_eq!(server.next_timeout(), None);
    server.open(Tenant(0), at(7)).unwrap();
    assert_eq!(server.next_timeout(), Some(at(17)));
}

#[test]
fn a_window_is_what_runs_and_waits_and_a_share_of_what_is_open() {
    let (mut server, [busy, _, _]) = server(|_| ());
    ticks(&mut server, CALM, 3);
    assert_eq!((server.pool(), server.used()), (10, 0));
    // Demand 2, and 10 open credits over three sessions.
    assert_eq!(call(&mut server, busy, demand(2)), 5);
    // Open are 5: an over-commitment of one.
    let running = admitted(&mut server, busy, demand(1));
    assert_eq!(server.window(busy), Some(2), "a smaller demand takes effect at once");
    server.on_done(running, Done::Served, at(0));
    assert_eq!(server.window(busy), Some(1 + 8 / 3));
}

#[test]
fn a_window_grows_no_further_than_the_pool() {
    let (mut server, [first, second]) = server(|_| ());
    ticks(&mut server, CALM, 1);
    assert_eq!(server.pool(), 3);
    assert_eq!(call(&mut server, first, demand(9)), 3);
    assert_eq!(call(&mut server, second, demand(9)), 0, "nothing is open, and it had nothing");
}

#[test]
fn revocation_takes_one_credit_at_each_answer_but_never_what_runs() {
    let (mut server, [one, _]) = server(|_| ());
    ticks(&mut server, CALM, 4);
    assert_eq!((server.pool(), call(&mut server, one, demand(20))), (9, 9));
    ticks(&mut server, late(80_000), 3);
    assert_eq!((server.pool(), server.used()), (1, 9));
    assert_eq!([call(&mut server, one, demand(20)), call(&mut server, one, demand(20))], [8, 7]);
    let running: Vec<Ticket> = (0..7).map(|_| admitted(&mut server, one, demand(20))).collect();
    let windows: Vec<u32> = running.iter().map(|&ticket| server.on_done(ticket, Done::Served, at(0)).window).collect();
    assert_eq!(windows, [6, 5, 4, 3, 2, 1, 1], "the last credit is kept: it would have to be asked for");
}

/// Two sessions with a credit each, and a pool of one.
fn one_credit_too_many() -> (BreakwaterServer, [SessionId; 2]) {
    let (mut server, [first, second]) = server(|_| ());
    assert_eq!(call(&mut server, first, demand(0)), 1);
    assert_eq!(call(&mut server, second, demand(0)), 0);
    ticks(&mut server, CALM, 1);
    assert_eq!(told(&mut server), [(second, 1)]);
    ticks(&mut server, late(80_000), 1);
    assert_eq!((server.pool(), server.used()), (1, 2));
    (server, [first, second])
}

#[test]
fn the_last_credit_is_kept_unless_the_call_was_dropped_or_the_demand_is_exact() {
    let last = |ask: Ask, done: Done| {
        let (mut server, [first, _]) = one_credit_too_many();
        let ticket = admitted(&mut server, first, ask);
        server.on_done(ticket, done, at(0)).window
    };
    assert_eq!(last(demand(0), Done::Served), 1);
    assert_eq!(last(demand(0), Done::Shed), 0);
    assert_eq!(last(Ask { exact: true, ..demand(0) }, Done::Served), 0);
}

#[test]
fn as_few_sessions_as_cores_may_always_hold_their_share() {
    let mut server = BreakwaterServer::new(Config::default(), 8, at(0));
    let only = server.open(Tenant(0), at(0)).unwrap();
    let running = admitted(&mut server, only, demand(0));
    assert_eq!(server.on_done(running, Done::Served, at(0)).window, 8);
}

#[test]
fn a_window_is_below_the_slots_however_much_is_asked_for() {
    let (mut server, [greedy]) = server(|config| config.slots = 8);
    ticks(&mut server, CALM, 100);
    assert_eq!(server.pool(), 8);
    assert_eq!(call(&mut server, greedy, demand(u32::MAX)), 7);
}

#[test]
fn a_request_without_a_slot_is_shed_and_not_counted() {
    let (mut server, [greedy]) = server(|config| config.slots = 2);
    let running = [admitted(&mut server, greedy, demand(0)), admitted(&mut server, greedy, demand(0))];
    let Verdict::Shed(extra, ShedReason::ServerFull) = server.on_request(greedy, &demand(0), CALM, at(0), at(0)) else {
        panic!("it had no slot")
    };
    server.on_done(extra, Done::Shed, at(0));
    server.on_done(running[0], Done::Served, at(0));
    assert_eq!(server.window(greedy), Some(1), "one still runs");
}

#[test]
fn what_arrives_above_the_threshold_is_dropped_and_still_returns_its_window() {
    let (mut server, [one]) = server(|_| ());
    let Verdict::Admit(_) = server.on_request(one, &demand(0), late(159), at(0), at(0)) else { panic!("below") };
    let Verdict::Shed(ticket, ShedReason::Delay) = server.on_request(one, &demand(3), late(160), at(0), at(0)) else {
        panic!("at the threshold")
    };
    // One runs, three wait, but one credit is all there is: the rest is what it held.
    assert_eq!(server.on_done(ticket, Done::Shed, at(0)).window, 1);

    let (mut server, [one]) = self::server(|config| config.aqm = false);
    assert!(matches!(server.on_request(one, &demand(0), late(100_000), at(0), at(0)), Verdict::Admit(_)));
}

#[test]
fn drained_sessions_are_woken_oldest_first_with_a_credit_each() {
    let (mut server, [holder, second, third, fourth]) = server(|_| ());
    assert_eq!(call(&mut server, holder, demand(0)), 1);
    for session in [third, second, fourth] {
        assert_eq!(call(&mut server, session, demand(0)), 0);
    }
    assert_eq!(told(&mut server), []);
    // 0.5 credits for each of four sessions make two.
    server.config.increase = 0.5;
    ticks(&mut server, CALM, 1);
    assert_eq!(told(&mut server), [(third, 1), (second, 1)]);
    // A request takes the session off the list, so that it is not woken too.
    let running = admitted(&mut server, fourth, demand(0));
    ticks(&mut server, CALM, 1);
    assert_eq!(told(&mut server), []);
    assert_eq!(server.on_done(running, Done::Served, at(0)).window, 1);
}

#[test]
fn a_first_demand_is_answered_with_a_window_or_waits_for_one() {
    let (mut server, [first, second]) = server(|_| ());
    server.on_demand(first, &demand(1), at(0));
    assert_eq!(told(&mut server), [(first, 1)]);
    server.on_demand(second, &demand(1), at(0));
    assert_eq!(told(&mut server), [], "nothing is open");
    ticks(&mut server, CALM, 1);
    // Open was 2: one for the demand, one beyond it.
    assert_eq!(told(&mut server), [(second, 2)]);
    server.on_demand(second, &demand(4), at(0));
    assert_eq!(told(&mut server), [], "only a demand that rises from zero is answered");
}

#[test]
fn a_demand_taken_back_leaves_the_list_and_gives_its_credits_back() {
    let exact = |demand| Ask { demand, exact: true, ..Ask::default() };
    let (mut server, [first, second]) = server(|_| ());
    server.on_demand(first, &exact(1), at(0));
    assert_eq!((told(&mut server), server.used()), (vec![(first, 1)], 1));
    server.on_demand(second, &exact(1), at(0));
    server.on_demand(second, &exact(0), at(0));
    server.on_demand(first, &exact(0), at(0));
    assert_eq!(server.used(), 0);
    ticks(&mut server, CALM, 5);
    assert_eq!(told(&mut server), [], "nobody wants anything");
    server.on_demand(first, &exact(1), at(0));
    assert_eq!(told(&mut server), [(first, 1)]);
}

#[test]
fn a_cancelled_call_frees_its_slot_and_leaves_nobody_forgotten() {
    let (mut server, [first, second]) = server(|_| ());
    assert_eq!(call(&mut server, first, demand(0)), 1);
    let running = admitted(&mut server, second, demand(2));
    server.on_done(running, Done::Cancelled, at(0));
    assert_eq!((server.window(second), told(&mut server)), (Some(0), vec![]));
    ticks(&mut server, CALM, 1);
    assert_eq!(told(&mut server), [(second, 2)], "it was drained, and two credits are open");
}

#[test]
fn the_end_of_a_session_returns_its_credits_and_its_tickets_change_nothing() {
    let (mut server, [first, second]) = server(|_| ());
    assert_eq!(call(&mut server, first, demand(0)), 1);
    let running = admitted(&mut server, first, demand(0));
    server.close(first, at(0));
    assert_eq!(server.used(), 0);
    let again = server.open(Tenant(0), at(0)).unwrap();
    assert_eq!(again, first, "the slot is used again");
    assert_eq!(server.on_done(running, Done::Served, at(0)), Grant::default());
    assert_eq!((server.window(again), server.window(second)), (Some(0), Some(0)));
    server.close(again, at(0));
    server.close(again, at(0));
    assert_eq!(server.window(again), None);
}

#[test]
fn a_session_is_small() {
    const { assert!(super::server::SESSION_BYTES <= 64) };
    assert!(size_of::<BreakwaterClient>() <= 128, "{}", size_of::<BreakwaterClient>());
}

// The client.

fn client(change: impl FnOnce(&mut Config)) -> BreakwaterClient {
    let mut config = Config::default();
    change(&mut config);
    BreakwaterClient::new(&config, at(0))
}

fn wants(client: &mut BreakwaterClient, id: u64, now: Instant) -> Step {
    let request = Request { id: CallId(id), priority: Priority::DEFAULT, deadline: None };
    client.on_call(&request, now, &mut Rng::new(1))
}

fn window(window: u32) -> Grant {
    Grant { window, ..Grant::default() }
}

/// What a client wants done: `+id` sends with a demand, `-id` fails, `?` tells a demand.
fn done(client: &mut BreakwaterClient) -> Vec<String> {
    core::iter::from_fn(|| client.poll_output())
        .map(|output| match output {
            ClientOutput::Send(id, ask) => format!("+{} {}", id.0, ask.demand),
            ClientOutput::Fail(id, reason) => format!("-{} {reason:?}", id.0),
            ClientOutput::Demand(ask) => format!("? {}", ask.demand),
        })
        .collect()
}

fn reply(id: u64, grant: u32) -> Reply {
    Reply {
        id: CallId(id),
        outcome: Outcome::Served,
        grant: Some(window(grant)),
        response_time: Duration::ZERO,
        server_time: Duration::ZERO,
    }
}

#[test]
fn the_first_call_that_waits_asks_and_nothing_leaves_before_the_answer() {
    let mut client = client(|_| ());
    assert_eq!(wants(&mut client, 1, at(0)), Step::Wait);
    assert_eq!(done(&mut client), ["? 1"]);
    assert_eq!(wants(&mut client, 2, at(1)), Step::Wait);
    assert_eq!(done(&mut client), [""; 0], "it asks once");
    client.on_grant(&window(1), at(2));
    assert_eq!(done(&mut client), ["+1 1"]);
    client.on_reply(&reply(1, 3), at(3));
    assert_eq!(done(&mut client), ["+2 0"]);
    let Step::Send(ask) = wants(&mut client, 3, at(4)) else { panic!("the window is 3 and one is in flight") };
    assert!(ask.credited && !ask.exact && ask.demand == 0);
}

#[test]
fn a_call_waits_for_ten_microseconds_and_the_client_has_no_timer_without_one() {
    let mut client = client(|_| ());
    assert_eq!(client.next_timeout(), None);
    wants(&mut client, 1, at(5));
    done(&mut client);
    assert_eq!(client.next_timeout(), Some(at(15)));
    client.on_timeout(at(15));
    assert_eq!((done(&mut client), client.next_timeout()), (vec!["-1 Expired".to_owned()], None));
    // The credit that comes too late serves the next call.
    client.on_grant(&window(1), at(16));
    assert!(matches!(wants(&mut client, 2, at(17)), Step::Send(_)));
}

#[test]
fn the_oldest_of_too_many_gives_way() {
    let mut client = client(|config| config.queue_calls = 2);
    let mut all = Vec::new();
    for id in 1..=4 {
        assert_eq!(wants(&mut client, id, at(0)), Step::Wait);
        all.extend(done(&mut client));
    }
    assert_eq!(all, ["? 1", "-1 ClientFull", "-2 ClientFull"]);
}

#[test]
fn exact_demand_is_told_whenever_credit_is_gone_and_taken_back_when_it_expired() {
    let mut client = client(|config| config.exact_demand = true);
    wants(&mut client, 1, at(0));
    wants(&mut client, 2, at(0));
    assert_eq!(done(&mut client), ["? 2"]);
    client.on_grant(&window(1), at(1));
    assert_eq!(done(&mut client), ["+1 1"]);
    client.on_reply(&reply(1, 0), at(2));
    assert_eq!(done(&mut client), ["? 1"]);
    client.on_timeout(at(10));
    assert_eq!(done(&mut client), ["-2 Expired", "? 0"]);
    wants(&mut client, 3, at(11));
    assert_eq!(done(&mut client), ["? 1"]);
    client.on_cancel(CallId(3), at(12));
    assert_eq!(done(&mut client), ["? 0"]);
}

#[test]
fn a_cancelled_call_returns_its_credit() {
    let mut client = client(|_| ());
    client.on_grant(&window(1), at(0));
    assert!(matches!(wants(&mut client, 1, at(0)), Step::Send(_)));
    assert_eq!(wants(&mut client, 2, at(0)), Step::Wait);
    done(&mut client);
    client.on_grant(&window(1), at(1));
    client.on_cancel(CallId(1), at(1));
    assert_eq!(done(&mut client), ["+2 0"]);
    client.on_cancel(CallId(2), at(2));
    assert_eq!(client.used(), 0);
}

#[test]
fn a_lost_connection_fails_what_waits_and_voids_the_window() {
    let mut client = client(|_| ());
    client.on_grant(&window(1), at(0));
    wants(&mut client, 1, at(0));
    wants(&mut client, 2, at(0));
    client.on_lost(at(1));
    assert_eq!(done(&mut client), ["-2 Lost"]);
    assert_eq!((client.available(), client.used()), (0, 0));
    wants(&mut client, 3, at(2));
    assert_eq!(done(&mut client), ["? 1"], "the new connection is a new session");
}

/// What may happen to a server of a few sessions.
#[derive(Clone, Copy, Debug)]
enum Event {
    Open,
    Close(usize),
    Call(usize, u32, bool, u64),
    Done(usize, Done),
    Demand(usize, u32, bool),
    Tick(u64),
    Drain,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let done = prop_oneof![3 => Just(Done::Served), 1 => Just(Done::Shed), 1 => Just(Done::Cancelled)];
    let event = prop_oneof![
        2 => Just(Event::Open),
        1 => any::<usize>().prop_map(Event::Close),
        8 => (any::<usize>(), 0..20u32, any::<bool>(), 0..200u64).prop_map(|(s, d, e, l)| Event::Call(s, d, e, l)),
        8 => (any::<usize>(), done).prop_map(|(t, d)| Event::Done(t, d)),
        4 => (any::<usize>(), 0..20u32, any::<bool>()).prop_map(|(s, d, e)| Event::Demand(s, d, e)),
        6 => (0..400u64).prop_map(Event::Tick),
        3 => Just(Event::Drain),
    ];
    proptest::collection::vec(event, 1..300)
}

/// The server, and what a driver remembers.
struct World {
    server: BreakwaterServer,
    sessions: Vec<SessionId>,
    tickets: Vec<Ticket>,
}

impl World {
    fn play(&mut self, event: Event) {
        let Self { server, sessions, tickets } = self;
        let pick = |of: usize, len: usize| (len > 0).then(|| of % len);
        match event {
            Event::Open => sessions.extend(server.open(Tenant(0), at(0))),
            Event::Close(which) => {
                let Some(place) = pick(which, sessions.len()) else { return };
                let session = sessions.swap_remove(place);
                let (used, window) = (server.used(), server.window(session).unwrap());
                server.close(session, at(0));
                assert_eq!(server.used(), used - window);
            }
            Event::Call(which, waiting, exact, delay_us) => {
                let Some(place) = pick(which, sessions.len()) else { return };
                let ask = Ask { exact, ..demand(waiting) };
                match server.on_request(sessions[place], &ask, late(delay_us), at(0), at(0)) {
                    Verdict::Admit(ticket) => tickets.push(ticket),
                    Verdict::Shed(ticket, _) => drop(server.on_done(ticket, Done::Shed, at(0))),
                }
            }
            Event::Done(which, done) => {
                let Some(place) = pick(which, tickets.len()) else { return };
                server.on_done(tickets.swap_remove(place), done, at(0));
            }
            Event::Demand(which, waiting, exact) => {
                let Some(place) = pick(which, sessions.len()) else { return };
                server.on_demand(sessions[place], &Ask { exact, ..demand(waiting) }, at(0));
            }
            Event::Tick(delay_us) => {
                let Some(now) = server.next_timeout() else { return };
                server.on_timeout(late(delay_us), now);
            }
            Event::Drain => drop(told(server)),
        }
    }
}

proptest! {
    #[test]
    fn credits_are_conserved(events in events(), over_commitment: bool, slots in 2..65u32) {
        let config = Config { increase: 0.7, slots, max_sessions: 6, over_commitment, ..Config::default() };
        let server = BreakwaterServer::new(config, 2, at(0));
        let mut world = World { server, sessions: Vec::new(), tickets: Vec::new() };
        for event in events {
            world.play(event);
            let World { server, sessions, .. } = &mut world;
            let windows: Vec<u32> = sessions.iter().map(|&session| server.window(session).unwrap()).collect();
            prop_assert_eq!(windows.iter().sum::<u32>(), server.used());
            prop_assert!(windows.iter().all(|&window| window < slots));
            prop_assert!(server.pool() >= 2);
        }
        for session in core::mem::take(&mut world.sessions) {
            world.server.close(session, at(0));
        }
        prop_assert_eq!((world.server.used(), world.server.poll_output()), (0, None));
    }
}
