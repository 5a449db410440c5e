//! The laws of limiters, at awkward numbers.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::limit::{Gate, Limit, Throttled, TokenBucket};
use tidegate_core::{Instant, Rate};

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

/// Rates from one token in ten milliseconds to thousands in a nanosecond, rarely in whole nanoseconds a token.
fn limits(deepest: u64) -> impl Strategy<Value = Limit> {
    ((1u128..5_000, 1u128..10_000_000), 1..=deepest).prop_filter_map("too fine", |((tokens, period_ns), burst)| {
        Some(Limit::new(Rate::from_fraction(tokens, period_ns)?, burst))
    })
}

/// Asks at growing times, some of them together, on the scale at which a bucket of the limit empties and fills.
fn asks(longest_gap: u64, dearest: u64, most: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0), 0..longest_gap, 0..longest_gap / 100];
    vec((gap, 1..=dearest), 1..most).prop_map(|asks| {
        let mut now = 0;
        let stamped = asks.into_iter().map(|(gap, cost)| {
            now += gap;
            (now, cost)
        });
        stamped.collect()
    })
}

/// In any closed span, taken <= depth + rate * length.
fn assert_first_law(taken: &[(u64, u64)], rate: Rate, depth: u64) -> Result<(), TestCaseError> {
    let (tokens, period_ns) = (u128::from(rate.tokens()), u128::from(rate.period_ns()));
    for (i, &(start, _)) in taken.iter().enumerate() {
        let mut sum = 0;
        for &(end, cost) in &taken[i..] {
            sum += u128::from(cost);
            let allowed = u128::from(depth) * period_ns + u128::from(end - start) * tokens;
            prop_assert!(sum * period_ns <= allowed, "{sum} from {start} to {end}");
        }
    }
    Ok(())
}

/// A token bucket in exact rational numbers, told the time as the real one is.
struct Rational {
    /// Tokens times the rate's period.
    tokens: i128,
    latest: u64,
}

impl Rational {
    fn at(&mut self, now: u64, limit: Limit) -> i128 {
        let minted = i128::from(now.saturating_sub(self.latest)) * i128::from(limit.rate.tokens());
        self.tokens = (self.tokens + minted).min(full(limit));
        self.latest = self.latest.max(now);
        self.tokens
    }
}

fn full(limit: Limit) -> i128 {
    i128::from(limit.burst) * i128::from(limit.rate.period_ns())
}

proptest! {
    #[test]
    fn a_bucket_never_gives_more_than_burst_and_rate_in_any_span(limit in limits(20), asks in asks(10_000_000, 6, 120)) {
        let mut bucket = TokenBucket::new(limit, at(0));
        let taken: Vec<_> = asks.into_iter().filter(|&(now, cost)| bucket.try_take(cost, at(now)).is_ok()).collect();
        assert_first_law(&taken, limit.rate, limit.burst)?;
    }

    /// T4: the bucket against the model, with time that steps back.
    #[test]
    fn a_bucket_decides_as_exact_arithmetic_does(
        limit in limits(20),
        asks in vec((0u64..20_000_000, 0u64..25), 1..120),
    ) {
        let mut bucket = TokenBucket::new(limit, at(0));
        let mut model = Rational { tokens: full(limit), latest: 0 };
        for (now, cost) in asks {
            let wanted = i128::from(cost) * i128::from(limit.rate.period_ns());
            let held = model.at(now, limit);
            match bucket.try_take(cost, at(now)) {
                Ok(()) => {
                    prop_assert!(wanted <= held);
                    model.tokens -= wanted;
                }
                Err(Throttled::Never) => prop_assert!(cost > limit.burst),
                Err(Throttled::Until(when)) => {
                    prop_assert!(wanted > held && cost <= limit.burst);
                    // It grants then, and not a nanosecond sooner.
                    prop_assert!(bucket.clone().try_take(cost, when.minus_nanos(1)).is_err());
                    prop_assert!(bucket.clone().try_take(cost, when).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_line_releases_in_order_and_within_the_first_law(limit in limits(20), asks in asks(10_000_000, 30, 120)) {
        let mut gate = Gate::new(limit, u64::MAX, at(0));
        for (id, &(arrival, cost)) in asks.iter().enumerate() {
            gate.push(id, cost, at(arrival)).unwrap();
        }
        let released: Vec<_> = std::iter::from_fn(|| gate.pop(Instant::MAX)).collect();
        prop_assert!(released.iter().map(|item| item.item).eq(0..asks.len()));
        prop_assert!(released.iter().all(|item| item.release >= item.arrival));
        let taken: Vec<_> = released.iter().map(|item| (item.release.as_nanos(), item.cost)).collect();
        let dearest = asks.iter().map(|&(_, cost)| cost).max().unwrap();
        assert_first_law(&taken, limit.rate, limit.burst.max(dearest))?;
    }

    /// Late looks and displays change neither what is released when nor what there is.
    #[test]
    fn a_line_loses_nothing_and_looking_late_delays_nobody(
        limit in limits(20),
        asks in asks(1_000_000, 6, 80),
        looks in vec((0u64..3, 0u64..2_000_000), 80),
    ) {
        let mut prompt = Gate::new(limit, u64::MAX, at(0));
        let mut late = prompt.clone();
        let (mut on_time, mut in_time) = (Vec::new(), Vec::new());
        for (&(arrival, cost), &(look, lag)) in asks.iter().zip(&looks) {
            while let Some(when) = prompt.next_timeout().filter(|&when| when <= at(arrival)) {
                on_time.push(prompt.pop(when).unwrap());
            }
            prompt.push((), cost, at(arrival)).unwrap();
            late.push((), cost, at(arrival)).unwrap();
            prop_assert_eq!(prompt.len() + on_time.len(), late.len() + in_time.len());
            match look {
                0 => in_time.extend(late.pop(at(arrival.saturating_sub(lag)))),
                1 => prop_assert!(late.tokens(at(arrival + lag)) >= 0.0),
                _ => {}
            }
        }
        on_time.extend(std::iter::from_fn(|| prompt.pop(Instant::MAX)));
        in_time.extend(std::iter::from_fn(|| late.pop(Instant::MAX)));
        prop_assert_eq!(on_time, in_time);
        prop_assert_eq!((prompt.waiting_cost(), late.waiting_cost()), (0, 0));
    }

    /// What was taken is at most the first burst and what each rate minted while it was in force.
    #[test]
    fn changing_the_limit_mints_nothing(
        first in limits(20),
        steps in vec((0u64..1_000_000, 1u64..5, prop::option::of((0u64..100_000, 1u64..40))), 1..100),
    ) {
        let first = Limit::new(Rate::per_s(first.rate.tokens()), first.burst);
        let mut bucket = TokenBucket::new(first, at(0));
        let (mut now, mut limit, mut taken) = (0, first, 0u128);
        // Tokens times 10^9, for rates in whole tokens a second.
        let mut allowed = u128::from(first.burst) * 1_000_000_000;
        let per_s = |limit: Limit| u128::from(limit.rate.tokens()) * 1_000_000_000 / u128::from(limit.rate.period_ns());
        for (gap, cost, change) in steps {
            now += gap;
            allowed += per_s(limit) * u128::from(gap);
            if let Some((rate_per_s, burst)) = change {
                limit = Limit::new(Rate::per_s(rate_per_s), burst);
                bucket.set_limit(limit, at(now));
            }
            taken += if bucket.try_take(cost, at(now)).is_ok() { u128::from(cost) } else { 0 };
            prop_assert!(taken * 1_000_000_000 <= allowed);
            prop_assert!(bucket.try_take(limit.burst + 1, at(now)).is_err());
        }
    }
}
