//! Exact access delays of a limit that is split.

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::theory::md1::{AccessDelay, Bucket, TheoryError, Traffic};

/// What messages wait for their tokens, without what nodes do with them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// The mean over all messages.
    pub mean_us: f64,
    /// The middle.
    pub us_p50: f64,
    /// One in a hundred waits longer.
    pub us_p99: f64,
    /// The share of messages that wait at all.
    pub share_delayed: f64,
}

/// The access delay of `limit` over `parts` equal parts, each batch of a Poisson process going to one of them at random: no
/// publishers send together but those of a batch. Exact for bursts that do not divide, too.
///
/// Source: Eq. 1 of the paper, with the exact distribution of the work in its place; see [`tidegate_core::theory::md1`].
///
/// # Errors
/// If the load is not between 0 and 1, a part has less than one token of burst, or there are no parts.
pub fn predict(limit: Limit, parts: u32, traffic: Traffic) -> Result<Prediction, TheoryError> {
    let bucket = Bucket { rate_per_s: limit.rate.as_per_s(), burst: burst(limit) };
    Ok(of(&AccessDelay::split_evenly(traffic, bucket, parts)?))
}

/// The same of parts as they are, each of which gets messages in proportion to its rate.
///
/// # Errors
/// As [`predict`].
pub fn predict_parts(parts: &[Limit], traffic: Traffic) -> Result<Prediction, TheoryError> {
    let bucket = |part: &Limit| Bucket { rate_per_s: part.rate.as_per_s(), burst: burst(*part) };
    Ok(of(&AccessDelay::split(traffic, parts.iter().map(bucket).collect())?))
}

fn burst(limit: Limit) -> f64 {
    tidegate_core::number::float(limit.burst)
}

fn of(delay: &AccessDelay) -> Prediction {
    Prediction {
        mean_us: delay.mean_s() * 1e6,
        us_p50: delay.quantile_s(0.5) * 1e6,
        us_p99: delay.quantile_s(0.99) * 1e6,
        share_delayed: delay.share_delayed(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

    use super::*;

    const PAPER: Limit = Limit::new(Rate::per_s(11_000), 26);
    const TRAFFIC: Traffic = Traffic { rate_per_s: 10_000.0, batch: 1 };

    /// The reference values of `tidegate_core::theory::md1`, from 420 digits.
    #[test]
    fn the_papers_limit_split_in_six() {
        let six = predict(PAPER, 6, TRAFFIC).unwrap();
        assert!((six.us_p99 - 11_383.649_133_8).abs() < 1e-3, "{six:?}");
        assert!((six.mean_us - 1_460.363_507_7).abs() < 1e-3);
        assert!((six.share_delayed - 0.502_504_8).abs() < 1e-6 && six.us_p50 < 100.0, "{six:?}");
        let whole = predict(PAPER, 1, TRAFFIC).unwrap();
        assert!(whole.us_p99.abs() < 1e-9 && whole.us_p50.abs() < 1e-9);
    }

    #[test]
    fn parts_that_are_equal_are_an_even_split() {
        let half = Limit::new(Rate::per_s(5_500), 13);
        assert_eq!(predict_parts(&[half; 2], TRAFFIC), predict(PAPER, 2, TRAFFIC));
        let uneven = [Limit::new(Rate::per_s(8_250), 20), Limit::new(Rate::per_s(2_750), 6)];
        assert!(predict_parts(&uneven, TRAFFIC).unwrap().mean_us > 0.0);
    }

    #[test]
    fn what_has_no_steady_state_is_named() {
        let traffic = Traffic { rate_per_s: 12_000.0, ..TRAFFIC };
        assert!(matches!(predict(PAPER, 1, traffic), Err(TheoryError::Load { .. })));
        assert!(matches!(predict(PAPER, 27, TRAFFIC), Err(TheoryError::Burst { .. })));
        assert!(matches!(predict(PAPER, 0, TRAFFIC), Err(TheoryError::Nothing)));
    }
}
