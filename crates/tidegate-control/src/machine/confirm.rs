//! Whether a placement keeps its objective, decided as early as the measurement allows.
//!
//! A sequential test of two shares of messages beyond the objective: the one that is promised, and one that is clearly more.
//! It stops as soon as either is unlikely enough. Messages are late together, those of a burst and those behind it; so not
//! messages are counted but samples, each as many messages as are late together. How many these are is known before from the
//! model, and corrected by how unevenly the late ones came in the measurement itself, whichever is more.
//! Source: Wald, "Sequential Tests of Statistical Hypotheses" (1945), §4.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::number::float;

use super::model::replay::dispersion;

/// Readings that are looked at together, at most.
const TOGETHER_MAX: usize = 16;
/// With fewer spans their unevenness says nothing.
const SPANS_LEAST: usize = 6;

/// How a placement is confirmed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfirmConfig {
    /// This share of messages beyond the objective is clearly too much: one and a half times what a p99 promises.
    pub too_much: f64,
    /// How likely either answer may be wrong.
    pub error: f64,
    /// How often the measurement is read.
    pub every: Duration,
    /// A measurement that decides nothing ends after this; another follows.
    pub span: Duration,
    /// Measurements that may follow each other without a decision. Then the share that was seen decides.
    pub spans_max: u32,
    /// The least time before a placement is said to keep its objective: the p99 is compared with the model's, too, and that
    /// of a few seconds scatters.
    pub least: Duration,
}

impl Default for ConfirmConfig {
    fn default() -> Self {
        Self {
            too_much: 0.015,
            error: 0.05,
            every: Duration::from_secs(1),
            span: Duration::from_secs(50),
            spans_max: 6,
            least: Duration::from_secs(35),
        }
    }
}

/// What the test says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing yet.
    Open,
    /// Not more than promised.
    Meets,
    /// Too much.
    Misses,
}

/// The test. The promised share is at least a millionth, and below what is too much.
#[derive(Clone, Debug)]
pub struct Confirm {
    config: ConfirmConfig,
    promised: f64,
    late_together: f64,
    /// Messages and late ones of each reading.
    readings: Vec<(f64, f64)>,
}

impl Confirm {
    /// `promised` is a share of messages, 0.01 for a p99; `late_together` messages are one sample, at least 1.
    #[must_use]
    pub fn new(config: ConfirmConfig, promised: f64, late_together: f64) -> Self {
        let promised = promised.clamp(1e-6, 0.5);
        Self { config, promised, late_together: late_together.max(1.0), readings: Vec::new() }
    }

    /// What another reading saw, and not what those before did.
    pub fn on_reading(&mut self, messages: u64, over_slo: u64) {
        self.readings.push((float(messages), float(over_slo.min(messages))));
    }

    /// Readings so far.
    #[must_use]
    pub fn readings(&self) -> usize {
        self.readings.len()
    }

    /// The share of messages beyond the objective; 0 without messages.
    #[must_use]
    pub fn share_over(&self) -> f64 {
        let (messages, over) = self.sums();
        if messages > 0.0 { over / messages } else { 0.0 }
    }

    /// Messages that are one sample, for all that was seen.
    #[must_use]
    pub fn sample(&self) -> f64 {
        let (mut most, mut together) = (self.late_together, 1);
        while together <= TOGETHER_MAX && self.readings.len() / together >= SPANS_LEAST {
            let sum = |chunk: &[(f64, f64)]| chunk.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let spans: Vec<(f64, f64)> = self.readings.chunks_exact(together).map(sum).collect();
            most = most.max(dispersion(&spans));
            together *= 2;
        }
        most
    }

    /// What is known now.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let too_much = self.config.too_much.clamp(self.promised * 1.01, 0.99);
        let error = self.config.error.clamp(1e-6, 0.49);
        let (messages, over) = self.sums();
        let late = (too_much / self.promised).ln();
        let in_time = ((1.0 - too_much) / (1.0 - self.promised)).ln();
        let ratio = (over * late + (messages - over) * in_time) / self.sample();
        let bound = ((1.0 - error) / error).ln();
        if ratio <= -bound {
            Verdict::Meets
        } else if ratio >= bound {
            Verdict::Misses
        } else {
            Verdict::Open
        }
    }

    /// The more likely answer, if there is no time for a sure one.
    #[must_use]
    pub fn likely(&self) -> Verdict {
        if self.share_over() <= self.promised { Verdict::Meets } else { Verdict::Misses }
    }

    fn sums(&self) -> (f64, f64) {
        self.readings.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rng;

    use super::*;

    /// Readings of a second, each of `bursts` bursts of `size` messages, of which the share `over` is late as a whole.
    fn run(size: u64, bursts: u64, over: f64, seed: u64) -> (Verdict, usize) {
        let mut rng = Rng::new(seed);
        let mut confirm = Confirm::new(ConfirmConfig::default(), 0.01, float(size));
        for second in 1..=600 {
            let late: u64 = (0..bursts).map(|_| if rng.chance(over) { size } else { 0 }).sum();
            confirm.on_reading(bursts * size, late);
            let verdict = confirm.verdict();
            if verdict != Verdict::Open {
                return (verdict, second);
            }
        }
        (Verdict::Open, 600)
    }

    fn share(verdict: Verdict, over: f64) -> f64 {
        let hits = (0..400).filter(|&seed| run(30, 333, over, seed).0 == verdict).count();
        float(hits as u64) / 400.0
    }

    #[test]
    fn one_and_a_half_times_too_many_pass_in_a_twentieth_of_the_tries() {
        // Of 400 tries, with what chance adds to a twentieth.
        let wrong = share(Verdict::Meets, 0.015);
        assert!(wrong <= 0.075, "{wrong}");
        let wrong = share(Verdict::Misses, 0.01);
        assert!(wrong <= 0.075, "{wrong}");
        assert!(share(Verdict::Misses, 0.03) > 0.99 && share(Verdict::Meets, 0.003) > 0.99);
    }

    #[test]
    fn it_stops_early_where_the_answer_is_clear() {
        let seconds = |over: f64| {
            let mut all: Vec<usize> = (0..101).map(|seed| run(30, 333, over, seed).1).collect();
            all.sort_unstable();
            all[50]
        };
        assert!(seconds(0.0) <= 2 && seconds(0.05) <= 2);
        assert!(seconds(0.003) <= 3, "{}", seconds(0.003));
        assert!(seconds(0.01) > 4);
    }

    #[test]
    fn larger_bursts_take_more_messages() {
        // As many messages a second, but a thirtieth of the samples.
        let (few, many) = (run(30, 333, 0.0, 1).1, run(900, 11, 0.0, 1).1);
        assert!(many > 20 * few, "{few} {many}");
    }

    #[test]
    fn late_messages_that_come_together_against_expectation_are_fewer_samples() {
        let mut even = Confirm::new(ConfirmConfig::default(), 0.01, 1.0);
        let mut uneven = even.clone();
        for second in 0..20 {
            even.on_reading(10_000, 80);
            uneven.on_reading(10_000, if second == 11 { 1_600 } else { 0 });
        }
        assert!((even.share_over() - uneven.share_over()).abs() < 1e-9);
        assert!(uneven.sample() > 1_000.0 && even.sample() < 2.0, "{} {}", uneven.sample(), even.sample());
        assert_eq!(
            (even.verdict(), uneven.verdict(), uneven.likely()),
            (Verdict::Meets, Verdict::Open, Verdict::Meets)
        );
    }

    /// Bursts of 300 through a bucket that is used to ten elevenths, with the bound at which 1.5 % wait longer: those who
    /// wait do so together, far beyond one burst. What is late together is measured on another run, as the model does.
    #[test]
    fn the_error_is_kept_behind_a_bucket() {
        const BURST: f64 = 300.0;
        let late = |seed: u64, seconds: usize, bound: f64| -> Vec<(f64, f64)> {
            let mut rng = Rng::new(seed);
            let (mut now, mut work) = (0.0, 0.0f64);
            let mut readings = vec![(0.0, 0.0); seconds];
            loop {
                let gap = rng.exponential() * BURST / 10_000.0;
                now += gap;
                work = (work - gap * 11_000.0).max(0.0);
                let Some(reading) =
                    readings.get_mut(usize::try_from(tidegate_core::number::whole(now)).unwrap_or(usize::MAX))
                else {
                    return readings;
                };
                reading.0 += BURST;
                reading.1 += (work + BURST - bound).clamp(0.0, BURST);
                work += BURST;
            }
        };
        let share = |readings: &[(f64, f64)]| {
            let (all, over) = readings.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            over / all
        };
        let (mut low, mut high) = (0.0, 30_000.0);
        for _ in 0..12 {
            let middle = f64::midpoint(low, high);
            if share(&late(1, 10_000, middle)) > 0.015 { low = middle } else { high = middle }
        }
        let model = late(2, 2_000, high);
        let together = (0..5)
            .map(|power| {
                let sum =
                    |chunk: &[(f64, f64)]| chunk.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                dispersion(&model.chunks_exact(1 << power).map(sum).collect::<Vec<_>>())
            })
            .fold(1.0, f64::max);
        assert!(together > 10.0 * BURST, "{together}");
        let wrong = (0..60).filter(|&seed| {
            let mut confirm = Confirm::new(ConfirmConfig::default(), 0.01, together);
            for (messages, over) in late(1_000 + seed, 2_000, high) {
                confirm.on_reading(tidegate_core::number::whole(messages), tidegate_core::number::whole(over));
                if confirm.verdict() != Verdict::Open {
                    return confirm.verdict() == Verdict::Meets;
                }
            }
            false
        });
        let wrong = wrong.count();
        assert!(wrong <= 7, "{wrong} of 60");
    }
}
