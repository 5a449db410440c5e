//! Claimants that share like one: the second level of max-min.
//!
//! Names cost nothing to make up, addresses do. So claimants that anybody can invent stand in a crowd, by where they
//! come from; at the first level a crowd is one claimant of weight 1, whatever number of members it has, and its
//! members divide what it gets by max-min again. What a member takes never comes out of another crowd's share.
//!
//! The level to which a crowd meets its members' claims is found by one step of water-filling in each pass over the
//! cells: from below it rises to the exact level within a few ticks, and what is granted never exceeds the crowd's
//! share.

use crate::Instant;

use super::Kind;
use super::cell::NONE;
use super::fill::Level;
use super::mint::Mint;
use super::{Overflow, Place, level};
use crate::number::{float, short, whole};

/// The weight of a crowd at the first level.
pub(super) const WEIGHT: u16 = 1;
/// The part of a crowd's guarantee that is for members without a share yet. What all are guaranteed together stays
/// within the capacity: a quarter more than three quarters of it.
const FRESH_PART: u64 = 4;
/// How much further its members may get ahead of their shares together than one claimant with all of them.
const AHEAD: i64 = 2;

/// One crowd at one resource. All but the second part is for the setting of shares.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    /// Members here, and the sum of their weights.
    pub(super) members: u32,
    pub(super) weights: u64,
    /// It was here when a tick began: it is no newcomer.
    pub(super) settled: bool,
    /// What members without a share may take of the crowd's guarantee.
    pub(super) fresh: i64,
    /// What any member may take of the overflow when its own part of that is used up: names that are said once want
    /// nothing in the ticks in which they have a part.
    pub(super) allowance: i64,
    /// What members may take of their shares before they stand back.
    pub(super) ahead: i64,
    at: Instant,
    /// Units taken of the newcomers' reserve.
    pub(super) taken: u64,
    /// Sum of the members' shares T.
    pub(super) shares: u64,
    /// Of a gauge, what members hold.
    pub(super) held: u64,

    /// The most that the members' shares may sum to.
    pub(super) limit: u64,
    /// How far members' claims are met.
    pub(super) split: Level,
    /// The pass over the cells of which the sums below are.
    round: u32,
    /// Claims, those that were met, and the weights of those that were not.
    claims: f64,
    met: f64,
    unmet: u64,
    /// What was used in this tick, and the rate of the ticks before.
    used: f32,
    pub(super) used_rate: f32,
    /// What was wanted beyond shares in this pass, and the weights of whoever wanted it.
    needs: f64,
    needing: u64,
    /// Those weights in the last tick.
    needed: u64,
}

impl Crowd {
    fn new(now: Instant) -> Self {
        Self {
            members: 0,
            weights: 0,
            settled: false,
            fresh: 0,
            allowance: 0,
            ahead: 0,
            at: now,
            taken: 0,
            shares: 0,
            held: 0,
            limit: 0,
            split: Level::All,
            round: 0,
            claims: 0.0,
            met: 0.0,
            unmet: 0,
            used: 0.0,
            used_rate: 0.0,
            needs: 0.0,
            needing: 0,
            needed: 0,
        }
    }

    /// The rates of a member, those of first-level claimants being `all`.
    pub(super) fn mint(&self, all: &Mint) -> Mint {
        let mut mint = *all;
        mint.guarantee = all.guaranteed(WEIGHT) / self.weights.max(1);
        mint.allowance = all.allowance.map(|rate| rate.saturating_mul(WEIGHT.into()) / self.needed.max(1));
        mint.set_depths();
        mint
    }

    /// Mints what the time since the last time gave.
    pub(super) fn refill(&mut self, all: &Mint, now: Instant) {
        let span = now.nanos_since(self.at);
        if span == 0 {
            return;
        }
        self.at = now;
        let fresh = all.guaranteed_depth(WEIGHT);
        self.fresh = (self.fresh.max(-fresh) + level(all.guaranteed(WEIGHT) / FRESH_PART, span)).min(fresh);
        let depth = all.allowance_depth(WEIGHT);
        self.allowance = all.allowance.map_or(0, |rate| (self.allowance.max(-depth) + level(rate, span)).min(depth));
        let ahead = all.depth(self.shares).saturating_mul(AHEAD);
        self.ahead = (self.ahead.max(-ahead) + level(self.shares, span)).min(ahead);
    }

    /// The pass of this number goes on.
    pub(super) fn enter(&mut self, round: u32) -> &mut Self {
        if self.round != round {
            self.round = round;
            (self.claims, self.met, self.unmet) = (0.0, 0.0, 0);
            (self.needs, self.needing) = (0.0, 0);
        }
        self
    }

    /// What a member claims in this pass; its share by the level of the last one is returned.
    pub(super) fn claim(&mut self, claim: f64, weight: u16, before: u64) -> u64 {
        let share = self.split.share(claim, weight.into());
        self.claims += claim;
        if share < claim {
            self.unmet += u64::from(weight);
        } else {
            self.met += claim;
        }
        // Who grows waits until others have shrunk; nobody shrinks below the level since others have not.
        whole(share).min(before.saturating_add(self.limit.saturating_sub(self.shares)))
    }

    pub(super) fn need(&mut self, need: f64, weight: u16) {
        self.needs += need;
        self.needing += u64::from(weight);
    }

    pub(super) fn use_up(&mut self, used: f64) {
        self.used += short(used);
    }

    /// All that members claim.
    pub(super) fn claims(&self) -> f64 {
        self.claims
    }

    /// All that members want beyond their shares.
    pub(super) fn needs(&self) -> f64 {
        self.needs
    }

    /// What the crowd gets of the first level, and how its members divide it; true if that is not as before.
    pub(super) fn grant(&mut self, first: Level) -> bool {
        // What it does not claim of its part it may claim in the next tick, before that is found out anew.
        let limit = first.share(f64::MAX, WEIGHT.into());
        let split = self.next_split(limit);
        let before = core::mem::replace(&mut self.split, split);
        let limit = whole(limit);
        let is_near = self.split.is_near(before) && limit.abs_diff(self.limit) <= limit / 100;
        self.limit = limit;
        self.used_rate = 0.5 * (self.used_rate + self.used);
        self.used = 0.0;
        !is_near
    }

    /// After the last pass of a tick: whoever wanted more, and the next tick's level.
    pub(super) fn end_tick(&mut self) {
        self.split = self.next_split(float(self.limit));
        self.needed = self.needing;
        self.settled = true;
    }

    /// One step of water-filling towards `limit` for all members.
    fn next_split(&self, limit: f64) -> Level {
        if self.claims <= limit {
            return Level::All;
        }
        let equal = limit / float(self.weights.max(1));
        let rest = if self.unmet > 0 { (limit - self.met) / float(self.unmet) } else { 0.0 };
        Level::PerWeight(rest.max(equal))
    }
}

impl Overflow {
    /// The rates of whoever stands at `place`.
    #[inline]
    pub(super) fn mint_of(&self, place: Place) -> Mint {
        if place.crowd == NONE { self.mint } else { self.crowds[place.crowd()].mint(&self.mint) }
    }

    /// The crowd at `place`, if it is a member's.
    #[inline]
    pub(super) fn crowd_at(&mut self, place: Place) -> Option<&mut Crowd> {
        if place.crowd == NONE { None } else { self.crowds.get_mut(place.crowd()) }
    }

    /// One more member of weight `weight`, which has no share and holds nothing; of nobody's crowd its weight counts
    /// alone.
    pub(super) fn join(&mut self, crowd: u32, weight: u16, now: Instant) {
        if crowd == NONE {
            self.weights += u64::from(weight);
            return;
        }
        let at = crowd as usize;
        self.crowds.reach(at + 1, || Crowd::new(now));
        let crowd = &mut self.crowds[at];
        if crowd.members == 0 {
            *crowd = Crowd::new(now);
            self.weights += u64::from(WEIGHT);
        }
        crowd.members += 1;
        crowd.weights += u64::from(weight);
    }

    /// The opposite.
    pub(super) fn leave(&mut self, crowd: u32, weight: u16) {
        if crowd == NONE {
            self.weights -= u64::from(weight);
            return;
        }
        let crowd = &mut self.crowds[crowd as usize];
        crowd.members -= 1;
        crowd.weights -= u64::from(weight);
        if crowd.members == 0 {
            self.weights -= u64::from(WEIGHT);
        }
    }

    /// The claimant at `place` stands in another crowd from now on, or in none. Its share and what it holds go along;
    /// where that is more than the crowd gets, it shrinks with the next shares.
    pub fn move_to(&mut self, place: Place, crowd: u32, now: Instant) {
        let cell = &self.cells[place.cell()];
        let (weight, share) = (cell.weight, cell.share);
        let held = if self.kind == Kind::Gauge { cell.level.unsigned_abs() } else { 0 };
        if let Some(from) = self.crowd_at(place) {
            from.shares -= share;
            from.held -= held;
        }
        self.leave(place.crowd, weight);
        self.join(crowd, weight, now);
        if let Some(to) = self.crowd_at(Place { crowd, ..place }) {
            to.shares += share;
            to.held += held;
            to.limit = to.limit.max(to.shares);
        }
        self.pasts[place.past()].crowd = crowd;
        self.set_guarantee();
    }
}
