//! What comes and goes behind a limiter: bursts, short flows, and the agent itself.

use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result};
use serde_json::{Value, json};

use super::bench::{Bench, median, number};
use super::shaper_bounds::{Bound, clean, each, figure, rounds};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Lab, PORTS, report};
use super::table::Figure;
use crate::namespaces::{Host, Options};
use crate::{clock, process};

/// Flows that the programs know at most, on a device.
const FLOWS_MAX: u64 = 65_536;
/// The agent looks at its programs each second.
const LOOK: Duration = Duration::from_millis(1_500);

/// Bursts through one limiter in one round.
#[derive(Clone, Copy, Debug)]
struct Bursts {
    round: usize,
    took_us: f64,
    drops: f64,
    failed: f64,
}

pub(super) fn burst(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "burst", Options::default())?;
    let ours = [Ours::PLAIN, Ours::BATCHED].map(Limiter::Ours);
    let limiters: Vec<Limiter> = [Limiter::Htb, Limiter::Bfifo(25_000)].into_iter().chain(ours).collect();
    let mut figures = Vec::new();
    for bytes in [64_000, 256_000, 1_000_000] {
        let mut found = vec![Vec::new(); limiters.len()];
        for round in 0..lab.rounds {
            for place in 0..limiters.len() {
                let at = (place + round) % limiters.len();
                // What a small queue drops is sent again after time-outs, which double: half a minute for a burst, and
                // only its drops stand beside.
                if matches!(limiters[at], Limiter::Bfifo(_)) && round > 0 {
                    continue;
                }
                let what = format!("16 flows of {bytes} bytes, {}", limiters[at]);
                let Some(one) = lab.attempt(&what, || bursts(&lab, limiters[at], bytes)) else { continue };
                println!("  {what}: {:.0} us, {:.0} drops", one.took_us, one.drops);
                found[at].push(Bursts { round, ..one });
            }
        }
        let all = |found: &[Bursts], of: fn(&Bursts) -> f64| found.iter().map(of).collect::<Vec<_>>();
        let (plain, fifo) = (&found[0], &found[1]);
        for (limiter, ours) in limiters.iter().zip(&found).skip(2) {
            let what = format!("{limiter}, 16 flows of {bytes} bytes");
            let beside = |one: &Bursts| plain.iter().find(|other| other.round == one.round);
            let ratios: Vec<f64> = ours.iter().filter_map(|one| Some(one.took_us / beside(one)?.took_us)).collect();
            let took = |found: &[Bursts]| median(&all(found, |one| one.took_us));
            let name = format!("completion {:.0} us by {:.0}", took(ours), took(plain));
            figures.push(figure(&what, &name, &ratios, Bound::AtMost(1.1)));
            let name = format!("drops ({:.0} of one burst over a bfifo of 25 kB)", median(&all(fifo, |one| one.drops)));
            figures.push(figure(&what, &name, &all(ours, |one| one.drops), Bound::AtMost(0.0)));
            figures.push(figure(&what, "flows that failed", &all(ours, |one| one.failed), Bound::AtMost(0.0)));
        }
    }
    Ok(figures)
}

fn bursts(lab: &Lab, limiter: Limiter, bytes: u32) -> Result<Bursts> {
    let in_force = lab.put(limiter, 1_000)?;
    let before = lab.dropped(&in_force)?;
    let times = if matches!(limiter, Limiter::Bfifo(_)) { 1 } else { lab.bench.size(20, 3) };
    let found = lab.load(&in_force, &format!("burst flows=16 bytes={bytes} rounds={times}"))?;
    let took_us = number(&found, "/rounds/us_p50")?;
    Ok(Bursts { round: 0, took_us, drops: lab.dropped(&in_force)? - before, failed: number(&found, "/failed")? })
}

pub(super) fn churn(bench: &Bench) -> Result<Vec<Figure>> {
    const SHORT_FLOWS: &str = "churn.per_s=1000 churn.bytes=20000";
    let lab = Lab::new(bench, "churn", Options::default())?;
    let cell = Cell { rate_mbps: 1_000, flows: 4, congestion: "cubic" };
    let ours = [Ours::PLAIN, Ours::BATCHED, Ours::ISOLATION, Ours::BATCHED_ISOLATION].map(Limiter::Ours);
    let limiters: Vec<Limiter> = [Limiter::Htb].into_iter().chain(ours).collect();
    let found = rounds(&lab, &cell, &limiters, SHORT_FLOWS)?;
    let beside = median(&each(&found[0], |one| one.of("/churn/completion/us_p99"))?);
    let mut figures = Vec::new();
    for (limiter, found) in limiters.iter().zip(&found).skip(1) {
        let what = limiter.to_string();
        let stalls = clean(found, "/stall_ms_max")?;
        figures.push(figure(&what, "longest stall of bulk, ms", &stalls, Bound::AtMost(200.0)));
        // One that was not started is no success either.
        let lost = each(found, |one| Ok(one.of("/churn/failed")? + one.of("/churn/left_out")?))?;
        figures.push(figure(&what, "short flows that failed", &lost, Bound::AtMost(0.0)));
        let name = format!("their completion p99, us (plain HTB {beside:.0})");
        let completion = each(found, |one| one.of("/churn/completion/us_p99"))?;
        figures.push(figure(&what, &name, &completion, Bound::None));
    }
    figures.extend(lab.attempt("the flow table", || flow_table(&lab, &cell, SHORT_FLOWS)));
    Ok(figures)
}

/// What the programs remember in a run of short flows.
fn flow_table(lab: &Lab, cell: &Cell, more: &str) -> Result<Figure> {
    let in_force = lab.put(Limiter::Ours(Ours::PLAIN), cell.rate_mbps)?;
    let words = format!("send flows={} congestion={} duration_ms=2500 {more}", cell.flows, cell.congestion);
    let mut sender = lab.sender(&in_force, PORTS[0], &words);
    let sender = sender.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().into_diagnostic()?;
    // The load has warmed up for a second; then the agent looks once at least.
    clock::rest(Duration::from_secs(1) + LOOK);
    let mut status = lab.network.command(Host::Sender, lab.bench.places.tidegate_with("shaper"));
    let status = process::output(status.args(["shaper", "status", "--json"]));
    report(&sender.wait_with_output().into_diagnostic()?)?;
    let status: Value = serde_json::from_str(&status?).into_diagnostic()?;
    let of = |name: &str| {
        let value = status.pointer(&format!("/devices/0/flow_table/{name}")).and_then(Value::as_u64);
        value.ok_or_else(|| miette::miette!("the status has no flow_table/{name}"))
    };
    let (known, evicted) = (of("known")?, of("evicted_total")?);
    Ok(Figure {
        what: "flows that the programs know under this load".to_owned(),
        value: format!("{known} ({} to {FLOWS_MAX}), {evicted} evicted", cell.flows),
        spread: String::new(),
        // Bulk alone is more than none: a table that is not counted shows nothing.
        passes: (u64::from(cell.flows)..=FLOWS_MAX).contains(&known),
        runs: json!([known, evicted]),
    })
}

pub(super) fn kills(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "kills", Options::default())?;
    let one = |ours| lab.attempt(&format!("{}, killed", Limiter::Ours(ours)), || killed(&lab, ours));
    Ok([Ours::PLAIN, Ours::BATCHED].into_iter().filter_map(one).collect())
}

fn killed(lab: &Lab, ours: Ours) -> Result<Figure> {
    let times = lab.bench.size(100_u32, 5);
    let before = programs()?;
    let mut in_force = lab.put(Limiter::Ours(ours), 1_000)?;
    // A start and a pause take half a second on a quiet machine; the sender is to outlive the last of them.
    let words = format!("send flows=4 congestion=cubic sample_us=2000 duration_ms={}", 5_000 + times * 1_900);
    let mut sender = lab.sender(&in_force, PORTS[0], &words);
    let mut sender = sender.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().into_diagnostic()?;
    clock::rest(Duration::from_secs(2));
    let mut kill_all = || -> Result<()> {
        for _ in 0..times {
            in_force.kill_and_restart(lab.bench, ours, 1_000)?;
            clock::rest(Duration::from_millis(200));
        }
        in_force.kill()
    };
    let killed = kill_all();
    let outlived = sender.try_wait().into_diagnostic()?.is_none();
    // The kernel frees a program when the last that hold it are gone, a moment after its process.
    let left = clock::poll(Duration::from_secs(10), || programs().ok().filter(|left| *left <= before));
    let found = report(&sender.wait_with_output().into_diagnostic()?)?;
    killed?;
    miette::ensure!(outlived, "the load was over before the last kill");
    // Of the whole run: a flow that stands still to the end would meet some gap of the machine.
    let stall_ms = number(&found, "/all/stall_ms_max")?;
    let flows = found["flows"].as_array().map_or(&[][..], Vec::as_slice);
    // A flow that a closed window holds is asked again after a time-out of 200 ms.
    let stalled = flows.iter().filter(|flow| flow["stall_ms_max"].as_f64().is_none_or(|ms| ms >= 200.0)).count();
    let left = left.map_or_else(|| programs().map(|now| now.saturating_sub(before)), |_| Ok(0))?;
    Ok(Figure {
        what: format!("{}, killed {times} times under 4 flows", Limiter::Ours(ours)),
        value: format!("{stalled} flows stalled, longest stall {stall_ms:.1} ms, {left} programs left"),
        spread: format!("Jain {:.3}", number(&found, "/jain")?),
        passes: stalled == 0 && flows.len() == 4 && left == 0,
        runs: json!(found),
    })
}

/// Programs of ours in the kernel.
fn programs() -> Result<usize> {
    let printed = process::output(Command::new("bpftool").args(["-j", "prog", "show"]))?;
    let programs: Value = serde_json::from_str(&printed).into_diagnostic()?;
    let is_ours = |program: &&Value| super::shaper_cost::is_ours(program);
    Ok(programs.as_array().map_or(0, |all| all.iter().filter(is_ours).count()))
}
