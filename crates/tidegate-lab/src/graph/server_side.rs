//! What happens at a service: its line, its cores and its machine.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;
use tidegate_rpc::machine::desk::{Arrival, Called, Ended, Pause, Refused, Started};
use tidegate_rpc::machine::{Ask, CallId, Client, Done, Grant, Server};

use super::Graph;
use super::call::{Answer, Call, Event, Handler, Stage};
use super::plant::{Link, Named};

impl Graph {
    /// A request arrives at its server.
    pub(super) fn request(&mut self, id: CallId, ask: &Ask) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Link { service, session, .. } = self.links[call.link as usize];
        // The handler has until the deadline, less the time that the answer takes to travel back.
        call.deadline_below = ask.budget.map_or(Instant::MAX, |left| now + left.saturating_sub(ask.round_trip));
        self.tell_level(service);
        match self.nodes[service as usize].desk.on_request(&Arrival::new(session, ask, now), Named(id), now) {
            Ok(waiting) => self.set_stage(id, Stage::Waiting(waiting)),
            Err(Refused { grant, .. }) => self.answer(id, Answer::Shed, grant, 0),
        }
        self.settle(service);
    }

    /// A service learns what those let through that its handlers call.
    fn tell_level(&mut self, service: u32) {
        if !self.tree.coupled {
            return;
        }
        let node = &mut self.nodes[service as usize];
        let levels = node.below.iter().filter_map(|below| self.links[*below as usize].client.level_below(self.now));
        if let Some(level) = levels.min() {
            node.desk.machine_mut().on_level_below(level);
        }
    }

    /// Carries out what the server of a service wants after anything happened: whose turn it is, grants, timers.
    pub(super) fn settle(&mut self, service: u32) {
        let now = self.now;
        let index = service as usize;
        while let Some(called) = self.nodes[index].desk.poll_call(now) {
            match called {
                Called::Start(Named(call)) => self.start(service, call),
                Called::GoOn(Named(call)) => self.go_on(service, call),
            }
        }
        while let Some((session, grant)) = self.nodes[index].desk.poll_grant() {
            let link = self.nodes[index].links[session.0 as usize];
            self.events.push(self.there_at(), Event::Grant(link, grant));
        }
        let node = &mut self.nodes[index];
        let due = node.desk.next_timeout().map_or(Instant::MAX, |due| due.max(now.plus_nanos(1)));
        if due < node.armed {
            node.armed = due;
            self.events.push(due, Event::ServerTimer(service));
        }
    }

    /// The stage of a call, which gets another one soon.
    fn take_stage(&mut self, id: CallId) -> Option<Stage> {
        self.calls.get_mut(&id).map(|call| core::mem::replace(&mut call.stage, Stage::Answered))
    }

    fn start(&mut self, service: u32, id: CallId) {
        let Some(Stage::Waiting(waiting)) = self.take_stage(id) else { return };
        let arrived = waiting.arrived();
        match self.nodes[service as usize].desk.start(waiting, self.now) {
            Ok(running) => {
                self.calls.get_mut(&id).expect("its stage was just taken").chance = running.chance();
                self.set_stage(id, Stage::Running(running));
                let ns = self.tree.service.sample_ns(self.mean_ns, &mut self.service_rng);
                self.compute(id, ns);
            }
            Err(Refused { grant, .. }) => self.answer(id, Answer::Shed, grant, self.now.nanos_since(arrived)),
        }
    }

    fn set_stage(&mut self, id: CallId, stage: Stage) {
        self.calls.get_mut(&id).expect("it was just looked at").stage = stage;
    }

    fn go_on(&mut self, service: u32, id: CallId) {
        let Some(Stage::Woken(woken)) = self.take_stage(id) else { return };
        let running = self.nodes[service as usize].desk.go_on(woken, self.now);
        if self.calls[&id].handler == Handler::Fails {
            self.end(service, id, running, Answer::Failed);
        } else {
            self.set_stage(id, Stage::Running(running));
            self.compute(id, nanos(self.tree.after));
        }
    }

    /// A handler has computed what it could at once.
    pub(super) fn computed(&mut self, id: CallId) {
        let Some(Call { link, is_cancelled, handler, .. }) = self.calls.get(&id) else { return };
        let service = self.links[*link as usize].service;
        let (is_cancelled, is_last) =
            (*is_cancelled, *handler != Handler::Alone || self.nodes[service as usize].below.is_empty());
        let Some(Stage::Running(running)) = self.take_stage(id) else { return };
        let now = self.now;
        if is_cancelled {
            let _ = self.nodes[service as usize].desk.end(running, Done::Cancelled, now);
            self.calls.remove(&id);
        } else if is_last {
            self.end(service, id, running, Answer::Good);
        } else if self.call_below(service, id) {
            let paused = self.nodes[service as usize].desk.pause(running, Pause::Else, now);
            self.set_stage(id, Stage::Paused(paused));
        } else {
            self.end(service, id, running, Answer::Failed);
        }
        self.settle(service);
    }

    /// A handler is to go on if it waits: all that it called have answered, or one has failed.
    pub(super) fn wake(&mut self, id: CallId) {
        let service = self.links[self.calls[&id].link as usize].service;
        match self.take_stage(id) {
            Some(Stage::Paused(paused)) => {
                let woken = self.nodes[service as usize].desk.wake(paused, Named(id), self.now);
                self.set_stage(id, Stage::Woken(woken));
                self.settle(service);
            }
            Some(stage) => self.set_stage(id, stage),
            None => {}
        }
    }

    /// A handler ends.
    fn end(&mut self, service: u32, id: CallId, running: impl Into<Started>, answer: Answer) {
        let running = running.into();
        let arrived = match &running {
            Started::Running(running) => running.arrived(),
            Started::Paused(_) | Started::Woken(_) => self.now,
        };
        self.tell_level(service);
        let Ended::Told(grant) = self.nodes[service as usize].desk.end(running, Done::Served, self.now) else { return };
        self.answer(id, answer, grant, self.now.nanos_since(arrived));
    }

    fn answer(&mut self, id: CallId, answer: Answer, grant: Grant, server_ns: u64) {
        self.set_stage(id, Stage::Answered);
        self.events.push(self.there_at(), Event::Answer(id, answer, grant, server_ns));
    }

    /// A server learns that a call is given up.
    pub(super) fn cancel(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let service = self.links[call.link as usize].service;
        call.is_cancelled = true;
        let awaited = core::mem::take(&mut call.awaited);
        let (now, desk) = (self.now, &mut self.nodes[service as usize].desk);
        match core::mem::replace(&mut call.stage, Stage::Answered) {
            Stage::Waiting(waiting) => {
                desk.cancel(waiting, now);
                self.calls.remove(&id);
            }
            Stage::Paused(paused) => {
                let _ = desk.end(paused, Done::Cancelled, now);
                self.calls.remove(&id);
            }
            Stage::Woken(woken) => {
                let _ = desk.end(woken, Done::Cancelled, now);
                self.calls.remove(&id);
            }
            // It computes to the end of what it began, or its answer is on its way.
            stage => call.stage = stage,
        }
        self.give_up_all(awaited);
        self.settle(service);
    }

    /// A server's time-out is due.
    pub(super) fn server_timer(&mut self, service: u32) {
        let now = self.now;
        let node = &mut self.nodes[service as usize];
        if node.armed != now {
            // A sooner one was armed since, which came already.
            return;
        }
        node.armed = Instant::MAX;
        node.desk.on_timeout(Duration::ZERO, now);
        while let Some(Named(id)) = self.nodes[service as usize].desk.poll_expired(now) {
            self.start(service, id);
        }
        self.settle(service);
    }
}
