//! Waiting for sockets and for exact moments.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{CpuSet, gettid, sched_setaffinity, set_current_timer_slack};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::error::LoadError;

const TIMER: u64 = u64::MAX;
/// Events taken at once; the rest come with the next call.
const EVENTS_MAX: usize = 256;

/// An epoll set with a timer of its own: epoll's own timeouts are whole milliseconds on older kernels.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed: Instant,
    /// Copies: the kernel's form holds a pointer and may not change threads.
    ready: Vec<Ready>,
}

/// What happened to the connection that was registered under `token`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) readable: bool,
}

impl Ready {
    /// `None` if it was the timer.
    fn of(event: &Event) -> Option<Self> {
        let (token, flags) = (event.data.u64(), event.flags);
        let readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        (token != TIMER).then_some(Self { token, readable })
    }
}

/// What to be told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::ReadWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

impl Poller {
    pub(crate) fn new() -> Result<Self, LoadError> {
        let new = || -> io::Result<Self> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
            Ok(Self { epoll, timer, armed: Instant::MAX, ready: Vec::with_capacity(EVENTS_MAX) })
        };
        new().map_err(LoadError::os("create an epoll set with a timer"))
    }

    pub(crate) fn add(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), Interest::Read.flags())?)
    }

    pub(crate) fn modify(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), interest.flags())?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until something happens, but not beyond `until`; [`ready`](Self::ready) says what.
    ///
    /// In the last `spin_ns` before `until` it returns at once, so that a caller's loop meets the moment exactly.
    pub(crate) fn wait(&mut self, until: Instant, spin_ns: u64) -> Result<(), LoadError> {
        let sleep_until = until.minus_nanos(spin_ns);
        let is_due = sleep_until <= clock::now();
        let mut wait = || -> io::Result<()> {
            if !is_due && self.armed != sleep_until {
                timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &alarm(sleep_until))?;
                self.armed = sleep_until;
            }
            self.ready.clear();
            let timeout = is_due.then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
            let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
            match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok((events, _)) => self.ready.extend(events.iter().filter_map(Ready::of)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(())
        };
        wait().map_err(LoadError::os("wait for sockets"))
    }

    /// Event `index` of the last wait, while there is one.
    pub(crate) fn ready(&self, index: usize) -> Option<Ready> {
        self.ready.get(index).copied()
    }

    /// Sleeps to `until`, whatever sockets say meanwhile.
    pub(crate) fn sleep(&mut self, until: Instant) -> Result<(), LoadError> {
        while clock::now() < until {
            self.wait(until, 0)?;
        }
        Ok(())
    }
}

/// A timer's setting; zero disarms it, which is what "never" wants.
fn alarm(at: Instant) -> Itimerspec {
    let ns = if at == Instant::MAX { 0 } else { i64::try_from(at.as_nanos()).unwrap_or(i64::MAX) };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    Itimerspec { it_interval: never, it_value: Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 } }
}

/// Binds the calling thread to a CPU, if one is given, and asks the kernel not to delay its timers to batch them.
pub(crate) fn prepare_thread(cpu: Option<u32>) -> Result<(), LoadError> {
    let slack = set_current_timer_slack(core::num::NonZeroU64::new(1));
    slack.map_err(|error| LoadError::os("set the timer slack")(error.into()))?;
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(LoadError::Config { key: "cpus", value: cpu.to_string(), expected: "CPUs of this machine" });
    }
    set.set(cpu as usize);
    sched_setaffinity(None, &set).map_err(|error| LoadError::os("bind a thread to its CPU")(error.into()))
}

/// Gives the calling thread a niceness of its own, unless it is 0.
pub(crate) fn prioritise_thread(nice: i32) -> Result<(), LoadError> {
    if nice == 0 {
        return Ok(());
    }
    // Linux keeps niceness for each thread, and takes a thread's id here.
    setpriority_process(Some(gettid()), nice).map_err(|error| LoadError::os("set the niceness")(error.into()))
}

/// The calling thread goes before all that are not real-time ones too.
pub(crate) fn put_first() -> Result<(), LoadError> {
    use thread_priority::unix::{
        RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
    };
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), thread_priority::ThreadPriority::Min, policy)
        .map_err(|error| LoadError::os("make a thread a real-time one")(io::Error::other(error)))
}

/// Lets this process open `sockets` sockets, as far as the hard limit allows.
pub(crate) fn allow_open_files(sockets: usize) -> Result<(), LoadError> {
    // Beside the sockets: standard streams, epoll sets, timers, libraries.
    let wanted = sockets as u64 + 64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|maximum| maximum.max(wanted)) };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| LoadError::os("raise the limit of open files (ulimit -n)")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_wakes_never_before_its_moment() {
        let mut poller = Poller::new().unwrap();
        // A moment that is past needs no timer; one that is near is waited for.
        for ahead_ns in [0, 200_000] {
            let until = clock::now().plus_nanos(ahead_ns);
            poller.sleep(until).unwrap();
            assert!(clock::now() >= until);
        }
    }

    #[test]
    fn within_the_spin_it_returns_at_once() {
        let mut poller = Poller::new().unwrap();
        poller.wait(Instant::MAX, u64::MAX).unwrap();
        assert!(poller.ready(0).is_none());
    }
}
