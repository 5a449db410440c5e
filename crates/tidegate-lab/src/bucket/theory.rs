//! Exact answers.

use tidegate_core::limit::Limit;
use tidegate_core::theory::md1::{AccessDelay, Bucket, Traffic};
use tidegate_core::{Instant, Rng};

use super::assign::Assigner;
use super::simulate::ASSIGNMENT;
use super::{Arrivals, Assignment, BucketAnswer, BucketError, BucketQuestion, MessageDelay, Method, Part, Split};
use crate::statistics::{count, float};

/// The exact answer: the steady state of M/D/1 for Poisson arrivals, Eq. 2 message by message for a list.
///
/// # Errors
/// If the question makes no sense, or there are no exact results for it.
pub fn theory(question: &BucketQuestion) -> Result<BucketAnswer, BucketError> {
    let limits = question.parts()?;
    match &question.arrivals {
        Arrivals::List(list) => Ok(of_list(question, list.clone(), &limits)),
        _ => Ok(of_poisson(question, &exact_delay(question)?, &limits)),
    }
}

/// The distribution behind the answer for Poisson arrivals.
///
/// # Errors
/// As [`theory`], and for lists.
pub(crate) fn exact_delay(question: &BucketQuestion) -> Result<AccessDelay, BucketError> {
    let limits = question.parts()?;
    let Arrivals::Poisson { rate } = question.arrivals else { return Err(BucketError::NotPoisson) };
    let bucket = |limit: &Limit| Bucket { rate_per_s: limit.rate.as_per_s(), burst: float(limit.burst) };
    // A part without weight gets no messages.
    let buckets: Vec<Bucket> = limits.iter().filter(|limit| !limit.rate.is_zero()).map(bucket).collect();
    let batch = batch_at_a_part(question, buckets.len())?;
    Ok(AccessDelay::split(Traffic { rate_per_s: rate.as_per_s(), batch }, buckets)?)
}

/// How many messages of a batch come to each part that any of them comes to.
fn batch_at_a_part(question: &BucketQuestion, parts: usize) -> Result<u32, BucketError> {
    let BucketQuestion { assignment, batch, .. } = *question;
    let no_closed_form = Err(BucketError::NoClosedForm { assignment, batch });
    match (assignment, u32::try_from(parts)) {
        _ if parts == 1 => Ok(batch),
        (Assignment::Batch, _) => Ok(batch),
        // One by one, a random choice keeps each part's arrivals Poisson.
        (Assignment::Message, _) if batch == 1 => Ok(batch),
        (Assignment::Even, Ok(parts)) if batch % parts == 0 && matches!(question.split, Split::Even(_)) => {
            Ok(batch / parts)
        }
        _ => no_closed_form,
    }
}

fn of_poisson(question: &BucketQuestion, delay: &AccessDelay, limits: &[Limit]) -> BucketAnswer {
    let quantile_us = |q| delay.quantile_s(q) * 1e6;
    let share = |limit: &Limit| limit.rate.as_per_s() / question.rate.as_per_s();
    BucketAnswer {
        method: Method::Theory,
        load: question.load(),
        parts: limits.iter().map(|limit| part(limit, share(limit))).collect(),
        messages: None,
        share_delayed: delay.share_delayed(),
        share_delayed_interval: None,
        delay_us_mean: delay.mean_s() * 1e6,
        delay_us_mean_interval: None,
        delay_us_p50: quantile_us(0.5),
        delay_us_p90: quantile_us(0.9),
        delay_us_p95: quantile_us(0.95),
        delay_us_p99: quantile_us(0.99),
        delay_us_p999: quantile_us(0.999),
        delay_us_max: None,
        confidence: 1.0,
        delays: None,
    }
}

fn of_list(question: &BucketQuestion, mut list: Vec<Instant>, limits: &[Limit]) -> BucketAnswer {
    list.sort_unstable();
    let mut replays: Vec<Replay> = limits.iter().map(|limit| Replay::new(*limit)).collect();
    let mut counts = vec![0; limits.len()];
    let rng = Rng::stream(question.seed, ASSIGNMENT);
    let mut assigner = Assigner::new(question.assignment, question.weights(), rng);
    let mut delays = Vec::with_capacity(list.len() * question.batch as usize);
    for at in list {
        assigner.begin_batch();
        for _ in 0..question.batch {
            let part = assigner.next();
            counts[part] += 1;
            delays.push(MessageDelay { arrival_ns: at, part, delay_us: replays[part].delay_ns(at) / 1e3 });
        }
    }
    let mut sorted: Vec<f64> = delays.iter().map(|delay| delay.delay_us).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = count(sorted.len());
    let quantile_us = |q: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank from 1 to the length")]
        let rank = (q * n).ceil().max(1.0) as usize;
        sorted[rank - 1]
    };
    let undelayed = sorted.partition_point(|&delay| delay <= 0.0);
    BucketAnswer {
        method: Method::Theory,
        load: None,
        parts: limits.iter().zip(counts).map(|(limit, messages)| part(limit, float(messages) / n)).collect(),
        messages: Some(sorted.len() as u64),
        share_delayed: count(sorted.len() - undelayed) / n,
        share_delayed_interval: None,
        delay_us_mean: sorted.iter().sum::<f64>() / n,
        delay_us_mean_interval: None,
        delay_us_p50: quantile_us(0.5),
        delay_us_p90: quantile_us(0.9),
        delay_us_p95: quantile_us(0.95),
        delay_us_p99: quantile_us(0.99),
        delay_us_p999: quantile_us(0.999),
        delay_us_max: sorted.last().copied(),
        confidence: 1.0,
        delays: Some(delays),
    }
}

/// Eq. 2 in integers: the work found on arrival, in units of `1 / period_ns` token.
///
/// Written from the formula and not from the bucket, which it is held against.
#[derive(Clone, Debug)]
struct Replay {
    limit: Limit,
    work: u128,
    at: Instant,
}

impl Replay {
    fn new(limit: Limit) -> Self {
        Self { limit, work: 0, at: Instant::ZERO }
    }

    fn delay_ns(&mut self, arrival: Instant) -> f64 {
        let (tokens, token) = (u128::from(self.limit.rate.tokens()), u128::from(self.limit.rate.period_ns()));
        let drained = u128::from(arrival.nanos_since(self.at)) * tokens;
        self.work = self.work.saturating_sub(drained) + token;
        self.at = arrival;
        let missing = self.work.saturating_sub(u128::from(self.limit.burst) * token);
        #[expect(clippy::cast_precision_loss, reason = "for people: 53 bits are enough")]
        let delay_ns = missing as f64 / tokens as f64;
        delay_ns
    }
}

fn part(limit: &Limit, message_share: f64) -> Part {
    Part { rate: limit.rate, burst: limit.burst, message_share }
}

#[cfg(test)]
mod tests {
    use super::super::{BucketQuestion, simulate};
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::Rate;

    fn poisson(batch: u32, burst: u64) -> BucketQuestion {
        let arrivals = Arrivals::Poisson { rate: Rate::per_s(10_000) };
        BucketQuestion { batch, ..BucketQuestion::new(arrivals, Rate::per_s(11_000), burst) }
    }

    #[test]
    fn the_smallest_bucket_without_a_p99_is_the_papers() {
        assert!(theory(&poisson(1, 26)).unwrap().delay_us_p99 == 0.0);
        assert!(theory(&poisson(1, 25)).unwrap().delay_us_p99 > 0.0);
    }

    #[test]
    fn splitting_hurts_and_splitting_the_burst_helps() {
        let split = |assignment, parts| {
            let question = BucketQuestion { assignment, split: Split::Even(parts), ..poisson(10, 260) };
            theory(&question).unwrap().delay_us_p99
        };
        let whole = split(Assignment::Batch, 1);
        let (by_batch, dealt) = (split(Assignment::Batch, 5), split(Assignment::Even, 5));
        assert!(whole <= 0.0 && by_batch > 9_000.0 && dealt < 1.0, "{whole} {by_batch} {dealt}");
    }

    #[test]
    fn an_answer_reads_as_a_table() {
        let list = [0, 0, 0, 50_000, 400_000].map(Instant::from_nanos).to_vec();
        let question = BucketQuestion::new(Arrivals::List(list), Rate::per_s(10_000), 2);
        insta::assert_snapshot!(theory(&question).unwrap(), @r"
        part   rate  burst  share of messages
        1     10k/s      2                  1

                         value  uncertainty
        mean delay, us      50
        p50 delay, us        0
        p90 delay, us      150
        p95 delay, us      150
        p99 delay, us      150
        p99.9 delay, us    150
        max delay, us      150
        share delayed      0.4
        messages             5

        arrival ns  part  delay us
        0              1     0.000
        0              1     0.000
        0              1   100.000
        50000          1   150.000
        400000         1     0.000
        ");
        let split = BucketQuestion { split: Split::Even(2), ..poisson(1, 26) };
        insta::assert_snapshot!(theory(&split).unwrap(), @r"
        part    rate  burst  share of messages
        1     5500/s     13                0.5
        2     5500/s     13                0.5

                             value  uncertainty
        mean delay, us        95.7
        p50 delay, us            0
        p90 delay, us            0
        p95 delay, us        659.7
        p99 delay, us         2219
        p99.9 delay, us       4449
        max delay, us    unbounded
        share delayed      0.09879
        load                0.9091
        ");
    }

    #[test]
    fn what_no_clock_can_show_is_refused() {
        let refused = |question: &BucketQuestion| matches!(simulate(question), Err(BucketError::OutOfRange { .. }));
        let never = Rate::from_fraction(1, u64::MAX.into()).unwrap();
        let instants = |ns: u64| Arrivals::List(vec![Instant::ZERO, Instant::ZERO, Instant::from_nanos(ns)]);
        assert!(refused(&BucketQuestion { rate: never, ..poisson(1, 26) }));
        assert!(refused(&BucketQuestion::new(Arrivals::Poisson { rate: never }, Rate::per_s(1), 1)));
        assert!(refused(&BucketQuestion::new(instants(1), never, 1)));
        assert!(refused(&BucketQuestion::new(instants(u64::MAX), Rate::per_s(1), 1)));
        let lopsided = Split::Weights(vec![1, 1 << 32]);
        let slow = BucketQuestion::new(instants(1), Rate::from_per_s_f64(0.001), 2);
        assert!(refused(&BucketQuestion { split: lopsided, ..slow.clone() }) && !refused(&slow));
        assert!(refused(&BucketQuestion { batch: 0, ..poisson(1, 26) }));
        assert!(!refused(&BucketQuestion::new(instants(1), Rate::per_s(1), 1)));
        assert!(matches!(simulate(&poisson(1, 0)), Err(BucketError::Split(_))));
    }

    #[test]
    fn questions_and_answers_cross_a_border_unchanged() {
        let question = BucketQuestion { split: Split::Weights(vec![1, 2]), ..poisson(10, 26) };
        let json = serde_json::to_string(&question).unwrap();
        assert_eq!(serde_json::from_str::<BucketQuestion>(&json).unwrap(), question);
        let short = r#"{"arrivals":{"poisson":{"rate":"10k/s"}},"rate":"11k/s","burst":26}"#;
        assert_eq!(serde_json::from_str::<BucketQuestion>(short).unwrap(), poisson(1, 26));
        assert!(serde_json::from_str::<BucketQuestion>(&short.replace("burst", "bursts")).is_err());
    }

    #[test]
    fn what_has_no_exact_results_says_so() {
        let no_form = |question: &BucketQuestion| matches!(theory(question), Err(BucketError::NoClosedForm { .. }));
        let two = Split::Even(2);
        assert!(no_form(&BucketQuestion { assignment: Assignment::Message, split: two.clone(), ..poisson(10, 26) }));
        assert!(no_form(&BucketQuestion { assignment: Assignment::Even, split: two.clone(), ..poisson(1, 26) }));
        assert!(!no_form(&BucketQuestion { assignment: Assignment::Even, split: two, ..poisson(10, 26) }));
        assert!(matches!(
            theory(&BucketQuestion { rate: Rate::per_s(10_000), ..poisson(1, 26) }),
            Err(BucketError::Theory(_))
        ));
        let periodic = Arrivals::Periodic { rate: Rate::per_s(1), publishers: 1 };
        assert_eq!(theory(&BucketQuestion::new(periodic, Rate::per_s(2), 1)), Err(BucketError::NotPoisson));
    }

    proptest! {
        #[test]
        fn the_production_bucket_follows_eq_2(
            gaps in proptest::collection::vec(0u64..300_000, 1..200),
            burst in 4u64..12,
            weights in proptest::collection::vec(1u64..4, 1..3),
            batch in 1u32..4,
        ) {
            let mut at = 0;
            let list = gaps.iter().map(|gap| { at += gap; Instant::from_nanos(at) }).collect();
            let question = BucketQuestion {
                split: Split::Weights(weights),
                batch,
                ..BucketQuestion::new(Arrivals::List(list), Rate::per_s(11_003), burst)
            };
            let (exact, simulated) = (theory(&question).unwrap(), simulate(&question).unwrap());
            for (exact, simulated) in exact.delays.unwrap().iter().zip(&simulated.delays.unwrap()) {
                prop_assert_eq!((exact.arrival_ns, exact.part), (simulated.arrival_ns, simulated.part));
                let late_us = simulated.delay_us - exact.delay_us;
                // Up to the nanosecond; a bucket as shallow as one token may lose a fraction with each message.
                let allowed_us = if burst / 4 < 2 { 0.2 } else { 0.0011 };
                prop_assert!((-0.0001..allowed_us).contains(&late_us), "{} after {}", simulated.delay_us, exact.delay_us);
            }
        }
    }
}
