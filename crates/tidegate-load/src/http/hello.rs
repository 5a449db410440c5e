//! The loop of a source that sends the beginning of handshakes and no more.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::config::{HttpBenchConfig, Source};
use super::connection::{ending, is_later};
use super::made_up::MadeUp;
use super::schedule::Schedule;
use super::socket::{Dialler, reset_on_close};
use super::tally::{Ending, SourceReport, Tally};
use super::tls::Tls;
use super::{Times, seed_of};
use crate::error::LoadError;
use crate::poll::{Interest, Poller};

const MS_NS: u64 = 1_000_000;
/// Hellos sent in one go before sockets are looked at.
const BEGIN_MAX: usize = 32;

#[derive(Debug, Default)]
struct Slot {
    stream: Option<TcpStream>,
    intended: Instant,
    /// Tells this connection's events and deadline from those of its predecessors.
    serial: u32,
    is_sent: bool,
}

/// One thread's work. The same bytes on every connection: no server looks at the freshness of a hello, and making one costs
/// more than sending it.
#[derive(Debug)]
pub(super) struct Flood<'a> {
    source: &'a Source,
    times: Times,
    hello: Vec<u8>,
    made_up: MadeUp,
    dialler: Dialler,
    poller: Poller,
    schedule: Schedule,
    coming: Option<Instant>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    deadlines: VecDeque<(Instant, usize, u32)>,
    tally: Tally,
}

impl<'a> Flood<'a> {
    /// For source `number` of `config`.
    pub(super) fn new(config: &'a HttpBenchConfig, number: usize, times: Times) -> Result<Self, LoadError> {
        let source = &config.sources[number];
        let mut schedule = Schedule::new(source, times.start, times.from, seed_of(config, number));
        let slots = source.connections as usize;
        let hello = Tls::new(&source.name, source.http, None)?.hello()?;
        Ok(Self {
            source,
            times,
            made_up: MadeUp::new(source, &hello),
            hello,
            dialler: Dialler::new(config.address, number, config.local_addresses),
            poller: Poller::new()?,
            coming: schedule.next(),
            schedule,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..slots).rev().collect(),
            deadlines: VecDeque::new(),
            tally: Tally::new(config, source, times.from),
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<SourceReport, LoadError> {
        loop {
            let now = clock::now();
            self.expire(now);
            if now >= self.times.end || (now >= self.times.to && self.tally.open == 0) {
                break;
            }
            self.begin_due()?;
            let edge = if clock::now() < self.times.to { self.times.to } else { self.times.end };
            let deadline = self.deadlines.front().map_or(edge, |(at, ..)| *at);
            self.poller.wait(self.coming.unwrap_or(edge).min(deadline).min(edge), 0)?;
            for index in 0.. {
                let Some(ready) = self.poller.ready(index) else { break };
                self.on_ready(ready.token, ready.readable)?;
            }
        }
        self.give_up();
        Ok(self.tally.report())
    }

    fn begin_due(&mut self) -> Result<(), LoadError> {
        for _ in 0..BEGIN_MAX {
            let now = clock::now();
            let Some(intended) = self.coming.filter(|at| *at <= now) else { break };
            self.coming = self.schedule.next().filter(|at| *at < self.times.to);
            self.tally.on_begin(intended, now);
            match self.free.pop() {
                Some(slot) => self.begin(slot, intended)?,
                None => self.tally.on_end(intended, now, Ending::Unsent, 0),
            }
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, intended: Instant) -> Result<(), LoadError> {
        let slot = &mut self.slots[index];
        slot.intended = intended;
        slot.serial = slot.serial.wrapping_add(1);
        slot.is_sent = false;
        let stream = self.dialler.dial().and_then(|stream| reset_on_close(&stream).map(|()| stream));
        let Ok(stream) = stream else {
            self.on_end(index, Ending::NotConnected);
            return Ok(());
        };
        let token = index as u64 | u64::from(slot.serial) << 32;
        self.poller.add(&stream, token).map_err(LoadError::os("watch a socket"))?;
        slot.stream = Some(stream);
        let deadline = intended.plus_nanos(self.source.timeout_ms * MS_NS);
        self.deadlines.push_back((deadline, index, slot.serial));
        // On a loopback interface the connection stands already, as a rule.
        self.send(index);
        let slot = &self.slots[index];
        if let (false, Some(stream)) = (slot.is_sent, &slot.stream) {
            self.poller.modify(stream, token, Interest::ReadWrite).map_err(LoadError::os("watch a socket"))?;
        }
        Ok(())
    }

    /// Sends the hello, which fits into every socket's buffer.
    fn send(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(mut stream) = slot.stream.as_ref() else { return };
        self.made_up.turn(&mut self.hello);
        match stream.write(&self.hello) {
            Ok(_) => slot.is_sent = true,
            Err(error) if is_later(&error) => {}
            Err(error) => self.on_end(index, ending(&error)),
        }
    }

    fn on_ready(&mut self, token: u64, readable: bool) -> Result<(), LoadError> {
        let index = usize::try_from(token & u64::from(u32::MAX)).expect("a token of ours");
        let slot = &self.slots[index];
        if u64::from(slot.serial) != token >> 32 || slot.stream.is_none() {
            return Ok(());
        }
        if !slot.is_sent {
            self.send(index);
            let slot = &self.slots[index];
            if let (true, Some(stream)) = (slot.is_sent, &slot.stream) {
                self.poller.modify(stream, token, Interest::Read).map_err(LoadError::os("watch a socket"))?;
            }
        }
        let Some(mut stream) = self.slots[index].stream.as_ref().filter(|_| readable) else { return Ok(()) };
        let mut first = [0; 1];
        match stream.read(&mut first) {
            Ok(0) => self.on_end(index, Ending::Closed),
            Ok(_) => self.on_end(index, answered(first[0])),
            Err(error) if is_later(&error) => {}
            Err(error) => self.on_end(index, ending(&error)),
        }
        Ok(())
    }

    fn on_end(&mut self, index: usize, ending: Ending) {
        let slot = &mut self.slots[index];
        slot.stream = None;
        self.tally.on_end(slot.intended, clock::now(), ending, 0);
        self.free.push(index);
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, index, serial)) = self.deadlines.pop_front_if(|(at, ..)| *at <= now) {
            let slot = &self.slots[index];
            if slot.serial == serial && slot.stream.is_some() {
                self.on_end(index, Ending::TimedOut);
            }
        }
    }

    fn give_up(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].stream.is_some() {
                self.on_end(index, Ending::TimedOut);
            }
        }
    }
}

/// What the type of the server's first record says.
fn answered(record: u8) -> Ending {
    match record {
        21 => Ending::Alert,
        22 => Ending::Welcomed,
        _ => Ending::Garbled,
    }
}
