//! What became of messages or requests, over the last few seconds.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;

/// What rates and loss look back on: long enough for figures that stand still, short enough that a person sees what the
/// slider did.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);
/// Four samples a second for the window, with room for some more.
const MOST_SAMPLES: usize = 32;

/// Counts since the start, and the delays of the last five seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Totals {
    /// Messages that were due.
    pub(crate) offered: u64,
    /// Messages that the consumer has worked on.
    pub(crate) finished: u64,
    /// Messages that came too late, or never will: refused, dropped.
    pub(crate) lost: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Totals at several moments of the window.
#[derive(Debug)]
pub(crate) struct Meter<T> {
    /// The oldest first; it is just outside the window, or the first of all.
    samples: VecDeque<(Instant, T)>,
}

/// What happened in the window: from these totals to those, in so many seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grown<'a, T> {
    pub(crate) before: &'a T,
    pub(crate) latest: &'a T,
    seconds: f64,
}

impl<T> Grown<'_, T> {
    /// Growth of a count.
    pub(crate) fn count(&self, of: fn(&T) -> u64) -> f64 {
        float(of(self.latest).saturating_sub(of(self.before)))
    }

    /// The same per second.
    pub(crate) fn per_s(&self, of: fn(&T) -> u64) -> f64 {
        if self.seconds > 0.0 { self.count(of) / self.seconds } else { 0.0 }
    }
}

impl<T> Default for Meter<T> {
    fn default() -> Self {
        Self { samples: VecDeque::new() }
    }
}

/// A topic's figures, as the demo's page shows them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) offered_per_s: f64,
    pub(crate) delivered_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) loss_percent: f64,
}

impl<T> Meter<T> {
    pub(crate) fn sample(&mut self, now: Instant, totals: T) {
        self.samples.push_back((now, totals));
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) || self.samples.len() > MOST_SAMPLES {
            self.samples.pop_front();
        }
    }

    /// `None` before the first sample.
    pub(crate) fn grown(&self) -> Option<Grown<'_, T>> {
        let ((from, before), (to, latest)) = (self.samples.front()?, self.samples.back()?);
        Some(Grown { before, latest, seconds: to.since(*from).as_secs_f64() })
    }
}

impl Meter<Totals> {
    pub(crate) fn figures(&self) -> Figures {
        let Some(grown) = self.grown() else { return Figures::default() };
        let offered = grown.count(|totals| totals.offered);
        let lost = grown.count(|totals| totals.lost);
        Figures {
            offered_per_s: grown.per_s(|totals| totals.offered),
            delivered_per_s: grown.per_s(|totals| totals.finished),
            p50_ms: grown.latest.p50_ms,
            p99_ms: grown.latest.p99_ms,
            // While a long queue empties, more is found late than is offered.
            loss_percent: if offered > 0.0 { (100.0 * lost / offered).min(100.0) } else { 0.0 },
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn figures_are_of_the_window_alone() {
        let mut meter = Meter::default();
        assert_eq!(meter.figures(), Figures::default());
        for n in 0..=40_u64 {
            // 100 offered per second; after five seconds a quarter of them is lost.
            let (offered, late) = (25 * n, 25 * n.saturating_sub(20) / 4);
            let totals = Totals { offered, finished: offered, lost: late, p50_ms: 1.0, p99_ms: 2.0 };
            meter.sample(ms(250 * n), totals);
        }
        let figures = meter.figures();
        assert!((figures.offered_per_s - 100.0).abs() < 0.1, "{figures:?}");
        assert!((figures.delivered_per_s - 100.0).abs() < 0.1, "{figures:?}");
        assert!((figures.loss_percent - 25.0).abs() < 1.0, "{figures:?}");
        assert_eq!(meter.samples.len(), 13);
    }

    #[test]
    fn loss_is_never_more_than_all() {
        let mut meter = Meter::default();
        meter.sample(ms(0), Totals::default());
        meter.sample(ms(1_000), Totals { offered: 10, lost: 500, ..Totals::default() });
        assert!((meter.figures().loss_percent - 100.0).abs() < 1e-9);
    }

    #[test]
    fn memory_is_bounded() {
        let mut meter = Meter::<Totals>::default();
        for n in 0..1_000 {
            meter.sample(ms(n), Totals::default());
        }
        assert!(meter.samples.len() <= MOST_SAMPLES);
    }
}
