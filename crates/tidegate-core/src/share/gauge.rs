//! What is held and given back: connections and memory.
//!
//! What is held cannot be called back in general. So the part of the pool that claimants here may need suddenly is not
//! lent while there is more than one of them; a lone one may have all but a hundredth. What can be called back, as
//! connections on which nothing is under way, is lent but for the newcomers' part, and [`excess`](Overflow::excess)
//! says how much of it is to be given back when others come.

use crate::Instant;

use super::cell::Age;
use super::crowd::Crowd;
use super::{Answer, NONE, Overflow, Pay, Place};
use crate::number::{float, signed, whole};

/// What is not even lent to a lone claimant: room for the first connections of the next one.
const KEPT: f64 = 0.01;

impl Overflow {
    pub(super) fn ask_gauge(&mut self, place: Place, cost: u64, now: Instant) -> Answer {
        let cell = &mut self.cells[place.cell()];
        cell.at = now;
        let held = cell.level.unsigned_abs();
        let asked = held.saturating_add(cost);
        cell.wanted = cell.wanted.max(asked);
        let Some(capacity) = self.capacity else { return Answer::Paid(Pay::Own) };
        let (share, weight, age) = (cell.share, cell.weight, cell.age);
        let fits = self.held.saturating_add(cost) <= capacity;
        if asked <= share {
            return if fits { Answer::Paid(Pay::Own) } else { Answer::Short };
        }
        let mint = self.mint_of(place);
        if (age == Age::Settled || place.crowd == NONE) && asked <= mint.guaranteed(weight) && fits {
            return Answer::Paid(Pay::Guaranteed);
        }
        let newcomers = whole(float(capacity) * self.terms.newcomers).max(1);
        if place.crowd != NONE {
            // Members that come and go have together what one claimant has.
            let crowd = &self.crowds[place.crowd()];
            let (most, pay) = if crowd.settled {
                (self.mint.guaranteed(super::crowd::WEIGHT), Pay::Guaranteed)
            } else {
                (newcomers, Pay::Newcomer)
            };
            if fits && crowd.held.saturating_add(cost) <= most {
                return Answer::Paid(pay);
            }
        } else if age != Age::Settled && fits && asked <= newcomers {
            return Answer::Paid(Pay::Newcomer);
        }
        let beyond = asked - held.max(share);
        if self.over.saturating_add(beyond) > self.lendable() {
            return Answer::Short;
        }
        let allowed = mint.allowance.is_none_or(|most| asked - share <= most.saturating_mul(u64::from(weight)).max(1));
        if allowed && fits { Answer::Paid(Pay::Pool) } else { Answer::Short }
    }

    /// What of the pool can be held beyond shares.
    pub(super) fn lendable(&self) -> u64 {
        let alone = self.here == 1;
        let kept = match (alone, self.recallable) {
            (true, _) => KEPT,
            (false, true) => self.terms.newcomers.max(KEPT),
            (false, false) => self.terms.reserve + self.terms.newcomers,
        };
        let kept = whole(float(self.capacity.unwrap_or(0)) * kept);
        // All that is nobody's share, and what claimants do not hold of theirs is not in it: it must be there for them.
        u64::try_from(self.global()).unwrap_or(0).saturating_sub(kept)
    }

    /// What whoever holds more than a share has to give back, so that others find what they are guaranteed.
    #[must_use]
    pub fn excess(&self) -> u64 {
        let limited = self.recallable && self.capacity.is_some();
        if limited { self.over.saturating_sub(self.lendable()) } else { 0 }
    }

    /// What is held beyond the share, and beyond what is guaranteed.
    #[must_use]
    pub fn excess_of(&self, place: Place) -> u64 {
        let cell = &self.cells[place.cell()];
        beyond(cell.level, cell.share.max(self.mint_of(place).guaranteed(cell.weight)))
    }

    /// The same of all members of a crowd together.
    #[must_use]
    pub fn excess_of_crowd(&self, crowd: u32) -> u64 {
        let most = |crowd: &Crowd| crowd.shares.max(self.mint.guaranteed(super::crowd::WEIGHT));
        let crowd = self.crowds.get(crowd as usize).filter(|crowd| crowd.members > 0);
        crowd.map_or(0, |crowd| crowd.held.saturating_sub(most(crowd)))
    }

    /// Holds `units` more, whether there is room or not.
    pub fn hold(&mut self, place: Place, units: u64, pay: Pay) {
        let cell = &mut self.cells[place.cell()];
        let before = beyond(cell.level, cell.share);
        cell.level = cell.level.saturating_add(signed(units));
        cell.wanted = cell.wanted.max(cell.level.unsigned_abs());
        cell.taken = cell.taken.max(cell.level.unsigned_abs());
        self.held = self.held.saturating_add(units);
        if let Some(crowd) = self.crowd_at(place) {
            crowd.held += units;
        }
        let cell = &self.cells[place.cell()];
        self.over = (self.over + beyond(cell.level, cell.share)).saturating_sub(before);
        if pay == Pay::Pool {
            let past = &mut self.pasts[place.past()];
            past.overflowed = past.overflowed.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    /// Gives `units` back; more than is held is not given back. True if nothing is held any more.
    pub fn release(&mut self, place: Place, units: u64) -> bool {
        let cell = &mut self.cells[place.cell()];
        let units = units.min(cell.level.unsigned_abs());
        let before = beyond(cell.level, cell.share);
        cell.level -= signed(units);
        self.held -= units;
        let (level, share) = (cell.level, cell.share);
        if let Some(crowd) = self.crowd_at(place) {
            crowd.held -= units;
        }
        self.released = self.released.saturating_add(units);
        self.over = (self.over + beyond(level, share)).saturating_sub(before);
        level == 0
    }

    /// Puts another share in force.
    pub(super) fn set_gauge_share(&mut self, place: Place, share: u64) {
        let cell = &mut self.cells[place.cell()];
        let before = beyond(cell.level, cell.share);
        cell.share = share;
        self.over = (self.over + beyond(cell.level, share)).saturating_sub(before);
    }
}

/// What is held beyond the share.
pub(super) fn beyond(held: i64, share: u64) -> u64 {
    held.unsigned_abs().saturating_sub(share)
}
