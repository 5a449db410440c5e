//! Beside the callers: send by credit, by level, or fail at once.

use core::time::Duration;

use tidegate_core::{Instant, Rng};

use crate::machine::credits::Level;
use crate::machine::{Ask, CallId, Client, Grant, Reply, Request, ShedReason, Step, Tenant};

/// A client of [`CreditServer`](super::CreditServer). 48 bytes; it has no timer and no queue, so nothing waits in it.
#[derive(Clone, Debug)]
pub struct CreditClient {
    /// Until when the grant holds.
    lease_until: Instant,
    level: Level,
    window: u32,
    in_flight: u32,
    /// What earlier chances left over, in 1/65536.
    carry: u32,
    /// The shortest round trip seen, in nanoseconds; 0 if none.
    round_trip_ns: u32,
    tenant: Tenant,
}

impl CreditClient {
    /// A client that has heard nothing yet and therefore sends what it is asked to.
    pub fn new(tenant: Tenant, rng: &mut Rng) -> Self {
        // Clients that began at the same point would send their first calls at the same time.
        let carry = u32::try_from(rng.below(1 << 16)).expect("16 bits");
        Self {
            lease_until: Instant::ZERO,
            level: Level::OPEN,
            window: 0,
            in_flight: 0,
            carry,
            round_trip_ns: 0,
            tenant,
        }
    }

    /// The level in force at `now`.
    #[must_use]
    pub fn level(&self, now: Instant) -> Level {
        if now < self.lease_until { self.level } else { Level::OPEN }
    }

    /// Credits that are not in use at `now`.
    #[must_use]
    pub fn credits(&self, now: Instant) -> u32 {
        if now < self.lease_until { self.window.saturating_sub(self.in_flight) } else { 0 }
    }

    /// Calls that were sent and not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A grant that was made at `granted` or later.
    fn accept(&mut self, grant: &Grant, granted: Instant) {
        self.level = Level::from_wire(grant.level);
        self.window = grant.window;
        self.lease_until = granted + grant.lease;
    }
}

impl Client for CreditClient {
    #[inline]
    fn on_call(&mut self, request: &Request, now: Instant, _: &mut Rng) -> Step {
        let budget = request.deadline.map(|deadline| deadline.since(now));
        if budget == Some(Duration::ZERO) {
            return Step::Fail(ShedReason::Deadline);
        }
        let credited = self.credits(now) > 0;
        if !credited && !self.level(now).passes(request.priority, &mut self.carry) {
            return Step::Fail(ShedReason::NoCredit);
        }
        self.in_flight += 1;
        Step::Send(Ask {
            demand: 0,
            exact: false,
            credited,
            aware: true,
            priority: request.priority,
            tenant: self.tenant,
            budget,
            round_trip: Duration::from_nanos(self.round_trip_ns.into()),
        })
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let sample =
            u32::try_from(reply.response_time.saturating_sub(reply.server_time).as_nanos()).unwrap_or(u32::MAX);
        let shortest = self.round_trip_ns;
        // The shortest: what waiting adds must not make the objective longer. It creeps up, should the way become longer.
        self.round_trip_ns = match shortest {
            0 => sample,
            _ if sample > shortest => shortest + (sample - shortest) / 1024,
            _ => sample,
        };
        if let Some(grant) = &reply.grant {
            // The lease runs from when the call was sent: so it never outlives the server's own count of it.
            self.accept(grant, now.minus_nanos(tidegate_core::time::nanos(reply.response_time)));
        }
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.accept(grant, now);
    }

    fn on_cancel(&mut self, _: CallId, _: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    fn on_lost(&mut self, _: Instant) {
        self.in_flight = 0;
        self.window = 0;
        self.lease_until = Instant::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_client_takes_64_bytes_at_most() {
        assert!(size_of::<CreditClient>() <= 64, "{}", size_of::<CreditClient>());
    }
}
