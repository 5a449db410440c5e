//! What a page is shown of a proxy.

use std::sync::Arc;

use serde::Serialize;

use super::snapshot::{Loan, Resource, Stages};

/// A proxy as of the newest poll.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Proxy {
    pub(crate) name: Arc<str>,
    /// Why the newest poll failed; everything else is then empty.
    pub(crate) error: Option<String>,
    /// The proxy's clock; zero while it is down.
    pub(crate) at_ms: u64,
    pub(crate) mode: String,
    pub(crate) tick_ms: u64,
    pub(crate) resources: Vec<Resource>,
    /// The busiest, in the order of their names.
    pub(crate) tenants: Vec<TenantView>,
    /// The others as one, if there are any.
    pub(crate) rest: Option<Rest>,
    /// The largest, as shares of their resource's capacity; the largest first.
    pub(crate) lending: Vec<Loan>,
    pub(crate) lending_left_out: usize,
}

impl Proxy {
    pub(crate) fn down(name: Arc<str>, error: String) -> Self {
        Self {
            name,
            error: Some(error),
            at_ms: 0,
            mode: String::new(),
            tick_ms: 0,
            resources: Vec::new(),
            tenants: Vec::new(),
            rest: None,
            lending: Vec::new(),
            lending_left_out: 0,
        }
    }
}

/// One tenant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct TenantView {
    pub(crate) name: Arc<str>,
    pub(crate) weight: f64,
    pub(crate) lane: String,
    /// What it does not touch at all is left out.
    pub(crate) resources: Vec<Cell>,
    pub(crate) refused: Stages,
    pub(crate) refused_per_s: StageRates,
}

/// What one tenant has of one resource; rates are means over the last second.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) demand: f64,
    pub(crate) share: f64,
    pub(crate) used: f64,
    pub(crate) overflow: f64,
    pub(crate) lent: f64,
    pub(crate) refused_share: u64,
    pub(crate) refused_full: u64,
    pub(crate) refused_share_per_s: f64,
    pub(crate) refused_full_per_s: f64,
}

/// Refusals by where they were said, per second.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub(crate) struct StageRates {
    pub(crate) hello: f64,
    pub(crate) request: f64,
    pub(crate) queue: f64,
}

/// Tenants without a row of their own, added up.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Rest {
    /// How many they are, those that the proxy does not list among them: they are not in the sums.
    pub(crate) tenants: usize,
    /// Without rates: who is counted here changes, so that differences of these counters mean nothing.
    pub(crate) resources: Vec<Cell>,
    pub(crate) refused: Stages,
}
