//! Everything at once: clients send over a faulty network to a host, for many seeds, each of which repeats exactly.

use std::time::Duration;

use tidegate_core::{Instant, Rate};
use tidegate_sim::fault::{Fault, FaultPlan, FaultRates};
use tidegate_sim::host::Host;
use tidegate_sim::network::{Network, NodeId};
use tidegate_sim::replay::SimulationTest;
use tidegate_sim::workload::{GroupConfig, Groups, Publishers};
use tidegate_sim::{Bounds, Distribution, Simulation, TraceHash};

const CLIENTS: u32 = 3;
const SERVER: NodeId = NodeId(CLIENTS);

#[derive(Hash)]
enum Event {
    Fault(Fault),
    /// A client sends.
    Send(NodeId),
    /// A request reaches the server.
    Arrive(NodeId),
    /// Its answer is ready.
    Answer(NodeId),
    /// The answer is back.
    Back(NodeId),
}

/// Numbers of requests.
#[derive(Default, PartialEq, Eq, Debug, Hash)]
struct Counts {
    sent: u64,
    arrived: u64,
    refused: u64,
    answered: u64,
    back: u64,
}

fn run(seed: u64, rates: FaultRates) -> (Counts, TraceHash) {
    let end = Instant::from_nanos(2_000_000_000);
    let mut simulation = Simulation::new(seed, Bounds::default());
    let publishers = Publishers { count: CLIENTS, rate: Rate::per_s(3_000), batch: 1 };
    let groups = GroupConfig { size: CLIENTS, spread_us: 100.0, periodic: false };
    for arrival in Groups::new(publishers, groups, Instant::ZERO, simulation.rng(0)).take_while(|a| a.at < end) {
        simulation.at(arrival.at, Event::Send(NodeId(arrival.publisher)));
    }
    for (at, fault) in FaultPlan::random(rates, CLIENTS + 1, end, &mut simulation.rng(1)).iter() {
        simulation.at(*at, Event::Fault(*fault));
    }
    let mut network = Network::new(DELAY);
    let mut host = Host::new(2, Distribution::Exponential { mean_us: 500.0 }, 20);
    let (mut ways, mut services) = (simulation.rng(2), simulation.rng(3));
    let mut counts = Counts::default();
    let finished = simulation.run_until(Instant::MAX, |simulation, event| {
        let now = simulation.now();
        match event {
            Event::Fault(Fault::Pause(SERVER, pause)) => host.pause(now + pause),
            Event::Fault(_) => {}
            Event::Send(client) => {
                counts.sent += 1;
                simulation.at(network.send(client, SERVER, now, &mut ways), Event::Arrive(client));
            }
            Event::Arrive(client) => {
                counts.arrived += 1;
                match host.arrive(now, &mut services) {
                    Ok(served) => simulation.at(served.done, Event::Answer(client)),
                    Err(_) => counts.refused += 1,
                }
            }
            Event::Answer(client) => {
                counts.answered += 1;
                simulation.at(network.send(SERVER, client, now, &mut ways), Event::Back(client));
            }
            Event::Back(_) => counts.back += 1,
        }
    });
    finished.expect("a few thousand events are within the bounds");
    simulation.note(&counts);
    (counts, simulation.trace())
}

const DELAY: Distribution = Distribution::Exponential { mean_us: 200.0 };

#[test]
fn a_sound_network_carries_everything() {
    let test = SimulationTest { package: env!("CARGO_PKG_NAME"), name: "a_sound_network_carries_everything" };
    test.for_each_seed(0..20, |seed| {
        let (counts, trace) = run(seed, FaultRates::default());
        assert!(counts.sent > 5_000);
        assert_eq!((counts.arrived, counts.back), (counts.sent, counts.answered));
        assert_eq!(counts.answered + counts.refused, counts.arrived);
        trace
    });
}

#[test]
fn pauses_refuse_requests_and_lose_none() {
    let test = SimulationTest { package: env!("CARGO_PKG_NAME"), name: "pauses_refuse_requests_and_lose_none" };
    let every = Some(Duration::from_millis(300));
    let rates = FaultRates { pause_every: every, ..FaultRates::default() };
    test.for_each_seed(0..20, |seed| {
        let (counts, trace) = run(seed, rates);
        assert_eq!(counts.answered + counts.refused, counts.arrived);
        assert!(counts.arrived == counts.sent && counts.refused > 0, "{counts:?}");
        trace
    });
}

#[test]
fn seeds_differ() {
    let trace = |seed| run(seed, FaultRates::default()).1;
    assert_ne!(trace(1), trace(2));
}
