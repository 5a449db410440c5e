//! A server machine that is counted while it works.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::Instant;
use tidegate_rpc::machine::any::AnyServer;
use tidegate_rpc::machine::credits::{Gauges, Level};
use tidegate_rpc::machine::{Ask, Done, Full, Grant, Priority, Server, SessionId, Signal, Tenant, Ticket, Verdict};

use super::book::{Book, gauges_of};

/// The machine and its book, behind a lock that nobody else holds but while a snapshot is taken: some twenty nanoseconds
/// for each call, and only where somebody asked for the admin API.
struct Inner {
    machine: AnyServer,
    book: Book,
}

/// A server machine that is counted while it works.
pub(crate) struct Watched(Arc<Mutex<Inner>>);

/// Looks at a [`Watched`] machine from another thread.
#[derive(Clone)]
pub(crate) struct Watch(Arc<Mutex<Inner>>);

/// One shard at one moment.
pub(super) struct Seen {
    pub(super) book: Book,
    pub(super) gauges: Option<Gauges>,
    /// The share of ordinary calls that clients are told to send.
    pub(super) send_share: Option<f64>,
}

impl Watched {
    pub(crate) fn new(machine: AnyServer) -> (Self, Watch) {
        let inner = Arc::new(Mutex::new(Inner { machine, book: Book::new() }));
        (Self(Arc::clone(&inner)), Watch(inner))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// A copy, so that the shard waits for a copy of its book and not for text to be written.
    pub(super) fn look(&self) -> Seen {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let send_share = match &inner.machine {
            AnyServer::Tidegate(server) => {
                let level: Level = server.level(Tenant::default());
                Some(level.chance(Priority::DEFAULT))
            }
            _ => None,
        };
        Seen { book: inner.book.clone(), gauges: gauges_of(&inner.machine), send_share }
    }
}

impl Server for Watched {
    fn open(&mut self, tenant: Tenant, now: Instant) -> Result<SessionId, Full> {
        let mut inner = self.inner();
        let session = inner.machine.open(tenant, now)?;
        inner.book.opened(session, tenant);
        Ok(session)
    }

    fn close(&mut self, session: SessionId, now: Instant) {
        let mut inner = self.inner();
        inner.machine.close(session, now);
        inner.book.closed(session);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, signal: Signal, arrived: Instant, now: Instant) -> Verdict {
        let mut inner = self.inner();
        inner.book.offered(session, ask);
        let verdict = inner.machine.on_request(session, ask, signal, arrived, now);
        if let Verdict::Shed(_, reason) = verdict {
            inner.book.shed(reason);
        }
        verdict
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        let mut inner = self.inner();
        let verdict = inner.machine.on_start(ticket, now);
        match verdict {
            Verdict::Admit(ticket) => inner.book.started(&ticket, now),
            Verdict::Shed(_, reason) => inner.book.shed(reason),
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
        inner.book.ended(&ticket, done, &grant, now);
        inner.book.learn(&inner.machine);
        grant
    }

    fn on_demand(&mut self, session: SessionId, ask: &Ask, now: Instant) {
        let mut inner = self.inner();
        inner.book.told(session, ask.demand);
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
    use tidegate_rpc::machine::ShedReason;

    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn every_call_is_counted_once_by_priority_reason_and_client() {
        let (mut machine, watch) = Watched::new(Scheme::default().server(1, at(0)));
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
        let seen = watch.look().book;
        assert_eq!(seen.calls.offered, 20);
        assert!(seen.calls.shed > 0 && seen.calls.served > 0);
        assert_eq!(seen.calls.served + seen.calls.shed, 20);
        assert_eq!(seen.by_reason.values().sum::<u64>(), seen.calls.shed);
        assert_eq!(seen.by_priority[&Priority::CRITICAL], seen.calls);
        let (_, client) = seen.clients().next().unwrap();
        assert_eq!((client.calls, client.demand, client.in_server), (seen.calls, 3, 0));
        assert_eq!(seen.delays.snapshot(at(30)).count(), seen.calls.served);
        machine.close(session, at(40));
        assert_eq!(watch.look().book.clients().count(), 0);
    }

    #[test]
    fn a_call_that_the_driver_had_no_room_for_has_its_reason() {
        let (mut machine, watch) = Watched::new(Scheme::named("none").unwrap().server(1, at(0)));
        let session = machine.open(Tenant::default(), at(0)).unwrap();
        let Verdict::Admit(ticket) = machine.on_request(session, &Ask::default(), Signal::default(), at(1), at(1))
        else {
            panic!("this scheme admits everything");
        };
        let _ = machine.on_done(ticket, Done::Shed, at(1));
        assert_eq!(watch.look().book.by_reason, [(ShedReason::ServerFull, 1)].into());
        assert!(watch.look().gauges.is_none());
    }
}
