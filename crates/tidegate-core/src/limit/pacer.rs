//! When the head of a line goes.

use crate::Instant;
use crate::limit::{Limit, Throttled, TokenBucket};

/// A [`TokenBucket`] as a first-in first-out line asks it: it names the instant at which the item at the head gets its
/// tokens. The line itself is its owner's, in whatever form: in memory, on disk, or not formed at all.
///
/// An item is charged at the instant at which it could first go: when it arrived, or later when the item before it
/// went, and not before the line was last held up by something other than tokens (a pause, no reader, a read from
/// disk). So a late look or a late timer pushes nobody back, and what gathers while the line is held up leaves at the
/// rate and not in one burst.
/// Source: SRTM, §5.2. Departure: the paper's line is never held up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pacer {
    bucket: TokenBucket,
    /// The line was held up until then.
    not_before: Instant,
    held_up: bool,
}

impl Pacer {
    /// A line that is not held up.
    #[must_use]
    pub fn new(bucket: TokenBucket) -> Self {
        Self { bucket, not_before: Instant::ZERO, held_up: false }
    }

    /// The tokens.
    #[must_use]
    pub fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// The tokens, for those who lend them. Take what was due before now first: it is due from what there was.
    pub fn bucket_mut(&mut self) -> &mut TokenBucket {
        &mut self.bucket
    }

    /// The contract in force.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.bucket.limit()
    }

    /// Tokens in the bucket at `now`.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> f64 {
        self.bucket.tokens(now)
    }

    /// Puts `limit` in force from `now` on. Take what was due before `now` first: it is due under the old limit.
    pub fn set_limit(&mut self, limit: Limit, now: Instant) {
        self.bucket.set_limit(limit, now);
    }

    /// Something other than tokens holds the line up from now on, until [`resume`](Self::resume).
    pub fn hold_up(&mut self) {
        self.held_up = true;
    }

    /// Nothing but tokens holds the line up from `now` on. Call before asking; without a hold-up it does nothing.
    #[inline]
    pub fn resume(&mut self, now: Instant) {
        if self.held_up {
            self.held_up = false;
            self.not_before = self.not_before.max(now);
        }
    }

    /// From when on nothing but tokens has held an item that joined the line at `arrival`.
    #[inline]
    #[must_use]
    pub fn since(&self, arrival: Instant) -> Instant {
        arrival.max(self.not_before)
    }

    /// When the item at the head, of `cost`, which joined the line at `arrival`, gets its tokens; `None` if the rate is
    /// zero and they are not there. Takes nothing. An item dearer than the burst waits for all of its cost.
    #[inline]
    #[must_use]
    pub fn release_of(&mut self, cost: u64, arrival: Instant) -> Option<Instant> {
        self.bucket.ready_in_line(cost, self.since(arrival))
    }

    /// Takes the tokens of the item at the head at the instant that [`release_of`](Self::release_of) named.
    ///
    /// # Panics
    /// If the tokens are not there at `release`.
    #[inline]
    pub fn take(&mut self, cost: u64, release: Instant) {
        self.bucket.take_in_line(cost, release);
    }

    /// Takes `cost` tokens where no line is, all or none.
    ///
    /// # Errors
    /// [`Throttled`] says when to come back.
    #[inline]
    pub fn try_pass(&mut self, cost: u64, now: Instant) -> Result<(), Throttled> {
        self.bucket.try_take(cost, now)
    }

    /// Gives back what was taken ahead of `now`, of a line that was only reckoned with and did not form.
    pub fn forget_future(&mut self, now: Instant) {
        self.bucket.forget_future(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn pacer(rate: u64, burst: u64) -> Pacer {
        Pacer::new(TokenBucket::new(Limit::new(Rate::per_s(rate), burst), at(0)))
    }

    /// The releases of items that have waited since 0, asked for at `now`.
    fn releases(pacer: &mut Pacer, now: Instant) -> Vec<Instant> {
        let mut due = Vec::new();
        while let Some(release) = pacer.release_of(1, at(0)).filter(|release| *release <= now) {
            pacer.take(1, release);
            due.push(release);
        }
        due
    }

    #[test]
    fn a_late_look_finds_what_was_due_meanwhile() {
        assert_eq!(releases(&mut pacer(1_000, 2), at(3)), [0, 0, 1, 2, 3].map(at));
    }

    #[test]
    fn what_gathered_while_the_line_was_held_up_does_not_leave_in_one_burst() {
        let mut pacer = pacer(1_000, 2);
        pacer.hold_up();
        pacer.resume(at(100));
        assert_eq!(releases(&mut pacer, at(102)), [100, 100, 101, 102].map(at));
        // Held up again with a line: the bucket fills meanwhile, to its depth and no further.
        pacer.hold_up();
        pacer.resume(at(200));
        assert_eq!(releases(&mut pacer, at(200)), [200, 200].map(at));
    }

    #[test]
    fn a_resume_without_a_hold_up_changes_nothing() {
        let mut pacer = pacer(1_000, 1);
        pacer.resume(at(100));
        assert_eq!(releases(&mut pacer, at(2)), [0, 1, 2].map(at));
    }
}
