//! What telemetry is told of a layer.

use core::net::IpAddr;

use tidegate_core::Instant;

use super::config::Seen;
use super::gate::Gate;
use super::sessions::Session;
use crate::machine::Server;
use crate::telemetry::{Book, ClientRow, Look, Source};

impl<S: Server> Gate<S> {
    /// From now on at the latest, calls are counted by class and tenant, and their times kept.
    pub(super) fn begin_to_count(&self) {
        let mut state = self.lock();
        let now = self.now();
        state.book.get_or_insert_with(|| Box::new(Book::new(now)));
    }
}

impl<S: Server + Send> Source for Gate<S> {
    fn look(&self) -> Look {
        let state = self.lock();
        let now = self.now();
        let clients: Vec<ClientRow> = state.sessions.iter().map(client_row).collect();
        Look {
            book: state.book.as_deref().cloned().unwrap_or_else(|| Book::new(now)),
            view: state.desk.machine().view(state.desk.signal(now), now),
            mode: state.mode,
            would_have_shed: state.counts.would_have_shed.by_reason(),
            exempt: state.counts.exempt,
            in_server: state.counts.in_flight,
            waiting: state.desk.waiting() as u64,
            demand: clients.iter().map(|client| u64::from(client.demand)).sum(),
            sessions: clients.len(),
            clients,
        }
    }

    fn now(&self) -> Instant {
        (self.config.clock)()
    }

    fn peer(&self, seen: Seen<'_>) -> Option<IpAddr> {
        (self.config.peer)(seen)
    }
}

fn client_row(session: &Session) -> ClientRow {
    ClientRow {
        shard: 0,
        session: session.id.0,
        tenant: session.tenant.0,
        offered_total: session.calls.offered,
        served_total: session.calls.served,
        shed_total: session.calls.shed,
        demand: session.demand,
        credits: session.grant.window,
        in_server: session.in_flight,
    }
}
