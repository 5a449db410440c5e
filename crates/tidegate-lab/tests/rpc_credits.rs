//! Tidegate's credits on the plant, at reduced size: what the full experiments show must not get lost.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_lab::rpc::{
    Behind, Group, LoadStep, Pauses, Priority, Report, Scenario, Scheme, Service, ServiceLaw, Tenant, measure,
    measure_scheme,
};
use tidegate_rpc::machine::credits::{Config, CreditClient, CreditServer};
use tidegate_rpc::machine::{Ask, CallId, Client, Grant, Reply, Request, Step};

const MS: Duration = Duration::from_millis(1);

fn short(groups: Vec<Group>) -> Scenario {
    Scenario { groups, warm_up: 60 * MS, duration: 60 * MS, ..Scenario::default() }
}

fn tidegate(scenario: &Scenario) -> Report {
    measure_scheme(scenario, &Scheme::named("tidegate").unwrap()).unwrap()
}

#[test]
fn a_thousand_clients_get_what_there_is_at_every_load() {
    for load in [1.2, 2.0, 5.0, 10.0] {
        let report = tidegate(&short(vec![Group::new(1_000, load)]));
        println!("{load}: {} {}", report.goodput_of_capacity, report.response.p99_us);
        assert!(report.goodput_of_capacity >= 0.97, "{load}: {report:?}");
        assert!(report.response.p99_us <= report.slo_us, "{load}: {report:?}");
        assert!(report.response.p999_us <= 1.1 * report.slo_us, "{load}: {report:?}");
        assert_eq!(report.extra_messages_per_call.to_bits(), 0, "answers carry everything");
    }
}

#[test]
fn a_step_to_ten_times_the_capacity_costs_little() {
    let mut group = Group::new(1_000, 0.4);
    group.steps.push(LoadStep { at: 40 * MS, load: 10.0 });
    let bin = Some(MS);
    let report = tidegate(&Scenario { warm_up: Duration::ZERO, duration: 60 * MS, bin, ..short(vec![group]) });
    let first = report.goodput_between(40 * MS, 60 * MS) / report.capacity_per_s;
    println!("{first} {}", report.worst_bin_p99_us(40 * MS));
    assert!(first >= 0.96, "{first}");
    assert!(report.worst_bin_p99_us(40 * MS) <= 1.1 * report.slo_us, "{report:?}");
}

#[test]
fn what_matters_most_is_answered_whatever_else_comes() {
    for load in [2.0, 10.0] {
        let group = |load, priority| Group { priorities: vec![(priority, 1.0)], ..Group::new(500, load) };
        let groups = vec![group(0.7, Priority::CRITICAL), group(load - 0.7, Priority::BATCH)];
        let report = tidegate(&short(groups));
        println!("{load}: {:?}", report.by_priority);
        // Some thirty calls are under way at either end of so short a time, a thousandth of all.
        assert!(report.by_priority[0].in_slo >= 0.998, "{load}: {report:?}");
        assert!(report.goodput_of_capacity >= 0.95, "{load}: {report:?}");
    }
}

#[test]
fn a_tenant_with_a_hundred_times_the_calls_gets_no_more_than_the_others() {
    // Ten tenants, each of which wants twice its share, one of them a hundred times that of another.
    let tenant = |number| {
        let load = if number == 0 { 20.0 } else { 0.2 };
        Group { tenant: Tenant(number), ..Group::new(50, load) }
    };
    let report = tidegate(&short((0..10).map(tenant).collect()));
    println!("{} {}", report.jain, report.goodput_of_capacity);
    assert!(report.jain >= 0.99, "{report:?}");
}

/// A client that follows the rules, or one that sends all that it has, and lies.
enum Mixed {
    Honest(CreditClient),
    Cheat,
}

impl Client for Mixed {
    fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> Step {
        match self {
            Self::Honest(client) => client.on_call(request, now, rng),
            Self::Cheat => Step::Send(Ask {
                demand: u32::MAX,
                exact: false,
                credited: true,
                aware: true,
                priority: Priority::DEFAULT,
                claimed: None,
                tenant: Tenant(0),
                budget: Some(Duration::MAX),
                round_trip: Duration::from_secs(10),
                chance: 0,
                group: 0,
            }),
        }
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        if let Self::Honest(client) = self {
            client.on_reply(reply, now);
        }
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        if let Self::Honest(client) = self {
            client.on_grant(grant, now);
        }
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        if let Self::Honest(client) = self {
            client.on_cancel(id, now);
        }
    }

    fn on_lost(&mut self, now: Instant) {
        if let Self::Honest(client) = self {
            client.on_lost(now);
        }
    }
}

/// Nineteen honest clients with `honest` times the capacity in all, and another with `other`, which cheats.
/// The other one's calls have a priority of their own only here, so that they are counted apart.
fn with_cheat(honest: f64, other: f64) -> Report {
    let others_priority = Priority(Priority::DEFAULT.0 + 1);
    let group = Group { priorities: vec![(others_priority, 1.0)], ..Group::new(1, other) };
    let scenario = short(vec![Group::new(19, honest), group]);
    let mut opened = 0;
    let client = |tenant, _, rng: &mut Rng| {
        opened += 1;
        if opened == 20 { Mixed::Cheat } else { Mixed::Honest(CreditClient::new(tenant, rng)) }
    };
    let server = CreditServer::new(Config::default(), scenario.cores, Instant::ZERO);
    measure(&scenario, server, client).unwrap()
}

#[test]
fn a_client_that_ignores_its_credits_and_lies_hurts_only_itself() {
    // A hundred times the calls of each other client, twice the capacity in all.
    let unit = 2.0 / 119.0;
    let report = with_cheat(19.0 * unit, 100.0 * unit);
    assert!(report.response.p99_us <= report.slo_us, "{report:?}");
    let [honest, cheat] = &report.by_priority[..] else { panic!("two kinds of calls: {report:?}") };
    assert!(honest.in_slo >= 0.99, "{report:?}");
    // What the others leave is its max-min share; it gets less, since its refusals take the server's time.
    assert!(cheat.goodput_per_s <= (1.0 - 19.0 * unit) * report.capacity_per_s, "{report:?}");
}

/// Handlers of one core that wait before they compute: what they wait for, and for how long they compute.
fn waiting(behind_ms: u64, places: Option<u32>, compute: Duration, load: f64) -> Scenario {
    let constant = |mean| Service { law: ServiceLaw::Constant, mean };
    Scenario {
        cores: 1,
        service: constant(compute),
        behind: Some(Behind { service: constant(MS * u32::try_from(behind_ms).unwrap()), places }),
        message_cost: Duration::from_micros(20),
        round_trip: Duration::from_micros(100),
        groups: vec![Group::new(20, load)],
        warm_up: Duration::from_secs(5),
        duration: Duration::from_secs(5),
        ..Scenario::default()
    }
}

/// What handlers wait for, and a bound of their response times that is three times what they take without the scheme at
/// 0.8 of the capacity.
fn shapes() -> Vec<(&'static str, Scenario)> {
    let us = Duration::from_micros;
    let shape = |name, behind_ms, places, compute| (name, waiting(behind_ms, places, compute, 0.8));
    let mut shapes = vec![
        shape("wait 2 ms", 2, None, MS),
        shape("wait 20 ms", 20, None, MS),
        shape("wait 200 ms", 200, None, MS),
        shape("lock 1 ms", 1, Some(1), us(20)),
        shape("pool of 10, 20 ms", 20, Some(10), us(50)),
    ];
    for (_, scenario) in &mut shapes {
        let bare = measure_scheme(scenario, &Scheme::named("none").unwrap()).unwrap();
        scenario.slo = Some(us(3).mul_f64(bare.response.p99_us));
    }
    shapes
}

#[test]
fn handlers_that_wait_are_served_below_the_capacity_as_if_nothing_watched() {
    for (name, scenario) in shapes() {
        for load in [0.5, 0.8] {
            let scenario = Scenario { groups: vec![Group::new(20, load)], ..scenario.clone() };
            let bare = measure_scheme(&scenario, &Scheme::named("none").unwrap()).unwrap();
            let report = tidegate(&scenario);
            let goodput = report.goodput_of_possible / bare.goodput_of_possible;
            let p99 = report.response.p99_us / bare.response.p99_us;
            println!("{name} at {load}: {goodput} {p99} {:?}", report.sheds_by_reason);
            assert!(goodput >= 0.99 && p99 <= 1.1, "{name} at {load}: {goodput} {p99}");
        }
    }
}

#[test]
fn handlers_that_wait_are_served_above_the_capacity_as_fast_as_can_be() {
    for (name, scenario) in shapes() {
        // After waits of 200 ms it takes the server more than these ten seconds to know what its clients want.
        let loads: &[f64] = if name == "wait 200 ms" { &[1.2, 2.0] } else { &[1.2, 2.0, 5.0, 10.0] };
        for &load in loads {
            let scenario = Scenario { groups: vec![Group::new(20, load)], ..scenario.clone() };
            let report = tidegate(&scenario);
            let (goodput, p99, slo) = (report.goodput_of_capacity, report.response.p99_us, report.slo_us);
            println!("{name} at {load}: {goodput}, {p99} of {slo}");
            assert!(goodput >= 0.85 && p99 <= slo, "{name} at {load}: {goodput}, {p99} of {slo}");
        }
    }
}

/// Short calls on many cores of a host that pauses for 1 to 12 ms.
fn on_a_host_that_pauses(cores: u32, mean: Duration) -> Report {
    let service = Service { law: ServiceLaw::Exponential, mean };
    let pauses = Some(Pauses { every: 50 * MS, least: MS, most: 12 * MS });
    let scenario = Scenario { cores, service, pauses, warm_up: 30 * MS, duration: 200 * MS, ..short(Vec::new()) };
    tidegate(&Scenario { groups: vec![Group::new(1_000, 2.0)], ..scenario })
}

#[test]
fn a_pause_that_makes_one_call_in_a_hundred_run_long_leaves_time_to_wait() {
    // All cores' calls run for milliseconds then: the longest one in a hundred, for a while.
    let report = on_a_host_that_pauses(64, Duration::from_micros(10));
    println!("{} {}", report.goodput_of_capacity, report.response.p99_us / report.slo_us);
    assert!(report.paused > 0.03 && report.goodput_of_capacity >= 0.85, "{report:?}");
    assert!(report.response.p99_us <= report.slo_us, "{report:?}");
}

#[test]
fn the_rush_after_a_pause_is_no_step_of_the_demand() {
    let report = on_a_host_that_pauses(64, Duration::from_micros(100));
    println!("{} {}", report.goodput_of_capacity, report.response.p99_us / report.slo_us);
    assert!(report.paused > 0.03 && report.goodput_of_capacity >= 0.8, "{report:?}");
}

#[test]
fn calls_that_go_on_are_waited_for_by_those_that_come() {
    // They wait for a core beside those that start: a server that did not see them would take itself for idle.
    let behind = Service { law: ServiceLaw::Exponential, mean: Duration::from_micros(300) };
    let service = Service { law: ServiceLaw::Exponential, mean: Duration::from_micros(100) };
    let behind = Some(Behind { service: behind, places: None });
    let report = tidegate(&Scenario { cores: 64, service, behind, ..short(vec![Group::new(1_000, 2.0)]) });
    println!("{} {}", report.goodput_of_capacity, report.response.p99_us / report.slo_us);
    assert!(report.goodput_of_capacity >= 0.95 && report.response.p99_us <= report.slo_us, "{report:?}");
}
