//! What is counted of a server.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::{WindowConfig, WindowedHistogram};
use tidegate_core::time::nanos;

use super::calls::{Calls, Class};
use super::tenants::Tenants;
use crate::machine::{Priority, ShedReason, Tenant};

/// Whose call it is, and how much it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOf {
    /// Whose.
    pub tenant: Tenant,
    /// How much it matters.
    pub priority: Priority,
}

/// How a call was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Serving {
    /// From its arrival to its end.
    pub in_all: Duration,
    /// From its start to its end.
    pub service: Duration,
    /// Whether it ended within the time that its caller had left.
    pub in_time: bool,
}

/// Counters since the start, and what calls took lately. Some 20 ns for each event of a call.
#[derive(Clone, Debug)]
pub struct Book {
    since: Instant,
    pub(super) calls: Calls,
    /// Served within the objective; all that were served if the scheme has none.
    pub(super) in_objective: u64,
    pub(super) cancelled: u64,
    /// In the order of [`ShedReason::ALL`].
    pub(super) by_reason: [u64; ShedReason::ALL.len()],
    pub(super) by_class: [Calls; Class::ALL.len()],
    pub(super) by_tenant: Tenants,
    pub(super) queueing_delays: WindowedHistogram,
    pub(super) service_times: WindowedHistogram,
    objective_ns: u64,
}

impl Book {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        // Ten seconds of which a reader that looks each second sees every value.
        let times = || WindowedHistogram::new(WindowConfig::default());
        Self {
            since: now,
            calls: Calls::default(),
            in_objective: 0,
            cancelled: 0,
            by_reason: [0; ShedReason::ALL.len()],
            by_class: [Calls::default(); Class::ALL.len()],
            by_tenant: Tenants::default(),
            queueing_delays: times(),
            service_times: times(),
            objective_ns: u64::MAX,
        }
    }

    /// Since when it counts.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Calls in all.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// Calls shed for `reason`.
    #[must_use]
    pub fn shed_for(&self, reason: ShedReason) -> u64 {
        self.by_reason[reason as usize]
    }

    /// Calls of a class.
    #[must_use]
    pub fn class(&self, class: Class) -> Calls {
        self.by_class[class as usize]
    }

    /// A call arrived.
    pub fn offered(&mut self, call: CallOf) {
        self.calls.offered += 1;
        self.by_class[Class::of(call.priority) as usize].offered += 1;
        self.by_tenant.offered(call.tenant);
    }

    /// Its handler was started.
    pub fn started(&mut self, call: CallOf, queueing_delay: Duration, now: Instant) {
        self.each(call, |calls| calls.admitted += 1);
        self.queueing_delays.record(nanos(queueing_delay), now);
    }

    /// It was refused.
    pub fn shed(&mut self, call: CallOf, reason: ShedReason) {
        self.each(call, |calls| calls.shed += 1);
        self.by_reason[reason as usize] += 1;
    }

    /// Its handler ran to the end.
    pub fn served(&mut self, call: CallOf, serving: Serving, now: Instant) {
        let Serving { in_all, service, in_time } = serving;
        self.each(call, |calls| {
            calls.served += 1;
            calls.in_time += u64::from(in_time);
        });
        self.in_objective += u64::from(nanos(in_all) <= self.objective_ns);
        self.service_times.record(nanos(service), now);
    }

    /// Its caller went away.
    pub fn cancelled(&mut self) {
        self.cancelled += 1;
    }

    /// How long a call may take from now on to count as good.
    pub fn set_objective(&mut self, objective: Duration) {
        self.objective_ns = nanos(objective);
    }

    fn each(&mut self, call: CallOf, mut count: impl FnMut(&mut Calls)) {
        count(&mut self.calls);
        count(&mut self.by_class[Class::of(call.priority) as usize]);
        count(self.by_tenant.of(call.tenant));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for (place, reason) in ShedReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
        for (place, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, place);
        }
    }

    #[test]
    fn classes_and_tenants_add_up_to_all_calls() {
        let now = Instant::from_nanos(1);
        let mut book = Book::new(now);
        for (number, priority) in (0..1_000_u32).zip((0..=255).cycle()) {
            let call = CallOf { tenant: Tenant(number % 40), priority: Priority(priority) };
            book.offered(call);
            if number % 3 == 0 {
                book.shed(call, ShedReason::Delay);
                continue;
            }
            book.started(call, Duration::from_micros(5), now);
            let serving =
                Serving { in_all: Duration::from_millis(1), service: Duration::ZERO, in_time: number % 2 == 0 };
            book.served(call, serving, now);
        }
        let mut classes = Calls::default();
        book.by_class.iter().for_each(|calls| classes.add(*calls));
        let mut tenants = Calls::default();
        book.by_tenant.rows().for_each(|(_, calls)| tenants.add(calls));
        assert_eq!((classes, tenants), (book.calls, book.calls));
        assert_eq!((book.calls.offered, book.calls.shed, book.shed_for(ShedReason::Delay)), (1_000, 334, 334));
    }
}
