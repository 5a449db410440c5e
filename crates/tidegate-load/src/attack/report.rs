//! What a run found, and whether the target withstood it.

use std::fs;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::{AttackConfig, Phase, Plan, Script, Tally, VictimReport};
use crate::error::LoadError;
use crate::target::Cpu;

/// The least share of good answers for the victim during an attack.
pub const GOODPUT_LEAST: f64 = 0.95;
/// The same after it: all but a straggler.
pub const GOODPUT_AFTER_LEAST: f64 = 0.99;
/// The most by which an attack may make the target's resident memory grow, in bytes.
pub const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// A run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttackReport {
    /// The script.
    pub script: Script,
    /// What [`Tally::attempts`] counts.
    pub unit: String,
    /// The target.
    pub target: String,
    /// TLS was spoken.
    pub is_tls: bool,
    /// Length of the attack.
    pub seconds: u64,
    /// Connections of the script at once, as far as the target let them.
    pub connections: usize,
    /// What the script did and was answered.
    pub attack: Tally,
    /// What the other tenant noticed.
    pub victim: VictimReport,
    /// The target's process, if it was named.
    pub process: Option<ProcessReport>,
    /// Whether that is good enough.
    pub objective: Objective,
}

/// What a target should reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "one answer for each objective, and all of them together")]
pub struct Objective {
    /// The victim's goodput during the attack was at least [`GOODPUT_LEAST`].
    pub keeps_goodput: bool,
    /// After it at least [`GOODPUT_AFTER_LEAST`].
    pub recovers: bool,
    /// Memory grew by at most [`GROWTH_BYTES_MAX`]; true as well if no process was named.
    pub bounds_memory: bool,
    /// All of these.
    pub reached: bool,
}

/// The target's process.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its resident memory at most before the attack.
    pub rss_bytes_before: u64,
    /// At most during it.
    pub rss_bytes_peak: u64,
    /// At the end of the run.
    pub rss_bytes_after: u64,
    /// From before to the peak.
    pub growth_bytes: u64,
    /// CPU time during the attack.
    pub cpu_ns: u64,
    /// Its open files at most during the attack; 0 where we may not look.
    pub open_files_peak: u64,
    /// And at the end of the run.
    pub open_files_after: u64,
}

impl AttackReport {
    pub(super) fn new(
        config: &AttackConfig,
        connections: usize,
        attack: Tally,
        victim: VictimReport,
        process: Option<ProcessReport>,
    ) -> Self {
        let objective = Objective::of(&victim.during, &victim.after, process.map(|process| process.growth_bytes));
        Self {
            script: config.script,
            unit: config.script.unit().to_owned(),
            target: config.target.to_string(),
            is_tls: config.is_tls,
            seconds: config.seconds,
            connections,
            attack,
            victim,
            process,
            objective,
        }
    }
}

impl Objective {
    fn of(during: &Phase, after: &Phase, growth_bytes: Option<u64>) -> Self {
        let keeps_goodput = during.goodput >= GOODPUT_LEAST;
        let recovers = after.goodput >= GOODPUT_AFTER_LEAST;
        let bounds_memory = growth_bytes.is_none_or(|bytes| bytes <= GROWTH_BYTES_MAX);
        Self { keeps_goodput, recovers, bounds_memory, reached: keeps_goodput && recovers && bounds_memory }
    }
}

/// Looks at a process again and again.
#[derive(Debug)]
pub(super) struct ProcessWatch {
    pid: u32,
    report: ProcessReport,
    /// CPU time at the start and at the latest look of the attack.
    cpu: Option<(Cpu, Cpu)>,
}

impl ProcessWatch {
    pub(super) fn new(pid: u32) -> Result<Self, LoadError> {
        let rss = resident_bytes(pid)?;
        let report = ProcessReport {
            rss_bytes_before: rss,
            rss_bytes_peak: rss,
            rss_bytes_after: rss,
            growth_bytes: 0,
            cpu_ns: 0,
            open_files_peak: 0,
            open_files_after: 0,
        };
        Ok(Self { pid, report, cpu: None })
    }

    pub(super) fn look(&mut self, plan: Plan, now: Instant) -> Result<(), LoadError> {
        let (rss, files) = (resident_bytes(self.pid)?, open_files(self.pid));
        let report = &mut self.report;
        if now < plan.attack {
            report.rss_bytes_before = report.rss_bytes_before.max(rss);
        } else if now < plan.attack_end {
            let cpu = Cpu::of(self.pid)?;
            self.cpu = Some((self.cpu.map_or(cpu, |(first, _)| first), cpu));
            report.open_files_peak = report.open_files_peak.max(files);
        }
        report.rss_bytes_peak = report.rss_bytes_peak.max(rss);
        (report.rss_bytes_after, report.open_files_after) = (rss, files);
        Ok(())
    }

    pub(super) fn report(&self) -> ProcessReport {
        let mut report = self.report;
        report.growth_bytes = report.rss_bytes_peak.saturating_sub(report.rss_bytes_before);
        report.cpu_ns = self.cpu.map_or(0, |(first, last)| last.used_since(&first));
        report
    }
}

/// From `statm`, which asks nothing of the process; `smaps_rollup` would hold it up while its memory is walked.
fn resident_bytes(pid: u32) -> Result<u64, LoadError> {
    let read = || {
        let text = fs::read_to_string(format!("/proc/{pid}/statm"))?;
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
    };
    Ok(read().map_err(|source| LoadError::Target { pid, source })? * rustix::param::page_size() as u64)
}

fn open_files(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(goodput: f64) -> Phase {
        Phase { goodput, ..Phase::default() }
    }

    #[test]
    fn every_objective_counts() {
        let reached = |during, after, growth| Objective::of(&phase(during), &phase(after), growth).reached;
        assert!(reached(0.95, 0.99, Some(GROWTH_BYTES_MAX)) && reached(1.0, 1.0, None));
        assert!(!reached(0.94, 1.0, None) && !reached(1.0, 0.98, None));
        assert!(!reached(1.0, 1.0, Some(GROWTH_BYTES_MAX + 1)));
    }

    #[test]
    fn this_process_can_be_watched() {
        let at = Instant::from_nanos;
        let plan = Plan { start: at(0), attack: at(10), attack_end: at(20), after: at(25), end: at(30) };
        let mut watch = ProcessWatch::new(std::process::id()).unwrap();
        for now in [5, 11, 19, 29] {
            watch.look(plan, at(now)).unwrap();
        }
        let report = watch.report();
        assert!(report.rss_bytes_before > 0 && report.open_files_peak > 0, "{report:?}");
        assert!(matches!(ProcessWatch::new(u32::MAX), Err(LoadError::Target { .. })));
    }
}
