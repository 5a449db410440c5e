//! A connection on a shard's thread: socket, session, and bytes on their way.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;
use tidegate_core::Instant;

use super::poller::Interest;
use super::waiting::Ends;
use crate::machine::{SessionId, Tenant};

/// Buffers that are kept for the next connections that have something to say.
const SPARE_MAX: usize = 256;
/// A larger buffer is given back to the system.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// The server's side of a connection. An idle one holds no buffer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// From its hello on.
    pub(super) session: Option<SessionId>,
    pub(super) tenant: Tenant,
    /// The beginning of a frame whose end has not come yet.
    pub(super) unread: Vec<u8>,
    /// So long must `unread` be before it is worth another look.
    pub(super) need: usize,
    out: Vec<u8>,
    written: usize,
    pub(super) interest: Interest,
    /// In the list of those that have something to write, and since when.
    pub(super) dirty: Option<Instant>,
    pub(super) waiting: Ends,
}

/// Empty buffers that connections share.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    fn put(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < SPARE_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

impl Connection {
    /// A connection that was just accepted.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            session: None,
            tenant: Tenant::default(),
            unread: Vec::new(),
            need: 0,
            out: Vec::new(),
            written: 0,
            interest: Interest::READ,
            dirty: None,
            waiting: Ends::default(),
        }
    }

    /// The address of the other end; `None` over a Unix socket, or if it has gone.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        SockRef::from(&self.socket).peer_addr().ok()?.as_socket()
    }

    /// What to append answers to.
    pub(super) fn out(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        if self.out.capacity() == 0 {
            self.out = buffers.take();
        }
        &mut self.out
    }

    /// True if what it has to write gains nothing by waiting: no call of its own waits, or it has waited since before
    /// `held_until`.
    pub(super) fn is_ripe(&self, held_until: Instant) -> bool {
        self.waiting.is_empty() || self.dirty.is_some_and(|since| since <= held_until)
    }

    /// Bytes that the socket has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.written
    }

    /// Reads what is there: `None` if nothing is, 0 at the end of the stream.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        passing(rustix::net::recv(&self.socket, into, RecvFlags::empty()).map(|(_, bytes)| bytes))
    }

    /// Writes what the socket takes.
    pub(super) fn send(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        while self.written < self.out.len() {
            match passing(rustix::net::send(&self.socket, &self.out[self.written..], SendFlags::NOSIGNAL))? {
                Some(bytes) => self.written += bytes,
                None => return Ok(()),
            }
        }
        self.written = 0;
        buffers.put(std::mem::take(&mut self.out));
        Ok(())
    }

    /// Keeps the first `rest` bytes of what was read until the remainder comes.
    pub(super) fn keep(&mut self, rest: &[u8], buffers: &mut Buffers) {
        if rest.is_empty() {
            return;
        }
        if self.unread.capacity() == 0 {
            self.unread = buffers.take();
        }
        self.unread.extend_from_slice(rest);
    }

    /// Forgets the first `used` bytes of what was kept.
    pub(super) fn consume(&mut self, used: usize, buffers: &mut Buffers) {
        if used == self.unread.len() {
            buffers.put(std::mem::take(&mut self.unread));
        } else {
            self.unread.drain(..used);
        }
    }
}

/// `None` if the socket would have to be waited for.
pub(super) fn passing(outcome: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    use rustix::io::Errno;
    match outcome {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
