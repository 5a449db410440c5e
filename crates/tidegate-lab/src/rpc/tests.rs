//! The plant against queueing theory, with machines that let everything through.

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::{
    Ask, Client, Done, Full, Grant, Reply, Request, Server, SessionId, Signal, Step, Tenant, Ticket, Verdict,
};

use super::*;

/// Admits everything.
#[derive(Default)]
struct Open {
    sessions: u32,
}

impl Server for Open {
    fn open(&mut self, _: Tenant, _: Instant) -> Result<SessionId, Full> {
        self.sessions += 1;
        Ok(SessionId(self.sessions - 1))
    }

    fn close(&mut self, _: SessionId, _: Instant) {}

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, now: Instant) -> Verdict {
        Verdict::Admit(Ticket { started: now, ..Ticket::new(session, ask, arrived) })
    }

    fn on_done(&mut self, _: Ticket, _: Done, _: Instant) -> Grant {
        Grant::default()
    }
}

/// Sends everything at once.
struct Eager;

impl Client for Eager {
    fn on_call(&mut self, _: &Request, _: Instant, _: &mut Rng) -> Step {
        Step::Send(Ask::default())
    }

    fn on_reply(&mut self, _: &Reply, _: Instant) {}

    fn on_cancel(&mut self, _: tidegate_rpc::machine::CallId, _: Instant) {}

    fn on_lost(&mut self, _: Instant) {}
}

fn run(scenario: &Scenario) -> Report {
    measure(scenario, Open::default(), |_, _, _| Eager).unwrap()
}

fn short(load: f64) -> Scenario {
    Scenario { duration: Duration::from_millis(200), ..Scenario::at_load(100, load) }
}

#[test]
fn half_of_the_capacity_is_served_without_waiting() {
    let report = run(&short(0.5));
    // Eight servers at load 0.5 wait with probability 0.06 (Erlang C), so the response time is almost the service time
    // plus 1 us for the message and 10 us of round trip: its p99 is near 11 + 10 ln(100) = 57 us.
    assert!((report.goodput_of_possible - 1.0).abs() < 0.01, "{report:?}");
    assert!((55.0..64.0).contains(&report.response.p99_us), "{report:?}");
    assert!((17.5..20.0).contains(&report.response.p50_us), "{report:?}");
    assert!((report.busy - 0.5).abs() < 0.01, "{report:?}");
    assert_eq!((report.dropped, report.extra_messages_per_call.to_bits()), (0, 0));
}

#[test]
fn one_core_with_memoryless_service_is_the_queue_of_the_textbook() {
    let group = Group::new(10, 0.8);
    let scenario = Scenario {
        cores: 1,
        message_cost: Duration::ZERO,
        round_trip: Duration::ZERO,
        groups: vec![group],
        duration: Duration::from_secs(3),
        ..Scenario::default()
    };
    let report = run(&scenario);
    // M/M/1 at load 0.8: the wait is 0.8 / 0.2 of the mean service, the median of the response ln 2 * 50 us.
    assert!((report.mean_queueing_delay_us - 40.0).abs() < 2.0, "{report:?}");
    assert!((report.response.p50_us - 34.66).abs() < 2.0, "{report:?}");
}

#[test]
fn without_control_goodput_falls_to_nothing_above_capacity() {
    let report = run(&short(1.2));
    assert!(report.goodput_of_capacity < 0.01, "{report:?}");
    // Messages come first: at 1.2 times the capacity they take 1.2 / 11 of the cores, and calls get the rest.
    assert!((report.served_per_s / report.capacity_per_s - 0.98).abs() < 0.02, "{report:?}");
    assert!(report.busy > 0.99, "{report:?}");
}

#[test]
fn one_seed_one_run() {
    assert_eq!(run(&short(0.9)), run(&short(0.9)));
    assert_ne!(run(&short(0.9)).trace, run(&Scenario { seed: 2, ..short(0.9) }).trace);
}

#[test]
fn too_many_calls_under_way_are_dropped_and_counted() {
    let report = run(&Scenario { calls_max: 1_000, ..short(2.0) });
    assert!(report.dropped > 100_000 && report.under_way <= 1_000, "{report:?}");
}

#[test]
fn steps_bins_bursts_priorities_and_tenants_add_up() {
    let mut group = Group::new(50, 0.2);
    group.steps.push(LoadStep { at: Duration::from_millis(100), load: 0.6 });
    group.priorities = vec![(Priority(0), 1.0), (Priority(255), 3.0)];
    let other = Group { tenant: Tenant(7), ..Group::new(10, 0.1) };
    let scenario = Scenario {
        groups: vec![group, other],
        incast: Some(Incast { calls: 20, every: Duration::from_millis(1) }),
        warm_up: Duration::from_millis(50),
        duration: Duration::from_millis(150),
        bin: Some(Duration::from_millis(10)),
        ..Scenario::default()
    };
    let report = run(&scenario);
    assert_eq!(report.bins.len(), 20);
    let bursts = 20_000.0;
    let expected = (0.3 * 50.0 + 0.7 * 100.0) / 150.0 * report.capacity_per_s + bursts;
    assert!((report.offered_per_s / expected - 1.0).abs() < 0.02, "{report:?}");
    assert!(
        (scenario.load_at(Duration::from_millis(150)) * report.capacity_per_s / (0.7 * report.capacity_per_s + bursts)
            - 1.0)
            .abs()
            < 1e-9
    );
    let ms = Duration::from_millis;
    let (before, after) = (report.goodput_between(ms(0), ms(100)), report.goodput_between(ms(100), ms(200)));
    assert!(before * 1.8 < after, "{before} {after}");
    assert_eq!(report.by_priority.iter().map(|share| share.key).collect::<Vec<_>>(), [0, 128, 255]);
    let [critical, _, batch] = report.by_priority[..] else { panic!("three priorities") };
    assert!((batch.offered_per_s / critical.offered_per_s - 3.0).abs() < 0.2, "{report:?}");
    assert_eq!(report.by_tenant.len(), 2);
    assert!(report.jain < 1.0 && report.jain > 0.5, "{report:?}");
}

#[test]
fn a_scenario_that_makes_no_sense_is_refused() {
    let none = Scenario { groups: Vec::new(), ..Scenario::default() };
    assert_eq!(none.check(), Err(ScenarioError::Invalid("somebody calls")));
}

#[test]
fn a_scenario_survives_being_written_and_read() {
    let scenario = Scenario {
        bin: Some(Duration::from_millis(1)),
        incast: Some(Incast { calls: 2, every: Duration::from_nanos(1_500) }),
        ..Scenario::default()
    };
    let text = serde_json::to_string(&scenario).unwrap();
    assert!(text.contains("\"round_trip_us\":10.0"), "{text}");
    assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario);
    assert_eq!(toml::from_str::<Scenario>("cores = 8").unwrap(), Scenario::default());
}

fn scheme(name: &str, load: f64) -> Report {
    let (warm_up, duration) = (Duration::from_millis(50), Duration::from_millis(100));
    let scenario = Scenario { warm_up, duration, ..Scenario::at_load(1_000, load) };
    measure_scheme(&scenario, &Scheme::named(name).unwrap()).unwrap()
}

#[test]
fn the_published_schemes_land_where_their_authors_saw_them() {
    assert!(scheme("breakwater", 1.2).goodput_of_capacity > 0.95);
    // The messages of ten times the capacity take nine tenths of the cores.
    assert!(scheme("aqm", 10.0).goodput_of_capacity < 0.05);
}

#[test]
fn tidegate_keeps_capacity_and_objective_at_twice_the_capacity() {
    let report = scheme("tidegate", 2.0);
    assert!(report.goodput_of_capacity > 0.97, "{report:?}");
    assert!(report.response.p99_us <= report.slo_us, "{report:?}");
}

#[test]
fn every_scheme_runs_and_accounts_for_every_call() {
    for name in Scheme::NAMES {
        let scenario = Scenario {
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(20),
            groups: vec![Group::new(200, 1.5)],
            ..Scenario::default()
        };
        let report = measure_scheme(&scenario, &Scheme::named(name).unwrap()).unwrap();
        let count = |per_s: f64| (per_s * report.seconds).round();
        let refused: u64 = report.sheds_by_reason.values().sum();
        assert_eq!(refused, report.sheds.client + report.sheds.request + report.sheds.start, "{name}");
        let ended = count(report.served_per_s) + f64::from(u32::try_from(refused).unwrap());
        let under_way = f64::from(u32::try_from(report.under_way).unwrap());
        assert!((count(report.offered_per_s) - ended - under_way).abs() < 0.5, "{name}: {report:?}");
    }
}

#[test]
fn what_is_possible_follows_the_steps() {
    let mut group = Group::new(10, 0.5);
    group.steps.push(LoadStep { at: Duration::from_millis(150), load: 3.0 });
    let (warm_up, duration) = (Duration::from_millis(100), Duration::from_millis(100));
    let scenario = Scenario { groups: vec![group], warm_up, duration, ..Scenario::default() };
    assert!((scenario.possible() - 0.75).abs() < 1e-9);
}

/// Calls, gives up, loses connections and servers; then nobody calls any more. The window of all that, and what is left.
fn through_faults<S: Server, C: Client>(
    seed: u64,
    server: impl Fn() -> S,
    client: impl FnMut(Tenant, Instant, &mut Rng) -> C,
) -> (Window, usize) {
    let scenario = Scenario { cores: 2, seed, groups: vec![Group::new(20, 3.0)], ..Scenario::default() };
    let mut plant = Plant::new(&scenario, server(), client).unwrap();
    let mut rng = Rng::stream(seed, 9);
    for step in 1..=20 {
        plant.run_until(Instant::from_nanos(step * 100_000 + rng.below(90_000)));
        match rng.below(8) {
            0 => plant.crash(server()).unwrap(),
            1..4 => plant.reset(u32::try_from(rng.below(20)).unwrap()).unwrap(),
            _ => plant.cancel(0.3, &mut rng),
        }
    }
    plant.set_load(0, 0.0);
    plant.run_until(plant.now() + Duration::from_millis(100));
    (plant.take_window(), plant.under_way())
}

#[test]
fn every_call_is_answered_refused_or_given_up_whatever_goes_wrong() {
    for name in Scheme::NAMES {
        let scheme = Scheme::named(name).unwrap();
        for seed in 0..12 {
            let server = || scheme.server(2, Instant::ZERO);
            let (window, left) = through_faults(seed, server, |tenant, now, rng| scheme.client(tenant, now, rng));
            let refused: u64 = window.sheds_by_reason().values().sum();
            let ended = window.calls.served + refused + window.cancelled;
            assert_eq!((window.calls.offered, left), (ended, 0), "{name}, seed {seed}");
            // SEDA's clients begin with a few calls a second, and this takes two milliseconds.
            assert!(window.calls.served > 0 || name == "seda", "{name}, seed {seed}");
        }
    }
}

#[test]
fn jitter_lengthens_what_it_should_and_no_more() {
    let jitter = Jitter { way: Duration::from_micros(20), service: 0.5 };
    let constant = Service { law: ServiceLaw::Constant, mean: Duration::from_micros(10) };
    let report = run(&Scenario { jitter: Some(jitter), service: constant, ..short(0.2) });
    // A fifth of what 16 us a call leave: nobody waits. 21 us are sure, the rest is two times 20 us and one of 5 us.
    assert!((report.capacity_per_s - 500_000.0).abs() < 1.0, "{report:?}");
    assert!(report.response.p50_us > 50.0 && report.response.p50_us < 65.0, "{report:?}");
    // The sum of two exponentials of 20 us is above 133 us in 1 % of the cases.
    assert!((150.0..165.0).contains(&report.response.p99_us), "{report:?}");
    assert!((report.busy - 0.2).abs() < 0.01, "{report:?}");
}

#[test]
fn a_paused_host_serves_nothing_and_loses_nothing() {
    let ms = Duration::from_millis;
    let pauses = Pauses { every: ms(50), least: ms(1), most: ms(12) };
    let scenario =
        Scenario { pauses: Some(pauses), bin: Some(Duration::from_micros(500)), duration: ms(2_000), ..short(0.5) };
    let report = run(&scenario);
    // 6.5 ms of each 56.5 ms on average, of some 35 pauses.
    assert!((0.08..0.16).contains(&report.paused), "{report:?}");
    assert!((report.served_per_s / report.offered_per_s - 1.0).abs() < 0.01, "{report:?}");
    assert!((report.busy * (1.0 - report.paused) - 0.5).abs() < 0.01, "{report:?}");
    // A call that comes as the longest pause begins waits for its end, and for those that came meanwhile.
    assert!((11_000.0..25_000.0).contains(&report.response.max_us), "{report:?}");
    let dark = report.bins.iter().filter(|bin| bin.goodput_per_s < 1.0);
    assert!(dark.count() > 100, "no call ends in a pause, nor in time right after it");
    assert_eq!(report, run(&scenario));
}
