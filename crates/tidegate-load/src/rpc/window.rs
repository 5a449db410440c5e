//! The measured window of a run, and what was used in it.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::config::RpcBenchConfig;
use super::tally::{RpcBenchReport, RpcTarget, Tally, Use, per};
use crate::error::LoadError;
use crate::target::{Cpu, Memory};

/// From when to when calls count, and what was read at both edges.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// The server's process.
    pid: Option<u32>,
    readings: Vec<Reading>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    served: u64,
    generator_ns: u64,
    target: Option<Cpu>,
}

impl Window {
    /// That of a run whose first call is intended at `start`.
    pub(super) fn new(config: &RpcBenchConfig, start: Instant) -> Self {
        let from = start + Duration::from_millis(config.warm_up_ms);
        let to = from + Duration::from_millis(config.duration_ms);
        Self { from, to, pid: config.pid, readings: Vec::with_capacity(2) }
    }

    /// Whether a call counts that is intended then.
    pub(super) fn contains(&self, intended: Instant) -> bool {
        (self.from..self.to).contains(&intended)
    }

    /// Reads what was used when the window begins and when it ends; `served` calls were answered so far.
    pub(super) fn read_when_due(&mut self, served: u64) -> Result<(), LoadError> {
        let now = clock::now();
        let due = match self.readings.len() {
            0 => self.from,
            1 => self.to,
            _ => return Ok(()),
        };
        if now >= due {
            let target = self.pid.map(Cpu::of).transpose()?;
            let generator_ns = clock::process_cpu_ns();
            self.readings.push(Reading { at: now, served, generator_ns, target });
        }
        Ok(())
    }

    /// Whether it was read at both edges.
    pub(super) fn is_read(&self) -> bool {
        self.readings.len() == 2
    }

    /// The report of a run that left `open` connections, once the window was read.
    pub(super) fn report(
        &self,
        tally: &Tally,
        config: &RpcBenchConfig,
        open: u64,
    ) -> Result<RpcBenchReport, LoadError> {
        let [from, to] = &self.readings[..] else { unreachable!("asked for after both edges") };
        let target = match (from.target, to.target, self.pid) {
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
        Ok(tally.report(config, Use { window: self.to.since(self.from), generator, open, target }))
    }
}
