//! The leader of the etcd is killed, or stands still, while messages are published and limits are changed.

use std::sync::Arc;
use std::time::Duration;

use miette::{Result, WrapErr as _};
use rustix::process::Signal;

use super::crew::{Broker, Control, Placed, Site, start_brokers, stop_brokers, until};
use super::load::{Consumer, Publisher, finish_all};
use super::nodes::Nodes;
use super::watching::{Seen, Watching};
use super::writer::{Made, Writer};
use crate::clock::{self, Stopwatch};

/// What control places meanwhile, and its publishers at each broker.
const PLACED: Placed = Placed { name: "orders", rate_per_s: 400, burst: 60, on_store_loss: "closed" };
const PUBLISHERS: u32 = 4;
const EACH_PER_S: u32 = 20;
/// As by default.
const LEASE: Duration = Duration::from_secs(10);
/// A leader is gone for so long, longer than an election takes.
const GONE: Duration = Duration::from_secs(5);
/// And then the three are whole for so long.
const WHOLE: Duration = Duration::from_secs(3);
/// For what takes some seconds, on a machine with other things to do.
const SOON: Duration = Duration::from_mins(1);
/// Changes whose way to the other broker is timed, with nothing else amiss.
const TIMED: u64 = 100;

/// What is done to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    /// SIGKILL; it is started again on its data.
    Killed,
    /// SIGSTOP, and SIGCONT later.
    Stopped,
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) blows: u32,
    pub(crate) published: u64,
    /// Why publishes failed.
    pub(crate) failures: Vec<String>,
    pub(crate) slowest_publish: Duration,
    /// Acknowledged changes,
    pub(crate) changes: usize,
    /// and those of them that the etcd or a broker does not have at the end.
    pub(crate) lost: Vec<String>,
    /// Changes that the other broker was told of not at all or twice.
    pub(crate) missed: Vec<String>,
    /// Answers that a change cannot be made now.
    pub(crate) refused: u32,
    /// The longest time from asking for a change to its acknowledgement, for each blow at most one.
    pub(crate) stalls: Vec<Duration>,
    /// What became of the parts of a placed topic.
    pub(crate) parts: Seen,
    /// From asking one broker for a change until the other one has it in force.
    pub(crate) in_force_after: Vec<Duration>,
}

/// Strikes the leader `blows` times each way.
pub(crate) fn run(binary: &std::path::Path, folder: &std::path::Path, blows: u32) -> Result<Found> {
    let site = Site { binary, folder };
    let mut etcd = Nodes::start(folder)?;
    let brokers = start_brokers(site, &etcd)?;
    let control = Control::start(site, "control", &etcd, &brokers, &[PLACED], LEASE)?;
    let consumers = brokers.iter().map(|broker| Consumer::start(broker, PLACED.name)).collect::<Result<Vec<_>>>()?;
    let mut publishers = Vec::new();
    for broker in brokers.iter().flat_map(|broker| std::iter::repeat_n(broker, PUBLISHERS as usize)) {
        publishers.push(Publisher::start(broker, PLACED.name, EACH_PER_S)?);
    }
    until("both brokers have parts", SOON, || {
        let both = brokers.iter().all(|broker| broker.parts().is_ok_and(|parts| !parts.is_empty()));
        both.then_some(())
    })?;
    let in_force_after = time_changes(&brokers[0], &brokers[1])?;
    let watching = Watching::start(&brokers, PLACED);
    let writers = [
        (0, Writer::start(&brokers[0], "from-a-")),
        (1, Writer::start(&brokers[1], "from-b-")),
        (0, Writer::start_with_verb(site, &brokers[0], "by-verb-")),
    ];
    let struck = strike(&mut etcd, blows);
    let mut made = Vec::new();
    for (at, writer) in writers {
        made.push((at, writer.finish()?));
    }
    struck?;
    let parts = watching.finish();
    let published = finish_all(publishers);
    let mut found = Found {
        blows: 2 * blows,
        published: published.answered,
        failures: published.failures,
        slowest_publish: published.slowest,
        changes: made.iter().map(|(_, made)| made.len()).sum(),
        lost: Vec::new(),
        missed: Vec::new(),
        refused: made.iter().flat_map(|(_, made)| made).map(|made| made.refused).sum(),
        stalls: Vec::new(),
        parts,
        in_force_after,
    };
    found.stalls = stalls(made.iter().flat_map(|(_, made)| made), 2 * blows);
    settle(&brokers, &made);
    found.lost = lost(&etcd, &brokers, &made)?;
    found.missed = made.iter().flat_map(|(at, made)| missed(&brokers[1 - at], made)).collect();
    for consumer in consumers {
        consumer.finish();
    }
    control.stop()?;
    stop_brokers(brokers)?;
    Ok(found)
}

/// One way after the other, with a rest between.
fn strike(etcd: &mut Nodes, blows: u32) -> Result<()> {
    for blow in (0..blows).flat_map(|_| [Blow::Killed, Blow::Stopped]) {
        let leader = etcd.leader().wrap_err("before a blow")?;
        match blow {
            Blow::Killed => {
                etcd.kill(leader);
                clock::rest(GONE);
                etcd.start_all()?;
            }
            Blow::Stopped => {
                etcd.signal(leader, Signal::STOP)?;
                clock::rest(GONE);
                etcd.signal(leader, Signal::CONT)?;
            }
        }
        etcd.leader().wrap_err_with(|| format!("after the leader was {blow:?}"))?;
        clock::rest(WHOLE);
    }
    Ok(())
}

/// The longest times that changes took, one for each blow: what is not near a blow takes milliseconds.
fn stalls<'a>(made: impl Iterator<Item = &'a Made>, blows: u32) -> Vec<Duration> {
    let mut took: Vec<Duration> = made.map(|made| made.took).collect();
    took.sort_unstable_by(|a, b| b.cmp(a));
    took.truncate(blows as usize);
    took
}

/// Gives the last change its time to arrive.
fn settle(brokers: &[Arc<Broker>], made: &[(usize, Vec<Made>)]) {
    let all: Vec<(&str, u64)> =
        made.iter().flat_map(|(_, made)| made).map(|made| (made.target.as_str(), made.burst)).collect();
    // Whether it arrived is judged afterwards.
    let _ = until("all is in force", SOON, || {
        let has_all = |broker: &Arc<Broker>| broker.limits().is_ok_and(|limits| missing(&all, &limits).is_empty());
        brokers.iter().all(has_all).then_some(())
    });
}

fn missing(wanted: &[(&str, u64)], limits: &[(String, u64)]) -> Vec<String> {
    let there: std::collections::BTreeMap<&str, u64> =
        limits.iter().map(|(name, burst)| (name.as_str(), *burst)).collect();
    let is_missing = |(name, burst): &&(&str, u64)| there.get(name) != Some(burst);
    wanted.iter().filter(is_missing).map(|(name, _)| (*name).to_owned()).collect()
}

/// Acknowledged changes that are not everywhere.
fn lost(etcd: &Nodes, brokers: &[Arc<Broker>], made: &[(usize, Vec<Made>)]) -> Result<Vec<String>> {
    let all: Vec<(&str, u64)> =
        made.iter().flat_map(|(_, made)| made).map(|made| (made.target.as_str(), made.burst)).collect();
    let mut lost = Vec::new();
    for broker in brokers {
        lost.extend(missing(&all, &broker.limits()?).into_iter().map(|name| format!("{name} at {}", broker.name)));
    }
    let stored: std::collections::BTreeSet<String> = etcd.keys("/tidegate/limit/")?.into_iter().collect();
    let in_etcd = |name: &str| stored.contains(&format!("/tidegate/limit/{name}"));
    lost.extend(all.iter().filter(|(name, _)| !in_etcd(name)).map(|(name, _)| format!("{name} in the etcd")));
    Ok(lost)
}

/// Changes that `other` was not told of exactly once.
fn missed(other: &Broker, made: &[Made]) -> Vec<String> {
    let mut told = std::collections::BTreeMap::<String, u32>::new();
    for target in other.followed() {
        *told.entry(target).or_default() += 1;
    }
    let times = |made: &Made| told.get(&made.target).copied().unwrap_or(0);
    let wrong = made.iter().filter(|made| times(made) != 1);
    wrong.map(|made| format!("{} was told {} {} times", other.name, made.target, times(made))).collect()
}

/// How long a change takes from asking one broker until it is in force at the other.
fn time_changes(from: &Broker, to: &Broker) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for burst in 1..=TIMED {
        let (path, watch) = (format!("/api/v1/limits/timed-{burst}"), Stopwatch::start());
        let answer = from.ask("PUT", &path, &format!("{{\"rate\": \"7/s\", \"burst\": {burst}}}"))?;
        if answer.status != 200 {
            miette::bail!("a limit change is answered {}: {}", answer.status, answer.body);
        }
        while to.ask("GET", &path, "")?.status != 200 {
            if watch.elapsed() > SOON {
                miette::bail!("a limit change is not in force at the other broker after {SOON:?}");
            }
        }
        times.push(watch.elapsed());
    }
    Ok(times)
}

impl Found {
    /// What must not be, however long the machine takes; and stalls longer than `stall_max`.
    pub(crate) fn wrong(&self, stall_max: Duration) -> Vec<String> {
        let mut wrong = self.failures.clone();
        wrong.extend(self.lost.iter().map(|name| format!("lost: {name}")));
        wrong.extend(self.missed.clone());
        wrong.extend(self.parts.lapsed.clone());
        wrong.extend(self.parts.unlawful.clone());
        wrong.extend(
            self.stalls.iter().filter(|stall| **stall > stall_max).map(|stall| format!("a stall of {stall:?}")),
        );
        let nothing = self.changes == 0 || self.published == 0 || self.parts.glances == 0;
        wrong.extend(nothing.then(|| "nothing happened".to_owned()));
        wrong
    }
}
