//! Arrivals of strictly periodic publishers.

use tidegate_core::{Instant, Rng};

use super::arrival::{Arrival, Publishers};

/// Independent publishers, each strictly periodic from a random phase on. O(1) and 16 bytes for each publisher; endless.
#[derive(Clone, Debug)]
pub struct Periodic {
    publishers: Publishers,
    start: Instant,
    /// Nanoseconds into the period, and the publisher; in order.
    phases: Vec<(u64, u32)>,
    next: usize,
    round: u64,
}

impl Periodic {
    /// Arrivals from `start` on; phases are uniform over the period.
    ///
    /// # Panics
    /// If the rate is zero, or there is no publisher or an empty batch.
    #[must_use]
    pub fn new(publishers: Publishers, start: Instant, rng: &mut Rng) -> Self {
        let period_ns = crate::distribution::whole(publishers.gap_ns() * f64::from(publishers.count));
        let mut phases: Vec<_> = (0..publishers.count).map(|publisher| (rng.below(period_ns), publisher)).collect();
        phases.sort_unstable();
        Self { publishers, start, phases, next: 0, round: 0 }
    }

    /// Nanoseconds from `start` to the beginning of the current round: a quotient, so that no rounding adds up.
    fn round_began_ns(&self) -> u64 {
        let Publishers { count, rate, batch } = self.publishers;
        let messages = u128::from(self.round) * u128::from(count) * u128::from(batch);
        u64::try_from(messages * u128::from(rate.period_ns()) / u128::from(rate.tokens())).unwrap_or(u64::MAX)
    }
}

impl Iterator for Periodic {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.next == self.phases.len() {
            (self.next, self.round) = (0, self.round + 1);
        }
        let (phase_ns, publisher) = self.phases[self.next];
        self.next += 1;
        let at = self.start.plus_nanos(self.round_began_ns()).plus_nanos(phase_ns);
        Some(Arrival { at, publisher, messages: self.publishers.batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tidegate_core::Rate;

    #[test]
    fn a_publisher_never_drifts() {
        // A period of a third of a second, for 10,000 seconds.
        let publishers = Publishers { count: 10, rate: Rate::per_s(30), batch: 1 };
        let mut firsts = BTreeMap::new();
        let mut seen = 0;
        for arrival in Periodic::new(publishers, Instant::ZERO, &mut Rng::new(3)).take(300_000) {
            let (first, count) = firsts.entry(arrival.publisher).or_insert((arrival.at, 0u64));
            assert!(arrival.at.nanos_since(*first).abs_diff(*count * 1_000_000_000 / 3) <= 1);
            *count += 1;
            seen += 1;
        }
        assert_eq!((firsts.len(), seen), (10, 300_000));
    }
}
