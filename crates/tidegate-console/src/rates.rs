//! Counters to rates.

use std::collections::VecDeque;

/// Rates are means over this span: long enough to read, short enough to see an edit within a second.
const SPAN_MS: u64 = 1_000;
/// Samples kept at most, however fast they come. At four a second, five cover the span.
const SAMPLES: usize = 16;

/// The recent samples of `N` counters that only grow.
#[derive(Clone, Debug)]
pub(crate) struct Window<const N: usize> {
    /// Oldest first; times strictly increase.
    samples: VecDeque<(u64, [u64; N])>,
}

impl<const N: usize> Default for Window<N> {
    fn default() -> Self {
        Self { samples: VecDeque::new() }
    }
}

impl<const N: usize> Window<N> {
    /// Takes the counters as they were at `at_ms` of their owner's clock.
    ///
    /// A counter that went back, or a clock that did, means that the owner restarted: what came before is forgotten.
    /// A second sample of the same millisecond is left out.
    pub(crate) fn push(&mut self, at_ms: u64, counters: [u64; N]) {
        if let Some((newest_ms, newest)) = self.samples.back() {
            if at_ms < *newest_ms || counters.iter().zip(newest).any(|(now, before)| now < before) {
                self.samples.clear();
            } else if at_ms == *newest_ms {
                return;
            }
        }
        self.samples.push_back((at_ms, counters));
        let covered = |samples: &VecDeque<(u64, [u64; N])>| samples.get(1).is_some_and(|s| at_ms - s.0 >= SPAN_MS);
        while self.samples.len() > SAMPLES || covered(&self.samples) {
            self.samples.pop_front();
        }
    }

    /// Growth per second of each counter over the window; zeros until there are two samples.
    pub(crate) fn per_s(&self) -> [f64; N] {
        let (Some((from_ms, from)), Some((to_ms, to))) = (self.samples.front(), self.samples.back()) else {
            return [0.0; N];
        };
        if to_ms == from_ms {
            return [0.0; N];
        }
        std::array::from_fn(|i| as_f64(to[i] - from[i]) * 1_000.0 / as_f64(to_ms - from_ms))
    }
}

/// A count as a float. Exact below 2^53, and nobody can see the difference beyond.
#[expect(clippy::cast_precision_loss, reason = "for display only")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(samples: &[(u64, u64)]) -> Window<1> {
        let mut window = Window::default();
        for &(at_ms, count) in samples {
            window.push(at_ms, [count]);
        }
        window
    }

    fn rate(samples: &[(u64, u64)]) -> f64 {
        window(samples).per_s()[0]
    }

    #[test]
    fn a_rate_needs_two_samples() {
        assert!(rate(&[]).abs() < 1e-9);
        assert!(rate(&[(5, 100)]).abs() < 1e-9);
        assert!((rate(&[(0, 100), (250, 350)]) - 1_000.0).abs() < 1e-9);
    }

    #[test]
    fn the_mean_is_over_the_last_second_only() {
        let samples = [(0, 0), (500, 5_000), (1_000, 10_000), (1_500, 10_000), (2_000, 10_000)];
        assert!(rate(&samples).abs() < 1e-9, "nothing grew after 1,000 ms");
        assert!((rate(&samples[..4]) - 5_000.0).abs() < 1e-9, "half of 500 to 1,500 ms");
    }

    #[test]
    fn uneven_samples_are_weighed_by_their_time() {
        assert!((rate(&[(0, 0), (100, 30), (900, 90)]) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_restarted_broker_starts_a_new_window() {
        assert!(rate(&[(0, 1_000), (250, 2_000), (500, 3)]).abs() < 1e-9);
        assert!((rate(&[(0, 1_000), (250, 3), (500, 13)]) - 40.0).abs() < 1e-9);
        assert!((rate(&[(10_000, 5), (250, 10), (500, 20)]) - 40.0).abs() < 1e-9, "clock stepped back");
    }

    #[test]
    fn samples_of_one_instant_do_not_divide_by_zero() {
        assert!(rate(&[(5, 1), (5, 9)]).abs() < 1e-9);
    }

    #[test]
    fn the_window_is_bounded_however_fast_samples_come() {
        let samples: Vec<(u64, u64)> = (0..1_000).map(|i| (i, i)).collect();
        let window = window(&samples);
        assert_eq!(window.samples.len(), SAMPLES);
        assert!((window.per_s()[0] - 1_000.0).abs() < 1e-9);
    }
}
