//! The contract that a recorded trace asks for.
//!
//! Source: SRTM, §1.2: the volume of messages is profiled first, and the profile sets the rate limiter.

use core::fmt;
use std::collections::BTreeMap;

use crate::limit::Limit;
use crate::{Instant, Rate};

/// How a trace becomes a contract.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct ProfileConfig {
    /// Rate of the contract over the mean rate of the trace, to a millionth. Not above 1, the delay grows without end.
    pub margin: f64,
    /// The share of the trace's messages that the burst lets pass undelayed.
    pub undelayed: f64,
}

impl Default for ProfileConfig {
    /// The paper's profile: a tenth more than the mean, and 99 % undelayed.
    fn default() -> Self {
        Self { margin: 1.1, undelayed: 0.99 }
    }
}

/// One message of a trace. The messages of a batch have the same stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When it came.
    pub at: Instant,
    /// Its tokens: 1, or its bytes.
    pub cost: u64,
}

/// Why a trace or its treatment gives no contract.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// All messages have the same stamp, or cost nothing, or there are none: they have no rate.
    NoRate {
        /// How many there are.
        messages: usize,
    },
    /// The margin is no number from a millionth to a million.
    Margin {
        /// What it is.
        found: f64,
    },
    /// The rate is beyond what 64 bits express.
    OutOfRange,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRate { messages } => {
                write!(f, "a trace of {messages} messages has no rate; it takes two that differ in time")
            }
            Self::Margin { found } => write!(f, "the margin {found} is not between 0.000001 and 1000000"),
            Self::OutOfRange => f.write_str("the rate of the trace is too high or too low to be expressed"),
        }
    }
}

impl core::error::Error for ProfileError {}

/// What a trace asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    limit: Limit,
    mean: Rate,
    messages: u64,
    /// How many messages would just not wait with a burst of so many tokens.
    needs: BTreeMap<u64, u64>,
}

impl Profile {
    /// Derives the contract of `trace`, which is in order of time; a stamp that steps back counts as the one before.
    ///
    /// The rate is `margin` times the mean rate from the first stamp to the last, rounded up to seven digits. With it the
    /// work U found by each message is computed exactly in one pass; a message of cost c is undelayed if the burst is at
    /// least U + c, and the burst is the smallest whole number that is enough for the share `undelayed`. O(n log n).
    ///
    /// # Errors
    /// If the trace has no rate or the margin makes no sense.
    pub fn of(trace: &[Arrival], config: ProfileConfig) -> Result<Self, ProfileError> {
        let mean = mean_rate(trace)?;
        let rate = with_margin(mean, config.margin)?;
        let needs = needs(trace, rate);
        let mut profile = Self { limit: Limit { rate, burst: 1 }, mean, messages: trace.len() as u64, needs };
        profile.limit.burst = profile.burst_for(config.undelayed);
        Ok(profile)
    }

    /// The contract.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// The mean rate of the trace.
    #[must_use]
    pub fn mean(&self) -> Rate {
        self.mean
    }

    /// Messages in the trace.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The smallest burst with which the share `undelayed` of the messages does not wait, at the contract's rate.
    #[must_use]
    pub fn burst_for(&self, undelayed: f64) -> u64 {
        let mut seen = 0;
        let enough = self.needs.iter().find(|&(_, &count)| {
            seen += count;
            self.share(seen) >= undelayed
        });
        enough.or(self.needs.last_key_value()).map_or(1, |(&burst, _)| burst.max(1))
    }

    /// The share of messages that do not wait with a burst of `burst` tokens, at the contract's rate.
    #[must_use]
    pub fn undelayed_with(&self, burst: u64) -> f64 {
        self.share(self.needs.range(..=burst).map(|(_, count)| count).sum())
    }

    fn share(&self, messages: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
        let (part, whole) = (messages as f64, self.messages as f64);
        part / whole
    }
}

fn mean_rate(trace: &[Arrival]) -> Result<Rate, ProfileError> {
    let no_rate = ProfileError::NoRate { messages: trace.len() };
    let first = trace.first().ok_or(no_rate)?.at;
    let last = trace.iter().map(|arrival| arrival.at).max().ok_or(no_rate)?;
    // What came with the first stamp opens the span but did not arrive within it.
    let tokens = trace.iter().filter(|arrival| arrival.at > first).map(|arrival| u128::from(arrival.cost)).sum();
    match last.nanos_since(first) {
        0 => Err(no_rate),
        _ if tokens == 0 => Err(no_rate),
        span_ns => Rate::from_fraction(tokens, span_ns.into()).ok_or(ProfileError::OutOfRange),
    }
}

/// `margin * mean`, rounded up to seven digits of tokens a second: a contract is read by people.
fn with_margin(mean: Rate, margin: f64) -> Result<Rate, ProfileError> {
    const SECOND_NS: u128 = 1_000_000_000;
    if !(1e-6..=1e6).contains(&margin) {
        return Err(ProfileError::Margin { found: margin });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 10^12")]
    let millionths = (margin * 1e6).round() as u128;
    // 2^64 * 10^12 * 10^3 fits; later turns stay below 10^7 periods.
    let per_s = u128::from(mean.tokens()) * millionths * (SECOND_NS / 1_000_000);
    let mut scale = 1;
    loop {
        let digits = (per_s * scale).div_ceil(mean.period_ns().into());
        // 10^19 ns is the longest power of ten that a period can be.
        if digits >= 1_000_000 || scale == 10_000_000_000 {
            return Rate::from_fraction(digits, SECOND_NS * scale).ok_or(ProfileError::OutOfRange);
        }
        scale *= 10;
    }
}

/// For each whole burst, the messages that it lets pass undelayed and a smaller one does not.
fn needs(trace: &[Arrival], rate: Rate) -> BTreeMap<u64, u64> {
    let (per_ns, per_token) = (u128::from(rate.tokens()), u128::from(rate.period_ns()));
    let mut needs = BTreeMap::new();
    let mut latest = trace.first().map_or(Instant::ZERO, |arrival| arrival.at);
    // In units of 1 / period token, as the bucket counts.
    let mut work: u128 = 0;
    for &Arrival { at, cost } in trace {
        work = work.saturating_sub(u128::from(at.nanos_since(latest)) * per_ns);
        work = work.saturating_add(u128::from(cost) * per_token);
        latest = latest.max(at);
        let burst = u64::try_from(work.div_ceil(per_token)).unwrap_or(u64::MAX);
        *needs.entry(burst).or_insert(0) += 1;
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Gate;
    use crate::rng::Rng;
    use crate::theory::md1;
    use proptest::prelude::*;

    fn trace(stamps: impl IntoIterator<Item = u64>) -> Vec<Arrival> {
        stamps.into_iter().map(|ns| Arrival { at: Instant::from_nanos(ns), cost: 1 }).collect()
    }

    fn of(trace: &[Arrival]) -> Profile {
        Profile::of(trace, ProfileConfig::default()).unwrap()
    }

    #[test]
    fn a_periodic_trace_needs_one_token_and_its_batches_one_each() {
        let profile = of(&trace((0..1_000).map(|i| i * 100_000)));
        assert_eq!((profile.mean(), profile.limit()), (Rate::per_s(10_000), Limit::new(Rate::per_s(11_000), 1)));
        let profile = of(&trace((0..1_000).map(|i| i / 10 * 1_000_000)));
        assert_eq!(profile.limit(), Limit::new(Rate::per_s(11_000), 10));
        assert!((profile.undelayed_with(9) - 0.9).abs() < 1e-12);
        assert_eq!((profile.burst_for(0.5), profile.burst_for(1.0), profile.burst_for(2.0)), (5, 10, 10));
    }

    #[test]
    fn poisson_arrivals_need_what_the_theory_says() {
        for (batch, seed) in [(1, 1), (10, 2)] {
            let mut rng = Rng::new(seed);
            let mut now = 0.0;
            let batches = (0..200_000).map(|_| {
                now += rng.exponential() * 1e5 * f64::from(batch);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive nanoseconds")]
                let ns = now as u64;
                ns
            });
            let profile = of(&trace(batches.flat_map(|ns| (0..batch).map(move |_| ns))));
            let traffic = md1::Traffic { rate_per_s: 10_000.0, batch };
            let exact = md1::smallest_burst(traffic, 11_000.0, 0.99).unwrap();
            let burst = profile.limit().burst;
            assert!(burst.abs_diff(exact) * 12 <= exact, "{burst} for {exact}");
        }
    }

    #[test]
    fn a_trace_without_a_rate_is_refused() {
        for stamps in [vec![], vec![5], vec![5, 5]] {
            let refusal = Profile::of(&trace(stamps.clone()), ProfileConfig::default());
            assert_eq!(refusal, Err(ProfileError::NoRate { messages: stamps.len() }));
        }
        let config = ProfileConfig { margin: f64::NAN, ..ProfileConfig::default() };
        assert!(matches!(Profile::of(&trace([0, 1]), config), Err(ProfileError::Margin { .. })));
    }

    #[test]
    fn the_slowest_and_the_fastest_traces_have_a_rate() {
        let year = 365 * 86_400 * 1_000_000_000;
        let slow = of(&trace([0, 100 * year]));
        assert!(slow.limit().rate >= slow.mean() && slow.limit().burst == 1);
        let fast =
            of(&[Arrival { at: Instant::ZERO, cost: 1 }, Arrival { at: Instant::from_nanos(1), cost: 1_000_000_000 }]);
        assert_eq!(fast.limit().rate, Rate::from_fraction(1_100_000_000, 1).unwrap());
    }

    proptest! {
        #[test]
        fn the_gate_delays_just_what_the_profile_says(
            gaps in proptest::collection::vec((0u64..5_000, 1u64..4), 2..120),
            undelayed in 0.5..1.0f64,
        ) {
            let mut now = 0;
            let trace: Vec<_> = gaps
                .into_iter()
                .map(|(gap, cost)| {
                    now += gap;
                    Arrival { at: Instant::from_nanos(now), cost }
                })
                .collect();
            let config = ProfileConfig { undelayed, ..ProfileConfig::default() };
            let Ok(profile) = Profile::of(&trace, config) else { return Ok(()) };
            let share = |burst: u64| {
                let mut gate = Gate::new(Limit { burst, ..profile.limit() }, u64::MAX, trace[0].at);
                for arrival in &trace {
                    gate.push((), arrival.cost, arrival.at).unwrap();
                }
                let released = std::iter::from_fn(|| gate.pop(Instant::MAX));
                profile.share(released.filter(|item| item.release == item.arrival).count() as u64)
            };
            let burst = profile.limit().burst;
            // A bucket no deeper than a cost loses a part of a nanosecond's minting to the rounding of release times.
            if burst > 4 {
                prop_assert!(share(burst) >= undelayed);
                prop_assert!(share(burst - 1) < undelayed);
                prop_assert!((share(burst) - profile.undelayed_with(burst)).abs() < 1e-12);
            }
        }
    }
}
