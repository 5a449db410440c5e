//! The control plane on three real etcd servers.

use std::path::PathBuf;
use std::time::Duration;

use miette::Result;
use serde_json::json;

use super::bench::Bench;
use super::table::Figure;
use crate::etcd::{gone, handover, leader};
use crate::{peers, setup};

/// The bars.
const STALL_MAX: Duration = Duration::from_secs(3);
const IN_FORCE_MAX: Duration = Duration::from_millis(100);
/// A message that finds its token at once takes less, on a busy machine too.
const CALM_MAX: Duration = Duration::from_millis(250);
/// As by default.
const LEASE: Duration = Duration::from_secs(10);
/// The other control looks every half second, and etcd ends leases as often.
const LOOKS: Duration = Duration::from_secs(1);

/// The row.
pub(super) fn leader(bench: &Bench) -> Result<Vec<Figure>> {
    let (binary, folder) = (binary(bench)?, bench.folder("etcd-leader")?);
    let found = leader::run(&binary, &folder, bench.size(10, 1))?;
    let stall = found.stalls.first().copied().unwrap_or_default();
    let mut after = found.in_force_after.clone();
    after.sort_unstable();
    let (median, most) = (after[after.len() / 2], after[after.len() - 1]);
    let slowest = found.slowest_publish;
    let blows = found.blows;
    Ok(vec![
        Figure {
            what: format!("{blows} times SIGKILL or SIGSTOP of the leader: publishes"),
            value: format!("{} failed of {}", found.failures.len(), found.published),
            spread: format!("the slowest took {slowest:?}"),
            passes: found.failures.is_empty() && found.published > 0,
            runs: json!({ "failures": found.failures, "published": found.published, "slowest_us": us(slowest) }),
        },
        Figure {
            what: "limit changes that were acknowledged".to_owned(),
            value: format!("{} lost of {}", found.lost.len(), found.changes),
            spread: format!("{} asked again", found.refused),
            passes: found.lost.is_empty() && found.changes > 0,
            runs: json!({ "lost": found.lost, "changes": found.changes, "refused": found.refused }),
        },
        Figure {
            what: "the same, at the other broker's watch".to_owned(),
            value: format!("{} missed or told twice", found.missed.len()),
            spread: String::new(),
            passes: found.missed.is_empty(),
            runs: json!(found.missed),
        },
        Figure {
            what: "longest stall of a limit change (bar 3 s)".to_owned(),
            value: format!("{stall:?}"),
            spread: format!("{:?}", found.stalls),
            passes: stall <= STALL_MAX && !stall.is_zero(),
            runs: json!(found.stalls.iter().copied().map(us).collect::<Vec<_>>()),
        },
        Figure {
            what: "parts of a placed topic: leases that ended, sums above the whole".to_owned(),
            value: format!("{} and {}", found.parts.lapsed.len(), found.parts.unlawful.len()),
            spread: format!("{} looks", found.parts.glances),
            passes: found.parts.lapsed.is_empty() && found.parts.unlawful.is_empty() && found.parts.glances > 0,
            runs: json!({ "lapsed": found.parts.lapsed, "unlawful": found.parts.unlawful }),
        },
        Figure {
            what: "asked at one broker until in force at the other (bar 100 ms)".to_owned(),
            value: format!("{most:?} at most"),
            spread: format!("median {median:?} of {}", after.len()),
            passes: most <= IN_FORCE_MAX,
            runs: json!(after.iter().copied().map(us).collect::<Vec<_>>()),
        },
    ])
}

/// The row.
pub(super) fn gone(bench: &Bench) -> Result<Vec<Figure>> {
    let (binary, folder) = (binary(bench)?, bench.folder("etcd-gone")?);
    let (lease, span) = bench.size((LEASE, Duration::from_mins(1)), (Duration::from_secs(2), Duration::from_secs(10)));
    let found = gone::run(&binary, &folder, lease, span)?;
    let (calm, within) = (found.calm_p99, found.within_p99);
    let mut figures = vec![
        Figure {
            what: format!("no etcd for {span:?}, leases of {lease:?}: publishes"),
            value: format!("{} failed, {} lost of {}", found.failures.len(), found.lost, found.published),
            spread: format!("leases again {:?} after the etcd came back", found.back_after),
            passes: found.failures.is_empty() && found.lost == 0 && found.published > 0,
            runs: json!({ "failures": found.failures, "lost": found.lost, "published": found.published }),
        },
        Figure {
            what: "p99 from publisher to consumer within leases".to_owned(),
            value: format!("{within:?} (before: {calm:?})"),
            spread: String::new(),
            // Twice as much and a millisecond is what two windows of one run differ by.
            // Where messages waited for tokens before, the figure says nothing.
            passes: calm <= CALM_MAX && within <= 2 * calm + Duration::from_millis(1) && !within.is_zero(),
            runs: json!({ "before_us": us(calm), "within_us": us(within) }),
        },
    ];
    figures.extend(found.verdicts.into_iter().map(|(topic, said, wrong)| Figure {
        what: format!("afterwards, on_store_loss = {topic:?}"),
        value: if wrong.is_empty() { "does exactly that".to_owned() } else { wrong.join("; ") },
        spread: said,
        passes: wrong.is_empty(),
        runs: json!(wrong),
    }));
    Ok(figures)
}

/// The row.
pub(super) fn handover(bench: &Bench) -> Result<Vec<Figure>> {
    let (binary, folder) = (binary(bench)?, bench.folder("etcd-handover")?);
    let lease = bench.size(LEASE, Duration::from_secs(2));
    let found = handover::run(&binary, &folder, lease)?;
    let wrong = found.wrong(lease + LOOKS);
    let handovers = [("killed", found.led_after), ("stopped", found.led_after_stop)];
    let mut figures: Vec<Figure> = handovers
        .into_iter()
        .map(|(how, after)| Figure {
            what: format!("the control that leads is {how}, leases of {lease:?}: the other leads"),
            value: format!("after {after:?}"),
            spread: if how == "killed" {
                format!("its first orders after {:?}", found.ordered_after)
            } else {
                String::new()
            },
            passes: after <= lease + LOOKS,
            runs: json!(us(after)),
        })
        .collect();
    figures.push(Figure {
        what: "orders of the earlier leader, sums above the whole, failed publishes".to_owned(),
        value: if wrong.is_empty() { "fenced, none, none".to_owned() } else { wrong.join("; ") },
        spread: format!("{} looks, {} publishes", found.parts.glances, found.published),
        passes: wrong.is_empty(),
        runs: json!(wrong),
    });
    Ok(figures)
}

fn binary(bench: &Bench) -> Result<PathBuf> {
    setup::ensure(bench.places, setup::ETCD_NODES)?;
    peers::build_tidegate_with(bench.places, "etcd")
}

fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
