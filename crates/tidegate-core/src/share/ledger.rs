//! The books of a resource: sums that are kept as things happen, and the same counted anew.

use crate::Instant;

use super::Kind;
use super::cell::NONE;
use super::gauge::beyond;
use super::pool::Pool;
use super::{NANOS, Overflow, Place, level};

/// What all claimants here have together.
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
    /// The sums over the claimants.
    pub counted: Sums,
}

/// What is in the buckets of a counter, in grains times 10^-9, as if all had just been filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tokens {
    /// All of it; below zero if work turned out dearer than it was charged.
    pub all: i128,
    /// So much more can come before any is lost, since a bucket and the pool are full.
    pub room: i128,
    /// One unit of the resource.
    pub unit: i128,
}

impl Overflow {
    /// `None` of a gauge, and without a capacity. Looks at all claimants.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> Option<Tokens> {
        self.capacity.filter(|_| self.kind == Kind::Counter)?;
        let (mut all, mut surplus) = (0, 0);
        for (past, at) in self.pasts.iter().zip(0_u32..).filter(|(past, _)| past.owner != NONE) {
            let cell = &self.cells[self.place(past.owner, at, past.crowd).cell()];
            let filled = i128::from(cell.level) + i128::from(level(cell.share, now.nanos_since(cell.at)));
            all += filled;
            surplus += (filled - i128::from(self.mint.depth(cell.share))).max(0);
        }
        let Pool { level, depth, newcomers, .. } = self.pool;
        let minted = i128::from(self.pool.minted(now));
        // What is taken from the pool may be taken last.
        let room = i128::from(depth) - i128::from(level) - minted.max(0) - surplus;
        let unit = i128::from(NANOS) * i128::from(self.grains);
        let all = all + i128::from(level) + minted + i128::from(newcomers);
        Some(Tokens { all, room, unit })
    }

    /// Counts everything anew: looks at all claimants.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let (mut counted, mut crowds) = (Sums::default(), std::collections::BTreeMap::new());
        for (past, at) in self.pasts.iter().zip(0_u32..).filter(|(past, _)| past.owner != NONE) {
            let place: Place = self.place(past.owner, at, past.crowd);
            let cell = &self.cells[place.cell()];
            counted.shares += cell.share;
            if past.crowd == NONE {
                counted.weights += u64::from(cell.weight);
            } else {
                let shares = crowds.entry(past.crowd).or_insert(0_u64);
                *shares += cell.share;
            }
            if self.kind == Kind::Gauge {
                counted.held += cell.level.unsigned_abs();
                counted.beyond += beyond(cell.level, cell.share);
            }
        }
        // A crowd is one, and what it has is what its members have.
        counted.weights += u64::from(super::crowd::WEIGHT) * crowds.len() as u64;
        debug_assert!(crowds.iter().all(|(&at, shares)| self.crowds[at as usize].shares == *shares));
        let kept = Sums { shares: self.shares, weights: self.weights, held: self.held, beyond: self.over };
        Ledger { capacity: self.capacity, global: self.global(), kept, counted }
    }
}
