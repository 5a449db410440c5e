//! Breakwater beside the handlers: the pool, the sessions' windows, the drained list and the drops.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;

use super::Config;
use super::line::{Line, Links, Place};
use crate::machine::sessions::Sessions;
use crate::machine::shape::{Ask, Done, Full, Grant, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};

/// Marks the ticket of a request that found no slot: it was never counted.
const NO_SLOT: u64 = 1 << 32;

/// What the server knows of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Session {
    /// Its credits.
    window: u32,
    /// Its requests inside the server.
    pending: u32,
    /// Its last word on the calls that wait at it.
    demand: u32,
    /// The window that it was last told.
    advertised: u32,
    pub(super) links: Links,
    pub(super) place: Place,
    /// Its demand is all there is.
    exact: bool,
}

/// Bytes of the machine for a session that is idle.
#[cfg(test)]
pub(super) const SESSION_BYTES: usize = size_of::<crate::machine::sessions::Slot<Session>>() + size_of::<u32>();

/// Why a window is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    Answer,
    Dropped,
    Demand,
    Wake,
}

/// Breakwater's server.
///
/// No event costs more than O(1), but that a tick wakes as many drained sessions as there are free credits; each of
/// them joined the list once. A session is 36 bytes. Ticks come only while a session is open.
///
/// A call that ends [`Done::Cancelled`] gives its slot back and has its window computed like any answer. As nobody will
/// read that, the client is told in a message if its window grew, and joins the drained list if it has none.
#[derive(Clone, Debug)]
pub struct BreakwaterServer {
    pub(super) config: Config,
    cores: u32,
    target_ns: u64,
    drop_at: Duration,
    period: Duration,
    sessions: Sessions<Session>,
    drained: Line,
    outbox: Line,
    /// Credits that may be held at once.
    pool: u32,
    /// Credits that are held: the sum of all windows.
    used: u32,
    /// The fraction of a credit by which the pool has yet to grow.
    carry: f64,
    tick: Instant,
}

impl BreakwaterServer {
    /// A server of `cores` cores, at least one, with nobody connected. `config` is valid.
    #[must_use]
    pub fn new(config: Config, cores: u32, now: Instant) -> Self {
        let cores = cores.max(1);
        let period = Duration::from_micros(config.control_period_us);
        Self {
            config,
            cores,
            target_ns: config.target_delay_us.saturating_mul(1_000),
            drop_at: Duration::from_micros(config.drop_delay_us),
            period,
            sessions: Sessions::new(config.max_sessions),
            drained: Line::new(Place::Drained),
            outbox: Line::new(Place::Outbox),
            pool: cores,
            used: 0,
            carry: 0.0,
            tick: now + period,
        }
    }

    /// Credits that may be held at once.
    #[must_use]
    pub fn pool(&self) -> u32 {
        self.pool
    }

    /// Credits that are held.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Credits of a session, `None` if it is not open.
    #[must_use]
    pub fn window(&mut self, session: SessionId) -> Option<u32> {
        self.sessions.get_mut(session).map(|session| session.window)
    }

    /// What the delay does to the pool.
    ///
    /// The paper adds at least one credit; the authors' program carries the fraction, and so does this.
    fn resize_pool(&mut self, delay: Duration) {
        let delay_ns = nanos(delay);
        let sessions = self.sessions.len();
        if delay_ns >= self.target_ns {
            let excess = to_f64(delay_ns - self.target_ns) / to_f64(self.target_ns.max(1));
            let left = (1.0 - self.config.decrease * excess).max(self.config.decrease_floor);
            self.pool = floor(f64::from(self.pool) * left);
            self.carry = 0.0;
        } else {
            self.carry += self.config.increase * f64::from(sessions);
            let whole = floor(self.carry);
            self.pool = self.pool.saturating_add(whole);
            self.carry -= f64::from(whole);
        }
        let most = sessions.saturating_mul(self.config.slots);
        self.pool = self.pool.min(most).max(self.cores);
    }

    /// Gives what the pool has open to those who have waited longest for it.
    fn wake(&mut self) {
        while self.pool > self.used
            && let Some(index) = self.drained.first()
        {
            self.drained.remove(&mut self.sessions, index);
            self.set(index, 1);
            self.update(index, Occasion::Wake);
            self.tell(index);
        }
    }

    /// What a session may be given beyond its demand.
    fn over(&self, open: i64) -> i64 {
        if self.config.over_commitment { (open / i64::from(self.sessions.len().max(1))).max(1) } else { 0 }
    }

    /// Computes a session's window. One that is drained keeps none.
    fn update(&mut self, index: u32, why: Occasion) {
        let session = self.sessions[index];
        if session.place == Place::Drained {
            return;
        }
        let open = i64::from(self.pool) - i64::from(self.used);
        let over = self.over(open);
        let (old, pending) = (i64::from(session.window), i64::from(session.pending));
        let wanted = pending + i64::from(session.demand);
        let mut window = match open {
            1.. => (wanted + over).min(old + open),
            0 => old,
            // Revocation is lazy: one credit for each answer.
            _ => old - 1,
        };
        if why == Occasion::Wake || self.sessions.len() <= self.cores {
            window = window.max(over);
        }
        if old > 0 && window == 0 && why != Occasion::Dropped && !session.exact {
            window = over;
        }
        window = window.max(pending).min(i64::from(self.config.slots) - 1);
        window = window.min(wanted + if session.exact { 0 } else { over });
        self.set(index, u32::try_from(window).expect("at least zero, and below the slots"));
    }

    /// A smaller demand takes effect at once, not at the next answer.
    fn trim(&mut self, index: u32) {
        let session = self.sessions[index];
        self.set(index, session.window.min(session.pending.saturating_add(session.demand)));
    }

    fn set(&mut self, index: u32, window: u32) {
        let old = core::mem::replace(&mut self.sessions[index].window, window);
        self.used = self.used - old + window;
    }

    /// A session whose window no answer will carry is told if it grew, or waits for the pool if it is nothing.
    fn tell(&mut self, index: u32) {
        let session = self.sessions[index];
        if session.pending > 0 || session.place != Place::Nowhere {
            return;
        }
        if session.window > session.advertised {
            self.outbox.push(&mut self.sessions, index);
        } else {
            self.park(index);
        }
    }

    /// Lets a session without credit and without a request inside wait for the pool, unless it wants nothing.
    fn park(&mut self, index: u32) {
        let session = self.sessions[index];
        let wants = session.demand > 0 || (self.config.over_commitment && !session.exact);
        if session.window == 0 && session.pending == 0 && wants && session.place == Place::Nowhere {
            self.drained.push(&mut self.sessions, index);
        }
    }

    fn unlist(&mut self, index: u32) {
        self.drained.remove(&mut self.sessions, index);
        self.outbox.remove(&mut self.sessions, index);
    }
}

impl Server for BreakwaterServer {
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
        if self.sessions.get_mut(session).is_none() {
            return;
        }
        self.unlist(session.0);
        let closed = self.sessions.close(session).expect("found above");
        self.used -= closed.window;
    }

    fn on_request(
        &mut self,
        session: SessionId,
        ask: &Ask,
        signal: Signal,
        arrived: Instant,
        _now: Instant,
    ) -> Verdict {
        let slots = self.config.slots;
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        let Some(state) = self.sessions.get_mut(session) else {
            return Verdict::Shed(ticket, ShedReason::Lost);
        };
        if state.pending >= slots {
            return Verdict::Shed(Ticket { mark: ticket.mark | NO_SLOT, ..ticket }, ShedReason::ServerFull);
        }
        state.demand = ask.demand;
        state.exact = ask.exact;
        state.pending += 1;
        self.unlist(session.0);
        self.trim(session.0);
        if self.config.aqm && signal.queueing_delay >= self.drop_at {
            return Verdict::Shed(ticket, ShedReason::Delay);
        }
        Verdict::Admit(ticket)
    }

    fn on_done(&mut self, ticket: Ticket, done: Done, _now: Instant) -> Grant {
        let index = ticket.session.0;
        let Some(state) = self.sessions.of(&ticket) else { return Grant::default() };
        if ticket.mark & NO_SLOT != 0 {
            state.advertised = state.window;
            return Grant { window: state.window, ..Grant::default() };
        }
        state.pending = state.pending.saturating_sub(1);
        if done == Done::Cancelled {
            self.update(index, Occasion::Answer);
            self.tell(index);
            return Grant::default();
        }
        self.update(index, if done == Done::Shed { Occasion::Dropped } else { Occasion::Answer });
        self.outbox.remove(&mut self.sessions, index);
        self.park(index);
        let state = &mut self.sessions[index];
        state.advertised = state.window;
        Grant { window: state.window, ..Grant::default() }
    }

    fn on_demand(&mut self, session: SessionId, ask: &Ask, _now: Instant) {
        let index = session.0;
        let Some(state) = self.sessions.get_mut(session) else { return };
        let before = core::mem::replace(&mut state.demand, ask.demand);
        state.exact = ask.exact;
        let idle = state.pending == 0;
        if before > 0 && ask.demand == 0 {
            state.advertised = 0;
            self.unlist(index);
        }
        self.trim(index);
        if before == 0 && ask.demand > 0 && idle {
            self.update(index, Occasion::Demand);
            self.tell(index);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.sessions.len() > 0).then_some(self.tick)
    }

    /// However late it is, the pool moves once: the delay was measured once.
    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        if now < self.tick {
            return;
        }
        let next = self.tick + self.period;
        self.tick = if next > now { next } else { now + self.period };
        self.resize_pool(signal.queueing_delay);
        self.wake();
    }

    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        let index = self.outbox.first()?;
        self.outbox.remove(&mut self.sessions, index);
        let state = &mut self.sessions[index];
        state.advertised = state.window;
        Some((SessionId(index), Grant { window: state.window, ..Grant::default() }))
    }
}

#[expect(clippy::cast_precision_loss, reason = "spans of less than 2^53 ns, 104 days")]
fn to_f64(ns: u64) -> f64 {
    ns as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "neither negative nor above 2^32")]
fn floor(credits: f64) -> u32 {
    credits as u32
}
