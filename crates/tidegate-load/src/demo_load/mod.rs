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
