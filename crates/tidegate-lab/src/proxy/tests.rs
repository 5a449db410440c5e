//! Laws of a run, in a few simulated tenths of a second.

use super::*;

fn client(name: &str, kind: ClientKind, rate: f64, connections: u32) -> Client {
    Client { name: name.to_owned(), kind, rate, connections, made_up_names: 1, times: 1, from_ms: 0 }
}

fn scenario(clients: Vec<Client>) -> Scenario {
    Scenario {
        seed: 1,
        mode: Mode::Restrict,
        warmup_ms: 500,
        measured_ms: 500,
        timeout_ms: 200,
        supply: Supply::Whole,
        costs: Costs::default(),
        clients,
    }
}

/// A tenant that fits, beside one that asks for more than there is.
fn beside() -> Vec<Client> {
    vec![client("a", ClientKind::KeepAlive, 1_000.0, 32), client("b", ClientKind::ClosedLoop, 0.0, 400)]
}

#[test]
fn the_same_scenario_is_the_same_run() {
    let [first, second] = [(); 2].map(|()| play(&scenario(beside())).unwrap());
    assert_eq!(first, second);
}

#[test]
fn what_fits_is_answered_and_the_core_is_idle_in_the_rest() {
    let report = play(&scenario(vec![client("a", ClientKind::KeepAlive, 4_000.0, 64)])).unwrap();
    let row = &report.tenants[0];
    assert_eq!((row.answered, row.refused), (row.offered, 0));
    assert!((report.useful - 0.1).abs() < 0.01 && report.idle > 0.8, "{report:?}");
    assert!(row.p50_ms < 0.2, "a round trip of 0.1 ms and a look: {report:?}");
}

#[test]
fn a_tenant_that_fits_waits_for_no_crowd_of_another() {
    for (names, mode) in [(1, Mode::Off), (1, Mode::Restrict), (1_000, Mode::Restrict)] {
        let mut clients = beside();
        clients[1].made_up_names = names;
        let report = play(&Scenario { mode, ..scenario(clients) }).unwrap();
        let [a, b] = &report.tenants[..] else { panic!("{report:?}") };
        assert!(a.is_within && !b.is_within);
        assert_eq!((a.answered, report.wrongly_refused(), report.books_wrong), (a.offered, 0, 0));
        // In order of arrival it would wait for 400 others, 10 ms.
        assert!(a.p99_ms < 1.0, "{names} names: {report:?}");
        assert!(report.useful > 0.9, "what is not answered now is answered later: {report:?}");
    }
}

#[test]
fn half_of_a_processor_does_half_of_the_handshakes() {
    let supply = Supply::Slices { own_us: 3_000, other_us: 3_000 };
    let clients = vec![client("a", ClientKind::NewTls, 30.0, 0), client("b", ClientKind::NewTls, 2_000.0, 0)];
    let play_on = |supply| {
        let scenario = Scenario { supply, warmup_ms: 1_500, timeout_ms: 500, ..scenario(clients.clone()) };
        play(&scenario).unwrap()
    };
    let [whole, half] = [Supply::Whole, supply].map(play_on);
    let part = half.tenants[1].goodput_per_s / whole.tenants[1].goodput_per_s;
    assert!((0.4..0.6).contains(&part), "{whole:?}\n{half:?}");
    for report in [whole, half] {
        assert!(report.useful > 0.85, "{report:?}");
        assert_eq!((report.tenants[0].answered, report.wrongly_refused()), (report.tenants[0].offered, 0));
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let wrong = |change: fn(&mut Scenario)| {
        let mut scenario = scenario(vec![client("a", ClientKind::KeepAlive, 1.0, 1)]);
        change(&mut scenario);
        scenario.check().unwrap_err().to_string()
    };
    assert!(wrong(|scenario| scenario.clients[0].rate = 0.0).contains("`a`"));
    assert!(wrong(|scenario| scenario.clients.clear()).contains("clients"));
    assert!(wrong(|scenario| scenario.costs.look_us = 0.0).contains("costs"));
    assert!(wrong(|scenario| scenario.supply = Supply::Slices { own_us: 0, other_us: 1 }).contains("supply"));
}
