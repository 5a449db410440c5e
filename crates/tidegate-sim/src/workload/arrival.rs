//! What all workloads are made of: arrivals, publishers, and a clock with fractions.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rate, Rng};

/// Some messages of one publisher that arrive together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// Whose, from 0.
    pub publisher: u32,
    /// How many; at least 1.
    pub messages: u32,
}

/// The publishers of one topic, alike.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publishers {
    /// How many; at least 1.
    pub count: u32,
    /// Messages per second of all of them together.
    pub rate: Rate,
    /// Messages in each batch; at least 1.
    pub batch: u32,
}

impl Publishers {
    /// Mean nanoseconds between batches of all publishers together.
    ///
    /// # Panics
    /// If the rate is zero, or there is no publisher or an empty batch.
    pub(super) fn gap_ns(self) -> f64 {
        assert!(!self.rate.is_zero() && self.count > 0 && self.batch > 0, "somebody sends something: {self:?}");
        f64::from(self.batch) * 1e9 / self.rate.as_per_s()
    }

    pub(super) fn draw(self, rng: &mut Rng) -> u32 {
        if self.count == 1 {
            return 0;
        }
        u32::try_from(rng.below(u64::from(self.count))).expect("below a 32-bit bound")
    }
}

/// Single messages of one publisher at recorded instants, put in order.
#[must_use]
pub fn trace(mut instants: Vec<Instant>) -> impl ExactSizeIterator<Item = Arrival> + Clone {
    instants.sort_unstable();
    instants.into_iter().map(|at| Arrival { at, publisher: 0, messages: 1 })
}

/// Moves time on by gaps with fractions of a nanosecond, which are kept.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    at: Instant,
    /// 0 to 1.
    fraction_ns: f64,
}

impl Clock {
    pub(super) fn new(start: Instant) -> Self {
        Self { at: start, fraction_ns: 0.0 }
    }

    #[inline]
    pub(super) fn advance(&mut self, gap_ns: f64) -> Instant {
        let exact = gap_ns + self.fraction_ns;
        let whole = crate::distribution::whole(exact);
        self.fraction_ns = exact.fract();
        self.at = self.at.plus_nanos(whole);
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_put_in_order() {
        let at = |ns| Instant::from_nanos(ns);
        let arrivals: Vec<_> = trace(vec![at(3), at(1)]).map(|arrival| arrival.at).collect();
        assert_eq!(arrivals, [at(1), at(3)]);
    }
}
