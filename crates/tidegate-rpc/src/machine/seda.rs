//! SEDA as Breakwater's authors built it for comparison: each client finds its own rate from its response times.
//!
//! The server only queues. Departure: the response time is the client's whole, with the wait for a token, as the driver
//! measures it.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use super::sessions::MAX_SESSIONS;
use super::shape::{CallId, Client, ClientOutput, Outcome, Reply, Request, ShedReason, Step};
use super::waiting::{Bounds, Entry, Waiting, plain};

/// SEDA's constants.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The p99 of response times that each client wants. Default 80: for a service of 10 us (50 for 1 us, 720 for 100).
    pub target_us: u64,
    /// Tokens at most. Default 4.
    pub burst: f64,
    /// The rate at the start is uniform from this. Default 2.
    pub initial_per_s_min: f64,
    /// The rate at the start is uniform up to this. Default 4 (8 in the authors' program).
    pub initial_per_s_max: f64,
    /// The lowest rate, above zero. Default 2.
    pub rate_per_s_min: f64,
    /// The longest that a call waits for its token. Default 100 (10 for a service of 1 us).
    pub expiry_us: u64,
    /// Calls that wait at a client at most, 1 to 4096; one more fails at once. Default 16.
    pub queue_calls: u32,
    /// The controller runs after this many responses, 1 to 10,000. Default 100.
    pub window_responses: u32,
    /// And at a response that comes this long after its last run. Default 1,000.
    pub window_us: u64,
    /// Weight of the newest p99. Default 0.3.
    pub smoothing: f64,
    /// The rate is divided by this when the p99 is above the target. Default 1.04 (1.3 for a service of 100 us).
    pub decrease: f64,
    /// How much faster, in calls per second for each part of the error. Default 40 (120 for a service of 1 us, 10 for
    /// 100).
    pub increase_per_s: f64,
    /// The relative error below which the rate rises. Default -0.5.
    pub increase_below: f64,
    /// Added to the error before the rise is computed. Default 0.1.
    pub increase_offset: f64,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target_us: 80,
            burst: 4.0,
            initial_per_s_min: 2.0,
            initial_per_s_max: 4.0,
            rate_per_s_min: 2.0,
            expiry_us: 100,
            queue_calls: 16,
            window_responses: 100,
            window_us: 1_000,
            smoothing: 0.3,
            decrease: 1.04,
            increase_per_s: 40.0,
            increase_below: -0.5,
            increase_offset: 0.1,
            max_sessions: MAX_SESSIONS,
        }
    }
}

/// SEDA's client. Its server is an [`OpenServer`](super::none::OpenServer).
///
/// Its bucket starts empty: with full ones, many clients that start together overload the server, learn from that to be
/// slow, and at a few calls per second take very long to learn better. It costs 400 bytes while it is busy, for the response times of a window.
#[derive(Clone, Debug)]
pub struct SedaClient {
    config: Config,
    queue: Waiting,
    bucket: Bucket,
    /// Response times since the controller last ran, in nanoseconds, cut at four seconds.
    samples: Vec<u32>,
    /// The smoothed p99, as a multiple of the target.
    p99: f64,
    ran: Instant,
}

/// A token bucket whose rate moves all the time; its levels are as inexact as the rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    burst: f64,
    per_s: f64,
    /// The level is that of this instant, the latest that the client was told; outputs are as of then.
    now: Instant,
}

/// So little missing counts as a token: less than rounding takes from a wait that was computed to be long enough.
const ENOUGH: f64 = 1.0 - 1e-9;

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let minted = now.since(self.now).as_secs_f64() * self.per_s;
        self.tokens = (self.tokens + minted).min(self.burst);
        self.now = self.now.max(now);
    }

    fn try_take(&mut self) -> bool {
        let enough = self.tokens >= ENOUGH;
        if enough {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        enough
    }

    fn ready(&self) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0);
        self.now + Duration::try_from_secs_f64(missing / self.per_s).unwrap_or(Duration::MAX) + Duration::from_nanos(1)
    }
}

impl SedaClient {
    /// A client with a random rate. `config` is valid.
    #[must_use]
    pub fn new(config: &Config, now: Instant, rng: &mut Rng) -> Self {
        let bounds = Bounds { calls: config.queue_calls, expiry: Duration::from_micros(config.expiry_us) };
        let spread = config.initial_per_s_max - config.initial_per_s_min;
        let per_s = config.initial_per_s_min + rng.f64() * spread;
        Self {
            config: *config,
            queue: Waiting::new(bounds),
            bucket: Bucket { tokens: 0.0, burst: config.burst, per_s, now },
            samples: Vec::new(),
            p99: 0.0,
            ran: now,
        }
    }

    /// Calls per second that it sends at most.
    #[must_use]
    pub fn rate_per_s(&self) -> f64 {
        self.bucket.per_s
    }

    fn control(&mut self) {
        self.samples.sort_unstable();
        // The nearest rank: at least 99 of 100 are not above it.
        let rank = (self.samples.len() * 99).div_ceil(100).saturating_sub(1);
        let newest = f64::from(self.samples[rank]) / 1e3 / target(self.config.target_us);
        self.samples.clear();
        self.p99 = (1.0 - self.config.smoothing) * self.p99 + self.config.smoothing * newest;
        let error = self.p99 - 1.0;
        if error > 0.0 {
            self.bucket.per_s /= self.config.decrease;
        } else if error < self.config.increase_below {
            self.bucket.per_s -= (error + self.config.increase_offset) * self.config.increase_per_s;
        }
        self.bucket.per_s = self.bucket.per_s.max(self.config.rate_per_s_min);
    }
}

impl Client for SedaClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        self.bucket.refill(now);
        if self.queue.is_full() {
            return Step::Fail(ShedReason::ClientFull);
        }
        if self.queue.is_empty() && self.bucket.try_take() {
            return Step::Send(plain(request, now));
        }
        self.queue.push(Entry::of(request, now));
        Step::Wait
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.bucket.refill(now);
        if reply.outcome != Outcome::Served {
            return;
        }
        self.samples.push(u32::try_from(nanos(reply.response_time)).unwrap_or(u32::MAX));
        let full = self.samples.len() >= usize::try_from(self.config.window_responses).unwrap_or(usize::MAX);
        if full || now.since(self.ran) > Duration::from_micros(self.config.window_us) {
            self.control();
            self.ran = now;
        }
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        self.bucket.refill(now);
        self.queue.cancel(id);
    }

    fn on_lost(&mut self, now: Instant) {
        self.bucket.refill(now);
        self.queue.lose();
    }

    fn next_timeout(&self) -> Option<Instant> {
        Some(self.queue.next_timeout()?.min(self.bucket.ready()))
    }

    fn on_timeout(&mut self, now: Instant) {
        self.bucket.refill(now);
    }

    fn poll_output(&mut self) -> Option<ClientOutput> {
        if let Some((id, reason)) = self.queue.pop_failed(self.bucket.now) {
            return Some(ClientOutput::Fail(id, reason));
        }
        if self.queue.is_empty() || !self.bucket.try_take() {
            return None;
        }
        self.queue.pop().map(|entry| ClientOutput::Send(entry.id, entry.ask()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^53 us")]
fn target(us: u64) -> f64 {
    us as f64
}
