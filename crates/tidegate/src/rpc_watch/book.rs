//! What is counted of one shard.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::{WindowConfig, WindowedHistogram};
use tidegate_core::time::nanos;
use tidegate_rpc::machine::any::AnyServer;
use tidegate_rpc::machine::credits::Gauges;
use tidegate_rpc::machine::{Ask, Done, Grant, Priority, SessionId, ShedReason, Tenant, Ticket};

/// Served calls after which the objective that the machine has learnt is looked up again.
const OBJECTIVE_EVERY: u64 = 64;

/// Calls of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Calls {
    pub(super) offered: u64,
    pub(super) served: u64,
    pub(super) shed: u64,
}

impl Calls {
    pub(super) fn add(&mut self, other: Self) {
        self.offered += other.offered;
        self.served += other.served;
        self.shed += other.shed;
    }
}

/// A connected client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientBook {
    pub(super) tenant: Tenant,
    pub(super) calls: Calls,
    /// Calls that wait at it, as it last said.
    pub(super) demand: u32,
    /// Credits of its last grant.
    pub(super) credits: u32,
    pub(super) in_server: u32,
}

/// Counters since the start, and the machine's own figures when a snapshot is taken.
#[derive(Clone, Debug)]
pub(super) struct Book {
    pub(super) calls: Calls,
    /// Served within the objective; all that were served if the scheme has none.
    pub(super) in_objective: u64,
    pub(super) cancelled: u64,
    pub(super) by_reason: BTreeMap<ShedReason, u64>,
    pub(super) by_priority: BTreeMap<Priority, Calls>,
    pub(super) delays: WindowedHistogram,
    /// By the number of the session, which machines reuse: no longer than the sessions that were open at once.
    clients: Vec<Option<ClientBook>>,
    objective_ns: u64,
    /// Sheds that the machine decided, of those that ended; the rest found no room in the driver.
    decided: u64,
}

impl Book {
    pub(super) fn new() -> Self {
        // Ten seconds of which a reader that looks each second sees every value.
        let delays = WindowedHistogram::new(WindowConfig::default());
        Self {
            calls: Calls::default(),
            in_objective: 0,
            cancelled: 0,
            by_reason: BTreeMap::new(),
            by_priority: BTreeMap::new(),
            delays,
            clients: Vec::new(),
            objective_ns: u64::MAX,
            decided: 0,
        }
    }

    pub(super) fn opened(&mut self, session: SessionId, tenant: Tenant) {
        let place = session.0 as usize;
        if self.clients.len() <= place {
            self.clients.resize(place + 1, None);
        }
        self.clients[place] = Some(ClientBook { tenant, ..ClientBook::default() });
    }

    pub(super) fn closed(&mut self, session: SessionId) {
        if let Some(place) = self.clients.get_mut(session.0 as usize) {
            *place = None;
        }
    }

    /// The clients that are connected, with their sessions' numbers.
    pub(super) fn clients(&self) -> impl Iterator<Item = (usize, &ClientBook)> {
        self.clients.iter().enumerate().filter_map(|(session, client)| Some((session, client.as_ref()?)))
    }

    fn client(&mut self, session: SessionId) -> Option<&mut ClientBook> {
        self.clients.get_mut(session.0 as usize)?.as_mut()
    }

    pub(super) fn offered(&mut self, session: SessionId, ask: &Ask) {
        self.calls.offered += 1;
        self.by_priority.entry(ask.priority).or_default().offered += 1;
        if let Some(client) = self.client(session) {
            client.calls.offered += 1;
            client.demand = ask.demand;
            client.in_server += 1;
        }
    }

    pub(super) fn told(&mut self, session: SessionId, demand: u32) {
        if let Some(client) = self.client(session) {
            client.demand = demand;
        }
    }

    pub(super) fn shed(&mut self, reason: ShedReason) {
        self.decided += 1;
        *self.by_reason.entry(reason).or_default() += 1;
    }

    pub(super) fn started(&mut self, ticket: &Ticket, now: Instant) {
        self.delays.record(now.nanos_since(ticket.arrived), now);
    }

    pub(super) fn ended(&mut self, ticket: &Ticket, done: Done, grant: &Grant, now: Instant) {
        let priority = self.by_priority.entry(ticket.priority).or_default();
        let mut nobody = ClientBook::default();
        let client = self.clients.get_mut(ticket.session.0 as usize).and_then(Option::as_mut).unwrap_or(&mut nobody);
        client.in_server = client.in_server.saturating_sub(1);
        client.credits = grant.window;
        match done {
            Done::Served => {
                for calls in [&mut self.calls, priority, &mut client.calls] {
                    calls.served += 1;
                }
                self.in_objective += u64::from(now.nanos_since(ticket.arrived) <= self.objective_ns);
            }
            Done::Shed => {
                for calls in [&mut self.calls, priority, &mut client.calls] {
                    calls.shed += 1;
                }
                // What the machine had admitted, the driver had no room for.
                if self.decided == 0 {
                    *self.by_reason.entry(ShedReason::ServerFull).or_default() += 1;
                }
                self.decided = self.decided.saturating_sub(1);
            }
            Done::Cancelled => self.cancelled += 1,
        }
    }

    /// Learns the objective now and then: it is a few divisions, and moves slowly.
    pub(super) fn learn(&mut self, machine: &AnyServer) {
        if self.calls.served.is_multiple_of(OBJECTIVE_EVERY)
            && let Some(gauges) = gauges_of(machine)
            && gauges.capacity_per_s > 0.0
        {
            self.objective_ns = nanos(gauges.objective);
        }
    }
}

/// What the machine measures and decides, if it is Tidegate's.
pub(super) fn gauges_of(machine: &AnyServer) -> Option<Gauges> {
    match machine {
        AnyServer::Tidegate(server) => Some(server.gauges()),
        _ => None,
    }
}

/// A span in microseconds.
pub(super) fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}
