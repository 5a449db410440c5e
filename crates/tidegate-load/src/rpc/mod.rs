//! A measured run of calls against one `tidegate-rpc` server, from outside.
//!
//! [`run`] opens the connections, makes the calls of an [`RpcBenchConfig`] from one thread, and returns an
//! [`RpcBenchReport`]. Response times count from the intended times; a call that is shed counts from when it was made.

mod config;
mod tally;

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
use self::tally::{Tag, Tally, Use, per};
use crate::arrivals::{Arrivals, Process, Shape};
use crate::error::LoadError;
use crate::poll::{allow_open_files, prepare_thread, prioritise_thread};
use crate::target::{Cpu, Memory};

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
    let from = start + Duration::from_millis(config.warm_up_ms);
    let to = from + Duration::from_millis(config.duration_ms);
    let run = Run {
        config,
        engine,
        tally: Tally::new(Duration::from_micros(config.slo_us)),
        payload: vec![0; config.payload_bytes],
        from,
        to,
        readings: Vec::with_capacity(2),
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
    from: Instant,
    to: Instant,
    /// At the window's begin and end.
    readings: Vec<Reading>,
}

struct Reading {
    at: Instant,
    served: u64,
    generator_ns: u64,
    target: Option<Cpu>,
}

impl Run<'_> {
    fn open(mut self, rate_per_s: f64, start: Instant) -> Result<RpcBenchReport, LoadError> {
        let shape = Shape { process: Process::Poisson, rate_per_s, batch: 1, publishers: self.config.connections };
        let mut arrivals = Arrivals::new(shape, start, self.config.seed).peekable();
        let mut next = |before: Instant| arrivals.next_if(|arrival| arrival.at < before);
        let mut coming = next(self.to);
        while let Some(arrival) = coming {
            for _ in 0..CALLS_MAX {
                let now = clock::now();
                let Some(due) = coming.filter(|due| due.at <= now) else { break };
                self.call(due.publisher as usize, due.at);
                coming = next(self.to);
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
        while clock::now() < self.to && self.engine.open() > 0 {
            for line in std::mem::take(&mut self.tally.freed) {
                self.call(line, clock::now());
            }
            // Calls that ended at once are followed without waiting for others.
            let until = if self.tally.freed.is_empty() { self.to } else { Instant::ZERO };
            self.poll(until)?;
        }
        self.drain()
    }

    fn call(&mut self, line: usize, intended: Instant) {
        let called = clock::now();
        let tag = Tag { line, intended, called, is_measured: intended >= self.from && intended < self.to };
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
        self.read_when_due()
    }

    /// Reads what was used when the window begins and when it ends.
    fn read_when_due(&mut self) -> Result<(), LoadError> {
        let now = clock::now();
        let due = match self.readings.len() {
            0 => self.from,
            1 => self.to,
            _ => return Ok(()),
        };
        if now >= due {
            let target = self.config.pid.map(Cpu::of).transpose()?;
            let generator_ns = clock::process_cpu_ns();
            self.readings.push(Reading { at: now, served: self.tally.served, generator_ns, target });
        }
        Ok(())
    }

    fn drain(mut self) -> Result<RpcBenchReport, LoadError> {
        let end = self.to + Duration::from_millis(self.config.drain_ms);
        while self.readings.len() < 2 || (!self.tally.is_complete() && clock::now() < end) {
            let until = if self.readings.len() < 2 { self.to } else { end };
            self.poll(until)?;
        }
        let [from, to] = &self.readings[..] else { unreachable!("both edges were read above") };
        let target = match (from.target, to.target, self.config.pid) {
            (Some(before), Some(after), Some(pid)) => {
                let cpu_s = Duration::from_nanos(after.used_since(&before)).as_secs_f64();
                let each = per(to.served - from.served, cpu_s);
                let cpu_us_per_served = if each > 0.0 { 1e6 / each } else { 0.0 };
                Some(RpcTarget { cpu_s, cpu_us_per_served, memory: Memory::of(pid)? })
            }
            _ => None,
        };
        let generator = Duration::from_nanos(to.generator_ns - from.generator_ns);
        debug_assert!(to.at >= from.at);
        let open = self.engine.open() as u64;
        Ok(self.tally.report(self.config, Use { window: self.to.since(self.from), generator, open, target }))
    }
}
