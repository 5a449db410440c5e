//! Several classes at once: each has its own bounds, and what one leaves another takes.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic as _, Result};
use serde_json::Value;

use super::bench::{Bench, median, number};
use super::shaper_bounds::{Bound, EFFICIENCY, JAIN, figure};
use super::shaper_limiter::{Class, InForce, Limiter, Ours};
use super::shaper_run::{Lab, PORTS, clean_of, efficiency, efficiency_of, report};
use super::table::Figure;
use crate::clock;
use crate::namespaces::Options;

const SRTT_US: f64 = 200.0;
/// Ours are behind the first.
const LIMITERS: [Limiter; 3] = [Limiter::Htb, Limiter::Ours(Ours::PLAIN), Limiter::Ours(Ours::BATCHED)];
/// How long a new share must hold to count as reached, and how near it must be.
const HELD_NS: u64 = 5_000_000;
const NEAR: f64 = 0.1;
/// The new share is settled by then, whenever it was reached.
const SETTLED_NS: u64 = 100_000_000;

fn class(rate_mbps: u32, ceil_mbps: u32, port: u16) -> Class {
    Class { rate_mbps, ceil_mbps, port: Some(port) }
}

/// `one` of each limiter in turns, each first once in a while: `result[i]` are those of `LIMITERS[i]`.
fn in_turns<T>(lab: &Lab, what: &str, one: impl Fn(Limiter) -> Result<T>) -> Vec<Vec<T>> {
    let mut found: Vec<Vec<T>> = LIMITERS.iter().map(|_| Vec::new()).collect();
    for round in 0..lab.rounds {
        for place in 0..LIMITERS.len() {
            let at = (place + round) % LIMITERS.len();
            let limiter = LIMITERS[at];
            found[at].extend(lab.attempt(&format!("{what}, {limiter}"), || one(limiter)));
        }
    }
    found
}

fn all<T>(found: &[T], of: impl Fn(&T) -> f64) -> Vec<f64> {
    found.iter().map(of).collect()
}

/// A class of a run with two.
#[derive(Clone, Copy, Debug)]
struct Held {
    efficiency: f64,
    srtt_us_p99: f64,
    jain: f64,
}

pub(super) fn two_limiters(bench: &Bench) -> Result<Vec<Figure>> {
    const RATE_MBPS: u32 = 1_000;
    let lab = Lab::new(bench, "two", Options::default())?.of_runs(2_500);
    let mut figures = Vec::new();
    for flows in [1, 4] {
        let (measured_ms, warm_up_ms) = lab.times_ms;
        let words = format!("send flows={flows} congestion=cubic duration_ms={measured_ms} warm_up_ms={warm_up_ms}");
        let what = format!("two of 1 Gb/s, {flows} flows each");
        let found = in_turns(&lab, &what, |limiter| {
            let classes = PORTS.map(|port| class(RATE_MBPS, RATE_MBPS, port));
            let in_force = InForce::put_classes(bench, &lab.network, limiter, &classes)?;
            let before = lab.dropped(&in_force)?;
            let [one, other] = PORTS.map(|port| start(&lab, &in_force, port, &words));
            let reports = [finish(one?)?, finish(other?)?];
            let held = |report: &Value| -> Result<Held> {
                Ok(Held {
                    efficiency: efficiency_of(report, measured_ms, RATE_MBPS)?,
                    srtt_us_p99: clean_of(report, measured_ms, "/srtt/us_p99")?,
                    jain: number(report, "/jain")?,
                })
            };
            let (held, drops) = ([held(&reports[0])?, held(&reports[1])?], lab.dropped(&in_force)? - before);
            let text = held.map(|one| format!("efficiency {:.3}, srtt p99 {:.0} us", one.efficiency, one.srtt_us_p99));
            println!("  {what}, {limiter}: {}; {drops:.0} drops", text.join("; "));
            Ok((held, drops))
        });
        for (limiter, ours) in LIMITERS.iter().zip(&found).skip(1) {
            for at in 0..PORTS.len() {
                let what = format!("{limiter}, limiter {} of {what}", at + 1);
                let efficiency = all(ours, |(held, _)| held[at].efficiency);
                figures.push(figure(&what, "efficiency", &efficiency, Bound::AtLeast(EFFICIENCY)));
                let srtt = |found: &[([Held; 2], f64)]| all(found, |(held, _)| held[at].srtt_us_p99);
                let name = format!("srtt p99, us (plain HTB {:.0})", median(&srtt(&found[0])));
                figures.push(figure(&what, &name, &srtt(ours), Bound::AtMost(SRTT_US)));
                let jain = all(ours, |(held, _)| held[at].jain);
                figures.push(figure(&what, "Jain's index", &jain, Bound::AtLeast(JAIN)));
            }
            let drops = all(ours, |(_, drops)| *drops);
            figures.push(figure(&format!("{limiter}, {what}"), "drops", &drops, Bound::AtMost(0.0)));
        }
    }
    Ok(figures)
}

/// One class that has all, until another wants its own.
#[derive(Clone, Copy, Debug)]
struct Borrowed {
    /// Efficiency of the first while it is alone.
    alone: f64,
    /// Efficiency of both together afterwards.
    together: f64,
    /// When the first has its new share.
    reached_ms: f64,
    srtt_us_p99: f64,
    jain: f64,
    drops: f64,
}

/// So that the floor of two segments for each flow is below the bound at both rates.
const SHARE_MBPS: u32 = 1_000;
const WHOLE_MBPS: u32 = 2 * SHARE_MBPS;

pub(super) fn borrowing(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "borrow", Options::default())?;
    let what = "two classes of 1 Gb/s that may use 2 Gb/s, 4 flows each";
    let found = in_turns(&lab, what, |limiter| {
        let one = borrowed(&lab, limiter)?;
        println!(
            "  {what}, {limiter}: alone {:.3}, new share after {:.1} ms, together {:.3}, srtt p99 {:.0} us",
            one.alone, one.reached_ms, one.together, one.srtt_us_p99
        );
        Ok(one)
    });
    let mut figures = Vec::new();
    for (limiter, ours) in LIMITERS.iter().zip(&found).skip(1) {
        let what = format!("{limiter}, {what}");
        let beside = |of: fn(&Borrowed) -> f64| median(&all(&found[0], of));
        let alone = all(ours, |one| one.alone);
        figures.push(figure(&what, "efficiency of one alone", &alone, Bound::AtLeast(EFFICIENCY)));
        let name = format!("its new share reached after, ms (plain HTB {:.1})", beside(|one| one.reached_ms));
        figures.push(figure(&what, &name, &all(ours, |one| one.reached_ms), Bound::AtMost(5.0)));
        let together = all(ours, |one| one.together);
        figures.push(figure(&what, "efficiency of both afterwards", &together, Bound::AtLeast(EFFICIENCY)));
        let name = format!("its srtt p99 over all of it, us (plain HTB {:.0})", beside(|one| one.srtt_us_p99));
        figures.push(figure(&what, &name, &all(ours, |one| one.srtt_us_p99), Bound::AtMost(SRTT_US)));
        figures.push(figure(&what, "Jain's index", &all(ours, |one| one.jain), Bound::AtLeast(JAIN)));
        figures.push(figure(&what, "drops", &all(ours, |one| one.drops), Bound::AtMost(0.0)));
    }
    Ok(figures)
}

fn borrowed(lab: &Lab, limiter: Limiter) -> Result<Borrowed> {
    const FIRST_MS: u32 = 3_000;
    let classes = PORTS.map(|port| class(SHARE_MBPS, WHOLE_MBPS, port));
    let in_force = InForce::put_classes(lab.bench, &lab.network, limiter, &classes)?;
    let folder = lab.bench.folder("borrowing")?;
    std::fs::create_dir_all(&folder).into_diagnostic()?;
    let file = |name: &str| folder.join(name);
    let before = lab.dropped(&in_force)?;
    let words = |more: &str, name: &str| {
        format!("send flows=4 congestion=cubic sample_us=500 {more} samples={}", file(name).display())
    };
    let first = start(lab, &in_force, PORTS[0], &words(&format!("duration_ms={FIRST_MS}"), "first"))?;
    // It has warmed up and had the line for a second; both end at about the same time.
    clock::rest(Duration::from_secs(2));
    let second = start(lab, &in_force, PORTS[1], &words("duration_ms=1900 warm_up_ms=0", "second"));
    let report = finish(first)?;
    finish(second?)?;
    let drops = lab.dropped(&in_force)? - before;
    let (first, second) = (samples_of(&file("first"))?, samples_of(&file("second"))?);
    let change = second.first().ok_or_else(|| miette::miette!("the second sender has no samples"))?.0;
    let alone: Vec<(u64, u64)> = first.iter().copied().filter(|(at, _)| *at < change).collect();
    let ends = [&first, &second].iter().filter_map(|samples| Some(samples.last()?.0)).min().unwrap_or(change);
    let settled = |samples: &[(u64, u64)]| -> f64 {
        let within = |(at, _): &(u64, u64)| (change + SETTLED_NS..=ends).contains(at);
        mbps(&samples.iter().copied().filter(within).collect::<Vec<_>>())
    };
    let reached = reached(&first, change, efficient(SHARE_MBPS));
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
    let reached_ms = reached.map_or(f64::INFINITY, |ns| ns as f64 / 1e6);
    Ok(Borrowed {
        alone: efficiency(mbps(&alone), WHOLE_MBPS),
        together: efficiency(settled(&first) + settled(&second), WHOLE_MBPS),
        reached_ms,
        srtt_us_p99: clean_of(&report, FIRST_MS, "/srtt/us_p99")?,
        jain: number(&report, "/jain")?,
        drops,
    })
}

/// The goodput that is all of a rate.
fn efficient(rate_mbps: u32) -> f64 {
    f64::from(rate_mbps) / efficiency(f64::from(rate_mbps), rate_mbps)
}

fn start(lab: &Lab, in_force: &InForce, port: u16, words: &str) -> Result<Child> {
    let mut sender = lab.sender(in_force, port, words);
    sender.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().into_diagnostic()
}

fn finish(sender: Child) -> Result<Value> {
    report(&sender.wait_with_output().into_diagnostic()?)
}

/// `AT,ACKED` in each line.
fn samples_of(file: &Path) -> Result<Vec<(u64, u64)>> {
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
