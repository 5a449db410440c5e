//! Server-side active queue management alone: what arrives while the delay is too long is dropped, and clients send all.
//!
//! The first strawman of Breakwater's authors: each drop costs the server a message, so that at many times its capacity
//! it does little else.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::sessions::{MAX_SESSIONS, Sessions};
use super::shape::{Ask, Done, Full, Grant, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};

/// The threshold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Queueing delay from which on arriving requests are dropped. Default 160: Breakwater's for a service of 10 us.
    pub drop_delay_us: u64,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { drop_delay_us: 160, max_sessions: MAX_SESSIONS }
    }
}

/// A server that drops by delay. Its clients are [`EagerClient`](super::none::EagerClient)s.
#[derive(Clone, Debug)]
pub struct AqmServer {
    drop_at: Duration,
    sessions: Sessions<()>,
}

impl AqmServer {
    /// A server with nobody connected.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let drop_at = Duration::from_micros(config.drop_delay_us);
        Self { drop_at, sessions: Sessions::new(config.max_sessions) }
    }
}

impl Server for AqmServer {
    fn open(&mut self, _tenant: Tenant, _now: Instant) -> Result<SessionId, Full> {
        self.sessions.open()
    }

    fn close(&mut self, session: SessionId, _now: Instant) {
        self.sessions.close(session);
    }

    fn on_request(
        &mut self,
        session: SessionId,
        ask: &Ask,
        signal: Signal,
        arrived: Instant,
        _now: Instant,
    ) -> Verdict {
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        if self.sessions.get_mut(session).is_none() {
            return Verdict::Shed(ticket, ShedReason::Lost);
        }
        if signal.queueing_delay >= self.drop_at {
            return Verdict::Shed(ticket, ShedReason::Delay);
        }
        Verdict::Admit(ticket)
    }

    fn on_done(&mut self, _ticket: Ticket, _done: Done, _now: Instant) -> Grant {
        Grant::default()
    }
}
