//! What a connection's tenant used and has not been charged for yet.

use tidegate_core::Instant;
use tidegate_proxy::machine::Resource;
use tidegate_proxy::machine::neighbours::{Neighbours, Tenant};

/// What a connection's time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Handshake,
    Serving,
}

/// One connection's account, as that of the proxy: estimates are charged when work is admitted, and the difference when the
/// truth is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) tenant: Tenant,
    pub(super) work: Work,
    handshake: Used,
    event: Used,
    /// Connections and bytes that are held.
    held: [u64; 2],
}

#[derive(Clone, Copy, Default, Debug)]
struct Used {
    estimated: u64,
    actual: u64,
    /// What of a piece of work under way was charged so far.
    charged: u64,
    /// A piece of work is under way that was charged beforehand.
    is_piece: bool,
}

impl Used {
    fn charge(&mut self, limiter: &mut Neighbours, tenant: Tenant, resource: Resource, now: Instant) {
        let (estimated, actual) = (core::mem::take(&mut self.estimated), core::mem::take(&mut self.actual));
        if estimated != 0 || actual != 0 {
            limiter.correct(tenant, resource, estimated, actual, now);
            self.charged += actual;
        }
    }

    fn settle(&mut self, limiter: &mut Neighbours, tenant: Tenant, resource: Resource, now: Instant) {
        self.charge(limiter, tenant, resource, now);
        let Self { charged, is_piece, .. } = core::mem::take(self);
        if is_piece {
            limiter.learn(tenant, resource, charged, now);
        }
    }
}

impl Account {
    pub(super) fn open(tenant: Tenant) -> Self {
        let (handshake, event) = (Used::default(), Used::default());
        Self { tenant, work: Work::Serving, handshake, event, held: [0; 2] }
    }

    /// A handshake was charged with `ns`, and a connection and its `memory` are held.
    pub(super) fn begin_handshake(&mut self, ns: u64, memory: u64) {
        self.work = Work::Handshake;
        self.handshake = Used { estimated: ns, is_piece: true, ..Used::default() };
        self.held = [1, memory];
    }

    /// The handshake that was charged is not made.
    pub(super) fn forgo_handshake(&mut self, limiter: &mut Neighbours, now: Instant) {
        let charged = core::mem::take(&mut self.handshake.estimated);
        self.handshake.is_piece = false;
        limiter.give_back(self.tenant, Resource::Handshakes, 1, now);
        limiter.give_back(self.tenant, Resource::HandshakeTime, charged, now);
    }

    /// A request was charged with `ns`.
    pub(super) fn begin_request(&mut self, ns: u64) {
        self.event.estimated += ns;
        self.event.is_piece = true;
    }

    pub(super) fn add_time(&mut self, ns: u64) {
        match self.work {
            Work::Handshake => self.handshake.actual += ns,
            Work::Serving => self.event.actual += ns,
        }
    }

    /// Charges what was used so far.
    pub(super) fn charge(&mut self, limiter: &mut Neighbours, now: Instant) {
        self.event.charge(limiter, self.tenant, Resource::EventTime, now);
        self.handshake.charge(limiter, self.tenant, Resource::HandshakeTime, now);
    }

    pub(super) fn settle(&mut self, limiter: &mut Neighbours, now: Instant) {
        self.event.settle(limiter, self.tenant, Resource::EventTime, now);
        self.handshake.settle(limiter, self.tenant, Resource::HandshakeTime, now);
    }

    /// From now on `tenant` pays.
    pub(super) fn turn_to(&mut self, tenant: Tenant, limiter: &mut Neighbours, now: Instant) {
        if tenant != self.tenant {
            self.settle(limiter, now);
            let held = self.held;
            self.release(limiter, now);
            self.tenant = tenant;
            self.hold(held, limiter, now);
        }
    }

    /// Holds so many connections and bytes.
    pub(super) fn hold(&mut self, held: [u64; 2], limiter: &mut Neighbours, now: Instant) {
        self.held = held;
        limiter.hold(self.tenant, Resource::Connections, held[0], now);
        limiter.hold(self.tenant, Resource::Memory, held[1], now);
    }

    pub(super) fn close(&mut self, limiter: &mut Neighbours, now: Instant) {
        self.settle(limiter, now);
        self.release(limiter, now);
    }

    fn release(&mut self, limiter: &mut Neighbours, now: Instant) {
        let [connections, memory] = core::mem::take(&mut self.held);
        limiter.release(self.tenant, Resource::Connections, connections, now);
        limiter.release(self.tenant, Resource::Memory, memory, now);
    }
}
