//! A measured run of calls against one server, from outside: over `tidegate-rpc`'s own protocol, or of a gRPC method.
//!
//! [`run`] opens the connections, makes the calls of an [`RpcBenchConfig`] from one thread, and returns an
//! [`RpcBenchReport`]. Response times count from the intended times; a call that is shed counts from when it was made.

mod config;
mod grpc;
mod tally;
mod window;

use std::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::io::tcp::engine::Engine;
use tidegate_rpc::io::tcp::link::Ending;
use tidegate_rpc::io::tcp::{CallOptions, ClientConfig};
use tidegate_rpc::machine::any::AnyClient;
use tidegate_runtime::clock;

pub use self::config::{RpcBenchConfig, RpcPace};
pub use self::tally::{RpcBenchReport, RpcTarget, Sheds};
use self::tally::{Tag, Tally};
use self::window::Window;
use crate::arrivals::{Arrivals, Process, Shape};
use crate::error::LoadError;
use crate::poll::{allow_open_files, prepare_thread, prioritise_thread};

/// Calls made in one go before answers are looked at.
const CALLS_MAX: usize = 64;
/// From the opening of the last connection to the first call.
const LEAD: Duration = Duration::from_millis(20);

/// Runs `config`.
///
/// # Errors
/// [`LoadError`] if the configuration describes no load, or the server cannot be reached.
pub fn run(config: &RpcBenchConfig) -> Result<RpcBenchReport, LoadError> {
    config.check()?;
    allow_open_files(config.connections as usize)?;
    prepare_thread(config.cpu)?;
    prioritise_thread(config.nice)?;
    if !config.grpc.is_empty() {
        return grpc::run(config);
    }
    let mut rng = Rng::stream(config.seed, 1);
    let client = ClientConfig {
        tenant: config.tenant,
        payload_bytes_max: 16 << 20,
        calls_max: 1 << 20,
        timeout_ms: config.timeout_ms,
        seed: rng.u64(),
        ..ClientConfig::default()
    };
    let machine = |_| Scheme::client(&config.scheme, config.tenant, clock::now(), &mut rng);
    let engine = Engine::connect(&config.address, &client, config.connections as usize, machine)?;
    let start = clock::now() + LEAD;
    let run = Run {
        config,
        engine,
        tally: Tally::new(Duration::from_micros(config.slo_us)),
        payload: vec![0; config.payload_bytes],
        window: Window::new(config, start),
    };
    match config.pace {
        RpcPace::Open { rate_per_s } => run.open(rate_per_s, start),
        RpcPace::Closed { calls } => run.closed(calls),
    }
}

struct Run<'a> {
    config: &'a RpcBenchConfig,
    engine: Engine<AnyClient, Tag>,
    tally: Tally,
    payload: Vec<u8>,
    window: Window,
}

impl Run<'_> {
    fn open(mut self, rate_per_s: f64, start: Instant) -> Result<RpcBenchReport, LoadError> {
        let shape = Shape { process: Process::Poisson, rate_per_s, batch: 1, publishers: self.config.connections };
        let mut arrivals = Arrivals::new(shape, start, self.config.seed).peekable();
        let mut next = |before: Instant| arrivals.next_if(|arrival| arrival.at < before);
        let mut coming = next(self.window.to);
        while let Some(arrival) = coming {
            for _ in 0..CALLS_MAX {
                let now = clock::now();
                let Some(due) = coming.filter(|due| due.at <= now) else { break };
                self.call(due.publisher as usize, due.at);
                coming = next(self.window.to);
            }
            // Only a closed loop asks who is free.
            self.tally.freed.clear();
            self.poll(coming.map_or(arrival.at, |coming| coming.at))?;
        }
        self.drain()
    }

    /// A call's end makes room for the next on the same connection.
    fn closed(mut self, calls: u32) -> Result<RpcBenchReport, LoadError> {
        let lines = self.config.connections as usize;
        self.tally.freed = (0..calls as usize).map(|call| call % lines).collect();
        while clock::now() < self.window.to && self.engine.open() > 0 {
            for line in std::mem::take(&mut self.tally.freed) {
                self.call(line, clock::now());
            }
            // Calls that ended at once are followed without waiting for others.
            let until = if self.tally.freed.is_empty() { self.window.to } else { Instant::ZERO };
            self.poll(until)?;
        }
        self.drain()
    }

    fn call(&mut self, line: usize, intended: Instant) {
        let called = clock::now();
        let tag = Tag { line, intended, called, is_measured: self.window.contains(intended) };
        self.tally.on_call(&tag);
        let deadline = (self.config.deadline_us > 0).then(|| intended + Duration::from_micros(self.config.deadline_us));
        let options = CallOptions { priority: self.config.priority, deadline };
        let tally = &mut self.tally;
        let mut end = |tag: Tag, ending: Ending<'_>| tally.on_end(&tag, ending.map(drop), clock::now());
        self.engine.call(line, &self.payload, &options, tag, &mut end);
    }

    fn poll(&mut self, until: Instant) -> Result<(), LoadError> {
        let spin = Duration::from_micros(self.config.spin_us);
        let tally = &mut self.tally;
        let mut end = |tag: Tag, ending: Ending<'_>| tally.on_end(&tag, ending.map(drop), clock::now());
        self.engine.poll(until, spin, &mut end)?;
        self.window.read_when_due(self.tally.served)
    }

    fn drain(mut self) -> Result<RpcBenchReport, LoadError> {
        let end = self.window.to + Duration::from_millis(self.config.drain_ms);
        while !self.window.is_read() || (!self.tally.is_complete() && clock::now() < end) {
            let until = if self.window.is_read() { end } else { self.window.to };
            self.poll(until)?;
        }
        self.window.report(&self.tally, self.config, self.engine.open() as u64)
    }
}
