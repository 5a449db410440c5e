//! What server and client can be told, with the bounds that everything has.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_wire::rpc::PAYLOAD_BYTES_MAX;

use super::address::Address;
use crate::error::RpcError;
use crate::machine::{Claims, Priority, Tenant};

/// A server's settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Where it listens.
    pub address: Address,
    /// Permissions of a Unix socket's file: whoever may write to it may call. By default only its owner.
    pub unix_mode: u32,
    /// Threads, each with its own listener, connections and machine; 1 to 1024.
    pub shards: usize,
    /// How far clients are trusted that claim a tenant or a priority. By default no further than strangers: a server of one's
    /// own services says `trusted`. What [`Handler`](super::Handler) knows counts before that.
    pub claims: Claims,
    /// Largest payload of a request or an answer, in bytes; up to 16 MiB.
    pub payload_bytes_max: u32,
    /// Connections of one shard; one more is closed at once.
    pub connections_max: usize,
    /// Admitted calls of one shard that wait for its thread; one more is shed as `server_full`.
    pub waiting_max: usize,
    /// Bytes of payloads of those calls; a call beyond is shed as `server_full`.
    pub waiting_bytes_max: usize,
    /// Answers that a connection has not taken, in bytes: beyond, nothing more is read from it; beyond twice as much, it is
    /// closed.
    pub unsent_bytes_max: usize,
    /// While calls wait, sockets are looked at this often, between two handlers: what arrives is stamped and, if it must be,
    /// shed at most this much later, plus one handler. In microseconds.
    pub poll_every_us: u64,
    /// While further calls of its connection wait, an answer is held for theirs so long, in microseconds, and so shares
    /// their write; a shed is never held.
    pub hold_us: u64,
    /// An idle shard looks at its sockets without sleeping for so long, in microseconds; 0 sleeps at once.
    pub busy_poll_us: u64,
    /// An idle shard does not wake for its machine's timers more often than this, in microseconds.
    pub idle_tick_us: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into(),
            unix_mode: 0o600,
            shards: 1,
            claims: Claims::default(),
            payload_bytes_max: 1 << 20,
            connections_max: 16_384,
            waiting_max: 16_384,
            waiting_bytes_max: 256 << 20,
            unsent_bytes_max: 4 << 20,
            // A look costs some microseconds of system calls: at 50 they are shared by several short calls, and a shed is
            // still told well within the objective of services that need it.
            poll_every_us: 50,
            // Ten short calls share a write then, whose system call costs as much as one of them.
            hold_us: 100,
            busy_poll_us: 0,
            idle_tick_us: 50,
        }
    }
}

impl ServerConfig {
    /// # Errors
    /// [`RpcError::Config`] names the first key out of its range.
    pub fn check(&self) -> Result<(), RpcError> {
        let wrong = |key, found: usize, expected| Err(RpcError::Config { key, found: found as u64, expected });
        if !(1..=1024).contains(&self.shards) {
            return wrong("shards", self.shards, "1 to 1024");
        }
        if self.unix_mode > 0o777 {
            return Err(RpcError::Config {
                key: "unix_mode",
                found: self.unix_mode.into(),
                expected: "0 to 0o777, which is 511",
            });
        }
        check_payload(self.payload_bytes_max)?;
        for (key, value) in [("connections_max", self.connections_max), ("waiting_max", self.waiting_max)] {
            if !(1..=1 << 24).contains(&value) {
                return wrong(key, value, "1 to 16777216");
            }
        }
        if self.unsent_bytes_max < self.payload_bytes_max as usize {
            return wrong("unsent_bytes_max", self.unsent_bytes_max, "at least payload_bytes_max");
        }
        if self.waiting_bytes_max < self.payload_bytes_max as usize {
            return wrong("waiting_bytes_max", self.waiting_bytes_max, "at least payload_bytes_max");
        }
        Ok(())
    }
}

/// A client's settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Whom its calls belong to.
    pub tenant: Tenant,
    /// Largest payload of a request or an answer, in bytes; up to 16 MiB.
    pub payload_bytes_max: u32,
    /// Calls that wait or are in flight; one more fails as `client_full`.
    pub calls_max: usize,
    /// Bytes of calls that wait, or that the socket has not taken; a call beyond fails as `client_full`.
    pub unsent_bytes_max: usize,
    /// How long a call without a deadline of its own may take, in milliseconds; at least 1. No call waits for ever.
    pub timeout_ms: u64,
    /// The first pause before a lost connection is opened again, in milliseconds. Each next one is twice as long.
    pub reconnect_ms_min: u64,
    /// The longest such pause, in milliseconds.
    pub reconnect_ms_max: u64,
    /// For the machine's random numbers.
    pub seed: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            tenant: Tenant::default(),
            payload_bytes_max: 1 << 20,
            calls_max: 65_536,
            unsent_bytes_max: 64 << 20,
            timeout_ms: 10_000,
            reconnect_ms_min: 10,
            reconnect_ms_max: 1_000,
            seed: 1,
        }
    }
}

impl ClientConfig {
    /// # Errors
    /// [`RpcError::Config`] names the first key out of its range.
    pub fn check(&self) -> Result<(), RpcError> {
        check_payload(self.payload_bytes_max)?;
        let wrong = |key, found, expected| Err(RpcError::Config { key, found, expected });
        if !(1..=1 << 24).contains(&self.calls_max) {
            return wrong("calls_max", self.calls_max as u64, "1 to 16777216");
        }
        if self.timeout_ms == 0 {
            return wrong("timeout_ms", 0, "at least 1");
        }
        if self.reconnect_ms_min == 0 || self.reconnect_ms_min > self.reconnect_ms_max {
            return wrong("reconnect_ms_min", self.reconnect_ms_min, "1 to reconnect_ms_max");
        }
        Ok(())
    }

    /// When a call made at `now` without a deadline ends.
    pub(super) fn timeout(&self, now: Instant) -> Instant {
        now + Duration::from_millis(self.timeout_ms)
    }
}

fn check_payload(bytes_max: u32) -> Result<(), RpcError> {
    if !(1..=PAYLOAD_BYTES_MAX).contains(&bytes_max) {
        let found = u64::from(bytes_max);
        return Err(RpcError::Config { key: "payload_bytes_max", found, expected: "1 to 16777216" });
    }
    Ok(())
}

/// What a caller may say about one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOptions {
    /// How much it matters.
    pub priority: Priority,
    /// When its answer becomes worthless; `None` gives it the client's default time, of which the server is not told.
    pub deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_nonsense_is_named() {
        assert!(ServerConfig::default().check().is_ok() && ClientConfig::default().check().is_ok());
        let key = |config: ServerConfig| match config.check() {
            Err(RpcError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(ServerConfig { shards: 0, ..Default::default() }), "shards");
        assert_eq!(key(ServerConfig { payload_bytes_max: (16 << 20) + 1, ..Default::default() }), "payload_bytes_max");
        assert_eq!(key(ServerConfig { unsent_bytes_max: 9, ..Default::default() }), "unsent_bytes_max");
        assert!(ClientConfig { timeout_ms: 0, ..Default::default() }.check().is_err());
        assert!(ClientConfig { reconnect_ms_min: 2_000, ..Default::default() }.check().is_err());
    }
}
