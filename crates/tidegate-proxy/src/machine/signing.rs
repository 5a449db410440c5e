//! Where the first flight of a handshake beyond its tenant's share is computed, and how much of that may wait.
//!
//! The key exchange and the signature of a first flight take as long as dozens of requests, and a thread that computes one
//! does nothing else. So those beyond a share are left to a second thread, which the system runs only when nobody else wants
//! the processor: it is interrupted as soon as somebody within his share has something to do. Beside other programs such a
//! thread may never get to run. That is seen from outside: the first thread slept long enough for it, and it got nothing
//! done. Then a third thread stands in for it, which the system lets have a part of the processor like any other program's:
//! the first one has its own part, and what it does for those within their shares does not wait for the third. For as long as
//! others use at least half as much of the processor as the third does, it goes on; else it is the third that the second
//! one waits for.

use core::time::Duration;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Flights that wait may take so long together; more are refused, but for those that are owed. What waits longer is no
    /// use to its client, and its turn would come before that of who asks now.
    pub waiting: Duration,
    /// While those that wait take less than so long together, the second thread may soon have nothing to do: then more may
    /// come than there were tokens for. A few flights; a look at the sockets is never so far away.
    pub spare: Duration,
    /// The second thread gets nothing done while the first one sleeps for so many times of what a flight takes,
    pub starved_times: u64,
    /// and so long at least: then others have the processor.
    pub starved_least: Duration,
    /// Flights that the third one is given: one that it computes and one behind it.
    pub stand_ins: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            waiting: Duration::from_millis(100),
            spare: Duration::from_millis(2),
            starved_times: 4,
            starved_least: Duration::from_millis(5),
            stand_ins: 2,
        }
    }
}

/// Flights that wait for the second thread of one core, or are with it.
#[derive(Debug)]
pub struct Signing {
    tuning: Tuning,
    waiting_ns: u64,
    /// With the second thread now.
    given: u32,
    /// With the third one.
    stand_ins: u32,
    /// For how long the first thread had slept when the second one last began or ended something; later by what the third one
    /// used since, and half as much again.
    slept_ns: u64,
    /// Mean of what a flight takes.
    mean_ns: u64,
}

impl Signing {
    /// Nothing waits.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning, waiting_ns: 0, given: 0, stand_ins: 0, slept_ns: 0, mean_ns: 0 }
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

    /// Whether the second thread may soon have nothing to do.
    #[must_use]
    pub fn has_spare(&self) -> bool {
        Duration::from_nanos(self.waiting_ns) < self.tuning.spare
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
            self.learn(ns);
            self.slept_ns = slept_ns;
        }
    }

    /// The third thread is given one.
    pub fn stand_in(&mut self) {
        self.stand_ins += 1;
    }

    /// One that the third was given is done, and took `ns`, or is not wanted any more.
    pub fn stand_in_ends(&mut self, ns: Option<u64>, slept_ns: u64) {
        self.stand_ins -= 1;
        let Some(ns) = ns else { return };
        self.learn(ns);
        // What was seen long ago does not count for ever.
        let oldest = slept_ns.saturating_sub(self.enough_ns().saturating_mul(2));
        self.slept_ns = self.slept_ns.saturating_add(ns + ns / 2).max(oldest);
    }

    fn learn(&mut self, ns: u64) {
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + ns / 8;
    }

    /// Whether the others have something to do while the first thread sleeps.
    #[must_use]
    pub const fn is_given(&self) -> bool {
        self.given + self.stand_ins > 0
    }

    /// What the flights take that they have, as far as is known.
    #[must_use]
    pub fn given_ns(&self) -> u64 {
        u64::from(self.given + self.stand_ins).saturating_mul(self.mean_ns)
    }

    /// Whether the third thread is to be given one more.
    #[must_use]
    pub fn wants_stand_in(&self, slept_ns: u64) -> bool {
        self.stand_ins < self.tuning.stand_ins && self.is_starved(slept_ns)
    }

    /// Whether the second thread does not get to run though the first one sleeps.
    #[must_use]
    fn is_starved(&self, slept_ns: u64) -> bool {
        self.given > 0 && slept_ns.saturating_sub(self.slept_ns) >= self.enough_ns()
    }

    fn enough_ns(&self) -> u64 {
        let least = u64::try_from(self.tuning.starved_least.as_nanos()).unwrap_or(u64::MAX);
        self.mean_ns.saturating_mul(self.tuning.starved_times).max(least)
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
    fn there_is_spare_time_while_few_wait() {
        let mut signing = Signing::new(Tuning::default());
        signing.wait(MS).unwrap();
        assert!(signing.has_spare());
        signing.wait(MS).unwrap();
        assert!(!signing.has_spare());
        signing.wait_ends(MS);
        assert!(signing.has_spare());
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

    #[test]
    fn a_third_thread_has_two_at_a_time_while_others_have_the_processor() {
        let mut signing = Signing::new(Tuning::default());
        signing.give(0);
        assert!(!signing.wants_stand_in(4 * MS));
        for _ in 0..2 {
            assert!(signing.wants_stand_in(5 * MS));
            signing.stand_in();
        }
        assert!(!signing.wants_stand_in(6 * MS), "it has enough to do");
        // Of each 2 ms it has one and others have the other.
        for turn in 4..50 {
            signing.stand_in_ends(Some(MS), 2 * turn * MS);
            assert!(signing.wants_stand_in(2 * turn * MS));
            signing.stand_in();
        }
        // Then nobody else is there: soon it has nothing to do, so that the second one runs.
        let more = (100..200).take_while(|&ms| {
            signing.stand_in_ends(Some(MS), ms * MS);
            signing.wants_stand_in(ms * MS) && {
                signing.stand_in();
                true
            }
        });
        assert!((5..15).contains(&more.count()));
        signing.take_back(Some(MS), 200 * MS);
        signing.stand_in_ends(None, 200 * MS);
        assert!(!signing.is_given() && !signing.wants_stand_in(u64::MAX));
    }
}
