//! What happens beside callers, and in front of the services that handlers call.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_rpc::machine::{
    Ask, CERTAIN, CallId, Client, ClientOutput, Grant, Outcome, Priority, Reply, Request, Step,
};

use super::Graph;
use super::call::{Answer, Call, Event, Handler, Stage};

impl Graph {
    /// Somebody calls the root.
    pub(super) fn call_root(&mut self) {
        let caller = self.arrivals.below(self.tree.callers.into());
        let link = u32::try_from(caller).expect("callers are counted in 32 bits");
        let deadline = self.now + self.tree.deadline;
        let id = self.next_name();
        let is_measured = self.is_measuring();
        if is_measured {
            self.tally.begin(id);
        }
        if self.call(id, Call::new(link, id, None, is_measured, self.now, deadline)) {
            self.events.push(deadline, Event::Deadline(id));
        } else {
            self.tally.end(id, None);
        }
    }

    /// The handler of a call calls all services below its own; false if one of these calls failed at once.
    pub(super) fn call_below(&mut self, service: u32, id: CallId) -> bool {
        let call = self.calls.get_mut(&id).expect("its handler runs");
        call.handler = Handler::HasCalled;
        let (root, is_measured, deadline) = (call.root, call.is_measured, call.deadline_below);
        let chance = if self.tree.coupled { call.chance } else { CERTAIN };
        let mut awaited = Vec::new();
        for link in self.nodes[service as usize].below.clone() {
            let below = self.next_name();
            let made = Call::new(link, root, Some(id), is_measured, self.now, deadline);
            if !self.call(below, Call { chance, ..made }) {
                self.give_up_all(awaited);
                return false;
            }
            awaited.push(below);
        }
        let call = self.calls.get_mut(&id).expect("nothing has ended it");
        if call.handler == Handler::Fails {
            // One that had to wait at its client failed there while the others were sent.
            self.give_up_all(awaited);
            return false;
        }
        call.awaited = awaited;
        true
    }

    fn next_name(&mut self) -> CallId {
        self.ever += 1;
        CallId(self.ever)
    }

    /// Makes a call; false if its client refuses it.
    fn call(&mut self, id: CallId, call: Call) -> bool {
        let (link, deadline) = (call.link, call.deadline);
        let deadline = (deadline < Instant::MAX).then_some(deadline);
        let request = Request { id, priority: Priority::DEFAULT, deadline };
        let step =
            self.links[link as usize].client.on_call_below(&request, call.chance, self.now, &mut self.client_rng);
        if let Step::Fail(_) = step {
            self.arm(link);
            return false;
        }
        self.calls.insert(id, call);
        match step {
            Step::Send(ask) => self.send(id, ask),
            Step::Wait | Step::Fail(_) => {}
        }
        self.after_client(link);
        true
    }

    fn send(&mut self, id: CallId, ask: Ask) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.stage = Stage::Sent;
        self.events.push(self.there_at(), Event::Request(id, ask));
    }

    /// An answer arrives.
    pub(super) fn answered(&mut self, id: CallId, answer: Answer, grant: Grant, server_ns: u64) {
        let Some(call) = self.calls.remove(&id) else { return };
        if call.is_given_up {
            return;
        }
        let outcome = if answer == Answer::Shed { Outcome::Shed } else { Outcome::Served };
        let reply = Reply {
            id,
            outcome,
            grant: Some(grant),
            response_time: self.now.since(call.made),
            server_time: Duration::from_nanos(server_ns),
        };
        self.links[call.link as usize].client.on_reply(&reply, self.now);
        self.after_client(call.link);
        self.told(id, &call, answer == Answer::Good);
    }

    /// Tells the caller of a call that is over whether it succeeded.
    fn told(&mut self, id: CallId, call: &Call, is_good: bool) {
        let Some(parent) = call.parent else {
            let good_ns = (is_good && self.now <= call.deadline).then(|| self.now.nanos_since(call.made));
            self.tally.end(id, good_ns);
            return;
        };
        let Some(above) = self.calls.get_mut(&parent) else { return };
        above.awaited.retain(|awaited| *awaited != id);
        if is_good {
            if above.awaited.is_empty() {
                self.wake(parent);
            }
            return;
        }
        above.handler = Handler::Fails;
        let others = core::mem::take(&mut above.awaited);
        self.give_up_all(others);
        self.wake(parent);
    }

    /// The caller cancels these calls.
    pub(super) fn give_up_all(&mut self, calls: Vec<CallId>) {
        for id in calls {
            self.give_up(id);
        }
    }

    /// The caller cancels the call.
    pub(super) fn give_up(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.is_given_up = true;
        let link = call.link;
        if let Stage::Held = call.stage {
            self.calls.remove(&id);
        } else {
            self.events.push(self.there_at(), Event::GiveUp(id));
        }
        self.links[link as usize].client.on_cancel(id, self.now);
        self.after_client(link);
    }

    /// A grant arrives outside an answer.
    pub(super) fn granted(&mut self, link: u32, grant: &Grant) {
        self.links[link as usize].client.on_grant(grant, self.now);
        self.after_client(link);
    }

    /// The time-out of a client is due.
    pub(super) fn client_timer(&mut self, link: u32) {
        let client = &mut self.links[link as usize];
        if client.armed != self.now {
            return;
        }
        client.armed = Instant::MAX;
        if client.client.next_timeout().is_some_and(|due| due <= self.now) {
            client.client.on_timeout(self.now);
        }
        self.after_client(link);
    }

    /// Carries out what a client's machine wants after it was told something.
    pub(super) fn after_client(&mut self, link: u32) {
        while let Some(output) = self.links[link as usize].client.poll_output() {
            match output {
                ClientOutput::Send(id, ask) => self.send(id, ask),
                ClientOutput::Fail(id, _) => {
                    if let Some(call) = self.calls.remove(&id) {
                        self.told(id, &call, false);
                    }
                }
                ClientOutput::Demand(ask) => self.events.push(self.there_at(), Event::Demand(link, ask)),
            }
        }
        self.arm(link);
    }

    /// Makes sure that the client's next time-out is noticed.
    fn arm(&mut self, link: u32) {
        let client = &mut self.links[link as usize];
        let Some(due) = client.client.next_timeout() else { return };
        let due = due.max(self.now.plus_nanos(1));
        if due < client.armed {
            client.armed = due;
            self.events.push(due, Event::ClientTimer(link));
        }
    }
}

impl Call {
    /// One that is made now, and has not left.
    fn new(
        link: u32,
        root: CallId,
        parent: Option<CallId>,
        is_measured: bool,
        made: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            link,
            root,
            parent,
            is_measured,
            made,
            deadline,
            deadline_below: deadline,
            chance: CERTAIN,
            stage: Stage::Held,
            awaited: Vec::new(),
            handler: Handler::Alone,
            is_given_up: false,
            is_cancelled: false,
        }
    }
}
