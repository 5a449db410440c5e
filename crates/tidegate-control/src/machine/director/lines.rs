//! What waits at nodes because publishers move.
//!
//! Parts shrink before the publishers move that they were for, as the sum must hold at every instant. What these send until
//! they have moved waits: at nodes that have fewer publishers now, and at those that have none any more and would keep no more
//! than the least part. What is measured meanwhile is the move. So before a measurement the rate that the publishers leave
//! goes to where lines are, until there are none.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::number::float;

use super::super::types::NodeNo;
use super::Director;

/// What comes to a node beyond what its publishers send is of those who do not move, if it is more than this part of the limit.
const STRAYS_LEAST: f64 = 0.02;
/// A line is to be gone within this, if the rate allows it.
const WORKED_OFF_WITHIN: Duration = Duration::from_secs(1);

/// Nodes with a line, each with its length in tokens.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lines {
    known: Vec<(NodeNo, u64)>,
    /// A node has not told yet whether it has one.
    is_whole: bool,
}

impl Lines {
    /// Certainly nothing waits.
    pub(super) fn are_gone(&self) -> bool {
        self.known.is_empty() && self.is_whole
    }
}

impl Director {
    /// The lines of all nodes that have a part, since publishers began to move.
    pub(super) fn lines(&self, moved: Instant) -> Lines {
        let mut lines = Lines { known: Vec::new(), is_whole: true };
        for (&node, part) in &self.parts {
            // One that does not answer has nothing to say for as long.
            let Some((read_at, clock_us)) = self.node(node).clock.filter(|_| self.node(node).answers()) else {
                continue;
            };
            let held = self.steps.as_ref().and_then(|steps| steps.acknowledged(&node));
            let burst = held.map_or(part.burst, |(limit, _)| limit.burst);
            // When they began to move, on the node's clock.
            let since_us = clock_us.saturating_sub(read_at.nanos_since(moved) / 1_000);
            match self.adaptor.line(&node, burst, since_us) {
                None => lines.is_whole = false,
                Some(0) => {}
                Some(tokens) => lines.known.push((node, tokens)),
            }
        }
        lines
    }

    /// Notes how much more comes to each node than its publishers send, and less: of those who do not do as they are told.
    /// While publishers move, it would be of those too who have not moved yet.
    pub(super) fn note_strays(&mut self) {
        let least = STRAYS_LEAST * self.config.limit.rate.as_per_s();
        let beyond = |node: NodeNo| Some((node, self.adaptor.lately_per_s(&node)? - self.standing.rate_per_s(node)));
        self.strays = self.numbers().filter_map(beyond).filter(|(_, beyond)| beyond.abs() > least).collect();
        if self.strays.values().all(|&beyond| beyond < 0.0) {
            // Somebody stopped.
            self.strays.clear();
        }
    }

    /// What [`Self::note_strays`] found of `node`, per second.
    pub(super) fn strays_per_s(&self, node: NodeNo) -> f64 {
        self.strays.get(&node).copied().unwrap_or(0.0)
    }

    /// The rate that the publishers leave goes to where lines are, in proportion to these. True if there are any.
    pub(super) fn work_off(&mut self, lines: &Lines) -> bool {
        let Lines { known, .. } = lines;
        let all: u64 = known.iter().map(|(_, tokens)| tokens).sum();
        let sends = |node| self.standing.rate_per_s(node) + self.strays_per_s(node);
        let sent: f64 = self.numbers().map(sends).sum();
        let free_per_s = (self.config.limit.rate.as_per_s() - sent).max(0.0);
        let more = |node: NodeNo| {
            let tokens = known.iter().find(|(other, _)| *other == node).map_or(0, |(_, tokens)| *tokens);
            let share = free_per_s * float(tokens) / float(all.max(1));
            self.strays_per_s(node) + share.min(float(tokens) / WORKED_OFF_WITHIN.as_secs_f64())
        };
        let portions = self.standing.portions_with(self.config.limit, |node| self.parts.contains_key(&node), more);
        if !known.is_empty() && !portions.is_empty() {
            self.set_parts(portions.into_iter().collect());
        }
        !known.is_empty()
    }
}
