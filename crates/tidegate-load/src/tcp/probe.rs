//! Requests at even times on one connection, whether earlier ones were answered or not.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::{REQUEST_BYTES, prepare_measuring_thread};
use crate::error::LoadError;
use crate::poll::{Interest, Poller};

/// How long the last requests may take.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Requests that wait for their answers; beyond, the connection counts as dead.
const WAITING_MAX: usize = 1 << 20;

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) from: Instant,
    pub(super) until: Instant,
    pub(super) every_ns: u64,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// When it should have been sent.
    pub(super) due: Instant,
    /// When the kernel had it: later if no processor was free for this thread, which is not the network's doing.
    pub(super) sent: Instant,
    /// When the answer was there.
    pub(super) at: Instant,
}

/// What one probe saw.
#[derive(Debug, Default)]
pub(super) struct Probed {
    pub(super) answered: Vec<Answered>,
    /// Requests without an answer.
    pub(super) unanswered: u64,
}

/// Sends and waits for the answers.
pub(super) fn probe(stream: &TcpStream, times: Times) -> Result<Probed, LoadError> {
    prepare_measuring_thread()?;
    stream.set_nodelay(true).map_err(LoadError::os("configure a socket"))?;
    let mut poller = Poller::new()?;
    poller.add(stream, 0).map_err(LoadError::os("watch a socket"))?;
    let mut line = Line { stream, unsent: 0, unread: 0, waiting: VecDeque::new(), probed: Probed::default() };
    let mut next = times.from;
    loop {
        let now = clock::now();
        while next <= now && next < times.until && line.waiting.len() < WAITING_MAX {
            line.waiting.push_back((next, now));
            line.unsent += REQUEST_BYTES;
            next = next.plus_nanos(times.every_ns);
        }
        line.send()?;
        let is_over = next >= times.until;
        if is_over && (line.waiting.is_empty() || now > times.until.plus_nanos(PATIENCE_NS)) {
            break;
        }
        let interest = if line.unsent > 0 { Interest::ReadWrite } else { Interest::Read };
        poller.modify(stream, 0, interest).map_err(LoadError::os("watch a socket"))?;
        poller.wait(if is_over { now.plus_nanos(PATIENCE_NS / 100) } else { next }, 0)?;
        if poller.ready(0).is_some_and(|ready| ready.readable) {
            line.read()?;
        }
    }
    line.probed.unanswered = line.waiting.len() as u64;
    Ok(line.probed)
}

struct Line<'a> {
    stream: &'a TcpStream,
    unsent: usize,
    /// Bytes of an answer that has not come in whole.
    unread: usize,
    waiting: VecDeque<(Instant, Instant)>,
    probed: Probed,
}

impl Line<'_> {
    fn send(&mut self) -> Result<(), LoadError> {
        let requests = [0; REQUEST_BYTES * 16];
        while self.unsent > 0 {
            match self.stream.write(&requests[..self.unsent.min(requests.len())]) {
                Ok(bytes) => self.unsent -= bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(LoadError::os("send a request")(error)),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), LoadError> {
        let mut answers = [0; REQUEST_BYTES * 64];
        match self.stream.read(&mut answers) {
            Ok(0) => return Err(LoadError::os("read an answer")(ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => self.unread += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(LoadError::os("read an answer")(error)),
        }
        let now = clock::now();
        for _ in 0..self.unread / REQUEST_BYTES {
            let first = self.waiting.pop_front();
            self.probed.answered.extend(first.map(|(due, sent)| Answered { due, sent, at: now }));
        }
        self.unread %= REQUEST_BYTES;
        Ok(())
    }
}
