//! What a topic saw in each of the last whole seconds. Seconds are those of the driver's clock: number `n` begins `n`
//! seconds after its origin.

use serde::Serialize;
use tidegate_core::Instant;
pub use tidegate_core::estimate::seconds::SECONDS_MAX;
use tidegate_core::estimate::seconds::{Ring, Window, second_of};
use tidegate_core::number::whole;

/// Objectives for which delays are counted at a time; a new one takes the place of the one asked for longest ago.
pub const OBJECTIVES_MAX: usize = 4;

#[derive(Clone, Copy, Default, Debug)]
struct Second {
    messages: u64,
    bytes: u64,
    backlog_max: f64,
}

/// A second of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct SecondReport {
    /// When it began, on the broker's monotonic clock.
    pub start_us: u64,
    /// Messages that publishers sent, those that the contract refused included.
    pub messages: u64,
    /// Their bodies' bytes.
    pub bytes: u64,
    /// Largest backlog seen in it. Under a contract the work U in the bucket, in whole tokens, rounded up: what is missing
    /// from a full bucket and the cost of what waits. Without one, the messages that wait in the topic.
    pub backlog_max: u64,
}

/// The last seconds of a topic. 24 bytes a second.
/// Source: SRTM, §5.4 (the TB Adaptor's window of message counts and largest backlogs).
#[derive(Debug)]
pub(super) struct Seconds {
    ring: Ring<Second>,
    /// The first second that was watched from its beginning.
    since: u64,
}

impl Seconds {
    pub(super) fn new(now: Instant) -> Self {
        Self { ring: Ring::new(now), since: second_of(now) + 1 }
    }

    #[inline]
    pub(super) fn count(&mut self, messages: u64, bytes: u64, now: Instant) {
        let second = self.ring.at(now);
        second.messages += messages;
        second.bytes += bytes;
    }

    /// So much waits now.
    #[inline]
    pub(super) fn note_backlog(&mut self, backlog: f64, now: Instant) {
        let second = self.ring.at(now);
        second.backlog_max = second.backlog_max.max(backlog);
    }

    /// The last `seconds` whole seconds that were watched.
    pub(super) fn window(&self, seconds: u64, now: Instant) -> Window {
        Window::before(now, seconds, self.since)
    }

    /// The seconds of `window`, the oldest first.
    pub(super) fn report(&self, window: Window) -> Vec<SecondReport> {
        let second = |number: u64| {
            let Second { messages, bytes, backlog_max } = self.ring.get(number);
            // A token of which a millionth is missing is there: levels have no more digits than that in common.
            let backlog_max = whole((backlog_max - 1e-6).ceil());
            SecondReport { start_us: number.saturating_mul(1_000_000), messages, bytes, backlog_max }
        };
        window.seconds().map(second).collect()
    }
}

/// How many messages were finished, and how many of them took longer than an objective. Exact: an objective is counted
/// from when it is first asked for on. 248 bytes, and as many for each objective.
#[derive(Debug)]
pub(super) struct DelayCounts {
    finished: Ring<u32>,
    since: u64,
    objectives: Vec<Objective>,
}

#[derive(Debug)]
struct Objective {
    limit_ns: u64,
    over: Ring<u32>,
    /// The first second that was counted from its beginning.
    since: u64,
    asked: Instant,
}

/// What [`DelayCounts`] counted in some seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Finished {
    pub(super) count: u64,
    /// Those that took longer than the objective; 0 without one.
    pub(super) over: u64,
}

impl DelayCounts {
    pub(super) fn new(now: Instant) -> Self {
        Self { finished: Ring::new(now), since: second_of(now) + 1, objectives: Vec::new() }
    }

    /// A message was finished `delay_ns` after it came.
    #[inline]
    pub(super) fn record(&mut self, delay_ns: u64, now: Instant) {
        let finished = self.finished.at(now);
        *finished = finished.saturating_add(1);
        for objective in &mut self.objectives {
            if delay_ns > objective.limit_ns {
                let over = objective.over.at(now);
                *over = over.saturating_add(1);
            }
        }
    }

    /// What was counted in the last `seconds` whole seconds, of those in which the objective was known.
    pub(super) fn ask(&mut self, seconds: u64, objective_ns: Option<u64>, now: Instant) -> Finished {
        let Some(limit_ns) = objective_ns else {
            return Finished { count: Window::before(now, seconds, self.since).sum(&self.finished), over: 0 };
        };
        let index = self.objective(limit_ns, now);
        let objective = &self.objectives[index];
        let window = Window::before(now, seconds, objective.since);
        Finished { count: window.sum(&self.finished), over: window.sum(&objective.over) }
    }

    /// Where the objective is, which is counted from now on if it is new.
    fn objective(&mut self, limit_ns: u64, now: Instant) -> usize {
        if let Some(index) = self.objectives.iter().position(|objective| objective.limit_ns == limit_ns) {
            self.objectives[index].asked = now;
            return index;
        }
        let objective = Objective { limit_ns, over: Ring::new(now), since: second_of(now) + 1, asked: now };
        let oldest = (0..self.objectives.len()).min_by_key(|index| self.objectives[*index].asked);
        match oldest {
            Some(oldest) if self.objectives.len() >= OBJECTIVES_MAX => {
                self.objectives[oldest] = objective;
                oldest
            }
            _ => {
                self.objectives.push(objective);
                self.objectives.len() - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn only_whole_seconds_that_were_watched_are_told() {
        let mut seconds = Seconds::new(at(2_500));
        seconds.count(7, 70, at(2_900));
        seconds.count(1, 10, at(3_000));
        seconds.note_backlog(2.000_000_4, at(3_100));
        seconds.note_backlog(1.0, at(3_200));
        seconds.count(2, 20, at(4_000));
        seconds.note_backlog(2.1, at(4_100));
        let told = |now| seconds.report(seconds.window(10, now));
        assert_eq!(told(at(3_999)), [], "the third second is not over");
        let third = SecondReport { start_us: 3_000_000, messages: 1, bytes: 10, backlog_max: 2 };
        assert_eq!(told(at(4_999)), [third]);
        let fourth = SecondReport { start_us: 4_000_000, messages: 2, bytes: 20, backlog_max: 3 };
        let fifth = SecondReport { start_us: 5_000_000, ..SecondReport::default() };
        assert_eq!(told(at(6_000)), [third, fourth, fifth]);
        assert_eq!(seconds.report(seconds.window(2, at(6_000))), [fourth, fifth]);
        assert_eq!(told(at(4_000_000)).len(), 10);
        assert_eq!(seconds.report(seconds.window(u64::MAX, at(4_000_000))).len(), 60);
    }

    #[test]
    fn an_objective_is_counted_from_when_it_is_asked_for() {
        let mut delays = DelayCounts::new(at(0));
        delays.record(500, at(1_500));
        assert_eq!(delays.ask(10, Some(400), at(2_000)), Finished { count: 0, over: 0 });
        delays.record(500, at(2_500));
        for delay_ns in [400, 401, 1_000] {
            delays.record(delay_ns, at(3_500));
        }
        assert_eq!(delays.ask(10, Some(400), at(4_000)), Finished { count: 3, over: 2 });
        assert_eq!(delays.ask(10, None, at(4_000)), Finished { count: 5, over: 0 });
        assert_eq!(delays.ask(1, None, at(4_000)), Finished { count: 3, over: 0 });
    }

    #[test]
    fn a_fifth_objective_takes_the_place_of_the_one_asked_for_longest_ago() {
        let mut delays = DelayCounts::new(at(0));
        for (limit_ns, ms) in [(1, 0), (2, 10), (3, 20), (4, 30), (1, 40), (5, 50)] {
            delays.ask(10, Some(limit_ns), at(ms));
        }
        delays.record(10, at(1_500));
        let over = |delays: &mut DelayCounts, limit_ns| delays.ask(10, Some(limit_ns), at(2_000)).over;
        assert_eq!([1, 3, 4, 5].map(|limit_ns| over(&mut delays, limit_ns)), [1; 4]);
        assert_eq!(over(&mut delays, 2), 0, "it is new again");
    }
}
