//! The slides' experiment where the proxy does not have a core to itself: beside a busy program, under a quota, and in a
//! control group beside busy ones.

use std::path::Path;

use miette::{Result, WrapErr as _};
use serde_json::json;

use super::bench::{Bench, median, range};
use super::cgroup::{ControlGroup, busy};
use super::proxy_load::upstream;
use super::proxy_server::{KeyKind, Limiting, Proxy, Setting, ensure};
use super::proxy_spike::{Shown, learnt, one, rival};
use super::table::Figure;

const REPETITIONS: usize = 5;
/// So much of a core for the proxy, in microseconds of each period: what containers are often given.
const QUOTA_US: u32 = 50_000;
const PERIOD_US: u32 = 100_000;
/// A tail that is this much of A's alone in the same place, at most.
const SLOWER_MOST: f64 = 1.25;
/// What B has at least of what A leaves.
const REST_LEAST: f64 = 0.8;

/// Tidegate with its limits, and in the first round the others with limits set by hand.
const VARIANTS: [Proxy; 3] = [Proxy::Tidegate, Proxy::Nginx, Proxy::Haproxy];

/// Beside a program on the same core that never rests.
pub(super) fn beside_a_busy_program(bench: &Bench) -> Result<Vec<Figure>> {
    let _busy = busy(None)?;
    spike_in(bench, None)
}

/// With half of a core.
pub(super) fn under_a_quota(bench: &Bench) -> Result<Vec<Figure>> {
    let group = ControlGroup::new("quota")?;
    group.set_quota(QUOTA_US, PERIOD_US)?;
    spike_in(bench, Some(group.folder()))
}

/// In a group of its own, beside two others in each of which a program never rests.
pub(super) fn beside_busy_groups(bench: &Bench) -> Result<Vec<Figure>> {
    let (group, others) = (ControlGroup::new("proxy")?, [ControlGroup::new("one")?, ControlGroup::new("other")?]);
    let busy = others.iter().map(|other| busy(Some(other.folder()))).collect::<Result<Vec<_>>>()?;
    let figures = spike_in(bench, Some(group.folder()));
    drop(busy);
    figures
}

fn spike_in(bench: &Bench, group: Option<&Path>) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let upstream = upstream(bench)?;
    let service = upstream.said("address")?;
    let bare = |proxy| Setting { group, ..Setting::new(proxy, Limiting::Off, KeyKind::Rsa, service) };
    let mut shown: Vec<Vec<Shown>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    for repetition in 0..bench.size(REPETITIONS, 1) {
        for (index, proxy) in VARIANTS.into_iter().enumerate() {
            // A figure of a rival has no bar, and says of how many rounds it is.
            if index > 0 && repetition > 0 {
                continue;
            }
            let run = one(bench, &bare(proxy), true).wrap_err_with(|| proxy.name().to_owned())?;
            println!("round {}, {}: {run:?}", repetition + 1, proxy.name());
            shown[index].push(run);
        }
    }
    let mut figures = bars(&shown[0]);
    figures.push(learnt(bench, &Setting { limiting: Limiting::On, ..bare(Proxy::Tidegate) })?);
    figures.extend(VARIANTS.iter().zip(&shown).skip(1).map(|(proxy, runs)| rival(*proxy, true, runs)));
    upstream.stop()?;
    Ok(figures)
}

fn bars(runs: &[Shown]) -> Vec<Figure> {
    let of = |pick: fn(&Shown) -> f64| runs.iter().map(pick).collect::<Vec<f64>>();
    let (answered, ratios, shares) = (of(|run| run.answered), of(|run| run.ratio), of(|run| run.noisy_share));
    let (p99, noisy) = (median(&of(|run| run.us_p99)), median(&of(|run| run.noisy_per_s)));
    let least = answered.iter().copied().fold(f64::INFINITY, f64::min);
    let figure = |what: &str, value: String, values: &[f64], passes: bool| Figure {
        what: what.to_owned(),
        value,
        spread: format!("{} over {}", range(values), values.len()),
        passes,
        runs: json!(values),
    };
    vec![
        figure("A answered during the spike (bar: all)", format!("{:.2} %", least * 100.0), &answered, least >= 1.0),
        figure(
            "A's p99 during the spike (bar: 1.25x alone in the same place)",
            format!("{:.2}x: {p99:.0} us", median(&ratios)),
            &ratios,
            median(&ratios) <= SLOWER_MOST,
        ),
        figure(
            "B answered of what A leaves (bar: 80 %)",
            format!("{:.0} %: {noisy:.0}/s", median(&shares) * 100.0),
            &shares,
            median(&shares) >= REST_LEAST,
        ),
    ]
}
