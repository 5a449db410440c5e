//! The admin API's snapshot, as far as the console reads it.
//!
//! Fields that a broker leaves out are zero or empty, unknown ones are ignored: console and broker may be of different
//! releases.

use serde::{Deserialize, Serialize};

/// `GET /api/v1/snapshot`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct BrokerSnapshot {
    pub(crate) version: String,
    pub(crate) node: String,
    pub(crate) now_ms: u64,
    pub(crate) uptime_s: f64,
    pub(crate) durability: String,
    pub(crate) memory_bytes: u64,
    pub(crate) connections: u64,
    pub(crate) warnings: Vec<String>,
    pub(crate) topics: Vec<Topic>,
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) paused: bool,
    pub(crate) limit: Option<Limit>,
    pub(crate) offered_total: u64,
    pub(crate) offered_bytes_total: u64,
    pub(crate) admitted_total: u64,
    pub(crate) admitted_bytes_total: u64,
    pub(crate) delayed_total: u64,
    pub(crate) refused_total: u64,
    pub(crate) shadow_total: u64,
    pub(crate) dropped_total: u64,
    pub(crate) waiting: u64,
    pub(crate) blocked_publishers: u64,
    pub(crate) access_delay_us: Delay,
    pub(crate) depth: u64,
    pub(crate) backend_depth: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) channels: Vec<Channel>,
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) paused: bool,
    pub(crate) limit: Option<Limit>,
    pub(crate) message_total: u64,
    pub(crate) delivered_total: u64,
    pub(crate) finished_total: u64,
    pub(crate) requeued_total: u64,
    pub(crate) timed_out_total: u64,
    pub(crate) dropped_total: u64,
    /// `None` when the broker does not count these for channels: zero would be a claim.
    pub(crate) delayed_total: Option<u64>,
    pub(crate) shadow_total: Option<u64>,
    pub(crate) waiting: u64,
    pub(crate) depth: u64,
    pub(crate) backend_depth: u64,
    pub(crate) in_flight: u64,
    pub(crate) deferred: u64,
    pub(crate) client_count: u64,
    pub(crate) access_delay_us: Delay,
    pub(crate) end_to_end_us: Delay,
    /// Only when asked for, and passed on to the page as they are.
    pub(crate) clients: Vec<serde_json::Value>,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    pub(crate) rate_per_s: f64,
    pub(crate) burst: u64,
    pub(crate) unit: String,
    pub(crate) discipline: String,
    pub(crate) mode: String,
    pub(crate) source: String,
    pub(crate) tokens: f64,
    /// In shadow mode.
    pub(crate) shadow: Option<Shadow>,
}

/// The line that a limit in shadow mode would form.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shadow {
    pub(crate) delay_us: Delay,
    pub(crate) line: u64,
}

#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Delay {
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}
