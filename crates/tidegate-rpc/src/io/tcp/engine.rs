//! Many connections driven by one thread, without a runtime: for load generators.
//!
//! The caller's loop decides when to call; between calls it gives the engine time with [`Engine::poll`]. Ends of calls
//! are told to a closure, with the tag that the caller gave.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::address::Address;
use super::config::{CallOptions, ClientConfig};
use super::connection::passing;
use super::link::{Ending, Link};
use super::poller::{Interest, Poller, exact_timers};
use crate::error::RpcError;
use crate::machine::{CallId, Client};

const READ_BYTES: usize = 64 * 1024;

/// Connections to one server.
#[derive(Debug)]
pub struct Engine<C, T> {
    poller: Poller,
    lines: Vec<Line<C, T>>,
    /// When which line wants its time-out; entries may be early, never late.
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    dirty: Vec<usize>,
    scratch: Vec<u8>,
    open: usize,
}

#[derive(Debug)]
struct Line<C, T> {
    link: Link<C, T>,
    /// `None` once it is lost.
    socket: Option<OwnedFd>,
    written: usize,
    interest: Interest,
    is_dirty: bool,
    armed: Instant,
}

impl<C: Client, T> Engine<C, T> {
    /// Opens `connections` connections, one after the other; `machine` makes the machine of each.
    ///
    /// Each gets a seed of its own, derived from the configuration's.
    ///
    /// # Errors
    /// [`RpcError`] if the configuration is wrong, the server cannot be reached, or the system is out of something.
    pub fn connect(
        address: impl Into<Address>,
        config: &ClientConfig,
        connections: usize,
        mut machine: impl FnMut(usize) -> C,
    ) -> Result<Self, RpcError> {
        config.check()?;
        let address = address.into();
        exact_timers();
        let poller = Poller::new()?;
        let mut lines = Vec::with_capacity(connections);
        for number in 0..connections {
            let open = || -> io::Result<OwnedFd> {
                let socket = open(&address)?;
                poller.add(&socket, number as u64, Interest::READ)?;
                Ok(socket)
            };
            let refused = |source| RpcError::Connect { address: address.clone(), source: address.explain(source) };
            let socket = open().map_err(refused)?;
            let config = ClientConfig { seed: config.seed.wrapping_add(number as u64), ..config.clone() };
            let mut link = Link::new(config, machine(number), clock::now());
            link.on_connected();
            lines.push(Line {
                link,
                socket: Some(socket),
                written: 0,
                interest: Interest::READ,
                is_dirty: true,
                armed: Instant::MAX,
            });
        }
        let mut engine = Self {
            poller,
            lines,
            alarms: BinaryHeap::new(),
            dirty: (0..connections).collect(),
            scratch: vec![0; READ_BYTES],
            open: connections,
        };
        // The hellos are on their way before anything is measured.
        engine.flush(&mut |_, _| {});
        Ok(engine)
    }

    /// Connections that still stand.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Calls of all connections that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lines.iter().map(|line| line.link.pending()).sum()
    }

    /// Calls on connection `line`, from 0; the request leaves with the next [`poll`](Self::poll) or
    /// [`flush`](Self::flush). `None` if the call has ended already, as `end` was told.
    pub fn call(
        &mut self,
        line: usize,
        payload: &[u8],
        options: &CallOptions,
        tag: T,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Option<CallId> {
        let id = self.lines[line].link.call(payload, options, tag, clock::now(), end);
        self.touched(line);
        id
    }

    /// Gives up a call; nothing more is heard of it.
    pub fn cancel(&mut self, line: usize, id: CallId, end: &mut impl FnMut(T, Ending<'_>)) {
        self.lines[line].link.cancel(id, clock::now(), end);
        self.touched(line);
    }

    /// Writes what calls have left behind, then takes in what happens until something did or `until` has come.
    ///
    /// In the last `spin` before `until` it returns at once, so that a caller's loop meets the moment exactly.
    ///
    /// # Errors
    /// [`RpcError::Os`] if the sockets cannot be waited for. A lost connection is no error: its calls end.
    pub fn poll(
        &mut self,
        until: Instant,
        spin: Duration,
        end: &mut impl FnMut(T, Ending<'_>),
    ) -> Result<(), RpcError> {
        self.flush(end);
        let now = clock::now();
        let alarm = self.alarms.peek().map_or(Instant::MAX, |&Reverse((at, _))| at);
        let sleep_until = until.minus_nanos(tidegate_core::time::nanos(spin)).min(alarm);
        let at_most = (sleep_until != Instant::MAX).then(|| sleep_until.since(now));
        self.poller.wait(at_most)?;
        let mut index = 0;
        while let Some(ready) = self.poller.ready(index) {
            index += 1;
            let line = usize::try_from(ready.token).expect("tokens are numbers of lines");
            if ready.writable {
                self.write(line, end);
            }
            if ready.readable {
                self.read(line, end);
            }
        }
        self.ring(clock::now(), end);
        Ok(())
    }

    /// Writes what calls have left behind.
    pub fn flush(&mut self, end: &mut impl FnMut(T, Ending<'_>)) {
        while let Some(line) = self.dirty.pop() {
            self.lines[line].is_dirty = false;
            self.write(line, end);
        }
    }

    fn read(&mut self, line: usize, end: &mut impl FnMut(T, Ending<'_>)) {
        let Line { link, socket: Some(socket), .. } = &mut self.lines[line] else { return };
        match passing(rustix::net::recv(&*socket, &mut self.scratch[..], RecvFlags::empty()).map(|(_, bytes)| bytes)) {
            Ok(None) => {}
            Ok(Some(bytes @ 1..)) if link.on_bytes(&self.scratch[..bytes], clock::now(), end).is_ok() => {
                self.touched(line);
            }
            _ => self.lose(line, end),
        }
    }

    fn write(&mut self, line: usize, end: &mut impl FnMut(T, Ending<'_>)) {
        let Line { link, socket: Some(socket), written, interest, .. } = &mut self.lines[line] else { return };
        let out = link.out();
        while *written < out.len() {
            match passing(rustix::net::send(&*socket, &out[*written..], SendFlags::NOSIGNAL)) {
                Ok(Some(bytes)) => *written += bytes,
                Ok(None) => break,
                Err(_) => return self.lose(line, end),
            }
        }
        out.drain(..*written);
        *written = 0;
        let wanted = if out.is_empty() { Interest::READ } else { Interest::BOTH };
        if wanted != *interest {
            *interest = wanted;
            if self.poller.modify(&*socket, line as u64, wanted).is_err() {
                self.lose(line, end);
            }
        }
    }

    fn lose(&mut self, line: usize, end: &mut impl FnMut(T, Ending<'_>)) {
        if let Some(socket) = self.lines[line].socket.take() {
            self.poller.remove(&socket);
            self.open -= 1;
            self.lines[line].link.on_lost(clock::now(), end);
        }
    }

    fn ring(&mut self, now: Instant, end: &mut impl FnMut(T, Ending<'_>)) {
        while let Some(&Reverse((at, line))) = self.alarms.peek() {
            if at > now {
                return;
            }
            self.alarms.pop();
            if self.lines[line].armed == at {
                self.lines[line].armed = Instant::MAX;
                self.lines[line].link.on_timeout(now, end);
                self.touched(line);
            }
        }
    }

    /// The line may have something to write, and its next time-out may have come nearer.
    fn touched(&mut self, number: usize) {
        let line = &mut self.lines[number];
        if !line.is_dirty && !line.link.out().is_empty() {
            line.is_dirty = true;
            self.dirty.push(number);
        }
        if let Some(at) = line.link.next_timeout().filter(|&at| at < line.armed) {
            line.armed = at;
            self.alarms.push(Reverse((at, number)));
        }
    }
}

/// A connection that never makes its thread wait.
fn open(address: &Address) -> io::Result<OwnedFd> {
    match address {
        Address::Tcp(address) => {
            let socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        }
        Address::Unix(path) => {
            let socket = UnixStream::connect(path)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        }
    }
}
