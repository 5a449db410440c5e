//! When to send: the intended times of an open loop.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

/// How arrivals follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// Independent publishers, together a Poisson process.
    #[default]
    Poisson,
    /// Every publisher strictly periodic, with a random phase of its own.
    Periodic,
}

/// The whole load, described.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// How arrivals follow each other.
    pub process: Process,
    /// Messages per second of all publishers together.
    pub rate_per_s: f64,
    /// Messages that arrive at once, from one publisher; at least 1.
    pub batch: u32,
    /// Number of publishers; at least 1.
    pub publishers: u32,
}

/// One batch is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// By whom, from 0.
    pub publisher: u32,
}

/// An endless sequence of arrivals in order of time, the same for the same seed.
///
/// O(1) for each arrival. Poisson arrivals are drawn as one process at the total rate whose publishers are drawn
/// uniformly, which is the same law as independent publishers.
#[derive(Clone, Debug)]
pub struct Arrivals {
    start: Instant,
    publishers: u32,
    /// Mean nanoseconds between arrivals of all publishers.
    gap_ns: f64,
    rng: Rng,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Poisson { elapsed_ns: f64 },
    Periodic { phases: Vec<(u64, u32)>, next: usize, round: u64 },
}

impl Arrivals {
    /// Arrivals from `start` on.
    ///
    /// # Panics
    /// If the rate is not positive, or there is no publisher or an empty batch.
    #[must_use]
    pub fn new(shape: Shape, start: Instant, seed: u64) -> Self {
        assert!(shape.rate_per_s > 0.0 && shape.batch > 0 && shape.publishers > 0, "a load has a rate: {shape:?}");
        let gap_ns = f64::from(shape.batch) * 1e9 / shape.rate_per_s;
        let mut rng = Rng::new(seed);
        let state = match shape.process {
            Process::Poisson => State::Poisson { elapsed_ns: 0.0 },
            Process::Periodic => {
                let period_ns = gap_ns * f64::from(shape.publishers);
                let mut phases: Vec<_> =
                    (0..shape.publishers).map(|publisher| (whole(rng.f64() * period_ns), publisher)).collect();
                phases.sort_unstable();
                State::Periodic { phases, next: 0, round: 0 }
            }
        };
        Self { start, publishers: shape.publishers, gap_ns, rng, state }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let (after_ns, publisher) = match &mut self.state {
            State::Poisson { elapsed_ns } => {
                *elapsed_ns += self.rng.exponential() * self.gap_ns;
                (whole(*elapsed_ns), draw(&mut self.rng, self.publishers))
            }
            State::Periodic { phases, next, round } => {
                if *next == phases.len() {
                    (*next, *round) = (0, *round + 1);
                }
                let (phase_ns, publisher) = phases[*next];
                *next += 1;
                // A product, not a sum: rounding does not add up over the rounds.
                #[expect(clippy::cast_precision_loss, reason = "below 2^53 rounds")]
                let begun_ns = *round as f64 * self.gap_ns * f64::from(self.publishers);
                (whole(begun_ns) + phase_ns, publisher)
            }
        };
        Some(Arrival { at: self.start.plus_nanos(after_ns), publisher })
    }
}

fn draw(rng: &mut Rng, publishers: u32) -> u32 {
    u32::try_from(rng.below(u64::from(publishers))).expect("below a 32-bit bound")
}

/// Whole nanoseconds; saturates, and is zero for negative numbers.
pub(crate) fn whole(ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let whole = ns as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SECOND_NS: u64 = 1_000_000_000;

    fn shape(process: Process, batch: u32) -> Shape {
        Shape { process, rate_per_s: 10_000.0, batch, publishers: 100 }
    }

    fn within(shape: Shape, seed: u64, span_ns: u64) -> Vec<Arrival> {
        let start = Instant::from_nanos(7);
        Arrivals::new(shape, start, seed).take_while(|arrival| arrival.at.nanos_since(start) < span_ns).collect()
    }

    #[test]
    fn same_seed_same_times() {
        for process in [Process::Poisson, Process::Periodic] {
            let first = within(shape(process, 1), 5, SECOND_NS);
            assert_eq!(first, within(shape(process, 1), 5, SECOND_NS));
            assert_ne!(first, within(shape(process, 1), 6, SECOND_NS));
            assert!(first.is_sorted_by_key(|arrival| arrival.at));
        }
    }

    #[test]
    fn a_periodic_publisher_never_drifts() {
        // 100 publishers, 10,000/s together: each of them every 10 ms, for 100 s.
        let mut last: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for arrival in within(shape(Process::Periodic, 1), 1, 100 * SECOND_NS) {
            let (count, first_ns) = last.entry(arrival.publisher).or_insert((0, arrival.at.as_nanos()));
            assert_eq!(arrival.at.as_nanos(), *first_ns + *count * 10_000_000);
            *count += 1;
        }
        assert_eq!(last.values().map(|(count, _)| *count).collect::<Vec<_>>(), [10_000; 100]);
    }

    #[test]
    fn poisson_gaps_are_exponential_and_publishers_uniform() {
        let arrivals = within(shape(Process::Poisson, 1), 9, 100 * SECOND_NS);
        // 10^6 expected; five standard deviations are 5,000.
        assert!(arrivals.len().abs_diff(1_000_000) < 5_000, "{}", arrivals.len());
        // Gaps above the mean: a share of 1/e.
        let long = arrivals.windows(2).filter(|pair| pair[1].at.nanos_since(pair[0].at) > 100_000).count();
        assert!(long.abs_diff(367_879) < 3_500, "{long}");
        let of_first = arrivals.iter().filter(|arrival| arrival.publisher == 0).count();
        assert!(of_first.abs_diff(10_000) < 500, "{of_first}");
    }

    #[test]
    fn a_batch_counts_as_its_messages() {
        for process in [Process::Poisson, Process::Periodic] {
            let batches = within(shape(process, 10), 3, 100 * SECOND_NS).len();
            assert!(batches.abs_diff(100_000) < 1_600, "{batches}");
        }
    }
}
