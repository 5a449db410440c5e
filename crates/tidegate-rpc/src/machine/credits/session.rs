//! The sessions, and the ledger of their credits.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;

use crate::machine::credits::Level;
use crate::machine::credits::mark::Generation;
use crate::machine::{Full, SessionId};

/// No neighbour in a list.
const NONE: u32 = u32::MAX;

/// The unit of a span that is kept short, in nanoseconds.
const LESSER_UNIT: u64 = 1024;

/// What is known of one client. 64 bytes, and never in two lines of a cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Session {
    /// When it was last heard; [`Instant::ZERO`] if never.
    pub(super) heard: Instant,
    /// Until when the client may act on what it was told.
    pub(super) lease_until: Instant,
    /// Until when `charged` credits are out.
    charged_until: Instant,
    /// What it was told.
    pub(super) level: Level,
    /// Time between the calls that it wants to make, averaged, in nanoseconds; 0 if unknown.
    pub(super) gap_ns: f32,
    /// What earlier chances left over, in 1/65536, for what the server decides in its stead.
    pub(super) carry: u16,
    /// Which of those that had this place it is; even while the place is free.
    generation: u32,
    /// Calls in the server.
    pub(super) in_server: u16,
    pub(super) tenant: u16,
    /// Credits in the ledger: the most that it may still believe in.
    charged: u16,
    /// The most that it was told since, in leases that outlive that one; and by how much the last of them does, in
    /// units of 1,024 ns.
    lesser: u16,
    lesser_after: u32,
    /// The stretch of time in which it was last heard, for counting the active ones.
    pub(super) stretch: u16,
    /// Calls of it in that stretch that were not held back.
    pub(super) calls: u16,
    /// Whether it was told less than others of its tenant.
    pub(super) capped: bool,
    /// Neighbours among those with charged credits, or the next free place.
    before: u32,
    after: u32,
}

/// All sessions, by place; those with credits in a list, the oldest lease first.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    places: Vec<Session>,
    bound: usize,
    free: u32,
    open: u32,
    first: u32,
    last: u32,
    /// Credits out.
    charged: u32,
}

impl Sessions {
    pub(super) fn new(bound: usize) -> Self {
        let bound = bound.min(NONE as usize - 1);
        Self { places: Vec::new(), bound, free: NONE, open: 0, first: NONE, last: NONE, charged: 0 }
    }

    /// Number of open sessions.
    #[inline]
    pub(super) fn open_count(&self) -> u32 {
        self.open
    }

    /// Credits out.
    #[inline]
    pub(super) fn charged(&self) -> u32 {
        self.charged
    }

    pub(super) fn open(&mut self, tenant: u16) -> Result<SessionId, Full> {
        let place = if self.free == NONE {
            if self.places.len() >= self.bound {
                return Err(Full { sessions: self.bound });
            }
            self.places.push(Session::free(0, NONE));
            u32::try_from(self.places.len() - 1).expect("the bound is below 2^32")
        } else {
            self.free
        };
        let session = &mut self.places[place as usize];
        self.free = if self.free == NONE { NONE } else { session.after };
        session.generation += 1;
        session.tenant = tenant;
        session.after = NONE;
        self.open += 1;
        Ok(SessionId(place))
    }

    /// Frees the place; returns the tenant and how many credits came back.
    pub(super) fn close(&mut self, id: SessionId) -> Option<(u16, u16)> {
        self.get(id)?;
        let freed = self.places[id.0 as usize].charged;
        self.discharge(id.0);
        let free = self.free;
        let session = &mut self.places[id.0 as usize];
        let tenant = session.tenant;
        *session = Session::free(session.generation + 1, free);
        self.free = id.0;
        self.open -= 1;
        Some((tenant, freed))
    }

    /// An open session.
    #[inline]
    pub(super) fn get(&mut self, id: SessionId) -> Option<&mut Session> {
        self.places.get_mut(id.0 as usize).filter(|session| session.generation % 2 == 1)
    }

    /// Credits that an open session may use at `now`.
    #[cfg(test)]
    pub(super) fn credits(&self, id: SessionId, now: Instant) -> u16 {
        self.places[id.0 as usize].credits(now)
    }

    /// Tells a session its credits, which it may use `until` then; at most `free` more than are charged for it already.
    ///
    /// What it was told before may still be on its way or in use: the ledger keeps the greatest of all that it was told
    /// until the lease of that has ended, then the greatest of what it was told since. Returns what it is told, and how many more are out.
    pub(super) fn grant(&mut self, id: SessionId, wanted: u16, free: u32, until: Instant) -> (u16, u16) {
        let session = &mut self.places[id.0 as usize];
        let most = u32::from(session.charged) + free;
        let told = u16::try_from(u32::from(wanted).min(most)).expect("not above what was wanted");
        let more = told.saturating_sub(session.charged);
        if told >= session.charged && told > 0 {
            // All that it was told before is within this, as long as the longest of those leases.
            session.charged_until = until.max(session.lesser_until());
            (session.charged, session.lesser, session.lesser_after) = (told, 0, 0);
            self.unlink(id.0);
            self.append(id.0);
        } else if told > 0 && until > session.charged_until {
            // Answers may overtake each other, or be lost: it may go on to believe in any of them.
            let after = until.nanos_since(session.charged_until).div_ceil(LESSER_UNIT);
            session.lesser = session.lesser.max(told);
            session.lesser_after = session.lesser_after.max(u32::try_from(after).unwrap_or(u32::MAX));
        }
        self.charged += u32::from(more);
        (told, more)
    }

    /// When the oldest lease of credits ends.
    #[inline]
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.places.get(self.first as usize).map(|session| session.charged_until)
    }

    /// Takes back what a lease that has ended at `now` gave out beyond the session's present lease; returns the tenant
    /// and how many. Call until `None`.
    #[inline]
    pub(super) fn expire(&mut self, now: Instant) -> Option<(u16, u16)> {
        let first = self.first;
        let session = self.places.get_mut(first as usize).filter(|session| session.charged_until <= now)?;
        let (tenant, charged) = (session.tenant, session.charged);
        let (lesser, until) = (session.lesser, session.lesser_until());
        self.discharge(first);
        if lesser == 0 || until <= now {
            return Some((tenant, charged));
        }
        // It was told fewer meanwhile: these stay out until that lease ends.
        let session = &mut self.places[first as usize];
        session.charged = lesser;
        session.charged_until = until;
        self.append(first);
        self.charged += u32::from(lesser);
        Some((tenant, charged - lesser))
    }

    fn discharge(&mut self, place: u32) {
        self.unlink(place);
        let session = &mut self.places[place as usize];
        self.charged -= u32::from(session.charged);
        session.charged_until = Instant::ZERO;
        (session.charged, session.lesser, session.lesser_after) = (0, 0, 0);
    }

    fn linked(&self, place: u32) -> bool {
        self.first == place || self.places[place as usize].before != NONE
    }

    fn unlink(&mut self, place: u32) {
        if !self.linked(place) {
            return;
        }
        let Session { before, after, .. } = self.places[place as usize];
        if before == NONE {
            self.first = after;
        } else {
            self.places[before as usize].after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            self.places[after as usize].before = before;
        }
        let session = &mut self.places[place as usize];
        (session.before, session.after) = (NONE, NONE);
    }

    fn append(&mut self, place: u32) {
        let last = self.last;
        self.places[place as usize].before = last;
        if last == NONE {
            self.first = place;
        } else {
            self.places[last as usize].after = place;
        }
        self.last = place;
    }
}

impl Session {
    /// With its id it names one client for as good as ever.
    #[inline]
    pub(super) fn generation(&self) -> Generation {
        Generation::of(self.generation)
    }

    /// Credits that it may use at `now`.
    #[inline]
    pub(super) fn credits(&self, now: Instant) -> u16 {
        if now < self.charged_until { self.charged } else { 0 }
    }

    /// Nobody, in a place that is free; `after` is the next such place.
    fn free(generation: u32, after: u32) -> Self {
        Self {
            heard: Instant::ZERO,
            lease_until: Instant::ZERO,
            charged_until: Instant::ZERO,
            level: Level::OPEN,
            gap_ns: 0.0,
            carry: 0,
            generation,
            in_server: 0,
            tenant: 0,
            charged: 0,
            lesser: 0,
            lesser_after: 0,
            stretch: 0,
            calls: 0,
            capped: false,
            before: NONE,
            after,
        }
    }

    /// Until when it may believe in `lesser` credits.
    fn lesser_until(&self) -> Instant {
        self.charged_until.plus_nanos(u64::from(self.lesser_after) * LESSER_UNIT)
    }

    /// Heard at `now` by a call that its client let through with a chance of `told`.
    #[expect(clippy::cast_possible_truncation, reason = "an average; f32 is exact enough")]
    #[inline]
    pub(super) fn hear(&mut self, told: f64, now: Instant) {
        if self.heard != Instant::ZERO {
            let gap = float(now.nanos_since(self.heard)) * told;
            let old = f64::from(self.gap_ns);
            // An eighth: a burst of a few calls does not make a client a fast one.
            self.gap_ns = if old > 0.0 { old + (gap - old) / 8.0 } else { gap } as f32;
        }
        self.heard = now;
    }

    /// Time between its calls that are let through with `chance`, in nanoseconds; `None` if unknown.
    #[inline]
    pub(super) fn gap(&self, chance: f64) -> Option<f64> {
        (self.gap_ns > 0.0).then(|| f64::from(self.gap_ns) / chance)
    }

    /// Whether a call goes that the server lets through with this chance.
    #[inline]
    pub(super) fn passes(&mut self, chance: f64) -> bool {
        let mut carry = u32::from(self.carry);
        let passes = Level::passes_by(chance, &mut carry);
        self.carry = u16::try_from(carry).expect("what is left over is below one");
        passes
    }

    /// The chance with which its client let a call through, as far as the server told it; 1 if that has expired.
    #[inline]
    pub(super) fn chance(&self, priority: crate::machine::Priority, now: Instant) -> f64 {
        if self.level == Level::OPEN || now >= self.lease_until { 1.0 } else { self.level.chance(priority) }
    }
}

/// A span as nanoseconds in floating point.
#[inline]
pub(super) fn span(of: Duration) -> f64 {
    float(nanos(of))
}

/// Nanoseconds in floating point.
#[expect(clippy::cast_precision_loss, reason = "spans are far below 2^52 ns")]
#[inline]
pub(super) fn float(ns: u64) -> f64 {
    // By way of a signed number, since processors convert from these.
    i64::try_from(ns).unwrap_or(i64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_nanos(100 * LESSER_UNIT);

    fn at(units: u64) -> Instant {
        Instant::from_nanos(units * LESSER_UNIT)
    }

    #[test]
    fn a_session_takes_64_bytes_at_most() {
        assert!(size_of::<Session>() <= 64, "{}", size_of::<Session>());
    }

    #[test]
    fn fewer_credits_free_the_rest_only_when_the_older_lease_ends() {
        let mut sessions = Sessions::new(10);
        let id = sessions.open(3).unwrap();
        assert_eq!(sessions.grant(id, 5, 10, at(0) + LEASE), (5, 5));
        assert_eq!(sessions.grant(id, 2, 5, at(50) + LEASE), (2, 0));
        assert_eq!((sessions.charged(), sessions.next_end()), (5, Some(at(100))));
        assert_eq!(sessions.expire(at(99)), None);
        assert_eq!(sessions.expire(at(100)), Some((3, 3)));
        assert_eq!((sessions.charged(), sessions.next_end()), (2, Some(at(150))));
        assert_eq!(sessions.expire(at(150)), Some((3, 2)));
        assert_eq!((sessions.charged(), sessions.expire(at(200))), (0, None));
    }

    #[test]
    fn the_ledger_covers_a_grant_that_comes_after_a_later_and_smaller_one() {
        let mut sessions = Sessions::new(10);
        let id = sessions.open(3).unwrap();
        sessions.grant(id, 5, 10, at(0) + LEASE);
        sessions.grant(id, 2, 10, at(50) + LEASE);
        sessions.grant(id, 1, 10, at(80) + LEASE);
        sessions.grant(id, 0, 10, at(90) + LEASE);
        assert_eq!(sessions.expire(at(100)), Some((3, 3)));
        assert_eq!((sessions.charged(), sessions.credits(id, at(149))), (2, 2));
        // Until the last of the leases has ended: which of them is the greater one's is not kept.
        assert_eq!((sessions.expire(at(179)), sessions.next_end()), (None, Some(at(180))));
        assert_eq!((sessions.expire(at(180)), sessions.charged()), (Some((3, 2)), 0));
    }

    #[test]
    fn more_credits_make_the_older_leases_part_of_the_new_one() {
        let mut sessions = Sessions::new(10);
        let id = sessions.open(0).unwrap();
        sessions.grant(id, 3, 10, at(0) + LEASE);
        sessions.grant(id, 2, 10, at(50) + LEASE);
        assert_eq!(sessions.grant(id, 4, 1, at(60) + LEASE / 4), (4, 1));
        assert_eq!((sessions.next_end(), sessions.expire(at(149))), (Some(at(150)), None));
        assert_eq!((sessions.expire(at(150)), sessions.next_end()), (Some((0, 4)), None));
    }

    #[test]
    fn a_closed_place_is_used_again_by_another_generation() {
        let mut sessions = Sessions::new(1);
        let id = sessions.open(0).unwrap();
        let generation = sessions.get(id).unwrap().generation;
        sessions.grant(id, 2, 2, at(0) + LEASE);
        assert!(sessions.open(0).is_err());
        assert_eq!(sessions.close(id), Some((0, 2)));
        assert_eq!((sessions.charged(), sessions.close(id)), (0, None));
        assert_eq!(sessions.open(7).unwrap(), id);
        assert!(sessions.get(id).unwrap().generation > generation);
    }
}
