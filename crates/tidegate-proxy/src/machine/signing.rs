//! Where the first flight of a handshake beyond its tenant's share is computed, and how much of that may wait.
//!
//! The key exchange and the signature of a first flight take as long as dozens of requests, and a thread that computes one
//! does nothing else. So those beyond a share are left to a second thread, which the system runs only when nobody else wants
//! the processor: it is interrupted as soon as somebody within his share has something to do. Beside other programs such a
//! thread may never get to run. That is seen from outside: the first thread slept long enough for it, and it got nothing
//! done. Then the first thread computes one itself whenever it has nothing else to do.

use core::time::Duration;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Flights that wait may take so long together; more are refused, but for those that are owed. What waits longer is no
    /// use to its client, and its turn would come before that of who asks now.
    pub waiting: Duration,
    /// The second thread gets nothing done while the first one sleeps for so many times of what a flight takes,
    pub starved_times: u64,
    /// and so long at least: then others have the processor.
    pub starved_least: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { waiting: Duration::from_millis(100), starved_times: 4, starved_least: Duration::from_millis(5) }
    }
}

/// Flights that wait for the second thread of one core, or are with it.
#[derive(Debug)]
pub struct Signing {
    tuning: Tuning,
    waiting_ns: u64,
    /// With the second thread now.
    given: u32,
    /// For how long the first thread had slept when the second one last began or ended something.
    slept_ns: u64,
    /// Mean of what a flight takes.
    mean_ns: u64,
}

impl Signing {
    /// Nothing waits.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning, waiting_ns: 0, given: 0, slept_ns: 0, mean_ns: 0 }
    }

    /// One more that is expected to take `ns` waits.
    ///
    /// # Errors
    /// If too many do: how long these will take.
    pub fn wait(&mut self, ns: u64) -> Result<(), Duration> {
        let before = Duration::from_nanos(self.waiting_ns);
        if before >= self.tuning.waiting {
            return Err(before);
        }
        self.waiting_ns += ns;
        Ok(())
    }

    /// One that was expected to take `ns` waits no longer.
    pub fn wait_ends(&mut self, ns: u64) {
        self.waiting_ns = self.waiting_ns.saturating_sub(ns);
    }

    /// The second thread is given one. The first has slept for `slept_ns` in all.
    pub fn give(&mut self, slept_ns: u64) {
        if self.given == 0 {
            self.slept_ns = slept_ns;
        }
        self.given += 1;
    }

    /// One that was given is done, and took `ns`, or is not wanted any more.
    pub fn take_back(&mut self, ns: Option<u64>, slept_ns: u64) {
        self.given -= 1;
        if let Some(ns) = ns {
            self.mean_ns = self.mean_ns - self.mean_ns / 8 + ns / 8;
            self.slept_ns = slept_ns;
        }
    }

    /// Whether the second thread does not get to run though the first one sleeps.
    #[must_use]
    pub fn is_starved(&self, slept_ns: u64) -> bool {
        let enough = Duration::from_nanos(self.mean_ns.saturating_mul(self.tuning.starved_times));
        let slept = Duration::from_nanos(slept_ns.saturating_sub(self.slept_ns));
        self.given > 0 && slept >= enough.max(self.tuning.starved_least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn flights_wait_until_they_would_take_too_long_together() {
        let mut signing = Signing::new(Tuning::default());
        (0..5).for_each(|_| signing.wait(20 * MS).unwrap());
        assert_eq!(signing.wait(1).unwrap_err(), Duration::from_millis(100));
        signing.wait_ends(20 * MS);
        signing.wait(1).unwrap();
    }

    #[test]
    fn a_second_thread_that_never_runs_is_seen_by_the_first_ones_sleep_only() {
        let mut signing = Signing::new(Tuning::default());
        assert!(!signing.is_starved(u64::MAX), "it has nothing to do");
        signing.give(100 * MS);
        // However much time passes: the first thread had the processor.
        assert!(!signing.is_starved(104 * MS) && signing.is_starved(105 * MS));
        signing.take_back(Some(16 * MS), 105 * MS);
        assert!(!signing.is_starved(u64::MAX));
        // A flight takes 2 ms on average, so it has 8.
        signing.give(200 * MS);
        signing.give(207 * MS);
        assert!(!signing.is_starved(207 * MS) && signing.is_starved(208 * MS));
        // One that nobody wants any more says nothing.
        signing.take_back(None, 208 * MS);
        assert!(signing.is_starved(208 * MS));
        signing.take_back(Some(2 * MS), 208 * MS);
        assert!(!signing.is_starved(u64::MAX));
    }
}
