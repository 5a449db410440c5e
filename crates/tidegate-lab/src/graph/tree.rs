//! What is asked: services, load and times.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::time::nanos;

use crate::rpc::Service;
use crate::rpc::scenario::micros;

/// Services are counted in this range, so that a mistake in a file takes no hours.
const SERVICES_MOST: u32 = 1_000;

/// A tree of services, of which the last leaf is short.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Services from the root to a leaf, at least 2.
    pub depth: u32,
    /// Services that each one calls, but for the leaves.
    pub fan_out: u32,
    /// Cores of each service,
    pub cores: u32,
    /// but of the short one.
    pub short_cores: u32,
    /// What a handler computes before it calls others; all of it at a leaf.
    pub service: Service,
    /// What it computes after they have answered, always the same.
    #[serde(rename = "after_us", with = "micros")]
    pub after: Duration,
    /// From a client to its server and back.
    #[serde(rename = "round_trip_us", with = "micros")]
    pub round_trip: Duration,
    /// How long a caller of the root waits for its answer.
    #[serde(rename = "deadline_us", with = "micros")]
    pub deadline: Duration,
    /// Whether services are told the levels of those that they call.
    #[serde(default = "coupled")]
    pub coupled: bool,
    /// Callers of the root.
    pub callers: u32,
    /// Nothing counts before.
    #[serde(rename = "warm_up_us", with = "micros")]
    pub warm_up: Duration,
    /// How long it is measured after that.
    #[serde(rename = "duration_us", with = "micros")]
    pub duration: Duration,
}

fn coupled() -> bool {
    true
}

impl Tree {
    /// How many services it has; more than is allowed if they cannot be counted.
    #[must_use]
    pub fn services(&self) -> u32 {
        (1..self.depth)
            .try_fold((1_u32, 1_u32), |(all, row), _| {
                let row = row.checked_mul(self.fan_out)?;
                Some((all.checked_add(row).filter(|all| *all <= SERVICES_MOST)?, row))
            })
            .map_or(u32::MAX, |(all, _)| all)
    }

    /// The services that a service calls; none if it is a leaf. The root is 0, and others follow row by row.
    #[must_use]
    pub fn below(&self, service: u32) -> core::ops::Range<u32> {
        let first = service.saturating_mul(self.fan_out).saturating_add(1);
        if first < self.services() { first..first + self.fan_out } else { 0..0 }
    }

    /// The one that is short.
    #[must_use]
    pub fn short(&self) -> u32 {
        self.services() - 1
    }

    /// Cores of a service.
    #[must_use]
    pub fn cores_of(&self, service: u32) -> u32 {
        if service == self.short() { self.short_cores } else { self.cores }
    }

    /// Calls a second that the short one can serve: as many as the whole graph can.
    #[must_use]
    pub fn capacity_per_s(&self) -> f64 {
        f64::from(self.short_cores) / self.service.mean.as_secs_f64()
    }

    /// Calls a second that each of the services with handlers that call others can serve.
    #[must_use]
    pub fn others_per_s(&self) -> f64 {
        f64::from(self.cores) / (self.service.mean + self.after).as_secs_f64()
    }

    /// The first invalid setting: its name, and which values are valid; `None` if all settings are valid.
    #[must_use]
    pub fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let spans = [self.service.mean, self.deadline, self.duration];
        [
            (self.depth < 2, ("depth", "at least 2")),
            (self.fan_out == 0, ("fan_out", "at least 1")),
            (self.services() > SERVICES_MOST, ("depth", "at most 1,000 services in all")),
            (self.cores == 0 || self.short_cores == 0, ("cores", "at least 1, of the short service too")),
            (self.callers == 0 || self.callers > 100_000, ("callers", "from 1 to 100,000")),
            (spans.iter().any(|span| nanos(*span) == 0), ("service", "a mean, a deadline and a duration above zero")),
        ]
        .into_iter()
        .find_map(|(wrong, what)| wrong.then_some(what))
    }
}
