//! How long queues are behind a limiter, and what holding them short costs in goodput.

use miette::Result;
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Found, Lab};
use super::table::Figure;
use crate::namespaces::Options;

const ROUNDS: usize = 5;
/// Goodput of what the rate can carry.
const EFFICIENCY: f64 = 0.98;
const JAIN: f64 = 0.98;
/// Sizes of the small queues that stand beside ours: 1/8 ms to 1 ms at 1 Gb/s.
const FIFOS: [u32; 5] = [12_500, 20_000, 25_000, 50_000, 100_000];
/// The burst of Open vSwitch's policing where none is given (8,000 kbit), at 1 Gb/s.
const OVS_BURST_MS: u32 = 8;
/// What its manual advises for TCP: 80 % of a second of the rate (`ingress_policing_burst`).
const OVS_ADVISED_MS: u32 = 800;

/// A bound of the median over all rounds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Reported only.
    None,
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::None => value.is_finite(),
        }
    }
}

/// One figure over all rounds.
pub(super) fn figure(what: &str, name: &str, values: &[f64], bound: Bound) -> Figure {
    let of = match bound {
        Bound::AtMost(most) => format!(" (at most {most})"),
        Bound::AtLeast(least) => format!(" (at least {least})"),
        Bound::None => String::new(),
    };
    Figure {
        what: format!("{what}: {name}"),
        value: format!("{:.3}{of}", median(values)),
        spread: format!("{} over {}", range(values), values.len()),
        passes: bound.holds(median(values)),
        runs: json!(values),
    }
}

/// Runs of several limiters in turns, each first once in a while: `result[i]` are those of `limiters[i]`. The idle link is
/// asked without bulk.
pub(super) fn rounds(lab: &Lab, cell: &Cell, limiters: &[Limiter], more: &str) -> Result<Vec<Vec<Found>>> {
    let mut found = vec![Vec::new(); limiters.len()];
    for round in 0..lab.bench.size(ROUNDS, 1) {
        for place in 0..limiters.len() {
            let at = (place + round) % limiters.len();
            let in_force = lab.put(limiters[at], cell.rate_mbps)?;
            let flows = if limiters[at] == Limiter::None { 0 } else { cell.flows };
            let one = lab.run(&in_force, &Cell { flows, ..*cell }, more)?;
            println!("  {}, {}: {}", cell.name(), limiters[at], short(&one)?);
            found[at].push(one);
        }
    }
    Ok(found)
}

fn short(found: &Found) -> Result<String> {
    Ok(format!(
        "efficiency {:.3}, srtt p99 {:.0} us, requests p50 {:.0} p99 {:.0} us, {:.0} drops, stall {:.1} ms",
        found.efficiency,
        found.clean("/srtt/us_p99")?,
        found.clean("/requests/us_p50")?,
        found.clean("/requests/us_p99")?,
        found.drops,
        found.clean("/stall_ms_max")?
    ))
}

/// A figure of each run.
pub(super) fn each(found: &[Found], of: impl Fn(&Found) -> Result<f64>) -> Result<Vec<f64>> {
    found.iter().map(of).collect()
}

/// The same without what gaps spoilt.
pub(super) fn clean(found: &[Found], pointer: &str) -> Result<Vec<f64>> {
    each(found, |one| one.clean(pointer))
}

/// The bounds of one cell, with plain HTB's round trip beside.
fn bounds(what: &str, ours: &[Found], plain: &[Found], srtt_us: f64) -> Result<Vec<Figure>> {
    let beside = median(&clean(plain, "/srtt/us_p99")?);
    Ok(vec![
        figure(what, "efficiency", &each(ours, |one| Ok(one.efficiency))?, Bound::AtLeast(EFFICIENCY)),
        figure(
            what,
            &format!("srtt p99, us (plain HTB {beside:.0})"),
            &clean(ours, "/srtt/us_p99")?,
            Bound::AtMost(srtt_us),
        ),
        figure(what, "drops", &each(ours, |one| Ok(one.drops))?, Bound::AtMost(0.0)),
        figure(what, "Jain's index", &each(ours, |one| one.of("/jain"))?, Bound::AtLeast(JAIN)),
    ])
}

pub(super) fn baseline(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "baseline", Options::default())?;
    let mut figures = Vec::new();
    for rate_mbps in [1_000, 2_000] {
        for flows in [1, 4, 16] {
            let cell = Cell { rate_mbps, flows, congestion: "cubic" };
            let found = rounds(&lab, &cell, &[Limiter::None, Limiter::Htb], "")?;
            let idle = clean(&found[0], "/requests/us_p50")?;
            let held = clean(&found[1], "/requests/us_p50")?;
            let ratios: Vec<f64> = held.iter().zip(&idle).map(|(held, idle)| held / idle).collect();
            let name = format!("requests p50 {:.0} us by {:.0} idle", median(&held), median(&idle));
            figures.push(figure(&cell.name(), &name, &ratios, Bound::AtLeast(10.0)));
        }
    }
    Ok(figures)
}

pub(super) fn few_flows(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "few", Options::default())?;
    let mut figures = Vec::new();
    for congestion in ["cubic", "bbr"] {
        for rate_mbps in [1_000, 2_000] {
            for flows in [1, 4] {
                let cell = Cell { rate_mbps, flows, congestion };
                let limiters = [Limiter::Htb, Limiter::Ours(Ours::PLAIN), Limiter::Ours(Ours::BATCHED)];
                let found = rounds(&lab, &cell, &limiters, "")?;
                for (limiter, ours) in limiters.iter().zip(&found).skip(1) {
                    figures.extend(bounds(&format!("{limiter}, {}", cell.name()), ours, &found[0], 200.0)?);
                }
            }
        }
    }
    Ok(figures)
}

pub(super) fn many_flows(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "many", Options::default())?;
    let mut figures = Vec::new();
    for (rate_mbps, srtt_us) in [(1_000, 500.0), (2_000, 260.0)] {
        let cell = Cell { rate_mbps, flows: 16, congestion: "cubic" };
        let limiters = [Limiter::Htb, Limiter::Ours(Ours::PLAIN), Limiter::Ours(Ours::BATCHED)];
        let found = rounds(&lab, &cell, &limiters, "")?;
        for (limiter, ours) in limiters.iter().zip(&found).skip(1) {
            let what = format!("{limiter}, {}", cell.name());
            figures.extend(bounds(&what, ours, &found[0], srtt_us)?);
            let stalls = clean(ours, "/stall_ms_max")?;
            figures.push(figure(&what, "longest stall, ms", &stalls, Bound::AtMost(5.0)));
        }
    }
    Ok(figures)
}

pub(super) fn isolation(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "isolation", Options::default())?;
    let cell = Cell { rate_mbps: 1_000, flows: 16, congestion: "cubic" };
    let limiters =
        [Limiter::None, Limiter::Htb, Limiter::Ours(Ours::ISOLATION), Limiter::Ours(Ours::BATCHED_ISOLATION)];
    let found = rounds(&lab, &cell, &limiters, "")?;
    let idle = clean(&found[0], "/requests/us_p50")?;
    let beside = median(&clean(&found[1], "/requests/us_p99")?);
    let mut figures = Vec::new();
    for (limiter, ours) in limiters.iter().zip(&found).skip(2) {
        let what = format!("{limiter}, {}", cell.name());
        let p50 = clean(ours, "/requests/us_p50")?;
        let ratios: Vec<f64> = p50.iter().zip(&idle).map(|(ours, idle)| ours / idle).collect();
        let name = format!("requests p50 {:.0} us by {:.0} idle", median(&p50), median(&idle));
        figures.push(figure(&what, &name, &ratios, Bound::AtMost(1.5)));
        let name = format!("requests p99, us (plain HTB {beside:.0})");
        figures.push(figure(&what, &name, &clean(ours, "/requests/us_p99")?, Bound::AtMost(200.0)));
        figures.push(figure(&what, "efficiency", &each(ours, |one| Ok(one.efficiency))?, Bound::AtLeast(EFFICIENCY)));
        figures.push(figure(&what, "drops", &each(ours, |one| Ok(one.drops))?, Bound::AtMost(0.0)));
    }
    Ok(figures)
}

pub(super) fn slow_isolation(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "slow", Options::default())?;
    let cell = Cell { rate_mbps: 100, flows: 16, congestion: "cubic" };
    let found = rounds(&lab, &cell, &[Limiter::Htb, Limiter::Ours(Ours::ISOLATION)], "")?;
    let beside = median(&clean(&found[0], "/requests/us_p99")?);
    let what = cell.name();
    Ok(vec![
        figure(
            &what,
            &format!("requests p99, us (plain HTB {beside:.0})"),
            &clean(&found[1], "/requests/us_p99")?,
            Bound::AtMost(1_000.0),
        ),
        figure(&what, "efficiency", &each(&found[1], |one| Ok(one.efficiency))?, Bound::None),
    ])
}

pub(super) fn small_fifo(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "fifo", Options::default())?;
    let limiters: Vec<Limiter> =
        [Limiter::Ours(Ours::PLAIN)].into_iter().chain(FIFOS.into_iter().map(Limiter::Bfifo)).collect();
    let mut figures = Vec::new();
    for flows in [1, 4] {
        let cell = Cell { rate_mbps: 1_000, flows, congestion: "cubic" };
        let found = rounds(&lab, &cell, &limiters, "")?;
        let ours = &found[0];
        let efficiency = median(&each(ours, |one| Ok(one.efficiency))?);
        // The best of those that carry as much as ours, to half a percent; the longest queue carries all.
        let mut best: Option<(f64, usize)> = None;
        for (at, fifo) in found.iter().enumerate().skip(1) {
            let (p99, carries) = (median(&clean(fifo, "/requests/us_p99")?), each(fifo, |one| Ok(one.efficiency))?);
            if median(&carries) >= efficiency - 0.005 && best.is_none_or(|(least, _)| p99 < least) {
                best = Some((p99, at));
            }
        }
        let Some((_, at)) = best else { miette::bail!("no small queue carries as much as ours") };
        let (fifo, what) = (&found[at], format!("{}, beside {}", cell.name(), limiters[at]));
        for (name, pointer) in [("requests p50", "/requests/us_p50"), ("requests p99", "/requests/us_p99")] {
            let (ours, theirs) = (clean(ours, pointer)?, clean(fifo, pointer)?);
            let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
            let name = format!("{name} {:.0} us by {:.0}", median(&ours), median(&theirs));
            figures.push(figure(&what, &name, &ratios, Bound::AtMost(1.0)));
        }
        let drops = median(&each(fifo, |one| Ok(one.drops))?);
        figures.push(figure(
            &what,
            &format!("drops ({drops:.0} beside)"),
            &each(ours, |one| Ok(one.drops))?,
            Bound::AtMost(0.0),
        ));
        let jain = median(&each(fifo, |one| one.of("/jain"))?);
        figures.push(figure(
            &what,
            &format!("Jain's index ({jain:.3} beside)"),
            &each(ours, |one| one.of("/jain"))?,
            Bound::AtLeast(JAIN),
        ));
    }
    Ok(figures)
}

pub(super) fn rivals(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "rivals", Options::default())?;
    let all = [
        (Limiter::Ours(Ours::PLAIN), "cubic"),
        (Limiter::Ours(Ours::ISOLATION), "cubic"),
        (Limiter::Htb, "cubic"),
        (Limiter::HtbOfTc, "cubic"),
        (Limiter::Htb, "bbr"),
        (Limiter::Tbf, "cubic"),
        (Limiter::FqCodel, "cubic"),
        (Limiter::Police { burst_ms: OVS_BURST_MS }, "cubic"),
        (Limiter::Police { burst_ms: OVS_ADVISED_MS }, "cubic"),
        (Limiter::VirtualQueue, "cubic"),
    ];
    let mut figures = Vec::new();
    for flows in [1, 4, 16] {
        for (limiter, congestion) in all {
            let cell = Cell { rate_mbps: 1_000, flows, congestion };
            let what = format!("{limiter}, {}", cell.name());
            match rounds(&lab, &cell, &[limiter], "") {
                Ok(found) => figures.push(line(&what, &found[0])?),
                Err(report) => figures.push(Figure {
                    what,
                    value: format!("not here: {}", crate::steps::plain(&report).lines().last().unwrap_or_default()),
                    spread: String::new(),
                    // Ours must run; a kernel may lack another.
                    passes: !matches!(limiter, Limiter::Ours(_)),
                    runs: Value::Null,
                }),
            }
        }
    }
    Ok(figures)
}

/// All that matters of one limiter.
fn line(what: &str, found: &[Found]) -> Result<Figure> {
    let p99 = clean(found, "/requests/us_p99")?;
    let at = |values: Vec<f64>| median(&values);
    Ok(Figure {
        what: what.to_owned(),
        value: format!(
            "requests p50 {:.0} p99 {:.0} us, srtt p99 {:.0} us, efficiency {:.3}, {:.0} drops, Jain {:.3}",
            at(clean(found, "/requests/us_p50")?),
            median(&p99),
            at(clean(found, "/srtt/us_p99")?),
            at(each(found, |one| Ok(one.efficiency))?),
            at(each(found, |one| Ok(one.drops))?),
            at(each(found, |one| one.of("/jain"))?),
        ),
        spread: format!("p99 {} over {}", range(&p99), p99.len()),
        passes: true,
        runs: found.iter().map(|one| one.report.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_judges_the_median() {
        assert!(figure("a", "b", &[1.0, 2.0, 300.0], Bound::AtMost(2.0)).passes);
        assert!(!figure("a", "b", &[1.0, 2.0, 300.0], Bound::AtLeast(2.1)).passes);
        assert!(!figure("a", "b", &[], Bound::AtMost(2.0)).passes, "nothing measured passes nothing");
        assert!(!figure("a", "b", &[], Bound::None).passes);
    }
}
