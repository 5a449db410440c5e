//! Arrivals at random, at a constant rate.

use tidegate_core::{Instant, Rng};

use super::arrival::{Arrival, Clock, Publishers};

/// Independent publishers, each a Poisson process of batches.
///
/// Drawn as one process at the total rate whose publishers are drawn uniformly, which is the same law. O(1), endless.
#[derive(Clone, Debug)]
pub struct Poisson {
    publishers: Publishers,
    gap_ns: f64,
    clock: Clock,
    rng: Rng,
}

impl Poisson {
    /// Arrivals after `start`.
    ///
    /// # Panics
    /// If the rate is zero, or there is no publisher or an empty batch.
    #[must_use]
    pub fn new(publishers: Publishers, start: Instant, rng: Rng) -> Self {
        Self { publishers, gap_ns: publishers.gap_ns(), clock: Clock::new(start), rng }
    }
}

impl Iterator for Poisson {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        let at = self.clock.advance(self.rng.exponential() * self.gap_ns);
        let publisher = self.publishers.draw(&mut self.rng);
        Some(Arrival { at, publisher, messages: self.publishers.batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Rate;

    fn seconds(publishers: Publishers, seconds: u64) -> Vec<Arrival> {
        let end = Instant::from_nanos(seconds * 1_000_000_000);
        Poisson::new(publishers, Instant::ZERO, Rng::new(9)).take_while(|arrival| arrival.at < end).collect()
    }

    #[test]
    fn gaps_are_exponential_and_publishers_uniform() {
        let arrivals = seconds(Publishers { count: 100, rate: Rate::per_s(10_000), batch: 1 }, 100);
        // 10^6 expected; five standard deviations are 5,000.
        assert!(arrivals.len().abs_diff(1_000_000) < 5_000, "{}", arrivals.len());
        // Gaps above the mean: a share of 1/e.
        let long = arrivals.windows(2).filter(|pair| pair[1].at.nanos_since(pair[0].at) > 100_000).count();
        assert!(long.abs_diff(367_879) < 3_500, "{long}");
        let of_first = arrivals.iter().filter(|arrival| arrival.publisher == 0).count();
        assert!(of_first.abs_diff(10_000) < 500, "{of_first}");
    }

    #[test]
    fn batches_keep_the_rate_of_messages() {
        let arrivals = seconds(Publishers { count: 1, rate: Rate::per_s(10_000), batch: 10 }, 100);
        assert!(arrivals.len().abs_diff(100_000) < 1_600, "{}", arrivals.len());
        assert!(arrivals.iter().all(|arrival| arrival.messages == 10));
    }

    #[test]
    fn a_rate_above_one_in_a_nanosecond_is_kept() {
        let publishers = Publishers { count: 1, rate: Rate::per_s(4_000_000_000), batch: 1 };
        let last = Poisson::new(publishers, Instant::ZERO, Rng::new(1)).nth(1_000_000).unwrap();
        assert!(last.at.as_nanos().abs_diff(250_000) < 1_500, "{:?}", last.at);
    }
}
