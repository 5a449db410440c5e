//! Load to watch and to play with: publishers whose rate changes while they run, and a consumer of stated capacity.
//!
//! The consumer is the scarce thing, not the machine: it serves one message after the other and takes `1 / capacity` for
//! each, whatever CPU there is. Both speak real TCP to a real broker, each in a thread of its own, and are read from
//! other threads.

mod consumer;
mod publishers;

pub use consumer::{Consumer, ConsumerConfig, Feed, FeedSnapshot};
pub use publishers::{PublisherCounts, Publishers, PublishersConfig};

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Instant, Rng};

use crate::arrivals::whole;

/// A rate that another thread may change at any time.
#[derive(Debug)]
pub(crate) struct LiveRate(AtomicU64);

impl LiveRate {
    pub(crate) fn new(per_s: f64) -> Self {
        Self(AtomicU64::new(clean(per_s).to_bits()))
    }

    // Relaxed: the number stands for itself, nothing else is published with it.
    pub(crate) fn set(&self, per_s: f64) {
        self.0.store(clean(per_s).to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn per_s(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Zero for what is no rate.
fn clean(per_s: f64) -> f64 {
    if per_s.is_finite() { per_s.max(0.0) } else { 0.0 }
}

/// A Poisson process that follows a [`LiveRate`].
#[derive(Debug)]
pub(crate) struct LiveArrivals {
    per_s: f64,
    next: Instant,
}

impl LiveArrivals {
    /// Nothing arrives before a rate is [followed](Self::follow).
    pub(crate) fn new() -> Self {
        Self { per_s: 0.0, next: Instant::MAX }
    }

    /// Takes on the rate of now.
    pub(crate) fn follow(&mut self, rate: &LiveRate, now: Instant, rng: &mut Rng) {
        let wanted = rate.per_s();
        if wanted.to_bits() != self.per_s.to_bits() {
            self.per_s = wanted;
            // A Poisson process has no memory: a gap at the new rate from now on is the right law.
            self.next = self.after(now, rng);
        }
    }

    /// When the next one is due; never at a rate of zero.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Takes one that is due by now.
    pub(crate) fn take(&mut self, now: Instant, rng: &mut Rng) -> Option<Instant> {
        let due = Some(self.next).filter(|next| *next <= now)?;
        self.next = self.after(due, rng);
        Some(due)
    }

    fn after(&self, from: Instant, rng: &mut Rng) -> Instant {
        if self.per_s == 0.0 { Instant::MAX } else { from.plus_nanos(whole(rng.exponential() * 1e9 / self.per_s)) }
    }
}
