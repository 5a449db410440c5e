//! What an operator may set; nothing has to be.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Tenant;

/// Tidegate's credits. The defaults fit services from a microsecond to a tenth of a second.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How long a call may take, from its caller's view.
    pub objective: Objective,
    /// Most sessions at a time; further ones are refused. Each takes 64 bytes.
    pub sessions: usize,
    /// Most tenants told apart, at least one more than have a weight. A tenant has a place from its first session on until it
    /// has no session and its calls are forgotten, or another needs the place; beyond, tenants share the last one.
    pub tenants: usize,
    /// Weights of tenants that do not weigh 1, above 0. These keep their places.
    pub weights: Vec<(Tenant, f64)>,
    /// Times its max-min share of its tenant's calls that a single session is let take while others are refused, at least
    /// 1: of priorities that are let through for sure; of the others a tenth of what that is beyond 1. It is told so, and
    /// held to it.
    pub session_shares: f64,
    /// Calls that may be in flight, in place of the limit that is learnt; at least 1. For comparisons: a number that fits
    /// today is wrong when what is behind the handlers changes.
    pub in_flight: Option<u32>,
    /// Credits in all; if absent, as many as the calls that are in the server and on their way when it is busy.
    pub pool: Option<u32>,
}

/// How long a call may take.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Objective {
    /// So many times what it takes when nothing waits: its mean service time and the round trip.
    Multiple(f64),
    /// This long.
    Fixed(Duration),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Ten times the unloaded time: the paper's own choice of SLO (Breakwater, Evaluation).
            objective: Objective::Multiple(10.0),
            sessions: 1 << 20,
            tenants: 256,
            weights: Vec::new(),
            // Chance makes a fair client look like two at times, hardly ever like three.
            session_shares: 2.0,
            in_flight: None,
            pool: None,
        }
    }
}

impl Config {
    /// The weight of a tenant.
    #[must_use]
    pub fn weight(&self, tenant: Tenant) -> f64 {
        self.weights.iter().find(|(named, _)| *named == tenant).map_or(1.0, |&(_, weight)| weight)
    }
}
