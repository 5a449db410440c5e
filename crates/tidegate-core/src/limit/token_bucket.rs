//! The token bucket.

use crate::{Instant, Rate};

/// A traffic contract: in any span `t`, at most `burst + rate * t` tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Limit {
    /// Long-run tokens per second.
    pub rate: Rate,
    /// Depth of the bucket in whole tokens, at least 1 for anything ever to pass.
    pub burst: u64,
}

impl Limit {
    /// The contract `(rate, burst)`.
    #[must_use]
    pub const fn new(rate: Rate, burst: u64) -> Self {
        Self { rate, burst }
    }

    /// The lesser rate and the lesser burst of two.
    #[must_use]
    pub fn lesser(self, other: Self) -> Self {
        Self::new(self.rate.min(other.rate), self.burst.min(other.burst))
    }
}

/// Why a request for tokens was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttled {
    /// The tokens will be there at this instant, and not a nanosecond sooner, if nobody else takes them.
    Until(Instant),
    /// The cost exceeds the burst, or the rate is zero: waiting does not help.
    Never,
}

/// Holds tokens, minted at `rate` up to `burst`, and hands them out.
///
/// The level is an integer in units of `1 / rate.period_ns()` token, in which one nanosecond mints exactly
/// `rate.tokens()` units: it never drifts and has no remainder to carry. O(1); 64 bytes.
/// Source: SRTM, §1.1 (the contract), §2.1 (the delay it causes).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenBucket {
    limit: Limit,
    /// In units of `1 / period_ns` token; at most `full`.
    level: u128,
    full: u128,
    /// The level is exact at this instant.
    at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(limit: Limit, now: Instant) -> Self {
        let full = units(limit, limit.burst);
        Self { limit, level: full, full, at: now }
    }

    /// A bucket that held nothing at `since`: the least that one of unknown history can hold from then on.
    #[must_use]
    pub fn empty(limit: Limit, since: Instant) -> Self {
        Self::with_level(limit, 0, since)
    }

    /// A bucket that held `level` at `at`, cut to its depth. `level` is in the unit of [`level`](Self::level).
    #[must_use]
    pub fn with_level(limit: Limit, level: u128, at: Instant) -> Self {
        let full = units(limit, limit.burst);
        Self { limit, level: level.min(full), full, at }
    }

    /// The contract in force.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// What the bucket holds at `now`, in units of `1 / rate.period_ns()` token: exact, to be kept and given to
    /// [`with_level`](Self::with_level). Nothing while tokens are taken ahead of `now`.
    #[must_use]
    pub fn level(&self, now: Instant) -> u128 {
        if now < self.at && self.level < self.full {
            return 0;
        }
        self.level.saturating_add(self.minted(now)).min(self.full)
    }

    /// When the bucket is full if nothing more is taken; `None` if it never is.
    #[must_use]
    pub fn full_at(&self) -> Option<Instant> {
        match (self.full - self.level, u128::from(self.limit.rate.tokens())) {
            (0, _) => Some(self.at),
            (_, 0) => None,
            (missing, per_ns) => Some(self.after(missing.div_ceil(per_ns))),
        }
    }

    /// Whole tokens that were taken ahead of `now`, rounded up: the line that callers of
    /// [`take_in_line`](Self::take_in_line) have formed in the future. 0 for a bucket that is not ahead.
    #[must_use]
    pub fn taken_ahead(&self, now: Instant) -> u64 {
        let ahead = u128::from(self.at.nanos_since(now)) * u128::from(self.limit.rate.tokens());
        u64::try_from(ahead.div_ceil(u128::from(self.limit.rate.period_ns()))).unwrap_or(u64::MAX)
    }

    /// Nanoseconds after `now` until `cost` tokens are there if none is taken, in a bucket that is as deep as that;
    /// `u64::MAX` if its rate is zero and they are not there.
    #[must_use]
    pub fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        let missing = units(self.limit, cost).saturating_sub(self.level(now));
        let wait = match u128::from(self.limit.rate.tokens()) {
            _ if missing == 0 => return 0,
            0 => return u64::MAX,
            per_ns => u64::try_from(missing.div_ceil(per_ns)).unwrap_or(u64::MAX),
        };
        wait.saturating_add(self.at.nanos_since(now))
    }

    /// Gives back what was taken ahead of `now`; what was taken until `now` stays taken.
    pub fn forget_future(&mut self, now: Instant) {
        if self.at > now {
            (self.level, self.at) = (0, now);
        }
    }

    /// Takes `cost` tokens, all or none.
    ///
    /// # Errors
    /// [`Throttled`] says when to come back.
    #[inline]
    pub fn try_take(&mut self, cost: u64, now: Instant) -> Result<(), Throttled> {
        self.refill(now);
        if let Some(left) = self.level.checked_sub(units(self.limit, cost)) {
            self.level = left;
            return Ok(());
        }
        Err(self.refusal(cost))
    }

    /// When `cost` tokens asked for at `now` are there: `now` itself, or later, or never. Takes nothing.
    #[inline]
    #[must_use]
    pub fn ready_at(&mut self, cost: u64, now: Instant) -> Option<Instant> {
        self.refill(now);
        if units(self.limit, cost) <= self.level {
            return Some(now);
        }
        match self.refusal(cost) {
            Throttled::Until(at) => Some(at),
            Throttled::Never => None,
        }
    }

    /// When an item that has waited since `arrival`, and is next in line, gets its `cost` tokens; `None` if the rate is
    /// zero. Takes nothing.
    ///
    /// Nothing is refused in a line: an item dearer than the burst waits for its tokens as if the bucket were as deep as
    /// its cost, so that it passes in time and pays in full. Not before what was taken last: a line has an order.
    #[inline]
    #[must_use]
    pub fn ready_in_line(&mut self, cost: u64, arrival: Instant) -> Option<Instant> {
        self.refill(arrival);
        let missing = units(self.limit, cost).saturating_sub(self.level);
        match u128::from(self.limit.rate.tokens()) {
            _ if missing == 0 => Some(self.at),
            0 => None,
            per_ns => Some(self.after(missing.div_ceil(per_ns))),
        }
    }

    /// Takes `cost` tokens for the item that is next in line, at the instant that
    /// [`ready_in_line`](Self::ready_in_line) gave for it.
    ///
    /// # Panics
    /// If the tokens are not there at `release`.
    #[inline]
    pub fn take_in_line(&mut self, cost: u64, release: Instant) {
        let cost = units(self.limit, cost);
        let level = self.level.saturating_add(self.minted(release)).min(self.full.max(cost));
        self.level = level.checked_sub(cost).expect("an item in line leaves when its tokens are there");
        self.at = self.at.max(release);
    }

    /// Tokens in the bucket at `now`, with their fraction.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> f64 {
        let level = self.level.saturating_add(self.minted(now)).min(self.full);
        #[expect(clippy::cast_precision_loss, reason = "for display; decisions use the integer level")]
        let (level, unit) = (level as f64, self.limit.rate.period_ns() as f64);
        level / unit
    }

    /// Puts the contract `limit` in force from `now` on.
    ///
    /// What was earned until now stays, minted at the old rate and cut only to the new depth; a deeper bucket does
    /// not fill by itself, so that changing a limit back and forth mints nothing. A fraction of a token that the new
    /// unit cannot express, less than one unit, is rounded down.
    pub fn set_limit(&mut self, limit: Limit, now: Instant) {
        self.refill(now);
        let whole = self.level / u128::from(self.limit.rate.period_ns());
        let rest = self.level % u128::from(self.limit.rate.period_ns());
        let per_token = u128::from(limit.rate.period_ns());
        self.level = whole.saturating_mul(per_token) + rest * per_token / u128::from(self.limit.rate.period_ns());
        self.full = units(limit, limit.burst);
        self.level = self.level.min(self.full);
        self.limit = limit;
    }

    /// The same bucket with each token counted as `parts`: whatever costs one costs `parts` there. For a bucket that lends
    /// less than a token. What the new unit cannot express, less than one unit, is rounded down.
    #[must_use]
    pub fn in_parts(&self, parts: u64) -> Self {
        let Limit { rate, burst } = self.limit;
        let limit = Limit::new(rate.times(parts), burst.saturating_mul(parts));
        let (old, new) = (u128::from(rate.period_ns()), u128::from(limit.rate.period_ns()));
        let whole = (self.level / old).saturating_mul(u128::from(parts));
        let rest = self.level % old * u128::from(parts);
        let level = (whole + rest / old).saturating_mul(new).saturating_add(rest % old * new / old);
        Self::with_level(limit, level, self.at)
    }

    /// The bucket of which this one counts each token as `parts`, at least 1, and which mints at `rate`. Its depth is
    /// rounded up, its level down.
    #[must_use]
    pub fn of_parts(&self, parts: u64, rate: Rate) -> Self {
        let limit = Limit::new(rate, self.limit.burst.div_ceil(parts));
        let (old, new) = (u128::from(self.limit.rate.period_ns()), u128::from(rate.period_ns()));
        let (whole, by) = (self.level / old, u128::from(parts));
        // Less than a token; it is divided in two steps, as the product of three numbers of 64 bits does not fit.
        let rest = whole % by * old + self.level % old;
        let rest = (rest / by * new + rest % by * new / by) / old;
        let level = (whole / by).saturating_mul(new).saturating_add(rest);
        Self::with_level(limit, level, self.at)
    }

    /// Gives away at most `most` whole tokens that are there at `now`, and as much depth with them, so that the bucket
    /// cannot mint them anew. Returns how many.
    ///
    /// The depth stays at `keep` or more. Fractions of a token stay here: they are of the size of this bucket's unit.
    /// Nothing is given by a bucket whose tokens are taken ahead of `now`.
    pub fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64 {
        self.refill(now);
        if self.at > now {
            return 0;
        }
        let there = u64::try_from(self.level / u128::from(self.limit.rate.period_ns())).unwrap_or(u64::MAX);
        let given = most.min(there).min(self.limit.burst.saturating_sub(keep));
        self.level -= units(self.limit, given);
        self.limit.burst -= given;
        self.full = units(self.limit, self.limit.burst);
        given
    }

    /// Takes in `tokens` that another bucket [gave](Self::give), and as much depth. Returns how many: fewer if the depth
    /// would not fit 64 bits, and then the rest is lost.
    pub fn receive(&mut self, tokens: u64, now: Instant) -> u64 {
        // What time brought is cut to the old depth first.
        self.refill(now);
        let received = tokens.min(u64::MAX - self.limit.burst);
        self.level += units(self.limit, received);
        self.limit.burst += received;
        self.full = units(self.limit, self.limit.burst);
        received
    }

    /// Takes away at most `by` tokens of depth from `now` on, down to `keep`; the tokens that no longer fit are lost.
    /// Returns by how much the bucket is shallower.
    pub fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64 {
        let less = by.min(self.limit.burst.saturating_sub(keep));
        self.set_limit(Limit::new(self.limit.rate, self.limit.burst - less), now);
        less
    }

    /// Adds `by` tokens of depth from `now` on, and no token.
    pub fn deepen(&mut self, by: u64, now: Instant) {
        self.set_limit(Limit::new(self.limit.rate, self.limit.burst.saturating_add(by)), now);
    }

    #[inline]
    fn refill(&mut self, now: Instant) {
        if now > self.at {
            self.level = self.level.saturating_add(self.minted(now)).min(self.full);
            self.at = now;
        }
    }

    /// Units minted from `at` to `now`; no overflow, as both factors are below 2^64.
    #[inline]
    fn minted(&self, now: Instant) -> u128 {
        u128::from(now.nanos_since(self.at)) * u128::from(self.limit.rate.tokens())
    }

    fn after(&self, wait_ns: u128) -> Instant {
        self.at.plus_nanos(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }

    #[cold]
    fn refusal(&self, cost: u64) -> Throttled {
        let wanted = units(self.limit, cost);
        if wanted > self.full || self.limit.rate.is_zero() {
            return Throttled::Never;
        }
        let missing = wanted - self.level;
        let wait = missing.div_ceil(u128::from(self.limit.rate.tokens()));
        Throttled::Until(self.after(wait))
    }
}

#[inline]
fn units(limit: Limit, tokens: u64) -> u128 {
    u128::from(tokens) * u128::from(limit.rate.period_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn refusal_names_the_first_nanosecond_that_grants() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(3), 1), at(0));
        bucket.try_take(1, at(0)).unwrap();
        let Err(Throttled::Until(when)) = bucket.try_take(1, at(10)) else { panic!("an empty bucket refuses") };
        assert_eq!(when, at(333_333_334));
        assert!(bucket.clone().try_take(1, when.minus_nanos(1)).is_err());
        assert!(bucket.try_take(1, when).is_ok());
    }

    #[test]
    fn three_per_second_never_drifts() {
        // Depth 2, so that what ripens between two polls is not cut off.
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(3), 2), at(0));
        bucket.try_take(2, at(0)).unwrap();
        let granted = (1..=1_000_000).filter(|i| bucket.try_take(1, at(i * 100_003)).is_ok()).count();
        assert_eq!(granted, 300);
    }

    #[test]
    fn idle_bucket_never_exceeds_burst() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(1_000), 5), at(0));
        assert_eq!(bucket.try_take(6, Instant::MAX), Err(Throttled::Never));
        assert!(bucket.try_take(5, Instant::MAX).is_ok());
    }

    #[test]
    fn a_changed_limit_mints_nothing() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(10), 10), at(0));
        bucket.try_take(10, at(0)).unwrap();
        bucket.set_limit(Limit::new(Rate::per_s(7), 100), at(500_000_000));
        bucket.set_limit(Limit::new(Rate::per_s(10), 10), at(500_000_000));
        assert!((4.9..=5.0).contains(&bucket.tokens(at(500_000_000))));
    }

    #[test]
    fn the_longest_period_and_the_deepest_bucket_do_not_overflow() {
        let slowest = Rate::from_fraction(1, u64::MAX.into()).unwrap();
        let fastest = Rate::from_fraction(u64::MAX.into(), 1).unwrap();
        let mut bucket = TokenBucket::new(Limit::new(slowest, u64::MAX), at(0));
        assert_eq!(bucket.try_take(u64::MAX, at(0)), Ok(()));
        assert_eq!(bucket.try_take(1, at(1)), Err(Throttled::Until(Instant::MAX)));
        assert_eq!(bucket.try_take(1, Instant::MAX), Ok(()));

        let mut bucket = TokenBucket::new(Limit::new(slowest, u64::MAX), at(0));
        bucket.set_limit(Limit::new(fastest, u64::MAX), at(0));
        assert_eq!(bucket.try_take(u64::MAX, at(0)), Ok(()));
        assert_eq!(bucket.try_take(u64::MAX, at(1)), Ok(()));
        bucket.set_limit(Limit::new(slowest, u64::MAX), Instant::MAX);
        assert_eq!(bucket.try_take(u64::MAX, Instant::MAX), Ok(()));
        assert_eq!(bucket.ready_in_line(u64::MAX, Instant::MAX), Some(Instant::MAX));
    }

    #[test]
    fn a_bucket_counted_in_parts_is_the_same_bucket() {
        for rate in [Rate::per_s(3), Rate::per_s(11_000).divided_by(6), Rate::from_fraction(7, 48).unwrap(), Rate::ZERO]
        {
            let limit = Limit::new(rate, 5);
            let mut whole = TokenBucket::new(limit, at(0));
            whole.try_take(5, at(0)).unwrap();
            let mut parts = whole.in_parts(16);
            assert_eq!((parts.limit().burst, parts.limit().rate), (80, rate.times(16)));
            for ns in [0, 1, 333_333_334, 1_700_000_001] {
                assert_eq!(whole.ready_at(1, at(ns)), parts.ready_at(16, at(ns)), "{rate:?}");
                assert_eq!(parts.of_parts(16, rate).level(at(ns)), whole.level(at(ns)), "{rate:?}");
                assert_eq!(whole.in_parts(16).level(at(ns)), parts.level(at(ns)), "{rate:?}");
            }
        }
        // What is left of a token that is lent in part is rounded down, and its depth up.
        let mut parts = TokenBucket::new(Limit::new(Rate::per_s(1), 5), at(0)).in_parts(16);
        assert_eq!(parts.give(7, 16, at(0)), 7);
        let whole = parts.of_parts(16, Rate::per_s(1));
        assert_eq!((whole.limit().burst, crate::lend::Purse::tokens(&whole, at(0))), (5, 4));
        let slowest = Rate::from_fraction(1, u64::MAX.into()).unwrap();
        let deepest = TokenBucket::new(Limit::new(slowest, u64::MAX), at(0));
        assert_eq!(deepest.in_parts(16).of_parts(16, deepest.limit().rate).limit().burst, u64::MAX / 16 + 1);
    }

    #[test]
    fn looking_changes_nothing() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(1), 1), at(0));
        bucket.try_take(1, at(0)).unwrap();
        let before = bucket.clone();
        assert!((bucket.tokens(at(500_000_000)) - 0.5).abs() < 1e-12);
        assert_eq!(bucket, before);
    }

    #[test]
    fn a_kept_level_goes_on_where_it_was() {
        let limit = Limit::new(Rate::per_s(3), 4);
        let mut bucket = TokenBucket::new(limit, at(0));
        bucket.try_take(4, at(0)).unwrap();
        let level = bucket.level(at(500_000_000));
        let kept = TokenBucket::with_level(limit, level, at(500_000_000));
        assert_eq!(kept.full_at(), bucket.full_at());
        assert_eq!(bucket.full_at(), Some(at(1_333_333_334)));
        assert_eq!(TokenBucket::with_level(limit, u128::MAX, at(0)), TokenBucket::new(limit, at(0)));
        assert_eq!(TokenBucket::empty(limit, at(0)).level(at(0)), 0);
        assert_eq!(TokenBucket::empty(Limit::new(Rate::ZERO, 1), at(0)).full_at(), None);
    }

    #[test]
    fn a_wait_is_as_long_as_a_line_s() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(3), 2), at(0));
        assert_eq!([0, 2, 3].map(|cost| bucket.wait_ns(cost, at(5))), [0, 0, 333_333_334]);
        bucket.try_take(2, at(5)).unwrap();
        assert_eq!([1, 4].map(|cost| bucket.wait_ns(cost, at(100_000_005))), [233_333_334, 1_233_333_334]);
        let release = bucket.ready_in_line(1, at(5)).unwrap();
        bucket.take_in_line(1, release);
        assert!(bucket.wait_ns(1, at(5)) > 600_000_000, "what is taken ahead is waited for, too");
        let never = TokenBucket::empty(Limit::new(Rate::ZERO, 1), at(0));
        assert_eq!([0, 1].map(|cost| never.wait_ns(cost, at(9))), [0, u64::MAX]);
    }

    #[test]
    fn what_is_taken_ahead_is_no_level_and_can_be_forgotten() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(10), 1), at(0));
        for _ in 0..4 {
            let release = bucket.ready_in_line(1, at(0)).unwrap();
            bucket.take_in_line(1, release);
        }
        assert_eq!((bucket.taken_ahead(at(0)), bucket.taken_ahead(at(250_000_000))), (3, 1));
        assert_eq!(bucket.level(at(200_000_000)), 0);
        bucket.forget_future(at(50_000_000));
        assert_eq!(bucket.ready_at(1, at(50_000_000)), Some(at(150_000_000)));
    }

    #[test]
    fn what_is_given_takes_its_depth_along() {
        let mut giver = TokenBucket::new(Limit::new(Rate::per_s(10), 5), at(0));
        let mut taker = TokenBucket::new(Limit::new(Rate::per_s(3), 2), at(0));
        taker.try_take(2, at(0)).unwrap();
        assert_eq!(giver.give(9, 2, at(0)), 3);
        assert_eq!(taker.receive(3, at(0)), 3);
        assert_eq!((giver.limit().burst, taker.limit().burst), (2, 5));
        assert_eq!(taker.try_take(3, at(0)), Ok(()));
        // The giver is full: time brings nothing more than to its depth.
        assert_eq!(giver.try_take(3, at(1_000_000_000)), Err(Throttled::Never));
        assert_eq!(giver.give(9, 2, at(1_000_000_000)), 0);
    }

    #[test]
    fn a_bucket_gives_whole_tokens_that_are_there() {
        let mut bucket = TokenBucket::empty(Limit::new(Rate::per_s(10), 5), at(0));
        assert_eq!(bucket.give(5, 0, at(150_000_000)), 1);
        assert!((bucket.tokens(at(150_000_000)) - 0.5).abs() < 1e-12);
        let release = bucket.ready_in_line(4, at(150_000_000)).unwrap();
        bucket.take_in_line(4, release);
        assert_eq!(bucket.give(5, 0, at(200_000_000)), 0, "its tokens are taken ahead");
    }

    #[test]
    fn depth_without_tokens_neither_mints_nor_leaves_any() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(10), 5), at(0));
        assert_eq!(bucket.cut(9, 2, at(0)), 3);
        bucket.deepen(3, at(0));
        assert_eq!(bucket.limit().burst, 5);
        assert!((bucket.tokens(at(0)) - 2.0).abs() < 1e-12);
        bucket.deepen(u64::MAX, at(0));
        assert_eq!(bucket.receive(1, at(0)), 0, "what does not fit is lost");
    }

    #[test]
    fn what_is_dearer_than_the_burst_passes_a_line_in_time_and_pays_in_full() {
        let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(10), 5), at(0));
        for release in [at(1_500_000_000), at(3_500_000_000), at(5_500_000_000)] {
            assert_eq!(bucket.ready_in_line(20, at(0)), Some(release));
            bucket.take_in_line(20, release);
        }
        bucket.set_limit(Limit::new(Rate::ZERO, 5), at(6_000_000_000));
        assert_eq!(bucket.ready_in_line(5, at(0)), Some(at(6_000_000_000)));
        assert_eq!(bucket.ready_in_line(6, at(0)), None);
    }
}
