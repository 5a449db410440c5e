//! The loop of one source of requests.

use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::answer;
use super::config::{HttpBenchConfig, Source};
use super::connection::{Connection, Progress, READ_BYTES};
use super::schedule::Schedule;
use super::socket::Dialler;
use super::tally::{Ending, SourceReport, Tally};
use super::tls::Tls;
use super::{Times, seed_of};
use crate::error::LoadError;
use crate::poll::{Interest, Poller};

const MS_NS: u64 = 1_000_000;
/// Requests begun in one go before sockets are looked at.
const BEGIN_MAX: usize = 16;
/// How often a closed loop that rests looks whether it may go on.
const GLANCE_NS: u64 = 5 * MS_NS;
/// Requests that wait for a connection to be free; those beyond are not sent.
const BACKLOG_MAX: usize = 100_000;

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
    /// Answers on this connection.
    answers: u32,
    is_writing: bool,
}

/// One thread's work.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    source: &'a Source,
    times: Times,
    request: Vec<u8>,
    tls: Option<Tls>,
    dialler: Dialler,
    poller: Poller,
    schedule: Schedule,
    coming: Option<Instant>,
    slots: Vec<Slot>,
    /// Slots without a request, the one that rested longest first.
    idle: VecDeque<usize>,
    backlog: VecDeque<Instant>,
    /// In the order in which requests were begun, which is that of their intended times.
    deadlines: VecDeque<(Instant, usize, u64)>,
    tally: Tally,
    scratch: Vec<u8>,
}

impl<'a> Engine<'a> {
    /// For source `number` of `config`.
    pub(super) fn new(config: &'a HttpBenchConfig, number: usize, times: Times) -> Result<Self, LoadError> {
        let source = &config.sources[number];
        let mut schedule = Schedule::new(source, times.start, times.from, seed_of(config, number));
        let slots = source.connections as usize;
        let tls = || Tls::new(&source.name, source.http, config.certificate.as_deref());
        Ok(Self {
            source,
            times,
            request: answer::request(source),
            tls: source.tls.then(tls).transpose()?,
            dialler: Dialler::new(config.address, number, config.local_addresses),
            poller: Poller::new()?,
            coming: if source.closed { None } else { schedule.next() },
            schedule,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            idle: (0..slots).collect(),
            backlog: VecDeque::new(),
            deadlines: VecDeque::new(),
            tally: Tally::new(config, source, times.from),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<SourceReport, LoadError> {
        loop {
            let now = clock::now();
            self.expire(now)?;
            if now >= self.times.end || (now >= self.times.to && self.tally.open == 0) {
                break;
            }
            if self.is_closing_the_loop(now) {
                self.begin_all()?;
            }
            self.begin_due()?;
            self.poller.wait(self.next_timeout(), 0)?;
            for index in 0.. {
                let Some(ready) = self.poller.ready(index) else { break };
                self.on_ready(ready.token, ready.readable)?;
                self.begin_due()?;
            }
        }
        self.give_up();
        Ok(self.tally.report())
    }

    fn next_timeout(&self) -> Instant {
        let now = clock::now();
        let idle = match (self.source.closed, self.is_closing_the_loop(now) && !self.idle.is_empty()) {
            (true, true) => Some(Instant::ZERO),
            // A rate may change from nothing to something.
            (true, false) => Some(now.plus_nanos(GLANCE_NS)),
            (false, _) => None,
        };
        let deadline = self.deadlines.front().map(|(at, ..)| *at);
        let backlog = self.backlog.front().map(|intended| self.deadline(*intended));
        // After the window nothing may be left to wait for but what is under way.
        let edge = if now < self.times.to { self.times.to } else { self.times.end };
        [idle, self.coming, deadline, backlog, Some(edge)].into_iter().flatten().min().unwrap_or(edge)
    }

    /// A closed loop, at a time when it has a rate.
    fn is_closing_the_loop(&self, now: Instant) -> bool {
        let ms = |ns: u64| i64::try_from(ns / MS_NS).unwrap_or(i64::MAX);
        let since = ms(now.nanos_since(self.times.from)) - ms(self.times.from.nanos_since(now));
        self.source.closed && now < self.times.to && self.source.rate_at(since) > 0.0
    }

    fn deadline(&self, intended: Instant) -> Instant {
        intended.plus_nanos(self.source.timeout_ms * MS_NS)
    }

    /// Begins what is due by now, as many as one go may.
    fn begin_due(&mut self) -> Result<(), LoadError> {
        for _ in 0..BEGIN_MAX {
            let now = clock::now();
            let Some(intended) = self.coming.filter(|at| *at <= now) else { break };
            self.coming = self.schedule.next().filter(|at| *at < self.times.to);
            self.tally.on_begin(intended, now);
            // Those who wait are first.
            if self.backlog.is_empty()
                && let Some(slot) = self.idle.pop_front()
            {
                self.begin(slot, intended)?;
            } else if !self.source.new_connections && self.backlog.len() < BACKLOG_MAX {
                self.backlog.push_back(intended);
            } else {
                self.tally.on_end(intended, now, Ending::Unsent, 0);
            }
        }
        Ok(())
    }

    /// A closed loop: every connection has a request.
    fn begin_all(&mut self) -> Result<(), LoadError> {
        for _ in 0..self.idle.len() {
            let Some(slot) = self.idle.pop_front() else { break };
            let now = clock::now();
            self.tally.on_begin(now, now);
            self.begin(slot, now)?;
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, intended: Instant) -> Result<(), LoadError> {
        let deadline = self.deadline(intended);
        let slot = &mut self.slots[index];
        slot.intended = Some(intended);
        slot.asked += 1;
        self.deadlines.push_back((deadline, index, slot.asked));
        self.ask(index)
    }

    /// Sends the request of a slot, on a new connection if there is none.
    fn ask(&mut self, index: usize) -> Result<(), LoadError> {
        let slot = &mut self.slots[index];
        if slot.connection.is_none() {
            let Ok(stream) = self.dialler.dial() else {
                return self.on_end(index, Ending::NotConnected, 0);
            };
            let tls = self.tls.as_ref().map(Tls::connection).transpose()?;
            slot.serial = slot.serial.wrapping_add(1);
            (slot.answers, slot.is_writing) = (0, false);
            let connection = Connection::new(stream, tls, self.source);
            self.poller.add(&connection, token(index, slot.serial)).map_err(LoadError::os("watch a socket"))?;
            slot.connection = Some(connection);
        }
        if let Some(connection) = &mut slot.connection {
            connection.ask(self.source, &self.request);
        }
        self.advance(index, false)
    }

    fn on_ready(&mut self, token: u64, readable: bool) -> Result<(), LoadError> {
        let index = usize::try_from(token & u64::from(u32::MAX)).expect("a token of ours");
        if self.slots[index].serial == serial(token) { self.advance(index, readable) } else { Ok(()) }
    }

    fn advance(&mut self, index: usize, readable: bool) -> Result<(), LoadError> {
        let slot = &mut self.slots[index];
        let Some(connection) = &mut slot.connection else { return Ok(()) };
        match connection.advance(readable, &mut self.scratch) {
            Progress::Pending => {
                let wants_write = connection.wants_write();
                if wants_write != slot.is_writing {
                    slot.is_writing = wants_write;
                    let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
                    let token = token(index, slot.serial);
                    self.poller.modify(&*connection, token, interest).map_err(LoadError::os("watch a socket"))?;
                }
                Ok(())
            }
            Progress::Answered(answer) => {
                slot.answers += 1;
                if !answer.keeps_open || self.source.new_connections {
                    slot.connection = None;
                }
                self.on_end(index, Ending::of(answer.status), answer.status)
            }
            Progress::Failed(ending) => {
                // A server may close a connection that rests at the moment when it is used again. Nothing of the request
                // was answered, so it is asked once more, on a new connection, as every client does.
                let again =
                    slot.answers > 0 && !connection.has_begun() && matches!(ending, Ending::Closed | Ending::Reset);
                slot.connection = None;
                match slot.intended {
                    Some(_) if again => self.ask(index),
                    Some(_) => self.on_end(index, ending, 0),
                    None => Ok(()),
                }
            }
        }
    }

    /// A slot's request has ended; the next that waits takes the slot.
    fn on_end(&mut self, index: usize, ending: Ending, status: u16) -> Result<(), LoadError> {
        if let Some(intended) = self.slots[index].intended.take() {
            self.tally.on_end(intended, clock::now(), ending, status);
        }
        match self.backlog.pop_front() {
            // A connection that fails at once would go deeper with every request that waits.
            Some(intended) if ending == Ending::Answered => self.begin(index, intended),
            waiting => {
                if let Some(intended) = waiting {
                    self.backlog.push_front(intended);
                }
                self.idle.push_back(index);
                Ok(())
            }
        }
    }

    /// Ends what was waited for too long, and lets those who wait have free connections.
    fn expire(&mut self, now: Instant) -> Result<(), LoadError> {
        while let Some((_, index, asked)) = self.deadlines.pop_front_if(|(at, ..)| *at <= now) {
            let slot = &mut self.slots[index];
            if slot.asked == asked && slot.intended.is_some() {
                slot.connection = None;
                self.on_end(index, Ending::TimedOut, 0)?;
            }
        }
        let timeout_ns = self.source.timeout_ms * MS_NS;
        while let Some(intended) = self.backlog.pop_front_if(|intended| intended.plus_nanos(timeout_ns) <= now) {
            self.tally.on_end(intended, now, Ending::TimedOut, 0);
        }
        for _ in 0..self.idle.len().min(self.backlog.len()) {
            if let (Some(slot), Some(intended)) = (self.idle.pop_front(), self.backlog.pop_front()) {
                self.begin(slot, intended)?;
            }
        }
        Ok(())
    }

    /// The run is over: what is under way has no answer.
    fn give_up(&mut self) {
        let now = clock::now();
        let waiting = self.slots.iter_mut().filter_map(|slot| slot.intended.take());
        for intended in waiting.chain(self.backlog.drain(..)) {
            self.tally.on_end(intended, now, Ending::TimedOut, 0);
        }
    }
}

fn token(index: usize, serial: u32) -> u64 {
    index as u64 | u64::from(serial) << 32
}

fn serial(token: u64) -> u32 {
    u32::try_from(token >> 32).expect("32 bits")
}
