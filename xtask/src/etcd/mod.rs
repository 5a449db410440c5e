//! Tidegate on three real etcd servers: `cargo xtask test` runs each of these short, `cargo xtask measure 21` at full size.
//!
//! Brokers and controls are real processes of a binary with the feature `etcd`, messages are published all the time, and
//! what is judged is what a client, an administrator or the etcd itself can see.

mod crew;
pub(crate) mod gone;
pub(crate) mod handover;
mod lapse;
pub(crate) mod leader;
mod load;
mod nodes;
mod watching;
mod writer;

use std::path::Path;
use std::time::Duration;

use miette::Result;

use crate::places::Places;
use crate::steps::Steps;

/// In a short run a change may take so long where an election comes in between: on a machine that compiles beside it.
const STALL_MAX: Duration = Duration::from_secs(20);

/// Those that are about no delay, short: what etcd's absence does to delays takes a quiet machine.
pub(crate) fn run_short(places: &Places, steps: &mut Steps, binary: &Path) {
    steps.step("etcd: its leader is killed, and stopped", || leader_short(places, binary));
    steps.step("etcd: a control that leads is killed, and stopped", || handover_short(places, binary));
}

/// The leader of the etcd is killed once and stopped once.
fn leader_short(places: &Places, binary: &Path) -> Result<String> {
    let folder = places.scratch("etcd-leader")?;
    let found = leader::run(binary, &folder.path, 1)?;
    let wrong = found.wrong(STALL_MAX);
    if !wrong.is_empty() {
        miette::bail!("{}\n{found:?}", wrong.join("\n"));
    }
    Ok(format!("{} changes, {} publishes, stalls {:?}", found.changes, found.published, found.stalls))
}

/// A control that leads is killed, and one stands still.
fn handover_short(places: &Places, binary: &Path) -> Result<String> {
    let folder = places.scratch("etcd-handover")?;
    let found = handover::run(binary, &folder.path, Duration::from_secs(2))?;
    let wrong = found.wrong(STALL_MAX);
    if !wrong.is_empty() {
        miette::bail!("{}\n{found:?}", wrong.join("\n"));
    }
    Ok(format!("the other one led after {:?} and {:?}", found.led_after, found.led_after_stop))
}
