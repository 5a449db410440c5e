//! The books of a resource: sums that are kept as things happen, and the same counted anew.

use super::cell::NONE;
use super::gauge::beyond;
use super::{Overflow, Place};

/// What all tenants here have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Their shares T, in grains.
    pub shares: u64,
    /// Their weights.
    pub weights: u64,
    /// Of a gauge, what they hold.
    pub held: u64,
    /// Of a gauge, what of it is beyond shares.
    pub beyond: u64,
}

/// What must add up at one resource: at every moment `kept` is `counted`, and where there is a capacity the shares and
/// `global` are the capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ledger {
    /// C in grains, the parts of a unit in which shares are counted; of a gauge in units.
    pub capacity: Option<u64>,
    /// Tg, what is nobody's share, in grains. Below zero only between a fall of the capacity and the next shares.
    pub global: i64,
    /// The sums as decisions use them.
    pub kept: Sums,
    /// The sums over the tenants.
    pub counted: Sums,
}

impl Overflow {
    /// Counts everything anew: looks at all tenants.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut counted = Sums::default();
        for (past, at) in self.pasts.iter().zip(0_u32..).filter(|(past, _)| past.owner != NONE) {
            let place: Place = self.place(past.owner, at);
            let cell = &self.cells[place.cell()];
            counted.shares += cell.share;
            counted.weights += u64::from(cell.weight);
            if self.kind == super::Kind::Gauge {
                counted.held += cell.level.unsigned_abs();
                counted.beyond += beyond(cell.level, cell.share);
            }
        }
        let kept = Sums { shares: self.shares, weights: self.weights, held: self.held, beyond: self.over };
        Ledger { capacity: self.capacity, global: self.global(), kept, counted }
    }
}
