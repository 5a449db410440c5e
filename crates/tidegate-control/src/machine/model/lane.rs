//! A node behind its part of a limit, beside the traffic of others.

use std::iter::Peekable;

use tidegate_core::limit::Limit;
use tidegate_core::number::whole;
use tidegate_core::replay::{BrokerReplay, Passed, ServiceModel};
use tidegate_core::{Instant, Rng};

/// Messages that come together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// When.
    pub at: Instant,
    /// How many.
    pub messages: u32,
}

/// Batches of others, endless: as a Poisson process.
#[derive(Clone, Debug)]
pub struct Beside {
    at_ns: f64,
    gap_ns: f64,
    messages: u32,
    rng: Rng,
}

impl Beside {
    /// `rate_per_s` messages, above 0, in batches of `messages`, at least 1.
    #[must_use]
    pub fn new(rate_per_s: f64, messages: u32, rng: Rng) -> Self {
        let messages = messages.max(1);
        Self { at_ns: 0.0, gap_ns: 1e9 * f64::from(messages) / rate_per_s, messages, rng }
    }
}

impl Iterator for Beside {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        self.at_ns += self.rng.exponential() * self.gap_ns;
        Some(Batch { at: Instant::from_nanos(whole(self.at_ns)), messages: self.messages })
    }
}

/// A node that is told of the claim's batches, and has those of others, `B`, from their own source. Each message of the
/// claim is told to `each` when it is through.
#[derive(Debug)]
pub struct Lane<B: Iterator<Item = Batch>> {
    replay: BrokerReplay,
    beside: Option<Peekable<B>>,
    rng: Rng,
}

impl<B: Iterator<Item = Batch>> Lane<B> {
    /// Idle, with a full bucket.
    #[must_use]
    pub fn new(limit: Limit, service: ServiceModel, beside: Option<B>, rng: Rng) -> Self {
        let replay = BrokerReplay::new(limit, service, Instant::ZERO);
        Self { replay, beside: beside.map(Iterator::peekable), rng }
    }

    /// A batch comes, not before those that came already.
    pub fn arrive(&mut self, batch: Batch, mut each: impl FnMut(Passed)) {
        self.others_until(batch.at, &mut each);
        self.replay.arrive(batch.at, batch.messages, &mut self.rng, each);
    }

    /// Time passes without a batch of the claim.
    pub fn others_until(&mut self, at: Instant, mut each: impl FnMut(Passed)) {
        let Some(beside) = &mut self.beside else { return };
        while let Some(batch) = beside.next_if(|batch| batch.at <= at) {
            self.replay.arrive_beside(batch.at, batch.messages, &mut self.rng, &mut each);
        }
    }

    /// Nothing comes after `end`; whatever waits goes through. Messages that were turned away, which are late in any case.
    pub fn finish(mut self, end: Instant, mut each: impl FnMut(Passed)) -> u64 {
        self.others_until(end, &mut each);
        self.replay.finish(&mut self.rng, each);
        self.replay.refused()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;
    use tidegate_core::number::float;
    use tidegate_core::replay::Spread;

    use super::*;

    const SERVICE: ServiceModel =
        ServiceModel { cores: 1, batch_ns: 0, message_ns: 1_000, way_ns: 0, spread: Spread::Constant };

    #[test]
    fn others_take_the_core_before_and_after() {
        let batch = |us: u64, messages| Batch { at: Instant::from_nanos(us * 1_000), messages };
        let others = vec![batch(0, 10), batch(20, 1)];
        let limit = Limit::new(Rate::per_s(1_000_000), 10);
        let mut lane = Lane::new(limit, SERVICE, Some(others.into_iter()), Rng::new(1));
        let mut seen = Vec::new();
        lane.arrive(batch(5, 1), |passed| seen.push(passed.total_ns));
        assert_eq!(lane.finish(Instant::from_nanos(30_000), |passed| seen.push(passed.total_ns)), 0);
        // The core is busy for 10 us from 0 on.
        assert_eq!(seen, [6_000]);
    }

    #[test]
    fn traffic_beside_has_its_rate() {
        let beside = Beside::new(20_000.0, 10, Rng::new(3));
        let batches = beside.take_while(|batch| batch.at < Instant::from_nanos(10_000_000_000)).count();
        assert!((float(batches as u64) / 20_000.0 - 1.0).abs() < 0.03, "{batches}");
    }
}
