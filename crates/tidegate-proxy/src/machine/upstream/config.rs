//! The settings of a pool, with their defaults.

use core::time::Duration;

use tidegate_core::limit::RetryTerms;

use super::sharing::SharingTuning;

/// Servers that answer the same requests.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolConfig {
    /// The servers; a [`Pool`](super::Pool) names them by their place here.
    pub servers: Vec<ServerConfig>,
    /// Who is asked next.
    pub balance: Balance,
    /// Requests under way at once, for each server that is up, that share their clients' connections with others: these
    /// cost their client next to nothing, and hold a slot for as long as it likes.
    pub max_streams: u32,
    /// Requests that may wait for a free server; the next one is refused.
    pub max_pending: u32,
    /// How long one may wait.
    pub pending_timeout: Duration,
    /// Over which span a server that came back is given its full share; zero for at once.
    pub slow_start: Duration,
    /// Ejection of servers whose requests fail; `None` for never.
    pub passive: Option<PassiveConfig>,
    /// Statuses of answers that count there as failures do.
    pub failure_statuses: Vec<u16>,
    /// What may be tried again.
    pub retry: RetryConfig,
    /// How it is learnt what the upstream can do at once; `None` if there are no bounds but those of the servers.
    pub learnt: Option<SharingTuning>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            balance: Balance::LeastLoaded,
            max_streams: 512,
            max_pending: 1_024,
            pending_timeout: Duration::from_secs(5),
            slow_start: Duration::ZERO,
            passive: Some(PassiveConfig::default()),
            failure_statuses: Vec::new(),
            retry: RetryConfig::default(),
            learnt: None,
        }
    }
}

/// One server of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// Tells it apart from the others where keys decide; the same wherever and whenever it is configured.
    pub id: u64,
    /// Its share beside those of the others, 1 to 1,000; 0 takes it out without taking it down.
    pub weight: u16,
    /// Requests under way at it at once. Over HTTP/1 each of them holds a connection.
    pub max_connections: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        // Enough for answers of a second at 16,000 requests per second.
        Self { id: 0, weight: 1, max_connections: 16_384 }
    }
}

/// Who is asked next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balance {
    /// In turn, each as often as its weight says and evenly spread.
    RoundRobin,
    /// The less loaded of two that are drawn by weight: nobody herds to the one idle server.
    #[default]
    LeastLoaded,
    /// The one that the request's [`Key`](super::Key) belongs to, while it has no more than 1.25 times its part of the
    /// requests under way; then the next one. Requests without a key as with [`LeastLoaded`](Self::LeastLoaded).
    Hash,
}

/// When a server is ejected for what its requests suffered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PassiveConfig {
    /// Failures in a row that eject it, at least 1.
    pub failures: u32,
    /// How long the first ejection lasts; the n-th in close succession lasts n times as long.
    pub ejection: Duration,
    /// No ejection lasts longer.
    pub max_ejection: Duration,
    /// The greatest share of the servers that may be ejected at once, 0 to 1: the rest would not bear the load.
    pub max_ejected: f64,
}

impl Default for PassiveConfig {
    fn default() -> Self {
        Self { failures: 5, ejection: Duration::from_secs(10), max_ejection: Duration::from_mins(5), max_ejected: 0.5 }
    }
}

/// How a server is asked how it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActiveConfig {
    /// From the start of one check to the next; each is moved by up to a tenth, so that checks of many servers spread.
    pub interval: Duration,
    /// An answer that takes longer is a failed check.
    pub timeout: Duration,
    /// What is asked for, with GET; `None` only connects.
    pub path: Option<String>,
    /// The Host header of the check; the server's address if `None`.
    pub host: Option<String>,
    /// Statuses of a server that is well.
    pub statuses: Vec<core::ops::RangeInclusive<u16>>,
    /// Good checks in a row that bring it back, at least 1.
    pub rise: u32,
    /// Failed checks in a row that take it down, at least 1.
    pub fall: u32,
}

impl Default for ActiveConfig {
    fn default() -> Self {
        // HAProxy's defaults are 2 s, rise 2 and fall 3.
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            path: Some("/".to_owned()),
            host: None,
            statuses: vec![200..=399],
            rise: 2,
            fall: 3,
        }
    }
}

/// What may be tried again, and how often.
#[derive(Clone, PartialEq, Debug)]
pub struct RetryConfig {
    /// Tries of one request altogether, 1 to [`MAX_TRIES`]; 1 for no retry.
    pub tries: u8,
    /// Retries that each request pays for, as a share, 0 to 1.
    pub share: f64,
    /// Retries per second that nobody pays for, so that a quiet proxy can retry too.
    pub min_per_s: u32,
    /// Statuses that are tried again like a failure, if the request may be.
    pub statuses: Vec<u16>,
}

/// Unused shares add up to this many retries: what a second of outage may ask for, not what a day of calm has saved.
const SAVED: u32 = 100;

/// The most tries of one request: each must find a server that it has not tried.
pub const MAX_TRIES: u8 = 6;

impl RetryConfig {
    /// What its budget allows.
    #[must_use]
    pub fn terms(&self) -> RetryTerms {
        RetryTerms { share: self.share, saved: SAVED, floor_per_s: self.min_per_s }
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self { tries: 3, share: 0.2, min_per_s: 10, statuses: Vec::new() }
    }
}
