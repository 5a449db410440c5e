//! A limiter, its part of a rate that several proxies divide, and what it lends to them and borrows.
//!
//! It lends from its first part on, in the circle that the order names. When its part lapses into nothing it forgets the
//! circle at once: others have what it lent for a loan's lease more, which whoever divides the limit counts. When it joins
//! again it is as one that was started again: it has a token of depth until no loan of before can be left.

use tidegate_core::Instant;
use tidegate_core::lease::{Grant, Refused};
use tidegate_core::lend::{Circle, Frame, LendConfig, Lending, Member, Memory, Purse, Purses};
use tidegate_core::limit::Limit;

use super::{Decision, Ended, Output, RateLimit, RateLimitConfig};

/// Depth that is never lent: what a request costs.
const KEEP: u64 = 1;

/// Who lends to whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LendTerms {
    /// The same for all members, and another one for other terms.
    pub circle: Circle,
    /// Who this limiter is.
    pub own: Member,
    /// All of them.
    pub members: Vec<Member>,
}

/// Why a part is not in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGranted {
    /// The order changes nothing.
    Refused(Refused),
    /// So much of the burst that the part does not have any more is lent: it is there when the loans are over.
    Lent {
        /// Tokens of depth.
        tokens: u64,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct SharedLimit {
    limiter: RateLimit,
    lending: Option<(LendTerms, Lending)>,
    /// The number of the next session of lending; no other start of this proxy had it or will have it.
    boot: u32,
    /// It may have lent what it does not know of.
    has_lent: bool,
}

struct One<'a>(Circle, &'a mut RateLimit);

impl Purses for One<'_> {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        (circle == self.0).then_some(self.1 as &mut dyn Purse)
    }
}

impl SharedLimit {
    /// It lends nothing yet. `boot` is a number that no start before had; those that follow it are free as well.
    #[must_use]
    pub fn new(config: RateLimitConfig, boot: u32, now: Instant) -> Self {
        // What the process before lent is not known.
        Self { limiter: RateLimit::new(config, now), lending: None, boot, has_lent: true }
    }

    /// Nobody has lent before: it is known that no process was here.
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { has_lent: false, ..self }
    }

    /// Who it is in its circle; `None` if it lends nothing.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        self.lending.as_ref().map(|(terms, _)| terms.own)
    }

    /// The limiter.
    #[must_use]
    pub fn limiter(&self) -> &RateLimit {
        &self.limiter
    }

    /// See [`RateLimit::set_config`].
    pub fn set_config(&mut self, config: RateLimitConfig, now: Instant) {
        self.settle(now);
        self.limiter.set_config(config, now);
        self.set_base(now);
    }

    /// See [`RateLimit::lift`].
    pub fn lift(&mut self, now: Instant) {
        self.forget(now);
        self.limiter.lift(now);
    }

    /// See [`RateLimit::on_arrival`].
    pub fn on_arrival(&mut self, id: u64, now: Instant) -> Decision {
        self.settle(now);
        let decision = self.limiter.on_arrival(id, now);
        self.look(now);
        decision
    }

    /// See [`RateLimit::on_end`].
    pub fn on_end(&mut self, id: u64, now: Instant) -> Ended {
        self.settle(now);
        self.limiter.on_end(id, now)
    }

    /// A frame of another proxy came.
    pub fn on_frame(&mut self, frame: &Frame, now: Instant) {
        self.settle(now);
        if let Some((terms, lending)) = &mut self.lending {
            lending.on_frame(frame, &mut One(terms.circle, &mut self.limiter), now);
        }
        // Whoever waits may go on.
        self.limiter.on_timeout(now);
        self.look(now);
    }

    /// When to call [`Self::on_timeout`].
    #[must_use]
    pub fn next_timeout(&mut self) -> Option<Instant> {
        let lending = self.lending.as_ref().and_then(|(_, lending)| lending.next_timeout());
        [self.limiter.next_timeout(), lending].into_iter().flatten().min()
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant) {
        self.settle(now);
        self.look(now);
    }

    /// What became of those who waited; call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.limiter.poll_output()
    }

    /// The next frame to send; call until `None`.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.lending.as_mut()?.1.poll_output()
    }

    /// Puts a part in force, or renews it, and lends with others as `terms` say, if there are any.
    ///
    /// # Errors
    /// [`NotGranted`]. Where it is lent what the part has no more, the rate is in force and the burst is on its way: the same
    /// order again says when it is.
    pub fn grant(&mut self, grant: Grant<Limit>, terms: Option<&LendTerms>, now: Instant) -> Result<(), NotGranted> {
        self.settle(now);
        self.limiter.grant_part(grant, now).map_err(NotGranted::Refused)?;
        if self.limiter.is_shut() {
            self.forget(now);
            return Ok(());
        }
        if self.lending.as_ref().map(|(now_in, _)| now_in) != terms {
            self.join(terms, now);
        }
        match self.set_base(now) {
            0 => Ok(()),
            tokens => Err(NotGranted::Lent { tokens }),
        }
    }

    /// See [`RateLimit::remove_part`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, revision: u64, now: Instant) -> Result<(), Refused> {
        self.settle(now);
        self.limiter.remove_part(revision, now)?;
        self.forget(now);
        Ok(())
    }

    /// This machine has slept, and its clock stood still meanwhile: what it borrowed is over, and its part lapses. Call it
    /// before anything is taken.
    pub fn on_slept(&mut self, now: Instant) {
        if let Some((terms, lending)) = &mut self.lending {
            lending.on_slept(&mut One(terms.circle, &mut self.limiter), now);
        }
        self.limiter.on_slept(now);
        self.settle(now);
    }

    /// What lapsed until now is out of force: the part first, and then what is borrowed.
    fn settle(&mut self, now: Instant) {
        self.limiter.on_timeout(now);
        if self.limiter.is_shut() {
            self.forget(now);
        }
        if let Some((terms, lending)) = &mut self.lending {
            lending.settle(&mut One(terms.circle, &mut self.limiter), now);
        }
    }

    /// Has lending ask for what will be missing.
    fn look(&mut self, now: Instant) {
        if let Some((terms, lending)) = &mut self.lending {
            let expected = self.limiter.expected(now);
            lending.look(terms.circle, expected, &mut One(terms.circle, &mut self.limiter), now);
            // It asks at once: a machine of one circle waits for no company.
            if lending.next_timeout().is_some_and(|at| at <= now) {
                lending.on_timeout(&mut One(terms.circle, &mut self.limiter), now);
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.lending.take().is_some() {
            self.limiter.set_lends(false, now);
        }
    }

    /// Joins the circle of `terms`; without any, one of its own, in which it waits for the end of what it lent before.
    fn join(&mut self, terms: Option<&LendTerms>, now: Instant) {
        self.forget(now);
        let alone = || LendTerms { circle: Circle(0), own: Member(0), members: Vec::new() };
        let terms = match terms {
            Some(terms) => terms.clone(),
            None if self.has_lent && self.limiter.config().divided => alone(),
            None => return,
        };
        let memory = if self.has_lent { Memory::Unknown } else { Memory::Fresh };
        let mut lending = Lending::new(LendConfig::new(terms.own), self.boot, now);
        let base = self.limiter.own_burst(now);
        // A circle of more than it can know is not joined: the part is a part alone.
        if lending.open(terms.circle, &terms.members, (base, KEEP), memory, &mut self.limiter, now).is_ok() {
            self.boot = self.boot.wrapping_add(1);
            self.has_lent = true;
            self.limiter.set_lends(true, now);
            self.lending = Some((terms, lending));
        }
    }

    /// Makes the burst of the part the base of the circle; what of it cannot be yet.
    fn set_base(&mut self, now: Instant) -> u64 {
        let burst = self.limiter.own_burst(now);
        let Some((terms, lending)) = &mut self.lending else { return 0 };
        let reached = lending.set_base(terms.circle, burst, &mut One(terms.circle, &mut self.limiter), now);
        reached.saturating_sub(burst)
    }
}
