//! Instants as plain numbers.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Nanoseconds since an arbitrary origin, chosen by whoever reads the clock.
///
/// Arithmetic saturates: time that steps back mints nothing and never panics. The origin of a production clock is the
/// machine's boot; of a simulated one, the start of the run. 2^64 ns are 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens; the answer "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `ns` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The span from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// `self` moved `ns` nanoseconds later, saturating.
    #[must_use]
    pub const fn plus_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// `self` moved `ns` nanoseconds earlier, not before the origin.
    #[must_use]
    pub const fn minus_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}

/// A span in whole nanoseconds, saturating at 584 years.
#[inline]
#[must_use]
pub fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos().into())
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        self.plus_nanos(nanos(span))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_steps_back_spans_nothing() {
        let (early, late) = (Instant::from_nanos(5), Instant::from_nanos(9));
        assert_eq!(late.nanos_since(early), 4);
        assert_eq!(early.nanos_since(late), 0);
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
    }
}
