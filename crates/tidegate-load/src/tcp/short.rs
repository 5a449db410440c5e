//! Flows that send some bytes and end: many at once in one thread.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use slab::Slab;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::error::LoadError;
use crate::latency::Latency;
use crate::poll::{Interest, Poller};

/// What is offered at once.
const WRITE_BYTES: usize = 64 * 1024;

/// Flows under way, and how the others ended.
#[derive(Debug)]
pub(super) struct Shorts {
    poller: Poller,
    flows: Slab<Short>,
    bytes: Vec<u8>,
    /// From when a flow was due until the receiver had all of it and said so by closing.
    pub(super) completion: Latency,
    /// Flows that broke off.
    pub(super) failed: u64,
}

#[derive(Debug)]
struct Short {
    stream: TcpStream,
    due: Instant,
    unsent: usize,
}

impl Shorts {
    pub(super) fn new() -> Result<Self, LoadError> {
        let (poller, flows, bytes) = (Poller::new()?, Slab::new(), vec![0; WRITE_BYTES]);
        Ok(Self { poller, flows, bytes, completion: Latency::default(), failed: 0 })
    }

    pub(super) fn under_way(&self) -> usize {
        self.flows.len()
    }

    /// Sends `bytes` on `stream`, which may still be connecting.
    pub(super) fn start(&mut self, stream: TcpStream, due: Instant, bytes: usize) -> Result<(), LoadError> {
        let slot = self.flows.vacant_entry();
        let token = slot.key() as u64;
        let watch = self.poller.add(&stream, token);
        let watch = watch.and_then(|()| self.poller.modify(&stream, token, Interest::ReadWrite));
        watch.map_err(LoadError::os("watch a socket"))?;
        slot.insert(Short { stream, due, unsent: bytes });
        Ok(())
    }

    /// Waits for something to do until `until`, and does it.
    pub(super) fn turn(&mut self, until: Instant) -> Result<(), LoadError> {
        self.poller.wait(until, 0)?;
        for index in 0.. {
            let Some(ready) = self.poller.ready(index) else { break };
            let key = usize::try_from(ready.token).expect("a token of ours");
            let Some(flow) = self.flows.get_mut(key) else { continue };
            match flow.go_on(&self.bytes, &self.poller, ready.token) {
                Ok(false) => continue,
                Ok(true) => self.completion.record(flow.due, clock::now()),
                Err(_) => self.failed += 1,
            }
            // Closing a socket takes it out of the set.
            self.flows.remove(key);
        }
        Ok(())
    }

    /// Gives up those under way.
    pub(super) fn give_up(&mut self) {
        self.failed += self.flows.len() as u64;
        self.flows.clear();
    }
}

impl Short {
    /// Writes what it can, then waits for the end; true when it is there.
    fn go_on(&mut self, bytes: &[u8], poller: &Poller, token: u64) -> io::Result<bool> {
        while self.unsent > 0 {
            match self.stream.write(&bytes[..self.unsent.min(bytes.len())]) {
                Ok(sent) => self.unsent -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.unsent == 0 {
                self.stream.shutdown(Shutdown::Write)?;
                poller.modify(&self.stream, token, Interest::Read)?;
            }
        }
        match self.stream.read(&mut [0]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
