//! Breakwater: credits from a pool that follows the queueing delay, demand speculation, and a delay-based drop.
//!
//! As published (Breakwater, OSDI 2020) and as its authors' program does it, so that comparisons are with the real
//! thing. Departures:
//!
//! - One list of drained sessions instead of one for each core: a machine is single-threaded.
//! - Each answer computes its session's window, where the program computes it once for a batch of answers.
//! - A request without a free slot is shed at once ([`super::ShedReason::ServerFull`]), where the program reads and
//!   discards it without an answer: here a call never hangs.
//! - Cancelled calls, which the program does not know, are answers that nobody sees: see [`BreakwaterServer`].
//! - With over-commitment off, a session without demand is not woken: there is nothing that it could be given.

mod client;
mod line;
mod server;
#[cfg(test)]
mod tests;

use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use client::BreakwaterClient;
pub use server::BreakwaterServer;

/// Breakwater's constants, and which of its parts are on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Queueing delay above which the pool shrinks. Default 80: the authors' setting for a mean service of 10 us, about
    /// 0.4 of the SLO (45 for 1 us, 500 for 100 us, 25 for memcached).
    pub target_delay_us: u64,
    /// Queueing delay from which on arriving requests are dropped. Default 160, twice the target.
    pub drop_delay_us: u64,
    /// From one update of the pool to the next. Default 10, one round trip.
    pub control_period_us: u64,
    /// Credits by which the pool grows in a period, for each session. Default 0.001.
    pub increase: f64,
    /// How strongly the pool shrinks with the relative excess of delay. Default 0.02.
    pub decrease: f64,
    /// The least that is left of the pool after one period. Default 0.5.
    pub decrease_floor: f64,
    /// The longest that a call waits at its client. Default 10, one round trip.
    pub expiry_us: u64,
    /// Calls that wait at a client at most, 1 to 4096; the oldest gives way. Default 16.
    pub queue_calls: u32,
    /// Requests of one session inside the server at most, 2 to 1024; its window is at most one less. Default 64.
    pub slots: u32,
    /// Sessions at most, up to 2^21. Default 2^20.
    pub max_sessions: u32,
    /// Sessions may hold a little more credit than they asked for. Default true.
    pub over_commitment: bool,
    /// Requests that arrive above `drop_delay_us` are dropped. Default true.
    pub aqm: bool,
    /// Clients tell their exact demand in messages of their own, and the server does not speculate about more. Default
    /// false, as in the authors' program.
    pub exact_demand: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target_delay_us: 80,
            drop_delay_us: 160,
            control_period_us: 10,
            increase: 0.001,
            decrease: 0.02,
            decrease_floor: 0.5,
            expiry_us: 10,
            queue_calls: 16,
            slots: 64,
            max_sessions: super::sessions::MAX_SESSIONS,
            over_commitment: true,
            aqm: true,
            exact_demand: false,
        }
    }
}

impl Config {
    /// The defaults at another target: the drop threshold is twice as high.
    #[must_use]
    pub fn with_target(target_delay_us: u64) -> Self {
        Self { target_delay_us, drop_delay_us: 2 * target_delay_us, ..Self::default() }
    }

    /// Credits alone, the first step of the ablation: exact demand in messages of its own, nothing beyond it, no drops,
    /// and calls wait at the client for as long as the SLO.
    #[must_use]
    pub fn credits_alone(self, slo: Duration) -> Self {
        let expiry_us = u64::try_from(slo.as_micros()).unwrap_or(u64::MAX);
        Self { over_commitment: false, aqm: false, exact_demand: true, expiry_us, ..self }
    }

    /// Credits with demand speculation and over-commitment, the second step of the ablation; the third is all.
    #[must_use]
    pub fn without_aqm(self) -> Self {
        Self { aqm: false, ..self }
    }
}
