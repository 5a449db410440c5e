//! What a layer has done so far, for metrics and the console.

use core::time::Duration;
use std::collections::BTreeMap;

use serde::Serialize;

use super::config::Mode;
use crate::machine::{Grant, Priority, ShedReason};

/// Calls shed for one reason at one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ShedCount {
    /// Why.
    pub reason: ShedReason,
    /// Which.
    pub priority: Priority,
    /// How many, since the layer was made.
    pub calls: u64,
}

/// Counters of calls by reason and priority: at most 9 × 256.
#[derive(Clone, Default, Debug)]
pub(super) struct Sheds(BTreeMap<(ShedReason, Priority), u64>);

impl Sheds {
    pub(super) fn count(&mut self, reason: ShedReason, priority: Priority) {
        *self.0.entry((reason, priority)).or_default() += 1;
    }

    /// Calls by reason.
    pub(super) fn by_reason(&self) -> BTreeMap<ShedReason, u64> {
        let mut sums = BTreeMap::new();
        self.0.iter().for_each(|(&(reason, _), &calls)| *sums.entry(reason).or_default() += calls);
        sums
    }

    pub(super) fn list(&self) -> Vec<ShedCount> {
        self.0.iter().map(|(&(reason, priority), &calls)| ShedCount { reason, priority, calls }).collect()
    }
}

/// One session, as the console shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SessionSnapshot {
    /// The machine's number for it.
    pub session: u32,
    /// Its calls that are admitted and not ended.
    pub in_flight: u32,
    /// Calls that wait at it, as it last said.
    pub demand: u32,
    /// The window of its last grant, in calls.
    pub window: u32,
    /// The level of its last grant, in the scheme's own scale.
    pub level: u32,
}

/// A server layer at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServerSnapshot {
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// Calls whose handler ran to the end.
    pub served: u64,
    /// Those of them that ended within the time that their caller had left; all that named none.
    pub in_time: u64,
    /// Calls whose caller went away before the end.
    pub cancelled: u64,
    /// Calls that were exempt, and those that handlers made to their own service in their own task.
    pub exempt: u64,
    /// Calls shed.
    pub shed: Vec<ShedCount>,
    /// Calls that would have been shed, had the verdicts of a dry run been carried out.
    pub would_have_shed: Vec<ShedCount>,
    /// Calls admitted and not ended.
    pub in_flight: u64,
    /// Those of them that no core has started.
    pub waiting: u64,
    /// How long the oldest of those has waited, in nanoseconds.
    pub queueing_delay_ns: u64,
    /// Sessions in the table.
    pub sessions: u64,
    /// Calls that wait at clients, as they last said.
    pub demand: u64,
    /// Windows given out, in calls.
    pub credits: u64,
    /// The sessions with the greatest demand, at most as many as were asked for.
    pub busiest: Vec<SessionSnapshot>,
}

/// A client layer at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClientSnapshot {
    /// Calls sent.
    pub sent: u64,
    /// Calls answered by a handler.
    pub served: u64,
    /// Calls dropped by their callers.
    pub cancelled: u64,
    /// Calls that failed here, without being sent.
    pub shed_here: Vec<ShedCount>,
    /// Calls that the server shed.
    pub shed_there: Vec<ShedCount>,
    /// Calls that wait here now.
    pub waiting: u64,
    /// Calls that were sent again: by [`RetryLayer`](super::RetryLayer), or by a caller that says so in
    /// `grpc-previous-rpc-attempts`.
    pub retries: u64,
    /// Calls that were not, for the budget of repeats was used up.
    pub retries_refused: u64,
    /// The server's last word.
    pub grant: Option<GrantSnapshot>,
    /// Servers that are told apart at present, one at least.
    pub servers: u64,
}

/// A [`Grant`] in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct GrantSnapshot {
    /// Calls that may be in flight.
    pub window: u32,
    /// The scheme's own scale.
    pub level: u32,
    /// How long it holds, in nanoseconds; 0 until the next one.
    pub lease_ns: u64,
}

impl From<Grant> for GrantSnapshot {
    fn from(grant: Grant) -> Self {
        Self { window: grant.window, level: grant.level, lease_ns: nanos(grant.lease) }
    }
}

fn nanos(span: Duration) -> u64 {
    tidegate_core::time::nanos(span)
}
