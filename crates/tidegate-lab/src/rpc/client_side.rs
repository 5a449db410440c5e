//! What happens beside the callers.

use tidegate_core::Instant;
use tidegate_rpc::machine::{Ask, CallId, Client, ClientOutput, Outcome, Reply, Request, Server, ShedReason, Step};

use super::Plant;
use super::calls::{Call, State};
use super::plant::{Answer, Delivery, Message};
use super::window::Place;

impl<S: Server, C: Client> Plant<S, C> {
    /// Somebody calls.
    #[inline]
    pub(super) fn call(&mut self, of_burst: bool) {
        let arrival = self.arrivals.draw(of_burst);
        self.window.offered(arrival.class, arrival.group);
        let call = Call::new(self.now, arrival.client, arrival.class, arrival.group);
        let Some(slot) = self.calls.insert(call) else {
            self.window.dropped += 1;
            return;
        };
        let deadline = self.scenario.deadline.map(|span| self.now + span);
        if self.is_plain(arrival.group) {
            self.send(slot, Ask { priority: arrival.priority, budget: self.scenario.deadline, ..Ask::default() });
            return;
        }
        let request = Request { id: CallId(slot.into()), priority: arrival.priority, deadline };
        match self.clients[arrival.client as usize].on_call(&request, self.now, &mut self.client_rng) {
            Step::Send(ask) => {
                self.send(slot, ask);
                self.arm(arrival.client);
            }
            Step::Wait => self.after_client(arrival.client),
            Step::Fail(reason) => {
                self.fail(slot, reason);
                self.arm(arrival.client);
            }
        }
    }

    /// Something arrives at a client.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Answer(answer) => self.answer_arrives(&answer),
            Delivery::Grant(client, session, grant) if self.sessions[client as usize] == session => {
                self.clients[client as usize].on_grant(&grant, self.now);
                self.after_client(client);
            }
            // Its connection has ended.
            Delivery::Grant(..) => {}
        }
    }

    fn answer_arrives(&mut self, answer: &Answer) {
        let call = self.calls.remove(answer.slot);
        if call.state == State::Orphan {
            return;
        }
        let response_time = self.now.since(call.intended);
        let response_ns = self.now.nanos_since(call.intended);
        let outcome = match answer.shed {
            None => {
                self.window.served(call.class, call.group, response_ns);
                Outcome::Served
            }
            Some((place, reason)) => {
                self.window.shed(place, reason, response_ns);
                Outcome::Shed
            }
        };
        self.note(u64::from(answer.slot) << 2 | u64::from(answer.shed.is_some()));
        if self.is_plain(call.group) {
            return;
        }
        let reply = Reply {
            id: CallId(answer.slot.into()),
            outcome,
            grant: Some(answer.grant),
            response_time,
            server_time: core::time::Duration::from_nanos(answer.server_ns),
        };
        self.clients[call.client as usize].on_reply(&reply, self.now);
        self.after_client(call.client);
    }

    /// The first time-out of a client is due.
    pub(super) fn client_timer(&mut self) {
        let Some((at, client)) = self.timers.pop() else { return };
        let index = client as usize;
        if self.armed[index] != at {
            // A sooner one was armed since, which came already.
            return;
        }
        self.armed[index] = Instant::MAX;
        if self.clients[index].next_timeout().is_some_and(|due| due <= self.now) {
            self.clients[index].on_timeout(self.now);
            self.after_client(client);
        } else {
            self.arm(client);
        }
    }

    /// Carries out what a client's machine wants after it was told something.
    #[inline]
    pub(super) fn after_client(&mut self, client: u32) {
        while let Some(output) = self.clients[client as usize].poll_output() {
            match output {
                ClientOutput::Send(id, ask) => self.send(slot_of(id), ask),
                ClientOutput::Fail(id, reason) => self.fail(slot_of(id), reason),
                ClientOutput::Demand(ask) => {
                    self.window.extra_messages += 1;
                    self.note(u64::from(client) << 2 | 2);
                    let at = self.there_at();
                    self.to_server.push(at, Message::Demand(client, self.sessions[client as usize], ask));
                }
            }
        }
        self.arm(client);
    }

    /// Makes sure that the client's next time-out is noticed. One that moves later is found when the old one comes.
    #[inline]
    fn arm(&mut self, client: u32) {
        let index = client as usize;
        let Some(due) = self.clients[index].next_timeout() else { return };
        // A machine whose time-out is past even after it was told is asked again a nanosecond later, not for ever now.
        let due = due.max(self.now.plus_nanos(1));
        if due < self.armed[index] {
            self.armed[index] = due;
            self.timers.push(due, client);
        }
    }

    /// Whether callers of the group know nothing of the scheme.
    #[inline]
    fn is_plain(&self, group: u16) -> bool {
        self.scenario.groups[usize::from(group)].plain
    }

    #[inline]
    fn send(&mut self, slot: u32, ask: Ask) {
        let call = self.calls.get(slot);
        call.state = State::Sent;
        let tenant = self.scenario.groups[usize::from(call.group)].tenant;
        let at = self.there_at();
        self.to_server.push(at, Message::Request(slot, Ask { tenant, ..ask }));
    }

    #[inline]
    pub(super) fn fail(&mut self, slot: u32, reason: ShedReason) {
        let call = self.calls.remove(slot);
        self.window.shed(Place::Client, reason, self.now.nanos_since(call.intended));
        self.note(u64::from(slot) << 2 | 3);
    }
}

fn slot_of(id: CallId) -> u32 {
    u32::try_from(id.0).expect("the plant names calls by their slots")
}
