//! Random spans of time.

use serde::{Deserialize, Serialize};
use tidegate_core::Rng;

/// A law for spans of time. Spans below zero count as zero.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// The span.
        us: f64,
    },
    /// Every span between two equally likely.
    Uniform {
        /// The shortest.
        from_us: f64,
        /// The longest.
        to_us: f64,
    },
    /// Without memory, such as the gaps of a Poisson process.
    Exponential {
        /// The mean span.
        mean_us: f64,
    },
    /// The bell curve, cut off at zero.
    Normal {
        /// The mean span, before cutting.
        mean_us: f64,
        /// The standard deviation, before cutting.
        deviation_us: f64,
    },
    /// A heavy tail, such as that of pauses: P(span > x) = (scale / x)^shape for x above `scale`.
    Pareto {
        /// The shortest span.
        scale_us: f64,
        /// The lower, the heavier the tail; the mean is finite above 1.
        shape: f64,
    },
}

impl Distribution {
    /// A span in whole nanoseconds.
    #[inline]
    pub fn sample_ns(&self, rng: &mut Rng) -> u64 {
        let us = match *self {
            Self::Constant { us } => us,
            Self::Uniform { from_us, to_us } => from_us + (to_us - from_us) * rng.f64(),
            Self::Exponential { mean_us } => mean_us * rng.exponential(),
            Self::Normal { mean_us, deviation_us } => mean_us + deviation_us * rng.normal(),
            Self::Pareto { scale_us, shape } => scale_us * (rng.exponential() / shape).exp(),
        };
        whole(us * 1e3)
    }

    /// The mean in microseconds; of a normal distribution before it is cut off at zero.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        match *self {
            Self::Constant { us } => us,
            Self::Uniform { from_us, to_us } => f64::midpoint(from_us, to_us),
            Self::Exponential { mean_us } | Self::Normal { mean_us, .. } => mean_us,
            Self::Pareto { shape, .. } if shape <= 1.0 => f64::INFINITY,
            Self::Pareto { scale_us, shape } => scale_us * shape / (shape - 1.0),
        }
    }

    /// True if every number is finite and none is negative: what a sensible file says.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let numbers = match *self {
            Self::Constant { us } => [us, 0.0],
            Self::Uniform { from_us, to_us } => [from_us, to_us - from_us],
            Self::Exponential { mean_us } => [mean_us, 0.0],
            Self::Normal { mean_us, deviation_us } => [mean_us, deviation_us],
            Self::Pareto { scale_us, shape } => [scale_us, shape],
        };
        numbers.iter().all(|number| number.is_finite() && *number >= 0.0)
    }
}

/// Whole nanoseconds, rounded down; saturates, and is zero for negative numbers.
#[inline]
pub(crate) fn whole(ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let whole = ns as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_stated_mean() {
        let laws = [
            Distribution::Constant { us: 7.0 },
            Distribution::Uniform { from_us: 2.0, to_us: 12.0 },
            Distribution::Exponential { mean_us: 7.0 },
            Distribution::Normal { mean_us: 7.0, deviation_us: 1.0 },
            Distribution::Pareto { scale_us: 5.25, shape: 4.0 },
        ];
        for law in laws {
            let mut rng = Rng::new(1);
            let mut sum_ns = 0;
            (0..100_000).for_each(|_| sum_ns += law.sample_ns(&mut rng));
            assert!((law.mean_us() - 7.0).abs() < 1e-9 && law.is_valid());
            assert!(sum_ns.abs_diff(700_000_000) < 7_000_000, "{law:?}: {sum_ns}");
        }
    }

    #[test]
    fn a_span_is_never_negative() {
        let law = Distribution::Normal { mean_us: -5.0, deviation_us: 1.0 };
        assert_eq!(law.sample_ns(&mut Rng::new(1)), 0);
        assert!(!law.is_valid());
    }
}
