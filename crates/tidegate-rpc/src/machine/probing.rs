//! Clients that ask before they send: whoever has no fresh answer asks the server for its state and holds the call.
//!
//! The third strawman of Breakwater's authors: at many clients nearly every call costs a question and an answer more.
//! A question is a demand message; its answer a [`Grant`] of level [`OPEN`] or [`CLOSED`] with a lease. Answers to
//! calls carry nothing: a client learns the state by asking only, which is the point of the comparison.

use core::time::Duration;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use super::sessions::{MAX_SESSIONS, Sessions};
use super::shape::{
    Ask, CallId, Client, ClientOutput, Done, Full, Grant, Reply, Request, Server, SessionId, ShedReason, Signal, Step,
    Tenant, Ticket, Verdict,
};
use super::waiting::{Bounds, Entry, Waiting, plain};

/// The [`Grant::level`] of a server that has room.
pub const OPEN: u32 = 1;
/// The [`Grant::level`] of a server that has none: calls fail at their clients.
pub const CLOSED: u32 = 0;

/// When a server is open, and for how long an answer is worth something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Queueing delay from which on the server says no. Default 80: Breakwater's for a service of 10 us.
    pub target_delay_us: u64,
    /// From one look at the delay to the next, if no request comes. Default 10, one round trip.
    pub period_us: u64,
    /// How long an answer holds from its arrival on. Default 10, one round trip: what is older says little.
    pub lease_us: u64,
    /// The longest that a call waits for the answer. Default 100, as SEDA's: under load answers take their time.
    pub expiry_us: u64,
    /// Calls that wait at a client at most, 1 to 4096; the oldest gives way. Default 16.
    pub queue_calls: u32,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target_delay_us: 80,
            period_us: 10,
            lease_us: 10,
            expiry_us: 100,
            queue_calls: 16,
            max_sessions: MAX_SESSIONS,
        }
    }
}

/// Whether a session awaits an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Question {
    #[default]
    None,
    Asked,
}

/// A server that says what it is asked, and queues what it is sent.
#[derive(Clone, Debug)]
pub struct ProbingServer {
    target: Duration,
    lease: Duration,
    period: Duration,
    sessions: Sessions<Question>,
    /// Who asked, each at most once.
    asked: VecDeque<SessionId>,
    /// The delay when it was last told.
    delay: Duration,
    tick: Instant,
}

impl ProbingServer {
    /// A server with nobody connected. `config` is valid.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        let period = Duration::from_micros(config.period_us);
        Self {
            target: Duration::from_micros(config.target_delay_us),
            lease: Duration::from_micros(config.lease_us),
            period,
            sessions: Sessions::new(config.max_sessions),
            asked: VecDeque::new(),
            delay: Duration::ZERO,
            tick: now + period,
        }
    }
}

impl Server for ProbingServer {
    fn grants_before_calls(&self) -> bool {
        true
    }

    fn open(&mut self, _tenant: Tenant, now: Instant) -> Result<SessionId, Full> {
        if self.sessions.len() == 0 {
            self.tick = now + self.period;
        }
        self.sessions.open()
    }

    fn close(&mut self, session: SessionId, _now: Instant) {
        if self.sessions.close(session) == Some(Question::Asked) {
            self.asked.retain(|&other| other != session);
        }
    }

    fn on_request(
        &mut self,
        session: SessionId,
        ask: &Ask,
        signal: Signal,
        arrived: Instant,
        _now: Instant,
    ) -> Verdict {
        self.delay = signal.queueing_delay;
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        match self.sessions.get_mut(session) {
            Some(_) => Verdict::Admit(ticket),
            None => Verdict::Shed(ticket, ShedReason::Lost),
        }
    }

    fn on_done(&mut self, _ticket: Ticket, _done: Done, _now: Instant) -> Grant {
        Grant::default()
    }

    fn on_demand(&mut self, session: SessionId, _ask: &Ask, _now: Instant) {
        let Some(question) = self.sessions.get_mut(session) else { return };
        if core::mem::replace(question, Question::Asked) == Question::None {
            self.asked.push_back(session);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.sessions.len() > 0).then_some(self.tick)
    }

    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        if now >= self.tick {
            self.delay = signal.queueing_delay;
            self.tick = now + self.period;
        }
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        let session = self.asked.pop_front()?;
        if let Some(question) = self.sessions.get_mut(session) {
            *question = Question::None;
        }
        let level = if self.delay < self.target { OPEN } else { CLOSED };
        Some((session, Grant { level, lease: self.lease, window: 0 }))
    }
}

/// A client that asks first.
#[derive(Clone, Debug)]
pub struct ProbingClient {
    queue: Waiting,
    /// The latest instant that it was told; outputs are as of then.
    now: Instant,
    level: u32,
    /// The last answer is worth nothing from then on.
    fresh_until: Instant,
    /// A question is out. It is not asked again: a connection answers or ends.
    asked: bool,
}

impl ProbingClient {
    /// A client that knows nothing. `config` is valid.
    #[must_use]
    pub fn new(config: &Config, now: Instant) -> Self {
        let bounds = Bounds { calls: config.queue_calls, expiry: Duration::from_micros(config.expiry_us) };
        Self { queue: Waiting::new(bounds), now, level: CLOSED, fresh_until: now, asked: false }
    }

    fn knows(&self) -> bool {
        self.now < self.fresh_until
    }
}

impl Client for ProbingClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        self.now = self.now.max(now);
        if self.queue.is_empty() && self.knows() {
            return match self.level {
                CLOSED => Step::Fail(ShedReason::NoCredit),
                _ => Step::Send(plain(request, now)),
            };
        }
        self.queue.push(Entry::of(request, now));
        Step::Wait
    }

    fn on_reply(&mut self, _reply: &Reply, now: Instant) {
        self.now = self.now.max(now);
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.now = self.now.max(now);
        self.asked = false;
        self.level = grant.level;
        // An answer holds for what asked it, however short its lease.
        self.fresh_until = (self.now + grant.lease).max(self.now.plus_nanos(1));
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        self.now = self.now.max(now);
        self.queue.cancel(id);
    }

    fn on_lost(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.queue.lose();
        self.asked = false;
        self.fresh_until = self.now;
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.queue.next_timeout()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn poll_output(&mut self) -> Option<ClientOutput> {
        if let Some((id, reason)) = self.queue.pop_failed(self.now) {
            return Some(ClientOutput::Fail(id, reason));
        }
        if self.queue.is_empty() {
            return None;
        }
        if self.knows() {
            let entry = self.queue.pop()?;
            return Some(match self.level {
                CLOSED => ClientOutput::Fail(entry.id, ShedReason::NoCredit),
                _ => ClientOutput::Send(entry.id, entry.ask()),
            });
        }
        if self.asked {
            return None;
        }
        self.asked = true;
        Some(ClientOutput::Demand(Ask { demand: self.queue.len(), aware: true, ..Ask::default() }))
    }
}
