//! Shares set anew, in slices.
//!
//! A pass over the claimants takes in what they wanted during the tick, sorts it, and sets shares by the level to which
//! the capacity met demands in the tick before. Then the level of this tick is found. Mostly it is the same; if not, a
//! second pass sets shares by it. What is wanted beyond shares is sorted as well, and the pool is shared by that. Cells
//! of one resource stand side by side, so a pass reads memory in order.

use core::cmp::Reverse;
use core::time::Duration;

use crate::Instant;

use super::Kind;
use super::cell::{Age, Cell, NOISY_TICKS, NONE, Past, Rates};
use super::demand::Smoothing;
use super::fill::{Fill, Fills, Level};
use super::mint::{LENT_LOG2, Mint};
use super::{Overflow, Place};
use crate::number::{float, short, signed, whole};

/// How much the last tick counts in the rates that are shown.
const LATEST: f32 = 0.5;
/// To pass a place of nobody takes so small a part of what a claimant takes.
const NOBODY_PART: usize = 16;
/// Places of nobody that are let go at the end of a pass: some 50 us.
const SHORTENED: usize = 16_384;
/// A claimant wanted more than its share if more than one in so many of its pieces was beyond it.
const NOISE: u64 = 8;

/// Where the setting of shares stands.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    step: Step,
    next: usize,
    smoothing: Smoothing,
    seconds: f64,
    /// How many ticks it was, as whole ones are counted: 1 unless it was late.
    ticks: u16,
    used: f64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Taking in what was wanted, and setting shares as before. `short` as below.
    Observe { short: bool },
    /// Taking in what crowds claim.
    Claim { short: bool },
    /// Saying what crowds get.
    Grant { level: Level, changed: bool },
    /// Setting shares. `short` if one could not grow yet, since others had not shrunk.
    Share { level: Level, short: bool, again: bool },
    /// Taking in what crowds want beyond their shares.
    Need,
}

/// What is the same for all claimants of a pass.
#[derive(Clone, Copy, Debug)]
struct Factors {
    smoothing: Smoothing,
    ticks: u16,
    /// From amounts of a tick to rates.
    per: f64,
    /// From what is lent, as it is counted, to units per second.
    lent: f64,
    grains: f64,
    /// The capacity: more is nobody's demand.
    most: f64,
    capacity: i64,
    headroom: f64,
    /// What of Tg must be left when a share grows.
    kept: u64,
}

impl Factors {
    /// Ticks for which a claimant stays behind the others that has not wanted too much.
    fn quieter(&self, noisy: u8) -> u8 {
        noisy.saturating_sub(u8::try_from(self.ticks).unwrap_or(u8::MAX))
    }
}

impl Pass {
    /// From the beginning; the tick lasted `elapsed`.
    #[must_use]
    pub fn new(elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-6);
        let (step, smoothing) = (Step::Observe { short: false }, Smoothing::over(elapsed));
        Self { step, next: 0, smoothing, seconds, ticks: 1, used: 0.0 }
    }
}

impl Overflow {
    /// Goes on with `pass` for at most `budget` claimants, which it lowers; true if it is done. Who is gone is appended
    /// to `closed`. `uncounted` gives, once, what an owner used of a [free](Self::is_free) resource.
    pub fn rebalance(
        &mut self,
        pass: &mut Pass,
        fills: &mut Fills,
        budget: &mut usize,
        closed: &mut Vec<u32>,
        mut uncounted: impl FnMut(u32) -> u32,
        now: Instant,
    ) -> bool {
        if matches!(pass.step, Step::Observe { .. }) && pass.next == 0 {
            fills.demands.clear();
            fills.needs.clear();
            self.round = self.round.wrapping_add(1);
            pass.ticks = self.whole_ticks(pass.seconds);
        }
        if !matches!(pass.step, Step::Observe { .. } | Step::Share { .. }) {
            return self.go_through_crowds(pass, fills, budget);
        }
        let mut left = budget.saturating_mul(NOBODY_PART);
        self.pool.refill(now);
        let factors = self.factors(pass);
        let limited_counter = self.kind == Kind::Counter && self.capacity.is_some();
        let end = self.pasts.len();
        while pass.next < end && left > 0 {
            let at = pass.next;
            pass.next += 1;
            let owner = self.pasts[at].owner;
            if owner == NONE {
                left -= 1;
                continue;
            }
            left = left.saturating_sub(NOBODY_PART);
            let at32 = u32::try_from(at).expect("places are counted in u32");
            let place = self.place(owner, at32, self.pasts[at].crowd);
            if matches!(pass.step, Step::Observe { .. }) {
                let more = u64::from(uncounted(owner));
                let cell = &mut self.cells[place.cell()];
                (cell.wanted, cell.taken) = (cell.wanted.saturating_add(more), cell.taken.saturating_add(more));
            }
            // Not one that has come back since the last tick: of a gauge it may hold something.
            if self.pasts[at].quiet >= self.terms.idle_ticks && self.cells[place.cell()].wanted == 0 {
                closed.push(owner);
                self.close(place, now);
                continue;
            }
            match pass.step {
                Step::Observe { .. } if self.is_free() => pass.used += self.observe_free(place, &factors),
                Step::Observe { ref mut short } if limited_counter => {
                    let (used, is_short) = self.observe_and_share(place, &factors, fills, now);
                    pass.used += used;
                    *short |= is_short;
                }
                Step::Observe { ref mut short } => {
                    pass.used += self.observe_gauge(place, &factors, &mut fills.demands);
                    *short |= self.set_share(place, self.level, &factors, &mut fills.needs, now);
                }
                Step::Share { level, ref mut short, .. } => {
                    *short |= self.set_share(place, level, &factors, &mut fills.needs, now);
                }
                Step::Claim { .. } | Step::Grant { .. } | Step::Need => {}
            }
        }
        *budget = left / NOBODY_PART;
        if pass.next < end {
            return false;
        }
        self.shorten();
        self.turn(pass, fills)
    }

    /// Lets go what of the list is nobody's at its end: who came last with many others goes with them.
    fn shorten(&mut self) {
        for _ in 0..SHORTENED {
            if self.pasts.last().is_none_or(|past| past.owner != NONE) {
                return;
            }
            self.pasts.shorten();
        }
    }

    /// A step over the crowds, of at most `budget` of them, which it lowers; true if it was the last one of the pass.
    fn go_through_crowds(&mut self, pass: &mut Pass, fills: &mut Fills, budget: &mut usize) -> bool {
        let mut left = budget.saturating_mul(NOBODY_PART);
        let end = self.crowds.len();
        while pass.next < end && left > 0 {
            let crowd = &mut self.crowds[pass.next];
            pass.next += 1;
            if crowd.members == 0 {
                left -= 1;
                continue;
            }
            left = left.saturating_sub(NOBODY_PART);
            let crowd = crowd.enter(self.round);
            match &mut pass.step {
                Step::Claim { .. } => fills.demands.add(crowd.claims(), u32::from(super::crowd::WEIGHT)),
                Step::Grant { level, changed } => *changed |= crowd.grant(*level),
                Step::Need => {
                    if crowd.needs() > 0.0 {
                        fills.needs.add(crowd.needs(), u32::from(super::crowd::WEIGHT));
                    }
                    crowd.end_tick();
                }
                Step::Observe { .. } | Step::Share { .. } => {}
            }
        }
        *budget = left / NOBODY_PART;
        if pass.next < end {
            return false;
        }
        self.turn(pass, fills)
    }

    /// The end of one pass over the claimants or the crowds; true if it was the last.
    fn turn(&mut self, pass: &mut Pass, fills: &mut Fills) -> bool {
        pass.next = 0;
        pass.step = match pass.step {
            Step::Observe { short } => {
                self.used_rate += 0.5 * (pass.used - self.used_rate);
                self.set_guarantee();
                if self.capacity.is_none() || self.pasts.is_empty() {
                    return true;
                }
                Step::Claim { short }
            }
            Step::Claim { short } => {
                let shared = 1.0 - self.terms.reserve - self.terms.newcomers;
                let level = fills.demands.level(float(self.capacity.unwrap_or(0)) * shared);
                let before = core::mem::replace(&mut self.level, level);
                Step::Grant { level, changed: short || !level.is_near(before) }
            }
            Step::Grant { level, changed: true } => Step::Share { level, short: false, again: false },
            Step::Share { level, short: true, again: false } => Step::Share { level, short: false, again: true },
            Step::Grant { .. } | Step::Share { .. } => Step::Need,
            Step::Need => {
                self.set_allowance(pass.seconds, &mut fills.needs);
                return true;
            }
        };
        if matches!(pass.step, Step::Share { .. }) {
            fills.needs.clear();
            self.round = self.round.wrapping_add(1);
        }
        false
    }

    /// How many whole ticks have passed, with what was left of those before: what lasts is counted in time, not in
    /// passes, of which there are few while there is much to do.
    fn whole_ticks(&mut self, seconds: f64) -> u16 {
        let all_ns = self.rest_ns.saturating_add(whole((seconds * 1e9).round()));
        self.rest_ns = all_ns % self.terms.tick_ns;
        u16::try_from(all_ns / self.terms.tick_ns).unwrap_or(u16::MAX)
    }

    fn factors(&self, pass: &Pass) -> Factors {
        let grains = float(self.grains);
        Factors {
            smoothing: pass.smoothing,
            ticks: pass.ticks,
            // Of a gauge the amounts count, not their rates.
            per: if self.kind == Kind::Gauge { 1.0 } else { 1.0 / pass.seconds },
            lent: float(1 << LENT_LOG2) / (1e9 * pass.seconds * grains),
            grains,
            most: self.capacity.map_or(f64::MAX, float),
            capacity: signed(self.capacity.unwrap_or(0)),
            headroom: 1.0 + self.terms.headroom,
            kept: whole(float(self.capacity.unwrap_or(0)) * self.terms.newcomers),
        }
    }

    /// Takes in what the claimant wanted, begins its next tick and sets its share by the level of the tick before: all
    /// that a usual tick does for a claimant, in one go. What it used, in units per second, and whether its share had
    /// to stay smaller than it should be.
    fn observe_and_share(&mut self, place: Place, factors: &Factors, fills: &mut Fills, now: Instant) -> (f64, bool) {
        let mint = (place.crowd != NONE).then(|| self.mint_of(place));
        let (cell, past) = (&mut self.cells[place.cell()], &mut self.pasts[place.past()]);
        let mut surplus = mint.as_ref().unwrap_or(&self.mint).refill(cell, now);
        let used = take_in(cell, past, factors, float(past.overflowed.into()) * factors.per, 0, true);
        cell.age = Age::Settled;
        let weight = u32::from(cell.weight);
        let claim = past.demand.expected(factors.most) * factors.headroom;
        let mut crowd = if place.crowd == NONE { None } else { self.crowds.get_mut(place.crowd()) };
        let before = cell.share;
        let wanted = if let Some(crowd) = &mut crowd {
            let crowd = crowd.enter(self.round);
            crowd.use_up(used);
            crowd.claim(claim, cell.weight, before)
        } else {
            fills.demands.add(claim, weight);
            whole(self.level.share(claim, weight))
        };
        let mut share = before;
        if wanted != before {
            // Tg stays at least the newcomers' part while others have not shrunk yet.
            let global = factors.capacity - signed(self.shares);
            let room = u64::try_from(global - signed(factors.kept)).unwrap_or(0);
            share = wanted.min(before.saturating_add(room));
            surplus += reshare(cell, share, &self.mint);
            self.shares = self.shares - before + share;
            self.pool.rate = factors.capacity - signed(self.shares);
            if let Some(crowd) = &mut crowd {
                crowd.shares = crowd.shares - before + share;
            }
        }
        if surplus > 0 {
            self.pool.pour(surplus);
        }
        let still = f64::from(past.rates.wanted) * factors.grains - float(share);
        if still > 0.0 {
            match crowd {
                Some(crowd) => crowd.need(still * factors.headroom, cell.weight),
                None => fills.needs.add(still * factors.headroom, weight),
            }
        }
        (used, share < wanted)
    }

    /// Takes in what the claimant held and wanted to hold, and begins its next tick; what it held.
    fn observe_gauge(&mut self, place: Place, factors: &Factors, fill: &mut Fill) -> f64 {
        let limited = self.capacity.is_some();
        let (cell, past) = (&mut self.cells[place.cell()], &mut self.pasts[place.past()]);
        let overflow = float(super::gauge::beyond(cell.level, cell.share));
        let held = cell.level.unsigned_abs();
        let used = take_in(cell, past, factors, overflow, held, limited);
        if place.crowd != NONE {
            self.crowds[place.crowd()].enter(self.round).use_up(used);
        } else if limited {
            fill.add(past.demand.expected(factors.most) * factors.headroom, cell.weight.into());
        }
        if cell.age == Age::New {
            cell.age = Age::Seen;
        }
        used
    }

    /// The same for a resource that has no limit: nothing is shared, so what the claimant uses is all that there is to
    /// know.
    fn observe_free(&mut self, place: Place, factors: &Factors) -> f64 {
        let (cell, past) = (&mut self.cells[place.cell()], &mut self.pasts[place.past()]);
        let wanted = float(cell.wanted) * factors.per;
        let used = float(cell.taken) * factors.per;
        past.rates = Rates { wanted: short(wanted), used: mix(past.rates.used, used), overflow: 0.0, lent: 0.0 };
        past.demand.observe(wanted * factors.grains, factors.smoothing, factors.most);
        past.quiet = if cell.wanted > 0 { 0 } else { past.quiet.saturating_add(factors.ticks) };
        past.refused = 0;
        (cell.wanted, cell.taken) = (0, 0);
        cell.noisy = factors.quieter(cell.noisy);
        if cell.age == Age::New {
            cell.age = Age::Seen;
        }
        used
    }

    /// Sets the claimant's share; true if it had to stay smaller than it should be.
    fn set_share(&mut self, place: Place, level: Level, factors: &Factors, fill: &mut Fill, now: Instant) -> bool {
        let (cell, past) = (&self.cells[place.cell()], &self.pasts[place.past()]);
        if cell.age == Age::New || self.capacity.is_none() {
            return false;
        }
        let claim = past.demand.expected(factors.most) * factors.headroom;
        let (before, weight) = (cell.share, cell.weight);
        let round = self.round;
        let wanted = match self.crowd_at(place) {
            Some(crowd) => crowd.enter(round).claim(claim, weight, before),
            None => whole(level.share(claim, weight.into())),
        };
        // Tg stays at least the newcomers' part while others have not shrunk yet.
        let room = u64::try_from(self.global() - signed(factors.kept)).unwrap_or(0);
        let most = before.saturating_add(room);
        let (share, short) = (wanted.min(most), wanted > most);
        match self.kind {
            Kind::Counter => self.set_counter_share(place, share, now),
            Kind::Gauge => self.set_gauge_share(place, share),
        }
        self.shares = self.shares - before + share;
        self.pool.rate = self.global();
        self.cells[place.cell()].age = Age::Settled;
        let still = f64::from(self.pasts[place.past()].rates.wanted) * factors.grains - float(share);
        if let Some(crowd) = self.crowd_at(place) {
            crowd.shares = crowd.shares - before + share;
            if still > 0.0 {
                crowd.need(still * factors.headroom, weight);
            }
        } else if still > 0.0 {
            fill.add(still * factors.headroom, weight.into());
        }
        short
    }

    fn set_counter_share(&mut self, place: Place, share: u64, now: Instant) {
        self.refill(place, now);
        let surplus = reshare(&mut self.cells[place.cell()], share, &self.mint);
        if surplus > 0 {
            self.pool.pour(surplus);
        }
    }

    /// Forgets the claimant, which holds nothing.
    pub fn close(&mut self, place: Place, now: Instant) {
        let cell = &mut self.cells[place.cell()];
        let (left, weight) = (cell.level, cell.weight);
        let share = core::mem::replace(&mut cell.share, 0);
        self.shares -= share;
        if let Some(crowd) = self.crowd_at(place) {
            crowd.shares -= share;
        }
        self.leave(place.crowd, weight);
        self.pasts[place.past()].owner = NONE;
        if self.kind == Kind::Counter && self.capacity.is_some() {
            self.pool.refill(now);
            // Debts too: they do not go with the claimant.
            self.pool.pour(left);
        }
        self.pool.rate = self.global();
        self.here -= 1;
        self.free.push(Reverse(place.past));
    }

    /// Shares the pool among those who still want something.
    fn set_allowance(&mut self, seconds: f64, fill: &mut Fill) {
        let supply = match self.kind {
            Kind::Counter => self.pool.supply(seconds),
            Kind::Gauge => float(self.lendable()),
        };
        self.mint.allowance = match fill.level(supply) {
            Level::All => None,
            Level::PerWeight(most) => Some(whole(most)),
        };
        self.mint.set_depths();
        self.pool.income = 0;
        self.release_rate += 0.5 * (float(self.released) / seconds - self.release_rate);
        self.released = 0;
    }
}

/// Puts another share of a counter in force; what a smaller bucket cannot hold any more, or 0.
#[inline]
fn reshare(cell: &mut Cell, share: u64, mint: &Mint) -> i64 {
    let surplus = (cell.level - mint.depth(share)).max(0);
    cell.share = share;
    cell.level -= surplus;
    surplus
}

/// Adds a tick to what is known of a claimant, and begins the next one with what it holds; what it used.
#[inline]
fn take_in(cell: &mut Cell, past: &mut Past, factors: &Factors, overflow: f64, held: u64, limited: bool) -> f64 {
    let wanted = float(cell.wanted) * factors.per;
    let used = float(cell.taken) * factors.per;
    past.rates = Rates {
        wanted: short(wanted),
        used: mix(past.rates.used, used),
        overflow: mix(past.rates.overflow, overflow),
        lent: mix(past.rates.lent, float(cell.lent.into()) * factors.lent),
    };
    past.demand.observe(wanted * factors.grains, factors.smoothing, factors.most);
    let beyond = u64::from(past.overflowed) + u64::from(past.refused);
    // Who has no share cannot exceed it.
    let noisy = limited && cell.age == Age::Settled && beyond > 0 && beyond.saturating_mul(NOISE) > cell.wanted;
    cell.noisy = if noisy { NOISY_TICKS } else { factors.quieter(cell.noisy) };
    past.quiet = if cell.wanted > 0 { 0 } else { past.quiet.saturating_add(factors.ticks) };
    (cell.wanted, cell.taken, cell.lent) = (held, held, 0);
    (past.overflowed, past.refused) = (0, 0);
    used
}

#[inline]
fn mix(before: f32, latest: f64) -> f32 {
    let mixed = before + LATEST * (short(latest) - before);
    if mixed < 1e-3 { 0.0 } else { mixed }
}
