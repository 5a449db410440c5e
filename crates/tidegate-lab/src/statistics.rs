//! How sure a simulated number is.

/// A mean and how far the truth may lie from it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// The truth is within `mean` ± this, with the stated confidence.
    pub half_width: f64,
}

impl Interval {
    /// True if `value` is in it.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (value - self.mean).abs() <= self.half_width
    }
}

/// The confidence interval of the mean of independent `values`, by Student's t; `None` for fewer than two.
///
/// For a simulation the values are the means of consecutive stretches of it, each much longer than the process
/// remembers: the method of batch means.
#[must_use]
pub fn interval_of(values: &[f64], confidence: f64) -> Option<Interval> {
    let Spread { mean, deviation } = spread_of(values)?;
    let n = count(values.len());
    Some(Interval { mean, half_width: student_t(confidence, n - 1.0) * deviation / n.sqrt() })
}

/// Mean and standard deviation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of one value, not of the mean.
    pub deviation: f64,
}

/// Mean and standard deviation of `values`; `None` for fewer than two.
#[must_use]
pub fn spread_of(values: &[f64]) -> Option<Spread> {
    if values.len() < 2 {
        return None;
    }
    let n = count(values.len());
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some(Spread { mean, deviation: variance.sqrt() })
}

/// The t with P(|T| <= t) = `confidence` for `freedom` degrees of freedom; within 1 % from 9 degrees on.
///
/// Source: Abramowitz and Stegun, 26.7.5: Student's quantile as a series around the normal one.
fn student_t(confidence: f64, freedom: f64) -> f64 {
    let z = normal_quantile(f64::midpoint(1.0, confidence));
    let g1 = (z.powi(3) + z) / 4.0;
    let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + g1 / freedom + g2 / freedom.powi(2) + g3 / freedom.powi(3)
}

/// The z with P(Z <= z) = `p` for 0.5 <= p < 1, within 0.00045. Source: Abramowitz and Stegun, 26.2.23.
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

/// A number of things, as a float.
pub(crate) fn count(n: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts here are below 2^53")]
    let n = n as f64;
    n
}

/// A 64-bit number of things, as a float.
pub(crate) fn float(n: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for people and for estimates: 53 bits are enough")]
    let n = n as f64;
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Rng;

    #[test]
    fn t_is_that_of_the_tables() {
        for (confidence, freedom, expected) in
            [(0.95, 9.0, 2.262), (0.95, 49.0, 2.010), (0.99, 49.0, 2.680), (0.999, 49.0, 3.500), (0.999, 19.0, 3.883)]
        {
            let t = student_t(confidence, freedom);
            assert!((t - expected).abs() < 0.01 * expected, "{t} for {expected}");
        }
    }

    #[test]
    fn an_interval_holds_the_truth_as_often_as_it_says() {
        let mut rng = Rng::new(1);
        let held = (0..10_000).filter(|_| {
            let values: Vec<f64> = (0..20).map(|_| rng.normal()).collect();
            interval_of(&values, 0.9).unwrap().holds(0.0)
        });
        let held = held.count();
        assert!((8_900..9_100).contains(&held), "{held}");
        assert_eq!(interval_of(&[1.0], 0.9), None);
    }
}
