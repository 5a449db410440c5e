//! Where a member keeps its tokens.

use crate::Instant;
use crate::lend::frame::Circle;
use crate::limit::{Limit, TokenBucket};

/// A bucket that lends. See [`TokenBucket`] for what each method does exactly.
pub trait Purse {
    /// Gives away at most `most` whole tokens with their depth; `keep` of depth stays. Returns how many.
    fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64;
    /// Takes in `tokens` with their depth. Returns how many.
    fn receive(&mut self, tokens: u64, now: Instant) -> u64;
    /// Takes away at most `by` of depth, and the tokens that no longer fit; `keep` stays. Returns how much.
    fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64;
    /// Adds `by` of depth and no token.
    fn deepen(&mut self, by: u64, now: Instant);
    /// Whole tokens that are there at `now`.
    fn tokens(&self, now: Instant) -> u64;
    /// The contract in force: the rate of this part, and the depth that it has just now.
    fn limit(&self) -> Limit;
    /// Nanoseconds after `now` until `cost` tokens are there if none is taken or lent; `u64::MAX` if they never are. Or
    /// longer, if fractions of a token are not known.
    fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        let (missing, rate) = (cost.saturating_sub(self.tokens(now)), self.limit().rate);
        let wait = match u128::from(rate.tokens()) {
            _ if missing == 0 => 0,
            0 => u128::MAX,
            per_ns => (u128::from(missing) * u128::from(rate.period_ns())).div_ceil(per_ns),
        };
        u64::try_from(wait).unwrap_or(u64::MAX)
    }
}

impl Purse for TokenBucket {
    fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64 {
        TokenBucket::give(self, most, keep, now)
    }

    fn receive(&mut self, tokens: u64, now: Instant) -> u64 {
        TokenBucket::receive(self, tokens, now)
    }

    fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64 {
        TokenBucket::cut(self, by, keep, now)
    }

    fn deepen(&mut self, by: u64, now: Instant) {
        TokenBucket::deepen(self, by, now);
    }

    fn tokens(&self, now: Instant) -> u64 {
        u64::try_from(self.level(now) / u128::from(self.limit().rate.period_ns())).unwrap_or(u64::MAX)
    }

    fn limit(&self) -> Limit {
        TokenBucket::limit(self)
    }

    fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        TokenBucket::wait_ns(self, cost, now)
    }
}

/// The purses of one member, by circle.
pub trait Purses {
    /// The purse of `circle`; `None` if there is none.
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse>;
}
