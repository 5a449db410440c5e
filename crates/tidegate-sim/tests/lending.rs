//! Members that lend keep the law of the whole, whatever goes wrong; and what lending gains.

use std::time::Duration;

use tidegate_core::lend::{LendConfig, Member};
use tidegate_core::limit::Limit;
use tidegate_core::number::float;
use tidegate_core::{Rate, Rng};
use tidegate_sim::Distribution;
use tidegate_sim::circle::{CircleConfig, CircleReport, Lend, Mistake, run};
use tidegate_sim::datagrams::LinkFaults;
use tidegate_sim::fault::FaultRates;
use tidegate_sim::replay::SimulationTest;

/// The paper's contract, split among six members that are 0.1 ms from each other.
fn paper(way_us: f64, members: u32, lending: Lend) -> CircleConfig {
    CircleConfig {
        limit: Limit::new(Rate::per_s(11_000), 26),
        grain: 16,
        members,
        circles: 1,
        rate_per_s: 10_000.0,
        batch: 1,
        way: Distribution::Constant { us: way_us },
        faults: FaultRates::default(),
        links: LinkFaults::NONE,
        partitions: None,
        moves: None,
        leaves: None,
        lending,
        clock_drift_ppm: 0,
        length: Duration::from_secs(20),
        seed: 1,
        mistake: None,
    }
}

fn show(name: &str, report: &CircleReport) {
    let share = |part: u64| float(part) / float(report.messages);
    eprintln!(
        "{name}: mean {:.1} us, p99 {:.3} ms, delayed {:.3}, frames {:.3}, violations {} excess {:.2} {}",
        report.delay_ns_mean / 1e3,
        float(report.delay_ns_p99) / 1e6,
        share(report.delayed),
        share(report.frames),
        report.violations,
        report.excess_max,
        report.conserved,
    );
}

/// The 500 seeds that are usual, or as many as the environment says.
const SEEDS: u64 = 500;

/// Some parts of some limit over bad links, with faults of all kinds.
fn storm(seed: u64, mistake: Option<Mistake>) -> CircleConfig {
    let (mut rng, mut more) = (Rng::stream(seed, 99), Rng::stream(seed, 98));
    let between = |rng: &mut Rng, from: u64, to: u64| rng.range(from..to + 1);
    let few = |rng: &mut Rng, from, to| u32::try_from(between(rng, from, to)).expect("a few");
    let members = few(&mut rng, 2, 6);
    let mean_us = [100.0, 2_000.0, 30_000.0][if rng.chance(0.3) { 0 } else { 1 + usize::from(rng.chance(0.5)) }];
    let rate = between(&mut rng, 200, 3_000);
    let ms = Duration::from_millis;
    let lease = ms(between(&mut rng, 50, 1_000));
    let terms = LendConfig { lease, ..LendConfig::new(Member(0)) };
    let every = |rng: &mut Rng, from, to| rng.chance(0.6).then(|| ms(between(rng, from, to)));
    CircleConfig {
        limit: Limit::new(Rate::per_s(rate), between(&mut rng, u64::from(members), 60)),
        grain: [1, 16][usize::from(more.chance(0.5))],
        members,
        circles: few(&mut rng, 1, 2),
        // Often more than the limit: then the windows are full.
        rate_per_s: float(rate) * (0.6 + rng.f64()),
        batch: few(&mut rng, 1, 4),
        way: Distribution::Exponential { mean_us },
        faults: FaultRates {
            crash_every: every(&mut rng, 500, 2_000),
            pause_every: every(&mut rng, 300, 10_000),
            clock_step_every: every(&mut rng, 300, 2_000),
        },
        links: LinkFaults { loss: rng.f64() * 0.3, duplicate: rng.f64() * 0.2, reorder: rng.f64() * 0.2 },
        partitions: every(&mut rng, 200, 2_000).map(|every| (every, lease.mul_f64(2.0 * rng.f64()))),
        moves: every(&mut rng, 50, 500),
        leaves: every(&mut more, 300, 3_000),
        lending: Lend::On(terms),
        clock_drift_ppm: if rng.chance(0.5) { 1_000 } else { 0 },
        length: ms(1_200),
        seed,
        mistake,
    }
}

#[test]
fn members_that_lend_keep_the_law_of_the_whole_whatever_goes_wrong() {
    let name = "members_that_lend_keep_the_law_of_the_whole_whatever_goes_wrong";
    let test = SimulationTest { package: env!("CARGO_PKG_NAME"), name };
    test.for_each_seed(0..SimulationTest::seeds(SEEDS), |seed| {
        let report = run(&storm(seed, None));
        assert!(report.messages > 0 && report.conserved && report.violations == 0, "{report:?}");
        report.trace
    });
}

/// The first seed of the usual ones in which a mistake is seen.
fn seen_at(mistake: Mistake) -> Option<u64> {
    (0..SEEDS).find(|&seed| {
        let report = run(&storm(seed, Some(mistake)));
        report.violations > 0 || !report.conserved
    })
}

#[test]
fn mistakes_are_seen() {
    for mistake in [
        Mistake::NoDeadline,
        Mistake::FullRestart,
        Mistake::BookTwice,
        Mistake::LendBorrowed,
        Mistake::DeepenWithTokens,
        Mistake::KeepDepth,
        Mistake::ShortLease,
    ] {
        assert!(seen_at(mistake).is_some(), "{mistake:?}");
    }
}

#[test]
fn lending_takes_most_of_the_delay_of_a_split_away() {
    let on = Lend::On(LendConfig::new(Member(0)));
    let (split, lent, far) = (run(&paper(100.0, 6, Lend::Off)), run(&paper(100.0, 6, on)), run(&paper(500.0, 6, on)));
    for (name, report) in [("split", &split), ("lent, 0.2 ms", &lent), ("lent, 1 ms", &far)] {
        show(name, report);
        assert_eq!((report.violations, report.conserved), (0, true), "{name}");
    }
    assert!(lent.delay_ns_mean * 6.0 < split.delay_ns_mean, "{lent:?} {split:?}");
    assert!(lent.delay_ns_p99 * 4 < split.delay_ns_p99, "{lent:?} {split:?}");
    assert!(far.delay_ns_p99 < 3_500_000, "{far:?}");
    assert!(lent.frames * 100 < lent.messages * 17, "{lent:?}");
}

#[test]
fn circles_that_share_frames_need_few_and_delay_less() {
    let on = Lend::On(LendConfig::new(Member(0)));
    let alone = run(&paper(100.0, 6, on));
    let shared = run(&CircleConfig { circles: 20, length: Duration::from_secs(1), ..paper(100.0, 6, on) });
    show("20 circles", &shared);
    assert_eq!((shared.violations, shared.conserved), (0, true));
    assert!(shared.frames * 100 < shared.messages * 6, "{shared:?}");
    assert!(shared.delay_ns_mean < alone.delay_ns_mean, "{shared:?} {alone:?}");
}

#[test]
fn batches_are_lent_for_as_well() {
    let batches = |lending| {
        let limit = Limit::new(Rate::per_s(11_000), 260);
        run(&CircleConfig { limit, batch: 10, ..paper(100.0, 6, lending) })
    };
    let (split, lent) = (batches(Lend::Off), batches(Lend::On(LendConfig::new(Member(0)))));
    show("batches, split", &split);
    show("batches, lent", &lent);
    assert_eq!((lent.violations, lent.conserved), (0, true));
    assert!(lent.delay_ns_mean * 12.0 < split.delay_ns_mean, "{lent:?} {split:?}");
}
