//! One claimant's state at one resource: what a decision needs, and apart from it what the setting of shares needs.

use crate::Instant;

use super::demand::Demand;

/// Nobody.
pub const NONE: u32 = u32::MAX;

/// Ticks for which a claimant that wanted more than its share stays behind the others.
pub(super) const NOISY_TICKS: u8 = 10;

/// Since when a claimant is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    /// It came during this tick: it has no share yet.
    New,
    /// Its demand was seen for the first time; the share follows.
    Seen,
    /// It has a share.
    Settled,
}

/// Where a claimant's state at a resource stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its [`Cell`].
    pub(super) cell: u32,
    /// Its [`Past`].
    pub(super) past: u32,
    /// The crowd that it is a member of, or [`NONE`].
    pub(super) crowd: u32,
}

impl Place {
    /// By which [`place`](super::Overflow::place) finds it again.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.past
    }

    #[inline]
    pub(super) const fn cell(self) -> usize {
        self.cell as usize
    }

    #[inline]
    pub(super) const fn past(self) -> usize {
        self.past as usize
    }

    #[inline]
    pub(super) const fn crowd(self) -> usize {
        self.crowd as usize
    }
}

/// What a decision needs of one claimant: a cache line.
///
/// Levels of counters are in grains times 10^-9, so that one nanosecond mints exactly as many as the share counts
/// grains per second: integers without remainder. Of a gauge `level` is what is held, in units.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Cell {
    /// The claimant's own bucket; below zero, as deep as the bucket, if work turned out dearer than it was charged.
    pub(super) level: i64,
    /// What it may still take of what it is guaranteed whatever the others do.
    pub(super) guaranteed: i64,
    /// What it may still take of the overflow before it must stand back behind others.
    pub(super) allowance: i64,
    /// When the three were exact.
    pub(super) at: Instant,
    /// T: grains per second, of a gauge units.
    pub(super) share: u64,
    /// Units asked for in this tick; of a gauge the most that was held or wanted at once.
    pub(super) wanted: u64,
    /// Units admitted in this tick.
    pub(super) taken: u64,
    /// Minted beyond the depth in this tick, and passed to the pool: levels by 2^30, since it is only shown.
    pub(super) lent: u32,
    pub(super) weight: u16,
    pub(super) age: Age,
    /// Ticks for which it stays behind the others.
    pub(super) noisy: u8,
}

/// The rest of one claimant's state: what is added up, smoothed and shown.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Past {
    /// When the last one that was told to come back comes back.
    pub(super) promised: Instant,
    /// Ticks without a question, in time.
    pub(super) quiet: u16,
    /// Units of this tick that came from the pool.
    pub(super) overflowed: u32,
    /// Units of this tick that were refused, or wait.
    pub(super) refused: u32,
    pub(super) demand: Demand,
    /// The rates of the ticks before, smoothed.
    pub(super) rates: Rates,
    /// Mean of what one piece of work cost, in units; 0 if none is known.
    pub(super) cost: f32,
    /// Refusals since the cell was opened.
    pub(super) refused_share: u32,
    pub(super) refused_full: u32,
    /// The claimant, or [`NONE`].
    pub(super) owner: u32,
    /// The crowd that it is a member of, or [`NONE`].
    pub(super) crowd: u32,
}

/// Units per second; of a gauge units.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rates {
    /// What was wanted in the last tick alone.
    pub(super) wanted: f32,
    pub(super) used: f32,
    pub(super) overflow: f32,
    pub(super) lent: f32,
}

impl Cell {
    pub(super) const fn new(weight: u16, now: Instant) -> Self {
        Self {
            level: 0,
            guaranteed: 0,
            allowance: 0,
            at: now,
            share: 0,
            wanted: 0,
            taken: 0,
            lent: 0,
            weight,
            age: Age::New,
            noisy: 0,
        }
    }
}

impl Past {
    pub(super) fn new(owner: u32, crowd: u32, now: Instant) -> Self {
        Self {
            promised: now,
            quiet: 0,
            overflowed: 0,
            refused: 0,
            demand: Demand::default(),
            rates: Rates::default(),
            cost: 0.0,
            refused_share: 0,
            refused_full: 0,
            owner,
            crowd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_needs_one_cache_line() {
        assert_eq!((size_of::<Cell>(), align_of::<Cell>()), (64, 64));
        assert_eq!(size_of::<Past>(), 64, "and the setting of shares one more");
    }
}
