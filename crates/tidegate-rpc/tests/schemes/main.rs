//! What users of any scheme rely on, seen through the public types only.

mod plant;

use std::time::Duration;

use plant::{Plant, Setup, Totals};
use tidegate_core::{Instant, Rng};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::machine::any::{AnyClient, AnyServer};
use tidegate_rpc::machine::dagor::{self, DagorClient, DagorServer};
use tidegate_rpc::machine::probing::{CLOSED, OPEN, ProbingClient};
use tidegate_rpc::machine::seda::{self, SedaClient};
use tidegate_rpc::machine::static_limit::{self, StaticLimitServer};
use tidegate_rpc::machine::{
    Ask, CallId, Client, ClientOutput, Done, Grant, Outcome, Priority, Reply, Request, Server, ShedReason, Signal,
    Step, Tenant, Ticket, Verdict, aqm, breakwater, client_rate, probing,
};

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

fn late(us: u64) -> Signal {
    Signal { queueing_delay: Duration::from_micros(us) }
}

fn wants(client: &mut impl Client, id: u64, now: Instant) -> Step {
    let request = Request { id: CallId(id), priority: Priority::DEFAULT, deadline: None };
    client.on_call(&request, now, &mut Rng::new(id))
}

fn reply(response_us: u64, level: u32) -> Reply {
    Reply {
        id: CallId(0),
        outcome: Outcome::Served,
        grant: Some(Grant { level, ..Grant::default() }),
        response_time: Duration::from_micros(response_us),
        server_time: Duration::ZERO,
    }
}

fn server(scheme: &Scheme) -> AnyServer {
    scheme.server(8, at(0))
}

fn client(scheme: &Scheme) -> AnyClient {
    scheme.client(Tenant(0), at(0), &mut Rng::new(1))
}

const CROWD: Setup = Setup { clients: 40, cores: 4, load: 1.0, length: Duration::from_millis(20), trouble_every: 0 };

#[test]
fn every_call_ends_exactly_once_under_every_scheme() {
    for name in Scheme::NAMES {
        for (seed, load) in [(1, 0.3), (2, 1.2), (3, 4.0)] {
            let scheme = Scheme::named(name).unwrap();
            // Without control all that came is served in the end, which takes as many times longer.
            let length = Duration::from_millis(3);
            let totals = Plant::new(scheme, Setup { load, length, ..CROWD }, seed).run();
            let Totals { called, served, shed, failed, .. } = totals;
            assert_eq!(served + shed + failed, called, "{name}: {totals:?}");
            assert!(called > 250, "{name}: {totals:?}");
        }
    }
}

#[test]
fn cancelled_calls_and_lost_connections_leave_nobody_behind() {
    for name in Scheme::NAMES {
        let setup = Setup { load: 2.0, length: Duration::from_millis(3), trouble_every: 7, ..CROWD };
        let totals = Plant::new(Scheme::named(name).unwrap(), setup, 4).run();
        assert!(totals.cancelled > 0, "{name}: {totals:?}");
        let Totals { called, served, shed, failed, cancelled, lost, .. } = totals;
        assert_eq!(served + shed + failed + cancelled + lost, called, "{name}");
    }
}

#[test]
fn breakwater_serves_its_capacity_at_twice_the_load_with_every_ablation() {
    let full = breakwater::Config { increase: 0.1, ..breakwater::Config::default() };
    let alone = full.credits_alone(Duration::from_micros(200));
    for config in [full, full.without_aqm(), alone] {
        let totals = Plant::new(Scheme::Breakwater(config), Setup { load: 2.0, ..CROWD }, 5).run();
        let capacity = 4 * 100 * 20;
        assert!(totals.served > capacity * 8 / 10, "{totals:?} with {config:?}");
        assert!(totals.served < capacity * 11 / 10, "{totals:?} with {config:?}");
    }
}

#[test]
fn breakwater_goes_on_after_cancellations_and_lost_connections() {
    let full = breakwater::Config { increase: 0.1, ..breakwater::Config::default() };
    for config in [full, full.credits_alone(Duration::from_micros(200))] {
        let totals = Plant::new(Scheme::Breakwater(config), Setup { trouble_every: 5, ..CROWD }, 6).run();
        // A tenth is cancelled, another lost, and each connection starts without credit.
        assert!(totals.served * 10 > totals.called * 6, "nobody starves: {totals:?}");
    }
}

#[test]
fn exact_demand_comes_too_late_for_an_expiry_of_one_round_trip() {
    let full = breakwater::Config { increase: 0.1, ..breakwater::Config::default() };
    let exact = breakwater::Config { exact_demand: true, ..full };
    let [speculative, exact] = [full, exact].map(|config| Plant::new(Scheme::Breakwater(config), CROWD, 6).run());
    assert!(speculative.failed * 20 < speculative.called, "{speculative:?}");
    assert!(exact.failed * 20 > exact.called * 8, "{exact:?}");
    assert!(exact.extra_messages > 50 * speculative.extra_messages);
}

#[test]
fn without_control_all_is_sent_and_admitted() {
    let scheme = Scheme::named("none").unwrap();
    let (mut client, mut server) = (client(&scheme), server(&scheme));
    let Step::Send(ask) = wants(&mut client, 1, at(0)) else { panic!("all is sent") };
    let session = server.open(Tenant(0), at(0)).unwrap();
    assert!(matches!(server.on_request(session, &ask, late(1_000_000), at(0), at(0)), Verdict::Admit(_)));
    assert_eq!((client.next_timeout(), server.next_timeout()), (None, None));
}

#[test]
fn the_delay_decides_alone_in_the_first_strawman() {
    let mut server = server(&Scheme::Aqm(aqm::Config { drop_delay_us: 50, ..aqm::Config::default() }));
    let session = server.open(Tenant(0), at(0)).unwrap();
    let mut verdict = |us| server.on_request(session, &Ask::default(), late(us), at(0), at(0));
    assert!(matches!(verdict(49), Verdict::Admit(_)));
    assert!(matches!(verdict(50), Verdict::Shed(_, ShedReason::Delay)));
}

#[test]
fn a_static_limit_counts_what_is_inside() {
    let config = static_limit::Config { limit: 2, ..static_limit::Config::default() };
    let mut server = StaticLimitServer::new(config);
    let [here, there] = [(); 2].map(|()| server.open(Tenant(0), at(0)).unwrap());
    let mut tickets: Vec<Ticket> = Vec::new();
    let mut arrive = |server: &mut StaticLimitServer, session| {
        match server.on_request(session, &Ask::default(), late(0), at(0), at(0)) {
            Verdict::Admit(ticket) => tickets.push(ticket),
            Verdict::Shed(ticket, reason) => {
                assert_eq!(reason, ShedReason::ServerFull);
                server.on_done(ticket, Done::Shed, at(0));
            }
        }
        server.in_flight()
    };
    assert_eq!([here, there, here].map(|session| arrive(&mut server, session)), [1, 2, 2]);
    server.on_done(tickets[0], Done::Cancelled, at(0));
    assert_eq!(server.in_flight(), 1);
    server.close(there, at(0));
    assert_eq!(server.in_flight(), 0, "its caller is gone");
    server.on_done(tickets[1], Done::Served, at(0));
    assert_eq!(server.in_flight(), 0);
}

#[test]
fn a_fixed_rate_is_kept_however_many_calls_come() {
    let config = client_rate::Config { rate_per_s: 1_000.0, ..client_rate::Config::default() };
    let mut client = client(&Scheme::ClientRate(config));
    let (mut sent, mut failed) = (0, 0);
    for id in 0..100_000 {
        let now = at(id * 10);
        if client.next_timeout().is_some_and(|due| due <= now) {
            client.on_timeout(now);
        }
        match wants(&mut client, id, now) {
            Step::Send(_) => sent += 1,
            Step::Wait => {}
            Step::Fail(reason) => {
                assert_eq!(reason, ShedReason::ClientFull);
                failed += 1;
            }
        }
        while let Some(output) = client.poll_output() {
            match output {
                ClientOutput::Send(..) => sent += 1,
                ClientOutput::Fail(..) => failed += 1,
                ClientOutput::Demand(_) => panic!("it tells nobody"),
            }
        }
    }
    // A second at 1,000 per second: the burst never filled.
    assert!((999..=1_000).contains(&sent), "{sent}");
    assert!(failed > 98_000);
}

#[test]
fn a_probing_client_asks_before_it_sends_and_believes_the_answer_for_its_lease() {
    let mut client = ProbingClient::new(&probing::Config::default(), at(0));
    let answer = |level| Grant { level, lease: Duration::from_micros(10), window: 0 };
    assert_eq!(wants(&mut client, 1, at(0)), Step::Wait);
    assert!(matches!(client.poll_output(), Some(ClientOutput::Demand(_))));
    assert_eq!(wants(&mut client, 2, at(1)), Step::Wait);
    assert_eq!(client.poll_output(), None, "one question at a time");
    client.on_grant(&answer(OPEN), at(10));
    assert!(matches!(client.poll_output(), Some(ClientOutput::Send(CallId(1), _))));
    assert!(matches!(client.poll_output(), Some(ClientOutput::Send(CallId(2), _))));
    assert!(matches!(wants(&mut client, 3, at(19)), Step::Send(_)));
    assert_eq!(wants(&mut client, 4, at(20)), Step::Wait);
    assert!(matches!(client.poll_output(), Some(ClientOutput::Demand(_))));
    client.on_grant(&answer(CLOSED), at(30));
    assert_eq!(client.poll_output(), Some(ClientOutput::Fail(CallId(4), ShedReason::NoCredit)));
    assert_eq!(wants(&mut client, 5, at(31)), Step::Fail(ShedReason::NoCredit));
}

#[test]
fn a_probed_server_is_open_below_its_target_and_answers_each_question() {
    let mut server = server(&Scheme::Probing(probing::Config::default()));
    let session = server.open(Tenant(0), at(0)).unwrap();
    let mut asked = |signal, now| {
        server.on_timeout(signal, now);
        server.on_demand(session, &Ask::default(), now);
        let (_, grant) = server.poll_output().unwrap();
        assert_eq!(server.poll_output(), None);
        grant.level
    };
    assert_eq!([asked(late(79), at(10)), asked(late(80), at(20)), asked(late(0), at(30))], [OPEN, CLOSED, OPEN]);
}

#[test]
fn probing_costs_about_a_question_and_an_answer_for_each_call_of_rare_callers() {
    let rare = Setup { clients: 400, load: 0.5, ..CROWD };
    let totals = Plant::new(Scheme::named("probing").unwrap(), rare, 7).run();
    assert!(totals.extra_messages * 10 > totals.called * 15, "{totals:?}");
    let credits = Plant::new(Scheme::named("dagor").unwrap(), rare, 7).run();
    assert_eq!(credits.extra_messages, 0);
}

/// A DAGOR server whose delay is `us` for a window with a request in it.
fn dagor_window(server: &mut DagorServer, us: u64) -> u32 {
    let session = server.open(Tenant(0), at(0)).expect("there is room");
    server.on_request(session, &Ask::default(), late(us), at(0), at(0));
    for _ in 0..100 {
        let now = server.next_timeout().expect("a session is open");
        server.on_timeout(late(us), now);
    }
    server.threshold()
}

#[test]
fn dagor_moves_its_threshold_once_in_a_window_and_stays_within_its_levels() {
    let mut server = DagorServer::new(dagor::Config::default(), at(0));
    assert_eq!(server.threshold(), 32);
    assert_eq!(dagor_window(&mut server, 0), 33, "1.28 more");
    assert_eq!(dagor_window(&mut server, 200), 31, "5 % fewer");
    assert_eq!((0..100).map(|_| dagor_window(&mut server, 200)).last(), Some(1));
    assert_eq!((0..200).map(|_| dagor_window(&mut server, 0)).last(), Some(127));
}

#[test]
fn dagor_needs_a_request_or_two_thousand_before_the_millisecond_is_over() {
    let mut server = DagorServer::new(dagor::Config::default(), at(0));
    let session = server.open(Tenant(0), at(0)).unwrap();
    (1..=500).for_each(|tick| server.on_timeout(late(0), at(tick * 10)));
    assert_eq!(server.threshold(), 32, "nobody came");
    server.on_request(session, &Ask::default(), late(0), at(5_001), at(5_001));
    server.on_timeout(late(0), at(5_010));
    assert_eq!(server.threshold(), 33);
    for _ in 0..1_999 {
        server.on_request(session, &Ask::default(), late(0), at(5_011), at(5_011));
    }
    server.on_timeout(late(0), at(5_020));
    assert_eq!(server.threshold(), 33);
    server.on_request(session, &Ask::default(), late(0), at(5_021), at(5_021));
    server.on_timeout(late(0), at(5_030));
    assert_eq!(server.threshold(), 34);
}

#[test]
fn a_dagor_client_drops_what_the_server_would_and_starts_with_a_guess() {
    let config = dagor::Config::default();
    let mut rng = Rng::new(8);
    let guesses: Vec<u32> = (0..1_000).map(|_| DagorClient::new(&config, &mut rng).threshold()).collect();
    assert!(guesses.iter().all(|&guess| guess < 128) && guesses.iter().max() > guesses.iter().min());

    let mut client = DagorClient::new(&config, &mut rng);
    client.on_reply(&reply(0, 31), at(0));
    let mut server = DagorServer::new(dagor::Config { initial_threshold: 31, ..config }, at(0));
    let session = server.open(Tenant(0), at(0)).unwrap();
    let mut sent = 0;
    for id in 0..12_800 {
        match wants(&mut client, id, at(0)) {
            Step::Send(ask) => {
                sent += 1;
                assert!(matches!(server.on_request(session, &ask, late(0), at(0), at(0)), Verdict::Admit(_)));
            }
            step => assert_eq!(step, Step::Fail(ShedReason::Priority)),
        }
    }
    // A quarter of 12,800, give or take four deviations.
    assert!((3_000..3_400).contains(&sent), "{sent}");
    let unimportant = Ask { priority: Priority(32), ..Ask::default() };
    let verdict = server.on_request(session, &unimportant, late(0), at(0), at(0));
    assert!(matches!(verdict, Verdict::Shed(_, ShedReason::Priority)));
}

#[test]
fn seda_speeds_up_while_answers_are_fast_and_slows_down_when_they_are_not() {
    let mut client = SedaClient::new(&seda::Config::default(), at(0), &mut Rng::new(9));
    let rate = client.rate_per_s();
    assert!((2.0..4.0).contains(&rate));
    (0..99).for_each(|_| client.on_reply(&reply(20, 0), at(10)));
    assert!((client.rate_per_s() - rate).abs() < 1e-9, "not before the hundredth");
    client.on_reply(&reply(20, 0), at(10));
    // The smoothed p99 is 0.3 x 20 us, the error -0.925, the rise (0.925 - 0.1) x 40.
    assert!((client.rate_per_s() - (rate + 33.0)).abs() < 1e-9, "{}", client.rate_per_s());
    let fast = client.rate_per_s();
    client.on_reply(&reply(8_000, 0), at(1_000));
    assert!((client.rate_per_s() - fast).abs() < 1e-9, "within a millisecond of its last run");
    client.on_reply(&reply(8_000, 0), at(1_011));
    assert!((client.rate_per_s() - fast / 1.04).abs() < 1e-9);
    (1..500).for_each(|run| client.on_reply(&reply(8_000, 0), at(1_011 + run * 1_001)));
    assert!((client.rate_per_s() - 2.0).abs() < 1e-9, "the lowest rate");
}

#[test]
fn seda_calls_wait_for_a_token_for_a_hundred_microseconds_and_the_newest_gives_way() {
    let config = seda::Config { queue_calls: 2, ..seda::Config::default() };
    let mut client = SedaClient::new(&config, at(0), &mut Rng::new(10));
    assert_eq!([wants(&mut client, 4, at(0)), wants(&mut client, 5, at(50))], [Step::Wait, Step::Wait]);
    assert_eq!(wants(&mut client, 6, at(50)), Step::Fail(ShedReason::ClientFull));
    assert_eq!(client.next_timeout(), Some(at(100)));
    client.on_timeout(at(100));
    assert_eq!(client.poll_output(), Some(ClientOutput::Fail(CallId(4), ShedReason::Expired)));
    client.on_timeout(at(150));
    assert_eq!(client.poll_output(), Some(ClientOutput::Fail(CallId(5), ShedReason::Expired)));
    // Two tokens a second at least: four of them, as many as it holds, after two seconds.
    (7..11).for_each(|id| assert!(matches!(wants(&mut client, id, at(2_000_000)), Step::Send(_))));
    assert_eq!(wants(&mut client, 11, at(2_000_000)), Step::Wait);
}
