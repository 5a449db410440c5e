//! What is sent, by whom, and what is promised.

use std::time::Duration;

use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Unit};
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_core::theory::md1::{AccessDelay, Bucket, Traffic};

pub(super) const TOPIC: &str = "orders";
/// Of the act in which brokers lend: no part of an earlier act is in force there.
pub(super) const LENT_TOPIC: &str = "orders-lent";
pub(super) const CHANNEL: &str = "billing";
/// The promise is about this share of the messages.
pub(super) const QUANTILE: f64 = 0.99;

/// The numbers of the demo.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Plan {
    pub(super) brokers: u32,
    pub(super) producers: u32,
    /// Messages per second of each.
    pub(super) each_per_s: u32,
    /// The topic's whole limit.
    pub(super) limit: Limit,
    /// 99 % of the messages are delivered within it.
    pub(super) slo: Duration,
    /// Messages per second that a broker takes within the objective, as control is told.
    pub(super) mcap_per_s: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            brokers: 6,
            producers: 60,
            // Few messages wait long for tokens: what a busy machine adds is little beside.
            each_per_s: 5,
            // A tenth above what is sent, as in the paper; and a burst that lets more than 99.9 % of the messages pass
            // undelayed as one bucket and as two, with some to spare for a machine that stands still for a moment.
            limit: Limit::new(Rate::per_s(330), 84),
            // A busy machine with two cores keeps it with a limit that is not in the way; a sixth of the limit misses it
            // by far.
            slo: Duration::from_millis(100),
            // One broker has no room for all, two have.
            mcap_per_s: 250,
        }
    }
}

impl Plan {
    pub(super) fn offered_per_s(&self) -> f64 {
        f64::from(self.producers) * f64::from(self.each_per_s)
    }

    /// The share of one broker in a static split.
    pub(super) fn part(&self) -> Limit {
        let rate = Rate::from_per_s_f64(self.limit.rate.as_per_s() / f64::from(self.brokers));
        Limit::new(rate, self.limit.burst / u64::from(self.brokers))
    }

    /// The same as the broker holds it: who is held back waits.
    pub(super) fn contract(&self) -> Contract {
        Contract { limit: self.part(), unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce }
    }

    /// The p99 of waiting for a token in so many equal parts, by the exact theory; microseconds.
    pub(super) fn theory_us(&self, parts: u32) -> Option<f64> {
        let traffic = Traffic { rate_per_s: self.offered_per_s(), batch: 1 };
        let burst = u32::try_from(self.limit.burst).ok()?;
        let bucket = Bucket { rate_per_s: self.limit.rate.as_per_s(), burst: f64::from(burst) };
        AccessDelay::split_evenly(traffic, bucket, parts).ok().map(|delay| delay.quantile_s(QUANTILE) * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_parts_miss_the_objective_by_theory_and_two_or_one_do_not() {
        let plan = Plan::default();
        let slo_us = plan.slo.as_secs_f64() * 1e6;
        let [one, two, six] = [1, 2, 6].map(|parts| plan.theory_us(parts).unwrap());
        assert!(one < 1.0 && two < 1.0, "{one} {two}");
        assert!(six > 2.0 * slo_us, "{six}");
        assert!(plan.offered_per_s() > f64::from(plan.mcap_per_s));
        assert!(plan.offered_per_s() < 2.0 * f64::from(plan.mcap_per_s));
    }

    #[test]
    fn the_parts_are_the_whole() {
        let plan = Plan::default();
        assert_eq!((plan.part().rate, plan.part().burst), (Rate::per_s(55), 14));
        assert_eq!(plan.producers % plan.brokers, 0);
    }
}
