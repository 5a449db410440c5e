//! What comes and goes behind a limiter: bursts, neighbours, short flows, and the agent itself.

use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result};
use serde_json::{Value, json};

use super::bench::{Bench, median, number};
use super::shaper_bounds::{Bound, clean, figure, rounds};
use super::shaper_limiter::{Class, InForce, Limiter, Ours};
use super::shaper_run::{Cell, Lab, PORTS, report};
use super::table::Figure;
use crate::namespaces::Options;
use crate::{clock, process};

const ROUNDS: usize = 5;
/// Frames of 1,514 bytes with 1,448 of payload.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// How long a new share must hold to count as reached, and how near it must be.
const HELD_NS: u64 = 5_000_000;
const NEAR: f64 = 0.1;

pub(super) fn burst(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "burst", Options::default())?;
    let limiters = [Limiter::Htb, Limiter::Ours(Ours::PLAIN), Limiter::Bfifo(25_000)];
    let mut figures = Vec::new();
    for bytes in [64_000, 256_000, 1_000_000] {
        let (mut took, mut drops) = (vec![Vec::new(); limiters.len()], vec![Vec::new(); limiters.len()]);
        for _ in 0..bench.size(ROUNDS, 1) {
            for (at, limiter) in limiters.into_iter().enumerate() {
                let in_force = lab.put(limiter, 1_000)?;
                let before = lab.dropped()?;
                // What a small queue drops is sent again after time-outs, which double: seconds for each round.
                let times = if matches!(limiter, Limiter::Bfifo(_)) { bench.size(3, 1) } else { bench.size(20, 3) };
                let words = format!("burst flows=16 bytes={bytes} rounds={times}");
                let found = lab.load(&in_force, &words)?;
                took[at].push(number(&found, "/rounds/us_p50")?);
                drops[at].push(lab.dropped()? - before);
            }
        }
        let what = format!("16 flows of {bytes} bytes");
        let ratios: Vec<f64> = took[1].iter().zip(&took[0]).map(|(ours, plain)| ours / plain).collect();
        let name = format!("completion {:.0} us by {:.0}", median(&took[1]), median(&took[0]));
        figures.push(figure(&what, &name, &ratios, Bound::AtMost(1.1)));
        let name = format!("drops ({:.0} over a bfifo of 25 kB)", median(&drops[2]));
        figures.push(figure(&what, &name, &drops[1], Bound::AtMost(0.0)));
    }
    Ok(figures)
}

/// Both classes at once, each with its own sender.
fn both(lab: &Lab, in_force: &InForce, words: &str) -> Result<[Value; 2]> {
    let start = |port| lab.sender(in_force, port, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let children = [start(PORTS[0]).into_diagnostic()?, start(PORTS[1]).into_diagnostic()?];
    let mut reports = children.map(|child| child.wait_with_output().into_diagnostic());
    let [one, other] = &mut reports;
    let read = |output: &mut Result<std::process::Output>| {
        let output = std::mem::replace(output, Err(miette::miette!("read already")))?;
        report(&output)
    };
    Ok([read(one)?, read(other)?])
}

fn class(rate_mbps: u32, ceil_mbps: u32, port: u16) -> Class {
    Class { rate_mbps, ceil_mbps, port: Some(port) }
}

pub(super) fn two_limiters(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "two", Options::default())?;
    let mut figures = Vec::new();
    for flows in [1, 4] {
        let classes = PORTS.map(|port| class(1_000, 1_000, port));
        let mut found: Vec<(bool, [Value; 2])> = Vec::new();
        for _ in 0..bench.size(ROUNDS, 1) {
            for limiter in [Limiter::Htb, Limiter::Ours(Ours::PLAIN)] {
                let in_force = InForce::put_classes(bench, &lab.network, limiter, &classes)?;
                let words = format!("send flows={flows} congestion=cubic duration_ms={}", bench.size(5_000, 1_000));
                found.push((limiter != Limiter::Htb, both(&lab, &in_force, &words)?));
            }
        }
        for at in 0..2 {
            let what = format!("limiter {} of two of 1 Gb/s, {flows} flows", at + 1);
            let values = |is_ours: bool, pointer: &str| -> Result<Vec<f64>> {
                let of = found.iter().filter(|(ours, _)| *ours == is_ours);
                of.map(|(_, reports)| number(&reports[at], pointer)).collect()
            };
            let efficiency: Vec<f64> =
                values(true, "/clean/goodput_mbps")?.iter().map(|mbps| mbps / (1_000.0 * PAYLOAD)).collect();
            figures.push(figure(&what, "efficiency", &efficiency, Bound::AtLeast(0.98)));
            let beside = median(&values(false, "/clean/srtt/us_p99")?);
            let name = format!("srtt p99, us (plain HTB {beside:.0})");
            figures.push(figure(&what, &name, &values(true, "/clean/srtt/us_p99")?, Bound::AtMost(200.0)));
        }
    }
    Ok(figures)
}

pub(super) fn borrowing(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "borrow", Options::default())?;
    let classes = PORTS.map(|port| class(500, 1_000, port));
    let (mut alone, mut settled, mut srtt) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(ROUNDS, 1) {
        let in_force = InForce::put_classes(bench, &lab.network, Limiter::Ours(Ours::PLAIN), &classes)?;
        let folder = bench.folder("borrowing")?;
        std::fs::create_dir_all(&folder).into_diagnostic()?;
        let file = |name: &str| folder.join(name);
        let sender = |port, more: String| {
            let words = format!("send flows=4 congestion=cubic {more}");
            lab.sender(&in_force, port, &words).stdout(Stdio::piped()).spawn().into_diagnostic()
        };
        let first = sender(PORTS[0], format!("duration_ms=4000 samples={}", file("first").display()))?;
        // It has warmed up and had the line for a second.
        clock::rest(Duration::from_secs(2));
        let samples = format!("duration_ms=2000 warm_up_ms=0 samples={}", file("second").display());
        let second = sender(PORTS[1], samples)?;
        let (first, second) =
            (first.wait_with_output().into_diagnostic()?, second.wait_with_output().into_diagnostic()?);
        srtt.push(number(&report(&first)?, "/clean/srtt/us_p99")?);
        report(&second)?;
        let (first, second) = (samples_of(&file("first"))?, samples_of(&file("second"))?);
        let change = second.first().ok_or_else(|| miette::miette!("the second sender has no samples"))?.0;
        let before: Vec<(u64, u64)> = first.iter().copied().filter(|(at, _)| *at < change).collect();
        alone.push(mbps(&before) / (1_000.0 * PAYLOAD));
        let ns = reached(&first, change, 500.0 * PAYLOAD);
        #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
        settled.push(ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e6));
    }
    let what = "two classes of 500 Mb/s that may use 1 Gb/s, 4 flows each";
    Ok(vec![
        figure(what, "efficiency of one alone", &alone, Bound::AtLeast(0.98)),
        figure(what, "its new share reached after, ms", &settled, Bound::AtMost(5.0)),
        figure(what, "its srtt p99 over all of it, us", &srtt, Bound::AtMost(200.0)),
    ])
}

/// `AT,ACKED` in each line.
fn samples_of(file: &std::path::Path) -> Result<Vec<(u64, u64)>> {
    let text = std::fs::read_to_string(file).into_diagnostic()?;
    let read = |line: &str| {
        let (at, acked) = line.split_once(',')?;
        Some((at.parse().ok()?, acked.parse().ok()?))
    };
    text.lines().map(|line| read(line).ok_or_else(|| miette::miette!("no sample: {line}"))).collect()
}

fn mbps(samples: &[(u64, u64)]) -> f64 {
    let Some((first, last)) = samples.first().zip(samples.last()) else { return f64::NAN };
    #[expect(clippy::cast_precision_loss, reason = "a run's bytes and nanoseconds")]
    let rate = (last.1 - first.1) as f64 * 8e3 / (last.0 - first.0).max(1) as f64;
    rate
}

/// How long after `change` goodput first keeps near `share_mbps` for a while.
fn reached(samples: &[(u64, u64)], change: u64, share_mbps: f64) -> Option<u64> {
    let after: Vec<(u64, u64)> = samples.iter().copied().filter(|(at, _)| *at >= change).collect();
    (0..after.len()).find_map(|start| {
        let end = after[start..].iter().position(|(at, _)| at - after[start].0 >= HELD_NS)?;
        let rate = mbps(&after[start..=start + end]);
        ((rate / share_mbps - 1.0).abs() <= NEAR).then(|| after[start].0 - change)
    })
}

pub(super) fn churn(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "churn", Options::default())?;
    let cell = Cell { rate_mbps: 1_000, flows: 4, congestion: "cubic" };
    let limiters = [Limiter::Htb, Limiter::Ours(Ours::PLAIN), Limiter::Ours(Ours::ISOLATION)];
    let found = rounds(&lab, &cell, &limiters, "churn.per_s=1000 churn.bytes=20000")?;
    let beside = median(&of(&found[0], "/churn/completion/us_p99")?);
    let mut figures = Vec::new();
    for (limiter, found) in limiters.iter().zip(&found).skip(1) {
        let what = limiter.to_string();
        let stalls = clean(found, "/stall_ms_max")?;
        figures.push(figure(&what, "longest stall of bulk, ms", &stalls, Bound::AtMost(200.0)));
        figures.push(figure(&what, "short flows that failed", &of(found, "/churn/failed")?, Bound::AtMost(0.0)));
        let name = format!("their completion p99, us (plain HTB {beside:.0})");
        figures.push(figure(&what, &name, &of(found, "/churn/completion/us_p99")?, Bound::None));
    }
    Ok(figures)
}

fn of(found: &[super::shaper_run::Found], pointer: &str) -> Result<Vec<f64>> {
    found.iter().map(|one| one.of(pointer)).collect()
}

pub(super) fn kills(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "kills", Options::default())?;
    let times = bench.size(100_u32, 5);
    let before = programs()?;
    let mut in_force = lab.put(Limiter::Ours(Ours::PLAIN), 1_000)?;
    // A start and a pause take less than a second; the sender outlives the last of them.
    let words = format!("send flows=4 congestion=cubic sample_us=2000 duration_ms={}", times * 900);
    let child = lab.sender(&in_force, PORTS[0], &words).stdout(Stdio::piped()).spawn().into_diagnostic()?;
    clock::rest(Duration::from_secs(2));
    for _ in 0..times {
        in_force.kill_and_restart(bench, Ours::PLAIN, 1_000)?;
        clock::rest(Duration::from_millis(200));
    }
    in_force.kill()?;
    // The kernel frees a program when the last that hold it are gone, a moment after its process.
    let left = clock::poll(Duration::from_secs(10), || programs().ok().filter(|left| *left <= before));
    let found = report(&child.wait_with_output().into_diagnostic()?)?;
    let stall_ms = number(&found, "/clean/stall_ms_max")?;
    let flows = found["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let stuck = flows.iter().filter(|flow| flow["goodput_mbps"].as_f64().is_none_or(|mbps| mbps < 1.0)).count();
    let left = left.map_or_else(|| programs().map(|now| now.saturating_sub(before)), |_| Ok(0))?;
    Ok(vec![Figure {
        what: format!("killed {times} times under 4 flows"),
        value: format!("{stuck} flows stalled, longest stall {stall_ms:.1} ms, {left} programs left"),
        spread: format!("Jain {:.3}", number(&found, "/jain")?),
        // A flow that a closed window holds is asked again after a time-out of 200 ms.
        passes: stuck == 0 && flows.len() == 4 && stall_ms < 200.0 && left == 0,
        runs: json!(found),
    }])
}

/// Programs of ours in the kernel.
fn programs() -> Result<usize> {
    let printed = process::output(Command::new("bpftool").args(["-j", "prog", "show"]))?;
    let programs: Value = serde_json::from_str(&printed).into_diagnostic()?;
    let is_ours = |program: &&Value| super::shaper_cost::is_ours(program);
    Ok(programs.as_array().map_or(0, |all| all.iter().filter(is_ours).count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_reached_when_it_is_kept() {
        // 1,000 bytes a millisecond are 8 Mb/s; from 10 ms on half of that.
        let ms = 1_000_000;
        let acked = |at: u64| if at <= 10 { at * 1_000 } else { 10_000 + (at - 10) * 500 };
        let samples: Vec<(u64, u64)> = (0..30).map(|at| (at * ms, acked(at))).collect();
        assert!((mbps(&samples[..10]) - 8.0).abs() < 1e-9);
        assert_eq!(reached(&samples, 8 * ms, 4.0), Some(2 * ms));
        assert_eq!(reached(&samples, 12 * ms, 4.0), Some(0));
        assert_eq!(reached(&samples, 12 * ms, 8.0), None);
    }
}
