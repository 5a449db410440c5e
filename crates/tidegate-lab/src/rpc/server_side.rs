//! What happens at the server: its queues, its cores and its machine.

use core::time::Duration;
use std::cmp::Reverse;

use tidegate_core::Instant;
use tidegate_rpc::machine::desk::{Arrival, Called, Ended, Pause, Refused, Running};
use tidegate_rpc::machine::{Ask, Client, Done, Grant, Server, ShedReason};

use super::Plant;
use super::calls::{AtServer, Call, State};
use super::plant::{Answer, Delivery, Job, Message};
use super::window::Place;

impl<S: Server, C: Client> Plant<S, C> {
    /// The age of the oldest message that no core has looked at. The signal is that plus the age of the oldest call that waits
    /// for a core.
    #[inline]
    pub(super) fn unread(&self) -> Duration {
        self.messages.front().map_or(Duration::ZERO, |(since, _)| self.now.since(*since))
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
        // As in a runtime, what was read goes before timers.
        while let Some(slot) = self.desk.poll_expired(self.now) {
            let running = self.start(slot);
            assert!(running.is_none(), "what is no longer worth starting is refused");
        }
        loop {
            let slot = match self.desk.poll_call(self.now)? {
                Called::Start(slot) => slot,
                Called::GoOn(slot) => {
                    let AtServer::Woken(woken) = self.calls.take_from_server(slot) else {
                        unreachable!("who goes on was woken")
                    };
                    let running = self.desk.go_on(woken, self.now);
                    return Some((Job::Call(slot, running), self.service_ns()));
                }
            };
            if let Some(running) = self.start(slot) {
                let Some(waits) = &mut self.waits else {
                    return Some((Job::Call(slot, running), self.service_ns()));
                };
                waits.push(slot, self.now, &mut self.service_rng);
                let paused = self.desk.pause(running, Pause::Else, self.now);
                *self.calls.at_server(slot) = AtServer::Paused(paused);
            } else if let Some((at, message)) = self.messages.pop_front() {
                // The grants that a refusal made possible are messages, and messages come first.
                return Some((Job::Message(at, message), self.message_ns));
            }
        }
    }

    /// A call leaves the line; `None` if it does not run.
    fn start(&mut self, slot: u32) -> Option<Running> {
        let AtServer::Waiting(waiting) = self.calls.take_from_server(slot) else {
            unreachable!("who starts was waiting")
        };
        let arrived = waiting.arrived();
        if self.calls.get(slot).state == State::Orphan {
            self.desk.cancel(waiting, self.now);
            self.calls.remove(slot);
            self.after_server();
            return None;
        }
        match self.desk.start(waiting, self.now) {
            Ok(running) => {
                self.window.started.0 += 1;
                self.window.started.1 += self.now.nanos_since(arrived);
                Some(running)
            }
            Err(refused) => {
                self.refuse(slot, Place::Start, &refused);
                self.after_server();
                None
            }
        }
    }

    fn service_ns(&mut self) -> u64 {
        let ns = self.scenario.service.sample_ns(self.mean_ns, &mut self.service_rng);
        self.jitter.service_ns(ns, &mut self.jitter_rng)
    }

    /// A handler has what it waited for.
    pub(super) fn wait_ends(&mut self) {
        let slot = self.waits.as_mut().and_then(|waits| waits.pop(self.now, &mut self.service_rng));
        if let Some(slot) = slot
            && let AtServer::Paused(paused) = self.calls.take_from_server(slot)
        {
            *self.calls.at_server(slot) = AtServer::Woken(self.desk.wake(paused, slot, self.now));
        }
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
                self.desk.machine_mut().on_demand(session, &ask, self.now);
            }
            Some(Job::Message(_, Message::Grant(client, session, grant))) => {
                let at = self.there_at();
                self.to_clients.push(at, Delivery::Grant(client, session, grant));
            }
            Some(Job::Call(slot, running)) => self.end(slot, running),
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
        let arrival = Arrival { session, ask, arrived, counted_from: self.now, unread: self.unread() };
        match self.desk.on_request(&arrival, slot, self.now) {
            Ok(waiting) => *self.calls.at_server(slot) = AtServer::Waiting(waiting),
            Err(refused) => self.refuse(slot, Place::Request, &refused),
        }
    }

    /// A call's handler has done its work.
    fn end(&mut self, slot: u32, running: Running) {
        let arrived = running.arrived();
        let done = if self.calls.get(slot).state == State::Orphan { Done::Cancelled } else { Done::Served };
        let Ended::Told(grant) = self.desk.end(running, done, self.now) else {
            unreachable!("the machine is told of every call")
        };
        self.answer(slot, None, grant, arrived);
    }

    fn refuse(&mut self, slot: u32, place: Place, refused: &Refused) {
        self.answer(slot, Some((place, refused.reason)), refused.grant, refused.arrived);
    }

    /// The answer of a call leaves.
    fn answer(&mut self, slot: u32, shed: Option<(Place, ShedReason)>, grant: Grant, arrived: Instant) {
        let answer = Answer { slot, shed, grant, server_ns: self.now.nanos_since(arrived) };
        let at = self.there_at();
        self.to_clients.push(at, Delivery::Answer(answer));
    }

    /// Carries out what the server's machine wants after it was told something.
    #[inline]
    pub(super) fn after_server(&mut self) {
        while let Some((session, grant)) = self.desk.poll_grant() {
            self.window.extra_messages += 1;
            self.note(u64::from(session.0) << 2 | 1 << 40);
            let client = self.owners[session.0 as usize];
            self.messages.push_back((self.now, Message::Grant(client, session, grant)));
        }
        // Nothing looks at the line while all cores are busy.
        let next = if self.idle.is_empty() { self.desk.machine().next_timeout() } else { self.desk.next_timeout() };
        self.server_at = next.unwrap_or(Instant::MAX);
    }

    /// A time-out of the server's machine or of its line is due.
    pub(super) fn server_timer(&mut self) {
        self.desk.on_timeout(self.unread(), self.now);
        self.after_server();
        self.employ();
        // A machine whose time-out is past even after it was told is asked again a nanosecond later, not for ever now.
        self.server_at = self.server_at.max(self.now.plus_nanos(1));
    }
}
