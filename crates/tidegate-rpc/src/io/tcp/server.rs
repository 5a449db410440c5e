//! A server of `tidegate-rpc`: one thread, one listener and one machine for each shard.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::address::Address;
use super::config::ServerConfig;
use super::listener::Listeners;
use super::poller::Bell;
use super::shard::{Parts, Shard};
use crate::error::RpcError;
use crate::machine::{Priority, Server, Tenant};

/// The handler did not do what was asked; the caller gets what it has written into the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the handler failed")]
pub struct HandlerFailed;

/// What a service does with a call.
///
/// It runs on the shard's thread: while it does, the shard does nothing else. A panic counts as [`HandlerFailed`].
pub trait Handler {
    /// Appends the answer to `payload` to the empty `answer`.
    ///
    /// # Errors
    /// [`HandlerFailed`] if it could not do it.
    fn handle(&mut self, payload: &[u8], answer: &mut Vec<u8>) -> Result<(), HandlerFailed>;

    /// Whom the calls of a connection from `peer` belong to, whatever it claims; a peer has no address over a Unix socket. By
    /// default that is left to [`ServerConfig::claims`]. Asked once for each connection.
    fn tenant(&mut self, peer: Option<SocketAddr>) -> Option<Tenant> {
        let _ = peer;
        None
    }

    /// How much a call matters, whatever it claims. By default that is left to [`ServerConfig::claims`]. Asked for each call
    /// that arrives: it should take far less than a call.
    fn priority(&mut self, payload: &[u8]) -> Option<Priority> {
        let _ = payload;
        None
    }
}

impl<F: FnMut(&[u8], &mut Vec<u8>) -> Result<(), HandlerFailed>> Handler for F {
    fn handle(&mut self, payload: &[u8], answer: &mut Vec<u8>) -> Result<(), HandlerFailed> {
        self(payload, answer)
    }
}

/// What a shard has done so far, and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct ShardStats {
    /// Calls whose handler ran to the end.
    pub served: u64,
    /// Calls whose handler failed.
    pub failed: u64,
    /// Calls shed, at arrival or before they were started.
    pub shed: u64,
    /// Calls whose caller went away while they waited.
    pub cancelled: u64,
    /// Connections taken.
    pub accepted: u64,
    /// Connections closed at once for want of room.
    pub refused: u64,
    /// Connections closed for what the peer did.
    pub violations: u64,
    /// Connections at present.
    pub connections: u64,
    /// Calls that wait at present.
    pub waiting: u64,
    /// Age of the oldest of them, in nanoseconds.
    pub queueing_delay_ns: u64,
}

/// The same where other threads can read it. Only the shard's thread writes, so relaxed stores lose nothing; figures read
/// together may be some calls apart.
#[derive(Debug, Default)]
pub(super) struct SharedStats([AtomicU64; 10]);

impl SharedStats {
    pub(super) fn publish(&self, stats: &ShardStats) {
        for (cell, value) in self.0.iter().zip(stats.figures()) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    fn read(&self) -> ShardStats {
        ShardStats::of(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

impl ShardStats {
    fn figures(&self) -> [u64; 10] {
        let Self { served, failed, shed, cancelled, accepted, .. } = *self;
        let Self { refused, violations, connections, waiting, queueing_delay_ns, .. } = *self;
        [served, failed, shed, cancelled, accepted, refused, violations, connections, waiting, queueing_delay_ns]
    }

    fn of(figures: [u64; 10]) -> Self {
        let [served, failed, shed, cancelled, accepted, refused, violations, connections, waiting, queueing_delay_ns] =
            figures;
        Self { served, failed, shed, cancelled, accepted, refused, violations, connections, waiting, queueing_delay_ns }
    }
}

struct Running {
    bell: Arc<Bell>,
    stats: Arc<SharedStats>,
    thread: Option<JoinHandle<Result<(), RpcError>>>,
}

/// A running server. Dropping it stops it.
pub struct RpcServer {
    /// Dropped when the shards have ended; a Unix socket's file goes with them.
    listeners: Listeners,
    shards: Vec<Running>,
}

impl RpcServer {
    /// Starts the shards; `parts` makes the machine and the handler of each.
    ///
    /// # Errors
    /// [`RpcError`] if the configuration is wrong, the address is taken, or the system is out of something.
    pub fn start<S, H>(config: &ServerConfig, mut parts: impl FnMut(usize) -> (S, H)) -> Result<Self, RpcError>
    where
        S: Server + Send + 'static,
        H: Handler + Send + 'static,
    {
        config.check()?;
        let refused = |address: &Address| {
            let address = address.clone();
            move |source| RpcError::Listen { address, source }
        };
        let listeners = Listeners::new(&config.address, config.unix_mode).map_err(refused(&config.address))?;
        // Whatever fails from here on ends the shards that run.
        let mut running = Self { listeners, shards: Vec::with_capacity(config.shards) };
        for number in 0..config.shards {
            let listener = running.listeners.next().map_err(refused(&config.address))?;
            let (machine, handler) = parts(number);
            let (bell, stats) = (Arc::new(Bell::new()?), Arc::new(SharedStats::default()));
            let parts = Parts { machine, handler, listener, bell: Arc::clone(&bell), stats: Arc::clone(&stats) };
            let shard = Shard::new(config.clone(), parts)?;
            let thread = std::thread::Builder::new()
                .name(format!("rpc-{number}"))
                .spawn(move || shard.run())
                .map_err(RpcError::os("start a thread"))?;
            running.shards.push(Running { bell, stats, thread: Some(thread) });
        }
        Ok(running)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.listeners.address()
    }

    /// The figures of each shard.
    #[must_use]
    pub fn stats(&self) -> Vec<ShardStats> {
        self.shards.iter().map(|shard| shard.stats.read()).collect()
    }

    /// Stops it: calls that run are ended and answered, those that wait are not.
    ///
    /// # Errors
    /// [`RpcError`] if a shard had ended early, and why.
    pub fn stop(mut self) -> Result<(), RpcError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), RpcError> {
        for shard in &self.shards {
            shard.bell.ring();
        }
        let mut outcome = Ok(());
        for thread in self.shards.iter_mut().filter_map(|shard| shard.thread.take()) {
            outcome = outcome.and(thread.join().expect("handlers' panics are caught, and shards have none"));
        }
        outcome
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Whoever wants to know why a shard ended calls `stop`.
            let _ = self.end();
        }
    }
}

/// Microseconds of a configuration as a span.
pub(super) fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}
