//! What a run of calls is.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::io::tcp::Address;
use tidegate_rpc::machine::{Priority, Tenant};

use crate::error::LoadError;

/// One run against one server. Every key has a default; times are in the unit that ends the key's name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcBenchConfig {
    /// The server's address: `127.0.0.1:4160`, or `unix:/run/work.sock`.
    pub address: Address,
    /// The method of a gRPC server that is called, `/package.Service/Method`, over HTTP/2 without TLS; empty calls a server
    /// that speaks `tidegate-rpc`.
    pub grpc: String,
    /// With `grpc`: a file that holds the request's message as it is encoded; none sends the empty one, which every type of
    /// message can be.
    pub message: Option<PathBuf>,
    /// The scheme whose client each connection has; the server must speak the same. With `grpc`, `none` is a caller without
    /// the layer, and the server may be any.
    pub scheme: Scheme,
    /// Connections, each with a client of its own.
    pub connections: u32,
    /// Open or closed loop.
    pub pace: RpcPace,
    /// Bytes of a request, without `grpc`.
    pub payload_bytes: usize,
    /// How much the calls matter.
    pub priority: Priority,
    /// Whom they belong to.
    pub tenant: Tenant,
    /// The objective: later answers, from the intended time on, are no goodput.
    pub slo_us: u64,
    /// Deadline that each call has, from its intended time on, and tells the server; 0 is none.
    pub deadline_us: u64,
    /// How long a call without a deadline is waited for.
    pub timeout_ms: u64,
    /// Same seed, same intended times.
    pub seed: u64,

    /// Load before the measured window.
    pub warm_up_ms: u64,
    /// The measured window.
    pub duration_ms: u64,
    /// After the window, how long to wait for what is outstanding; what comes later counts as unanswered.
    pub drain_ms: u64,

    /// CPU to bind the generator to; none leaves it to the kernel.
    pub cpu: Option<u32>,
    /// The generator's niceness, -20 to 19.
    pub nice: i32,
    /// Busy waiting before each intended time; buys punctuality with CPU.
    pub spin_us: u64,
    /// The server's process, for its CPU time and memory.
    pub pid: Option<u32>,
    /// A generator later than this at p99 makes the run invalid.
    pub lateness_us_p99_max: f64,
}

/// When to call.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RpcPace {
    /// Open loop: a Poisson process, its calls spread over the connections at random. What is late is called at once.
    Open {
        /// Calls per second of all connections together.
        rate_per_s: f64,
    },
    /// Closed loop, for the server's capacity only: each call is followed by the next at its end.
    Closed {
        /// Calls in flight, of all connections together.
        calls: u32,
    },
}

impl Default for RpcBenchConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 4160)).into(),
            grpc: String::new(),
            message: None,
            scheme: Scheme::default(),
            connections: 100,
            pace: RpcPace::Open { rate_per_s: 10_000.0 },
            payload_bytes: 32,
            priority: Priority::DEFAULT,
            tenant: Tenant::default(),
            slo_us: 1_000,
            deadline_us: 0,
            timeout_ms: 1_000,
            seed: 1,
            warm_up_ms: 500,
            duration_ms: 5_000,
            drain_ms: 1_000,
            cpu: None,
            nice: 0,
            spin_us: 50,
            pid: None,
            lateness_us_p99_max: 100.0,
        }
    }
}

impl RpcBenchConfig {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// [`LoadError::Config`] for the first key that describes no load.
    pub fn check(&self) -> Result<(), LoadError> {
        let require = |holds: bool, key, value: &dyn ToString, expected| {
            if holds { Ok(()) } else { Err(LoadError::Config { key, value: value.to_string(), expected }) }
        };
        require(self.connections > 0, "connections", &0, "at least 1")?;
        require(self.duration_ms > 0, "duration_ms", &0, "at least 1")?;
        require(self.timeout_ms > 0, "timeout_ms", &0, "at least 1")?;
        require(self.payload_bytes <= 16 << 20, "payload_bytes", &self.payload_bytes, "up to 16777216")?;
        let is_path = self.grpc.starts_with('/') && self.grpc.bytes().filter(|byte| *byte == b'/').count() == 2;
        require(self.grpc.is_empty() || is_path, "grpc", &self.grpc, "/package.Service/Method")?;
        require(self.message.is_none() || !self.grpc.is_empty(), "message", &"a file", "`grpc` beside it")?;
        match self.pace {
            RpcPace::Open { rate_per_s } => {
                require(rate_per_s.is_finite() && rate_per_s > 0.0, "rate_per_s", &rate_per_s, "a positive number")?;
            }
            RpcPace::Closed { calls } => require(calls > 0, "calls", &0, "at least 1")?,
        }
        self.scheme.check().map_err(|error| LoadError::Config {
            key: "scheme",
            value: self.scheme.name().into(),
            expected: match error {
                tidegate_rpc::config::Invalid::OutOfRange { key, .. } => key,
                _ => "settings that agree with each other",
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_load_and_survives_json() {
        let config = RpcBenchConfig::default();
        config.check().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<RpcBenchConfig>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<RpcBenchConfig>("{}").unwrap(), config);
    }

    #[test]
    fn what_is_no_load_is_refused() {
        for broken in [
            RpcBenchConfig { connections: 0, ..RpcBenchConfig::default() },
            RpcBenchConfig { pace: RpcPace::Open { rate_per_s: f64::NAN }, ..RpcBenchConfig::default() },
            RpcBenchConfig { pace: RpcPace::Closed { calls: 0 }, ..RpcBenchConfig::default() },
            RpcBenchConfig { grpc: "package.Service.Method".into(), ..RpcBenchConfig::default() },
            RpcBenchConfig { message: Some("hello.bin".into()), ..RpcBenchConfig::default() },
        ] {
            assert!(broken.check().is_err());
        }
    }
}
