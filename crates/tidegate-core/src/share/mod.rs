//! One resource, shared among claimants by overflow token buckets.
//!
//! Every claimant has a bucket of its own, filled at its share T; what is nobody's share, Tg, fills a pool. At every
//! moment the shares and Tg sum to the capacity, exactly. Work is paid from
//!
//! 1. the claimant's own bucket;
//! 2. what it is guaranteed: its part of the capacity among all claimants here, by weight, whatever it wanted before,
//!    from when it came. The pool pays, and may go below zero for it, so that a claimant within its part is never
//!    refused on account of others;
//! 3. the reserve of newcomers, if it has no share yet: what is guaranteed has only begun to come in;
//! 4. its own bucket as far as that goes and the pool for the rest: everybody who overflows has an equal allowance of
//!    it, by weight, and what is left beyond that goes to those that use the smallest part of any resource.
//!
//! What a bucket cannot hold goes to the pool: unused share is lent within a tick. Every tick shares are
//! set anew by weighted max-min over expected demands (`rebalance`).
//!
//! In any span t no more is admitted than C·t plus the buckets' depths, and what the pool owes: at most a tick of
//! everybody's guarantees.
//!
//! | module | its one job |
//! |---|---|
//! | `blocks` | a list that grows without moving what is in it |
//! | `cell` | one claimant's state |
//! | `crowd` | claimants that share like one |
//! | `demand` | what a claimant is expected to want |
//! | `fill` | max-min shares of very many claims |
//! | `gauge` | decisions about what is held and given back |
//! | `ledger` | what must add up |
//! | `mint` | what time brings to a claimant |
//! | `pool` | what is nobody's share |
//! | `rebalance` | shares set anew, in slices |
//! | `settle` | true costs, and when to come back |
//! | `usage` | what is shown |
//!
//! Source: Koshiba, "Resource Constraints: Can you mute noisy neighbors?" (ATS Summit 2021), "Overflow Token Bucket"
//! and "Strategy of dividing an apple-pie". Departures: max-min instead of proportional shares, guarantees, newcomers,
//! continuous refill, an ordered pool; a share of zero refuses.

mod blocks;
mod cell;
mod crowd;
mod demand;
mod fill;
mod gauge;
mod ledger;
mod mint;
mod pool;
mod rebalance;
mod settle;
mod usage;

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Instant;
use crate::number::{float, signed, whole};

use self::cell::{Age, Cell, Past};
use self::crowd::Crowd;
use self::fill::Level;
use self::mint::Mint;
use self::pool::Pool;

pub use self::blocks::Blocks;
pub use self::cell::{NONE, Place};
pub use self::fill::Fills;
pub use self::ledger::{Ledger, Sums, Tokens};
pub use self::rebalance::Pass;
pub use self::settle::Shortage;
pub use self::usage::{Totals, Usage};

/// Grains per second that a capacity may have at most: buckets of it stay far below 2^63.
pub const CAPACITY_MAX: u64 = 8_000_000_000;
const NANOS: u64 = 1_000_000_000;
/// While the pool is so full, nobody's excess is in anybody's way.
const SPARE: f64 = 0.9;
/// The most that one question can cost: a quarter of what a level can hold.
const COST_MAX: i64 = i64::MAX / 4;

/// Whether an amount is used up or given back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Kind {
    /// Used up: so much for each second. Its capacity is a rate.
    Counter,
    /// Held and given back: so much at once. Its capacity is an amount.
    Gauge,
}

/// What all resources have in common.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// From one setting of shares to the next, in nanoseconds.
    pub tick_ns: u64,
    /// How much of its share a bucket holds, in nanoseconds of it.
    pub burst_ns: u64,
    /// Ticks after which a claimant that asked for nothing is forgotten.
    pub idle_ticks: u16,
    /// The part of the capacity that is never anybody's share, 0 to 1.
    pub reserve: f64,
    /// The part of the capacity that is kept for claimants without a share, 0 to 1.
    pub newcomers: f64,
    /// How far a share goes beyond what is expected to be wanted, as a part of it.
    pub headroom: f64,
}

/// Who pays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pay {
    /// The claimant's own bucket; or nobody, the resource being unlimited.
    Own,
    /// The pool, since it is guaranteed.
    Guaranteed,
    /// The pool, since the crowd of a member that has no share yet is guaranteed it.
    Fresh,
    /// The reserve of newcomers.
    Newcomer,
    /// The pool.
    Pool,
    /// Nobody: it would be lost otherwise.
    Nobody,
}

/// The answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This would pay.
    Paid(Pay),
    /// The pool has enough, but the claimant used up its allowance: it depends on who else is there.
    Beyond,
    /// There is not enough.
    Short,
}

/// One resource and its claimants.
#[derive(Clone, Debug)]
pub struct Overflow {
    kind: Kind,
    /// Grains in a unit: 1,000 where units are few, so that shares below one per second can be; else 1.
    grains: u64,
    terms: Terms,
    /// C: grains per second, of a gauge units. Without it nothing is refused.
    capacity: Option<u64>,
    /// What decisions need, one for each of `pasts`; where the owner's number says, or beside them.
    cells: Blocks<Cell>,
    by_owner: bool,
    /// Of a gauge, what is held can be called back.
    recallable: bool,
    pasts: Blocks<Past>,
    /// Places among `pasts` of nobody, the first ones first; those beyond its end are of no use.
    free: BinaryHeap<Reverse<u32>>,
    /// How many claimants are here.
    here: usize,
    /// By their numbers.
    crowds: Blocks<Crowd>,
    /// Counts passes over the cells.
    round: u32,
    /// What the ticks so far were longer than whole ones.
    rest_ns: u64,
    /// Sum of the weights of all claimants and crowds here.
    weights: u64,
    /// Sum of the shares T.
    shares: u64,
    /// How far demands were met in the last tick.
    level: Level,
    pool: Pool,
    mint: Mint,
    /// Of a gauge: all that is held, and what of it is beyond shares.
    held: u64,
    over: u64,
    /// Of a gauge: given back in this tick, and the rate of the ticks before.
    released: u64,
    release_rate: f64,
    /// Since the start.
    refused_share: u64,
    refused_full: u64,
    used_rate: f64,
}

impl Overflow {
    /// What an owner costs that is not here, if owners' numbers are places.
    pub const OWNER_BYTES: usize = size_of::<Cell>();

    /// Nobody is here yet. `grains` are the parts of a unit in which shares are counted, 1 to 1,000; `capacity` is in units
    /// per second, of a gauge in units.
    #[must_use]
    pub fn new(kind: Kind, grains: u64, terms: Terms, capacity: Option<u64>, now: Instant) -> Self {
        let grains = if kind == Kind::Gauge { 1 } else { grains };
        let mut made = Self {
            kind,
            grains,
            terms,
            capacity: None,
            cells: Blocks::default(),
            by_owner: false,
            recallable: false,
            pasts: Blocks::default(),
            free: BinaryHeap::new(),
            here: 0,
            crowds: Blocks::default(),
            round: 0,
            rest_ns: 0,
            weights: 0,
            shares: 0,
            level: Level::All,
            pool: Pool::new(now),
            mint: Mint::new(terms),
            held: 0,
            over: 0,
            released: 0,
            release_rate: 0.0,
            refused_share: 0,
            refused_full: 0,
            used_rate: 0.0,
        };
        made.set_piece(1);
        made.set_capacity(capacity, now);
        // Who comes first finds something.
        made.pool.fill();
        made
    }

    /// Keeps what decisions need where the owner's number says: it is found, and fetched from memory, before anything
    /// else about the owner is known. Owners that are not here cost a cache line each.
    #[must_use]
    pub fn by_owner(self) -> Self {
        Self { by_owner: true, ..self }
    }

    /// Of a gauge: what is held can be called back within a tick or two.
    #[must_use]
    pub fn recallable(self) -> Self {
        Self { recallable: true, ..self }
    }

    /// Has what a decision about `owner` needs fetched from memory, if owners' numbers are places.
    #[inline]
    pub fn fetch(&self, owner: u32) {
        if let Some(cell) = self.cells.get(owner as usize) {
            // A load that nothing waits for.
            core::hint::black_box(cell.wanted);
        }
    }

    /// Where the state stands of which [`open`](Self::open) said `past`, of a member of `crowd`.
    #[inline]
    #[must_use]
    pub fn place(&self, owner: u32, past: u32, crowd: u32) -> Place {
        Place { cell: if self.by_owner { owner } else { past }, past, crowd }
    }

    /// Puts another capacity in force: units per second, of a gauge units. Tg makes up the difference until shares are
    /// set anew, and may be below zero until then.
    pub fn set_capacity(&mut self, capacity: Option<u64>, now: Instant) {
        let capacity = capacity.map(|units| units.saturating_mul(self.grains).clamp(1, CAPACITY_MAX));
        if capacity != self.capacity {
            self.pool.refill(now);
            self.capacity = capacity;
            self.share_out_pool();
            self.set_guarantee();
        }
    }

    /// Puts other terms in force.
    pub fn set_terms(&mut self, terms: Terms, now: Instant) {
        self.pool.refill(now);
        self.terms = terms;
        self.mint.set_terms(terms);
        self.share_out_pool();
        self.set_guarantee();
    }

    /// Says what a usual piece of work costs, in units.
    pub fn set_piece(&mut self, units: u64) {
        self.mint.piece = self.level_of(units.max(1));
        self.mint.set_depths();
    }

    /// C in units per second, of a gauge units.
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        self.capacity.map(|capacity| float(capacity) / float(self.grains))
    }

    /// A place for `owner` by itself.
    pub fn open(&mut self, owner: u32, weight: u32, now: Instant) -> Place {
        self.open_in(owner, NONE, weight, now)
    }

    /// A place for `owner`, a member of `crowd` if that is not [`NONE`]; it has no share until the next tick, but what
    /// it is guaranteed comes in from now on, and there is the reserve of newcomers.
    pub fn open_in(&mut self, owner: u32, crowd: u32, weight: u32, now: Instant) -> Place {
        let weight = heft(weight);
        self.join(crowd, weight, now);
        // At once: many newcomers together are guaranteed no more than one.
        self.set_guarantee();
        let past = Past::new(owner, crowd, now);
        self.here += 1;
        let at = if let Some(Reverse(at)) = self.free.pop().filter(|at| (at.0 as usize) < self.pasts.len()) {
            self.pasts[at as usize] = past;
            at
        } else {
            // If any is left, it is beyond the end.
            self.free.clear();
            self.pasts.push(past);
            u32::try_from(self.pasts.len() - 1).expect("no more places than claimants, which are below 2^20")
        };
        let place = self.place(owner, at, crowd);
        self.cells.reach(place.cell() + 1, || Cell::new(0, now));
        self.cells[place.cell()] = Cell::new(weight, now);
        place
    }

    /// Puts another weight of the claimant at `place` in force.
    pub fn set_weight(&mut self, place: Place, weight: u32) {
        let weight = heft(weight);
        let cell = &mut self.cells[place.cell()];
        let before = u64::from(core::mem::replace(&mut cell.weight, weight));
        let weights = if place.crowd == NONE { &mut self.weights } else { &mut self.crowds[place.crowd()].weights };
        *weights = *weights - before + u64::from(weight);
        self.set_guarantee();
    }

    /// Whether `cost` units can be had, and who would pay. It is counted as wanted.
    #[inline]
    pub fn ask(&mut self, place: Place, cost: u64, now: Instant) -> Answer {
        if self.kind == Kind::Gauge {
            return self.ask_gauge(place, cost, now);
        }
        let amount = self.level_of(cost);
        let cell = &mut self.cells[place.cell()];
        cell.wanted = cell.wanted.saturating_add(cost);
        if self.capacity.is_none() {
            return Answer::Paid(Pay::Own);
        }
        // What was minted in the meantime is looked at only when it is needed; every tick does it as well.
        if cell.level >= amount {
            return Answer::Paid(Pay::Own);
        }
        self.ask_all(place, amount, now)
    }

    /// Whether the claimant's own bucket pays after all, or somebody else.
    fn ask_all(&mut self, place: Place, amount: i64, now: Instant) -> Answer {
        self.refill(place, now);
        let cell = &self.cells[place.cell()];
        if cell.level >= amount.min(self.mint.depth(cell.share).max(self.mint.piece)) {
            return Answer::Paid(Pay::Own);
        }
        self.ask_others(place, amount, now)
    }

    /// Whether somebody else pays, the claimant's own bucket being short.
    fn ask_others(&mut self, place: Place, amount: i64, now: Instant) -> Answer {
        let mint = self.mint_of(place);
        let cell = &self.cells[place.cell()];
        let (is_new, weight, mut taken) = (cell.age != Age::Settled, cell.weight, cell.taken);
        // New members of a crowd have theirs together.
        let is_guaranteed = !is_new || place.crowd == NONE;
        if is_guaranteed && cell.guaranteed >= amount.min(mint.guaranteed_depth(weight)) {
            return Answer::Paid(Pay::Guaranteed);
        }
        self.pool.refill(now);
        // Until it has a share, a claimant can take a few pieces at most.
        let most = amount.max(mint::DEEPEST * mint.piece);
        let first = self.level_of(taken).saturating_add(amount) <= most;
        let mut is_newcomer = is_new && first;
        let fresh_depth = self.mint.guaranteed_depth(crowd::WEIGHT);
        if is_new && place.crowd != NONE {
            let crowd = &mut self.crowds[place.crowd()];
            // The first of a crowd is a newcomer; others come out of what their crowd is guaranteed.
            is_newcomer &= !crowd.settled;
            crowd.refill(&self.mint, now);
            if first && crowd.fresh >= amount.min(fresh_depth) {
                return Answer::Paid(Pay::Fresh);
            }
            taken = crowd.taken;
            is_newcomer &= self.level_of(taken).saturating_add(amount) <= most;
        }
        if is_newcomer && self.pool.newcomers >= amount.min(self.pool.newcomers_depth) {
            return Answer::Paid(Pay::Newcomer);
        }
        let cell = &self.cells[place.cell()];
        // Tokens in buckets too small for one piece are not idle.
        let rest = amount - cell.level.clamp(0, amount);
        if self.pool.level < rest.min(self.pool.depth) {
            return Answer::Short;
        }
        let mut allowed = mint.allowance.is_none_or(|_| cell.allowance >= rest.min(mint.allowance_depth(weight)));
        if !allowed && place.crowd != NONE {
            let crowd = &mut self.crowds[place.crowd()];
            crowd.refill(&self.mint, now);
            allowed = crowd.allowance >= rest.min(self.mint.allowance_depth(crowd::WEIGHT));
        }
        if allowed { Answer::Paid(Pay::Pool) } else { Answer::Beyond }
    }

    /// True if work that is paid so stands back behind the others': it is more than the claimant's trend has earned.
    /// What is guaranteed does so only while others' spare time is being used up; until then it hurts nobody, and a
    /// claimant that wakes up need not wait for other programs.
    pub fn stands_back(&mut self, place: Place, pay: Pay, now: Instant) -> bool {
        match pay {
            // Very many members may each have saved up a piece: what comes of them at once is what one claimant could
            // have.
            Pay::Own if place.crowd != NONE => {
                let crowd = &mut self.crowds[place.crowd()];
                crowd.refill(&self.mint, now);
                crowd.ahead < 0
            }
            Pay::Own | Pay::Newcomer => false,
            Pay::Guaranteed | Pay::Fresh => self.pool.filled() < SPARE,
            Pay::Pool | Pay::Nobody => true,
        }
    }

    /// Whether a claimant may go beyond its allowance whose largest part of any resource, for its weight, is
    /// `dominant`, 0 to 1: as the pool is drained, those that use most stand back first.
    ///
    /// Source: Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011), §4: the order of shares.
    #[must_use]
    pub fn may_go_beyond(&self, dominant: f64) -> bool {
        self.pool.filled() >= 0.3 + 0.6 * dominant.clamp(0.0, 1.0)
    }

    /// Charges what [`ask`](Self::ask) granted.
    #[inline]
    pub fn commit(&mut self, place: Place, cost: u64, pay: Pay) {
        if self.kind == Kind::Gauge {
            self.hold(place, cost, pay);
            return;
        }
        let amount = self.level_of(cost);
        let cell = &mut self.cells[place.cell()];
        cell.taken = cell.taken.saturating_add(cost);
        if self.capacity.is_none() {
            return;
        }
        match pay {
            Pay::Own => {
                cell.level -= amount;
                cell.guaranteed -= amount;
                if let Some(crowd) = self.crowd_at(place) {
                    crowd.ahead -= amount;
                }
            }
            Pay::Guaranteed => {
                cell.guaranteed -= amount;
                self.pool.level -= amount;
            }
            Pay::Fresh => {
                self.pool.level -= amount;
                if let Some(crowd) = self.crowd_at(place) {
                    crowd.fresh -= amount;
                }
            }
            Pay::Newcomer => {
                self.pool.newcomers -= amount;
                if let Some(crowd) = self.crowd_at(place) {
                    crowd.taken = crowd.taken.saturating_add(cost);
                }
            }
            Pay::Pool => {
                let rest = amount - cell.level.clamp(0, amount);
                cell.level -= amount - rest;
                cell.guaranteed -= amount - rest;
                // What is taken beyond the allowance is not owed to anybody.
                cell.allowance = (cell.allowance - rest).max(-self.mint.piece);
                self.pool.level -= rest;
                if let Some(crowd) = self.crowd_at(place) {
                    crowd.allowance -= rest;
                }
                let units = rest.unsigned_abs().div_ceil(NANOS * self.grains);
                self.count_overflow(place, units);
            }
            Pay::Nobody => self.count_overflow(place, cost),
        }
    }

    fn count_overflow(&mut self, place: Place, units: u64) {
        let past = &mut self.pasts[place.past()];
        past.overflowed = past.overflowed.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// True if it is used up and there is any amount of it: then nothing is decided, and nothing of it needs to be
    /// known before the tick ends.
    #[inline]
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.capacity.is_none() && self.kind == Kind::Counter
    }

    /// Counts units that were wanted and not admitted, for other reasons than this resource.
    pub fn want(&mut self, place: Place, cost: u64) {
        let cell = &mut self.cells[place.cell()];
        cell.wanted = cell.wanted.saturating_add(cost);
    }

    /// Takes back that units were counted as wanted: they are counted once, however often they are asked for.
    pub fn unwant(&mut self, place: Place, cost: u64) {
        let cell = &mut self.cells[place.cell()];
        cell.wanted = cell.wanted.saturating_sub(cost);
    }

    /// Counts units that wait: more than the claimant may have now.
    pub fn defer(&mut self, place: Place, cost: u64) {
        let past = &mut self.pasts[place.past()];
        past.refused = past.refused.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
    }

    /// Counts units that were admitted though they were not granted, in a dry run.
    pub fn note(&mut self, place: Place, cost: u64) {
        if self.kind == Kind::Gauge {
            self.hold(place, cost, Pay::Pool);
        } else {
            let cell = &mut self.cells[place.cell()];
            cell.taken = cell.taken.saturating_add(cost);
        }
    }

    /// True if the claimant wanted more than its share lately.
    #[inline]
    #[must_use]
    pub fn is_noisy(&self, place: Place) -> bool {
        self.cells[place.cell()].noisy > 0
    }

    /// The part of the capacity that a claimant, or its crowd, uses, 0 to about 1; 0 if it is not limited.
    #[must_use]
    pub fn part(&self, place: Place) -> f64 {
        let used = match self.crowds.get(place.crowd()) {
            Some(crowd) if place.crowd != NONE => crowd.used_rate,
            _ => self.pasts[place.past()].rates.used,
        };
        self.capacity().map_or(0.0, |most| f64::from(used) / most)
    }

    /// T of a claimant, in units per second, of a gauge units.
    #[must_use]
    pub fn share(&self, place: Place) -> u64 {
        self.cells[place.cell()].share / self.grains
    }

    /// Tg, in grains; below zero only between a fall of the capacity and the next shares.
    fn global(&self) -> i64 {
        self.capacity.map_or(0, |capacity| signed(capacity) - signed(self.shares))
    }

    /// `units` as a level.
    #[inline]
    fn level_of(&self, units: u64) -> i64 {
        level(units.saturating_mul(self.grains), NANOS)
    }

    /// Mints what the time since the last time gave, and passes on what does not fit.
    #[inline]
    fn refill(&mut self, place: Place, now: Instant) {
        let surplus = if place.crowd == NONE {
            self.mint.refill(&mut self.cells[place.cell()], now)
        } else {
            self.mint_of(place).refill(&mut self.cells[place.cell()], now)
        };
        if surplus > 0 {
            self.pool.pour(surplus);
        }
    }

    /// Tells the pool what it is filled with.
    fn share_out_pool(&mut self) {
        let capacity = self.capacity.unwrap_or(0);
        self.pool.set(capacity, self.terms);
        self.pool.rate = self.global();
    }

    fn set_guarantee(&mut self) {
        let capacity = float(self.capacity.unwrap_or(0));
        let shared = whole(capacity * (1.0 - self.terms.reserve - self.terms.newcomers));
        self.mint.guarantee = shared / self.weights.max(1);
        self.mint.set_depths();
    }
}

/// A weight as short as it is kept.
fn heft(weight: u32) -> u16 {
    u16::try_from(weight).unwrap_or(u16::MAX)
}

/// What `rate` grains per second give in `span_ns`, as a level.
#[inline]
fn level(rate: u64, span_ns: u64) -> i64 {
    signed(rate.saturating_mul(span_ns)).min(COST_MAX)
}

#[cfg(test)]
mod tests;
