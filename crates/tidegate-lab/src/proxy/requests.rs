//! Requests on connections that are there.

use tidegate_proxy::machine::admission::{Arrival, Costs};
use tidegate_proxy::machine::resource::Resource;

use super::clients::End;
use super::scenario::ClientKind;
use super::thread::{Event, HALF_NS, Key, Stage, Thread};

/// What one that waited was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Go,
    No,
}

impl Thread<'_> {
    pub(super) fn step_request(&mut self, key: Key) {
        let Some(connection) = self.connection(key) else { return };
        let (stage, gone, side) = (connection.stage, connection.gone, connection.side);
        match stage {
            Stage::Request => self.ask(key, side),
            Stage::Waits { ticket, .. } if gone => {
                self.admission.leave(ticket);
                self.waits.remove(&ticket);
                self.spend(self.costs.close_us);
                self.close(key);
            }
            Stage::Told { told: Told::Go, ns } => self.answer(key, ns),
            Stage::Told { told: Told::No, .. } => self.refuse(key),
            _ => {}
        }
    }

    /// Reads a request, and asks for it.
    fn ask(&mut self, key: Key, side: usize) {
        self.spend(self.costs.ask_us);
        let tenant = self.sides[side].tenant(&mut self.limiter, self.now);
        let ns = self.limiter.expected_cost(tenant, Resource::EventTime);
        let costs = Costs::new().and(Resource::Requests, 1).and(Resource::EventTime, ns);
        match self.admission.arrive(&mut self.limiter, tenant, &costs, self.now) {
            Arrival::Admit(_) => {
                self.turn_to(key, tenant);
                self.answer(key, ns);
            }
            Arrival::Refuse(_) => self.refuse(key),
            Arrival::Wait(ticket) => {
                self.turn_to(key, tenant);
                self.waits.insert(ticket, key);
                if let Some(connection) = self.connection(key) {
                    connection.stage = Stage::Waits { ticket, ns };
                }
                self.wake_waits();
            }
        }
    }

    /// Serves a request that was charged with `ns`.
    fn answer(&mut self, key: Key, ns: u64) {
        if let Some(connection) = self.connection(key) {
            connection.account.begin_request(ns);
        }
        self.spend(self.costs.answer_us - self.costs.ask_us);
        self.tell(key, End::Answered(self.now.plus_nanos(HALF_NS)));
    }

    fn refuse(&mut self, key: Key) {
        self.spend(self.costs.refusal_us - self.costs.ask_us);
        self.note_refusing(self.costs.refusal_us);
        self.tell(key, End::Refused);
    }

    /// The client is told how its request ended. A connection of TLS is for one request.
    fn tell(&mut self, key: Key, end: End) {
        let now = self.now;
        let Some(connection) = self.connection(key) else { return };
        let (side, arrived, gone) = (connection.side, connection.arrived, connection.gone);
        connection.stage = Stage::Idle;
        if !gone {
            self.sides[side].tally.end(arrived, end);
        }
        if self.sides[side].kind == ClientKind::NewTls {
            self.spend(self.costs.close_us);
            return self.close(key);
        }
        self.settle(key);
        self.at(now.plus_nanos(HALF_NS), Event::Told(key));
    }

    /// Time that went on saying no.
    pub(super) fn note_refusing(&mut self, us: f64) {
        if self.is_measured() {
            self.spent.refusing += super::thread::nanos(us);
        }
    }
}
