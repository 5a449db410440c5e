use tidegate_core::Rng;
use tidegate_sim::TraceHash;
use tidegate_sim::replay::SimulationTest;

use super::*;

fn scenario(text: &str) -> Scenario {
    toml::from_str(text).unwrap()
}

#[test]
fn same_seed_same_report() {
    let scenario = scenario("rate_mbit = 1000\nflows = 4\nlength_ms = 60\nwarm_up_ms = 20\n");
    assert_eq!(play(&scenario, Scheme::Integral, 3), play(&scenario, Scheme::Integral, 3));
    assert_ne!(play(&scenario, Scheme::Integral, 3).trace, play(&scenario, Scheme::Integral, 4).trace);
}

/// A scenario of anything at once, from the seed.
fn harsh(seed: u64) -> (Scenario, Scheme) {
    let mut rng = Rng::new(seed);
    let mut pick = |from: &[u64]| from[usize::try_from(rng.below(from.len() as u64)).unwrap()];
    let rate_mbit = pick(&[1, 10, 100, 1_000, 1_000, 2_000, 10_000]);
    let flows = u32::try_from(pick(&[2, 3, 5, 16])).unwrap();
    let far = pick(&[0, 0, 1]);
    let churn = if rate_mbit >= 100 { pick(&[0, 200]) } else { 0 };
    let scenario = Scenario {
        limiters: u32::try_from(pick(&[1, 2])).unwrap(),
        rate_mbit,
        total_mbit: None,
        parents: 0,
        neighbour: None,
        flows,
        line_mbit: 40_000,
        rtt_us: [20.0, 70.0, 500.0, 3_000.0][usize::try_from(pick(&[0, 1, 1, 2, 3])).unwrap()],
        setpoint_us: 100,
        mice_per_s: 100,
        gso_segments: pick(&[1, 10, 44]),
        far: (far > 0).then_some(Far { flows: 1, rtt_ms: 100.0 }),
        churn: (churn > 0).then_some(Churn { per_s: 200, bytes: pick(&[1, 1_000, 100_000]) }),
        stall: (pick(&[0, 1]) > 0).then_some(Stall { every_ms: 30, for_ms: pick(&[1, 20, 300]) }),
        unscaled: pick(&[0, 1]) > 0,
        loss: [0.0, 0.001, 0.02][usize::try_from(pick(&[0, 1, 2])).unwrap()],
        change: (pick(&[0, 1]) > 0).then_some(Change { at_ms: 300, to_mbit: pick(&[1, 100, 5_000]) }),
        calm_after_ms: None,
        length_ms: 600,
        warm_up_ms: 100,
    };
    (scenario, [Scheme::Integral, Scheme::Dctcp, Scheme::Isolation][usize::try_from(seed % 3).unwrap()])
}

#[test]
fn nothing_is_ever_stuck() {
    let test = SimulationTest { package: env!("CARGO_PKG_NAME"), name: "nothing_is_ever_stuck" };
    test.for_each_seed(0..SimulationTest::seeds(40), |seed| {
        let (mut scenario, scheme) = harsh(seed);
        scenario.mice_per_s = 10;
        // Then all calms down, for longer than any timer: what is still on its way is stuck.
        scenario.calm_after_ms = Some(scenario.length_ms);
        scenario.length_ms += 60_000;
        let report = play(&scenario, scheme, seed);
        assert_eq!(report.stuck, 0, "{scenario:?} {scheme:?} {report:?}");
        let mut trace = TraceHash::new();
        std::hash::Hash::hash(&report.trace, &mut trace);
        trace
    });
}
