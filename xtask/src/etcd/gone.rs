//! All of the etcd is gone for a while: nothing changes within leases, and then each topic does what its `on_store_loss` says.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use miette::{Result, WrapErr as _};
use serde_json::Value;

use super::crew::{Broker, Control, Part, Placed, Site, start_brokers, stop_brokers, until};
use super::lapse::{ARRIVES, By, Deliveries, End, Ends, Seen, ns};
use super::load::{Consumer, Delivery, Ns, Published, Publisher, finish_all};
use super::nodes::Nodes;
use crate::clock::{self, Stopwatch};

/// The whole limit of each topic.
const RATE_PER_S: u32 = 200;
const BURST: u32 = 20;
/// What is published to each topic at each broker: more than a quarter, and less than half of the limit.
const EACH_PER_S: u32 = 60;
/// What is published at the first broker once leases have ended, by what part it has.
const MORE_THAN_PART: f64 = 1.3;
/// What is published to a closed topic then, so that the line is short enough to be emptied later.
const FEW_PER_S: u32 = 10;
/// The least part of a broker, as a share of the whole, once parts follow the load: both have the same.
const FITTED_SHARE: f64 = 0.4;
/// Lines that grow no shorter for so long stay as they are: what is missing is lost.
const EMPTIED_WITHIN: Duration = Duration::from_secs(30);
/// How long everything is well at first.
const CALM: Duration = Duration::from_secs(5);
/// For what takes some leases, on a machine with other things to do.
const SOON: Duration = Duration::from_mins(3);
/// The topics.
const PLACED: [Placed; 3] = [topic("local"), topic("open"), topic("closed")];

const fn topic(on_store_loss: &'static str) -> Placed {
    Placed { name: on_store_loss, rate_per_s: RATE_PER_S, burst: BURST, on_store_loss }
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) published: u64,
    pub(crate) failures: Vec<String>,
    /// Delays at p99 while all was well, and without the etcd within leases.
    pub(crate) calm_p99: Duration,
    pub(crate) within_p99: Duration,
    /// What each topic did, and what was wrong with it.
    pub(crate) verdicts: Vec<(&'static str, String, Vec<String>)>,
    /// From the return of the etcd until every part has a lease again.
    pub(crate) back_after: Duration,
    /// Messages that never came.
    pub(crate) lost: u64,
}

/// Everything that goes on for a topic at a broker.
struct Flow {
    topic: Placed,
    at: usize,
    publisher: Publisher,
    consumer: Consumer,
}

/// Takes the etcd away for `gone`; leases last `lease`.
pub(crate) fn run(binary: &Path, folder: &Path, lease: Duration, gone: Duration) -> Result<Found> {
    let site = Site { binary, folder };
    let mut etcd = Nodes::start(folder)?;
    let brokers = start_brokers(site, &etcd)?;
    for topic in PLACED {
        let body = format!("{{\"rate\": \"{RATE_PER_S}/s\", \"burst\": {BURST}}}");
        let answer = brokers[0].ask("PUT", &format!("/api/v1/limits/{}", topic.name), &body)?;
        if answer.status != 200 {
            miette::bail!("a limit is answered {}: {}", answer.status, answer.body);
        }
    }
    let control = Control::start(site, "control", &etcd, &brokers, &PLACED, lease)?;
    let flows = start_flows(&brokers)?;
    // While a plan is made, parts are those that publishers will need who do as they are told; these here stay where they are.
    until("every topic stands on both brokers, in parts that follow the load, and nothing waits", SOON, || {
        (are_whole(&brokers, FITTED_SHARE) && stands(&control).unwrap_or(false)).then_some(())
    })?;

    let calm = clock::monotonic_ns();
    clock::rest(CALM);
    let (killed, watch) = (clock::monotonic_ns(), Stopwatch::start());
    etcd.kill_all();
    let ends = ends(&brokers, gone).wrap_err("after the etcd was killed")?;
    let first_end = ends.values().map(|end| end.at).min().unwrap_or(killed);
    for flow in &flows {
        match (flow.topic.on_store_loss, flow.at) {
            ("closed", _) => flow.publisher.set_rate(FEW_PER_S),
            (_, 0) => flow.publisher.set_rate(more_than(ends[&(flow.topic.name, 0)].rate_per_s)),
            _ => {}
        }
    }
    let in_force = lapsed_parts(&brokers)?;
    // What waits from before has its time to go.
    clock::rest(Duration::from_secs(1));
    let from = clock::monotonic_ns();
    clock::rest(gone.saturating_sub(watch.elapsed()));
    let to = clock::monotonic_ns();
    let watch = Stopwatch::start();
    etcd.start_all()?;
    until("every part has a lease again", SOON, || are_whole(&brokers, 0.0).then_some(()))?;
    let back_after = watch.elapsed();

    let (published, deliveries) = finish(flows);
    let all: Vec<Delivery> = deliveries.values().flatten().copied().collect();
    let within = |delivery: &&Delivery| delivery.sent >= killed && delivery.sent < first_end - ns(ARRIVES);
    let verdict = |topic: Placed| {
        let seen = Seen { topic, ends: &ends, in_force: &in_force, deliveries: &deliveries, from, to };
        let (said, wrong) = seen.judge();
        (topic.name, said, wrong)
    };
    let found = Found {
        published: published.answered,
        failures: published.failures,
        calm_p99: p99(all.iter().filter(|delivery| delivery.sent >= calm && delivery.sent < killed)),
        within_p99: p99(all.iter().filter(within)),
        verdicts: PLACED.map(verdict).to_vec(),
        back_after,
        lost: published.answered.saturating_sub(all.len() as u64),
    };
    control.stop()?;
    stop_brokers(brokers)?;
    Ok(found)
}

fn start_flows(brokers: &[Arc<Broker>]) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for topic in PLACED {
        for (at, broker) in brokers.iter().enumerate() {
            let consumer = Consumer::start(broker, topic.name)?;
            flows.push(Flow { topic, at, publisher: Publisher::start(broker, topic.name, EACH_PER_S)?, consumer });
        }
    }
    Ok(flows)
}

/// Ends all publishers, waits until the lines are empty, and ends the consumers.
fn finish(flows: Vec<Flow>) -> (Published, Deliveries) {
    let (mut publishers, mut consumers) = (Vec::new(), Vec::new());
    for Flow { topic, at, publisher, consumer } in flows {
        publishers.push(publisher);
        consumers.push(((topic.name, at), consumer));
    }
    let published = finish_all(publishers);
    let came = || consumers.iter().map(|(_, consumer)| consumer.count()).sum::<u64>();
    let mut before = came();
    // What is lost is counted afterwards, and not waited for.
    while before < published.answered {
        let more = clock::poll(EMPTIED_WITHIN, || Some(came()).filter(|came| *came > before));
        let Some(more) = more else { break };
        before = more;
    }
    (published, consumers.into_iter().map(|(of, consumer)| (of, consumer.finish())).collect())
}

/// Whether every topic has parts under leases at both brokers that are the whole limit, and each at least `share` of it.
fn are_whole(brokers: &[Arc<Broker>], share: f64) -> bool {
    let Ok(parts) = brokers.iter().map(|broker| broker.parts()).collect::<Result<Vec<_>>>() else { return false };
    PLACED.iter().all(|topic| {
        let of_topic = || parts.iter().flatten().filter(|part| part.topic == topic.name && part.lapses_in.is_some());
        let burst: u64 = of_topic().filter_map(|part| part.in_force).map(|(_, burst)| burst).sum();
        let least = of_topic().filter_map(|part| part.in_force).map(|(rate, _)| rate).fold(f64::INFINITY, f64::min);
        of_topic().count() == brokers.len() && burst == u64::from(BURST) && least >= share * f64::from(RATE_PER_S)
    })
}

/// Whether a plan of every topic stands, and nothing waits at its parts.
fn stands(control: &Control) -> Result<bool> {
    let state = control.state()?;
    let topics = state["topics"].as_array().map_or(&[][..], Vec::as_slice);
    let is_calm = |part: &Value| part["backlog_max"].as_u64() <= part["limit_burst"].as_u64();
    let stands = |topic: &Value| {
        topic["phase"] == "stands" && topic["parts"].as_array().is_some_and(|parts| parts.iter().all(is_calm))
    };
    Ok(topics.len() == PLACED.len() && topics.iter().all(stands))
}

/// Looks at all parts until every lease has ended; when each one did follows from what was left of it.
fn ends(brokers: &[Arc<Broker>], limit: Duration) -> Result<Ends> {
    let mut ends = Ends::new();
    until("all leases end", limit, || {
        let mut open = 0;
        for (at, broker) in brokers.iter().enumerate() {
            let parts = broker.parts().ok()?;
            let now = clock::monotonic_ns();
            for (topic, part) in PLACED.iter().filter_map(|topic| Some((topic, part_of(&parts, topic.name)?))) {
                let (Some(left), Some((rate_per_s, burst))) = (part.lapses_in, part.in_force) else { continue };
                open += 1;
                ends.insert((topic.name, at), End { at: now + ns(left), rate_per_s, burst });
            }
        }
        (open == 0).then_some(())
    })?;
    let wanted = PLACED.len() * brokers.len();
    if ends.len() == wanted { Ok(ends) } else { miette::bail!("{} of {wanted} parts were seen to end", ends.len()) }
}

/// What rules when all leases have ended, by topic and broker.
fn lapsed_parts(brokers: &[Arc<Broker>]) -> Result<By<Option<(f64, u64)>>> {
    let mut in_force = BTreeMap::new();
    for (at, broker) in brokers.iter().enumerate() {
        let parts = broker.parts()?;
        for topic in PLACED {
            let part = part_of(&parts, topic.name).ok_or_else(|| miette::miette!("no part of {}", topic.name))?;
            in_force.insert((topic.name, at), part.in_force);
        }
    }
    Ok(in_force)
}

fn part_of<'a>(parts: &'a [Part], topic: &str) -> Option<&'a Part> {
    parts.iter().find(|part| part.topic == topic)
}

fn p99<'a>(deliveries: impl Iterator<Item = &'a Delivery>) -> Duration {
    let mut delays: Vec<Ns> = deliveries.map(|delivery| delivery.came - delivery.sent).collect();
    delays.sort_unstable();
    let at = (delays.len() * 99 / 100).min(delays.len().saturating_sub(1));
    let delay = delays.get(at).copied().and_then(|delay| u64::try_from(delay).ok());
    Duration::from_nanos(delay.unwrap_or(0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate below a thousand")]
fn more_than(rate_per_s: f64) -> u32 {
    (rate_per_s * MORE_THAN_PART).ceil().clamp(1.0, 1_000.0) as u32
}
