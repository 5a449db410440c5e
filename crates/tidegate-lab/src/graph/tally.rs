//! What came of it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_rpc::machine::CallId;

use super::Tree;
use crate::statistics::float;

/// The longest time told apart: 100 s.
const HIGHEST_NS: u64 = 100_000_000_000;

/// Calls of the root, and the work of all handlers for them.
#[derive(Debug)]
pub struct Tally {
    /// Work for those under way.
    open: BTreeMap<CallId, u64>,
    useful_ns: u64,
    wasted_ns: u64,
    offered: u64,
    good: u64,
    refused_at_once: u64,
    response: Histogram<u64>,
}

/// The figures of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// Calls that were answered in time, as a share of what the short service can do.
    pub goodput: f64,
    /// Handlers' work for calls of the root that were not answered in time, as a share of all.
    pub wasted: f64,
    /// The 99th percentile of the response times of calls that were answered in time, in microseconds.
    pub p99_us: f64,
    /// Calls that cost no work, as a share of those that were not answered in time; 1 if all were.
    pub refused_at_once: f64,
    /// Calls offered.
    pub offered: u64,
}

impl Tally {
    pub(super) fn new() -> Self {
        let response = Histogram::new_with_bounds(100, HIGHEST_NS, 3).expect("the bounds are apart and the digits few");
        Self { open: BTreeMap::new(), useful_ns: 0, wasted_ns: 0, offered: 0, good: 0, refused_at_once: 0, response }
    }

    /// A call of the root is made that counts.
    pub(super) fn begin(&mut self, root: CallId) {
        self.offered += 1;
        self.open.insert(root, 0);
    }

    /// A core works for a call of the root that counts.
    pub(super) fn work(&mut self, root: CallId, ns: u64) {
        // For one that has ended nothing can be worth anything: a good one has no calls left.
        *self.open.get_mut(&root).unwrap_or(&mut self.wasted_ns) += ns;
    }

    /// A call of the root ends: after so long if it was answered in time.
    pub(super) fn end(&mut self, root: CallId, good_ns: Option<u64>) {
        let Some(work) = self.open.remove(&root) else { return };
        if let Some(ns) = good_ns {
            self.good += 1;
            self.useful_ns += work;
            self.response.saturating_record(ns);
        } else {
            self.wasted_ns += work;
            self.refused_at_once += u64::from(work == 0);
        }
    }

    /// The figures of a run of `tree` that is over: what is still under way counts nowhere.
    #[must_use]
    pub fn figures(&self, tree: &Tree) -> Figures {
        let share = |part: u64, of: u64, none: f64| if of == 0 { none } else { float(part) / float(of) };
        let possible = tree.capacity_per_s() * tree.duration.as_secs_f64();
        let ended = self.offered - u64::try_from(self.open.len()).unwrap_or(u64::MAX);
        Figures {
            goodput: float(self.good) / possible,
            wasted: share(self.wasted_ns, self.wasted_ns + self.useful_ns, 0.0),
            p99_us: float(self.response.value_at_quantile(0.99)) / 1e3,
            refused_at_once: share(self.refused_at_once, ended - self.good, 1.0),
            offered: self.offered,
        }
    }
}
