//! A limiter's part of a rate that several proxies divide, and what is asked of it each second.
//!
//! A part is a rate and a burst of its own, granted until an instant and fenced by its revision; the parts of all proxies
//! sum to the rate that the configuration states. It stands beside that rate, rules no more than it, and goes with the
//! process. A rate that is divided admits nothing before the first part is granted: other proxies may have all of it.

use core::time::Duration;

use tidegate_core::estimate::seconds::{Ring, Window, second_of};
use tidegate_core::lease::{Grant, InForce, Leases, OnLapse, Refused};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::number::whole;
use tidegate_core::{Instant, Rate};

/// Lets nothing pass.
pub(super) const NOTHING: Limit = Limit::new(Rate::ZERO, 0);

/// A part as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartStatus {
    /// The rate and burst that rule the bucket; `None` if nothing does: the part has lapsed open, and no rate is stated.
    pub in_force: Option<Limit>,
    /// The revision of its order.
    pub revision: u64,
    /// The part as it was granted.
    pub limit: Limit,
    /// Until its lease ends; `None` if it has.
    pub lapses_in: Option<Duration>,
    /// What holds then.
    pub on_lapse: OnLapse,
}

/// A second of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DemandSecond {
    /// When it began, in whole seconds of the caller's clock.
    pub second: u64,
    /// Visits that wanted to begin, those that were turned away included.
    pub arrived: u64,
    /// Those of them that were turned away for want of a token.
    pub refused: u64,
    /// Tokens that would have been missing from a full bucket at the worst moment, had nobody been turned away in this
    /// second: those that were, whoever waited, and those that refused.
    pub backlog_max: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Second {
    arrived: u64,
    refused: u64,
    backlog_max: u64,
}

/// What a limiter knows of its part. 1.6 KB.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Of one key at most.
    leases: Leases<(), Limit>,
    /// What was granted last, and what holds when that has lapsed.
    granted: (Limit, OnLapse),
    seconds: Ring<Second>,
    /// The first second that was watched from its beginning.
    since: u64,
}

impl Part {
    /// None was granted yet.
    pub(super) fn new(now: Instant) -> Self {
        let (seconds, since) = (Ring::new(now), second_of(now) + 1);
        Self { leases: Leases::new(1), granted: (NOTHING, OnLapse::default()), seconds, since }
    }

    /// What holds at `now` of a rate that the configuration states, or divides.
    pub(super) fn terms(&self, stated: Option<Limit>, divided: bool, now: Instant) -> Option<Limit> {
        match self.leases.in_force(&(), now) {
            None if divided => Some(NOTHING),
            None | Some(InForce::Open) => stated,
            Some(InForce::Closed) => Some(NOTHING),
            Some(InForce::Granted(part) | InForce::Last(part)) => {
                Some(stated.map_or(*part, |stated| part.lesser(stated)))
            }
        }
    }

    /// See [`Leases::grant`].
    pub(super) fn grant(&mut self, grant: Grant<Limit>, now: Instant) -> Result<(), Refused> {
        let granted = (grant.value, grant.on_lapse);
        self.leases.grant((), grant, now)?;
        self.granted = granted;
        Ok(())
    }

    /// See [`Leases::give_back`].
    pub(super) fn give_back(&mut self, revision: u64, now: Instant) -> Result<(), Refused> {
        if !self.is_there(now) {
            return Err(match self.leases.revision(&()) {
                Some(known) if revision < known => Refused::Fenced { known },
                _ => Refused::Unknown,
            });
        }
        self.leases.give_back(&(), revision, now)
    }

    /// When what holds changes, unless the part is renewed.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.leases.next_timeout()
    }

    /// The leases that ended until `now` have lapsed.
    pub(super) fn lapse(&mut self, now: Instant) {
        self.leases.on_timeout(now);
    }

    /// Whether one was granted that was not taken away.
    pub(super) fn is_there(&self, now: Instant) -> bool {
        self.leases.in_force(&(), now).is_some()
    }

    /// What was granted may be over, whatever the clock says.
    pub(super) fn on_slept(&mut self) {
        self.leases.on_slept();
    }

    /// The part, where `in_force` holds.
    pub(super) fn status(&self, in_force: Option<Limit>, now: Instant) -> Option<PartStatus> {
        self.leases.in_force(&(), now)?;
        let revision = self.leases.revision(&())?;
        let lapses_in = self.leases.until(&()).filter(|until| *until > now).map(|until| until.since(now));
        let (limit, on_lapse) = self.granted;
        Some(PartStatus { in_force, revision, limit, lapses_in, on_lapse })
    }

    /// A visit came, and `bucket` is as it then was; `waiting` are in line.
    pub(super) fn count(&mut self, bucket: Option<&TokenBucket>, waiting: u64, refused: bool, now: Instant) {
        let missing = bucket.map_or(0, |bucket| {
            let depth = bucket.limit().burst;
            depth.saturating_sub(whole(bucket.tokens(now).max(0.0) + 1e-6))
        });
        let second = self.seconds.at(now);
        second.arrived += 1;
        second.refused += u64::from(refused);
        let backlog = missing.saturating_add(waiting).saturating_add(second.refused);
        second.backlog_max = second.backlog_max.max(backlog);
    }

    /// The last `seconds` whole seconds that were watched, the oldest first.
    pub(super) fn demand(&self, seconds: u64, now: Instant) -> Vec<DemandSecond> {
        let one = |number: u64| {
            let Second { arrived, refused, backlog_max } = self.seconds.get(number);
            DemandSecond { second: number, arrived, refused, backlog_max }
        };
        Window::before(now, seconds, self.since).seconds().map(one).collect()
    }
}
