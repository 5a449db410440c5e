//! Arrivals at random, at a rate that changes.

use std::time::Duration;

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate, Rng};

use super::arrival::{Arrival, Clock, Publishers};

/// A bell-shaped peak of the rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Peak {
    /// When it is highest.
    pub at: Instant,
    /// Its standard deviation: two thirds of its messages come within this much of `at`. Not zero.
    pub width: Duration,
    /// Messages per second above the base at its highest.
    pub height: Rate,
}

/// A Poisson process of batches whose rate is constant but for Gaussian peaks.
///
/// Exact: drawn at the highest rate there can be, and thinned. Endless if the base rate is above zero, else it ends
/// after the last peak. Each arrival costs as many draws as the highest rate is above the current one.
#[derive(Clone, Debug)]
pub struct Peaks {
    publishers: Publishers,
    list: Vec<Peak>,
    base_per_s: f64,
    highest_per_s: f64,
    /// After this nothing comes any more.
    end: Instant,
    clock: Clock,
    rng: Rng,
}

impl Peaks {
    /// Arrivals after `start`; `publishers.rate` is the base.
    ///
    /// # Panics
    /// If base and peaks are all zero, or there is no publisher or an empty batch, or a peak has no width.
    #[must_use]
    pub fn new(publishers: Publishers, peaks: Vec<Peak>, start: Instant, rng: Rng) -> Self {
        assert!(peaks.iter().all(|peak| !peak.width.is_zero()), "a peak has a width");
        let base_per_s = publishers.rate.as_per_s();
        let highest_per_s = base_per_s + peaks.iter().map(|peak| peak.height.as_per_s()).sum::<f64>();
        assert!(highest_per_s > 0.0 && publishers.count > 0 && publishers.batch > 0, "somebody sends: {publishers:?}");
        // Eight deviations after its middle a peak has no messages left: fewer than one in 10^15.
        let end = peaks.iter().map(|peak| peak.at.plus_nanos(8 * nanos(peak.width))).max().unwrap_or(start);
        let end = if base_per_s > 0.0 { Instant::MAX } else { end };
        Self { publishers, list: peaks, base_per_s, highest_per_s, end, clock: Clock::new(start), rng }
    }

    /// Messages per second at `at`.
    #[must_use]
    pub fn rate_at(&self, at: Instant) -> f64 {
        let height_of = |peak: &Peak| {
            let away_ns = at.nanos_since(peak.at).max(peak.at.nanos_since(at));
            let deviations = Duration::from_nanos(away_ns).as_secs_f64() / peak.width.as_secs_f64();
            peak.height.as_per_s() * (-0.5 * deviations * deviations).exp()
        };
        self.base_per_s + self.list.iter().map(height_of).sum::<f64>()
    }
}

impl Iterator for Peaks {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let gap_ns = f64::from(self.publishers.batch) * 1e9 / self.highest_per_s;
        loop {
            let at = self.clock.advance(self.rng.exponential() * gap_ns);
            if at > self.end {
                return None;
            }
            if self.rng.chance(self.rate_at(at) / self.highest_per_s) {
                let publisher = self.publishers.draw(&mut self.rng);
                return Some(Arrival { at, publisher, messages: self.publishers.batch });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_has_its_area_and_ends() {
        let peak = Peak {
            at: Instant::from_nanos(50_000_000_000),
            width: Duration::from_secs(5),
            height: Rate::per_s(10_000),
        };
        let publishers = Publishers { count: 1, rate: Rate::ZERO, batch: 1 };
        let arrivals: Vec<_> = Peaks::new(publishers, vec![peak], Instant::ZERO, Rng::new(1)).collect();
        // height * width * sqrt(2 pi) = 125,331; five standard deviations are 1,770.
        assert!(arrivals.len().abs_diff(125_331) < 1_770, "{}", arrivals.len());
        let inner = arrivals.iter().filter(|arrival| arrival.at.as_nanos().abs_diff(50_000_000_000) < 5_000_000_000);
        let inner = inner.count();
        assert!(inner.abs_diff(85_562) < 1_000, "{inner}");
    }

    #[test]
    fn between_peaks_the_base_rate_goes_on() {
        let peak = Peak { at: Instant::ZERO, width: Duration::from_secs(1), height: Rate::per_s(1_000) };
        let publishers = Publishers { count: 3, rate: Rate::per_s(100), batch: 1 };
        let later = Instant::from_nanos(10_000_000_000);
        let late = Peaks::new(publishers, vec![peak], later, Rng::new(1)).take(100_000).last().unwrap();
        assert!(late.at.nanos_since(later).abs_diff(1_000_000_000_000) < 20_000_000_000, "{:?}", late.at);
    }
}
