//! What is counted of a topic for planners: its publishers, seconds and delays.
//!
//! A topic is watched while it has a contract or is recorded, and for a minute after each time that somebody asked.

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::estimate::seconds::{SECONDS_MAX, second_of};

use super::publishers::{OthersReport, PublisherReport, Publishers};
use super::seconds::{DelayCounts, SecondReport, Seconds};

/// Publishers without a connection that are looked at in a second, whether they can be forgotten.
const SWEPT_IN_A_SECOND: usize = 256;

/// What is counted of a topic while it is watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) publishers: Publishers,
    pub(super) seconds: Seconds,
    /// Once somebody has asked.
    pub(super) delays: Option<Box<DelayCounts>>,
    pub(super) asked: Option<Instant>,
    /// The second in which the publishers were last swept.
    swept: u64,
}

impl Watch {
    pub(super) fn new(table: u32, now: Instant) -> Self {
        Self {
            publishers: Publishers::new(table),
            seconds: Seconds::new(now),
            delays: None,
            asked: None,
            swept: second_of(now),
        }
    }

    /// Sweeps once a second; `true` if it did.
    pub(super) fn sweep(&mut self, now: Instant) -> bool {
        let second = second_of(now);
        let is_due = second > self.swept;
        if is_due {
            self.swept = second;
            self.publishers.sweep(SWEPT_IN_A_SECOND, now);
        }
        is_due
    }

    /// Nobody has asked for so long that nothing is left of what was asked for.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| second_of(now) > second_of(asked) + SECONDS_MAX)
    }

    /// A message was finished `delay_ns` after it came.
    #[inline]
    pub(super) fn record_delay(&mut self, delay_ns: u64, now: Instant) {
        if let Some(delays) = &mut self.delays {
            delays.record(delay_ns, now);
        }
    }

    pub(super) fn publishers_mut(&mut self) -> &mut Publishers {
        &mut self.publishers
    }
}

/// Who publishes to a topic, and what became of it.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct PublishersReport {
    /// The topic.
    pub topic: String,
    /// When the list was begun, on the broker's monotonic clock.
    pub now_us: u64,
    /// The whole seconds of the window, the newest last: at most as many as were asked for, and none before the topic
    /// was watched.
    pub seconds: Vec<SecondReport>,
    /// Those that have a connection or sent something in the window, in no order.
    pub publishers: Vec<PublisherReport>,
    /// Those that are not told apart.
    pub others: OthersReport,
    /// How long messages took.
    pub delay: DelayReport,
}

/// How long the messages of a topic took, in all of its channels, over the window: counts are exact, quantiles within 1/32.
/// Of the time before somebody asked, quantiles know no more than the last ten seconds.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct DelayReport {
    /// Messages that consumers finished, in each channel; with an objective, since it was first asked for.
    pub count: u64,
    /// Those of them that took longer than the objective from arrival to FIN; 0 if none was asked for.
    pub over_slo: u64,
    /// From arrival to FIN.
    pub e2e_p99_us: f64,
    /// From arrival to the token.
    pub access_p99_us: f64,
}
