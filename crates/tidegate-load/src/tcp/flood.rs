//! Datagrams at a rate, whatever becomes of them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::error::LoadError;
use crate::poll::Poller;

/// How often those that are due are sent.
const EVERY_NS: u64 = 250_000;

/// Which datagrams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FloodConfig {
    /// Their payload, in megabits a second.
    pub rate_mbps: u32,
    /// Payload of each.
    pub bytes: usize,
}

impl Default for FloodConfig {
    fn default() -> Self {
        Self { rate_mbps: 100, bytes: 1_448 }
    }
}

/// What became of them here.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FloodReport {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that the kernel had no room for.
    pub refused: u64,
}

/// Sends until `until`.
pub(super) fn flood(config: &FloodConfig, address: SocketAddr, until: Instant) -> Result<FloodReport, LoadError> {
    if config.rate_mbps == 0 || config.bytes == 0 {
        return Err(LoadError::Config { key: "flood", value: "0".into(), expected: "a rate and bytes" });
    }
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).map_err(LoadError::os("bind a UDP socket"))?;
    let configure = socket.set_nonblocking(true).and_then(|()| socket.connect(address));
    configure.map_err(LoadError::os("configure a socket"))?;
    let (payload, mut report, mut poller) = (vec![0; config.bytes], FloodReport::default(), Poller::new()?);
    let start = clock::now();
    let mut next = start;
    while next < until {
        poller.sleep(next)?;
        let due_bytes = clock::now().nanos_since(start) * u64::from(config.rate_mbps) / 8_000;
        while (report.sent + report.refused) * (config.bytes as u64) < due_bytes {
            match socket.send(&payload) {
                Ok(_) => report.sent += 1,
                Err(_) => report.refused += 1,
            }
        }
        next = next.plus_nanos(EVERY_NS);
    }
    Ok(report)
}
