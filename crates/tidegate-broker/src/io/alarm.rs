//! Wakes a shard's thread at the instant it asks for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tidegate_core::Instant;

/// A timer of the kernel, exact to its high-resolution clock.
///
/// It is set only when it would ring too late, not for every wait: setting a timer costs as much as reading a message,
/// more on a virtual machine. It may ring early, then; whoever wakes looks at the clock anyway.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    set_for: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer, set_for: None })
    }

    /// Makes it ring at `at` or earlier.
    pub(super) fn ring_by(&mut self, at: Instant) -> io::Result<()> {
        if self.set_for.is_some_and(|set_for| set_for <= at) {
            return Ok(());
        }
        // All zeros would turn it off.
        let ns = at.as_nanos().max(1);
        let it_value =
            Timespec { tv_sec: (ns / 1_000_000_000).cast_signed(), tv_nsec: (ns % 1_000_000_000).cast_signed() };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        self.set_for = Some(at);
        Ok(())
    }

    /// It rang.
    pub(super) fn on_ring(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.timer, &mut count);
        self.set_for = None;
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
