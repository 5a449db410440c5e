//! What a plan would be: the answer of `POST /api/v1/place/{topic}?dry_run=true`.

use serde::{Deserialize, Serialize};

/// What a plan would be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DryRun {
    /// The topic's name.
    pub topic: String,
    /// True: nothing was changed.
    #[serde(rename = "dry_run")]
    pub is_dry: bool,
    /// Whether there is a placement that keeps the objective.
    pub placed: bool,
    /// Publishers that are known.
    pub publishers: usize,
    /// Messages per second that they send.
    pub rate_per_s: f64,
    /// The decision in one sentence.
    pub headline: String,
    /// How it came about, each a sentence.
    pub words: Vec<String>,
    /// Messages per second that have no broker.
    pub missing_per_s: f64,
    /// By broker; those that would have nothing are left out.
    pub parts: Vec<DryPart>,
    /// Rounds of each iteration.
    pub rounds: Vec<u32>,
    /// How long the plan would take.
    pub planned_in_s: f64,
}

/// What a broker would have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DryPart {
    /// Its name.
    pub node: String,
    /// Publishers that would be placed there.
    pub publishers: usize,
    /// Their share of the topic's.
    pub share: f64,
    /// Its part of the limit: tokens per second.
    pub limit_rate_per_s: f64,
    /// The same: depth.
    pub limit_burst: u64,
    /// From arrival to the end of processing in the rehearsal, microseconds; `null` where nothing was simulated.
    pub delay_us_p99: Option<f64>,
    /// Of that, waiting for tokens.
    pub access_us_p99: Option<f64>,
    /// Share of messages beyond the objective.
    pub share_over: Option<f64>,
}
