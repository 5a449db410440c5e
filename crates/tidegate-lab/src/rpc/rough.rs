//! What disturbs network and host: jitter, and pauses in which no core runs.

use core::time::Duration;
use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::{Client, Server};

use super::Plant;
use super::scenario::{micros, whole};

/// By how much ways and handlers take longer than they should, call by call. Exponential: a half of the mean is as
/// likely as not, three means one time in twenty.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// What each way between client and server takes beyond half of the round trip, on average. Drawn for each message:
    /// one may overtake another.
    #[serde(rename = "way_us", with = "micros")]
    pub way: Duration,
    /// What each handler takes of a core beyond its own time, on average, as a share of that.
    pub service: f64,
}

impl Jitter {
    /// None at all.
    pub(super) const NONE: Self = Self { way: Duration::ZERO, service: 0.0 };

    #[expect(clippy::cast_precision_loss, reason = "ways and services are far below 2^52 ns")]
    fn longer(mean_ns: f64, ns: u64, rng: &mut Rng) -> u64 {
        if mean_ns > 0.0 { whole(ns as f64 + mean_ns * rng.exponential()) } else { ns }
    }

    /// One way whose undisturbed length is given.
    #[inline]
    pub(super) fn way_ns(self, ns: u64, rng: &mut Rng) -> u64 {
        Self::longer(self.way.as_secs_f64() * 1e9, ns, rng)
    }

    /// One handler's time whose undisturbed length is given.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "services are far below 2^52 ns")]
    pub(super) fn service_ns(self, ns: u64, rng: &mut Rng) -> u64 {
        Self::longer(self.service * ns as f64, ns, rng)
    }
}

/// All cores of the server stop together, as when a hypervisor runs somebody else: calls that run take that much longer,
/// timers are late, and what arrives waits with its arrival's stamp. What handlers wait for and the network go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pauses {
    /// From the end of one to the start of the next: exponential, with this mean.
    #[serde(rename = "every_us", with = "micros")]
    pub every: Duration,
    /// Each lasts between this
    #[serde(rename = "least_us", with = "micros")]
    pub least: Duration,
    /// and this, uniformly.
    #[serde(rename = "most_us", with = "micros")]
    pub most: Duration,
}

/// Whether the server's cores run.
#[derive(Debug)]
pub(super) struct Host {
    pauses: Option<Pauses>,
    /// When the next pause begins, or the present one ends.
    next: Instant,
    paused: bool,
    /// Up to when paused time was counted.
    counted: Instant,
    paused_ns: u64,
    rng: Rng,
}

impl Host {
    pub(super) fn new(pauses: Option<Pauses>, rng: Rng) -> Self {
        let mut host = Self { pauses, next: Instant::MAX, paused: false, counted: Instant::ZERO, paused_ns: 0, rng };
        host.schedule(Instant::ZERO);
        host
    }

    #[inline]
    pub(super) fn next_at(&self) -> Instant {
        self.next
    }

    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// The earliest instant at which something may run on the host that should at `at`.
    #[inline]
    pub(super) fn runs_at(&self, at: Instant) -> Instant {
        if self.paused { at.max(self.next) } else { at }
    }

    fn schedule(&mut self, now: Instant) {
        let gap = self.pauses.map(|pauses| pauses.every.as_secs_f64() * 1e9 * self.rng.exponential());
        self.next = gap.map_or(Instant::MAX, |ns| now.plus_nanos(whole(ns)));
    }

    /// A pause begins or ends: how long the one is that begins.
    fn change(&mut self, now: Instant) -> Option<u64> {
        self.count(now);
        self.paused = !self.paused;
        if !self.paused {
            self.schedule(now);
            return None;
        }
        let Pauses { least, most, .. } = self.pauses?;
        let length = nanos(least) + self.rng.below(nanos(most.saturating_sub(least)) + 1);
        self.next = now.plus_nanos(length);
        Some(length)
    }

    fn count(&mut self, now: Instant) {
        if self.paused {
            self.paused_ns += now.nanos_since(self.counted);
        }
        self.counted = now;
    }

    /// Nanoseconds of pauses since the last time.
    pub(super) fn take_paused_ns(&mut self, now: Instant) -> u64 {
        self.count(now);
        core::mem::take(&mut self.paused_ns)
    }
}

impl<S: Server, C: Client> Plant<S, C> {
    /// All cores stop, or go on.
    pub(super) fn host_changes(&mut self) {
        if let Some(length) = self.host.change(self.now) {
            let later = |Reverse((at, core)): Reverse<(Instant, u32)>| Reverse((at.plus_nanos(length), core));
            self.finishing = self.finishing.drain().map(later).collect();
        }
        self.employ();
    }

    /// When what leaves for the other side now is there.
    #[inline]
    pub(super) fn there_at(&mut self) -> Instant {
        self.now.plus_nanos(self.jitter.way_ns(self.half_trip_ns, &mut self.jitter_rng))
    }
}
