//! Intended times at a rate that changes in steps.

use tidegate_core::{Instant, Rng};

use super::config::Source;
use crate::arrivals::{Process, whole};

/// From `at` on, `per_ns` arrivals a nanosecond.
#[derive(Clone, Copy, Debug)]
struct Phase {
    at_ns: f64,
    per_ns: f64,
}

/// The intended times of a source, in order, the same for the same seed; endless unless the last rate is 0.
///
/// A process of rate 1 is stretched by the rate of the moment, so a step takes effect at its very moment: O(1) for each
/// arrival, and for each step once.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    start: Instant,
    phases: Vec<Phase>,
    phase: usize,
    at_ns: f64,
    process: Process,
    rng: Rng,
    is_first: bool,
}

impl Schedule {
    /// Arrivals from `start` on; the steps count from `measured`.
    pub(super) fn new(source: &Source, start: Instant, measured: Instant, seed: u64) -> Self {
        let lead_ns = float(measured.nanos_since(start));
        let mut phases = vec![Phase { at_ns: 0.0, per_ns: source.rate_per_s / 1e9 }];
        phases.extend(
            source
                .steps
                .iter()
                .map(|step| Phase { at_ns: lead_ns + float(step.at_ms) * 1e6, per_ns: step.rate_per_s / 1e9 }),
        );
        Self { start, phases, phase: 0, at_ns: 0.0, process: source.process, rng: Rng::new(seed), is_first: true }
    }

    /// How much of the process of rate 1 is before the next arrival.
    fn gap(&mut self) -> f64 {
        match self.process {
            Process::Poisson => self.rng.exponential(),
            // The phase of a periodic source is random.
            Process::Periodic if self.is_first => self.rng.f64(),
            Process::Periodic => 1.0,
        }
    }
}

impl Iterator for Schedule {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        let mut gap = self.gap();
        self.is_first = false;
        loop {
            let Phase { per_ns, .. } = self.phases[self.phase];
            let end_ns = self.phases.get(self.phase + 1).map(|next| next.at_ns);
            let within = end_ns.map_or(f64::INFINITY, |end_ns| (end_ns - self.at_ns) * per_ns);
            if gap < within {
                if per_ns <= 0.0 {
                    return None;
                }
                self.at_ns += gap / per_ns;
                return Some(self.start.plus_nanos(whole(self.at_ns)));
            }
            let end_ns = end_ns?;
            gap -= within;
            self.at_ns = end_ns;
            self.phase += 1;
        }
    }
}

fn float(number: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 nanoseconds, which are a hundred days")]
    let number = number as f64;
    number
}

#[cfg(test)]
mod tests {
    use super::super::config::Step;
    use super::*;

    fn times(process: Process, rates: [f64; 3]) -> Vec<u64> {
        let steps = vec![Step { at_ms: 1_000, rate_per_s: rates[1] }, Step { at_ms: 2_000, rate_per_s: rates[2] }];
        let source = Source { process, rate_per_s: rates[0], steps, ..Source::default() };
        let (start, measured) = (Instant::from_nanos(5), Instant::from_nanos(1_000_000_005));
        let schedule = Schedule::new(&source, start, measured, 7);
        schedule.map(|at| at.nanos_since(start)).take_while(|ns| *ns < 4_000_000_000).collect()
    }

    fn within(times: &[u64], second: u64) -> usize {
        times.iter().filter(|ns| **ns / 1_000_000_000 == second).count()
    }

    #[test]
    fn steps_count_from_the_measured_window() {
        let times = times(Process::Periodic, [100.0, 1_000.0, 10.0]);
        assert!(times.is_sorted());
        for (second, expected) in [(0, 100), (1, 100), (2, 1_000), (3, 10)] {
            assert!(within(&times, second).abs_diff(expected) <= 1, "{second}: {}", within(&times, second));
        }
    }

    #[test]
    fn poisson_arrivals_have_the_rate_of_each_step() {
        let times = times(Process::Poisson, [10_000.0, 40_000.0, 100.0]);
        // Five standard deviations.
        for (second, expected, off) in [(0, 10_000, 500), (1, 10_000, 500), (2, 40_000, 1_000), (3, 100, 50)] {
            assert!(within(&times, second).abs_diff(expected) <= off, "{second}: {}", within(&times, second));
        }
    }

    #[test]
    fn silence_ends_a_schedule_or_is_passed_over() {
        assert!(within(&times(Process::Poisson, [0.0, 1_000.0, 0.0]), 0) == 0);
        let source = Source { rate_per_s: 0.0, ..Source::default() };
        assert_eq!(Schedule::new(&source, Instant::ZERO, Instant::ZERO, 1).next(), None);
    }
}
