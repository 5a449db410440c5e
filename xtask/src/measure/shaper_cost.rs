//! What short queues cost in processor time.

use std::process::Command;

use miette::{IntoDiagnostic as _, Result};
use serde_json::{Value, json};

use super::bench::{Bench, median};
use super::shaper_bounds::{Bound, each, figure, ratios, rounds};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Found, Lab};
use super::table::Figure;
use crate::namespaces::Options;
use crate::process;

/// Makes the kernel count the time in its programs.
const COUNTING: &str = "/proc/sys/kernel/bpf_stats_enabled";

pub(super) fn cost(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "cost", Options::default())?.of_runs(4_000);
    let ours = [Ours::PLAIN, Ours::BATCHED, Ours::ISOLATION, Ours::BATCHED_ISOLATION].map(Limiter::Ours);
    let limiters: Vec<Limiter> = [Limiter::Htb].into_iter().chain(ours).collect();
    let mut figures = Vec::new();
    // What the machine does without bulk, requests and looks at the clock among it.
    let nothing = Cell { rate_mbps: 1_000, flows: 0, congestion: "cubic" };
    let idle = rounds(&lab, &nothing, &[Limiter::None], "")?;
    let idle = median(&idle[0].iter().map(|one| one.busy_s / one.seconds).collect::<Vec<_>>());
    for (flows, most) in [(1, 3.0), (4, 3.0), (16, 8.0)] {
        let cell = Cell { rate_mbps: 1_000, flows, congestion: "cubic" };
        let found = rounds(&lab, &cell, &limiters, "")?;
        let cpu = |one: &Found| Ok(one.cpu_s_per_gigabit(idle));
        let packets = |found: &[Found]| median(&found.iter().map(Found::segments_per_packet).collect::<Vec<_>>());
        let plain = &found[0];
        for (limiter, ours) in limiters.iter().zip(&found).skip(1) {
            let name = format!(
                "CPU per gigabit {:.3} s by {:.3}; {:.1} segments a packet by {:.1}",
                median(&each(ours, cpu)?),
                median(&each(plain, cpu)?),
                packets(ours),
                packets(plain)
            );
            let ratios = ratios(ours, plain, cpu)?;
            figures.push(figure(&format!("{limiter}, {}", cell.name()), &name, &ratios, Bound::AtMost(most)));
        }
    }
    for limiter in ours {
        let what = format!("{limiter}, in the kernel's programs");
        figures.extend(lab.attempt(&what, || in_programs(&lab, limiter)));
    }
    Ok(figures)
}

/// Nanoseconds in the kernel's programs for each packet, in a run of its own: counting costs time too.
fn in_programs(lab: &Lab, limiter: Limiter) -> Result<Figure> {
    let cell = Cell { rate_mbps: 1_000, flows: 16, congestion: "cubic" };
    let in_force = lab.put(limiter, cell.rate_mbps)?;
    let was = std::fs::read_to_string(COUNTING).into_diagnostic()?;
    std::fs::write(COUNTING, "1").into_diagnostic()?;
    let run = lab.run(&in_force, &cell, "");
    let counted = counted();
    std::fs::write(COUNTING, was.trim()).into_diagnostic()?;
    run?;
    let programs = counted?;
    let ns: Vec<f64> = programs.iter().map(|(_, ns)| *ns).collect();
    let most = ns.iter().copied().fold(f64::NAN, f64::max);
    let each: Vec<String> = programs.iter().map(|(name, ns)| format!("{name} {ns:.0} ns")).collect();
    Ok(Figure {
        what: format!("{limiter}, {}: in the kernel's programs", cell.name()),
        value: format!("{} a packet (at most 400)", each.join(", ")),
        spread: String::new(),
        passes: most <= 400.0,
        runs: json!(ns),
    })
}

/// A program of ours, in what `bpftool` prints of it.
pub(super) fn is_ours(program: &Value) -> bool {
    program["type"] == "sched_cls" && matches!(program["name"].as_str(), Some("egress" | "ingress"))
}

/// Nanoseconds for each run of our programs.
fn counted() -> Result<Vec<(String, f64)>> {
    let printed = process::output(Command::new("bpftool").args(["-j", "prog", "show"]))?;
    let programs: Value = serde_json::from_str(&printed).into_diagnostic()?;
    let of = |program: &Value| {
        let (ns, runs) = (program["run_time_ns"].as_f64()?, program["run_cnt"].as_f64()?);
        Some((program["name"].as_str()?.to_owned(), ns / runs.max(1.0)))
    };
    Ok(programs.as_array().map_or(Vec::new(), |all| all.iter().filter(|one| is_ours(one)).filter_map(of).collect()))
}
