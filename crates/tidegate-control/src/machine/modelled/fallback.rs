//! The paper's planner, after a model was given up.

use tidegate_core::Instant;

use super::super::distributor::Distributor;
use super::super::types::{Demand, NodeLoad, NodeNo, Plan, PlanEvent, PlanOrder, Planner, Shortfall};

/// Revisions and rounds go on from those of the model.
#[derive(Debug)]
pub(super) struct Fallback {
    planner: Distributor,
    revision: u64,
    round: u64,
    now: Instant,
}

impl Fallback {
    /// `nodes` are all that there are, with whether they can be used.
    pub(super) fn new(demand: Demand, nodes: Vec<(NodeLoad, bool)>, revision: u64, round: u64, now: Instant) -> Self {
        let mut planner = Distributor::new(demand);
        let unusable: Vec<NodeNo> =
            (0..).map(NodeNo).zip(&nodes).filter(|(_, (_, usable))| !usable).map(|(node, _)| node).collect();
        // Without a capacity it gets nobody.
        let load = |(load, usable): (NodeLoad, bool)| if usable { load } else { NodeLoad { mcap_per_s: 0.0, ..load } };
        planner.on_event(PlanEvent::Begin { nodes: nodes.into_iter().map(load).collect() }, now);
        for node in unusable {
            planner.on_event(PlanEvent::NodeGone(node), now);
        }
        Self { planner, revision, round, now }
    }

    pub(super) fn on_event(&mut self, event: PlanEvent, now: Instant) {
        self.now = now;
        let event = match event {
            PlanEvent::Assigned { revision } => {
                PlanEvent::Assigned { revision: revision.saturating_sub(self.revision) }
            }
            PlanEvent::NotAssigned { revision, node } => {
                PlanEvent::NotAssigned { revision: revision.saturating_sub(self.revision), node }
            }
            PlanEvent::Measured { round, results } => {
                PlanEvent::Measured { round: round.saturating_sub(self.round), results }
            }
            other => other,
        };
        self.planner.on_event(event, now);
    }

    /// The next order. The last one says what the model decided, too: `before` is taken for it.
    pub(super) fn poll(&mut self, before: &mut Plan, began: Instant) -> Option<PlanOrder> {
        let elapsed = self.now.since(began);
        let mut whole = |plan: Plan| {
            let mut all = core::mem::take(before);
            all.rounds.extend(plan.rounds);
            all.why.extend(plan.why);
            Plan { parts: plan.parts, measured: plan.measured, elapsed, ..all }
        };
        Some(match self.planner.poll_output()? {
            PlanOrder::Assign { revision, parts } => PlanOrder::Assign { revision: revision + self.revision, parts },
            PlanOrder::Measure { round, nodes, span } => PlanOrder::Measure { round: round + self.round, nodes, span },
            PlanOrder::Done(plan) => PlanOrder::Done(Box::new(whole(*plan))),
            PlanOrder::OutOfNodes(shortfall) => {
                let Shortfall { missing_per_s, cause, best } = *shortfall;
                PlanOrder::OutOfNodes(Box::new(Shortfall { missing_per_s, cause, best: whole(best) }))
            }
            other => other,
        })
    }
}
