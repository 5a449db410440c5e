//! DAGOR as Breakwater's authors built it for comparison: one threshold of priorities, obeyed by clients.
//!
//! The server moves the threshold by its smoothed queueing delay and tells it in every answer; a request above it is
//! shed, by the client if it knows and by the server otherwise. The system in production has two-level
//! priorities and walks a histogram; this has one level of random priorities.
//!
//! Departures: a client hashes its calls' names together with a number of its own, so that clients that all count from
//! zero do not send their important calls at the same time; a request of a client that does not know the scheme has the
//! lowest priority at most.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use super::sessions::{MAX_SESSIONS, Sessions};
use super::shape::{
    Ask, CallId, Client, Done, Full, Grant, Priority, Reply, Request, Server, SessionId, ShedReason, Signal, Step,
    Tenant, Ticket, Verdict,
};
use super::waiting::plain;

/// DAGOR's constants.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Smoothed queueing delay from which on fewer are let through. Default 60: for exponential service of 10 us (50 if
    /// constant, 70 if bimodal, 30 for 1 us, 400 for 100 us).
    pub target_delay_us: u64,
    /// From one look at the delay to the next. Default 10.
    pub period_us: u64,
    /// Weight of the newest delay. Default 0.2.
    pub smoothing: f64,
    /// The threshold moves after this long, if a request arrived. Default 1,000.
    pub window_us: u64,
    /// The threshold moves after this many requests. Default 2,000.
    pub window_requests: u32,
    /// Priorities, 2 to 256; 0 is the best. Default 128.
    pub levels: u32,
    /// The threshold at the start: the lowest priority that is served. Default 32.
    pub initial_threshold: u32,
    /// What is left of the threshold after a window of overload. Default 0.95.
    pub decrease: f64,
    /// By which share of all levels the threshold rises after any other window. Default 0.01.
    pub increase: f64,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target_delay_us: 60,
            period_us: 10,
            smoothing: 0.2,
            window_us: 1_000,
            window_requests: 2_000,
            levels: 128,
            initial_threshold: 32,
            decrease: 0.95,
            increase: 0.01,
            max_sessions: MAX_SESSIONS,
        }
    }
}

/// DAGOR's server. Ticks come only while a session is open.
#[derive(Clone, Debug)]
pub struct DagorServer {
    config: Config,
    sessions: Sessions<()>,
    threshold: f64,
    /// Smoothed, in whole microseconds as in the authors' program.
    delay_us: u32,
    /// Requests since the threshold moved.
    requests: u32,
    moved: Instant,
    tick: Instant,
}

impl DagorServer {
    /// A server with nobody connected. `config` is valid.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        Self {
            config,
            sessions: Sessions::new(config.max_sessions),
            threshold: f64::from(config.initial_threshold),
            delay_us: 0,
            requests: 0,
            moved: now,
            tick: now + Duration::from_micros(config.period_us),
        }
    }

    /// The lowest priority that is served.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        floor(self.threshold)
    }

    fn grant(&self) -> Grant {
        Grant { level: self.threshold(), ..Grant::default() }
    }

    fn smooth(&mut self, delay: Duration) {
        let newest = delay.as_secs_f64() * 1e6;
        let weight = self.config.smoothing;
        self.delay_us = floor((1.0 - weight) * f64::from(self.delay_us) + weight * newest);
    }

    fn move_threshold(&mut self) {
        let levels = f64::from(self.config.levels);
        if u64::from(self.delay_us) >= self.config.target_delay_us {
            self.threshold *= self.config.decrease;
        } else {
            self.threshold += self.config.increase * levels;
        }
        self.threshold = self.threshold.clamp(1.0, levels - 1.0);
    }
}

impl Server for DagorServer {
    fn open(&mut self, _tenant: Tenant, now: Instant) -> Result<SessionId, Full> {
        if self.sessions.len() == 0 {
            self.tick = now + Duration::from_micros(self.config.period_us);
        }
        self.sessions.open()
    }

    fn close(&mut self, session: SessionId, _now: Instant) {
        self.sessions.close(session);
    }

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, _now: Instant) -> Verdict {
        let ticket = self.sessions.ticket(session, ask, arrived, 0);
        if self.sessions.get_mut(session).is_none() {
            return Verdict::Shed(ticket, ShedReason::Lost);
        }
        self.requests = self.requests.saturating_add(1);
        let priority = u32::from(ask.priority.0).min(self.config.levels - 1);
        if priority > self.threshold() {
            return Verdict::Shed(ticket, ShedReason::Priority);
        }
        Verdict::Admit(ticket)
    }

    fn on_done(&mut self, _ticket: Ticket, _done: Done, _now: Instant) -> Grant {
        self.grant()
    }

    fn next_timeout(&self) -> Option<Instant> {
        (self.sessions.len() > 0).then_some(self.tick)
    }

    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        if now < self.tick {
            return;
        }
        self.tick = now + Duration::from_micros(self.config.period_us);
        self.smooth(signal.queueing_delay);
        let over = now.since(self.moved) >= Duration::from_micros(self.config.window_us);
        if self.requests > 0 && (over || self.requests >= self.config.window_requests) {
            self.move_threshold();
            self.requests = 0;
            self.moved = now;
        }
    }
}

/// DAGOR's client: drops what the server would, as far as it knows. It never waits and has no timer.
#[derive(Clone, Debug)]
pub struct DagorClient {
    /// Makes its calls' priorities its own.
    salt: u64,
    levels: u32,
    /// What it believed before it heard from the server.
    initial: u32,
    threshold: u32,
}

impl DagorClient {
    /// A client that believes in a random threshold. `config` is valid.
    #[must_use]
    pub fn new(config: &Config, rng: &mut Rng) -> Self {
        let initial = u32::try_from(rng.below(u64::from(config.levels))).expect("below a `u32`");
        Self { salt: rng.u64(), levels: config.levels, initial, threshold: initial }
    }

    /// The lowest priority that it sends.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// A call's priority, uniform over the levels and the same whenever it is asked for.
    fn priority(&self, id: CallId) -> u8 {
        let level = mixed(id.0 ^ self.salt) % u64::from(self.levels);
        u8::try_from(level).expect("at most 256 levels")
    }
}

impl Client for DagorClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        let priority = self.priority(request.id);
        if u32::from(priority) > self.threshold {
            return Step::Fail(ShedReason::Priority);
        }
        Step::Send(Ask { priority: Priority(priority), ..plain(request, now) })
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        if let Some(grant) = &reply.grant {
            self.on_grant(grant, now);
        }
    }

    fn on_grant(&mut self, grant: &Grant, _now: Instant) {
        self.threshold = grant.level;
    }

    fn on_cancel(&mut self, _id: CallId, _now: Instant) {}

    fn on_lost(&mut self, _now: Instant) {
        self.threshold = self.initial;
    }
}

/// Spreads neighbouring numbers over all 64 bits.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), the finalizer.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; never negative")]
fn floor(value: f64) -> u32 {
    value as u32
}
