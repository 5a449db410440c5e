//! The connections of one source of requests: what is under way on each, and until when.
//!
//! Which request begins when, and what its end means, is the caller's.

use std::collections::VecDeque;

use tidegate_core::Instant;

use super::answer;
use super::config::Source;
use super::connection::{Connection, Progress, READ_BYTES};
use super::made_up::MadeUp;
use super::socket::Dialler;
use super::tally::Ending;
use super::tls::Tls;
use crate::error::LoadError;
use crate::poll::{Interest, Poller, Ready};

const MS_NS: u64 = 1_000_000;

/// A connection, or room for one.
#[derive(Debug, Default)]
struct Slot {
    connection: Option<Connection>,
    /// The request under way.
    intended: Option<Instant>,
    /// Tells this connection's events from those of its predecessors.
    serial: u32,
    /// Tells this request's deadline from those before.
    asked: u64,
    /// Whether the connection has carried an answer.
    is_proven: bool,
    is_writing: bool,
}

/// A request that has ended; its slot is free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) slot: usize,
    pub(super) intended: Instant,
    pub(super) ending: Ending,
    /// Zero without an answer.
    pub(super) status: u16,
}

/// As many slots as the source has connections.
#[derive(Debug)]
pub(super) struct Slots {
    source: Source,
    request: Vec<u8>,
    made_up: MadeUp,
    tls: Option<Tls>,
    dialler: Dialler,
    poller: Poller,
    all: Vec<Slot>,
    /// In the order in which requests were begun, which is that of their intended times.
    deadlines: VecDeque<(Instant, usize, u64)>,
    scratch: Vec<u8>,
}

impl Slots {
    pub(super) fn new(source: &Source, dialler: Dialler, tls: Option<Tls>) -> Result<Self, LoadError> {
        let request = answer::request(source);
        Ok(Self {
            made_up: MadeUp::new(source, &request),
            request,
            tls,
            dialler,
            poller: Poller::new()?,
            all: (0..source.connections).map(|_| Slot::default()).collect(),
            deadlines: VecDeque::new(),
            scratch: vec![0; READ_BYTES],
            source: source.clone(),
        })
    }

    /// When a request that was due at `intended` has waited too long.
    pub(super) fn deadline(&self, intended: Instant) -> Instant {
        intended.plus_nanos(self.source.timeout_ms * MS_NS)
    }

    /// When the next of those under way has waited too long.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Waits for sockets, at most until then.
    pub(super) fn wait(&mut self, until: Instant) -> Result<(), LoadError> {
        self.poller.wait(until, 0)
    }

    /// What [`wait`](Self::wait) found, number `index` of it.
    pub(super) fn ready(&self, index: usize) -> Option<Ready> {
        self.poller.ready(index)
    }

    /// Begins a request in a slot that has none; it may end at once.
    pub(super) fn begin(&mut self, index: usize, intended: Instant) -> Result<Option<Ended>, LoadError> {
        let deadline = self.deadline(intended);
        let slot = &mut self.all[index];
        slot.intended = Some(intended);
        slot.asked += 1;
        self.deadlines.push_back((deadline, index, slot.asked));
        self.ask(index)
    }

    /// Sends the request of a slot, on a new connection if there is none.
    fn ask(&mut self, index: usize) -> Result<Option<Ended>, LoadError> {
        let slot = &mut self.all[index];
        if slot.connection.is_none() {
            let Ok(stream) = self.dialler.dial() else { return Ok(self.end(index, Ending::NotConnected, 0)) };
            let tls = self.tls.as_ref().map(Tls::connection).transpose()?;
            slot.serial = slot.serial.wrapping_add(1);
            (slot.is_proven, slot.is_writing) = (false, false);
            let connection = Connection::new(stream, tls, &self.source);
            self.poller.add(&connection, token(index, slot.serial)).map_err(LoadError::os("watch a socket"))?;
            slot.connection = Some(connection);
        }
        if let Some(connection) = &mut slot.connection {
            self.made_up.turn(&mut self.request);
            connection.ask(&self.source, &self.request);
        }
        self.advance(index, false)
    }

    /// A socket is ready.
    pub(super) fn on_ready(&mut self, ready: Ready) -> Result<Option<Ended>, LoadError> {
        let index = usize::try_from(ready.token & u64::from(u32::MAX)).expect("a token of ours");
        let is_current = u64::from(self.all[index].serial) == ready.token >> 32;
        if is_current { self.advance(index, ready.readable) } else { Ok(None) }
    }

    fn advance(&mut self, index: usize, readable: bool) -> Result<Option<Ended>, LoadError> {
        let slot = &mut self.all[index];
        let Some(connection) = &mut slot.connection else { return Ok(None) };
        match connection.advance(readable, &mut self.scratch) {
            Progress::Pending => {
                let wants_write = connection.wants_write();
                if wants_write != slot.is_writing {
                    slot.is_writing = wants_write;
                    let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
                    let token = token(index, slot.serial);
                    self.poller.modify(&*connection, token, interest).map_err(LoadError::os("watch a socket"))?;
                }
                Ok(None)
            }
            Progress::Answered(answer) => {
                slot.is_proven = true;
                if !answer.keeps_open || self.source.new_connections {
                    slot.connection = None;
                }
                Ok(self.end(index, Ending::of(answer.status), answer.status))
            }
            Progress::Failed(ending) => {
                // A server may close a connection that rests at the moment when it is used again. Nothing of the request
                // was answered, so it is asked once more, on a new connection, as every client does.
                let again =
                    slot.is_proven && !connection.has_begun() && matches!(ending, Ending::Closed | Ending::Reset);
                slot.connection = None;
                if again && slot.intended.is_some() { self.ask(index) } else { Ok(self.end(index, ending, 0)) }
            }
        }
    }

    /// A slot's request, if it has one, is over.
    fn end(&mut self, index: usize, ending: Ending, status: u16) -> Option<Ended> {
        let intended = self.all[index].intended.take()?;
        Some(Ended { slot: index, intended, ending, status })
    }

    /// Ends a request that has waited too long; to be called until there is none.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Ended> {
        while let Some((_, index, asked)) = self.deadlines.pop_front_if(|(at, ..)| *at <= now) {
            let slot = &mut self.all[index];
            if slot.asked == asked && slot.intended.is_some() {
                slot.connection = None;
                return self.end(index, Ending::TimedOut, 0);
            }
        }
        None
    }

    /// When those under way were due. They have no answer.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Instant> {
        self.all.iter_mut().filter_map(|slot| slot.intended.take())
    }
}

fn token(index: usize, serial: u32) -> u64 {
    index as u64 | u64::from(serial) << 32
}
