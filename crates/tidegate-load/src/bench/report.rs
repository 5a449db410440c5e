//! What a run found.

use serde::{Deserialize, Serialize};

use super::config::BenchConfig;
use crate::latency::LatencySummary;
use crate::ledger::{Manifest, Received};
use crate::release_law::ReleaseReport;
use crate::target::Memory;

/// All figures of a run. Delays are of messages intended in the measured window; conservation is of all messages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// What was run.
    pub config: BenchConfig,
    /// Why this run must not count; `None` if it may.
    pub invalid: Option<Invalid>,
    /// Flow in the measured window.
    pub window: Window,
    /// The generator behind the intended times: its own fault, never the broker's.
    pub lateness: LatencySummary,
    /// From the intended time to the answer to the publish.
    pub answer: LatencySummary,
    /// From the intended time to the consumer.
    pub end_to_end: LatencySummary,
    /// Deliveries behind the moment they were due, of deferred, requeued or timed-out messages. Includes the way to the
    /// client.
    pub timers: LatencySummary,
    /// What became of the messages.
    pub conservation: Conservation,
    /// The limit's law, if one was given.
    pub release: Option<ReleaseReport>,
    /// The delays that the limit of `access` should have caused.
    pub access_expected: LatencySummary,
    /// Deliveries behind the moment at which that limit should have released them; early ones broke it.
    pub access_error: LatencySummary,
    /// The broker's process, if its id was given.
    pub target: Option<TargetUse>,
    /// CPU time of this process in the window, in seconds.
    pub generator_cpu_s: f64,
    /// What was published, if asked for.
    pub manifest: Option<Manifest>,
}

/// Why a run does not count.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Invalid {
    /// The generator was later than allowed.
    Late {
        /// Its lateness.
        us_p99: f64,
    },
    /// Nothing was measured.
    Empty,
}

/// Counts in the measured window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Its length as it was, in seconds.
    pub length_s: f64,
    /// Messages written.
    pub written: u64,
    /// Messages that the broker said it had taken.
    pub accepted: u64,
    /// Messages that arrived, each counted once.
    pub delivered: u64,
    /// Of the above, per second.
    pub accepted_per_s: f64,
    /// Of the above, per second.
    pub delivered_per_s: f64,
}

/// Where every message went.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Conservation {
    /// Messages written by the publishers, or expected from an earlier run.
    pub written: u64,
    /// Of these, accepted.
    pub accepted: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Of these, without an answer: they may have arrived or not.
    pub unanswered: u64,
    /// Not even written, since their connection was gone.
    pub unsent: u64,
    /// Arrivals.
    pub received: Received,
    /// Accepted and never arrived; `None` if nobody consumed.
    pub lost: Option<u64>,
    /// Arrived, but not from this run.
    pub foreign: u64,
    /// Error frames to the consumers.
    pub consumer_errors: u64,
    /// The last of them.
    pub consumer_error_last: String,
}

impl Conservation {
    pub(crate) fn add_published(&mut self, manifest: &Manifest) {
        for sent in &manifest.publishers {
            self.written += sent.written;
            self.accepted += sent.accepted();
            self.unanswered += sent.unanswered();
            self.refused += sent.answered - sent.accepted();
        }
    }
}

/// What the broker used.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetUse {
    /// CPU time in the window, in seconds.
    pub cpu_s: f64,
    /// The same in the kernel's coarse ticks.
    pub cpu_ticks_s: f64,
    /// CPU time for each message: delivered ones if somebody consumes, else accepted ones.
    pub cpu_us_per_message: f64,
    /// Accepted messages for each second of CPU time.
    pub accepted_per_cpu_s: f64,
    /// Delivered messages for each second of CPU time.
    pub delivered_per_cpu_s: f64,
    /// Memory when the window ended.
    pub memory: Memory,
}
