//! What is shown of a resource and of a tenant's use of it.

use super::number::{float, signed_float};
use super::{Overflow, Place};

/// One tenant: units per second, of a gauge units; refusals since it came.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Usage {
    pub(crate) demand: f64,
    pub(crate) share: f64,
    pub(crate) used: f64,
    pub(crate) overflow: f64,
    pub(crate) lent: f64,
    pub(crate) refused_share: u64,
    pub(crate) refused_full: u64,
}

/// All tenants: units per second, of a gauge units; refusals since the start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Totals {
    pub(crate) global: f64,
    pub(crate) used: f64,
    pub(crate) refused_share: u64,
    pub(crate) refused_full: u64,
}

impl Overflow {
    pub(crate) fn usage(&self, place: Place) -> Usage {
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

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            global: signed_float(self.global().max(0)) / float(self.grains),
            used: self.used_rate,
            refused_share: self.refused_share,
            refused_full: self.refused_full,
        }
    }
}
