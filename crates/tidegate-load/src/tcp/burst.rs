//! Many flows that write at once into a link that was idle, again and again.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tidegate_runtime::{clock, slice};

use super::connect;
use super::short::Shorts;
use crate::error::LoadError;
use crate::latency::{Latency, LatencySummary};
use crate::poll::{Poller, allow_open_files};

/// How long a round may take.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Which bursts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BurstConfig {
    /// The receiver's.
    pub address: SocketAddr,
    /// Flows that write at once.
    pub flows: usize,
    /// What each writes.
    pub bytes: usize,
    /// How often, each time on new connections.
    pub rounds: u32,
    /// The idle time before each round; connections are made before it.
    pub pause_ms: u64,
    /// Their congestion control; the kernel's own if empty.
    pub congestion: String,
}

impl Default for BurstConfig {
    fn default() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 5201));
        Self { address, flows: 16, bytes: 64 * 1024, rounds: 20, pause_ms: 100, congestion: String::new() }
    }
}

/// How long the bursts took.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BurstReport {
    /// Until the last flow of a round was through.
    pub rounds: LatencySummary,
    /// Until each flow was.
    pub flows: LatencySummary,
    /// Flows that broke off.
    pub failed: u64,
}

/// Writes the bursts.
///
/// # Errors
/// [`LoadError`] for a configuration that says nothing, or a receiver that is not there.
pub fn run(config: &BurstConfig) -> Result<BurstReport, LoadError> {
    if config.bytes == 0 || config.flows == 0 {
        return Err(LoadError::Config { key: "bytes", value: "0".into(), expected: "flows with bytes" });
    }
    allow_open_files(config.flows)?;
    slice::run_when_woken();
    let (mut shorts, mut rounds, mut idle) = (Shorts::new()?, Latency::default(), Poller::new()?);
    for _ in 0..config.rounds {
        let streams: Vec<_> =
            (0..config.flows).map(|_| connect(config.address, &config.congestion)).collect::<Result<_, _>>()?;
        idle.sleep(clock::now().plus_nanos(config.pause_ms.saturating_mul(1_000_000)))?;
        let due = clock::now();
        for stream in streams {
            shorts.start(stream, due, config.bytes)?;
        }
        let give_up = due.plus_nanos(PATIENCE_NS);
        while shorts.under_way() > 0 && clock::now() < give_up {
            shorts.turn(give_up)?;
        }
        rounds.record(due, clock::now());
        shorts.give_up();
    }
    Ok(BurstReport { rounds: rounds.summary(), flows: shorts.completion.summary(), failed: shorts.failed })
}
