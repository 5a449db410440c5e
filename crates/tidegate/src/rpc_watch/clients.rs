//! The connected clients of one shard, counted.

use tidegate_rpc::machine::{Ask, Done, SessionId, Tenant};
use tidegate_rpc::telemetry::ClientRow;

/// By the number of the session, which machines reuse: no longer than the sessions that were open at once.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Option<ClientRow>>);

impl Clients {
    pub(super) fn opened(&mut self, session: SessionId, tenant: Tenant) {
        let place = session.0 as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(ClientRow { session: session.0, tenant: tenant.0, ..ClientRow::default() });
    }

    pub(super) fn closed(&mut self, session: SessionId) {
        if let Some(place) = self.0.get_mut(session.0 as usize) {
            *place = None;
        }
    }

    fn client(&mut self, session: SessionId) -> Option<&mut ClientRow> {
        self.0.get_mut(session.0 as usize)?.as_mut()
    }

    /// Whom a session belongs to; nobody, once it is closed.
    pub(super) fn tenant(&self, session: SessionId) -> Tenant {
        let client = self.0.get(session.0 as usize).and_then(Option::as_ref);
        Tenant(client.map_or(0, |client| client.tenant))
    }

    pub(super) fn offered(&mut self, session: SessionId, ask: &Ask) {
        if let Some(client) = self.client(session) {
            client.offered_total += 1;
            client.demand = ask.demand;
            client.in_server += 1;
        }
    }

    pub(super) fn told(&mut self, session: SessionId, demand: u32) {
        if let Some(client) = self.client(session) {
            client.demand = demand;
        }
    }

    /// A call ended, and its answer carried so many credits.
    pub(super) fn ended(&mut self, session: SessionId, done: Done, credits: u32) {
        if let Some(client) = self.client(session) {
            client.in_server = client.in_server.saturating_sub(1);
            client.credits = credits;
            client.served_total += u64::from(done == Done::Served);
            client.shed_total += u64::from(done == Done::Shed);
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &ClientRow> {
        self.0.iter().flatten()
    }
}
