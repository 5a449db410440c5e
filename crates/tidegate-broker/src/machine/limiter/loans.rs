//! A limiter whose tokens are lent.

use tidegate_core::lend::Purse;
use tidegate_core::limit::{Limit, Pacer, TokenBucket};
use tidegate_core::{Instant, Rate};

use super::{Limiter, Unit};

/// Parts of a message that are lent. Where a part of the burst is four messages, a third of what is above the other is
/// rarely a whole number: six simulated members that lend whole ones delay by 230 us instead of 180, with 18 frames for a
/// hundred messages instead of 15.
pub(crate) const GRAINS: u64 = 16;

impl Limiter {
    /// The same but for loans.
    pub(crate) fn own_limit(&self) -> Limit {
        self.own
    }

    /// Nothing is lent, nor borrowed.
    pub(crate) fn is_unlent(&self) -> bool {
        self.loans == 0
    }

    /// From now on the bucket counts each message as [`GRAINS`], so that parts of one can be lent.
    pub(crate) fn refine(&mut self) {
        if self.grain > 1 || self.contract.unit != Unit::Messages || !self.is_unlent() {
            return;
        }
        self.grain = GRAINS;
        let bucket = self.pacer.bucket_mut();
        *bucket = bucket.in_parts(GRAINS);
        self.uncut = self.uncut.take().map(|uncut| uncut.in_parts(GRAINS));
    }

    /// Nothing is lent: the bucket counts messages again, and what came back until now is forgotten.
    pub(crate) fn coarsen(&mut self) {
        if !self.is_unlent() {
            return;
        }
        self.refundable = u64::MAX;
        if self.grain == 1 {
            return;
        }
        let bucket = self.in_tokens(self.pacer.bucket());
        let uncut = self.uncut.take().map(|uncut| self.in_tokens(&uncut));
        *self.pacer.bucket_mut() = bucket;
        (self.uncut, self.grain) = (uncut, 1);
    }

    /// The rate of the bucket, in tokens.
    pub(super) fn rate(&self) -> Rate {
        self.kept_rate.map_or(self.own.rate, |kept| kept.min(self.own.rate))
    }

    /// What the bucket counts one token as.
    pub(crate) fn grain(&self) -> u64 {
        self.grain
    }

    /// A bucket of grains as one of tokens.
    pub(super) fn in_tokens(&self, bucket: &TokenBucket) -> TokenBucket {
        if self.grain == 1 { bucket.clone() } else { bucket.of_parts(self.grain, self.own.rate) }
    }

    /// The contract of the bucket, in grains.
    pub(super) fn with_loans(&self) -> Limit {
        let burst = (i128::from(self.own.burst) * i128::from(self.grain) + self.loans).max(0);
        let rate = if self.grain == 1 { self.rate() } else { self.rate().times(self.grain) };
        Limit::new(rate, u64::try_from(burst).unwrap_or(u64::MAX))
    }

    /// Lanes mint the rest of the rate, or (`None`) nobody does.
    pub(crate) fn keep_rate(&mut self, kept: Option<Rate>, now: Instant) {
        (self.kept_rate, self.lanes_out) = (kept, true);
        self.set_depth(now);
    }

    /// What lanes bring back is no more than the limit that was just put in force has left of all tokens.
    pub(super) fn bound_refund(&mut self, now: Instant) {
        if self.grain > 1 || self.loans >= 0 {
            return;
        }
        let bucket = self.pacer.bucket();
        let here = bucket.level(now).div_ceil(u128::from(bucket.limit().rate.period_ns()));
        let here = u64::try_from(here).unwrap_or(u64::MAX);
        self.refundable = self.refundable.min(self.own.burst.saturating_sub(here));
    }

    /// Nothing is with lanes any more: the bucket is as deep as its own burst, and has the `tokens` that they had left, as
    /// far as they fit.
    pub(crate) fn reclaim(&mut self, tokens: u64, now: Instant) {
        let tokens = tokens.min(self.refundable);
        (self.loans, self.kept_rate, self.refundable, self.lanes_out) = (0, None, u64::MAX, false);
        self.set_depth(now);
        let less = self.cut(tokens, 0, now);
        self.receive(less, now);
    }

    /// More is lent than its own burst.
    pub(crate) fn is_overlent(&self) -> bool {
        i128::from(self.own.burst) * i128::from(self.grain) + self.loans < 0
    }

    /// What is lent will not come back to this limiter, and is over at `until`: it counts as empty until then.
    pub(crate) fn forfeit(&mut self, until: Instant) {
        (self.loans, self.kept_rate, self.uncut, self.lanes_out) = (0, None, None, false);
        self.pacer = Pacer::new(TokenBucket::empty(self.with_loans(), until));
    }
}

/// In grains. What is lent moves depth in the same way in the bucket as it was before the contract cut it, so that this
/// goes on to hold at least as much.
impl Purse for Limiter {
    fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64 {
        let given = self.pacer.bucket_mut().give(most, keep, now);
        if let Some(uncut) = &mut self.uncut {
            uncut.give(given, 0, now);
        }
        self.loans -= i128::from(given);
        given
    }

    fn receive(&mut self, tokens: u64, now: Instant) -> u64 {
        let received = self.pacer.bucket_mut().receive(tokens, now);
        if let Some(uncut) = &mut self.uncut {
            uncut.receive(received, now);
        }
        self.loans += i128::from(received);
        received
    }

    fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64 {
        let less = self.pacer.bucket_mut().cut(by, keep, now);
        if let Some(uncut) = &mut self.uncut {
            uncut.cut(less, 0, now);
        }
        self.loans -= i128::from(less);
        less
    }

    fn deepen(&mut self, by: u64, now: Instant) {
        if let Some(uncut) = &mut self.uncut {
            uncut.deepen(by, now);
        }
        self.loans += i128::from(by);
        // Not by `by` where more is lent than its own burst.
        self.pacer.set_limit(self.with_loans(), now);
    }

    fn tokens(&self, now: Instant) -> u64 {
        Purse::tokens(self.pacer.bucket(), now)
    }

    fn limit(&self) -> Limit {
        self.pacer.limit()
    }

    fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        Purse::wait_ns(self.pacer.bucket(), cost, now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contract, Discipline, Mode, Pass, Source, Terms, Unit};
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn terms(burst: u64) -> Terms {
        let limit = Limit::new(Rate::per_s(1_000), burst);
        let contract = Contract { limit, unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce };
        Terms::of((contract, Source::Admin))
    }

    fn limiter(burst: u64) -> Limiter {
        let terms = terms(burst);
        Limiter::new(terms, TokenBucket::new(terms.limit(), at(0)), 0, at(0))
    }

    fn depth(limiter: &Limiter) -> (u64, u64) {
        (limiter.limit().burst, limiter.own_limit().burst)
    }

    #[test]
    fn a_change_of_the_burst_leaves_what_is_lent() {
        let mut limiter = limiter(13);
        assert_eq!(limiter.give(5, 1, at(0)), 5);
        assert_eq!(depth(&limiter), (8, 13));
        limiter.rule(terms(9), 0, at(0));
        assert_eq!((depth(&limiter), limiter.is_unlent(), limiter.is_overlent()), ((4, 9), false, false));
        limiter.deepen(5, at(0));
        assert_eq!((depth(&limiter), limiter.is_unlent()), ((9, 9), true));
        assert_eq!(Purse::tokens(&limiter, at(0)), 4, "depth comes back without tokens");
    }

    #[test]
    fn with_more_lent_than_its_burst_it_is_as_deep_as_its_burst_when_that_is_back() {
        let mut limiter = limiter(13);
        limiter.give(8, 1, at(0));
        limiter.rule(terms(3), 0, at(0));
        assert_eq!((depth(&limiter), limiter.is_overlent()), ((0, 3), true));
        limiter.deepen(4, at(0));
        assert_eq!((depth(&limiter), limiter.is_overlent()), ((0, 3), true));
        limiter.deepen(4, at(0));
        assert_eq!((depth(&limiter), limiter.is_overlent()), ((3, 3), false));
    }

    #[test]
    fn what_was_cut_from_a_deeper_bucket_can_be_borrowed_for_and_spent() {
        let mut limiter = limiter(26);
        limiter.rule(terms(13), 0, at(0));
        assert_eq!(limiter.receive(5, at(0)), 5);
        let passed = (0..40).filter(|_| matches!(limiter.pass(1, at(0), at(2)), Pass::Released { .. })).count();
        assert_eq!(passed, 18 + 2);
        // The borrowed depth goes; the bucket is remembered as one that is not full before the deeper one would be.
        assert_eq!(limiter.cut(5, 1, at(2)), 5);
        assert_eq!(depth(&limiter), (13, 13));
        let full_at = limiter.into_bucket(at(2)).full_at().unwrap();
        assert!(full_at >= at(2 + 13), "{full_at:?}");
    }

    #[test]
    fn parts_of_a_message_are_lent_and_messages_pass_as_before() {
        let (mut coarse, mut fine) = (limiter(13), limiter(13));
        fine.refine();
        assert_eq!(fine.limit(), coarse.limit());
        let passed = |limiter: &mut Limiter, from, now| {
            let passes = |limiter: &mut Limiter| matches!(limiter.pass(1, at(from), at(now)), Pass::Released { .. });
            (0..40).filter(|_| passes(limiter)).count()
        };
        assert_eq!((passed(&mut fine, 0, 2), passed(&mut coarse, 0, 2)), (15, 15));
        // A third of a message and its depth go, and come back.
        assert_eq!(Purse::give(&mut fine, 16 * 13, GRAINS, at(4)), 16 * 2);
        assert_eq!(fine.receive(16 * 2 - 5, at(4)), 16 * 2 - 5);
        assert_eq!((depth(&fine), Purse::limit(&fine).burst, fine.is_unlent()), ((12, 13), 16 * 13 - 5, false));
        assert_eq!(passed(&mut fine, 4, 4), 1, "eleven sixteenths are left");
        fine.receive(5, at(4));
        assert_eq!((passed(&mut fine, 4, 4), passed(&mut coarse, 4, 4), fine.is_unlent()), (1, 2, true));
        assert_eq!(fine.remembered(at(9)), coarse.remembered(at(9)));
        // Another contract rules the bucket in messages, too.
        fine.rule(terms(3), 0, at(9));
        assert_eq!((depth(&fine), Purse::limit(&fine).burst), ((3, 3), 48));
        fine.forfeit(at(1_000));
        assert_eq!(Purse::tokens(&fine, at(1_001)), 16);
    }

    #[test]
    fn a_bucket_whose_parts_were_lent_counts_messages_again() {
        let mut limiter = limiter(13);
        limiter.refine();
        limiter.give(GRAINS / 2, GRAINS, at(0));
        limiter.coarsen();
        assert_eq!(limiter.grain(), GRAINS, "half a message is lent");
        limiter.receive(GRAINS / 2, at(0));
        limiter.coarsen();
        assert_eq!((limiter.grain(), depth(&limiter), Purse::tokens(&limiter, at(0))), (1, (13, 13), 13));
    }

    #[test]
    fn what_lanes_have_comes_back_without_minting() {
        let mut limiter = limiter(10);
        assert_eq!(limiter.cut(4, 1, at(0)), 4);
        limiter.keep_rate(Some(Rate::per_s(600)), at(0));
        assert_eq!((limiter.limit(), limiter.is_unlent()), (Limit::new(Rate::per_s(600), 6), false));
        // The contract is made smaller while a lane has its share.
        limiter.rule(terms(5), 0, at(0));
        assert_eq!(depth(&limiter), (1, 5));
        limiter.keep_rate(None, at(0));
        limiter.reclaim(3, at(0));
        assert_eq!((depth(&limiter), Purse::tokens(&limiter, at(0)), limiter.is_unlent()), ((5, 5), 4, true));
    }

    #[test]
    fn what_comes_back_from_lanes_was_cut_with_the_rest() {
        let mut limiter = limiter(10);
        limiter.cut(6, 1, at(0));
        // Made smaller than what lanes have, and larger again before that is back.
        limiter.rule(terms(3), 0, at(0));
        limiter.rule(terms(20), 0, at(0));
        limiter.reclaim(6, at(0));
        assert_eq!((depth(&limiter), Purse::tokens(&limiter, at(0))), ((20, 20), 3));
    }

    #[test]
    fn nothing_passes_beside_lanes_that_may_have_all_there_is() {
        let mut limiter = limiter(10);
        limiter.cut(6, 1, at(0));
        limiter.keep_rate(None, at(0));
        limiter.rule(terms(3), 0, at(0));
        // A message dearer than a bucket would pass it all the same, beside what lanes bring back.
        assert_eq!(limiter.pass(1, at(0), at(5)), Pass::Never);
        limiter.reclaim(3, at(5));
        assert!(matches!(limiter.pass(1, at(0), at(5)), Pass::Released { .. }));
        assert_eq!(Purse::tokens(&limiter, at(5)), 2);
    }

    #[test]
    fn a_forfeited_bucket_holds_nothing_before_all_loans_have_ended() {
        let mut limiter = limiter(10);
        limiter.give(4, 1, at(0));
        limiter.forfeit(at(1_000));
        assert_eq!((depth(&limiter), Purse::tokens(&limiter, at(999))), ((10, 10), 0));
        assert_eq!(Purse::tokens(&limiter, at(1_003)), 3);
    }
}
