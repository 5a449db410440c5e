//! A small histogram of fixed size for delays in nanoseconds.

/// Linear steps in each power of two: a bucket is at most 1/16 of its values wide, its middle at most 1/32 off.
const STEPS_LOG2: u32 = 4;
const STEPS: usize = 1 << STEPS_LOG2;
/// Values of 2^42 ns (73 minutes) and more share the last bucket; a broker defers for an hour at most.
const VALUE_BITS: u32 = 42;
/// Number of buckets.
pub(super) const BUCKETS: usize = (VALUE_BITS - STEPS_LOG2 + 1) as usize * STEPS;

/// Counts of `u64` values, in nanoseconds by convention, in log-linear buckets.
///
/// A quantile is within 1/32 (3.1 %) of a recorded value; below 32 and at both ends it is exact. From 2^42 ns on
/// values are told apart only by `max` and `mean`, which are always exact. 5 KiB; recording allocates nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    summary: Summary,
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), summary: Summary::default() }
    }

    /// Counts `value` once. O(1).
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts `value` `n` times. O(1).
    #[inline]
    pub fn record_n(&mut self, value: u64, n: u64) {
        self.counts[bucket_of(value)] += n;
        self.summary.add(value, n);
    }

    /// The smallest value that at least the share `q` of all values does not exceed, within 1/32; 0 when empty.
    ///
    /// `q` is cut to 0..=1; `quantile(0.0)` is the least value, `quantile(1.0)` the greatest.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = rank_of(q, self.count());
        if rank == self.count() {
            return self.max();
        }
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate().skip(bucket_of(self.summary.min)) {
            seen += count;
            if count > 0 && seen >= rank {
                return middle_of(bucket).clamp(self.summary.min, self.summary.max);
            }
        }
        self.max()
    }

    /// The share of values in buckets that lie wholly at or below `value`, from 0 to 1; 1 when empty.
    #[must_use]
    pub fn share_up_to(&self, value: u64) -> f64 {
        if value >= self.max() {
            return 1.0;
        }
        let last = bucket_of(value.saturating_add(1));
        ratio(u128::from(self.counts[..last].iter().sum::<u64>()), self.count())
    }

    /// The exact mean; 0 when empty.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { ratio(self.summary.sum, self.count()) }
    }

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.summary.count
    }

    /// The greatest value, exactly; 0 when empty.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.summary.max
    }

    /// True if nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Adds everything that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.summary.merge(&other.summary);
    }

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.summary = Summary::default();
    }

    pub(super) fn merge_slot(&mut self, counts: &[u32], summary: &Summary) {
        if summary.count == 0 {
            return;
        }
        // Most slots hold a few values close together, and are not in the cache: the rest of them is not touched.
        let used = bucket_of(summary.min)..=bucket_of(summary.max);
        for (mine, &theirs) in self.counts[used.clone()].iter_mut().zip(&counts[used]) {
            *mine += u64::from(theirs);
        }
        self.summary.merge(summary);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<u64> for Histogram {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let mut histogram = Self::new();
        for value in values {
            histogram.record(value);
        }
        histogram
    }
}

/// What is known exactly about a set of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Summary {
    fn default() -> Self {
        Self { count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Summary {
    #[inline]
    pub(super) fn add(&mut self, value: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.count += n;
        self.sum += u128::from(value) * u128::from(n);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// The bucket of `value`: the value itself below 32, then 16 for each power of two.
#[inline]
pub(super) fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS) - 1);
    let shift = (value | STEPS as u64).ilog2() - STEPS_LOG2;
    let step = (value >> shift) as usize;
    shift as usize * STEPS + step
}

/// The middle of the values that [`bucket_of`] maps to `bucket`.
fn middle_of(bucket: usize) -> u64 {
    if bucket < 2 * STEPS {
        return bucket as u64;
    }
    let shift = bucket / STEPS - 1;
    let low = ((STEPS + bucket % STEPS) as u64) << shift;
    low + ((1 << shift) - 1) / 2
}

/// The rank, from 1, of the `q`-quantile among `count` values.
fn rank_of(q: f64, count: u64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank beyond 2^53 may be off by one in 10^15; the cast saturates and NaN gives 0"
    )]
    let rank = (q * count as f64).ceil() as u64;
    rank.max(1).min(count)
}

fn ratio(part: u128, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a mean or a share needs no more than 53 bits")]
    let (part, whole) = (part as f64, whole as f64);
    part / whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_tile_the_range() {
        let mut expected = 0;
        for value in 0..100_000 {
            let bucket = bucket_of(value);
            assert!(bucket == expected || bucket == expected + 1, "{value} falls into {bucket} after {expected}");
            expected = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << VALUE_BITS) - 1), BUCKETS - 1);
        assert!((0..BUCKETS).all(|bucket| bucket_of(middle_of(bucket)) == bucket));
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = Histogram::new();
        assert_eq!((empty.quantile(0.99), empty.max(), empty.count()), (0, 0, 0));
        assert!(empty.mean().abs() < f64::EPSILON && empty.is_empty());
    }

    #[test]
    fn mean_and_max_stay_exact_beyond_the_last_bucket() {
        let mut histogram = Histogram::new();
        histogram.record(u64::MAX);
        histogram.record_n(0, 3);
        assert_eq!(histogram.max(), u64::MAX);
        assert_eq!(histogram.quantile(1.0), u64::MAX);
        assert!((histogram.mean() - 2f64.powi(62)).abs() < 1.0);
    }

    #[test]
    fn share_counts_what_lies_below() {
        let mut histogram = Histogram::new();
        histogram.record_n(0, 98);
        histogram.record_n(1_000_000, 2);
        assert!((histogram.share_up_to(0) - 0.98).abs() < 1e-12);
        assert!((histogram.share_up_to(1_000_000) - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_thirty_second(
            mut values in proptest::collection::vec((0u64..42).prop_flat_map(|bits| 0..(1u64 << bits).max(2)), 1..300),
            q in 0.0..=1.0f64,
        ) {
            let histogram: Histogram = values.iter().copied().collect();
            values.sort_unstable();
            let exact = values[usize::try_from(rank_of(q, values.len() as u64)).unwrap() - 1];
            let answer = histogram.quantile(q);
            prop_assert!(answer.abs_diff(exact) * 32 <= exact, "{answer} for {exact}");
        }

        #[test]
        fn merging_equals_recording_everything_in_one(
            left in proptest::collection::vec(any::<u64>(), 0..50),
            right in proptest::collection::vec(any::<u64>(), 0..50),
        ) {
            let of = |values: &[u64]| values.iter().copied().collect::<Histogram>();
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(&merged, &of(&[left, right].concat()));
            merged.clear();
            prop_assert_eq!(merged, Histogram::new());
        }
    }
}
