//! Members that lend keep the law of the whole, whatever goes wrong; and what lending gains.

use std::time::Duration;

use tidegate_core::Rate;
use tidegate_core::lend::{LendConfig, Member};
use tidegate_core::limit::Limit;
use tidegate_sim::Distribution;
use tidegate_sim::circle::{CircleConfig, CircleReport, Lend, run};
use tidegate_sim::datagrams::LinkFaults;
use tidegate_sim::fault::FaultRates;

/// The paper's contract, split among six members that are 0.1 ms from each other.
fn paper(way_us: f64, members: u32, lending: Lend) -> CircleConfig {
    CircleConfig {
        limit: Limit::new(Rate::per_s(11_000), 26),
        members,
        circles: 1,
        rate_per_s: 10_000.0,
        batch: 1,
        way: Distribution::Constant { us: way_us },
        faults: FaultRates::default(),
        links: LinkFaults::NONE,
        partitions: None,
        moves: None,
        lending,
        clock_drift_ppm: 0,
        length: Duration::from_secs(20),
        seed: 1,
        mistake: None,
    }
}

fn show(name: &str, report: &CircleReport) {
    let share = |part: u64| part as f64 / report.messages as f64;
    eprintln!(
        "{name}: mean {:.1} us, p99 {:.3} ms, delayed {:.3}, frames {:.3}, violations {} excess {:.2} {}",
        report.delay_ns_mean / 1e3,
        report.delay_ns_p99 as f64 / 1e6,
        share(report.delayed),
        share(report.frames),
        report.violations,
        report.excess_max,
        report.conserved,
    );
}

#[test]
fn figures() {
    let on = Lend::On(LendConfig::new(Member(0)));
    show("single", &run(&paper(100.0, 1, Lend::Off)));
    for way in [100.0, 500.0] {
        show(&format!("off {way}"), &run(&paper(way, 6, Lend::Off)));
        show(&format!("on {way}"), &run(&paper(way, 6, on)));
    }
}
