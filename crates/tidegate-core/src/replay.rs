//! What a broker with a limit does to recorded or invented arrivals, as fast as it goes.
//!
//! A message waits for its token in the production [`Gate`], then for one of the broker's cores; the rest of its way takes
//! a constant time. Planners ask this model what a placement would do, and experiments measure it.

use core::fmt;

use crate::limit::{Gate, Limit};
use crate::{Instant, Rng};

/// Messages that wait for their token at most.
const WAITING_MAX: u64 = 10_000_000;

/// How the time that a message takes on a core is spread around its mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Spread {
    /// Not at all.
    Constant,
    /// Without memory.
    Exponential,
}

/// A broker as a queue: its cores serve released messages in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ServiceModel {
    /// Its cores; none counts as one.
    pub cores: u16,
    /// What a core spends on a batch, with its first message.
    pub batch_ns: u32,
    /// What a core spends on each message.
    pub message_ns: u32,
    /// The rest of the way, from publisher to subscriber.
    pub way_ns: u32,
    /// Of the time on a core.
    pub spread: Spread,
}

impl ServiceModel {
    /// Messages per second in batches of `batch` with which all cores are busy.
    #[must_use]
    pub fn capacity_per_s(&self, batch: u32) -> f64 {
        let batch = f64::from(batch.max(1));
        let batch_ns = f64::from(self.batch_ns) + batch * f64::from(self.message_ns);
        batch * f64::from(self.cores.max(1)) * 1e9 / batch_ns
    }
}

impl fmt::Display for ServiceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, batch_ns, message_ns, way_ns, spread } = self;
        let spread = match spread {
            Spread::Constant => "constant",
            Spread::Exponential => "exponential",
        };
        write!(f, "{cores} cores, {batch_ns} ns a batch and {message_ns} ns a message, {spread}, {way_ns} ns of way")
    }
}

/// What a message met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// When it came.
    pub arrival: Instant,
    /// How long it waited for its token.
    pub access_ns: u64,
    /// From its arrival to the end of its way, the wait for its token included.
    pub total_ns: u64,
}

/// A broker that is told of arrivals in order of time.
///
/// Each message is told to `each` when its token is there, at the latest by [`BrokerReplay::finish`]. O(cores) for each.
#[derive(Clone, Debug)]
pub struct BrokerReplay {
    model: ServiceModel,
    /// True for the first message of a batch.
    gate: Gate<bool>,
    /// When each core is free; unordered.
    free_at: Vec<Instant>,
    refused: u64,
}

impl BrokerReplay {
    /// Idle cores behind a full bucket.
    #[must_use]
    pub fn new(limit: Limit, model: ServiceModel, now: Instant) -> Self {
        let free_at = vec![now; usize::from(model.cores.max(1))];
        Self { model, gate: Gate::new(limit, WAITING_MAX, now), free_at, refused: 0 }
    }

    /// A batch of the topic comes; one token for each message.
    pub fn arrive(&mut self, at: Instant, messages: u32, rng: &mut Rng, each: impl FnMut(Passed)) {
        for message in 0..messages {
            if self.gate.push(message == 0, 1, at).is_err() {
                self.refused += 1;
            }
        }
        self.release(at, rng, each);
    }

    /// A batch of another topic comes, which this limit is not for.
    pub fn arrive_beside(&mut self, at: Instant, messages: u32, rng: &mut Rng, each: impl FnMut(Passed)) {
        self.release(at, rng, each);
        for message in 0..messages {
            self.serve(at, message == 0, rng);
        }
    }

    /// No more arrivals: whatever waits gets its token when it is there. With a rate of zero it never is.
    pub fn finish(&mut self, rng: &mut Rng, each: impl FnMut(Passed)) {
        self.release(Instant::MAX, rng, each);
    }

    /// Messages that were turned away, as more than ten million waited.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Serves those that have their token, in order.
    fn release(&mut self, now: Instant, rng: &mut Rng, mut each: impl FnMut(Passed)) {
        while let Some(released) = self.gate.pop(now) {
            let done = self.serve(released.release, released.item, rng);
            each(Passed {
                arrival: released.arrival,
                access_ns: released.release.nanos_since(released.arrival),
                total_ns: done.nanos_since(released.arrival).saturating_add(self.model.way_ns.into()),
            });
        }
    }

    /// When a core has done a message that is there from `at` on.
    fn serve(&mut self, at: Instant, is_first: bool, rng: &mut Rng) -> Instant {
        let mean_ns = u64::from(self.model.message_ns) + if is_first { u64::from(self.model.batch_ns) } else { 0 };
        let service_ns = match self.model.spread {
            Spread::Constant => mean_ns,
            Spread::Exponential => crate::number::whole(crate::number::float(mean_ns) * rng.exponential()),
        };
        let Some(core) = self.free_at.iter_mut().min() else { return at };
        *core = at.max(*core).plus_nanos(service_ns);
        *core
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;
    use crate::theory::md1::{AccessDelay, Bucket, Traffic};

    const MODEL: ServiceModel =
        ServiceModel { cores: 2, batch_ns: 5, message_ns: 10, way_ns: 100, spread: Spread::Constant };

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_batch_waits_for_its_tokens_and_for_a_core() {
        let mut broker = BrokerReplay::new(Limit::new(Rate::per_s(1_000_000), 3), MODEL, at(0));
        let mut rng = Rng::new(1);
        let mut passed = Vec::new();
        broker.arrive(at(0), 4, &mut rng, |message| passed.push((message.access_ns, message.total_ns)));
        // The first takes 15 ns on one core, the second and the third 10 each on the other; the fourth has no token.
        assert_eq!(passed, [(0, 115), (0, 110), (0, 120)]);
        broker.finish(&mut rng, |message| passed.push((message.access_ns, message.total_ns)));
        assert_eq!(passed[3], (1_000, 1_110));
        assert_eq!(broker.refused(), 0);
    }

    #[test]
    fn other_topics_take_cores_but_no_tokens() {
        let mut broker = BrokerReplay::new(Limit::new(Rate::per_s(1_000_000), 1), MODEL, at(0));
        let mut rng = Rng::new(1);
        let mut passed = Vec::new();
        broker.arrive(at(0), 2, &mut rng, |message| passed.push(message.total_ns));
        // They find one core free from 0 on and one from 15, and leave at 15, 25, 25 and 35.
        broker.arrive_beside(at(0), 4, &mut rng, |message| passed.push(message.total_ns));
        broker.arrive(at(1_000), 1, &mut rng, |message| passed.push(message.total_ns));
        broker.finish(&mut rng, |message| passed.push(message.total_ns));
        assert_eq!(passed, [115, 1_110, 1_000 + 115]);
        // What was released before another topic's batch came is served before it.
        broker.arrive(at(5_000), 2, &mut rng, |_| {});
        broker.arrive_beside(at(6_000), 2, &mut rng, |message| passed.push(message.total_ns));
        assert_eq!(passed[3], 1_110);
    }

    #[test]
    fn access_delays_are_those_of_the_theory() {
        let limit = Limit::new(Rate::per_s(11_000), 10);
        let idle = ServiceModel { cores: 1, batch_ns: 0, message_ns: 0, way_ns: 0, spread: Spread::Constant };
        let mut broker = BrokerReplay::new(limit, idle, at(0));
        let mut rng = Rng::new(3);
        let (mut now_ns, mut sum_ns, mut messages) = (0.0, 0, 0u32);
        for _ in 0..1_000_000 {
            now_ns += rng.exponential() * 1e5;
            let mut service = Rng::new(1);
            broker.arrive(at(crate::number::whole(now_ns)), 1, &mut service, |message| {
                assert_eq!(message.access_ns, message.total_ns);
                sum_ns += message.access_ns;
                messages += 1;
            });
        }
        let exact = AccessDelay::split(
            Traffic { rate_per_s: 10_000.0, batch: 1 },
            vec![Bucket { rate_per_s: 11_000.0, burst: 10.0 }],
        );
        let exact_us = exact.unwrap().mean_s() * 1e6;
        let mean_us = crate::number::float(sum_ns) / f64::from(messages) / 1e3;
        assert!((mean_us / exact_us - 1.0).abs() < 0.1, "{mean_us} for {exact_us}");
    }

    #[test]
    fn capacity_is_what_keeps_all_cores_busy() {
        let model = ServiceModel {
            cores: 2,
            batch_ns: 11_700,
            message_ns: 22_300,
            way_ns: 100_000,
            spread: Spread::Exponential,
        };
        assert!((model.capacity_per_s(1) - 58_823.5).abs() < 0.1);
        assert!((model.capacity_per_s(10) - 85_215.2).abs() < 0.1);
    }

    #[test]
    fn without_a_rate_what_has_no_token_waits_for_ever() {
        let mut broker = BrokerReplay::new(Limit::new(Rate::ZERO, 1), MODEL, at(0));
        let mut seen = 0;
        broker.arrive(at(0), 3, &mut Rng::new(1), |_| seen += 1);
        broker.finish(&mut Rng::new(1), |_| seen += 1);
        assert_eq!((seen, broker.refused()), (1, 0));
    }
}
