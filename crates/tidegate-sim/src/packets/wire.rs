//! A line that takes time for each byte, and then for the way.

use tidegate_core::{Instant, Rng};

use crate::distribution::Distribution;

const SECOND_NS: u64 = 1_000_000_000;

/// One direction of a line. What is sent later arrives later.
#[derive(Clone, Debug)]
pub struct Wire {
    bytes_per_s: u64,
    way: Distribution,
    /// When the last byte so far has been put on it.
    free_at: Instant,
    /// When the latest packet arrives.
    latest: Instant,
}

impl Wire {
    /// An idle line.
    ///
    /// # Panics
    /// If it carries nothing.
    #[must_use]
    pub fn new(bytes_per_s: u64, way: Distribution) -> Self {
        assert!(bytes_per_s > 0, "a line carries something");
        Self { bytes_per_s, way, free_at: Instant::ZERO, latest: Instant::ZERO }
    }

    /// When the next packet can be put on it.
    #[must_use]
    pub fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Puts `bytes` on it, at `now` or when it is free. When the last of them arrives.
    pub fn send(&mut self, bytes: u64, now: Instant, rng: &mut Rng) -> Instant {
        let takes_ns = bytes.saturating_mul(SECOND_NS) / self.bytes_per_s;
        self.free_at = self.free_at.max(now).plus_nanos(takes_ns);
        self.latest = self.free_at.plus_nanos(self.way.sample_ns(rng)).max(self.latest);
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_put_on_the_line_one_after_the_other() {
        let mut wire = Wire::new(1_000_000_000, Distribution::Constant { us: 10.0 });
        let mut rng = Rng::new(1);
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        assert_eq!(wire.send(1_000, at(0), &mut rng), at(11));
        assert_eq!(wire.send(1_000, at(0), &mut rng), at(12));
        assert_eq!(wire.free_at(), at(2));
        assert_eq!(wire.send(1_000, at(50), &mut rng), at(61));
    }
}
