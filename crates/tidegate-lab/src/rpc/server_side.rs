//! What happens at the server: its queues, its cores and its machine.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_rpc::machine::{Ask, Client, Done, Server, ShedReason, Signal, Ticket, Verdict};

use super::Plant;
use super::calls::{Call, State};
use super::plant::{Answer, Delivery, Job, Message};
use super::window::Place;

impl<S: Server, C: Client> Plant<S, C> {
    /// The age of the oldest waiting message plus that of the oldest call that waits for a core, to start or to go on.
    #[inline]
    pub(super) fn signal(&self) -> Signal {
        let messages = self.messages.front().map_or(0, |(since, _)| self.now.nanos_since(*since));
        let age = |calls: &VecDeque<(Instant, u32)>| calls.front().map_or(0, |(since, _)| self.now.nanos_since(*since));
        let calls = age(&self.waiting).max(age(&self.woken));
        Signal { queueing_delay: Duration::from_nanos(messages + calls) }
    }

    /// Gives work to cores as long as there are both.
    #[inline]
    pub(super) fn employ(&mut self) {
        if self.host.is_paused() {
            return;
        }
        while let Some(&core) = self.idle.last() {
            let Some((job, ns)) = self.next_job() else { return };
            self.idle.pop();
            self.jobs[core as usize] = Some(job);
            self.finishing.push(Reverse((self.now.plus_nanos(ns), core)));
            self.window.busy_ns += ns;
        }
    }

    /// The next job of a free core and its length in nanoseconds: a message if one waits, else the call that has been ready
    /// longest, to start or to go on.
    #[inline]
    fn next_job(&mut self) -> Option<(Job, u64)> {
        if let Some((at, message)) = self.messages.pop_front() {
            return Some((Job::Message(at, message), self.message_ns));
        }
        loop {
            let room = self.server.room();
            let may_start = self.waiting.front().filter(|_| room > 0).map(|(since, _)| *since);
            // One for which there is room takes the place of one that has ended, and no more do: it goes first. Without a
            // bound, those that go on would never have their turn then.
            let goes_on =
                |(since, _): &mut (Instant, u32)| may_start.is_none_or(|start| room == u32::MAX && *since <= start);
            if let Some((_, slot)) = self.woken.pop_front_if(goes_on) {
                let Call { ticket, waits, .. } = *self.calls.get(slot);
                let ticket = self.server.on_wake(ticket, waits, self.now);
                return Some((Job::Call(slot, ticket), self.service_ns()));
            }
            may_start?;
            let (_, slot) = self.waiting.pop_front()?;
            let Call { ticket, state, .. } = *self.calls.get(slot);
            if state == State::Orphan {
                self.server.on_done(ticket, Done::Cancelled, self.now);
                self.calls.remove(slot);
                self.after_server();
                continue;
            }
            let verdict = self.server.on_start(ticket, self.now);
            match verdict {
                Verdict::Admit(ticket) => {
                    self.window.started.0 += 1;
                    self.window.started.1 += self.now.nanos_since(ticket.arrived);
                    let Some(waits) = &mut self.waits else {
                        return Some((Job::Call(slot, ticket), self.service_ns()));
                    };
                    waits.push(slot, self.now, &mut self.service_rng);
                    let call = self.calls.get(slot);
                    (call.ticket, call.waits) = (self.server.on_wait(ticket, self.now), self.now);
                }
                Verdict::Shed(ticket, reason) => {
                    self.end(slot, ticket, Some((Place::Start, reason)));
                    // The grants that it made possible are messages, and messages come first.
                    self.after_server();
                    if let Some((at, message)) = self.messages.pop_front() {
                        return Some((Job::Message(at, message), self.message_ns));
                    }
                }
            }
        }
    }

    fn service_ns(&mut self) -> u64 {
        let ns = self.scenario.service.sample_ns(self.mean_ns, &mut self.service_rng);
        self.jitter.service_ns(ns, &mut self.jitter_rng)
    }

    /// A handler has what it waited for.
    pub(super) fn wait_ends(&mut self) {
        let waits = self.waits.as_mut().and_then(|waits| waits.pop(self.now, &mut self.service_rng));
        self.woken.extend(waits.map(|slot| (self.now, slot)));
        self.employ();
    }

    /// The core that is done first is done.
    pub(super) fn core_finishes(&mut self) {
        let Some(Reverse((_, core))) = self.finishing.pop() else { return };
        let job = self.jobs[core as usize].take();
        self.idle.push(core);
        match job {
            Some(Job::Message(at, Message::Request(slot, ask))) => self.request(slot, &ask, at),
            Some(Job::Message(_, Message::Demand(client, session, ask)))
                if self.sessions[client as usize] == session =>
            {
                self.server.on_demand(session, &ask, self.now);
            }
            Some(Job::Message(_, Message::Grant(client, session, grant))) => {
                let at = self.there_at();
                self.to_clients.push(at, Delivery::Grant(client, session, grant));
            }
            Some(Job::Call(slot, ticket)) => self.end(slot, ticket, None),
            // A demand whose connection has ended.
            Some(Job::Message(_, Message::Demand(..))) | None => {}
        }
        self.after_server();
        self.employ();
    }

    fn request(&mut self, slot: u32, ask: &Ask, arrived: Instant) {
        let Call { client, state, .. } = *self.calls.get(slot);
        if state == State::Orphan {
            self.calls.remove(slot);
            return;
        }
        let session = self.sessions[client as usize];
        let signal = self.signal();
        match self.server.on_request(session, ask, signal, arrived, self.now) {
            Verdict::Admit(ticket) => {
                self.calls.get(slot).ticket = ticket;
                self.waiting.push_back((self.now, slot));
            }
            Verdict::Shed(ticket, reason) => self.end(slot, ticket, Some((Place::Request, reason))),
        }
    }

    /// A call ends at the server, and its answer leaves.
    fn end(&mut self, slot: u32, ticket: Ticket, shed: Option<(Place, ShedReason)>) {
        let done = match (shed, self.calls.get(slot).state) {
            (Some(_), _) => Done::Shed,
            (None, State::Orphan) => Done::Cancelled,
            (None, _) => Done::Served,
        };
        let grant = self.server.on_done(ticket, done, self.now);
        let answer = Answer { slot, shed, grant, server_ns: self.now.nanos_since(ticket.arrived) };
        let at = self.there_at();
        self.to_clients.push(at, Delivery::Answer(answer));
    }

    /// Carries out what the server's machine wants after it was told something.
    #[inline]
    pub(super) fn after_server(&mut self) {
        while let Some((session, grant)) = self.server.poll_output() {
            self.window.extra_messages += 1;
            self.note(u64::from(session.0) << 2 | 1 << 40);
            let client = self.owners[session.0 as usize];
            self.messages.push_back((self.now, Message::Grant(client, session, grant)));
        }
        self.server_at = self.server.next_timeout().unwrap_or(Instant::MAX);
    }

    /// The server machine's time-out is due.
    pub(super) fn server_timer(&mut self) {
        let signal = self.signal();
        self.server.on_timeout(signal, self.now);
        self.after_server();
        self.employ();
        // A machine whose time-out is past even after it was told is asked again a nanosecond later, not for ever now.
        self.server_at = self.server_at.max(self.now.plus_nanos(1));
    }
}
