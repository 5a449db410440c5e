//! One core's limiter: its thread's own, but for those who look at it or reload.
//!
//! They meet in few of the few dozen nanoseconds of a decision. A lock that nobody waits for is the cheapest form.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Instant;

pub(crate) use crate::machine::neighbours::{
    Cause, Claimant, Lane, Mode, Neighbours, NeighboursConfig, Refusal, Snapshot, Source, Stage, Tenant, Verdict,
};

/// Between two pieces of a snapshot.
const REST: Duration = Duration::from_micros(50);

/// See the module.
#[derive(Debug)]
pub(crate) struct Limiter {
    neighbours: Mutex<Neighbours>,
}

impl Limiter {
    /// A limiter that knows nobody.
    pub(crate) fn new(config: NeighboursConfig, now: Instant) -> Self {
        Self { neighbours: Mutex::new(Neighbours::new(config, now)) }
    }

    /// Asks or tells the machine something. A panic under the lock is a broken invariant of the machine, whose numbers
    /// are still the best there are.
    pub(crate) fn with<R>(&self, ask: impl FnOnce(&mut Neighbours) -> R) -> R {
        ask(&mut self.neighbours.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is shown. The machine is looked at piece by piece, and serves requests in between.
    pub(crate) fn snapshot(&self, now: Instant) -> Snapshot {
        let mut walk = self.with(|neighbours| neighbours.walk(now));
        while self.with(|neighbours| neighbours.look(&mut walk)) {
            // A lock goes to who asks first, not to who waits: without a rest, the core's thread would find it taken again
            // whenever it is woken.
            std::thread::park_timeout(REST);
        }
        walk.end()
    }

    /// Does a slice of what is due. True if it did.
    pub(crate) fn turn(&self, now: Instant) -> bool {
        self.with(|neighbours| {
            let is_due = neighbours.next_timeout().is_some_and(|at| at <= now);
            if is_due {
                neighbours.on_timeout(now);
            }
            is_due
        })
    }
}
