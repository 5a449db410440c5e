//! What became of a topic's messages, over the last few seconds.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::estimate::{WindowConfig, WindowedHistogram};

use super::plan::Plan;

/// What the figures look back on: long enough for a p99 of the well-behaved topic's 200 messages per second, short
/// enough that a person sees what the slider did.
const WINDOW: Duration = Duration::from_secs(3);
/// Messages are told apart by the tenth of a second in which they should have been published.
const SLOT: Duration = Duration::from_millis(100);

/// Counts one topic's messages.
#[derive(Debug)]
pub(crate) struct Meter {
    deadline: Duration,
    /// Time of work done, from when the message should have been published.
    delay_us: WindowedHistogram,
    /// By when they should have been published; the oldest first.
    slots: VecDeque<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    offered: u64,
    done_in_time: u64,
}

/// A topic's figures, as the demo's page shows them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) offered_per_s: f64,
    pub(crate) delivered_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) loss_percent: f64,
}

impl Meter {
    pub(crate) fn new(plan: &Plan) -> Self {
        let window = WindowConfig { slots: u32::try_from(WINDOW.as_secs()).unwrap_or(1), slot: Duration::from_secs(1) };
        Self { deadline: plan.deadline, delay_us: WindowedHistogram::new(window), slots: VecDeque::new() }
    }

    /// A message should be published at `due`.
    pub(crate) fn on_offered(&mut self, due: Instant) {
        self.slot(due).offered += 1;
        let kept = (WINDOW + self.deadline).as_nanos().div_ceil(SLOT.as_nanos()) + 2;
        while self.slots.len() as u128 > kept {
            self.slots.pop_front();
        }
    }

    /// The work on the message that should have been published at `due` is done.
    pub(crate) fn on_done(&mut self, due: Instant, now: Instant) {
        let delay = now.since(due);
        self.delay_us.record(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), now);
        let in_time = u64::from(delay <= self.deadline);
        // A message that is older than the window is only a delay.
        if self.slots.front().is_some_and(|oldest| oldest.number <= number(due)) {
            let slot = self.slot(due);
            slot.done_in_time += in_time;
        }
    }

    /// The figures of the last [`WINDOW`]. Loss is that of messages whose deadline is over: the others can still make it.
    pub(crate) fn figures(&self, now: Instant) -> Figures {
        let delays = self.delay_us.snapshot(now);
        let (newest, late) = (number(now), number(now.minus_nanos(nanos(self.deadline))));
        let length = nanos(WINDOW) / nanos(SLOT);
        let within = |end: u64| move |slot: &&Slot| slot.number + length >= end && slot.number < end;
        let offered: u64 = self.slots.iter().filter(within(newest)).map(|slot| slot.offered).sum();
        let due: (u64, u64) = self
            .slots
            .iter()
            .filter(within(late))
            .fold((0, 0), |sum, slot| (sum.0 + slot.offered, sum.1 + slot.done_in_time));
        let seconds = WINDOW.as_secs_f64();
        Figures {
            offered_per_s: float(offered) / seconds,
            delivered_per_s: float(delays.count()) / seconds,
            p50_ms: float(delays.quantile(0.5)) / 1e3,
            p99_ms: float(delays.quantile(0.99)) / 1e3,
            loss_percent: if due.0 == 0 { 0.0 } else { 100.0 * float(due.0.saturating_sub(due.1)) / float(due.0) },
        }
    }

    fn slot(&mut self, due: Instant) -> &mut Slot {
        let number = number(due);
        let place = self.slots.partition_point(|slot| slot.number < number);
        if self.slots.get(place).is_none_or(|slot| slot.number != number) {
            self.slots.insert(place, Slot { number, offered: 0, done_in_time: 0 });
        }
        &mut self.slots[place]
    }
}

fn number(at: Instant) -> u64 {
    at.as_nanos() / nanos(SLOT)
}

fn nanos(span: Duration) -> u64 {
    tidegate_core::time::nanos(span)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// 100 messages per second for `seconds`, each done `delay_ms` later, or not at all.
    fn run(seconds: u64, delay_ms: impl Fn(u64) -> Option<u64>) -> Figures {
        let mut meter = Meter::new(&Plan::default());
        let end = seconds * 1_000;
        let mut events: Vec<(u64, Option<u64>)> = (0..seconds * 100).map(|n| (n * 10, None)).collect();
        events.extend((0..seconds * 100).filter_map(|n| Some((n * 10 + delay_ms(n)?, Some(n * 10)))));
        events.sort_unstable();
        for (at, done) in events.into_iter().filter(|(at, _)| *at < end) {
            match done {
                None => meter.on_offered(ms(at)),
                Some(due) => meter.on_done(ms(due), ms(at)),
            }
        }
        meter.figures(ms(end))
    }

    #[test]
    fn messages_in_time_are_delivered_and_not_lost() {
        let figures = run(10, |_| Some(5));
        assert!((figures.offered_per_s - 100.0).abs() < 4.0, "{figures:?}");
        assert!((4.5..6.0).contains(&figures.p99_ms), "{figures:?}");
        assert!(figures.loss_percent.abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn late_messages_are_lost_although_they_are_delivered() {
        let figures = run(10, |_| Some(1_500));
        assert!(figures.delivered_per_s > 60.0, "{figures:?}");
        assert!((figures.loss_percent - 100.0).abs() < 1e-9, "{figures:?}");
        assert!((1_450.0..1_600.0).contains(&figures.p50_ms), "{figures:?}");
    }

    #[test]
    fn messages_that_never_come_are_lost_once_their_deadline_is_over() {
        let figures = run(10, |n| (n % 4 != 0).then_some(5));
        assert!((figures.loss_percent - 25.0).abs() < 1.0, "{figures:?}");
        // The last second's messages still have time.
        let figures = run(10, |n| (n < 900).then_some(5));
        assert!(figures.loss_percent.abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn memory_is_bounded() {
        let mut meter = Meter::new(&Plan::default());
        for n in 0..100_000 {
            meter.on_offered(ms(n * 10));
            meter.on_done(ms(0), ms(n * 10));
        }
        assert!(meter.slots.len() <= 45, "{}", meter.slots.len());
    }
}
