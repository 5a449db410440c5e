//! No control: everything is sent and everything is admitted. Other schemes use one half of it.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use super::sessions::{MAX_SESSIONS, Sessions};
use super::shape::{
    Ask, CallId, Client, Done, Full, Grant, Reply, Request, Server, SessionId, ShedReason, Signal, Step, Tenant,
    Ticket, Verdict,
};
use super::waiting::plain;

/// What a server without control has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_sessions: MAX_SESSIONS }
    }
}

/// A server that only queues.
#[derive(Clone, Debug)]
pub struct OpenServer {
    sessions: Sessions<()>,
}

impl OpenServer {
    /// A server with nobody connected.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { sessions: Sessions::new(config.max_sessions) }
    }
}

impl Server for OpenServer {
    fn open(&mut self, _tenant: Tenant, _now: Instant) -> Result<SessionId, Full> {
        self.sessions.open()
    }

    fn close(&mut self, session: SessionId, _now: Instant) {
        self.sessions.close(session);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, _now: Instant) -> Verdict {
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        match self.sessions.get_mut(session) {
            Some(()) => Verdict::Admit(ticket),
            None => Verdict::Shed(ticket, ShedReason::Lost),
        }
    }

    fn on_done(&mut self, _ticket: Ticket, _done: Done, _now: Instant) -> Grant {
        Grant::default()
    }
}

/// A client that sends every call at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EagerClient;

impl Client for EagerClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        Step::Send(plain(request, now))
    }

    fn on_reply(&mut self, _reply: &Reply, _now: Instant) {}

    fn on_cancel(&mut self, _id: CallId, _now: Instant) {}

    fn on_lost(&mut self, _now: Instant) {}
}
