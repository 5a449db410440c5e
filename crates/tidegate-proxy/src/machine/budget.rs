//! What a core's two threads may still use of a quota of processor time.
//!
//! When a control group has used its quota up, none of its threads runs until the next period, up to 100 ms later: handshakes
//! beyond shares would stop the requests within them. So the work beyond shares takes what the rest leaves of the quota, and
//! no more. All processor time is taken from a bucket that fills at the rate of the quota, less a margin; work within shares
//! may overdraw it, and work beyond them begins when there is something in it.
//!
//! The bucket is shallow, so that the time used in a period stays below the quota wherever the period begins: the kernel does
//! not tell. Other programs of the group use the quota too; if it is used up all the same, the margin grows.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::number::{float, whole};
use tidegate_core::time::nanos;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Parts of the quota that are used, 0 to 1: at most,
    pub most: f64,
    /// and at least, however often it is used up.
    pub least: f64,
    /// After a second look in a row that finds that it was used up, such a part of it stays in use: work within shares that
    /// comes all at once may use it up once. After each further one as well;
    pub cut: f64,
    /// and after any that does not, so much more than before.
    pub step: f64,
    /// Depth of the bucket, as a part of what a period has.
    pub depth: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        // With one look a second a cut of a tenth is made up for in ten seconds. At 50 ms of 100 margin and depth are 1.5 ms: as
        // long as two flights take.
        Self { most: 0.97, least: 0.5, cut: 0.9, step: 0.01, depth: 0.03 }
    }
}

/// Processor time for each period, of one core's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Less than the period: more than one core cannot be used.
    pub time: Duration,
    /// Not zero.
    pub period: Duration,
}

impl Terms {
    /// One core's part of a quota that `cores` of them share; `None` if that is a whole core or more.
    #[must_use]
    pub fn part(time: Duration, period: Duration, cores: u32) -> Option<Self> {
        let time = time / cores.max(1);
        (time < period).then_some(Self { time, period })
    }

    fn ns_per_s(self) -> u64 {
        let ns = self.time.as_nanos() * 1_000_000_000 / self.period.as_nanos().max(1);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// The bucket of one core's threads. Without terms there is no quota, and everything may begin.
#[derive(Clone, Debug)]
pub struct Budget {
    tuning: Tuning,
    terms: Option<Terms>,
    /// Part of the quota that is used.
    part: f64,
    /// Times that the quota was found used up, of which is known.
    throttled: u64,
    /// Whether the last look found that it had been used up.
    was_throttled: bool,
    /// In nanoseconds of processor time times the nanoseconds of a second, so that nothing is lost in rounding.
    tokens: i128,
    at: Instant,
    /// Processor time used, of which is known.
    used_ns: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Budget {
    /// No quota yet.
    #[must_use]
    pub fn new(tuning: Tuning, now: Instant) -> Self {
        Self {
            tuning,
            terms: None,
            part: tuning.most,
            throttled: 0,
            was_throttled: false,
            tokens: 0,
            at: now,
            used_ns: 0,
        }
    }

    /// Whether there is a quota.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.terms.is_some()
    }

    /// Nanoseconds of processor time that are used in a second at most.
    #[must_use]
    pub fn ns_per_s(&self) -> u64 {
        self.terms.map_or(SECOND_NS, |terms| whole(float(terms.ns_per_s()) * self.part))
    }

    /// To be told about once a second: the quota that holds now, in how many periods it was used up since the group was
    /// made, and what these threads have used since they began.
    pub fn on_look(&mut self, terms: Option<Terms>, throttled: u64, used_ns: u64, now: Instant) {
        self.refill(used_ns, now);
        let is_known = self.terms.is_some() && terms == self.terms;
        let is_throttled = is_known && throttled > self.throttled;
        let was_throttled = core::mem::replace(&mut self.was_throttled, is_throttled);
        if is_throttled && was_throttled {
            self.part = (self.part * self.tuning.cut).max(self.tuning.least);
        } else if is_known && !is_throttled {
            self.part = (self.part + self.tuning.step).min(self.tuning.most);
        } else if !is_known {
            // What was learnt of another quota says nothing about this one.
            (self.terms, self.part, self.tokens) = (terms, self.tuning.most, 0);
        }
        self.throttled = throttled;
    }

    /// Whether work beyond a share may begin. `used_ns` is what both threads have used since they began, and `given_ns` what
    /// the work takes that the second one has and has not ended.
    ///
    /// # Errors
    /// When to ask again.
    pub fn may_begin(&mut self, used_ns: u64, given_ns: u64, now: Instant) -> Result<(), Instant> {
        if self.terms.is_none() {
            return Ok(());
        }
        self.refill(used_ns, now);
        let left = self.tokens - scaled(given_ns);
        if left > 0 {
            return Ok(());
        }
        let ns = left.unsigned_abs() / u128::from(self.ns_per_s().max(1)) + 1;
        Err(now.plus_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    fn refill(&mut self, used_ns: u64, now: Instant) {
        let used = used_ns.saturating_sub(self.used_ns);
        self.used_ns = self.used_ns.max(used_ns);
        let elapsed = now.nanos_since(self.at);
        self.at = self.at.max(now);
        let Some(terms) = self.terms else { return };
        let period = scaled(nanos(terms.time));
        let depth = scaled(nanos(terms.time.mul_f64(self.tuning.depth)));
        let filled = self.tokens + i128::from(elapsed) * i128::from(self.ns_per_s());
        // What is overdrawn beyond a period has stopped the threads already, and is forgotten with that period.
        self.tokens = (filled.min(depth) - scaled(used)).max(-period);
    }
}

fn scaled(ns: u64) -> i128 {
    i128::from(ns) * i128::from(SECOND_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const HALF: Terms = Terms { time: Duration::from_millis(50), period: Duration::from_millis(100) };

    fn limited(terms: Terms) -> Budget {
        let mut budget = Budget::new(Tuning::default(), Instant::ZERO);
        budget.on_look(Some(terms), 0, 0, Instant::ZERO);
        budget
    }

    /// Runs flights of `flight_ns` as soon as they may begin beside a first thread that uses `first` of the core, for ten
    /// seconds. Returns the part of the core that was used in all, and the most in any period.
    fn used(terms: Terms, first: f64, flight_ns: u64) -> (f64, u64) {
        const STEP: u64 = 100_000;
        let (mut budget, mut total, mut flight_left) = (limited(terms), 0, 0_u64);
        let mut each = Vec::new();
        for step in 0..100_000_u64 {
            let now = Instant::from_nanos(step * STEP);
            let own = whole(float(STEP) * first);
            if flight_left == 0 && budget.may_begin(total, 0, now).is_ok() {
                flight_left = flight_ns;
            }
            // The second thread has what the first one leaves of the core.
            let second = flight_left.min(STEP - own);
            flight_left -= second;
            total += own + second;
            each.push(own + second);
        }
        let window = usize::try_from(nanos(terms.period) / STEP).unwrap();
        let most = each.windows(window).map(|window| window.iter().sum::<u64>()).max().unwrap();
        (float(total) / 1e10, most)
    }

    #[test]
    fn no_period_wherever_it_begins_has_more_than_the_quota_and_little_of_it_is_wasted() {
        for (terms, first, flight_ns) in [
            (HALF, 0.1, 700_000),
            (HALF, 0.4, 700_000),
            (HALF, 0.0, 100_000),
            (Terms { time: Duration::from_millis(80), period: Duration::from_millis(100) }, 0.2, 2 * MS),
        ] {
            let (part, most) = used(terms, first, flight_ns);
            let quota = float(terms.ns_per_s()) / 1e9;
            assert!(most <= nanos(terms.time), "{most} ns in a period of {terms:?}");
            assert!(part >= 0.96 * quota, "{part} of a core, of {quota}");
        }
    }

    #[test]
    fn work_within_shares_overdraws_and_what_is_beyond_waits_for_it() {
        let mut budget = limited(HALF);
        let at = |ms: u64| Instant::from_nanos(ms * MS);
        assert!(budget.may_begin(0, 0, at(10)).is_ok());
        // 1.5 ms were there, 12 are used: at 48.5 % of a core, 10.5 take 21.65 ms.
        let again = budget.may_begin(12 * MS, 0, at(10)).unwrap_err();
        assert!((Instant::from_nanos(31_649_480)..Instant::from_nanos(31_649_490)).contains(&again), "{again:?}");
        assert!(budget.may_begin(12 * MS, 0, again).is_ok());
        // One that is with the second thread is as good as used.
        assert!(budget.may_begin(12 * MS, MS, again).is_err());
    }

    #[test]
    fn a_quota_that_is_used_up_leaves_a_larger_margin_for_a_while() {
        let mut budget = limited(HALF);
        assert_eq!(budget.ns_per_s(), 485_000_000);
        let mut look = |second: u64, throttled: u64| {
            budget.on_look(Some(HALF), throttled, 0, Instant::from_nanos(second * SECOND_NS));
            budget.ns_per_s()
        };
        assert_eq!(look(1, 3), 485_000_000, "once is no sign");
        assert!((436_400_000..436_600_000).contains(&look(2, 4)));
        assert!(look(3, 4) > 436_600_000);
        (4..20).for_each(|second| _ = look(second, 4));
        assert_eq!(look(20, 4), 485_000_000);
        (21..60).for_each(|second| _ = look(second, second));
        assert_eq!(look(60, 60), 250_000_000, "others of the group use it up, whatever is done here");
    }

    #[test]
    fn a_quota_can_come_change_and_go() {
        let mut budget = Budget::new(Tuning::default(), Instant::ZERO);
        let at = |ms: u64| Instant::from_nanos(ms * MS);
        assert!(!budget.is_limited() && budget.may_begin(90 * MS, 0, at(100)).is_ok());
        assert_eq!(budget.ns_per_s(), SECOND_NS);
        // What was used before it came is not owed.
        budget.on_look(Some(HALF), 7, 90 * MS, at(100));
        assert_eq!(budget.ns_per_s(), 485_000_000, "what was counted before says nothing about it");
        assert!(budget.may_begin(90 * MS, 0, at(101)).is_ok());
        budget.on_look(None, 0, 500 * MS, at(900));
        assert!(budget.may_begin(900 * MS, 0, at(900)).is_ok());
        assert_eq!(Terms::part(ms(150), ms(100), 2), Some(Terms { time: ms(75), period: ms(100) }));
        assert_eq!(Terms::part(ms(200), ms(100), 2), None);
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}
