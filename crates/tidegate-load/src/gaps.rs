//! When a machine ran nothing of ours: threads that go before all others and look whether they wake in time.
//!
//! One thread for each CPU, with real-time priority, sleeps again and again. What makes it late is none of the programs on
//! this machine: the host ran something else, or its kernel could not be interrupted. A gap is noted from the last time that
//! the thread was awake, after which it may have begun, to when it woke. It takes a few microseconds of each period.
//!
//! It ends with its standard input. The file has a line `FROM,TO` for each gap, in nanoseconds of the monotonic clock, and
//! ends with `over`.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::sched_getaffinity;
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::error::LoadError;
use crate::load_thread::StopSign;
use crate::poll::{prepare_thread, put_first};
use crate::spans;

/// Gaps of a CPU that are noted: 16 MiB. Beyond, the last one grows, so that what is judged with it is judged too mildly,
/// never too hard.
const GAPS_MAX: usize = 1 << 20;

/// What to look for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GapsConfig {
    /// The CPUs.
    pub cpus: Vec<u32>,
    /// How often each is looked at.
    pub every_us: u64,
    /// A gap is longer than this.
    pub above_us: u64,
    /// The file.
    pub out: PathBuf,
}

impl Default for GapsConfig {
    fn default() -> Self {
        Self { cpus: vec![0], every_us: 250, above_us: 50, out: "gaps.csv".into() }
    }
}

/// What was seen.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GapsReport {
    /// How often a thread looked.
    pub looks: u64,
    /// How often it was late.
    pub gaps: u64,
    /// The latest.
    pub late_us_max: f64,
    /// CPU time that looking took, in seconds.
    pub cpu_s: f64,
}

/// From and to.
pub(crate) type Gap = (Instant, Instant);

/// Looks until standard input ends.
///
/// # Errors
/// [`LoadError`] if there is no CPU or no period, if threads may not go first, or if the file cannot be written.
pub fn run(config: &GapsConfig) -> Result<GapsReport, LoadError> {
    if config.cpus.is_empty() {
        return Err(LoadError::Config { key: "cpus", value: "[]".into(), expected: "at least one" });
    }
    if config.every_us == 0 {
        return Err(LoadError::Config { key: "every_us", value: "0".into(), expected: "at least 1" });
    }
    let watch = Watch::on(&config.cpus, config.every_us, config.above_us)?;
    let ended = io::stdin().read_to_end(&mut Vec::new());
    let (report, gaps) = watch.finish()?;
    ended.map_err(LoadError::os("read standard input"))?;
    spans::write(&config.out, &gaps).map_err(LoadError::os("write the gaps"))?;
    Ok(report)
}

/// Threads that look.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: StopSign,
    threads: Vec<JoinHandle<Result<Looks, LoadError>>>,
}

/// How often one looked, the latest that it was, and when it was late.
type Looks = (u64, f64, Vec<Gap>);

impl Watch {
    /// On every CPU that this process may use, and as often as gaps that are noted are long: twice that is seen always,
    /// and looking more often would cost more than the load.
    pub(crate) fn start(above_us: u64) -> Result<Self, LoadError> {
        let may_use = sched_getaffinity(None).map_err(|error| LoadError::os("ask for the CPUs")(error.into()))?;
        let cpus: Vec<u32> = (0..1024).filter(|&cpu| may_use.is_set(cpu as usize)).collect();
        Self::on(&cpus, above_us.max(1), above_us)
    }

    fn on(cpus: &[u32], every_us: u64, above_us: u64) -> Result<Self, LoadError> {
        let stop = StopSign::default();
        let start = |&cpu: &u32| {
            let stop = stop.clone();
            std::thread::Builder::new().name(format!("gaps-{cpu}")).spawn(move || look(cpu, every_us, above_us, &stop))
        };
        let threads = cpus.iter().map(start).collect::<Result<_, _>>().map_err(LoadError::os("start a thread"))?;
        Ok(Self { stop, threads })
    }

    /// What they saw.
    pub(crate) fn finish(self) -> Result<(GapsReport, Vec<Gap>), LoadError> {
        self.stop.put_up();
        let (mut report, mut gaps) = (GapsReport::default(), Vec::new());
        for thread in self.threads {
            let (looks, late_us_max, seen) = thread.join().expect("such a thread has no panic")?;
            report.looks += looks;
            report.late_us_max = report.late_us_max.max(late_us_max);
            gaps.extend(seen);
        }
        report.gaps = gaps.len() as u64;
        report.cpu_s = Duration::from_nanos(clock::process_cpu_ns()).as_secs_f64();
        Ok((report, gaps))
    }
}

fn look(cpu: u32, every_us: u64, above_us: u64, stop: &StopSign) -> Result<Looks, LoadError> {
    prepare_thread(Some(cpu))?;
    put_first()?;
    let (mut looks, mut late_ns_max, mut gaps) = (0, 0, Vec::<Gap>::new());
    let mut awake = clock::now();
    while !stop.is_up() {
        let due = awake.plus_nanos(every_us * 1_000);
        #[expect(clippy::disallowed_methods, reason = "how late a real sleep ends is what is measured")]
        std::thread::sleep(Duration::from_micros(every_us));
        let woke = clock::now();
        let late_ns = woke.nanos_since(due);
        looks += 1;
        late_ns_max = late_ns.max(late_ns_max);
        if late_ns > above_us * 1_000 {
            let is_full = gaps.len() == GAPS_MAX;
            match gaps.last_mut().filter(|_| is_full) {
                Some(last) => last.1 = woke,
                None => gaps.push((awake, woke)),
            }
        }
        awake = woke;
    }
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
    Ok((looks, late_ns_max as f64 / 1e3, gaps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_looked_at_is_named() {
        let key = |config: GapsConfig| match run(&config) {
            Err(LoadError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(GapsConfig { cpus: Vec::new(), ..GapsConfig::default() }), "cpus");
        assert_eq!(key(GapsConfig { every_us: 0, ..GapsConfig::default() }), "every_us");
    }
}
