//! The state of control as its admin API shows it.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::number::float;
use tidegate_runtime::clock;
use tidegate_runtime::store::NodeState as StoreNode;

use super::Shared;
use super::claim::ClaimState;
use super::division::{DivisionHandle, DivisionView};
use super::lead::Standing;
use super::nodes::{McapFrom, Members};
use super::predict::Access;
use crate::config::Topic;
use crate::machine::director::{Phase, Report, View};
use crate::machine::name::Name;
use crate::machine::roster::NodeState;
use crate::machine::types::{Plan, Reason};

/// Longest list of a topic's parts; nodes that have nothing of it are left out.
const PARTS_MAX: usize = crate::config::NODES_MAX;

/// `GET /api/v1/control`.
#[derive(Clone, Debug, Serialize)]
pub struct ControlView {
    /// How this process is called.
    pub name: String,
    /// Of the program.
    pub version: &'static str,
    /// By the clock of the machine.
    pub now_ms: i64,
    /// Since the start.
    pub uptime_s: f64,
    /// Who leads.
    pub leader: LeaderView,
    /// How the store does.
    pub store: StoreView,
    /// By name.
    pub nodes: Vec<NodeView>,
    /// By name.
    pub topics: Vec<TopicView>,
    /// Limits that proxies divide, in the order of the configuration.
    pub limits: Vec<DivisionView>,
    /// What works, and is probably not meant.
    pub warnings: Vec<String>,
}

/// Who leads.
#[derive(Clone, Debug, Serialize)]
pub struct LeaderView {
    /// Whether this process does.
    pub leads: bool,
    /// Who does; `null` if that is not known.
    pub name: Option<String>,
    /// Its admin API.
    pub admin: Option<String>,
    /// Orders' revisions begin with this number, if this process leads.
    pub fence: Option<u64>,
    /// For how long this process has led.
    pub since_s: Option<f64>,
}

/// How the store does.
#[derive(Clone, Debug, Serialize)]
pub struct StoreView {
    /// The last call was answered.
    pub healthy: bool,
    /// Why it was not.
    pub error: Option<String>,
    /// Since the last answer; `null` before the first.
    pub silent_s: Option<f64>,
    /// How long the last answer took.
    pub latency_us: f64,
    /// Calls that failed.
    pub failures_total: u64,
    /// The processes that keep it.
    pub nodes: Vec<StoreNodeView>,
}

/// A process that keeps the store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreNodeView {
    /// Its file or address.
    pub name: String,
    /// `leads`, `follows`, `leaderless` or `silent`.
    pub state: &'static str,
}

/// A broker.
#[derive(Clone, Debug, Serialize)]
pub struct NodeView {
    /// As in the file.
    pub name: String,
    /// Its admin API, `host:port`.
    pub admin: String,
    /// Where publishers reach it, `host:port`.
    pub nsq: String,
    /// `known`, `ready`, `draining` or `gone`.
    pub state: &'static str,
    /// Why it did not answer the last time.
    pub error: Option<String>,
    /// Since its last answer; `null` before the first.
    pub silent_s: Option<f64>,
    /// Messages per second that it takes within the objectives.
    pub mcap_per_s: f64,
    /// Who says so.
    pub mcap_from: McapFrom,
    /// What placed topics have of it.
    pub allocated_per_s: f64,
    /// Its cores.
    pub shards: u32,
}

/// A topic.
#[derive(Clone, Debug, Serialize)]
pub struct TopicView {
    /// Its name.
    pub name: String,
    /// The whole limit.
    pub limit: LimitView,
    /// What is promised, as it is written.
    pub slo: String,
    /// The promise in numbers.
    pub slo_us: f64,
    /// `model` or `paper`.
    pub planner: &'static str,
    /// `srtm`, `max-min`, `conc` or `lb`.
    pub principles: &'static str,
    /// `local`, `open` or `closed`.
    pub on_store_loss: &'static str,
    /// `follows`, `watches`, `plans`, `stands`, `short` or `ended`.
    pub phase: Phase,
    /// The decision in one sentence.
    pub headline: String,
    /// How it came about, each a sentence.
    pub words: Vec<String>,
    /// What happened lately, newest last.
    pub events: Vec<String>,
    /// The newest revision of parts.
    pub revision: u64,
    /// The revision of the placement.
    pub placement: u64,
    /// Publishers that are known.
    pub publishers: u32,
    /// Messages per second that are sent.
    pub offered_per_s: f64,
    /// Messages in a batch, on average.
    pub batch: f64,
    /// Messages per second that have no broker.
    pub missing_per_s: f64,
    /// What the exact theory says of all parts together; `null` without a steady state.
    pub predicted: Option<PredictedView>,
    /// What was measured over all nodes in the last window.
    pub measured: MeasuredView,
    /// By node; those that have nothing are left out.
    pub parts: Vec<PartView>,
    /// Rounds of each iteration of the last plan.
    pub rounds: Vec<u32>,
    /// How long the last plan took.
    pub planned_in_s: Option<f64>,
}

/// A limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitView {
    /// Exact.
    pub rate: String,
    /// Rounded.
    pub rate_per_s: f64,
    /// In tokens.
    pub burst: u64,
    /// `messages` or `bytes`.
    pub unit: &'static str,
}

/// What the theory says of a split.
#[derive(Clone, Debug, Serialize)]
pub struct PredictedView {
    /// With the parts.
    pub split: Access,
    /// As one bucket.
    pub single: Access,
    /// The difference at the objective's quantile, microseconds.
    pub penalty_us_p99: f64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MeasuredView {
    /// Messages.
    pub messages: u64,
    /// Those beyond the objective.
    pub over_slo: u64,
    /// Their share.
    pub share_over: f64,
    /// The slowest node's p99 from arrival to the end of processing, microseconds.
    pub delay_us_p99: f64,
    /// The slowest node's p99 of waiting for tokens.
    pub access_us_p99: f64,
}

/// A node's part of a topic.
#[derive(Clone, Debug, Serialize)]
pub struct PartView {
    /// The node.
    pub node: String,
    /// Its state.
    pub state: &'static str,
    /// Publishers that are placed there.
    pub publishers: u32,
    /// Their share of the topic's.
    pub share: f64,
    /// Their rates, tokens per second.
    pub rate_per_s: f64,
    /// The part that it is to have: tokens per second.
    pub limit_rate_per_s: f64,
    /// The same: depth.
    pub limit_burst: u64,
    /// The node acknowledged it.
    pub in_force: bool,
    /// Until its lease ends.
    pub lease_s: f64,
    /// What was measured there.
    pub measured: MeasuredView,
    /// What the theory says of waiting for tokens there; `null` without a steady state.
    pub predicted: Option<Access>,
    /// By how much the measured wait for tokens is longer than the theory says for one bucket, microseconds.
    pub penalty_us_p99: Option<f64>,
    /// The most tokens that waited at one moment within the window.
    pub backlog_max: u64,
    /// Channels without a consumer there.
    pub missing: Vec<String>,
    /// Why it did not carry out the last order.
    pub error: Option<String>,
}

const fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Known => "known",
        NodeState::Ready => "ready",
        NodeState::Draining => "draining",
        NodeState::Gone => "gone",
    }
}

fn since_s(at: Option<Instant>, now: Instant) -> Option<f64> {
    at.map(|at| now.since(at).as_secs_f64())
}

impl ControlView {
    /// The state now.
    #[must_use]
    pub fn of(shared: &Shared) -> Self {
        let now = clock::now();
        let declared = shared.declared();
        Self {
            name: shared.me.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            now_ms: clock::realtime_ns() / 1_000_000,
            uptime_s: now.since(shared.started).as_secs_f64(),
            leader: leader(shared, now),
            store: store(shared, now),
            nodes: nodes(shared, &declared.members, now),
            topics: declared.claims.values().map(|claim| topic(&claim.topic, &claim.state.borrow())).collect(),
            limits: shared.divisions.iter().map(DivisionHandle::view).collect(),
            warnings: declared.config.warnings.clone(),
        }
    }
}

fn leader(shared: &Shared, now: Instant) -> LeaderView {
    match &*shared.standing.borrow() {
        Standing::Leads { term, since, .. } => LeaderView {
            leads: true,
            name: Some(shared.me.name.clone()),
            admin: Some(shared.me.admin.clone()),
            fence: Some(term.fence),
            since_s: since_s(Some(*since), now),
        },
        Standing::Follows { leader } => LeaderView {
            leads: false,
            name: leader.as_ref().map(|leader| leader.name.clone()),
            admin: leader.as_ref().map(|leader| leader.admin.clone()),
            fence: None,
            since_s: None,
        },
    }
}

fn store(shared: &Shared, now: Instant) -> StoreView {
    let health = shared.kept.health();
    let word = |state: StoreNode| match state {
        StoreNode::Leads => "leads",
        StoreNode::Follows => "follows",
        StoreNode::Leaderless => "leaderless",
        StoreNode::Silent => "silent",
    };
    StoreView {
        healthy: health.error.is_none() && health.answered.is_some(),
        silent_s: since_s(health.answered, now),
        latency_us: health.latency.as_secs_f64() * 1e6,
        failures_total: health.failures_total,
        nodes: health
            .nodes
            .iter()
            .map(|node| StoreNodeView { name: node.name.clone(), state: word(node.state) })
            .collect(),
        error: health.error,
    }
}

fn nodes(shared: &Shared, members: &Members, now: Instant) -> Vec<NodeView> {
    let known = shared.nodes.borrow().clone();
    let view = |(name, member): (&Name, &super::nodes::Member)| {
        let contact = shared.contacts.of(name.as_str());
        let node = known.get(name);
        NodeView {
            name: name.to_string(),
            admin: member.node.admin.clone(),
            nsq: member.node.nsq.clone(),
            state: node.map_or("known", |node| state_word(node.state)),
            error: contact.error,
            silent_s: since_s(contact.answered, now),
            mcap_per_s: node.map_or(0.0, |node| node.mcap_per_s),
            mcap_from: node.map(|node| node.mcap_from).unwrap_or_default(),
            allocated_per_s: shared.loads.of_all(name.as_str()),
            shards: node.map_or(0, |node| node.shards),
        }
    };
    members.iter().map(view).collect()
}

fn measured(delays: &crate::machine::director::Delays) -> MeasuredView {
    MeasuredView {
        messages: delays.messages,
        over_slo: delays.over_slo,
        share_over: float(delays.over_slo) / float(delays.messages.max(1)),
        delay_us_p99: delays.delay_us_p99,
        access_us_p99: delays.access_us_p99,
    }
}

/// All nodes together: counts are summed, of quantiles the worst is told.
fn measured_of_all(view: &View) -> MeasuredView {
    let mut all = MeasuredView::default();
    for node in view.nodes.iter().filter(|node| node.delays.messages > 0) {
        all.messages += node.delays.messages;
        all.over_slo += node.delays.over_slo;
        all.delay_us_p99 = all.delay_us_p99.max(node.delays.delay_us_p99);
        all.access_us_p99 = all.access_us_p99.max(node.delays.access_us_p99);
    }
    all.share_over = float(all.over_slo) / float(all.messages.max(1));
    all
}

/// A topic as it stands.
#[must_use]
pub fn topic(topic: &Topic, state: &ClaimState) -> TopicView {
    let ClaimState { view, offered, prediction, words, missing, failed, events } = state;
    let plan = match &view.last {
        Some(Report::Planned { plan, .. }) => Some(plan),
        _ => None,
    };
    let missing_per_s = match &view.last {
        Some(Report::OutOfNodes { missing_per_s, .. }) if view.phase == Phase::Short => *missing_per_s,
        _ => 0.0,
    };
    let has_some = |node: &&crate::machine::director::NodeView| {
        node.publishers > 0 || node.wanted.burst > 0 || node.acknowledged.is_some_and(|limit| limit.burst > 0)
    };
    let single = prediction.as_ref().map(|prediction| prediction.single.access_us_p99);
    let part = |node: &crate::machine::director::NodeView| {
        let measured = measured(&node.delays);
        PartView {
            node: node.node.to_string(),
            state: state_word(node.state),
            publishers: node.publishers,
            share: f64::from(node.publishers) / f64::from(view.publishers.max(1)),
            rate_per_s: node.rate_per_s,
            limit_rate_per_s: node.wanted.rate.as_per_s(),
            limit_burst: node.wanted.burst,
            in_force: node.acknowledged == Some(node.wanted),
            lease_s: float(node.lease_ms) / 1e3,
            measured,
            predicted: prediction.as_ref().and_then(|prediction| prediction.nodes.get(&node.node).copied()),
            penalty_us_p99: single.filter(|_| measured.messages > 0).map(|single| measured.access_us_p99 - single),
            backlog_max: node.backlog_max,
            missing: missing.get(&node.node).cloned().unwrap_or_default(),
            error: failed.get(&node.node).cloned(),
        }
    };
    TopicView {
        name: topic.name.clone(),
        limit: LimitView {
            rate: view.limit.rate.to_string(),
            rate_per_s: view.limit.rate.as_per_s(),
            burst: view.limit.burst,
            unit: topic.unit.word(),
        },
        slo: topic.slo.to_string(),
        slo_us: topic.slo.0.within.as_secs_f64() * 1e6,
        planner: topic.planner.word(),
        principles: topic.policy.word(),
        on_store_loss: topic.on_store_loss.word(),
        phase: view.phase,
        headline: headline(view, missing, failed),
        words: words.clone(),
        events: events.clone(),
        revision: view.revision,
        placement: view.placement,
        publishers: view.publishers,
        offered_per_s: offered.rate_per_s,
        batch: offered.batch,
        missing_per_s,
        predicted: prediction.as_ref().map(|prediction| PredictedView {
            split: prediction.split,
            single: prediction.single,
            penalty_us_p99: prediction.penalty_us_p99,
        }),
        measured: measured_of_all(view),
        parts: view.nodes.iter().filter(has_some).take(PARTS_MAX).map(part).collect(),
        rounds: plan.map(|plan| plan.rounds.clone()).unwrap_or_default(),
        planned_in_s: plan.map(|plan| plan.elapsed.as_secs_f64()),
    }
}

/// The decision in one sentence: "two brokers, because ..".
fn headline(view: &View, missing: &BTreeMap<Name, Vec<String>>, failed: &BTreeMap<Name, String>) -> String {
    let waits =
        missing.iter().next().map(|(node, channels)| format!("{node} waits for a consumer of {}", channels.join(", ")));
    match (view.phase, &view.last) {
        (Phase::Follows, _) => "this process does not lead".to_owned(),
        (Phase::Plans, _) => waits.unwrap_or_else(|| "a plan is being made".to_owned()),
        (Phase::Short, Some(Report::OutOfNodes { missing_per_s, words })) => {
            // Without consumers a node has no capacity, however much it has.
            let because = waits.as_ref().or(words.first()).map(|why| format!(", because {why}")).unwrap_or_default();
            if *missing_per_s < 0.5 {
                return format!("there is no placement{because}");
            }
            format!("brokers are missing for {missing_per_s:.0} messages/s{because}")
        }
        (Phase::Watches, _) if view.publishers == 0 => match failed.iter().next() {
            Some((node, why)) => format!("it is not known who publishes; {node}: {why}"),
            None => "nobody publishes".to_owned(),
        },
        (Phase::Watches, _) => "publishers are watched before the first plan".to_owned(),
        (Phase::Ended, _) => "the topic is not placed any more".to_owned(),
        (_, Some(Report::Planned { plan, .. })) => match missing.iter().next() {
            Some((node, channels)) => {
                format!("{}; {node} has no consumer of {}", placed_words(plan), channels.join(", "))
            }
            None => placed_words(plan),
        },
        _ => {
            let many = view.nodes.iter().filter(|node| node.publishers > 0).count();
            format!("{}, as it was before this process led", brokers(many))
        }
    }
}

/// Why a plan has as many nodes as it has.
#[must_use]
pub fn placed_words(plan: &Plan) -> String {
    let many = plan.parts.iter().filter(|part| !part.publishers.is_empty()).count();
    let because = plan.why.iter().rev().find_map(|reason| match reason {
        Reason::Predicted { delay_us_p99, .. } => {
            let others = if many > 1 { "more on fewer" } else { "a limit that is not split delays least" };
            Some(format!("the model expects a p99 of {:.2} ms there, and {others}", delay_us_p99 / 1e3))
        }
        Reason::LeastNodes { rate_per_s, .. } if many > 1 => {
            Some(format!("fewer have no room for {rate_per_s:.0} messages/s within the objective"))
        }
        Reason::LeastNodes { rate_per_s, .. } => {
            Some(format!("one has room for all {rate_per_s:.0} messages/s, and a limit that is not split delays least"))
        }
        _ => None,
    });
    let because = because.map(|because| format!(", because {because}")).unwrap_or_default();
    format!("{}{because}", brokers(many))
}

/// A number of brokers in words.
fn brokers(many: usize) -> String {
    const WORDS: [&str; 11] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let number = WORDS.get(many).map_or_else(|| many.to_string(), ToString::to_string);
    format!("{number} broker{}", if many == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Rate;
    use tidegate_core::limit::Limit;

    use super::*;
    use crate::machine::types::{NodeNo, Part, PublisherNo};

    fn plan(parts: u32, why: Vec<Reason>) -> Plan {
        let part = |node| Part {
            node: NodeNo(node),
            limit: Limit::new(Rate::per_s(1), 1),
            publishers: vec![PublisherNo(node)],
        };
        Plan { parts: (0..parts).map(part).collect(), why, elapsed: Duration::from_secs(1), ..Plan::default() }
    }

    #[test]
    fn a_decision_is_told_with_its_reason() {
        let least = Reason::LeastNodes { nodes: 2, rate_per_s: 10e3, rcap_per_s: 20e3 };
        assert_eq!(
            placed_words(&plan(2, vec![least])),
            "two brokers, because fewer have no room for 10000 messages/s within the objective"
        );
        assert!(placed_words(&plan(1, vec![least])).starts_with("one broker, because one has room for all 10000"));
        let predicted = Reason::Predicted { nodes: 3, delay_us_p99: 870.0, share_over: 0.004 };
        assert_eq!(
            placed_words(&plan(3, vec![least, predicted])),
            "three brokers, because the model expects a p99 of 0.87 ms there, and more on fewer"
        );
        assert_eq!(
            placed_words(&plan(1, vec![Reason::Predicted { nodes: 1, delay_us_p99: 210.0, share_over: 0.0 }])),
            "one broker, because the model expects a p99 of 0.21 ms there, and a limit that is not split delays least"
        );
        assert_eq!(placed_words(&plan(12, Vec::new())), "12 brokers");
    }
}
