//! What a planner is told and what it orders.
//!
//! Rates are tokens per second, one token for a message unless the claim counts bytes. Nodes, publishers and groups are
//! numbered by the caller, from 0 and without gaps; a number is good for one plan.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;

/// Nodes in one plan at most.
pub const NODES_MAX: usize = 1_000;
/// Publishers in one plan at most.
pub const PUBLISHERS_MAX: usize = 1_000_000;

/// A node that can take publishers: a broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeNo(pub u32);

/// A publisher: its place in [`Demand::publishers`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublisherNo(pub u32);

/// Publishers that send together. One without a correlation key has a group of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupNo(pub u32);

/// What is known of a publisher.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Publisher {
    /// Mean rate, at least 0, finite.
    pub rate_per_s: f64,
    /// With whom it sends.
    pub group: GroupNo,
}

/// What is known of a node.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Its capacity under the objective, from a benchmark.
    pub mcap_per_s: f64,
    /// The rates that are assigned to it already, of other topics.
    pub allocated_per_s: f64,
}

impl NodeLoad {
    /// What is left of its capacity.
    #[must_use]
    pub fn rcap_per_s(self) -> f64 {
        (self.mcap_per_s - self.allocated_per_s).max(0.0)
    }
}

/// How a topic's rate is divided among the nodes that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareRule {
    /// The same rate of the topic for each node.
    EvenTopic,
    /// So that the nodes' total rates are equal.
    EvenTotal,
    /// Max-min of the topic's rates under what is left of each node's capacity.
    MaxMin,
}

/// The principles of SRTM, each of which can be switched off. Source: §3 of the paper
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Principles {
    /// As few nodes as possible; else all, measured once and not fitted.
    pub concentrate: bool,
    /// How the rate is divided.
    pub share: ShareRule,
    /// Publishers of one group are spread over the nodes.
    pub by_groups: bool,
}

impl Principles {
    /// Load balancing: every node alike.
    pub const LB: Self = Self { concentrate: false, share: ShareRule::EvenTopic, by_groups: false };
    /// Concentration alone.
    pub const CONC: Self = Self { concentrate: true, share: ShareRule::EvenTotal, by_groups: false };
    /// Concentration and max-min.
    pub const MAX_MIN: Self = Self { concentrate: true, share: ShareRule::MaxMin, by_groups: false };
    /// All three.
    pub const SRTM: Self = Self { concentrate: true, share: ShareRule::MaxMin, by_groups: true };
}

/// What users are promised.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Slo {
    /// The share of messages that keep it, such as 0.99.
    pub quantile: f64,
    /// From arrival to the end of processing.
    pub within: Duration,
}

/// Where publishers are that a node which searches has given up for the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Excess {
    /// Nowhere: they send nothing. Only a simulation can do that.
    Held,
    /// On a node that is not measured, or else on the next one.
    NextNode,
}

/// How measurements are made.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct FitConfig {
    /// Length of one measurement.
    pub round: Duration,
    /// Time for the first assignment.
    pub place: Duration,
    /// Time after each change before a measurement counts.
    pub settle: Duration,
    /// A search stops at a delay from this share of the objective on: 0.8.
    pub accept_from: f64,
    /// Rounds in all; beyond, the plan ends with what it has.
    pub rounds_max: u32,
    /// See there.
    pub excess: Excess,
}

impl Default for FitConfig {
    /// The paper's: 60 s. With 1.9 s and 2.1 s besides, its plans of 1, 3, 9, 12, 14 and 17 rounds take 64, 188, 561, 747,
    /// 871 and 1058 s; the paper states 64, 189, 558, 745, 871 and 1058 s.
    fn default() -> Self {
        Self {
            round: Duration::from_mins(1),
            place: Duration::from_millis(1_900),
            settle: Duration::from_millis(2_100),
            accept_from: 0.8,
            rounds_max: 64,
            excess: Excess::Held,
        }
    }
}

/// What is to be placed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Demand {
    /// The whole contract.
    pub limit: Limit,
    /// The objective.
    pub slo: Slo,
    /// Who sends; at most [`PUBLISHERS_MAX`].
    pub publishers: Vec<Publisher>,
    /// By which principles.
    pub principles: Principles,
    /// How to measure.
    pub fit: FitConfig,
    /// Exactly so many nodes, measured once and not fitted.
    pub force_nodes: Option<u32>,
    /// Same seed, same plan for the same measurements.
    pub seed: u64,
}

/// What a node showed in one measurement, or what a model says that it will show.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub node: NodeNo,
    /// Messages counted.
    pub messages: u64,
    /// Those that took longer than the objective.
    pub over_slo: u64,
    /// End to end, at the objective's quantile.
    pub delay_us_p99: f64,
    /// Waiting for tokens alone, at the same.
    pub access_us_p99: f64,
}

/// A batch of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// When it came, on one clock for all nodes.
    pub at: Instant,
    /// Whose.
    pub publisher: PublisherNo,
    /// How many messages; at least 1.
    pub messages: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanEvent {
    /// The nodes there are, by number; at most [`NODES_MAX`]. The first event, once.
    Begin {
        /// `nodes[i]` is node `i`.
        nodes: Vec<NodeLoad>,
    },
    /// All parts of this order are in force and their publishers are where they belong.
    Assigned {
        /// The order.
        revision: u64,
    },
    /// A node could not be made ready in time.
    NotAssigned {
        /// The order.
        revision: u64,
        /// The node.
        node: NodeNo,
    },
    /// A measurement ended.
    Measured {
        /// Its number.
        round: u64,
        /// One for each node that was asked for.
        results: Vec<Measured>,
    },
    /// A measurement that is watched goes on.
    Watched {
        /// Its number.
        round: u64,
        /// All that was seen since it began; one for each node that was asked for.
        results: Vec<Measured>,
    },
    /// A recording ended; in order of time.
    Recorded {
        /// What came.
        arrivals: Vec<Recorded>,
    },
    /// Another node is there; its number follows the last.
    NodeAdded(NodeNo, NodeLoad),
    /// A node is gone, with what it had.
    NodeGone(NodeNo),
}

/// A node's part of a topic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The node.
    pub node: NodeNo,
    /// Its sub-bucket.
    pub limit: Limit,
    /// Its publishers.
    pub publishers: Vec<PublisherNo>,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanOrder {
    /// Puts these parts in force, those that shrink first; replaces all earlier ones.
    Assign {
        /// Grows with each order.
        revision: u64,
        /// Nodes that are not named get nothing. The parts sum to the whole contract but for what is held back for
        /// publishers that are on no node.
        parts: Vec<Part>,
    },
    /// Measures, all nodes at the same time, after the parts are in force.
    Measure {
        /// Grows with each.
        round: u64,
        /// Which.
        nodes: Vec<NodeNo>,
        /// How long.
        span: Duration,
    },
    /// Measures as well, and tells every so often what was seen so far. It ends with `span`, or with the next order.
    Watch {
        /// Grows with each measurement.
        round: u64,
        /// Which.
        nodes: Vec<NodeNo>,
        /// How long at most.
        span: Duration,
        /// How often it is told.
        every: Duration,
    },
    /// Records the arrivals of all publishers where they are now.
    Record {
        /// How long.
        span: Duration,
    },
    /// The plan stands; the last order.
    Done(Box<Plan>),
    /// There is no plan that holds; the last order.
    OutOfNodes(Box<Shortfall>),
}

/// Where everybody is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// In order of the nodes' numbers.
    pub parts: Vec<Part>,
    /// Measurements of each iteration.
    pub rounds: Vec<u32>,
    /// From the first event to the last order.
    pub elapsed: Duration,
    /// What was expected, by node.
    pub predicted: Vec<Measured>,
    /// What was seen last, by node.
    pub measured: Vec<Measured>,
    /// The decisions in their order.
    pub why: Vec<Reason>,
}

/// What is missing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Shortfall {
    /// The rate that has no node.
    pub missing_per_s: f64,
    /// Why.
    pub cause: Cause,
    /// The best that was seen.
    pub best: Plan,
}

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// All nodes together have less left than is wanted.
    Capacity,
    /// One publisher alone is more than any node takes.
    PublisherTooLarge {
        /// Which.
        publisher: PublisherNo,
        /// Its rate.
        rate_per_s: f64,
        /// The largest capacity.
        largest_mcap_per_s: f64,
    },
    /// No number of nodes meets the objective.
    SloUnmet {
        /// The best that was seen.
        best_us_p99: f64,
    },
    /// There is no node.
    NoNode,
    /// More than [`NODES_MAX`] nodes or [`PUBLISHERS_MAX`] publishers.
    TooMany,
    /// The burst has no whole token for each part.
    BurstTooSmall {
        /// The burst.
        burst: u64,
        /// The parts.
        parts: u32,
    },
    /// [`FitConfig::rounds_max`] was reached.
    TooManyRounds,
}

/// One decision, to be told in words.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The least number of nodes with enough capacity.
    LeastNodes {
        /// How many.
        nodes: u32,
        /// The rate to place.
        rate_per_s: f64,
        /// What they have left together.
        rcap_per_s: f64,
    },
    /// A node met the objective.
    Kept {
        /// Which.
        node: NodeNo,
        /// Publishers on it.
        publishers: u32,
        /// What was seen.
        delay_us_p99: f64,
    },
    /// A node missed it, and keeps fewer.
    Full {
        /// Which.
        node: NodeNo,
        /// Publishers that stay,
        kept: u32,
        /// of so many.
        of: u32,
        /// Rounds that the search took.
        rounds: u32,
        /// What was seen at last.
        delay_us_p99: f64,
    },
    /// Publishers that no node could keep alone; those of the fullest node are dealt anew with them.
    DealtAnew {
        /// The fullest node.
        node: NodeNo,
        /// Publishers that it had,
        of: u32,
        /// and those that were left.
        left: u32,
    },
    /// What the model says of so many nodes.
    Predicted {
        /// How many.
        nodes: u32,
        /// The worst node's.
        delay_us_p99: f64,
        /// The worst node's share of messages over the objective.
        share_over: f64,
    },
    /// Model and measurement differ by more than the margin.
    Disagreed {
        /// Said.
        predicted_us_p99: f64,
        /// Seen.
        measured_us_p99: f64,
    },
    /// The model was given up for measurements in rounds.
    FellBack,
}

/// Finds a placement: told what happened, it orders what to do next. The same in production and in simulation.
pub trait Planner {
    /// Something happened.
    fn on_event(&mut self, event: PlanEvent, now: Instant);
    /// When to call back if nothing else happens.
    fn next_timeout(&self) -> Option<Instant>;
    /// That moment came, perhaps late.
    fn on_timeout(&mut self, now: Instant);
    /// The next order; call until `None`.
    fn poll_output(&mut self) -> Option<PlanOrder>;
}
