//! The token bucket for many threads at once.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

use crate::limit::{Limit, Throttled};
use crate::{Instant, Rate};

/// A nanosecond is cut into at most this many units, so that half of 64 bits' worth of them lasts nine years.
const FINEST: u32 = 32;
/// The deepest bucket, in units; as much is left for the time that passes.
const DEEPEST: u64 = 1 << 63;

/// Pauses after a first and after many lost races: a few cache line transfers long. Measured with two threads that do
/// nothing else: without pauses a decision takes four times as long, from 16 on little changes.
const STEP_BACK_FIRST: u32 = 16;
const STEP_BACK_MOST: u32 = 64;

/// A [`TokenBucket`](super::TokenBucket) that any number of threads draw from without a lock; it refuses, it has no
/// line.
///
/// Its whole state is one number, the instant at which the bucket will be full: a grant moves it by the time in which
/// its cost is minted. That time is exact if the numerator of the rate's reduced fraction is at most 32, as in 11k/s,
/// 11 in 1 ms, and most rates that people write; then each decision is the token bucket's. Otherwise the bucket holds
/// everybody to the greatest such rate below the limit's, see [`rate`](Self::rate): never more than the contract, and
/// less by under 1/32 ns in the time of each token, 0.003 % at a million tokens a second.
///
/// Callers may differ in their `now`: one that is behind sees fewer tokens, never more. A burst of more than nine
/// years' minting counts as that much, and the bucket serves for at least nine years after it was made.
/// Source: SRTM, §1.1; the form with one instant is the generic cell rate algorithm of ITU-T I.371.
#[derive(Debug)]
// Alone on its cache line: a neighbour's writes would slow it down.
#[repr(align(64))]
pub struct SharedBucket {
    /// When the bucket is full, in units since `origin`; in the past while it is full.
    full_at: AtomicU64,
    limit: Limit,
    origin: Instant,
    /// Units in a nanosecond; 0 if nothing is ever minted: then time stands still and a unit is a token.
    units_per_ns: u64,
    /// Units in which a token is minted.
    token_units: u64,
    /// Units in which an empty bucket becomes full.
    burst_units: u64,
}

// Orderings: all of them are `Relaxed`. Every decision depends on the one atomic alone, and all its changes are
// compare-and-swaps, which act in a single total order whatever their ordering. A grant publishes no other memory.
impl SharedBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(limit: Limit, now: Instant) -> Self {
        let (units_per_ns, token_units) = units_of(limit.rate);
        let burst_units = limit.burst.saturating_mul(token_units).min(DEEPEST);
        Self { full_at: AtomicU64::new(0), limit, origin: now, units_per_ns, token_units, burst_units }
    }

    /// A bucket for a new `limit` with the whole tokens that this one holds at `now`, cut to the new burst.
    ///
    /// Whoever still draws from this one draws its tokens a second time: let nobody.
    #[must_use]
    pub fn with_limit(&self, limit: Limit, now: Instant) -> Self {
        let kept = self.level_units(now) / self.token_units;
        let next = Self::new(limit, now);
        let missing = next.burst_units - kept.saturating_mul(next.token_units).min(next.burst_units);
        next.full_at.store(missing, Ordering::Relaxed);
        next
    }

    /// The contract.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// The rate that is kept: the limit's, or the next below it that 64 bits of state express.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate::from_fraction(self.units_per_ns.into(), self.token_units.into()).expect("a token takes a unit or more")
    }

    /// Takes `cost` tokens, all or none. Lock-free: a thread repeats only when another one was granted; it first steps
    /// back for a moment, so that the other gets several of its decisions done while it has the cache line.
    ///
    /// # Errors
    /// [`Throttled`] says when to come back.
    #[inline]
    pub fn try_take(&self, cost: u64, now: Instant) -> Result<(), Throttled> {
        let now = self.units_at(now);
        // Short of the last number, which stands for overflow: there nothing is granted any more.
        let latest = now.saturating_add(self.burst_units).min(u64::MAX - 1);
        let cost = cost.saturating_mul(self.token_units);
        let mut seen = self.full_at.load(Ordering::Relaxed);
        let mut pauses = STEP_BACK_FIRST;
        loop {
            let full_at = seen.max(now).saturating_add(cost);
            if full_at > latest {
                return Err(self.refusal(cost, full_at));
            }
            let swapped = self.full_at.compare_exchange_weak(seen, full_at, Ordering::Relaxed, Ordering::Relaxed);
            if swapped.is_ok() {
                return Ok(());
            }
            step_back(pauses);
            pauses = (pauses * 2).min(STEP_BACK_MOST);
            // What was seen is old by now.
            seen = self.full_at.load(Ordering::Relaxed);
        }
    }

    /// Tokens in the bucket at `now`, with their fraction.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for display; decisions use the integers")]
        let (level, unit) = (self.level_units(now) as f64, self.token_units as f64);
        level / unit
    }

    fn level_units(&self, now: Instant) -> u64 {
        let missing = self.full_at.load(Ordering::Relaxed).saturating_sub(self.units_at(now));
        self.burst_units.saturating_sub(missing)
    }

    fn units_at(&self, now: Instant) -> u64 {
        now.nanos_since(self.origin).saturating_mul(self.units_per_ns)
    }

    #[cold]
    fn refusal(&self, cost_units: u64, full_at: u64) -> Throttled {
        if cost_units > self.burst_units || self.units_per_ns == 0 || full_at == u64::MAX {
            return Throttled::Never;
        }
        Throttled::Until(self.origin.plus_nanos((full_at - self.burst_units).div_ceil(self.units_per_ns)))
    }
}

/// Leaves the cache line to whoever has it. The model of the interleavings has no cache.
#[cold]
fn step_back(pauses: u32) {
    for _ in 0..if cfg!(loom) { 0 } else { pauses } {
        core::hint::spin_loop();
    }
}

/// Units in a nanosecond and units for a token that make the greatest rate not above `rate`.
fn units_of(rate: Rate) -> (u64, u64) {
    if rate.is_zero() {
        return (0, 1);
    }
    let mut best = (1, u64::MAX);
    for units_per_ns in 1..=u64::from(FINEST) {
        let exact = u128::from(units_per_ns) * u128::from(rate.period_ns());
        let Ok(token_units) = u64::try_from(exact.div_ceil(rate.tokens().into())) else { continue };
        // Compared as fractions: of equal ones the coarser, which lasts longer, came first.
        if u128::from(units_per_ns) * u128::from(best.1) > u128::from(best.0) * u128::from(token_units) {
            best = (units_per_ns, token_units);
        }
    }
    best
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limit::TokenBucket;
    use proptest::prelude::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn fraction(tokens: u64, period_ns: u64) -> Rate {
        Rate::from_fraction(tokens.into(), period_ns.into()).expect("a positive period")
    }

    #[test]
    fn common_rates_are_kept_exactly_and_others_nearly() {
        for text in ["11k/s", "2.5/s", "90/min", "50M/h", "1/d", "0/s", "1G/s", "1/584000000000000000ns"] {
            let rate = text.parse().unwrap();
            assert_eq!(SharedBucket::new(Limit::new(rate, 1), at(0)).rate(), rate, "{text}");
        }
        for tokens in [33_000, 999_983, 1_000_003] {
            let kept = SharedBucket::new(Limit::new(Rate::per_s(tokens), 1), at(0)).rate();
            assert!(kept < Rate::per_s(tokens) && kept > Rate::per_s(tokens - tokens / 30_000 - 1), "{kept}");
        }
    }

    #[test]
    fn a_rate_of_zero_gives_out_the_burst_once() {
        let bucket = SharedBucket::new(Limit::new(Rate::ZERO, 3), at(5));
        assert_eq!(bucket.try_take(2, at(5)), Ok(()));
        assert_eq!(bucket.try_take(2, Instant::MAX), Err(Throttled::Never));
        assert_eq!(bucket.try_take(1, at(0)), Ok(()));
    }

    #[test]
    fn a_changed_limit_keeps_the_whole_tokens() {
        let bucket = SharedBucket::new(Limit::new(Rate::per_s(10), 10), at(0));
        bucket.try_take(8, at(0)).unwrap();
        let bucket = bucket.with_limit(Limit::new(Rate::per_s(3), 100), at(50_000_000));
        assert!((bucket.tokens(at(50_000_000)) - 2.0).abs() < 1e-9);
        let bucket = bucket.with_limit(Limit::new(Rate::per_s(3), 1), at(50_000_000));
        assert!((bucket.tokens(at(50_000_000)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn extreme_limits_neither_overflow_nor_stop_minting() {
        let slow = SharedBucket::new(Limit::new("1/d".parse().unwrap(), u64::MAX), at(0));
        // Nine years' minting at 32 units for a nanosecond, 292 at one.
        let deepest = DEEPEST / (86_400 * 1_000_000_000);
        assert_eq!(slow.try_take(deepest, at(0)), Ok(()));
        let Err(Throttled::Until(when)) = slow.try_take(1, at(0)) else { panic!("it is empty") };
        assert_eq!(slow.try_take(1, when), Ok(()));
        let fast = SharedBucket::new(Limit::new(fraction(u64::MAX, 1), u64::MAX), at(0));
        assert_eq!(fast.try_take(u64::MAX, Instant::MAX), Err(Throttled::Never));
    }

    #[test]
    fn threads_together_get_what_one_would() {
        let bucket = SharedBucket::new(Limit::new(Rate::per_s(11_000), 26), at(0));
        let granted: u64 = std::thread::scope(|scope| {
            let work = || (0..200_000).map(|i| u64::from(bucket.try_take(1, at(i * 5_000)).is_ok())).sum::<u64>();
            let threads = [scope.spawn(work), scope.spawn(work), scope.spawn(work)];
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // Whoever runs ahead takes all; at the end 26 + 11,000 * 0.999995 s are out, but for what ripened unasked.
        assert!((10_999..=26 + 10_999).contains(&granted), "{granted}");
    }

    proptest! {
        #[test]
        fn decides_as_the_token_bucket_at_its_rate(
            (tokens, period) in (1u64..5_000, 1u64..10_000_000),
            burst in 0u64..50,
            asks in proptest::collection::vec((0u64..3_000_000, 0u64..60), 1..100),
        ) {
            let shared = SharedBucket::new(Limit::new(fraction(tokens, period), burst), at(7));
            prop_assert!(shared.rate() <= fraction(tokens, period));
            prop_assert!(fraction(tokens, period).tokens() > 32 || shared.rate() == fraction(tokens, period));
            let mut model = TokenBucket::new(Limit::new(shared.rate(), burst), at(7));
            let mut now = 7;
            for (step, cost) in asks {
                now += step;
                prop_assert_eq!(shared.try_take(cost, at(now)), model.try_take(cost, at(now)));
                prop_assert!((shared.tokens(at(now)) - model.tokens(at(now))).abs() < 1e-6);
            }
        }

        #[test]
        fn obeys_the_first_law_whatever_the_clocks_say(
            (tokens, period) in (1u64..5_000, 1u64..100_000),
            burst in 1u64..20,
            asks in proptest::collection::vec((0u64..1_000_000, 1u64..5), 1..200),
        ) {
            let bucket = SharedBucket::new(Limit::new(fraction(tokens, period), burst), at(0));
            let (mut taken, mut latest) = (0, 0);
            for (now, cost) in asks {
                // Clocks that disagree by any amount: what was taken never exceeds what the latest of them allows.
                latest = latest.max(now);
                taken += if bucket.try_take(cost, at(now)).is_ok() { cost } else { 0 };
                prop_assert!(taken * period <= burst * period + latest * tokens);
            }
        }
    }
}
