//! `GET /api/v1/neighbours` of a proxy's admin API, as far as the console reads it.
//!
//! Amounts of counters are per second, those of gauges are what is held now; names say which resource. What a proxy
//! leaves out is zero or empty, what it says beyond is ignored: console and proxy may be of different releases.

use serde::{Deserialize, Serialize};

/// The answer.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct NeighbourSnapshot {
    /// The proxy's clock.
    pub(crate) at_ms: u64,
    /// `off`, `stats` or `restrict`.
    pub(crate) mode: String,
    pub(crate) tick_ms: u64,
    pub(crate) resources: Vec<Resource>,
    /// How many tenants there are; more than are listed if they are very many.
    pub(crate) tenants_total: usize,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) lending: Vec<Loan>,
}

/// One scarce thing, over all tenants.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Resource {
    pub(crate) name: String,
    /// `counter` or `gauge`.
    pub(crate) kind: String,
    /// `None` while it is neither configured nor found out.
    pub(crate) capacity: Option<f64>,
    /// Whether the capacity was found out rather than configured.
    pub(crate) learnt: bool,
    /// What is no tenant's share: with the shares it makes up the capacity.
    pub(crate) global: f64,
    pub(crate) used: f64,
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) weight: f64,
    /// `share` or `overflow`.
    pub(crate) lane: String,
    pub(crate) resources: Vec<Usage>,
    pub(crate) refused: Stages,
}

/// What one tenant has of one resource.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) name: String,
    pub(crate) demand: f64,
    pub(crate) share: f64,
    pub(crate) used: f64,
    /// Of `used`, what came from the overflow.
    pub(crate) overflow: f64,
    pub(crate) lent: f64,
    /// Refused since it was over its share, since the start.
    pub(crate) refused_share: u64,
    /// Refused since the system was full, since the start.
    pub(crate) refused_full: u64,
}

/// Refusals by where they were said, since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stages {
    pub(crate) hello: u64,
    pub(crate) request: u64,
    pub(crate) queue: u64,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Loan {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) resource: String,
    pub(crate) amount: f64,
}
