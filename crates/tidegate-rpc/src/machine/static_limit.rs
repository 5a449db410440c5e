//! A fixed concurrency limit: the server admits while fewer than so many calls are in it, and clients send all.

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::sessions::{MAX_SESSIONS, Sessions};
use super::shape::{Ask, Done, Full, Grant, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};

/// Marks the ticket of a call that was counted.
const COUNTED: u64 = 1 << 32;

/// The limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Admitted calls that are not done, at most. Default 64: on 8 cores of 11 us a call, a wait of about 80 us.
    pub limit: u32,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { limit: 64, max_sessions: MAX_SESSIONS }
    }
}

/// A server that counts. Its clients are [`EagerClient`](super::none::EagerClient)s.
///
/// When a session closes, its calls no longer count, even if handlers of them still run: nobody promises to say when
/// those end.
#[derive(Clone, Debug)]
pub struct StaticLimitServer {
    limit: u32,
    in_flight: u32,
    /// Each session's share of `in_flight`.
    sessions: Sessions<u32>,
}

impl StaticLimitServer {
    /// A server with nobody connected.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { limit: config.limit, in_flight: 0, sessions: Sessions::new(config.max_sessions) }
    }

    /// Admitted calls that are not done.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl Server for StaticLimitServer {
    fn open(&mut self, _tenant: Tenant, _now: Instant) -> Result<SessionId, Full> {
        self.sessions.open()
    }

    fn close(&mut self, session: SessionId, _now: Instant) {
        self.in_flight -= self.sessions.close(session).unwrap_or(0);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, _now: Instant) -> Verdict {
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        let Some(own) = self.sessions.get_mut(session) else {
            return Verdict::Shed(ticket, ShedReason::Lost);
        };
        if self.in_flight >= self.limit {
            return Verdict::Shed(ticket, ShedReason::ServerFull);
        }
        *own += 1;
        self.in_flight += 1;
        Verdict::Admit(Ticket { mark: ticket.mark | COUNTED, ..ticket })
    }

    fn on_done(&mut self, ticket: Ticket, _done: Done, _now: Instant) -> Grant {
        if ticket.mark & COUNTED != 0
            && let Some(own) = self.sessions.of(&ticket)
        {
            *own -= 1;
            self.in_flight -= 1;
        }
        Grant::default()
    }
}
