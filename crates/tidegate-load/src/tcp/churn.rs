//! Short flows at even times: each connects, sends its bytes and ends.

use std::net::{SocketAddr, TcpStream};

use rustix::net::SocketFlags;
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::{clock, slice};

use super::short::Shorts;
use super::socket_for;
use crate::error::LoadError;
use crate::latency::LatencySummary;

/// How long the last flows may take.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Which short flows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChurnConfig {
    /// New ones per second, evenly.
    pub per_s: u32,
    /// What each sends.
    pub bytes: usize,
    /// Short flows under way at most; more are not started.
    pub at_once: usize,
}

impl Default for ChurnConfig {
    fn default() -> Self {
        Self { per_s: 1_000, bytes: 20_000, at_once: 4_096 }
    }
}

/// What became of them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ChurnReport {
    /// From when one should have begun until the receiver had it all.
    pub completion: LatencySummary,
    /// Flows that broke off or did not end in time.
    pub failed: u64,
    /// Flows not started, as too many were under way.
    pub left_out: u64,
}

/// Makes short flows between `from` and `until`.
pub(super) fn churn(
    config: &ChurnConfig,
    address: SocketAddr,
    congestion: &str,
    from: Instant,
    until: Instant,
) -> Result<ChurnReport, LoadError> {
    if config.per_s == 0 || config.bytes == 0 {
        return Err(LoadError::Config { key: "churn", value: "0".into(), expected: "at least one flow of one byte" });
    }
    slice::run_when_woken();
    let every_ns = 1_000_000_000 / u64::from(config.per_s);
    let (mut shorts, mut next, mut left_out) = (Shorts::new()?, from, 0);
    loop {
        let now = clock::now();
        while next <= now && next < until {
            if shorts.under_way() < config.at_once {
                match begin(address, congestion) {
                    Ok(stream) => shorts.start(stream, next, config.bytes)?,
                    Err(_) => shorts.failed += 1,
                }
            } else {
                left_out += 1;
            }
            next = next.plus_nanos(every_ns);
        }
        let is_over = next >= until;
        if is_over && (shorts.under_way() == 0 || now >= until.plus_nanos(PATIENCE_NS)) {
            break;
        }
        shorts.turn(if is_over { until.plus_nanos(PATIENCE_NS) } else { next })?;
    }
    shorts.give_up();
    Ok(ChurnReport { completion: shorts.completion.summary(), failed: shorts.failed, left_out })
}

/// A connection that is being made.
fn begin(address: SocketAddr, congestion: &str) -> Result<TcpStream, LoadError> {
    let stream = socket_for(address, congestion, SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&stream, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(stream),
        Err(error) => Err(LoadError::Connect { address, source: error.into() }),
    }
}
