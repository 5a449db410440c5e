//! Quantiles of the programs' histogram of round trips, whose buckets are quarter octaves of microseconds.

use super::layout::RTT_BUCKETS;
use crate::io::programs::Quantiles;

/// The first microsecond of bucket `index`.
fn begins_us(index: usize) -> f64 {
    // Below four microseconds a bucket is one of them.
    if index < 8 {
        return [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0][index];
    }
    let octave = i32::try_from(index / 4).unwrap_or(i32::MAX);
    let quarter = [1.0, 1.25, 1.5, 1.75][index % 4];
    quarter * 2.0_f64.powi(octave)
}

/// Median and 99th percentile of a histogram; `None` if it is empty. The middle of a bucket stands for it: 11 % off at most.
pub(super) fn quantiles(buckets: &[u64; RTT_BUCKETS]) -> Option<Quantiles> {
    let all: u64 = buckets.iter().sum();
    let at = |share: f64| {
        #[expect(clippy::cast_precision_loss, reason = "it is shown")]
        let wanted = all as f64 * share;
        let mut seen = 0;
        let index = buckets.iter().position(|&count| {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "it is shown")]
            let is_reached = seen as f64 >= wanted;
            is_reached && count > 0
        });
        index.map(|index| f64::midpoint(begins_us(index), begins_us(index + 1)))
    };
    (all > 0).then(|| Some(Quantiles { p50_us: at(0.5)?, p99_us: at(0.99)? })).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_quarter_octaves() {
        let begin = [8, 9, 12, 27].map(|index| begins_us(index).to_string());
        assert_eq!(begin, ["4", "5", "8", "112"]);
        let mut buckets = [0; RTT_BUCKETS];
        buckets[26] = 98;
        buckets[40] = 2;
        assert_eq!(quantiles(&buckets).unwrap(), Quantiles { p50_us: 104.0, p99_us: 1_152.0 });
        assert_eq!(quantiles(&[0; RTT_BUCKETS]), None);
    }
}
