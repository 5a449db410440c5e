//! The clocks. No other module of the workspace reads one.
//!
//! | clock | for | never for |
//! |---|---|---|
//! | [`now`] | every decision: tokens, timers, delays | dates |
//! | [`since_boot_ns`] | spans across processes of one boot, sleep of the machine included | decisions |
//! | [`realtime_ns`] | dates in messages, files and answers; comparing with the kernel's packet stamps | spans |
//! | [`process_cpu_ns`] | what a run cost | anything else |
//! | [`thread_cpu_ns`] | what work cost on a thread that others interrupt | anything else |
//!
//! All of them are answered by the vDSO or by one system call; none allocates or fails.

use rustix::time::{ClockId, Timespec, clock_gettime};
use tidegate_core::Instant;

/// This instant on the monotonic clock, which the machine's boot began and no clock setting moves.
#[must_use]
pub fn now() -> Instant {
    Instant::from_nanos(u64::try_from(total_ns(clock_gettime(ClockId::Monotonic))).unwrap_or(0))
}

/// Nanoseconds since the machine's boot, those that it slept included.
#[must_use]
pub fn since_boot_ns() -> u64 {
    u64::try_from(total_ns(clock_gettime(ClockId::Boottime))).unwrap_or(0)
}

/// Nanoseconds since 1970-01-01 UTC, as the machine believes; it may step in either direction.
#[must_use]
pub fn realtime_ns() -> i64 {
    total_ns(clock_gettime(ClockId::Realtime))
}

/// CPU time that all threads of this process have used, user and system together, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    u64::try_from(total_ns(clock_gettime(ClockId::ProcessCPUTime))).unwrap_or(0)
}

/// CPU time that this thread has used, user and system together, in nanoseconds. A system call, unlike [`now`].
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    u64::try_from(total_ns(clock_gettime(ClockId::ThreadCPUTime))).unwrap_or(0)
}

/// Saturates in the years 1677 and 2262.
fn total_ns(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_never_step_back_within_a_thread() {
        let (start, cpu) = (now(), process_cpu_ns());
        let spun = (0..10_000_u64).fold(0, |sum: u64, i| sum.wrapping_mul(31).wrapping_add(std::hint::black_box(i)));
        std::hint::black_box(spun);
        assert!(now() >= start && start > Instant::ZERO);
        assert!(process_cpu_ns() >= cpu);
    }

    #[test]
    fn the_real_time_clock_counts_from_1970() {
        // The repository is younger than 2026-01-01.
        assert!(realtime_ns() > 1_767_225_600_000_000_000);
    }
}
