//! Arrivals of publishers that send together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use super::arrival::{Arrival, Publishers};
use super::{Periodic, Poisson};
use crate::distribution::whole;

/// How publishers belong together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupConfig {
    /// Publishers in a group; the last group has the rest. At least 1.
    pub size: u32,
    /// The messages of a group are spread evenly over so many microseconds, in an order drawn anew each time; 0: all at
    /// once.
    #[serde(default)]
    pub spread_us: f64,
    /// Groups are periodic, each with a phase of its own; else each is a Poisson process.
    #[serde(default)]
    pub periodic: bool,
}

/// Groups of correlated publishers: whenever a group sends, each of its members sends a batch.
///
/// Publisher `p` is in group `p / size`. Endless; O(log n) for each arrival, n arrivals being on their way at once.
/// Source: SRTM, §6.4.
#[derive(Clone, Debug)]
pub struct Groups {
    publishers: Publishers,
    config: GroupConfig,
    triggers: Triggers,
    next_trigger: Option<Arrival>,
    pending: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// Number of arrivals ever made pending: the tie breaker.
    made: u64,
    rng: Rng,
}

/// The processes of the groups as wholes.
#[derive(Clone, Debug)]
enum Triggers {
    Poisson(Poisson),
    Periodic(Periodic),
}

impl Groups {
    /// Arrivals from `start` on.
    ///
    /// # Panics
    /// If the rate is zero, or there is no publisher, an empty batch or an empty group.
    #[must_use]
    pub fn new(publishers: Publishers, config: GroupConfig, start: Instant, mut rng: Rng) -> Self {
        assert!(config.size > 0, "a group has members");
        let count = publishers.count.div_ceil(config.size);
        // A group as one publisher whose batch is that of all its members. The last group may be smaller: it is drawn
        // as often as the others, so that every publisher has the same rate.
        let rate = publishers.rate.as_per_s() * f64::from(count * config.size) / f64::from(publishers.count);
        let groups = Publishers {
            count,
            rate: tidegate_core::Rate::from_per_s_f64(rate),
            batch: publishers.batch * config.size,
        };
        let mut triggers = if config.periodic {
            Triggers::Periodic(Periodic::new(groups, start, &mut rng))
        } else {
            Triggers::Poisson(Poisson::new(groups, start, rng.split()))
        };
        let next_trigger = triggers.next();
        Self { publishers, config, triggers, next_trigger, pending: BinaryHeap::new(), made: 0, rng }
    }

    fn spread_out(&mut self, trigger: Arrival) {
        let first = trigger.publisher * self.config.size;
        let mut members: Vec<u32> = (first..self.publishers.count.min(first + self.config.size)).collect();
        if self.config.spread_us > 0.0 {
            self.rng.shuffle(&mut members);
        }
        let step_ns = self.config.spread_us * 1e3 / f64::from(self.config.size);
        for (position, publisher) in (0u32..).zip(members) {
            let at = trigger.at.plus_nanos(whole(step_ns * f64::from(position)));
            self.pending.push(Reverse((at, self.made, publisher)));
            self.made += 1;
        }
    }
}

impl Triggers {
    fn next(&mut self) -> Option<Arrival> {
        match self {
            Self::Poisson(poisson) => poisson.next(),
            Self::Periodic(periodic) => periodic.next(),
        }
    }
}

impl Iterator for Groups {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        // A later trigger brings nothing earlier than itself.
        while let Some(trigger) = self.next_trigger {
            if self.pending.peek().is_some_and(|Reverse((at, ..))| *at < trigger.at) {
                break;
            }
            self.spread_out(trigger);
            self.next_trigger = self.triggers.next();
        }
        let Reverse((at, _, publisher)) = self.pending.pop()?;
        Some(Arrival { at, publisher, messages: self.publishers.batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Rate;

    fn first(arrivals: usize, config: GroupConfig) -> Vec<Arrival> {
        let publishers = Publishers { count: 10, rate: Rate::per_s(100), batch: 2 };
        Groups::new(publishers, config, Instant::ZERO, Rng::new(5)).take(arrivals).collect()
    }

    #[test]
    fn a_group_sends_at_once() {
        for arrivals in first(1_000, GroupConfig { size: 5, spread_us: 0.0, periodic: false }).chunks(5) {
            assert!(arrivals.iter().all(|arrival| arrival.at == arrivals[0].at && arrival.messages == 2));
            let mut members: Vec<_> = arrivals.iter().map(|arrival| arrival.publisher).collect();
            members.sort_unstable();
            assert!(members == [0, 1, 2, 3, 4] || members == [5, 6, 7, 8, 9], "{members:?}");
        }
    }

    #[test]
    fn a_spread_group_stays_in_order_and_keeps_the_rate() {
        for periodic in [false, true] {
            let arrivals = first(100_000, GroupConfig { size: 4, spread_us: 200_000.0, periodic });
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
            // 50 batches in a second.
            let end_s = arrivals[99_999].at.as_nanos() / 1_000_000_000;
            assert!(end_s.abs_diff(2_000) < 40, "{end_s}");
            let of_last = arrivals.iter().filter(|arrival| arrival.publisher == 9).count();
            assert!(of_last.abs_diff(10_000) < 400, "{of_last}");
        }
    }
}
