//! The laws of lending between buckets: what moves is never minted.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

/// Rates of which any six have a sum that a [`Rate`] can express, rarely in whole nanoseconds a token.
fn limits() -> impl Strategy<Value = Limit> {
    let period = prop_oneof![Just(1u128), Just(7), Just(1_000_003), 1u128..3_000];
    ((1u128..5_000, period), 1u64..20).prop_filter_map("too fine", |((tokens, period_ns), burst)| {
        Some(Limit::new(Rate::from_fraction(tokens, period_ns * 9_973)?, burst))
    })
}

/// What happens to a bucket.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u64),
    /// So many tokens leave for the next bucket, at most; so much depth stays.
    Give(u64, u64),
    /// What is under way to it arrives.
    Receive,
    /// What is under way to it is lost: only its depth will come back.
    Lose,
    /// Depth goes, and comes back later.
    Cut(u64, u64),
    /// All depth that is missing comes back.
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<(usize, u64, Step)>> {
    let step = prop_oneof![
        4 => (1u64..6).prop_map(Step::Take),
        3 => (0u64..12, 0u64..3).prop_map(|(most, keep)| Step::Give(most, keep)),
        3 => Just(Step::Receive),
        1 => Just(Step::Lose),
        1 => (0u64..12, 0u64..3).prop_map(|(by, keep)| Step::Cut(by, keep)),
        1 => Just(Step::Restore),
    ];
    vec((0usize..6, prop_oneof![Just(0u64), 0u64..100_000, 0u64..10_000_000], step), 1..200)
}

/// Several buckets, and what is on its way to each.
struct Circle {
    buckets: Vec<TokenBucket>,
    under_way: Vec<u64>,
    /// Depth that was cut or lost and has not been restored.
    missing: Vec<u64>,
}

impl Circle {
    fn new(limits: &[Limit]) -> Self {
        let buckets = limits.iter().map(|limit| TokenBucket::new(*limit, at(0))).collect();
        Self { buckets, under_way: vec![0; limits.len()], missing: vec![0; limits.len()] }
    }

    /// Does a step of bucket `i`; returns the tokens taken.
    fn step(&mut self, i: usize, step: Step, now: Instant) -> u64 {
        let next = (i + 1) % self.buckets.len();
        let bucket = &mut self.buckets[i];
        match step {
            Step::Take(cost) if bucket.try_take(cost, now).is_ok() => return cost,
            Step::Take(_) => {}
            Step::Give(most, keep) => self.under_way[next] += bucket.give(most, keep, now),
            Step::Receive => {
                bucket.receive(std::mem::take(&mut self.under_way[i]), now);
            }
            Step::Lose => self.missing[i] += std::mem::take(&mut self.under_way[i]),
            Step::Cut(by, keep) => self.missing[i] += bucket.cut(by, keep, now),
            Step::Restore => bucket.deepen(std::mem::take(&mut self.missing[i]), now),
        }
        0
    }

    fn depth(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.limit().burst).sum::<u64>() + self.lost_and_under_way()
    }

    fn lost_and_under_way(&self) -> u64 {
        self.under_way.iter().chain(&self.missing).sum()
    }

    /// Tokens in all buckets and under way.
    fn tokens(&self, now: Instant) -> f64 {
        let under_way: u64 = self.under_way.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let under_way = under_way as f64;
        self.buckets.iter().map(|bucket| bucket.tokens(now)).sum::<f64>() + under_way
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However tokens move, are lost and come back: together the buckets are one of the sum of their contracts.
    #[test]
    fn buckets_that_lend_keep_the_law_of_one(limits in vec(limits(), 2..=6), steps in steps()) {
        let rate = limits.iter().try_fold(Rate::ZERO, |sum, limit| sum.checked_add(limit.rate));
        let Some(rate) = rate else { return Ok(()) };
        let depth: u64 = limits.iter().map(|limit| limit.burst).sum();
        let mut circle = Circle::new(&limits);
        let (mut now, mut tokens) = (0, circle.tokens(at(0)));
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (i, gap, step) in steps {
            now += gap;
            let i = i % limits.len();
            let cost = circle.step(i, step, at(now));
            taken.extend((cost > 0).then_some((now, cost)));
            prop_assert_eq!(circle.depth(), depth);
            let after = circle.tokens(at(now));
            #[expect(clippy::cast_precision_loss, reason = "spans of seconds")]
            let minted = rate.as_per_s() * gap as f64 / 1e9;
            prop_assert!(after <= tokens + minted + 1e-6, "{after} from {tokens} and {minted}");
            tokens = after;
        }
        for (first, &(start, _)) in taken.iter().enumerate() {
            let mut sum = 0;
            for &(end, cost) in &taken[first..] {
                sum += u128::from(cost) * u128::from(rate.period_ns());
                let allowed = u128::from(depth) * u128::from(rate.period_ns())
                    + u128::from(end - start) * u128::from(rate.tokens());
                prop_assert!(sum <= allowed, "from {start} to {end}");
            }
        }
    }
}
