//! What a director is told and what it orders.
//!
//! Nodes and publishers have names here; planners number them. Tokens are messages, or bytes if the claim counts bytes:
//! whoever drives the director picks the figures of the claim's unit.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;

pub use super::super::adaptor::{AdaptorConfig, Second};
use super::super::modelled::ModelConfig;
use super::super::name::Name;
use super::super::roster::NodeState;
use super::super::types::{Excess, FitConfig, NodeLoad, Plan, Principles, Slo};

/// A node's name, as the roster knows it; at most 128 bytes.
pub type NodeName = Name;
/// A publisher's identity; at most 128 bytes.
pub type Identity = Name;
/// A correlation key; at most 128 bytes.
pub type Key = Name;

/// Publishers that a director keeps at most. Those beyond it are served where the weights of
/// [`PlacementChange::default`] send them, and are in no plan.
pub const IDENTITIES_MAX: usize = 1_000_000;
/// Orders that wait for an answer at most, for each node; at the bound a node is asked nothing new.
pub const UNANSWERED_MAX: usize = 8;

/// Which planner finds the placement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannerKind {
    /// The paper's, by rounds of measurements.
    Paper,
    /// By a model of the nodes, confirmed by one measurement.
    Model(ModelConfig),
}

/// What a director is to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DirectorConfig {
    /// The whole contract.
    pub limit: Limit,
    /// The objective.
    pub slo: Slo,
    /// By which principles publishers are placed.
    pub principles: Principles,
    /// How plans measure. `fit.round` is at most 60 s: nodes keep no more seconds.
    pub fit: FitConfig,
    /// Who plans.
    pub planner: PlannerKind,
    /// How parts follow the traffic between plans.
    pub adapt: AdaptorConfig,
    /// Nodes lend each other tokens: bursts stay as they were divided, since loans follow the traffic more closely than
    /// fits could, and each node is told of the others.
    pub lends: bool,
    /// How long a node holds a part without a renewal.
    pub lease: Duration,
    /// How often a part is renewed; at most a third of the lease, so that two renewals may be lost.
    pub renew_every: Duration,
    /// How often sensors are read.
    pub sense_every: Duration,
    /// Publishers are watched so long before the first plan, that their rates are known.
    pub watch_first: Duration,
    /// An order without an answer counts as failed after this.
    pub answer_within: Duration,
    /// A node that has not its consumers after this is left out of the plan.
    pub ready_within: Duration,
    /// Before a measurement, lines that a move left have so long beyond `fit.settle` to be worked off.
    pub lines_within: Duration,
    /// A publisher that was not seen for so long leaves the plan.
    pub forget_after: Duration,
    /// After a shortfall a new plan is made when a node comes, or after this.
    pub retry_after: Duration,
    /// Publishers that send to another node than theirs are disconnected once for each placement, so that they ask again.
    /// For publishers that have one fixed address that helps nothing.
    pub disconnect_strays: bool,
    /// Same seed, same plan for the same events.
    pub seed: u64,
}

impl DirectorConfig {
    /// The defaults for a contract and an objective: SRTM's principles and the paper's planner; leases of 10 s that are
    /// renewed every 3 s; sensors each second, as the paper's adaptor; 30 s for consumers to connect, 20 s for lines.
    #[must_use]
    pub fn new(limit: Limit, slo: Slo) -> Self {
        Self {
            limit,
            slo,
            principles: Principles::SRTM,
            fit: FitConfig { excess: Excess::NextNode, ..FitConfig::default() },
            planner: PlannerKind::Paper,
            adapt: AdaptorConfig::default(),
            lends: false,
            lease: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            sense_every: Duration::from_secs(1),
            watch_first: Duration::from_secs(5),
            answer_within: Duration::from_secs(2),
            ready_within: Duration::from_secs(30),
            // With a tenth of the rate to spare, that works off what comes in two seconds.
            lines_within: Duration::from_secs(20),
            forget_after: Duration::from_mins(1),
            retry_after: Duration::from_mins(1),
            disconnect_strays: false,
            seed: 1,
        }
    }
}

/// A publisher, as a node sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Its name.
    pub identity: Identity,
    /// With whom it sends; `None`: nobody.
    pub correlation: Option<Key>,
    /// Tokens per second, the mean over the seconds that were asked for.
    pub rate_per_s: f64,
}

/// Delays of the claim's messages at a node, over the seconds that were asked for.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Delays {
    /// Messages.
    pub messages: u64,
    /// Those that took longer than the objective.
    pub over_slo: u64,
    /// From arrival to the end of processing.
    pub delay_us_p99: f64,
    /// Waiting for tokens alone.
    pub access_us_p99: f64,
}

/// What a node's sensors say of the claim.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    /// The node's monotonic clock when it answered.
    pub clock_us: u64,
    /// The last whole seconds that were asked for, oldest first; at most 60.
    pub seconds: Vec<Second>,
    /// Who publishes there; at most 65,536.
    pub publishers: Vec<Seen>,
    /// Over the same seconds.
    pub delays: Delays,
}

/// A recorded batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedBatch {
    /// When it came, on the node's own clock.
    pub at_us: u64,
    /// Its publisher: a place in [`Recording::identities`].
    pub publisher: u32,
    /// Its messages, at least 1.
    pub messages: u32,
}

/// What one node recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// The publishers of the recording.
    pub identities: Vec<Identity>,
    /// In order of time; at most 4,000,000, beyond which a node stops recording.
    pub batches: Vec<RecordedBatch>,
}

/// What happened. Answers name the number of their order; an answer to an order that nobody waits for says nothing.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A node came, or its state or what others have there changed. Nodes that were never named do not exist.
    Node {
        /// Which.
        node: NodeName,
        /// As the roster has it.
        state: NodeState,
        /// Its capacity, and what other claims have of it; not what this claim has.
        load: NodeLoad,
    },
    /// Answer to [`Ask::Sense`].
    Sensed {
        /// The order's number.
        order: u64,
        /// What was read.
        reading: Reading,
    },
    /// Answer to [`Ask::Prepare`].
    Prepared {
        /// The order's number.
        order: u64,
        /// Channels that have no consumer there; none: the node is ready.
        missing: Vec<String>,
    },
    /// Answer to [`Ask::Put`]: the node holds this part from now on, or knows it already.
    Put {
        /// The order's number.
        order: u64,
    },
    /// Answer to [`Ask::Put`]: the node holds one of a newer revision. Whoever drives the director finds out if another
    /// leads, and says [`Event::Lead`].
    Fenced {
        /// The order's number.
        order: u64,
        /// The revision that it holds.
        holds: u64,
    },
    /// Answer to [`Ask::Record`].
    Recorded {
        /// The order's number.
        order: u64,
        /// What came to this node.
        recording: Recording,
    },
    /// A node has left the split of this generation, and lends only in another one.
    LeftSplit {
        /// Of a [`Split`].
        generation: u64,
    },
    /// Any order: it cannot be carried out, or the node did not answer in time. It may have had its effect.
    Failed {
        /// The order's number.
        order: u64,
    },
    /// A person set another contract: the parts change in proportion at once, the placement stays.
    Limit(Limit),
    /// A person asks for a new plan.
    Replan,
    /// This process leads from now on, or no longer does. A director begins as one that does not, and orders nothing then.
    Lead {
        /// True if it leads.
        leads: bool,
        /// All revisions from now on are above this: those of former leaders, and what nodes hold.
        above: u64,
        /// What former leaders granted has ended after this: a lease, less the time since the last of them can have sent
        /// anything; zero if there was none. Until then no parts are put. The first [`PlacementChange`] of a leader is from
        /// none.
        quiet: Duration,
    },
    /// It leads until then, unless it is told a later moment before: this comes with [`Event::Lead`] and with each renewal of
    /// leadership. From then on it orders nothing, whether it hears that it does not lead or not: a process that stood still
    /// must not act on what it believed before. Without it the term has no end.
    LeadsUntil(Instant),
    /// What is declared of the claim changed. Publishers stay; a new plan follows if what plans are made by is different.
    Configured {
        /// From now on. The lease is as before.
        config: Box<DirectorConfig>,
        /// What else belongs to parts changed: they are sent again, under new revisions.
        reissues: bool,
    },
    /// The claim ends: parts are taken back, and nothing more is ordered.
    End,
}

/// How the burst is divided among nodes that lend each other tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// Greater than of any earlier one of the claim.
    pub generation: u64,
    /// Nodes with a part, and their bursts.
    pub nodes: Vec<(NodeName, u64)>,
}

/// What a node may let pass, until when.
#[derive(Clone, PartialEq, Debug)]
pub struct Grant {
    /// Fences older ones. The same revision again is a renewal.
    pub revision: u64,
    /// The part; a rate and a burst of 0 let nothing pass.
    pub limit: Limit,
    /// For so long from its arrival,
    pub lease: Duration,
    /// but no longer than until this moment of the node's own monotonic clock (that of [`Reading::clock_us`]): an order that
    /// arrives later than that is not obeyed. So one that was delayed on its way does not outlive its lease.
    pub until_us: u64,
    /// How the burst is divided in the end, if nodes lend and there are several.
    pub split: Option<Arc<Split>>,
}

/// What is to be done at a node or for all.
#[derive(Clone, PartialEq, Debug)]
pub enum Ask {
    /// Reads the sensors of the last `seconds` whole seconds. Answer: [`Event::Sensed`].
    Sense {
        /// Where.
        node: NodeName,
        /// From 1 to 60.
        seconds: u32,
        /// Messages beyond this are counted as [`Delays::over_slo`].
        slo: Duration,
    },
    /// Creates the claim and its channels there, and asks whether all channels have consumers; it is repeated each second
    /// until they have. Answer: [`Event::Prepared`].
    Prepare {
        /// Where.
        node: NodeName,
    },
    /// Puts a part in force. Answer: [`Event::Put`] or [`Event::Fenced`].
    Put {
        /// Where.
        node: NodeName,
        /// What.
        grant: Grant,
    },
    /// Takes the part back: the person's contract alone holds there again. Answer: [`Event::Put`].
    Withdraw {
        /// Where.
        node: NodeName,
        /// Fences older parts.
        revision: u64,
    },
    /// Records arrivals there, from now on. Answer, after `span`: [`Event::Recorded`].
    Record {
        /// Where.
        node: NodeName,
        /// How long.
        span: Duration,
    },
    /// Closes the connections of these publishers after their last whole command. No answer is waited for.
    Disconnect {
        /// Where.
        node: NodeName,
        /// At most 1,000.
        identities: Vec<Identity>,
    },
    /// Tells those that steer publishers. No answer is waited for: publishers are seen where they are.
    Place(PlacementChange),
    /// Tells people and programs. No answer is waited for.
    Report(Report),
}

/// An order.
#[derive(Clone, PartialEq, Debug)]
pub struct Order {
    /// Names it in its answer; grows, and starts at 1.
    pub no: u64,
    /// What is to be done.
    pub what: Ask,
}

/// What differs from the placement before, the first from none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PlacementChange {
    /// Grows with each.
    pub revision: u64,
    /// The nodes that take publishers; places in this list are what `changed` and `default` speak of. The list replaces the
    /// one before: unchanged publishers keep their node, whatever place it has now, and those whose node is not in the new
    /// list any more are all in `changed`.
    pub nodes: Vec<NodeName>,
    /// `default[i]` is the weight of `nodes[i]` for publishers that are not named: its room in tokens per second. All are 0
    /// if there is none; then they weigh the same.
    pub default: Vec<f64>,
    /// Publishers that are new or go elsewhere, with their node's place; `None`: it is not named any more.
    pub changed: Vec<(Identity, Option<u32>)>,
}

/// A whole placement.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Placement {
    /// As in [`PlacementChange`].
    pub revision: u64,
    /// As in [`PlacementChange`].
    pub nodes: Vec<NodeName>,
    /// As in [`PlacementChange`].
    pub default: Vec<f64>,
    /// Where each named publisher belongs: a place in `nodes`.
    pub publishers: BTreeMap<Identity, u32>,
}

impl Placement {
    /// Puts a change in force. Changes that are not newer do nothing.
    pub fn apply(&mut self, change: &PlacementChange) {
        if change.revision <= self.revision {
            return;
        }
        if self.nodes != change.nodes {
            let place = |at: u32| {
                let node = self.nodes.get(at as usize)?;
                let at = change.nodes.iter().position(|other| other == node)?;
                u32::try_from(at).ok()
            };
            let moved: Vec<Option<u32>> = (0..).take(self.nodes.len()).map(place).collect();
            self.publishers.retain(|_, at| match moved.get(*at as usize).copied().flatten() {
                Some(now) => {
                    *at = now;
                    true
                }
                None => false,
            });
            self.nodes.clone_from(&change.nodes);
        }
        self.revision = change.revision;
        self.default.clone_from(&change.default);
        for (identity, at) in &change.changed {
            if let Some(at) = at {
                self.publishers.insert(identity.clone(), *at);
            } else {
                self.publishers.remove(identity);
            }
        }
    }
}

/// What people and programs are told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A plan stands.
    Planned {
        /// The nodes by their number in the plan.
        nodes: Vec<NodeName>,
        /// The plan.
        plan: Box<Plan>,
        /// Its decisions, each a sentence.
        words: Vec<String>,
    },
    /// There is no plan that holds: more nodes are needed. `on_out_of_brokers` is called with it.
    OutOfNodes {
        /// The rate that has no node.
        missing_per_s: f64,
        /// The cause and what was decided before, each a sentence.
        words: Vec<String>,
    },
    /// Publishers that a lost or draining node had are placed on others.
    NodeLost {
        /// Which.
        node: NodeName,
        /// Publishers that have a node again.
        moved: u32,
        /// Publishers that no node had room for. They are placed all the same, beyond capacity, and a new plan is made.
        beyond_room: u32,
    },
    /// A node was not ready in time, and is left out of the plan.
    NotReady {
        /// Which.
        node: NodeName,
        /// The channels that have no consumer there; none, if it did not answer.
        missing: Vec<String>,
    },
    /// A node that takes publishers had consumers of all channels, and has not any more. Nobody moves.
    ConsumersLeft {
        /// Which.
        node: NodeName,
        /// The channels that have no consumer there.
        missing: Vec<String>,
    },
    /// A node holds a part of a newer revision than ours: another process leads.
    Fenced {
        /// Where.
        node: NodeName,
        /// The revision that it holds.
        holds: u64,
    },
}

/// What the director is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Another process leads.
    Follows,
    /// Publishers are watched, or there are none, or no node is ready.
    Watches,
    /// A plan is being made.
    Plans,
    /// A plan stands, and parts follow the traffic.
    Stands,
    /// The last plan failed; what it had found is in force.
    Short,
    /// The claim ended.
    Ended,
}

/// One node in a [`View`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub node: NodeName,
    /// As the roster has it.
    pub state: NodeState,
    /// Its capacity, and what other claims have of it.
    pub load: NodeLoad,
    /// The part that it is to have.
    pub wanted: Limit,
    /// The part that it acknowledged last.
    pub acknowledged: Option<Limit>,
    /// Milliseconds until its lease ends.
    pub lease_ms: u64,
    /// Publishers that are placed there.
    pub publishers: u32,
    /// Their rates.
    pub rate_per_s: f64,
    /// What was read last.
    pub delays: Delays,
    /// The most tokens that waited, within the adaptor's window.
    pub backlog_max: u64,
}

/// The state for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct View {
    /// What it is about.
    pub phase: Phase,
    /// The whole contract.
    pub limit: Limit,
    /// The newest revision of parts.
    pub revision: u64,
    /// The revision of the placement.
    pub placement: u64,
    /// By name.
    pub nodes: Vec<NodeView>,
    /// Publishers known.
    pub publishers: u32,
    /// The last report of a plan or a shortfall.
    pub last: Option<Report>,
}
