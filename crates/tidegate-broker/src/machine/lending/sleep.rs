//! Whether the machine has slept.

use tidegate_core::Instant;

/// A sleep that is shorter counts as none: loans end at their lender later than at their borrower by more than this.
const SHORTEST_NS: u64 = 500_000;

/// Compares the clock that stands still while the machine sleeps with the one that does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sleep {
    /// By how much the one was ahead of the other at most.
    ahead_ns: Option<u64>,
}

impl Sleep {
    /// The clock that counts sleep showed `since_boot_ns`, and just after that the driver's showed `now`. Time between the
    /// two readings makes the difference smaller: that is no sleep.
    pub fn has_slept(&mut self, since_boot_ns: u64, now: Instant) -> bool {
        let ahead_ns = since_boot_ns.saturating_sub(now.as_nanos());
        let most_ns = *self.ahead_ns.get_or_insert(ahead_ns);
        self.ahead_ns = Some(most_ns.max(ahead_ns));
        ahead_ns > most_ns.saturating_add(SHORTEST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_told_once_and_time_between_the_readings_is_none() {
        const MS: u64 = 1_000_000;
        let mut sleep = Sleep::default();
        let mut look = |boot_ms: u64, now_ms: u64| sleep.has_slept(boot_ms * MS, Instant::from_nanos(now_ms * MS));
        assert!(!look(5_000, 1_000), "it slept before it began");
        // 3 ms pass between the readings.
        assert!(!look(5_010, 1_013));
        assert!(!look(5_020, 1_020));
        assert!(look(7_025, 1_025));
        assert!(!look(7_030, 1_030));
        assert!(look(7_032, 1_031));
        // Clocks that other readings were taken of never make it panic.
        assert!(!look(0, 9_000));
    }
}
