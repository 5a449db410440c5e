//! What the demo offers, to whom, and what it calls good.
//!
//! Two brokers get the same two topics. One consumer for each broker works on both topics, first come, first served,
//! and can do [`Plan::capacity_per_s`] messages per second: waiting is all that its work consists of, so neither side is
//! short of CPU and both are equally fast. `orders` is well-behaved: it offers a fifth of that, always. `clicks` is
//! noisy: it offers the rest of the load. On one broker `clicks` has a limit.
//!
//! A message is late, and counts as lost, when its work is done more than [`Plan::deadline`] after it should have been
//! published. The consumer cannot know and works on late messages as on any other, which is how overload hurts in
//! earnest: it is busy with what nobody waits for any more.

use std::time::Duration;

use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Unit};
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_wire::nsq::TopicName;

/// Which of the two topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The well-behaved one.
    Good,
    /// The other one.
    Noisy,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Good, Self::Noisy];

    pub(crate) fn topic(self) -> &'static str {
        match self {
            Self::Good => "orders",
            Self::Noisy => "clicks",
        }
    }
}

/// The topic's name as the broker takes it.
pub(crate) fn topic_name(role: Role) -> TopicName {
    TopicName::new(role.topic()).expect("a plain word is a name")
}

/// The numbers of the demo.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Plan {
    /// What the consumer can do.
    pub(crate) capacity_per_s: f64,
    /// What the well-behaved topic offers, as a share of the capacity.
    pub(crate) good_share: f64,
    /// What the limit admits of the noisy one, as a share of the capacity.
    pub(crate) noisy_share: f64,
    /// How many noisy messages may come at once.
    pub(crate) burst: u64,
    /// The objective: 99 % of the well-behaved messages are done within it.
    pub(crate) slo: Duration,
    /// Later than this is lost.
    pub(crate) deadline: Duration,
    /// What a spike adds to the load, in capacities.
    pub(crate) spike: f64,
    pub(crate) spike_length: Duration,
    /// RDY: messages of each topic that the consumer holds.
    pub(crate) ready: u32,
    /// Messages of each topic that the broker holds; beyond, it drops the oldest.
    pub(crate) queue: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            // A millisecond each, as long as a small write to a database; and so few that two cores are never the
            // bottleneck, even at three times the capacity on both sides.
            capacity_per_s: 1_000.0,
            good_share: 0.2,
            // With the well-behaved fifth the consumer is 80 % busy at most, where queues are still short.
            noisy_share: 0.6,
            // A tenth of the objective's time: what comes at once is what the others wait for.
            burst: 5,
            slo: Duration::from_millis(50),
            deadline: Duration::from_secs(1),
            spike: 3.0,
            spike_length: Duration::from_secs(3),
            // nsqd lets a client hold so many at most, and clients that want throughput ask for it.
            ready: 2_500,
            queue: 2_500,
        }
    }
}

/// The load factors that can be asked for.
pub(crate) const LOAD: std::ops::RangeInclusive<f64> = 0.2..=3.0;

impl Plan {
    /// What `role` offers per second when all load is `load` times the capacity.
    pub(crate) fn offered_per_s(&self, role: Role, load: f64) -> f64 {
        match role {
            Role::Good => self.capacity_per_s * self.good_share,
            Role::Noisy => self.capacity_per_s * (load - self.good_share).max(0.0),
        }
    }

    /// The limit on the noisy topic. It refuses rather than waits, so that both sides are offered the same all the time:
    /// a publisher that is held back offers less.
    pub(crate) fn contract(&self) -> Contract {
        Contract {
            limit: Limit::new(Rate::from_per_s_f64(self.capacity_per_s * self.noisy_share), self.burst),
            unit: Unit::Messages,
            discipline: Discipline::Refuse,
            mode: Mode::Enforce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_what_both_topics_offer_together() {
        let plan = Plan::default();
        for load in [0.2, 0.5, 1.0, 3.0] {
            let offered: f64 = Role::BOTH.into_iter().map(|role| plan.offered_per_s(role, load)).sum();
            assert!((offered - load * plan.capacity_per_s).abs() < 1e-6, "{load}");
        }
        assert_eq!(plan.contract().limit.rate, Rate::per_s(600));
    }
}
