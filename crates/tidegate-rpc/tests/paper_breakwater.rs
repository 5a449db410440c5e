//! What the Breakwater paper (OSDI 2020) says of its algorithm, as far as the machines alone can show it.
//!
//! Figures of a whole plant, such as goodput and convergence, are the lab's.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::breakwater::{BreakwaterClient, BreakwaterServer, Config};
use tidegate_rpc::machine::{
    Ask, CallId, Client, ClientOutput, Done, Grant, Outcome, Priority, Reply, Request, Server, SessionId, ShedReason,
    Signal, Step, Tenant, Verdict,
};

const ROUND_TRIP: Duration = Duration::from_micros(10);
const CALM: Signal = Signal { queueing_delay: Duration::ZERO };

fn late(us: u64) -> Signal {
    Signal { queueing_delay: Duration::from_micros(us) }
}

fn server_with(sessions: u32, config: Config) -> (BreakwaterServer, Vec<SessionId>) {
    let mut server = BreakwaterServer::new(config, 8, Instant::ZERO);
    let open = (0..sessions).map(|_| server.open(Tenant(0), Instant::ZERO).expect("there is room")).collect();
    (server, open)
}

fn tick(server: &mut BreakwaterServer, signal: Signal) {
    let now = server.next_timeout().expect("sessions are open");
    server.on_timeout(signal, now);
}

/// A call of a session that runs at once, and the window in its answer.
fn call(server: &mut BreakwaterServer, session: SessionId, demand: u32) -> u32 {
    let ask = Ask { demand, ..Ask::default() };
    let now = Instant::ZERO;
    match server.on_request(session, &ask, CALM, now, now) {
        Verdict::Admit(ticket) => server.on_done(ticket, Done::Served, now).window,
        Verdict::Shed(_, reason) => panic!("shed: {reason:?}"),
    }
}

/// "Credits are added in proportion to the number of clients, a = 0.1 %": once per round trip.
#[test]
fn the_pool_grows_by_a_thousandth_of_the_clients_per_round_trip() {
    for clients in [10, 1_000, 10_000] {
        let (mut server, _) = server_with(clients, Config::default());
        let (started, pool) = (server.next_timeout().unwrap(), server.pool());
        (0..1_000).for_each(|_| tick(&mut server, CALM));
        let (periods, grown) = (1_000, server.pool() - pool);
        assert_eq!(server.next_timeout().unwrap().since(started), ROUND_TRIP * periods);
        // A sum of thousandths, rounded as sums of fractions are.
        assert!(grown.abs_diff(clients) <= 1, "{grown} for {clients} clients");
    }
}

/// "Credits are cut in proportion to the severity of the overload", by b = 2 % of the relative excess.
#[test]
fn the_pool_is_cut_in_proportion_to_the_excess_and_never_by_more_than_half() {
    let after = |signal| {
        let (mut server, _) = server_with(10_000, Config::default());
        (0..1_000).for_each(|_| tick(&mut server, CALM));
        let before = server.pool();
        tick(&mut server, signal);
        f64::from(server.pool()) / f64::from(before)
    };
    let expected = [(80, 1.0), (120, 0.99), (160, 0.98), (80 * 11, 0.8), (80 * 26, 0.5), (1_000_000, 0.5)];
    for (delay_us, left) in expected {
        let found = after(late(delay_us));
        assert!((found - left).abs() < 1e-3, "{found} of the pool at {delay_us} us, not {left}");
    }
}

/// "Over-commitment": what is open is shared, so that a client may hold more than it asked for, at least one.
#[test]
fn a_client_without_demand_keeps_a_credit_for_its_next_call() {
    let (mut server, sessions) = server_with(100, Config::default());
    let windows: Vec<u32> = sessions.iter().map(|&session| call(&mut server, session, 0)).collect();
    assert_eq!(windows.iter().sum::<u32>(), server.pool(), "a credit each, as far as the pool goes");
    assert!(windows.iter().all(|&window| window <= 1));

    let (mut server, sessions) = server_with(2, Config { increase: 1.0, ..Config::default() });
    (0..6).for_each(|_| tick(&mut server, CALM));
    assert_eq!(server.pool(), 20);
    assert_eq!(call(&mut server, sessions[0], 3), 13, "three for its demand, and half of twenty");
}

/// "Credits are revoked lazily": a cut pool costs nobody a message.
#[test]
fn a_cut_pool_takes_credits_back_as_clients_speak_without_extra_messages() {
    let (mut server, sessions) = server_with(4, Config { increase: 1.0, ..Config::default() });
    (0..30).for_each(|_| tick(&mut server, CALM));
    for &session in &sessions {
        call(&mut server, session, 200);
    }
    let held = server.used();
    (0..10).for_each(|_| tick(&mut server, late(8_000)));
    assert_eq!((server.pool(), server.used()), (8, held), "the cut itself takes nothing");
    let mut answers = 0;
    while server.used() > server.pool() {
        for &session in &sessions {
            call(&mut server, session, 200);
            answers += 1;
        }
        assert!(answers <= 10 * held, "it takes an answer for each credit, not for ever");
    }
    assert!(answers >= held - server.pool(), "one credit for each answer");
    assert_eq!(server.poll_output(), None);
}

/// "A request that waits for longer than a round trip is failed by its client": the caller learns early.
#[test]
fn a_call_without_credit_fails_at_its_client_after_one_round_trip() {
    let mut client = BreakwaterClient::new(&Config::default(), Instant::ZERO);
    let now = Instant::from_nanos(1_000_000);
    let request = Request { id: CallId(1), priority: Priority::DEFAULT, deadline: None };
    assert_eq!(client.on_call(&request, now, &mut Rng::new(1)), Step::Wait);
    assert!(matches!(client.poll_output(), Some(ClientOutput::Demand(_))));
    let due = client.next_timeout().unwrap();
    assert_eq!(due, now + ROUND_TRIP);
    client.on_timeout(due);
    assert_eq!(client.poll_output(), Some(ClientOutput::Fail(CallId(1), ShedReason::Expired)));
}

/// "Active queue management": the threshold is twice the target, and a drop is told at once.
#[test]
fn requests_are_dropped_at_twice_the_target() {
    for target_us in [45, 80, 500] {
        let (mut server, sessions) = server_with(1, Config::with_target(target_us));
        let now = Instant::ZERO;
        let mut verdict = |us| server.on_request(sessions[0], &Ask::default(), late(us), now, now);
        assert!(matches!(verdict(2 * target_us - 1), Verdict::Admit(_)));
        assert!(matches!(verdict(2 * target_us), Verdict::Shed(_, ShedReason::Delay)));
    }
}

/// "Demand information is piggybacked": a client that keeps calling needs no message of its own after its first.
#[test]
fn a_busy_client_asks_once() {
    let (mut server, sessions) = server_with(1, Config::default());
    let mut client = BreakwaterClient::new(&Config::default(), Instant::ZERO);
    let (mut rng, mut asked, mut answered) = (Rng::new(1), 0, 0);
    let mut wire = VecDeque::new();
    for id in 0..10_000 {
        let now = Instant::from_nanos(id * 4_000);
        let request = Request { id: CallId(id), priority: Priority::DEFAULT, deadline: None };
        if let Step::Send(ask) = client.on_call(&request, now, &mut rng) {
            wire.push_back(ask);
        }
        loop {
            match client.poll_output() {
                Some(ClientOutput::Send(_, ask)) => wire.push_back(ask),
                Some(ClientOutput::Demand(ask)) => {
                    asked += 1;
                    server.on_demand(sessions[0], &ask, now);
                    if let Some((_, grant)) = server.poll_output() {
                        client.on_grant(&grant, now);
                    }
                }
                Some(ClientOutput::Fail(..)) => {}
                None => break,
            }
        }
        while let Some(ask) = wire.pop_front() {
            let Verdict::Admit(ticket) = server.on_request(sessions[0], &ask, CALM, now, now) else { panic!("calm") };
            let grant: Grant = server.on_done(ticket, Done::Served, now);
            let reply = Reply {
                id: CallId(id),
                outcome: Outcome::Served,
                grant: Some(grant),
                response_time: ROUND_TRIP,
                server_time: Duration::ZERO,
            };
            client.on_reply(&reply, now);
            answered += 1;
        }
    }
    assert_eq!((asked, answered), (1, 10_000));
}
