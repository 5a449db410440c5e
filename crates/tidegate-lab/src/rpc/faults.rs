//! What goes wrong while a plant runs: callers that give up, connections that end, a server that starts anew.

use tidegate_core::Rng;
use tidegate_rpc::machine::desk::Desk;
use tidegate_rpc::machine::{CallId, Client, Full, Server, ShedReason, Tenant};
use tidegate_sim::lane::Lane;

use super::Plant;
use super::behind::Waits;
use super::calls::State;
use super::window::Place;

impl<S: Server, C: Client> Plant<S, C> {
    /// Each caller that waits gives up with probability `share`.
    pub fn cancel(&mut self, share: f64, rng: &mut Rng) {
        let chosen: Vec<u32> = self.calls.wanted().filter(|_| rng.chance(share)).map(|(slot, _)| slot).collect();
        for slot in chosen {
            let call = *self.calls.get(slot);
            // The client may have sent or failed it when another one was cancelled.
            if !matches!(call.state, State::AtClient | State::Sent) {
                continue;
            }
            self.window.cancelled += 1;
            self.note(u64::from(slot) << 2 | 1 << 41);
            match call.state {
                State::Sent => self.calls.get(slot).state = State::Orphan,
                _ => drop(self.calls.remove(slot)),
            }
            self.clients[call.client as usize].on_cancel(CallId(slot.into()), self.now);
            self.after_client(call.client);
        }
    }

    /// The connection of a client ends, on both sides at once, and it connects again. Nothing happens if there is no
    /// such client.
    ///
    /// # Errors
    /// [`Full`] if the server cannot hold the new session; the client is then without one.
    pub fn reset(&mut self, client: u32) -> Result<(), Full> {
        let Some(&old) = self.sessions.get(client as usize) else { return Ok(()) };
        self.desk.machine_mut().close(old, self.now);
        self.lose(client);
        self.connect(client)?;
        self.after_server();
        self.after_client(client);
        Ok(())
    }

    /// The server ends with everything in it, and `server` takes its place; every client connects again.
    ///
    /// # Errors
    /// [`Full`] if it cannot hold the clients; those left are then without a session.
    pub fn crash(&mut self, server: S) -> Result<(), Full> {
        self.desk = Desk::new(server, self.scenario.cores);
        self.note(1 << 42);
        self.waits.iter_mut().for_each(Waits::clear);
        self.messages.clear();
        self.finishing.clear();
        self.jobs.fill_with(|| None);
        self.idle = (0..self.scenario.cores).rev().collect();
        self.to_server = Lane::default();
        self.to_clients = Lane::default();
        let clients = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        (0..clients).for_each(|client| self.lose(client));
        // Nothing refers to what was sent any more.
        self.calls.forget_orphans();
        (0..clients).try_for_each(|client| self.connect(client))?;
        self.after_server();
        (0..clients).for_each(|client| self.after_client(client));
        Ok(())
    }

    /// A client notices that its connection has ended.
    fn lose(&mut self, client: u32) {
        let of_client = self.calls.wanted().filter(|(_, call)| call.client == client && call.state == State::Sent);
        let sent: Vec<u32> = of_client.map(|(slot, _)| slot).collect();
        for slot in sent {
            let call = self.calls.get(slot);
            call.state = State::Orphan;
            let notice_ns = self.now.nanos_since(call.intended);
            self.window.shed(Place::Client, ShedReason::Lost, notice_ns);
            self.note(u64::from(slot) << 2 | 1 << 43);
        }
        self.clients[client as usize].on_lost(self.now);
        // What it wants sent goes over the old connection: only failures may follow.
        self.after_client(client);
    }

    fn connect(&mut self, client: u32) -> Result<(), Full> {
        let tenant = self.tenant_of(client);
        let session = self.desk.machine_mut().open(tenant, self.now)?;
        let number = session.0 as usize;
        if self.owners.len() <= number {
            self.owners.resize(number + 1, 0);
        }
        self.owners[number] = client;
        self.sessions[client as usize] = session;
        Ok(())
    }

    fn tenant_of(&self, client: u32) -> Tenant {
        let mut first = 0;
        let group = self.scenario.groups.iter().find(|group| {
            first += group.clients;
            client < first
        });
        group.map_or_else(Tenant::default, |group| group.tenant)
    }
}
