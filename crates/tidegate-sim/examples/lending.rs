//! What lending costs and gains in virtual time, one line of JSON for each case.
//!
//! `cargo run --release -p tidegate-sim --example lending -- SECONDS`

use std::time::Duration;

use tidegate_core::Rate;
use tidegate_core::lend::{LendConfig, Member};
use tidegate_core::limit::Limit;
use tidegate_core::number::float;
use tidegate_sim::Distribution;
use tidegate_sim::circle::{CircleConfig, CircleReport, Lend, run};
use tidegate_sim::datagrams::LinkFaults;
use tidegate_sim::fault::FaultRates;

/// One case: the paper's contract and load, unless it says otherwise.
struct Case {
    name: &'static str,
    members: u32,
    circles: u32,
    /// Messages that arrive together. The burst is so many times the paper's: 99 % of the messages of one bucket are not
    /// delayed.
    batch: u32,
    round_trip_us: f64,
    lends: bool,
}

const CASES: [Case; 9] = [
    Case { name: "single", members: 1, circles: 1, batch: 1, round_trip_us: 200.0, lends: false },
    Case { name: "split", members: 6, circles: 1, batch: 1, round_trip_us: 200.0, lends: false },
    Case { name: "lent", members: 6, circles: 1, batch: 1, round_trip_us: 200.0, lends: true },
    Case { name: "lent_far", members: 6, circles: 1, batch: 1, round_trip_us: 1_000.0, lends: true },
    Case { name: "lent_5", members: 6, circles: 5, batch: 1, round_trip_us: 200.0, lends: true },
    Case { name: "lent_20", members: 6, circles: 20, batch: 1, round_trip_us: 200.0, lends: true },
    Case { name: "batches_single", members: 1, circles: 1, batch: 10, round_trip_us: 200.0, lends: false },
    Case { name: "batches_split", members: 6, circles: 1, batch: 10, round_trip_us: 200.0, lends: false },
    Case { name: "batches_lent", members: 6, circles: 1, batch: 10, round_trip_us: 200.0, lends: true },
];

impl Case {
    /// As many messages in every case, over all circles.
    fn config(&self, seconds: f64) -> CircleConfig {
        let lending = if self.lends { Lend::On(LendConfig::new(Member(0))) } else { Lend::Off };
        CircleConfig {
            limit: Limit::new(Rate::per_s(11_000), 26 * u64::from(self.batch)),
            grain: 16,
            members: self.members,
            circles: self.circles,
            rate_per_s: 10_000.0,
            batch: self.batch,
            way: Distribution::Constant { us: self.round_trip_us / 2.0 },
            faults: FaultRates::default(),
            links: LinkFaults::NONE,
            partitions: None,
            moves: None,
            leaves: None,
            lending,
            clock_drift_ppm: 0,
            length: Duration::from_secs_f64(seconds / f64::from(self.circles)),
            seed: 1,
            mistake: None,
        }
    }
}

#[expect(clippy::print_stdout, reason = "its output")]
fn show(name: &str, report: &CircleReport) {
    let share = |part: u64| float(part) / float(report.messages);
    println!(
        "{{\"name\":\"{name}\",\"messages\":{},\"mean_us\":{:.2},\"p99_us\":{:.1},\"delayed\":{:.4},\"frames\":{:.4},\
         \"violations\":{},\"conserved\":{}}}",
        report.messages,
        report.delay_ns_mean / 1e3,
        float(report.delay_ns_p99) / 1e3,
        share(report.delayed),
        share(report.frames),
        report.violations,
        report.conserved,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds =
        arguments.next().map_or(200.0, |text| text.parse().expect("the first argument is a number of seconds"));
    let only: Vec<String> = arguments.collect();
    for case in CASES.iter().filter(|case| only.is_empty() || only.iter().any(|name| name == case.name)) {
        show(case.name, &run(&case.config(seconds)));
    }
}
