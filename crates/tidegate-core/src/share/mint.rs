//! What time brings to one claimant: its share, what it is guaranteed, what it may take of the overflow.

use crate::Instant;

use super::cell::Cell;
use super::{Terms, level};

/// The least depth of a bucket is what its rate gives in this span, but at most [`DEEPEST`] pieces of work: who comes
/// rarely comes in bursts, as browsers do.
const PATIENCE_NS: u64 = 2_000_000_000;
pub(super) const DEEPEST: i64 = 8;
/// Levels of which what is lent is counted, as a power of two: about a grain.
pub(super) const LENT_LOG2: u32 = 30;

/// The rates and depths that are the same for all claimants of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mint {
    burst_ns: u64,
    tick_ns: u64,
    /// What a claimant is guaranteed for each unit of weight: grains per second, of a gauge units.
    pub(super) guarantee: u64,
    /// What it may take of the pool for each unit of weight before it stands back; without it anything.
    pub(super) allowance: Option<u64>,
    /// One usual piece of work, in levels.
    pub(super) piece: i64,
    /// The depths of what weight 1 is guaranteed and allowed, since nearly all weigh 1.
    guaranteed_depth: i64,
    allowance_depth: i64,
}

impl Mint {
    /// One that mints nothing.
    pub(super) const fn new(terms: Terms) -> Self {
        Self {
            burst_ns: terms.burst_ns,
            tick_ns: terms.tick_ns,
            guarantee: 0,
            allowance: None,
            piece: 0,
            guaranteed_depth: 0,
            allowance_depth: 0,
        }
    }

    pub(super) fn set_terms(&mut self, terms: Terms) {
        (self.burst_ns, self.tick_ns) = (terms.burst_ns, terms.tick_ns);
        self.set_depths();
    }

    /// To be called when a guarantee, an allowance or a usual piece of work has changed.
    pub(super) fn set_depths(&mut self) {
        self.guaranteed_depth = self.guaranteed_depth_of(1);
        self.allowance_depth = self.allowance_depth_of(1);
    }

    /// Mints for a claimant what the time since the last time gave; what its bucket could not hold of it, or 0.
    #[inline]
    pub(super) fn refill(&self, cell: &mut Cell, now: Instant) -> i64 {
        let span = now.nanos_since(cell.at);
        if span == 0 {
            return 0;
        }
        let depth = self.depth(cell.share);
        cell.at = now;
        cell.level += level(cell.share, span);
        // Who has a larger share than its part does not owe the difference for long.
        let guaranteed_depth = self.guaranteed_depth(cell.weight);
        let guaranteed = level(self.guaranteed(cell.weight), span);
        cell.guaranteed = (cell.guaranteed.max(-guaranteed_depth) + guaranteed).min(guaranteed_depth);
        cell.allowance = self.allowance.map_or(0, |rate| {
            let minted = level(rate.saturating_mul(u64::from(cell.weight)), span);
            (cell.allowance + minted).min(self.allowance_depth(cell.weight))
        });
        let surplus = cell.level - depth;
        if surplus <= 0 {
            return 0;
        }
        cell.level = depth;
        cell.lent = cell.lent.saturating_add(u32::try_from(surplus >> LENT_LOG2).unwrap_or(u32::MAX));
        surplus
    }

    /// What a weight is guaranteed: grains per second, of a gauge units.
    #[inline]
    pub(super) fn guaranteed(&self, weight: u16) -> u64 {
        self.guarantee.saturating_mul(u64::from(weight))
    }

    /// The depth of a bucket that is filled at `rate`.
    #[inline]
    pub(super) fn depth(&self, rate: u64) -> i64 {
        let burst = level(rate, self.burst_ns);
        burst.max(level(rate, PATIENCE_NS).min(self.piece * DEEPEST))
    }

    /// What is guaranteed at once: one piece at least, however small the part.
    #[inline]
    pub(super) fn guaranteed_depth(&self, weight: u16) -> i64 {
        if weight == 1 { self.guaranteed_depth } else { self.guaranteed_depth_of(weight) }
    }

    fn guaranteed_depth_of(&self, weight: u16) -> i64 {
        self.depth(self.guaranteed(weight)).max(self.piece)
    }

    #[inline]
    pub(super) fn allowance_depth(&self, weight: u16) -> i64 {
        if weight == 1 { self.allowance_depth } else { self.allowance_depth_of(weight) }
    }

    fn allowance_depth_of(&self, weight: u16) -> i64 {
        let rate = self.allowance.unwrap_or(0).saturating_mul(u64::from(weight));
        level(rate, 2 * self.tick_ns).max(self.piece)
    }
}
