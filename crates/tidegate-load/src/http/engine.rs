//! The loop of one source of requests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;

use super::config::{HttpBenchConfig, Source};
use super::schedule::Schedule;
use super::slots::{Ended, Slots};
use super::socket::Dialler;
use super::tally::{Ending, SourceReport, Tally};
use super::tls::Tls;
use super::{Times, seed_of};
use crate::error::LoadError;

const MS_NS: u64 = 1_000_000;
/// Requests begun in one go before sockets are looked at.
const BEGIN_MAX: usize = 16;
/// How often a closed loop that rests looks whether it may go on.
const GLANCE_NS: u64 = 5 * MS_NS;
/// A pause doubles so often at most.
const DOUBLED_MAX: u32 = 6;

/// One thread's work.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    source: &'a Source,
    times: Times,
    schedule: Schedule,
    coming: Option<Instant>,
    slots: Slots,
    /// Slots without a request, the one that rested longest first.
    idle: VecDeque<usize>,
    /// Slots that rest after a refusal, by when they may ask again.
    resting: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Of each slot, how often it was refused in a row.
    refused: Vec<u32>,
    rng: Rng,
    backlog: VecDeque<Instant>,
    tally: Tally,
}

impl<'a> Engine<'a> {
    /// For source `number` of `config`.
    pub(super) fn new(config: &'a HttpBenchConfig, number: usize, times: Times) -> Result<Self, LoadError> {
        let source = &config.sources[number];
        let mut schedule = Schedule::new(source, times.start, times.from, seed_of(config, number));
        let tls = || Tls::new(&source.name, source.http, config.certificate.as_deref());
        let dialler = Dialler::new(config.address, number, config.local_addresses);
        Ok(Self {
            source,
            times,
            coming: if source.closed { None } else { schedule.next().filter(|at| *at < times.to) },
            schedule,
            slots: Slots::new(source, dialler, source.tls.then(tls).transpose()?)?,
            idle: (0..source.connections as usize).collect(),
            resting: BinaryHeap::new(),
            refused: vec![0; source.connections as usize],
            // Another sequence than that of the intended times.
            rng: Rng::new(!seed_of(config, number)),
            backlog: VecDeque::new(),
            tally: Tally::new(config, source, times.from),
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<SourceReport, LoadError> {
        loop {
            let now = clock::now();
            self.expire(now)?;
            if now >= self.times.end || (now >= self.times.to && self.tally.open == 0 && self.coming.is_none()) {
                break;
            }
            if self.is_closing_the_loop(now) {
                self.begin_all()?;
            }
            self.begin_due()?;
            self.slots.wait(self.next_timeout())?;
            for index in 0.. {
                let Some(ready) = self.slots.ready(index) else { break };
                let ended = self.slots.on_ready(ready)?;
                self.settle(ended)?;
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
        let rested = self.resting.peek().map(|Reverse((at, _))| *at);
        let deadline = self.slots.next_deadline();
        let backlog = self.backlog.front().map(|intended| self.slots.deadline(*intended));
        // After the window nothing may be left to wait for but what is under way.
        let edge = if now < self.times.to { self.times.to } else { self.times.end };
        [idle, rested, self.coming, deadline, backlog, Some(edge)].into_iter().flatten().min().unwrap_or(edge)
    }

    /// A closed loop, at a time when it has a rate.
    fn is_closing_the_loop(&self, now: Instant) -> bool {
        let ms = |ns: u64| i64::try_from(ns / MS_NS).unwrap_or(i64::MAX);
        let since = ms(now.nanos_since(self.times.from)) - ms(self.times.from.nanos_since(now));
        self.source.closed && now < self.times.to && self.source.rate_at(since) > 0.0
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
            } else if !self.source.new_connections && self.backlog.len() < self.source.waiting_max {
                self.backlog.push_back(intended);
            } else {
                self.tally.on_end(intended, now, Ending::Unsent, 0);
            }
        }
        Ok(())
    }

    /// A closed loop: every connection has a request.
    fn begin_all(&mut self) -> Result<(), LoadError> {
        let now = clock::now();
        while self.resting.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            self.idle.extend(self.resting.pop().map(|Reverse((_, slot))| slot));
        }
        for _ in 0..self.idle.len() {
            let Some(slot) = self.idle.pop_front() else { break };
            let now = clock::now();
            self.tally.on_begin(now, now);
            self.begin(slot, now)?;
        }
        Ok(())
    }

    fn begin(&mut self, slot: usize, intended: Instant) -> Result<(), LoadError> {
        let ended = self.slots.begin(slot, intended)?;
        self.settle(ended)
    }

    /// A slot's request has ended; the next that waits takes the slot, and may end at once too.
    fn settle(&mut self, mut ended: Option<Ended>) -> Result<(), LoadError> {
        while let Some(Ended { slot, intended, ending, status }) = ended {
            self.tally.on_end(intended, clock::now(), ending, status);
            // After a failure the others wait for the next look, so that one that fails at once does not end them all.
            let next = if ending == Ending::Answered { self.backlog.pop_front() } else { None };
            ended = if let Some(intended) = next {
                self.slots.begin(slot, intended)?
            } else {
                self.rest(slot, ending);
                None
            };
        }
        Ok(())
    }

    /// A slot is free; one whose client backs off is so later.
    fn rest(&mut self, slot: usize, ending: Ending) {
        if ending == Ending::Answered || self.source.back_off_ms == 0 {
            self.refused[slot] = 0;
            self.idle.push_back(slot);
            return;
        }
        let ns = (self.source.back_off_ms * MS_NS) << self.refused[slot].min(DOUBLED_MAX);
        self.refused[slot] += 1;
        // Clients that are refused together do not come back together.
        let at = clock::now().plus_nanos(ns / 2 + self.rng.below(ns));
        self.resting.push(Reverse((at, slot)));
    }

    /// Ends what was waited for too long, and lets those who wait have free connections.
    fn expire(&mut self, now: Instant) -> Result<(), LoadError> {
        while let Some(ended) = self.slots.expire(now) {
            self.settle(Some(ended))?;
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

    /// The run is over: what is under way has no answer, and what was due and not begun was not sent.
    fn give_up(&mut self) {
        let now = clock::now();
        while let Some(intended) = self.coming {
            self.coming = self.schedule.next().filter(|at| *at < self.times.to);
            self.tally.on_begin(intended, now);
            self.tally.on_end(intended, now, Ending::Unsent, 0);
        }
        for intended in self.slots.give_up().chain(self.backlog.drain(..)) {
            self.tally.on_end(intended, now, Ending::TimedOut, 0);
        }
    }
}
