//! An epoll set, and a bell that other threads ring.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::thread::set_current_timer_slack;

use crate::error::RpcError;

/// Events taken from one look.
const EVENTS: usize = 1024;

/// What to be told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    pub(super) const READ: Self = Self { read: true, write: false };
    pub(super) const BOTH: Self = Self { read: true, write: true };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// What happened to what was added under `token`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u64,
    /// Bytes, the end of the stream, or an error.
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// An epoll set.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// Copies: the kernel's form holds a pointer and may not change threads.
    ready: Vec<Ready>,
}

impl Poller {
    pub(super) fn new() -> Result<Self, RpcError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(RpcError::os("create an epoll set"))?;
        Ok(Self { epoll, ready: Vec::with_capacity(EVENTS) })
    }

    pub(super) fn add(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), interest.flags())?)
    }

    pub(super) fn modify(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Forgets a socket; closing one does so as well.
    pub(super) fn remove(&self, socket: impl AsFd) {
        // It may be gone already.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Waits for anything to happen, at most for `at_most`; `None` waits as long as it takes.
    pub(super) fn wait(&mut self, at_most: Option<Duration>) -> Result<&[Ready], RpcError> {
        self.ready.clear();
        let timeout = at_most.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        });
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => self.ready.extend(events.iter().map(|event| {
                let (token, flags) = (event.data.u64(), event.flags);
                let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                Ready {
                    token,
                    readable: flags.intersects(epoll::EventFlags::IN | ended),
                    writable: flags.intersects(epoll::EventFlags::OUT),
                }
            })),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(RpcError::os("wait for sockets")(error)),
        }
        Ok(&self.ready)
    }

    /// Event `index` of the last wait.
    pub(super) fn ready(&self, index: usize) -> Option<Ready> {
        self.ready.get(index).copied()
    }
}

/// Asks the kernel not to delay the calling thread's timers to batch them.
pub(super) fn exact_timers() {
    // Without it waits end some 50 us later, which is no reason to fail.
    let _ = set_current_timer_slack(core::num::NonZeroU64::new(1));
}

/// Wakes a thread that waits in a [`Poller`].
#[derive(Debug)]
pub(super) struct Bell {
    wake: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Result<Self, RpcError> {
        let wake =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(RpcError::os("create an eventfd"))?;
        Ok(Self { wake, rung: AtomicBool::new(false) })
    }

    pub(super) fn ring(&self) {
        // Release: whoever hears it sees what was written before.
        self.rung.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// True once it has been rung.
    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
