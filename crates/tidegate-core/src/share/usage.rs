//! What is shown of a resource and of a claimant's use of it.

use super::{Overflow, Place};
use crate::number::{float, signed_float};

/// One claimant: units per second, of a gauge units; refusals since it came.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Usage {
    /// What it is expected to want.
    pub demand: f64,
    /// T.
    pub share: f64,
    /// What it was admitted with.
    pub used: f64,
    /// The part of `used` that is beyond its share.
    pub overflow: f64,
    /// The part of its share that others may use.
    pub lent: f64,
    /// Units refused since it had used up what it could expect.
    pub refused_share: u64,
    /// Units refused since there was nothing left.
    pub refused_full: u64,
}

/// All claimants: units per second, of a gauge units; refusals since the start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Totals {
    /// Tg, what is nobody's share.
    pub global: f64,
    /// What was admitted.
    pub used: f64,
    /// Units refused to claimants that had used up what they could expect.
    pub refused_share: u64,
    /// Units refused since there was nothing left.
    pub refused_full: u64,
}

impl Overflow {
    /// What is shown of the claimant at `place`.
    #[must_use]
    pub fn usage(&self, place: Place) -> Usage {
        let (cell, past) = (&self.cells[place.cell()], &self.pasts[place.past()]);
        let grains = float(self.grains);
        Usage {
            demand: past.demand.expected(f64::MAX) / grains,
            share: float(cell.share) / grains,
            used: past.rates.used.into(),
            overflow: past.rates.overflow.into(),
            lent: past.rates.lent.into(),
            refused_share: past.refused_share.into(),
            refused_full: past.refused_full.into(),
        }
    }

    /// What is shown of all.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            global: signed_float(self.global().max(0)) / float(self.grains),
            used: self.used_rate,
            refused_share: self.refused_share,
            refused_full: self.refused_full,
        }
    }
}
