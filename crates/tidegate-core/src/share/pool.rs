//! What is nobody's share.

use crate::Instant;

use super::{Terms, level};
use crate::number::{float, signed_float, whole};

/// Unused shares arrive in lumps, once a tick; a pool of so many ticks of the whole capacity loses none of them.
const TICKS: f64 = 2.5;
/// How full allowances leave it.
const KEPT: f64 = 0.2;

/// The bucket behind all buckets, and in front of it the one of newcomers.
///
/// Levels are in grains times 10^-9.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Below zero if claimants were given what they are guaranteed and others had taken it.
    pub(super) level: i64,
    pub(super) depth: i64,
    /// What only newcomers may take.
    pub(super) newcomers: i64,
    pub(super) newcomers_depth: i64,
    newcomers_rate: u64,
    /// Tg: grains per second; to be refilled before it is set.
    pub(super) rate: i64,
    at: Instant,
    /// What came in during this tick, newcomers' part apart.
    pub(super) income: i64,
}

impl Pool {
    pub(super) fn new(now: Instant) -> Self {
        Self { level: 0, depth: 0, newcomers: 0, newcomers_depth: 0, newcomers_rate: 0, rate: 0, at: now, income: 0 }
    }

    /// Sets how deep it is; to be refilled before.
    pub(super) fn set(&mut self, capacity: u64, terms: Terms) {
        self.newcomers_rate = whole(float(capacity) * terms.newcomers);
        // A second of it: newcomers come together, and rarely.
        self.newcomers_depth = level(self.newcomers_rate, 1_000_000_000);
        self.depth = level(capacity, whole(float(terms.tick_ns) * TICKS)).max(1);
        self.newcomers = self.newcomers.min(self.newcomers_depth);
        self.level = self.level.min(self.depth);
    }

    /// Fills it to the brim.
    pub(super) fn fill(&mut self) {
        (self.level, self.newcomers) = (self.depth, self.newcomers_depth);
    }

    /// Mints: newcomers first; what they do not need is everybody's.
    #[inline]
    pub(super) fn refill(&mut self, now: Instant) {
        let span = now.nanos_since(self.at);
        if span == 0 {
            return;
        }
        self.at = now;
        let minted = level(self.rate.unsigned_abs(), span) * self.rate.signum();
        let room = self.newcomers_depth - self.newcomers;
        let kept = level(self.newcomers_rate, span).min(room).min(minted).max(0);
        self.newcomers += kept;
        self.pour(minted - kept);
    }

    /// Takes in what a claimant's bucket could not hold; what the pool cannot hold is lost.
    #[inline]
    pub(super) fn pour(&mut self, amount: i64) {
        self.income = self.income.saturating_add(amount);
        self.level = self.level.saturating_add(amount).min(self.depth);
    }

    /// What time has brought that is not in it yet, newcomers' part included.
    pub(super) fn minted(&self, now: Instant) -> i64 {
        level(self.rate.unsigned_abs(), now.nanos_since(self.at)) * self.rate.signum()
    }

    /// How full it is, 0 to 1.
    pub(super) fn filled(&self) -> f64 {
        (signed_float(self.level) / signed_float(self.depth)).clamp(0.0, 1.0)
    }

    /// Grains per second that a tick of `seconds` could give to those who overflow: what came in during the last, and
    /// half of what is there beyond [`KEPT`]. If allowances emptied the pool, whoever asks most often would get most.
    pub(super) fn supply(&self, seconds: f64) -> f64 {
        let surplus = signed_float(self.level) - KEPT * signed_float(self.depth);
        ((signed_float(self.income) + surplus / 2.0) / 1e9 / seconds).max(0.0)
    }

    /// Pays for work that turned out dearer (a negative amount), or takes in what it did not need.
    pub(super) fn settle(&mut self, amount: i64) {
        self.level = self.level.saturating_add(amount).min(self.depth);
    }
}
