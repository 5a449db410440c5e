//! A processor that others have at times.

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

/// How much of a processor a process gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Supply {
    /// All of it.
    #[default]
    Whole,
    /// So much in each period, as a quota of control groups gives it: who has used it up stands until the next one.
    Quota {
        /// What can be used in a period, in microseconds.
        budget_us: u32,
        /// The period, in microseconds.
        period_us: u32,
    },
    /// Slices by turns with another process that always wants the processor.
    Slices {
        /// A slice of the process, in microseconds.
        own_us: u32,
        /// One of the other, in microseconds.
        other_us: u32,
    },
}

impl Supply {
    /// Whether something can be had of it, in no more than a second.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        const MOST: u32 = 1_000_000;
        match self {
            Self::Whole => true,
            Self::Quota { budget_us, period_us } => budget_us > 0 && budget_us <= period_us && period_us <= MOST,
            Self::Slices { own_us, other_us } => own_us > 0 && own_us <= MOST && other_us <= MOST,
        }
    }

    /// The part of the time that can be had: 0 to 1.
    #[must_use]
    pub fn part(self) -> f64 {
        match self {
            Self::Whole => 1.0,
            Self::Quota { budget_us, period_us } => f64::from(budget_us) / f64::from(period_us),
            Self::Slices { own_us, other_us } => f64::from(own_us) / (f64::from(own_us) + f64::from(other_us)),
        }
    }
}

/// What a process got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// So many nanoseconds of the processor,
    pub ns: u64,
    /// the last of them then.
    pub end: Instant,
}

/// A processor, asked in order of time. O(1) for each slice or period that passes.
#[derive(Clone, Debug)]
pub struct Processor {
    supply: Supply,
    /// Of a quota: which period, and what of it was used, in nanoseconds.
    period: u64,
    used_ns: u64,
}

impl Processor {
    /// Nothing was used.
    ///
    /// # Panics
    /// If nothing can be had: then nothing would ever be done.
    #[must_use]
    pub fn new(supply: Supply) -> Self {
        assert!(supply.is_valid(), "nothing can be had of {supply:?}");
        Self { supply, period: 0, used_ns: 0 }
    }

    /// Up to `most_ns` for work that is there from `at` on, as far as it can be had before `until`.
    pub fn give(&mut self, at: Instant, until: Instant, most_ns: u64) -> Given {
        let (mut at, mut ns) = (at, 0);
        while ns < most_ns && at < until {
            let (from, end) = self.next(at);
            if from >= until {
                break;
            }
            let span = end.min(until).nanos_since(from).min(most_ns - ns);
            (at, ns) = (from.plus_nanos(span), ns + span);
            self.used_ns += span;
        }
        Given { ns, end: at }
    }

    /// When work that is there from `at` on begins.
    pub fn begin(&mut self, at: Instant) -> Instant {
        self.next(at).0
    }

    /// The next span that can be had from `at` on.
    fn next(&mut self, at: Instant) -> (Instant, Instant) {
        let now = at.as_nanos();
        let span = |from: u64, end: u64| (Instant::from_nanos(from), Instant::from_nanos(end));
        match self.supply {
            Supply::Whole => (at, Instant::MAX),
            Supply::Slices { own_us, other_us } => {
                let (own, other) = (u64::from(own_us) * 1_000, u64::from(other_us) * 1_000);
                let both = own + other;
                let begin = now - now % both;
                if now - begin < own { span(now, begin + own) } else { span(begin + both, begin + both + own) }
            }
            Supply::Quota { budget_us, period_us } => {
                let (budget, length) = (u64::from(budget_us) * 1_000, u64::from(period_us) * 1_000);
                if now / length > self.period {
                    (self.period, self.used_ns) = (now / length, 0);
                }
                if self.used_ns >= budget {
                    (self.period, self.used_ns) = (self.period + 1, 0);
                }
                let from = now.max(self.period * length);
                span(from, (from + budget - self.used_ns).min((self.period + 1) * length))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    #[test]
    fn a_quota_is_used_up_and_there_again_in_the_next_period() {
        let mut processor = Processor::new(Supply::Quota { budget_us: 50_000, period_us: 100_000 });
        assert_eq!(processor.give(at(0), Instant::MAX, 20 * MS), Given { ns: 20 * MS, end: at(20) });
        // 30 ms are left; the rest is there at 100 ms.
        assert_eq!(processor.give(at(60), Instant::MAX, 40 * MS), Given { ns: 40 * MS, end: at(110) });
        assert_eq!(processor.begin(at(120)), at(120));
        // What is not used in a period is not there in the next.
        assert_eq!(processor.give(at(490), Instant::MAX, 70 * MS), Given { ns: 70 * MS, end: at(610) });
    }

    #[test]
    fn slices_come_by_turns_and_end_when_they_must() {
        let mut processor = Processor::new(Supply::Slices { own_us: 3_000, other_us: 3_000 });
        assert_eq!(processor.give(at(1), Instant::MAX, 4 * MS), Given { ns: 4 * MS, end: at(8) });
        assert_eq!(processor.begin(at(10)), at(12));
        assert_eq!(processor.give(at(13), at(14), 4 * MS), Given { ns: MS, end: at(14) });
        assert_eq!(processor.give(at(15), at(18), 4 * MS), Given { ns: 0, end: at(15) });
    }

    #[test]
    fn in_the_long_run_there_is_the_stated_part() {
        for supply in [
            Supply::Whole,
            Supply::Quota { budget_us: 20_000, period_us: 100_000 },
            Supply::Slices { own_us: 1_000, other_us: 4_000 },
        ] {
            let mut processor = Processor::new(supply);
            let (mut now, mut ns) = (at(0), 0);
            while now < at(10_000) {
                let given = processor.give(now, at(10_000), 700_000);
                (now, ns) = (given.end.max(processor.begin(given.end)), ns + given.ns);
            }
            let parts = u32::try_from(ns / MS).unwrap();
            assert!((f64::from(parts) / 1e4 - supply.part()).abs() < 0.01, "{supply:?}: {parts}");
        }
    }
}
