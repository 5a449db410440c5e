//! What another process uses, read from `/proc`.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// CPU time of a process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// User and system time of all threads that ever ran, in the kernel's ticks: exact, but coarse (10 ms).
    pub accounted_ns: u64,
    /// Time on a CPU of the threads that are alive: fine, but it falls when a thread ends.
    pub scheduled_ns: u64,
    threads: u32,
}

/// Memory of a process at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Resident set.
    pub rss_bytes: u64,
    /// Resident set with shared pages divided by their users.
    pub pss_bytes: u64,
}

impl Cpu {
    /// Reads the figures of process `pid`.
    ///
    /// # Errors
    /// [`LoadError::Target`] if it is gone or not ours to look at.
    pub fn of(pid: u32) -> Result<Self, LoadError> {
        let read = || {
            let accounted_ns = accounted_ns(&fs::read_to_string(format!("/proc/{pid}/stat"))?)?;
            let (mut scheduled_ns, mut threads) = (0, 0);
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                // A thread may end between being listed and being read.
                if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
                    scheduled_ns += first_number(&text)?;
                    threads += 1;
                }
            }
            Ok(Self { accounted_ns, scheduled_ns, threads })
        };
        read().map_err(|source| LoadError::Target { pid, source })
    }

    /// CPU time used since `earlier`: the fine figure, or the coarse one if threads have ended in between.
    #[must_use]
    pub fn used_since(&self, earlier: &Self) -> u64 {
        let accounted_ns = self.accounted_ns.saturating_sub(earlier.accounted_ns);
        let scheduled_ns = self.scheduled_ns.checked_sub(earlier.scheduled_ns);
        scheduled_ns.filter(|_| self.threads >= earlier.threads).unwrap_or(accounted_ns)
    }
}

impl Memory {
    /// Reads the figures of process `pid`.
    ///
    /// # Errors
    /// [`LoadError::Target`] if it is gone or not ours to look at.
    pub fn of(pid: u32) -> Result<Self, LoadError> {
        let read = || {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            Ok(Self { rss_bytes: kib(&text, "Rss:")? * 1_024, pss_bytes: kib(&text, "Pss:")? * 1_024 })
        };
        read().map_err(|source| LoadError::Target { pid, source })
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`; the second field is a name in parentheses that may hold anything.
fn accounted_ns(stat: &str) -> io::Result<u64> {
    let fields = stat.rsplit_once(')').ok_or_else(unreadable)?.1;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let mut time = || times.next().and_then(Result::ok).ok_or_else(unreadable);
    let ticks = time()? + time()?;
    Ok(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

fn first_number(text: &str) -> io::Result<u64> {
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).ok_or_else(unreadable)
}

fn kib(text: &str, key: &str) -> io::Result<u64> {
    first_number(text.lines().find_map(|line| line.strip_prefix(key)).ok_or_else(unreadable)?)
}

fn unreadable() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 200 50 0 0 20 0 3 0 100 1 1";
        assert_eq!(accounted_ns(stat).unwrap(), 250 * (1_000_000_000 / rustix::param::clock_ticks_per_second()));
        assert!(accounted_ns("7 (a) S 1").is_err());
    }

    #[test]
    fn this_process_can_be_measured() {
        let pid = std::process::id();
        let (before, memory) = (Cpu::of(pid).unwrap(), Memory::of(pid).unwrap());
        assert!(memory.rss_bytes >= memory.pss_bytes && memory.pss_bytes > 0);
        assert!(Cpu::of(pid).unwrap().accounted_ns >= before.accounted_ns);
        assert!(matches!(Cpu::of(u32::MAX), Err(LoadError::Target { pid: u32::MAX, .. })));
    }

    #[test]
    fn ended_threads_leave_the_coarse_figure() {
        let before = Cpu { accounted_ns: 10, scheduled_ns: 12, threads: 3 };
        assert_eq!(Cpu { accounted_ns: 40, scheduled_ns: 44, threads: 3 }.used_since(&before), 32);
        assert_eq!(Cpu { accounted_ns: 40, scheduled_ns: 20, threads: 2 }.used_since(&before), 30);
        assert_eq!(Cpu { accounted_ns: 40, scheduled_ns: 2, threads: 3 }.used_since(&before), 30);
    }
}
