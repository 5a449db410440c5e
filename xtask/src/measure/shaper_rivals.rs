//! What else holds a rate, beside ours.

use miette::Result;
use serde_json::Value;

use super::bench::{Bench, median, range};
use super::shaper_bounds::{Bound, JAIN, clean, each, figure, ratios, rounds};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Found, Lab, last_line};
use super::table::Figure;
use crate::namespaces::Options;

/// Sizes of the small queues that stand beside ours: 1/10 ms to 4/5 ms at 1 Gb/s.
const FIFOS: [u32; 5] = [12_500, 20_000, 25_000, 50_000, 100_000];
/// The burst of Open vSwitch's policing where none is given (8,000 kbit), at 1 Gb/s.
const OVS_BURST_MS: u32 = 8;
/// What its manual advises for TCP: 80 % of a second of the rate (`ingress_policing_burst`).
const OVS_ADVISED_MS: u32 = 800;
/// Efficiency that counts as equal.
const EQUAL: f64 = 0.005;

pub(super) fn small_fifo(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "fifo", Options::default())?.of_runs(2_500);
    let ours = [Ours::PLAIN, Ours::BATCHED].map(Limiter::Ours);
    let limiters: Vec<Limiter> = ours.into_iter().chain(FIFOS.map(Limiter::Bfifo)).collect();
    let mut figures = Vec::new();
    for flows in [1, 4] {
        let cell = Cell { rate_mbps: 1_000, flows, congestion: "cubic" };
        let found = rounds(&lab, &cell, &limiters, "")?;
        let (found, fifos) = found.split_at(ours.len());
        for (limiter, found) in ours.iter().zip(found) {
            let what = format!("{limiter}, {}", cell.name());
            match best(found, fifos)? {
                Some(at) => figures.extend(beside_fifo(&what, found, FIFOS[at], &fifos[at])?),
                // Then none is better, at equal efficiency.
                None => figures.push(figure(
                    &format!("{what}, and no small queue carries as much"),
                    "efficiency",
                    &each(found, |one| Ok(one.efficiency))?,
                    Bound::None,
                )),
            }
        }
    }
    Ok(figures)
}

/// The small queue with the lowest 99th percentile among those that carry as much as ours.
fn best(ours: &[Found], fifos: &[Vec<Found>]) -> Result<Option<usize>> {
    let carried = |found: &[Found]| Ok::<f64, miette::Report>(median(&each(found, |one| Ok(one.efficiency))?));
    let enough = carried(ours)? - EQUAL;
    let mut best: Option<(f64, usize)> = None;
    for (at, fifo) in fifos.iter().enumerate() {
        let p99 = median(&clean(fifo, "/requests/us_p99")?);
        if carried(fifo)? >= enough && best.is_none_or(|(least, _)| p99 < least) {
            best = Some((p99, at));
        }
    }
    Ok(best.map(|(_, at)| at))
}

fn beside_fifo(what: &str, ours: &[Found], bytes: u32, fifo: &[Found]) -> Result<Vec<Figure>> {
    let what = format!("{what}, beside a bfifo of {bytes} bytes");
    let mut figures = Vec::new();
    for (name, pointer) in [("requests p50", "/requests/us_p50"), ("requests p99", "/requests/us_p99")] {
        let (held, beside) = (median(&clean(ours, pointer)?), median(&clean(fifo, pointer)?));
        let ratios = ratios(ours, fifo, |one| one.clean(pointer))?;
        figures.push(figure(&what, &format!("{name} {held:.0} us by {beside:.0}"), &ratios, Bound::AtMost(1.0)));
    }
    let name = format!("drops ({:.0} beside)", median(&each(fifo, |one| Ok(one.drops))?));
    figures.push(figure(&what, &name, &each(ours, |one| Ok(one.drops))?, Bound::AtMost(0.0)));
    let name = format!("Jain's index ({:.3} beside)", median(&each(fifo, |one| one.of("/jain"))?));
    figures.push(figure(&what, &name, &each(ours, |one| one.of("/jain"))?, Bound::AtLeast(JAIN)));
    Ok(figures)
}

pub(super) fn rivals(bench: &Bench) -> Result<Vec<Figure>> {
    // Twelve of them in three cells, none of which is judged: three rounds.
    let lab = Lab::new(bench, "rivals", Options::default())?.of_runs(2_500).of_rounds(3);
    let all = [
        (Limiter::Ours(Ours::PLAIN), "cubic"),
        (Limiter::Ours(Ours::BATCHED), "cubic"),
        (Limiter::Ours(Ours::ISOLATION), "cubic"),
        (Limiter::Ours(Ours::BATCHED_ISOLATION), "cubic"),
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
            // A kernel may lack it; ours must run.
            let missing = match limiter {
                Limiter::Ours(_) => None,
                _ => lab.put(limiter, cell.rate_mbps).err(),
            };
            figures.push(match missing {
                Some(report) => Figure {
                    value: format!("not here: {}", last_line(&report)),
                    what,
                    spread: String::new(),
                    passes: true,
                    runs: Value::Null,
                },
                None => line(what, &rounds(&lab, &cell, &[limiter], "")?[0])?,
            });
        }
    }
    Ok(figures)
}

/// All that matters of one limiter.
fn line(what: String, found: &[Found]) -> Result<Figure> {
    let p99 = clean(found, "/requests/us_p99")?;
    let at = |values: Vec<f64>| median(&values);
    Ok(Figure {
        what,
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
        passes: !found.is_empty(),
        runs: found.iter().map(|one| one.report.clone()).collect(),
    })
}
