//! What is known after the fact: true costs, and when a refused one may come back.

use core::time::Duration;

use crate::Instant;

use super::Kind;
use super::cell::{Age, NONE};
use super::{NANOS, Overflow, Place, level};
use crate::number::{float, short, signed, whole};

/// How much a new cost counts in the mean.
const LATEST: f64 = 1.0 / 8.0;
/// Nobody is told to come back later than this. When so much is promised, the round of promises begins again: if all
/// who were refused came back there would not be enough for them in any case, and so they come spread over time.
const PATIENCE: Duration = Duration::from_secs(10);
/// A share follows the demand while it is waited for: what is promised of it is promised an eighth later.
const MARGIN_NUMERATOR: u64 = 9;
const MARGIN_DENOMINATOR: u64 = 8;
/// When to come back for something held of which nothing was given back lately.
const UNKNOWN: Duration = Duration::from_secs(1);

/// A refusal at one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// True if the claimant used up what it could expect.
    pub over_share: bool,
    /// When it is worth while to come back.
    pub retry_after: Duration,
}

impl Overflow {
    /// Corrects a charge of `estimated` units, the true cost being `actual`.
    ///
    /// The claimant's own bucket pays the difference down to minus its depth, beyond that the pool does: nothing that
    /// was used is forgotten.
    pub fn settle(&mut self, place: Place, estimated: u64, actual: u64, now: Instant) {
        let cell = &mut self.cells[place.cell()];
        cell.wanted = cell.wanted.saturating_add(actual).saturating_sub(estimated);
        cell.taken = cell.taken.saturating_add(actual).saturating_sub(estimated);
        if self.kind == Kind::Gauge || self.capacity.is_none() {
            return;
        }
        self.refill(place, now);
        let missing = self.level_of(actual) - self.level_of(estimated);
        let mint = self.mint_of(place);
        if let Some(crowd) = self.crowd_at(place) {
            crowd.ahead -= missing;
        }
        let cell = &self.cells[place.cell()];
        let (depth, guaranteed_depth) = (mint.depth(cell.share), mint.guaranteed_depth(cell.weight));
        let wanted = cell.level - missing;
        let cell = &mut self.cells[place.cell()];
        cell.level = wanted.clamp(-depth, depth);
        cell.guaranteed = (cell.guaranteed - missing).clamp(-guaranteed_depth, guaranteed_depth);
        let rest = wanted - cell.level;
        if rest != 0 {
            self.pool.refill(now);
            self.pool.settle(rest);
        }
    }

    /// Charges `cost` units of work that a claimant was the cause of and had nothing from, down to what its own buckets
    /// hold beyond `keep` units: what it costs to refuse it comes first out of what it could have had. Returns what was
    /// charged.
    pub fn fine(&mut self, place: Place, cost: u64, keep: u64, now: Instant) -> u64 {
        if self.kind == Kind::Gauge || self.capacity.is_none() {
            return 0;
        }
        self.refill(place, now);
        let keep = self.level_of(keep);
        let room = u64::try_from(self.cells[place.cell()].level.saturating_sub(keep)).unwrap_or(0);
        let cost = cost.min(room / (NANOS * self.grains));
        let amount = self.level_of(cost);
        let cell = &mut self.cells[place.cell()];
        cell.level -= amount;
        cell.guaranteed = (cell.guaranteed - amount).max(cell.guaranteed.min(keep));
        cell.taken = cell.taken.saturating_add(cost);
        cost
    }

    /// Notes what a piece of work cost.
    pub fn learn_cost(&mut self, place: Place, units: u64) {
        let past = &mut self.pasts[place.past()];
        let cost = float(units);
        let known = f64::from(past.cost);
        past.cost = short(if known > 0.0 { known + LATEST * (cost - known) } else { cost });
    }

    /// The mean of what the claimant's work cost, in units; `None` if none was seen.
    #[must_use]
    pub fn cost(&self, place: Place) -> Option<u64> {
        let cost = self.pasts[place.past()].cost;
        (cost > 0.0).then(|| whole(f64::from(cost).round()))
    }

    /// Counts a refusal of `cost` units, and says when they are there; `due` is when shares are set anew.
    ///
    /// Who is refused together comes back one after the other: each is promised its own tokens.
    pub fn refuse(&mut self, place: Place, cost: u64, now: Instant, due: Instant) -> Shortage {
        let past = &mut self.pasts[place.past()];
        past.refused = past.refused.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        let cell = &self.cells[place.cell()];
        let over_share = match self.kind {
            Kind::Counter => cell.age == Age::Settled,
            Kind::Gauge => cell.level.unsigned_abs().saturating_add(cost) > self.mint_of(place).guaranteed(cell.weight),
        };
        let retry_after = match self.kind {
            Kind::Counter => self.promise(place, cost, now, due),
            Kind::Gauge => self.until_given_back(cost),
        };
        self.count_refused(place, over_share);
        Shortage { over_share, retry_after }
    }

    /// Counts `cost` units that were given back since there was no room to use them: they were wanted all the same.
    /// Only what a claimant wants beyond its share makes it noisy: one that is muted, and keeps to its share from now
    /// on, is not kept so by others who take the room. The tick began at `began`: a late one has brought more.
    pub fn miss(&mut self, place: Place, cost: u64, began: Instant, now: Instant) {
        let cell = &mut self.cells[place.cell()];
        cell.wanted = cell.wanted.saturating_add(cost);
        let (wanted, share) = (cell.wanted, cell.share);
        let span_ns = now.nanos_since(began).max(self.terms.tick_ns);
        let own = level(share, span_ns).saturating_add(self.mint.depth(share));
        if self.level_of(wanted) > own {
            let past = &mut self.pasts[place.past()];
            past.refused = past.refused.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        }
    }

    /// Counts a refusal since the start.
    pub fn count_refused(&mut self, place: Place, over_share: bool) {
        let past = &mut self.pasts[place.past()];
        if over_share {
            past.refused_share = past.refused_share.saturating_add(1);
            self.refused_share += 1;
        } else {
            past.refused_full = past.refused_full.saturating_add(1);
            self.refused_full += 1;
        }
    }

    fn promise(&mut self, place: Place, cost: u64, now: Instant, due: Instant) -> Duration {
        let amount = self.level_of(cost);
        let cell = &self.cells[place.cell()];
        let mint = self.mint_of(place);
        let guaranteed = mint.guaranteed(cell.weight);
        let depth = self.mint.depth(cell.share);
        let own = if amount.min(self.mint.piece) > depth { 0 } else { cell.share };
        let own = until(amount.min(depth) - cell.level, own);
        let own = own.saturating_mul(MARGIN_NUMERATOR) / MARGIN_DENOMINATOR;
        let sure = until(amount.min(mint.guaranteed_depth(cell.weight)) - cell.guaranteed, guaranteed);
        // A new member of a crowd is guaranteed something from the next tick on.
        let sure = if cell.age == Age::Settled || place.crowd == NONE {
            sure
        } else {
            sure.saturating_add(2 * due.nanos_since(now))
        };
        let rate = guaranteed.max(cell.share.saturating_mul(MARGIN_DENOMINATOR) / MARGIN_NUMERATOR);
        let latest = now + PATIENCE;
        let first = now.plus_nanos(own.min(sure).max(1)).min(latest);
        let next = self.pasts[place.past()].promised.plus_nanos(until(amount, rate));
        let at = if next > latest { first } else { first.max(next) };
        self.pasts[place.past()].promised = at;
        at.since(now)
    }

    fn until_given_back(&self, units: u64) -> Duration {
        if self.release_rate <= 0.0 {
            return UNKNOWN;
        }
        let seconds = (float(units) / self.release_rate).clamp(float(self.terms.tick_ns) / 1e9, PATIENCE.as_secs_f64());
        Duration::from_nanos(whole(seconds * 1e9))
    }
}

/// Nanoseconds until `missing` is minted at `rate`, rounded up.
fn until(missing: i64, rate: u64) -> u64 {
    let missing = u64::try_from(missing).unwrap_or(0);
    match rate {
        _ if missing == 0 => 0,
        0 => u64::MAX / 16,
        rate => signed(missing.div_ceil(rate)).unsigned_abs(),
    }
}
