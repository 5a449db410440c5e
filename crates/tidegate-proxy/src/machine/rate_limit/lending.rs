//! A limiter's tokens, as the limiters of other proxies borrow and lend them.
//!
//! While it lends, the depth of the bucket is that of its part, more what is borrowed and less what is lent, and only
//! [`Lending`](tidegate_core::lend::Lending) changes it. A limiter refuses instead of holding up, so what lending is told
//! to wait for is a forecast: what comes before an answer would.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::lend::Purse;
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::number::{float, whole};
use tidegate_core::time::nanos;

use super::RateLimit;
use super::part::NOTHING;

/// Over how long arrivals are counted for the forecast: long against gaps between requests, short against a change.
const MEMORY: Duration = Duration::from_millis(100);
/// How far it looks: a round trip between two machines of one site, and the time of both to answer.
const AHEAD: Duration = Duration::from_millis(2);
/// Standard deviations of a Poisson number that it covers.
const SPREAD: f64 = 2.0;

/// How many come before an answer would.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forecast {
    /// Arrivals, each fading over [`MEMORY`].
    level: f64,
    at: Instant,
}

impl Forecast {
    pub(super) fn on_arrival(&mut self, now: Instant) {
        self.level = self.level_at(now) + 1.0;
        self.at = self.at.max(now);
    }

    fn level_at(self, now: Instant) -> f64 {
        let faded = float(now.nanos_since(self.at)) / float(nanos(MEMORY));
        self.level * (-faded).exp()
    }

    /// Tokens that are to be there at `now`.
    fn expected(self, now: Instant) -> u64 {
        let many = self.level_at(now) * AHEAD.as_secs_f64() / MEMORY.as_secs_f64();
        whole((many + SPREAD * many.sqrt()).ceil()) + 1
    }
}

impl RateLimit {
    /// From now on its tokens are lent and borrowed, or no more: then the bucket is as deep as the part says.
    pub(super) fn set_lends(&mut self, lends: bool, now: Instant) {
        self.lends = lends;
        self.rule(now);
    }

    /// True if nothing passes: no part is granted, or it lapsed closed.
    pub(super) fn is_shut(&self) -> bool {
        self.shut
    }

    /// The burst of the part that is in force, as it is without loans.
    pub(super) fn own_burst(&self, now: Instant) -> u64 {
        self.terms(now).map_or(0, |limit| limit.burst)
    }

    /// Tokens that are to be there for what comes before an answer of another proxy would.
    pub(super) fn expected(&self, now: Instant) -> u64 {
        self.forecast.expected(now)
    }
}

impl Purse for RateLimit {
    fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64 {
        self.bucket.as_mut().map_or(0, |bucket| bucket.give(most, keep, now))
    }

    fn receive(&mut self, tokens: u64, now: Instant) -> u64 {
        self.bucket.as_mut().map_or(0, |bucket| bucket.receive(tokens, now))
    }

    fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64 {
        self.bucket.as_mut().map_or(0, |bucket| bucket.cut(by, keep, now))
    }

    fn deepen(&mut self, by: u64, now: Instant) {
        if let Some(bucket) = &mut self.bucket {
            bucket.deepen(by, now);
        }
    }

    fn tokens(&self, now: Instant) -> u64 {
        self.bucket.as_ref().map_or(0, |bucket| Purse::tokens(bucket, now))
    }

    fn limit(&self) -> Limit {
        self.bucket.as_ref().map_or(NOTHING, TokenBucket::limit)
    }

    fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        self.bucket.as_ref().map_or(u64::MAX, |bucket| bucket.wait_ns(cost, now))
    }
}
