//! How fast the queue of a class drains that may borrow.

use super::{SECOND_NS, span_of};
use crate::Instant;

/// The drain is measured over spans of at least this: long against the packets of a class, and short enough that some
/// pass before a new share counts as late.
const SPAN_NS: u64 = 1_000_000;
/// A span in which fewer bytes pass goes on, since one packet more or less would change the figure too much.
const SPAN_BYTES: u64 = 16_384;
/// A span is over after this time, however few bytes have left.
const SPAN_MAX_NS: u64 = 10_000_000;
/// After a pause that is longer by this the class begins at its guarantee again.
const FORGET_NS: u64 = 100_000_000;

/// What the drain of a class may be, in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Guaranteed.
    pub(super) rate: u64,
    /// With what others leave; at least `rate`.
    pub(super) ceil: u64,
}

/// A period of the controller that had samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Period {
    /// Mean of the queue's samples.
    pub(super) queue_ns: i64,
    /// With a shorter queue a class does not always have something to send.
    pub(super) queue_least_ns: i64,
    /// How long a period is.
    pub(super) length_ns: u64,
    /// Bytes that have left the class, counted from anywhere.
    pub(super) drained: u64,
}

/// What a measurement said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Measured {
    /// Nothing new.
    Nothing,
    /// There was a queue: the drain is as it was measured.
    Queued,
    /// The class sometimes had nothing to send, and yet sent faster than was thought possible.
    Faster,
}

/// The rate at which the queue of a class drains: between its guarantee and its ceiling, as its neighbours let it.
///
/// While there is a queue, what leaves is what the limiter lets pass: then the drain is as measured, at once if it fell
/// and by halves if it rose. Without a queue, what leaves is what the flows sent, and only shows that the drain is no less.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Drain {
    /// Bytes per second; 0 before the first period.
    rate: u64,
    /// Where the span began.
    began: Instant,
    /// When the last period ended.
    last: Instant,
    /// What had left where the span began.
    drained: u64,
    /// Sum of the queues of the span's periods.
    queue_sum_ns: i64,
    /// Number of the span's periods.
    periods: u64,
}

impl Drain {
    /// Bytes per second.
    pub(super) fn rate(&self, limits: Limits) -> u64 {
        self.rate.min(limits.ceil).max(limits.rate)
    }

    /// A period is over.
    pub(super) fn on_period(&mut self, period: Period, limits: Limits, now: Instant) -> Measured {
        let gap_ns = now.nanos_since(self.last);
        self.last = now;
        // A class with something to send drains at its guarantee at least, and hears of it a round trip later.
        let pause_ns = 2 * (period.length_ns + span_of(SPAN_BYTES, limits.rate));
        if gap_ns > pause_ns {
            if gap_ns > pause_ns + FORGET_NS {
                self.rate = limits.rate;
            }
            self.begin(period.drained, now);
            return Measured::Nothing;
        }
        self.queue_sum_ns += period.queue_ns;
        self.periods += 1;
        let span_ns = now.nanos_since(self.began);
        if span_ns < SPAN_NS {
            return Measured::Nothing;
        }
        let bytes = period.drained.saturating_sub(self.drained);
        let is_over = bytes >= SPAN_BYTES || span_ns >= SPAN_MAX_NS;
        let is_queued = self.queue_sum_ns >= period.queue_least_ns * self.periods.cast_signed();
        // Until the span is over this is more than the drain: good enough for a fall.
        let passed = rate_of(if is_over { bytes } else { SPAN_BYTES }, span_ns).min(limits.ceil).max(limits.rate);
        if is_over {
            self.begin(period.drained, now);
        }
        let before = self.rate(limits);
        if is_queued && passed < before {
            self.rate = passed;
            Measured::Queued
        } else if is_over && is_queued && passed > before {
            self.rate = before + (passed - before) / 2;
            Measured::Queued
        } else if is_over && passed > before {
            self.rate = passed;
            Measured::Faster
        } else {
            Measured::Nothing
        }
    }

    fn begin(&mut self, drained: u64, now: Instant) {
        self.began = now;
        self.drained = drained;
        self.queue_sum_ns = 0;
        self.periods = 0;
    }
}

/// Bytes per second, of `bytes` in `ns`, which is above zero.
fn rate_of(bytes: u64, ns: u64) -> u64 {
    bytes.saturating_mul(SECOND_NS) / ns
}

#[cfg(test)]
mod tests;
