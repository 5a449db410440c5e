//! Datagrams beside TCP in one class: no window holds them, and isolation keeps either from the other's queue.

use miette::Result;

use super::bench::{Bench, median};
use super::shaper_bounds::{Bound, clean, each, figure, rounds};
use super::shaper_limiter::{Limiter, Ours};
use super::shaper_run::{Cell, Found, Lab};
use super::table::Figure;
use crate::namespaces::Options;

/// A thousand small datagrams a second, each of which asks.
const SPARSE: &str = "flood.rate_mbps=1 flood.bytes=125 flood.asks_per_s=1000";
/// More than their share of a class of 1 Gb/s: their own queue is full.
const GREEDY: &str = "flood.rate_mbps=800 flood.asks_per_s=1000";
/// Far below the milliseconds of the queue that they are kept from.
const KEPT_US: f64 = 1_000.0;

pub(super) fn datagrams(bench: &Bench) -> Result<Vec<Figure>> {
    let lab = Lab::new(bench, "datagrams", Options::default())?.of_runs(2_500);
    let cell = Cell { rate_mbps: 1_000, flows: 4, congestion: "cubic" };
    let ours = [Ours::ISOLATION, Ours::BATCHED_ISOLATION].map(Limiter::Ours);
    let limiters: Vec<Limiter> = [Limiter::Htb].into_iter().chain(ours).collect();
    println!("  with 1,000 small datagrams a second:");
    let sparse = rounds(&lab, &cell, &limiters, SPARSE)?;
    println!("  with 800 Mb/s of datagrams:");
    let greedy = rounds(&lab, &cell, &limiters, GREEDY)?;
    let datagrams = |found: &[Found], at: &str| clean(found, &format!("/datagrams/{at}"));
    let mut figures = Vec::new();
    for (at, limiter) in limiters.iter().enumerate().skip(1) {
        let what = format!("{limiter}, {}", cell.name());
        let p50 = median(&datagrams(&sparse[at], "us_p50")?);
        let beside = median(&datagrams(&sparse[0], "us_p99")?);
        let name = format!("sparse datagrams, p50 {p50:.0} us; p99, us (plain HTB {beside:.0})");
        figures.push(figure(&what, &name, &datagrams(&sparse[at], "us_p99")?, Bound::AtMost(KEPT_US)));
        let lost = each(&sparse[at], |one| one.of("/flood/unanswered"))?;
        figures.push(figure(&what, "sparse datagrams lost", &lost, Bound::AtMost(0.0)));
        let beside = median(&clean(&greedy[0], "/requests/us_p99")?);
        let name = format!("requests beside 800 Mb/s of datagrams, p99, us (plain HTB {beside:.0})");
        figures.push(figure(&what, &name, &clean(&greedy[at], "/requests/us_p99")?, Bound::AtMost(KEPT_US)));
        let name = "srtt p99 of bulk beside them, us";
        figures.push(figure(&what, name, &clean(&greedy[at], "/srtt/us_p99")?, Bound::None));
        let name = format!(
            "goodput of bulk beside them, of the class (plain HTB {:.3})",
            median(&each(&greedy[0], |one| Ok(one.efficiency))?)
        );
        figures.push(figure(&what, &name, &each(&greedy[at], |one| Ok(one.efficiency))?, Bound::None));
        let name = "and the datagrams' own p50, us";
        figures.push(figure(&what, name, &datagrams(&greedy[at], "us_p50")?, Bound::None));
    }
    Ok(figures)
}
