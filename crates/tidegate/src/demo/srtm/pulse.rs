//! How late a machine lets a task go on that rests: what it costs to have too little of it.

use std::time::Duration;

use serde_json::json;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::time::sleep;

/// A rest.
const BEAT: Duration = Duration::from_millis(10);

/// Rests, and counts how late they ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pulse {
    /// What is longer than this is a stall.
    above: Duration,
    watched: Duration,
    /// In stalls.
    stood: Duration,
    longest: Duration,
}

impl Pulse {
    /// `above` is what a stall is longer than.
    pub(super) fn new(above: Duration) -> Self {
        Self { above, watched: Duration::ZERO, stood: Duration::ZERO, longest: Duration::ZERO }
    }

    /// Rests for `span`.
    pub(super) async fn rest(&mut self, span: Duration) {
        let end = clock::now() + span;
        loop {
            let began = clock::now();
            if began >= end {
                return;
            }
            let beat = end.since(began).min(BEAT);
            sleep(beat).await;
            self.beat(began, beat, clock::now());
        }
    }

    fn beat(&mut self, began: Instant, beat: Duration, woke: Instant) {
        let late = woke.since(began + beat);
        self.watched += woke.since(began);
        self.longest = self.longest.max(late);
        if late > self.above {
            self.stood += late;
        }
    }

    /// The share of the time in stalls.
    pub(super) fn share(&self) -> f64 {
        self.stood.as_secs_f64() / self.watched.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The longest stall, or what came near to one.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({ "stalled_share": self.share(), "longest_stall_ms": self.longest.as_secs_f64() * 1e3 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_by_more_than_a_stall_counts_whole() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut pulse = Pulse::new(Duration::from_millis(25));
        pulse.beat(at(0), BEAT, at(30));
        assert!((pulse.share() - 0.0).abs() < f64::EPSILON && pulse.longest() == Duration::from_millis(20));
        pulse.beat(at(30), BEAT, at(100));
        assert!((pulse.share() - 0.6).abs() < 1e-9, "{pulse:?}");
    }
}
