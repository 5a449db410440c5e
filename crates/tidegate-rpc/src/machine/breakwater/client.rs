//! Breakwater beside the callers: a call needs a credit, waits for one at most for one round trip, and fails then.

use core::time::Duration;

use tidegate_core::{Instant, Rng};

use super::Config;
use crate::machine::shape::{Ask, CallId, Client, ClientOutput, Grant, Reply, Request, Step};
use crate::machine::waiting::{Bounds, Entry, Waiting, plain};

/// Breakwater's client.
///
/// Without a call that waits it has no timer. A cancelled call that was sent gives its credit back at once; the driver
/// hands the grant of its answer, should one come, to [`Client::on_grant`].
#[derive(Clone, Debug)]
pub struct BreakwaterClient {
    queue: Waiting,
    /// The latest instant that it was told; outputs are as of then.
    now: Instant,
    /// The window.
    available: u32,
    /// Requests in flight.
    used: u32,
    /// The demand that the server was last told.
    told: u32,
    /// A call has waited since the connection began, so the server knows this client.
    known: bool,
    /// A demand message is out: nothing leaves the queue before its answer, or any other.
    asked: bool,
    exact: bool,
}

impl BreakwaterClient {
    /// A client of a fresh connection. `config` is valid.
    #[must_use]
    pub fn new(config: &Config, now: Instant) -> Self {
        let bounds = Bounds { calls: config.queue_calls, expiry: Duration::from_micros(config.expiry_us) };
        Self {
            queue: Waiting::new(bounds),
            now,
            available: 0,
            used: 0,
            told: 0,
            known: false,
            asked: false,
            exact: config.exact_demand,
        }
    }

    /// The window: requests that may be in flight.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Requests in flight.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    fn sent(&mut self, ask: Ask) -> Ask {
        self.used += 1;
        self.told = self.queue.len();
        Ask { demand: self.told, exact: self.exact, credited: true, ..ask }
    }

    fn demand(&mut self, waits: bool) -> ClientOutput {
        self.known = true;
        self.asked = waits;
        self.told = self.queue.len();
        ClientOutput::Demand(Ask { demand: self.told, exact: self.exact, aware: true, ..Ask::default() })
    }
}

impl Client for BreakwaterClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        self.now = self.now.max(now);
        if self.queue.is_empty() && self.used < self.available {
            return Step::Send(self.sent(plain(request, now)));
        }
        self.queue.push(Entry::of(request, now));
        Step::Wait
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.used = self.used.saturating_sub(1);
        match &reply.grant {
            Some(grant) => self.on_grant(grant, now),
            None => self.now = self.now.max(now),
        }
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.now = self.now.max(now);
        self.available = grant.window;
        self.asked = false;
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        self.now = self.now.max(now);
        if !self.queue.cancel(id) {
            self.used = self.used.saturating_sub(1);
        }
    }

    fn on_lost(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.queue.lose();
        (self.available, self.used, self.told) = (0, 0, 0);
        (self.known, self.asked) = (false, false);
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
            // An exact demand that is no more must be taken back, or the server keeps a credit for it.
            let stale = self.exact && self.told > 0;
            return stale.then(|| self.demand(false));
        }
        if self.asked {
            return None;
        }
        if self.used < self.available {
            let entry = self.queue.pop()?;
            return Some(ClientOutput::Send(entry.id, self.sent(entry.ask())));
        }
        let unheard = !self.known || (self.exact && self.available == 0);
        unheard.then(|| self.demand(true))
    }
}
