//! How soon a limiter's goodput is what it should be after a change.

use core::time::Duration;
use std::collections::VecDeque;

use tidegate_core::Instant;

use super::report::efficiency;

/// Goodput is compared with a new rate over so many ticks.
const TICKS: usize = 5;

/// Waits for a limiter's goodput to be within 5 % of a rate over some ticks.
pub(super) struct Settling {
    pub(super) limiter: usize,
    /// When the change was.
    changed: Instant,
    /// Bytes per second.
    rate: u64,
    /// What had arrived at each of the last ticks.
    sums: VecDeque<u64>,
    /// When it began to be so.
    settled: Option<Instant>,
}

impl Settling {
    pub(super) fn new(limiter: usize, changed: Instant, rate: u64) -> Self {
        Self { limiter, changed, rate, sums: VecDeque::new(), settled: None }
    }

    /// `sum` bytes have arrived in all; called once a `span`.
    pub(super) fn on_tick(&mut self, sum: u64, span: Duration, now: Instant) {
        if now < self.changed || self.settled.is_some() {
            return;
        }
        self.sums.push_back(sum);
        if self.sums.len() <= TICKS {
            return;
        }
        let before = self.sums.pop_front().expect("more than one");
        let span_ns = TICKS as u64 * tidegate_core::time::nanos(span);
        if (0.95..1.05).contains(&efficiency(sum - before, span_ns, self.rate)) {
            self.settled = Some(now.minus_nanos(span_ns));
        }
    }

    /// How long it took; infinite if it never was.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn ms(&self) -> f64 {
        self.settled.map_or(f64::INFINITY, |at| at.nanos_since(self.changed) as f64 / 1e6)
    }
}
