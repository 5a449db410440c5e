//! A server machine that is counted while it works.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::Instant;
use tidegate_rpc::io::layer::Mode;
use tidegate_rpc::machine::any::AnyServer;
use tidegate_rpc::machine::{Ask, Done, Full, Grant, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};
use tidegate_rpc::telemetry::{Book, CallOf, Look, Serving};

use super::clients::Clients;

/// Served calls after which the objective that the machine has learnt is looked up again.
const OBJECTIVE_EVERY: u64 = 64;

/// The machine and its books, behind a lock that nobody else holds but while a snapshot is taken: some twenty nanoseconds
/// for each call, and only where somebody asked for the admin API.
struct Inner {
    machine: AnyServer,
    book: Book,
    clients: Clients,
    /// What the shard last said of its line.
    signal: Signal,
    /// Calls in the shard, and those of them that were started.
    in_server: u64,
    running: u64,
    /// Sheds that the machine decided and that have not ended.
    decided: u64,
}

/// A server machine that is counted while it works.
pub(crate) struct Watched(Arc<Mutex<Inner>>);

/// Looks at a [`Watched`] machine from another thread.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Mutex<Inner>>);

impl Inner {
    fn call_of(&self, ticket: &Ticket) -> CallOf {
        CallOf { tenant: self.clients.tenant(ticket.session), priority: ticket.priority }
    }

    fn shed(&mut self, ticket: &Ticket, reason: ShedReason) {
        self.decided += 1;
        let call = self.call_of(ticket);
        self.book.shed(call, reason);
    }

    fn started(&mut self, ticket: &Ticket, now: Instant) {
        self.running += 1;
        let call = self.call_of(ticket);
        self.book.started(call, now.since(ticket.arrived), now);
    }

    fn ended(&mut self, ticket: &Ticket, done: Done, now: Instant) {
        let call = self.call_of(ticket);
        self.in_server = self.in_server.saturating_sub(1);
        match done {
            Done::Served => {
                self.running = self.running.saturating_sub(1);
                let in_all = now.since(ticket.arrived);
                // A ticket has no deadline: it was met if the machine, which knows it, let the call start.
                let serving = Serving { in_all, service: now.since(ticket.started), in_time: true };
                self.book.served(call, serving, now);
                self.learn(now);
            }
            // What the machine had admitted, the driver had no room for.
            Done::Shed if self.decided == 0 => self.book.shed(call, ShedReason::ServerFull),
            Done::Shed => self.decided -= 1,
            Done::Cancelled => self.book.cancelled(),
        }
    }

    /// Learns the objective now and then: it is a few divisions, and moves slowly.
    fn learn(&mut self, now: Instant) {
        if self.book.calls().served.is_multiple_of(OBJECTIVE_EVERY)
            && let Some(view) = self.machine.view(self.signal, now)
            && view.gauges.capacity_per_s > 0.0
        {
            self.book.set_objective(view.gauges.objective);
        }
    }
}

impl Watched {
    pub(crate) fn new(machine: AnyServer, now: Instant) -> (Self, Watch) {
        let (book, clients, signal) = (Book::new(now), Clients::default(), Signal::default());
        let inner = Inner { machine, book, clients, signal, in_server: 0, running: 0, decided: 0 };
        let inner = Arc::new(Mutex::new(inner));
        (Self(Arc::clone(&inner)), Watch(inner))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// A copy, so that the shard waits for a copy of its book and not for text to be written.
    pub(super) fn look(&self, now: Instant) -> Look {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let clients: Vec<_> = inner.clients.rows().copied().collect();
        Look {
            book: inner.book.clone(),
            view: inner.machine.view(inner.signal, now),
            mode: Mode::Enforce,
            would_have_shed: BTreeMap::new(),
            exempt: 0,
            in_server: inner.in_server,
            waiting: inner.in_server.saturating_sub(inner.running),
            demand: clients.iter().map(|client| u64::from(client.demand)).sum(),
            sessions: clients.len(),
            clients,
        }
    }
}

impl Server for Watched {
    fn open(&mut self, tenant: Tenant, now: Instant) -> Result<SessionId, Full> {
        let mut inner = self.inner();
        let session = inner.machine.open(tenant, now)?;
        inner.clients.opened(session, tenant);
        Ok(session)
    }

    fn close(&mut self, session: SessionId, now: Instant) {
        let mut inner = self.inner();
        inner.machine.close(session, now);
        inner.clients.closed(session);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, signal: Signal, arrived: Instant, now: Instant) -> Verdict {
        let mut inner = self.inner();
        let call = CallOf { tenant: inner.clients.tenant(session), priority: ask.priority };
        inner.book.offered(call);
        inner.clients.offered(session, ask);
        inner.in_server += 1;
        inner.signal = signal;
        let verdict = inner.machine.on_request(session, ask, signal, arrived, now);
        if let Verdict::Shed(ticket, reason) = verdict {
            inner.shed(&ticket, reason);
        }
        verdict
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        let mut inner = self.inner();
        let verdict = inner.machine.on_start(ticket, now);
        match verdict {
            Verdict::Admit(ticket) => inner.started(&ticket, now),
            Verdict::Shed(ticket, reason) => inner.shed(&ticket, reason),
        }
        verdict
    }

    fn on_pause(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        self.inner().machine.on_pause(ticket, now)
    }

    fn on_resume(&mut self, ticket: Ticket, paused: Instant, now: Instant) -> Ticket {
        self.inner().machine.on_resume(ticket, paused, now)
    }

    fn on_wait(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        self.inner().machine.on_wait(ticket, now)
    }

    fn on_wake(&mut self, ticket: Ticket, waits: Instant, now: Instant) -> Ticket {
        self.inner().machine.on_wake(ticket, waits, now)
    }

    fn room(&self) -> u32 {
        self.inner().machine.room()
    }

    fn on_done(&mut self, ticket: Ticket, done: Done, now: Instant) -> Grant {
        let inner = &mut *self.inner();
        let grant = inner.machine.on_done(ticket, done, now);
        inner.ended(&ticket, done, now);
        inner.clients.ended(ticket.session, done, grant.window);
        grant
    }

    fn on_demand(&mut self, session: SessionId, ask: &Ask, now: Instant) {
        let mut inner = self.inner();
        inner.clients.told(session, ask.demand);
        inner.machine.on_demand(session, ask, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner().machine.next_timeout()
    }

    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        self.inner().machine.on_timeout(signal, now);
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        self.inner().machine.poll_output()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_rpc::config::Scheme;
    use tidegate_rpc::machine::Priority;
    use tidegate_rpc::telemetry::{Class, Figures};

    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn every_call_is_counted_once_by_priority_reason_and_client() {
        let (mut machine, watch) = Watched::new(Scheme::default().server(1, at(0)), at(0));
        let session = machine.open(Tenant::default(), at(0)).unwrap();
        let ask = Ask { demand: 3, aware: true, priority: Priority::CRITICAL, ..Ask::default() };
        // Before it knows anything, the server takes the running call and a few that wait.
        let verdicts: Vec<_> =
            (0..20).map(|_| machine.on_request(session, &ask, Signal::default(), at(10), at(10))).collect();
        for verdict in verdicts {
            match verdict {
                Verdict::Shed(ticket, _) => drop(machine.on_done(ticket, Done::Shed, at(11))),
                Verdict::Admit(ticket) => match machine.on_start(ticket, at(20)) {
                    Verdict::Admit(ticket) => drop(machine.on_done(ticket, Done::Served, at(30))),
                    Verdict::Shed(ticket, _) => drop(machine.on_done(ticket, Done::Shed, at(30))),
                },
            }
        }
        let seen = Figures::of("tidegate", &[watch.look(at(30))], at(30));
        let calls = seen.calls;
        assert_eq!((calls.offered_total, calls.served_total + calls.shed_total), (20, 20));
        assert!(calls.shed_total > 0 && calls.served_total > 0);
        assert_eq!(seen.sheds_by_reason.values().sum::<u64>(), calls.shed_total);
        assert_eq!((seen.classes[0].class, seen.classes[0].calls), (Class::Critical, calls));
        assert_eq!((seen.tenants.len(), seen.tenants[0].calls), (1, calls));
        let client = seen.clients[0];
        assert_eq!((client.offered_total, client.served_total), (20, calls.served_total));
        assert_eq!((client.demand, client.in_server, seen.in_server), (3, 0, 0));
        assert_eq!(seen.queueing_delay_us.count, calls.served_total);
        machine.close(session, at(40));
        assert_eq!(watch.look(at(40)).sessions, 0);
    }

    #[test]
    fn a_call_that_the_driver_had_no_room_for_has_its_reason() {
        let (mut machine, watch) = Watched::new(Scheme::named("none").unwrap().server(1, at(0)), at(0));
        let session = machine.open(Tenant::default(), at(0)).unwrap();
        let Verdict::Admit(ticket) = machine.on_request(session, &Ask::default(), Signal::default(), at(1), at(1))
        else {
            panic!("this scheme admits everything");
        };
        let _ = machine.on_done(ticket, Done::Shed, at(1));
        let look = watch.look(at(1));
        assert_eq!(look.book.shed_for(ShedReason::ServerFull), 1);
        assert!(look.view.is_none());
    }
}
