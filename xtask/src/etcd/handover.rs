//! Two controls on one etcd: the one that leads is killed, and then stands still while it believes that it leads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use miette::Result;
use rustix::process::Signal;
use serde_json::json;

use super::crew::{Broker, Control, Placed, Site, read, start_brokers, stop_brokers, until};
use super::load::{Publisher, finish_all};
use super::nodes::Nodes;
use super::watching::{Seen, Watching};
use crate::clock::Stopwatch;

const PLACED: Placed = Placed { name: "orders", rate_per_s: 400, burst: 60, on_store_loss: "closed" };
const EACH_PER_S: u32 = 20;
const NAMES: [&str; 2] = ["first", "second"];
/// For what takes some leases, on a machine with other things to do.
const SOON: Duration = Duration::from_mins(2);

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// From the kill of the leader until the other one leads,
    pub(crate) led_after: Duration,
    /// and until its orders are in force at all brokers.
    pub(crate) ordered_after: Duration,
    /// The same where the leader stands still.
    pub(crate) led_after_stop: Duration,
    /// What a broker answers to an order of the leader before.
    pub(crate) stale_order: u16,
    pub(crate) published: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) parts: Seen,
}

/// Runs both, with leases of `lease`.
pub(crate) fn run(binary: &Path, folder: &Path, lease: Duration) -> Result<Found> {
    let site = Site { binary, folder };
    let etcd = Nodes::start(folder)?;
    let brokers = start_brokers(site, &etcd)?;
    let control = |name: &str| Control::start(site, name, &etcd, &brokers, &[PLACED], lease);
    let leader = control(NAMES[0])?;
    until("the first control leads", SOON, || leads(&leader))?;
    let follower = control(NAMES[1])?;
    let publishers = brokers.iter().map(|broker| Publisher::start(broker, PLACED.name, EACH_PER_S));
    let publishers = publishers.collect::<Result<Vec<_>>>()?;
    let first = until("both brokers have parts", SOON, || revisions(&brokers))?;
    let watching = Watching::start(&brokers, PLACED);

    let watch = Stopwatch::start();
    leader.signal(Signal::KILL)?;
    until("the other control leads", SOON, || leads(&follower))?;
    let led_after = watch.elapsed();
    let second = until("the other control orders", SOON, || newer(&brokers, &first))?;
    let ordered_after = watch.elapsed();

    // What the dead one might have sent last.
    let now = read(&brokers[0].admin, "/api/v1/parts")?;
    let until_us = now["now_us"].as_u64().unwrap_or(0) + 10_000_000;
    let part = json!({"topic": PLACED.name, "rate_per_s": format!("{}/s", PLACED.rate_per_s), "burst": PLACED.burst});
    let order = json!({"revision": first[0], "lease_ms": 10_000, "until_us": until_us, "parts": [part]}).to_string();
    let stale_order = brokers[0].ask("PUT", "/api/v1/parts", &order)?.status;

    // The one that leads now stands still until another leads, and goes on where it stood: it still believes that it leads.
    drop(leader);
    let other = control(NAMES[0])?;
    let watch = Stopwatch::start();
    follower.signal(Signal::STOP)?;
    until("the first control leads again", SOON, || leads(&other))?;
    let led_after_stop = watch.elapsed();
    let third = until("it orders", SOON, || newer(&brokers, &second))?;
    follower.signal(Signal::CONT)?;
    until("the one that stood still follows", SOON, || leads(&follower).is_none().then_some(()))?;
    // What it sent and what the leader sends afterwards is seen by whoever watches.
    until("the leader goes on to order", SOON, || newer(&brokers, &third))?;
    let parts = watching.finish();
    let published = finish_all(publishers);
    follower.stop()?;
    other.stop()?;
    stop_brokers(brokers)?;
    Ok(Found {
        led_after,
        ordered_after,
        led_after_stop,
        stale_order,
        published: published.answered,
        failures: published.failures,
        parts,
    })
}

/// The revisions of parts that are all newer than those `before`.
fn newer(brokers: &[Arc<Broker>], before: &[u64]) -> Option<Vec<u64>> {
    revisions(brokers).filter(|later| later.iter().zip(before).all(|(later, before)| later > before))
}

fn leads(control: &Control) -> Option<()> {
    (control.state().ok()?["leader"]["leads"] == true).then_some(())
}

/// The revision of each broker's part, once all have one under a lease.
fn revisions(brokers: &[Arc<Broker>]) -> Option<Vec<u64>> {
    let revision = |broker: &Arc<Broker>| {
        let parts = broker.parts().ok()?;
        parts.iter().find(|part| part.topic == PLACED.name && part.lapses_in.is_some()).map(|part| part.revision)
    };
    brokers.iter().map(revision).collect()
}

/// What a broker answers to an order that is older than what it holds.
const CONFLICT: u16 = 409;

impl Found {
    /// What must not be, and a handover that takes longer than `after`.
    pub(crate) fn wrong(&self, after: Duration) -> Vec<String> {
        let mut wrong = self.failures.clone();
        wrong.extend(self.parts.unlawful.clone());
        let stale = self.stale_order;
        wrong.extend((stale != CONFLICT).then(|| format!("an order of the dead leader is answered {stale}")));
        for led_after in [self.led_after, self.led_after_stop] {
            wrong.extend((led_after > after).then(|| format!("the other control led after {led_after:?}")));
        }
        wrong.extend((self.parts.glances == 0 || self.published == 0).then(|| "nothing happened".to_owned()));
        wrong
    }
}
