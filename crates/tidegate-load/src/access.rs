//! The delay a token bucket should have caused, against the one it did.

use tidegate_core::{Instant, Rate};

use crate::latency::Latency;

/// Replays the arrival stamps of a topic's messages through the bucket `(rate, burst)` and compares each message's
/// arrival at the client with the moment the bucket should have released it.
///
/// The bucket is full at first. Messages are observed in the order of their stamps. The error includes the way from the
/// broker to the client and is never negative, unless the broker releases too early: that is counted apart.
/// Source: SRTM, Eq. 2: message i, arriving at a, waits `max(0, U(a) + 1 - burst) / rate`, where U is the work before it.
#[derive(Clone, Debug)]
pub struct AccessCheck {
    rate: Rate,
    /// In units of `1 / period_ns` token.
    full: i128,
    work: i128,
    last: Instant,
    expected: Latency,
    error: Latency,
}

impl AccessCheck {
    /// The check of `(rate, burst)`.
    ///
    /// # Panics
    /// If the rate is zero: nothing would ever be released.
    #[must_use]
    pub fn new(rate: Rate, burst: u64) -> Self {
        assert!(!rate.is_zero(), "a bucket without a rate releases nothing");
        Self {
            rate,
            full: i128::from(burst) * i128::from(rate.period_ns()),
            work: 0,
            last: Instant::ZERO,
            expected: Latency::default(),
            error: Latency::default(),
        }
    }

    /// A message stamped `arrived` came to the client at `received`; both are of one clock. Returns when it was due.
    pub fn observe(&mut self, arrived: Instant, received: Instant) -> Instant {
        // A stamp behind its forerunner's counts as simultaneous: the bucket is first come, first served.
        let arrived = arrived.max(self.last);
        let drained = i128::from(arrived.nanos_since(self.last)) * i128::from(self.rate.tokens());
        self.last = arrived;
        self.work = (self.work - drained).max(0) + i128::from(self.rate.period_ns());
        let wait = (self.work - self.full).max(0).unsigned_abs().div_ceil(u128::from(self.rate.tokens()));
        let due = arrived.plus_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        self.expected.record(arrived, due);
        self.error.record(due, received);
        due
    }

    /// The delays that the bucket should have caused.
    #[must_use]
    pub fn expected(&self) -> &Latency {
        &self.expected
    }

    /// How far behind its due moment each message came.
    #[must_use]
    pub fn error(&self) -> &Latency {
        &self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn each_message_is_due_by_equation_2() {
        let mut check = AccessCheck::new(Rate::per_s(1_000), 2);
        // Two pass, the third and fourth wait for a token each; after 10 ms the bucket is full again.
        for (arrived, due) in [(0, 0), (0, 0), (0, 1_000), (500, 2_000), (10_000, 10_000)] {
            assert_eq!(check.observe(at(arrived), at(due) + core::time::Duration::from_micros(40)), at(due));
        }
        let (expected, error) = (check.expected().summary(), check.error().summary());
        assert_eq!((error.count, error.early, expected.early), (5, 0, 0));
        assert!((error.us_max - 40.0).abs() < 0.1 && (expected.us_max - 1_500.0).abs() < 1.0);
    }

    #[test]
    fn a_release_before_its_time_is_seen() {
        let mut check = AccessCheck::new(Rate::per_s(1_000), 1);
        check.observe(at(0), at(0));
        check.observe(at(0), at(999));
        assert_eq!(check.error().summary().early, 1);
    }

    #[test]
    fn thirds_of_a_nanosecond_do_not_add_up() {
        let mut check = AccessCheck::new(Rate::per_s(3), 1);
        let last = (0..300).map(|_| check.observe(Instant::ZERO, Instant::ZERO)).last();
        // The first passes at once, the 300th 299 thirds of a second later.
        assert_eq!(last, Some(Instant::from_nanos((299_u64 * 1_000_000_000).div_ceil(3))));
    }
}
