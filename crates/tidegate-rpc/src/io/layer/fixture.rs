//! A machine that does as it is told and writes down what happened, for the tests of the layers.

use core::time::Duration;
use std::collections::VecDeque;

use tidegate_core::Instant;

use crate::machine::{Ask, Done, Full, Grant, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};

/// See the module.
#[derive(Default, Debug)]
pub(crate) struct Recorder {
    /// Sessions that are open.
    pub(crate) open: u32,
    /// Sessions that were opened.
    pub(crate) opened: u32,
    /// What the next requests are answered; admitted when it is empty.
    pub(crate) verdicts: VecDeque<Option<ShedReason>>,
    /// What the next starts are answered; admitted when it is empty.
    pub(crate) starts: VecDeque<Option<ShedReason>>,
    /// What every answer carries.
    pub(crate) grant: Grant,
    /// Grants that no answer carries.
    pub(crate) outputs: VecDeque<(SessionId, Grant)>,
    /// Demands that came without a call.
    pub(crate) demands: Vec<(SessionId, Ask)>,
    /// The asks that came.
    pub(crate) asks: Vec<Ask>,
    /// The signals that came with them.
    pub(crate) signals: Vec<Signal>,
    /// Where they came from.
    pub(crate) sessions: Vec<SessionId>,
    /// How long calls waited for their clients, in nanoseconds.
    pub(crate) pauses: Vec<u64>,
    /// How long calls waited for something else, in nanoseconds.
    pub(crate) waits: Vec<u64>,
    /// Whether clients have to be granted something first.
    pub(crate) grants_first: bool,
    /// Whether no call may start.
    pub(crate) is_full: bool,
    /// Until when calls are worth starting, if not for ever.
    pub(crate) start_by: Option<Instant>,
    /// When the timer is due, and for how long it is set each time that it comes.
    pub(crate) timer: Option<(Instant, Duration)>,
    /// How often it came.
    pub(crate) timeouts: u32,
    /// How calls ended.
    pub(crate) done: Vec<Done>,
}

fn verdict(ticket: Ticket, reason: Option<ShedReason>) -> Verdict {
    reason.map_or(Verdict::Admit(ticket), |reason| Verdict::Shed(ticket, reason))
}

impl Server for Recorder {
    fn open(&mut self, _: Tenant, _: Instant) -> Result<SessionId, Full> {
        self.open += 1;
        self.opened += 1;
        Ok(SessionId(self.opened))
    }

    fn close(&mut self, _: SessionId, _: Instant) {
        self.open -= 1;
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, signal: Signal, arrived: Instant, _: Instant) -> Verdict {
        self.asks.push(*ask);
        self.signals.push(signal);
        self.sessions.push(session);
        let start_by = self.start_by.unwrap_or(Instant::MAX);
        let ticket = Ticket { start_by, ..Ticket::new(session, ask, arrived) };
        verdict(ticket, self.verdicts.pop_front().flatten())
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        if now > ticket.start_by {
            return Verdict::Shed(ticket, ShedReason::Deadline);
        }
        verdict(ticket, self.starts.pop_front().flatten())
    }

    fn on_demand(&mut self, session: SessionId, ask: &Ask, _: Instant) {
        self.demands.push((session, *ask));
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        self.outputs.pop_front()
    }

    fn grants_before_calls(&self) -> bool {
        self.grants_first
    }

    fn room(&self) -> u32 {
        if self.is_full { 0 } else { u32::MAX }
    }

    fn on_wake(&mut self, ticket: Ticket, waits: Instant, now: Instant) -> Ticket {
        self.waits.push(now.nanos_since(waits));
        ticket
    }

    fn on_resume(&mut self, ticket: Ticket, paused: Instant, now: Instant) -> Ticket {
        self.pauses.push(now.nanos_since(paused));
        ticket
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.timer.map(|(at, _)| at)
    }

    fn on_timeout(&mut self, _: Signal, now: Instant) {
        self.timeouts += 1;
        self.timer = self.timer.map(|(_, every)| (now + every, every));
    }

    fn on_done(&mut self, _: Ticket, done: Done, _: Instant) -> Grant {
        self.done.push(done);
        self.grant
    }
}
