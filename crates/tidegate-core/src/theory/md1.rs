//! The delay that a token bucket adds to Poisson arrivals, exactly.
//!
//! A bucket of rate r and burst b is an M/D/1 queue seen from above: its work U in tokens jumps by one with each message
//! and drains at r, and a message waits max(0, U + 1 - b) / r. [`Workload`] is the distribution of U,
//! [`AccessDelay`] what follows from it for a bucket, its batches and its parts.

use core::fmt;

/// Levels of the queue that are tabulated, twice what is summed directly.
const LEVELS: usize = 128;
/// From here on the tail falls by the same factor from token to token: the other roots of the characteristic equation
/// have died out to below the last bit.
const ASYMPTOTIC: f64 = 64.0;

/// The unfinished work of an M/D/1 queue with service time 1, as an arrival finds it.
///
/// For loads from 0.01 to 0.999 the results hold to about 12 digits, relative also far out in the tail.
/// Source: Franx, "A simple solution for the M/D/c waiting time distribution" (2001), with one server. The textbook
/// formula alternates and loses every digit at a few dozen tokens; this one has positive terms only. Departure: sums
/// are taken over the complement, so that small probabilities keep their digits.
#[derive(Clone, Debug)]
pub struct Workload {
    load: f64,
    /// The probability of more than `n` customers in the system.
    above: Box<[f64]>,
    /// The tail falls by e^-decay from token to token.
    decay: f64,
}

impl Workload {
    /// The queue with `load` arrivals in a service time; `None` unless 0 < `load` < 1.
    #[must_use]
    pub fn new(load: f64) -> Option<Self> {
        if !(load > 0.0 && load < 1.0) {
            return None;
        }
        let decay = decay_of(load);
        Some(Self { load, above: levels_above(load, decay), decay })
    }

    /// Arrivals in a service time.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.load
    }

    /// P(U <= x).
    #[must_use]
    pub fn cdf(&self, x: f64) -> f64 {
        1.0 - self.tail(x)
    }

    /// P(U > x).
    #[must_use]
    pub fn tail(&self, x: f64) -> f64 {
        if x < 0.0 {
            return 1.0;
        }
        if x >= ASYMPTOTIC {
            let beyond = (x - ASYMPTOTIC).floor() + 1.0;
            return self.tail(x - beyond) * (-self.decay * beyond).exp();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 64")]
        let service = x.floor() as usize + 1;
        // Arrivals in what is left of this service time: `j` of them join those who were there.
        let mean = self.load * (x.floor() + 1.0 - x);
        let mut arrivals = (-mean).exp();
        let mut tail = 0.0;
        for j in 0..LEVELS {
            tail += arrivals * if j < service { self.above[service - j] } else { 1.0 };
            arrivals *= mean / count(j + 1);
        }
        tail
    }

    /// The mean of U.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.load / (2.0 * (1.0 - self.load))
    }

    /// The mean of max(0, U - x); `x` may be negative.
    #[must_use]
    pub fn mean_above(&self, x: f64) -> f64 {
        if x < 0.0 {
            return self.mean() - x;
        }
        // The integral of the tail over a token's width is the tail at its end over the load.
        let mut sum = 0.0;
        let mut end = x;
        while end < ASYMPTOTIC {
            end += 1.0;
            sum += self.tail(end);
        }
        (sum + self.tail(end) / self.decay.exp_m1()) / self.load
    }

    /// The least x of at least 0 with P(U <= x) >= `q`; infinite for `q` of 1 or more.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        least(|x| q < 1.0 && self.tail(x) <= 1.0 - q)
    }
}

/// The positive root of load * (e^s - 1) = s.
fn decay_of(load: f64) -> f64 {
    // As (e^s - 1 - s) / s = (1 - load) / load, whose left side is summed without cancellation.
    let left = |s: f64| {
        let (mut term, mut sum) = (s / 2.0, 0.0);
        for k in 3..300 {
            sum += term;
            term *= s / count(k);
        }
        sum
    };
    least(|s| left(s) >= (1.0 - load) / load)
}

/// P(more than n in the system) for n up to `LEVELS`, by the balance of crossings of each level.
fn levels_above(load: f64, decay: f64) -> Box<[f64]> {
    // Poisson arrivals in a service time: exactly j, and more than j.
    let mut exactly = vec![(-load).exp()];
    for j in 1..2 * LEVELS {
        exactly.push(exactly[j - 1] * load / count(j));
    }
    let mut more = vec![0.0; 2 * LEVELS];
    for j in (0..2 * LEVELS - 1).rev() {
        more[j] = more[j + 1] + exactly[j + 1];
    }
    // Down from n to n - 1 as often as up across: from 0 with n or more arrivals, from i with more than n - i.
    let mut at = vec![1.0 - load];
    for n in 1..=LEVELS {
        let up: f64 = at[0] * more[n - 1] + (1..n).map(|i| at[i] * more[n - i]).sum::<f64>();
        at.push(up / exactly[0]);
    }
    let mut above = vec![0.0; LEVELS + 1];
    above[LEVELS] = at[LEVELS] / decay.exp_m1();
    for n in (0..LEVELS).rev() {
        above[n] = above[n + 1] + at[n + 1];
    }
    above.into_boxed_slice()
}

/// The least non-negative number that `holds`, which from there on it does; infinite if it never does.
fn least(holds: impl Fn(f64) -> bool) -> f64 {
    if holds(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while !holds(high) {
        (low, high) = (high, high * 2.0);
        if high.is_infinite() {
            return high;
        }
    }
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return high;
        }
        if holds(middle) { high = middle } else { low = middle }
    }
}

fn count(n: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred at most")]
    let n = n as f64;
    n
}

/// Messages that arrive as a Poisson process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Traffic {
    /// Messages per second.
    pub rate_per_s: f64,
    /// Messages that arrive together, at least 1; then it is the batches that are a Poisson process.
    pub batch: u32,
}

/// A token bucket as the theory sees it: a burst need not be whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    /// Tokens per second.
    pub rate_per_s: f64,
    /// Depth in tokens, at least 1.
    pub burst: f64,
}

/// Why there is no result.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum TheoryError {
    /// The arrivals in a token's time are not between 0 and 1: there is no steady state to describe.
    Load {
        /// Messages for each token.
        load: f64,
    },
    /// A bucket of less than one token lets nothing pass.
    Burst {
        /// Its depth.
        burst: f64,
    },
    /// There is no bucket, or a batch of no messages.
    Nothing,
    /// No burst delays nobody.
    Share {
        /// The share of messages that was asked for, which is not below 1.
        undelayed: f64,
    },
}

impl fmt::Display for TheoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { load } => write!(f, "the load of {load:.4} messages a token is not above 0 and below 1"),
            Self::Burst { burst } => write!(f, "a burst of {burst} tokens is below 1 and lets nothing pass"),
            Self::Share { undelayed } => write!(f, "a share of {undelayed} undelayed messages is not below 1"),
            Self::Nothing => f.write_str("there must be at least one bucket and one message in a batch"),
        }
    }
}

impl core::error::Error for TheoryError {}

/// The access delay of messages in one token bucket, or in several that share them in proportion to their rates.
#[derive(Clone, Debug)]
pub struct AccessDelay {
    workload: Workload,
    batch: u32,
    buckets: Vec<Bucket>,
}

impl AccessDelay {
    /// `traffic` through one bucket.
    ///
    /// # Errors
    /// If the load is not between 0 and 1, the burst below 1 or the batch empty.
    pub fn new(traffic: Traffic, bucket: Bucket) -> Result<Self, TheoryError> {
        Self::split(traffic, vec![bucket])
    }

    /// `traffic` through `buckets`, each batch through one of them, picked at random in proportion to the rates.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if there is no bucket.
    pub fn split(traffic: Traffic, buckets: Vec<Bucket>) -> Result<Self, TheoryError> {
        if buckets.is_empty() || traffic.batch == 0 {
            return Err(TheoryError::Nothing);
        }
        if let Some(&Bucket { burst, .. }) = buckets.iter().find(|bucket| bucket.burst < 1.0 || bucket.burst.is_nan()) {
            return Err(TheoryError::Burst { burst });
        }
        let load = traffic.rate_per_s / buckets.iter().map(|bucket| bucket.rate_per_s).sum::<f64>();
        let workload = Workload::new(load).ok_or(TheoryError::Load { load })?;
        Ok(Self { workload, batch: traffic.batch, buckets })
    }

    /// `traffic` through `bucket` divided into `parts` equal ones, whose bursts need not be whole.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if there are no parts.
    pub fn split_evenly(traffic: Traffic, bucket: Bucket, parts: u32) -> Result<Self, TheoryError> {
        let k = f64::from(parts);
        let part = Bucket { rate_per_s: bucket.rate_per_s / k, burst: bucket.burst / k };
        Self::split(traffic, vec![part; parts as usize])
    }

    /// Messages for each token.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.workload.load()
    }

    /// The share of messages that wait at all.
    #[must_use]
    pub fn share_delayed(&self) -> f64 {
        self.share_longer(0.0)
    }

    /// The share of messages that wait longer than `delay_s` seconds.
    #[must_use]
    pub fn share_longer(&self, delay_s: f64) -> f64 {
        self.average(|bucket, x| self.workload.tail(x + delay_s * bucket.rate_per_s / f64::from(self.batch)))
    }

    /// The mean wait in seconds, over all messages.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        self.average(|bucket, x| self.workload.mean_above(x) * f64::from(self.batch) / bucket.rate_per_s)
    }

    /// The least wait in seconds that the share `q` of messages does not exceed; infinite for `q` of 1 or more.
    #[must_use]
    pub fn quantile_s(&self, q: f64) -> f64 {
        least(|delay_s| q < 1.0 && self.share_longer(delay_s) <= 1.0 - q)
    }

    /// The mean wait in seconds by the paper's Eq. 1; `None` for batches, of which it does not speak.
    ///
    /// Exact for a burst of 1 only, else too long: it takes those who wait to find the work of an M/D/1 queue that they
    /// join, but above `b - 1` that work is spread otherwise. [`mean_s`](Self::mean_s) is exact.
    /// Source: SRTM, §2.1.
    #[must_use]
    pub fn eq1_mean_s(&self) -> Option<f64> {
        let wait = |bucket: &Bucket| 1.0 / (2.0 * bucket.rate_per_s * (1.0 - self.load()));
        (self.batch == 1).then(|| self.average(|bucket, x| self.workload.tail(x) * wait(bucket)))
    }

    /// Averages over buckets and places in a batch; `of` gets the work, in batches, beyond which the message waits.
    fn average(&self, of: impl Fn(&Bucket, f64) -> f64) -> f64 {
        let batch = f64::from(self.batch);
        let mut sum = 0.0;
        let mut rates = 0.0;
        for bucket in &self.buckets {
            let places = (1..=self.batch).map(|place| of(bucket, (bucket.burst - f64::from(place)) / batch));
            sum += bucket.rate_per_s * places.sum::<f64>() / batch;
            rates += bucket.rate_per_s;
        }
        sum / rates
    }
}

/// The smallest whole burst at which the share `undelayed` of messages does not wait, at `rate_per_s` tokens a second.
///
/// # Errors
/// If the load is not between 0 and 1, the batch is empty, or `undelayed` is not below 1.
pub fn smallest_burst(traffic: Traffic, rate_per_s: f64, undelayed: f64) -> Result<u64, TheoryError> {
    let delay = AccessDelay::new(traffic, Bucket { rate_per_s, burst: 1.0 })?;
    let enough = |burst: f64| {
        let bucket = Bucket { rate_per_s, burst: burst.max(1.0) };
        AccessDelay { buckets: vec![bucket], ..delay.clone() }.share_delayed() <= 1.0 - undelayed && undelayed < 1.0
    };
    // Only whole bursts are asked for, so the search ends at a whole number.
    let burst = least(|burst| enough(burst.ceil())).ceil().max(1.0);
    if burst.is_infinite() {
        return Err(TheoryError::Share { undelayed });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, positive; the cast saturates")]
    let burst = burst as u64;
    Ok(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load of the paper's profile: r is 1.1 times the mean rate.
    const PROFILED: f64 = 1.0 / 1.1;

    fn bucket(rate_per_s: f64, burst: f64) -> Bucket {
        Bucket { rate_per_s, burst }
    }

    fn traffic(rate_per_s: f64, batch: u32) -> Traffic {
        Traffic { rate_per_s, batch }
    }

    #[track_caller]
    fn assert_near(value: f64, reference: f64, digits: i32) {
        let error = (value / reference - 1.0).abs();
        assert!(error < 10f64.powi(-digits), "{value} for {reference}: off by {error:e}");
    }

    /// Load, burst, P(U > b - 1), E[max(0, U - b + 1)] and how far Eq. 1 is too high; from the alternating formula of
    /// the textbook in 400 digits.
    const REFERENCE: [(f64, f64, f64, f64, f64); 9] = [
        (PROFILED, 26.0, 0.008_611_224_485_221_492, 0.045_881_083_475_355, 0.032_271_5),
        (PROFILED, 6.5, 0.334_600_790_945_134_2, 1.782_771_729_989_179_4, 0.032_271_4),
        (0.5, 4.0, 0.015_251_299_641_732_197, 0.012_139_864_525_644_914, 0.256_299),
        (0.8, 8.0, 0.042_454_913_812_967_78, 0.098_539_366_843_327_31, 0.077_105_4),
        (0.01, 1.0, 0.01, 0.005_050_505_050_505_05, 0.0),
        (0.01, 3.0, 1.700_276_450_117_111_2e-7, 4.361_864_157_606_693e-8, 0.968_712),
        (0.99, 100.0, 0.136_240_531_230_511_27, 6.789_243_761_718_116, 0.003_355_72),
        (0.999, 300.0, 0.549_434_146_262_205_4, 274.625_470_235_019_7, 0.000_333_556),
        (0.3, 2.5, 0.024_174_065_643_351_56, 0.011_318_728_507_203_038, 0.525_541),
    ];

    #[test]
    fn agrees_with_400_digits() {
        for (load, burst, tail, mean_above, excess) in REFERENCE {
            let workload = Workload::new(load).unwrap();
            assert_near(workload.tail(burst - 1.0), tail, 11);
            assert_near(workload.mean_above(burst - 1.0), mean_above, 11);
            let delay = AccessDelay::new(traffic(load, 1), bucket(1.0, burst)).unwrap();
            assert_near(delay.eq1_mean_s().unwrap() / delay.mean_s(), 1.0 + excess, 5);
        }
    }

    #[test]
    fn small_probabilities_keep_their_digits() {
        for (load, x, tail) in [
            (0.5, 100.25, 1.311_206_824_183_58e-55),
            (0.8, 300.0, 6.367_903_721_635_29e-57),
            (0.999, 1_500.0, 0.049_704_114_818_730_1),
        ] {
            assert_near(Workload::new(load).unwrap().tail(x), tail, 11);
        }
        assert_near(Workload::new(0.8).unwrap().mean_above(70.5), 1.294_114_582_959_68e-13, 11);
    }

    #[test]
    fn eq_1_is_too_high_by_what_the_specification_says() {
        for (load, burst, percent) in [(PROFILED, 26.0, 3.3), (0.8, 8.0, 8.0), (0.5, 4.0, 26.0)] {
            let delay = AccessDelay::new(traffic(load, 1), bucket(1.0, burst)).unwrap();
            let excess = 100.0 * (delay.eq1_mean_s().unwrap() / delay.mean_s() - 1.0);
            assert!((excess - percent).abs() < 0.5, "{excess} %");
        }
        let exact = AccessDelay::new(traffic(0.7, 1), bucket(1.0, 1.0)).unwrap();
        assert_near(exact.eq1_mean_s().unwrap(), exact.mean_s(), 12);
    }

    #[test]
    fn the_profiled_burst_is_26_at_any_rate() {
        for rate in [1.0, 10_000.0, 3e6] {
            assert_eq!(smallest_burst(traffic(rate, 1), 1.1 * rate, 0.99), Ok(26));
        }
        for (load, burst) in [(0.5, 5), (0.8, 12), (0.99, 231), (0.001, 1)] {
            assert_eq!(smallest_burst(traffic(load, 1), 1.0, 0.99), Ok(burst), "{load}");
        }
        assert_eq!(smallest_burst(traffic(10_000.0, 10), 11_000.0, 0.99), Ok(248));
    }

    #[test]
    fn splitting_delays_more_messages_for_longer() {
        // Share delayed, mean and p99 of the paper's contract for k = 2 and 6, from 420 digits.
        let paper = (traffic(10_000.0, 1), bucket(11_000.0, 26.0));
        for (parts, share, mean_s, p99_s) in [
            (2, 0.098_788_477_120_269_6, 9.570_009_200_182_82e-5, 0.002_218_792_135_506_38),
            (6, 0.502_504_812_473_013, 0.001_460_363_507_737_18, 0.011_383_649_133_791_9),
        ] {
            let delay = AccessDelay::split_evenly(paper.0, paper.1, parts).unwrap();
            assert_near(delay.share_delayed(), share, 11);
            assert_near(delay.mean_s(), mean_s, 11);
            assert_near(delay.quantile_s(0.99), p99_s, 11);
        }
        let whole = AccessDelay::new(paper.0, paper.1).unwrap();
        assert!(whole.quantile_s(0.99).abs() < 1e-300 && whole.quantile_s(1.0).is_infinite());
        assert_near(whole.quantile_s(0.999), 0.001_042_878_028_547_23, 11);
    }

    #[test]
    fn the_messages_of_a_batch_wait_for_each_other() {
        for (burst, share, mean_s) in [
            (40.0, 0.492_332_843_254_51, 0.002_384_686_531_715_22),
            (4.0, 0.958_108_113_643_964, 0.004_687_346_431_810_58),
        ] {
            let delay = AccessDelay::new(traffic(10_000.0, 10), bucket(11_000.0, burst)).unwrap();
            assert_near(delay.share_delayed(), share, 11);
            assert_near(delay.mean_s(), mean_s, 11);
            assert_eq!(delay.eq1_mean_s(), None);
        }
    }

    #[test]
    fn the_distribution_is_one() {
        for load in [0.01, 0.3, PROFILED, 0.999] {
            let workload = Workload::new(load).unwrap();
            assert_near(workload.cdf(0.0), 1.0 - load, 11);
            assert_near(workload.mean_above(0.0), workload.mean(), 11);
            let steps = (0..2_000).map(|i| workload.tail(f64::from(i) * 0.13));
            assert!(steps.clone().zip(steps.skip(1)).all(|(before, after)| after <= before * (1.0 + 1e-13)));
            // The sum and the asymptote meet without a step.
            assert_near(workload.tail(64.0 - 1e-9), workload.tail(64.0), 7);
            for q in [0.1, 0.9, 0.999_999] {
                let x = workload.quantile(q);
                assert!(x <= 0.0 || (workload.cdf(x) - q).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn what_has_no_answer_is_refused() {
        for load in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Workload::new(load).is_none());
        }
        let refusal = AccessDelay::new(traffic(10.0, 1), bucket(10.0, 3.0)).unwrap_err();
        assert_eq!(refusal, TheoryError::Load { load: 1.0 });
        assert_eq!(AccessDelay::new(traffic(1.0, 0), bucket(2.0, 3.0)).unwrap_err(), TheoryError::Nothing);
        let refusal = AccessDelay::split_evenly(traffic(1.0, 1), bucket(2.0, 3.0), 4).unwrap_err();
        assert_eq!(refusal, TheoryError::Burst { burst: 0.75 });
        assert_eq!(smallest_burst(traffic(1.0, 1), 2.0, 1.0), Err(TheoryError::Share { undelayed: 1.0 }));
    }
}
