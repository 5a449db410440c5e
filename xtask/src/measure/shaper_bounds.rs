//! How long queues are behind a limiter, and what holding them short costs in goodput.

use miette::Result;
use serde_json::json;

use super::bench::{Bench, median, range};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Found, Lab};
use super::table::Figure;
use crate::namespaces::Options;

/// Goodput of what the rate can carry.
pub(super) const EFFICIENCY: f64 = 0.98;
pub(super) const JAIN: f64 = 0.98;

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

/// Runs of several limiters in turns, each first once in a while: `result[i]` are those of `limiters[i]`, without those that
/// failed. The idle link is asked without bulk.
pub(super) fn rounds(lab: &Lab, cell: &Cell, limiters: &[Limiter], more: &str) -> Result<Vec<Vec<Found>>> {
    let mut found = vec![Vec::new(); limiters.len()];
    for round in 0..lab.rounds {
        for place in 0..limiters.len() {
            let at = (place + round) % limiters.len();
            let limiter = limiters[at];
            let flows = if limiter == Limiter::None { 0 } else { cell.flows };
            let what = format!("{}, {limiter}", cell.name());
            let run = || lab.run(&lab.put(limiter, cell.rate_mbps)?, &Cell { flows, ..*cell }, more);
            let Some(one) = lab.attempt(&what, run) else { continue };
            println!("  {what}: {}", short(&one)?);
            found[at].push(Found { round, ..one });
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

/// `of` of each run by that of the run beside it in the same round.
pub(super) fn ratios(ours: &[Found], beside: &[Found], of: impl Fn(&Found) -> Result<f64>) -> Result<Vec<f64>> {
    let pairs = ours.iter().filter_map(|one| Some((one, beside.iter().find(|other| other.round == one.round)?)));
    pairs.map(|(one, other)| Ok(of(one)? / of(other)?)).collect()
}

/// The same without what gaps spoilt.
pub(super) fn clean(found: &[Found], pointer: &str) -> Result<Vec<f64>> {
    each(found, |one| one.clean(pointer))
}

/// The bounds of one cell, with plain HTB's round trip beside.
pub(super) fn bounds(what: &str, ours: &[Found], plain: &[Found], srtt_us: f64) -> Result<Vec<Figure>> {
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
    let lab = Lab::new(bench, "baseline", Options::default())?.of_runs(2_500);
    let mut figures = Vec::new();
    for rate_mbps in [1_000, 2_000] {
        for flows in [1, 4, 16] {
            let cell = Cell { rate_mbps, flows, congestion: "cubic" };
            let found = rounds(&lab, &cell, &[Limiter::None, Limiter::Htb], "")?;
            let idle = clean(&found[0], "/requests/us_p50")?;
            let held = clean(&found[1], "/requests/us_p50")?;
            let ratios = ratios(&found[1], &found[0], |one| one.clean("/requests/us_p50"))?;
            let name = format!("requests p50 {:.0} us by {:.0} idle", median(&held), median(&idle));
            figures.push(figure(&cell.name(), &name, &ratios, Bound::AtLeast(10.0)));
        }
    }
    Ok(figures)
}

pub(super) fn few_flows(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "few", Options::default())?.of_runs(2_500);
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
        let ratios = ratios(ours, &found[0], |one| one.clean("/requests/us_p50"))?;
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
    let limiters = [Limiter::Htb, Limiter::Ours(Ours::ISOLATION), Limiter::Ours(Ours::BATCHED_ISOLATION)];
    let found = rounds(&lab, &cell, &limiters, "")?;
    let beside = median(&clean(&found[0], "/requests/us_p99")?);
    let mut figures = Vec::new();
    for (limiter, ours) in limiters.iter().zip(&found).skip(1) {
        let what = format!("{limiter}, {}", cell.name());
        let name = format!("requests p99, us (plain HTB {beside:.0})");
        figures.push(figure(&what, &name, &clean(ours, "/requests/us_p99")?, Bound::AtMost(1_000.0)));
        figures.push(figure(&what, "efficiency", &each(ours, |one| Ok(one.efficiency))?, Bound::None));
    }
    Ok(figures)
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
