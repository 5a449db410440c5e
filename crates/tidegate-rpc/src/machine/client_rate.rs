//! Client-side rate limiting: each client keeps to a fixed share of the capacity, and the server only queues.
//!
//! The second strawman of Breakwater's authors: a fixed share is wrong whenever demand moves from one client to another.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate, Rng};

use super::sessions::MAX_SESSIONS;
use super::shape::{CallId, Client, ClientOutput, Reply, Request, ShedReason, Step};
use super::waiting::{Bounds, Entry, Waiting, plain};

/// The share of each client.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Calls that a client may send per second, above zero. Default 654: nine tenths of what 8 cores of 11 us a call do,
    /// divided by 1,000 clients. At the whole of it, the server's queue grows without bound.
    pub rate_per_s: f64,
    /// Calls that it may send at once, at least 1. Default 4, as SEDA's.
    pub burst: u64,
    /// The longest that a call waits for its token. Default 100, as SEDA's.
    pub expiry_us: u64,
    /// Calls that wait at a client at most, 1 to 4096; one more fails at once. Default 16.
    pub queue_calls: u32,
    /// Sessions at most. Default 2^20.
    pub max_sessions: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { rate_per_s: 654.0, burst: 4, expiry_us: 100, queue_calls: 16, max_sessions: MAX_SESSIONS }
    }
}

/// A client that keeps to its rate. Its server is an [`OpenServer`](super::none::OpenServer).
///
/// It starts with a random part of its first token: clients that started together with full buckets would send together
/// ever after.
#[derive(Clone, Debug)]
pub struct ClientRateClient {
    bucket: TokenBucket,
    /// The bucket's clock is ahead by this, less than the time of one token.
    ahead_ns: u64,
    queue: Waiting,
    /// The latest instant that it was told; outputs are as of then.
    now: Instant,
}

impl ClientRateClient {
    /// A client without a whole token. `config` is valid.
    #[must_use]
    pub fn new(config: &Config, now: Instant, rng: &mut Rng) -> Self {
        let bounds = Bounds { calls: config.queue_calls, expiry: Duration::from_micros(config.expiry_us) };
        let limit = Limit::new(Rate::from_per_s_f64(config.rate_per_s), config.burst);
        let mut bucket = TokenBucket::new(limit, now);
        bucket.try_take(config.burst, now).expect("a new bucket is full");
        let gap = bucket.ready_at(1, now).unwrap_or(now).since(now);
        let ahead_ns = rng.below(nanos(gap));
        Self { bucket, ahead_ns, queue: Waiting::new(bounds), now }
    }

    fn try_take(&mut self) -> bool {
        self.bucket.try_take(1, self.now.plus_nanos(self.ahead_ns)).is_ok()
    }
}

impl Client for ClientRateClient {
    fn on_call(&mut self, request: &Request, now: Instant, _rng: &mut Rng) -> Step {
        self.now = self.now.max(now);
        if self.queue.is_full() {
            return Step::Fail(ShedReason::ClientFull);
        }
        if self.queue.is_empty() && self.try_take() {
            return Step::Send(plain(request, now));
        }
        self.queue.push(Entry::of(request, now));
        Step::Wait
    }

    fn on_reply(&mut self, _reply: &Reply, now: Instant) {
        self.now = self.now.max(now);
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        self.now = self.now.max(now);
        self.queue.cancel(id);
    }

    fn on_lost(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.queue.lose();
    }

    fn next_timeout(&self) -> Option<Instant> {
        let expires = self.queue.next_timeout()?;
        let ready = self.bucket.clone().ready_at(1, self.now.plus_nanos(self.ahead_ns));
        Some(ready.map_or(expires, |ready| ready.minus_nanos(self.ahead_ns).min(expires)))
    }

    fn on_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn poll_output(&mut self) -> Option<ClientOutput> {
        if let Some((id, reason)) = self.queue.pop_failed(self.now) {
            return Some(ClientOutput::Fail(id, reason));
        }
        if self.queue.is_empty() || !self.try_take() {
            return None;
        }
        self.queue.pop().map(|entry| ClientOutput::Send(entry.id, entry.ask()))
    }
}
