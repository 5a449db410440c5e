//! A tenant whose rate changes while it is watched.
//!
//! An open loop as in a measured run: a request is due at its intended time whatever became of those before it, and its
//! response time counts from there. The figures are those of the last few seconds, read by another thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;

use super::config::Source;
use super::slots::{Ended, Slots};
use super::socket::Dialler;
use super::tally::Ending;
use crate::demo_load::{LiveArrivals, LiveRate};
use crate::error::LoadError;
use crate::latency::{LatencySummary, RollingLatency};
use crate::load_thread::{LoadThread, StopSign};
use crate::poll::{allow_open_files, prepare_thread};

/// A changed rate or a stop is seen this soon.
const GLANCE_NS: u64 = 10_000_000;
/// Requests begun in one go before sockets are looked at.
const BEGIN_MAX: usize = 64;
/// Response times are of three seconds: twelve quarters.
const SLOTS: usize = 12;
const SLOT_NS: u64 = 250_000_000;

/// Who sends what.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveConfig {
    /// The proxy or server; plain HTTP/1.1.
    pub address: SocketAddr,
    /// The tenant: `Host` of every request.
    pub name: String,
    /// Requests at once, each on a connection that is kept; what is due beyond is not sent and counts as failed.
    pub connections: u32,
    /// Requests per second, to begin with; a Poisson process.
    pub rate_per_s: f64,
    /// An answer later than this, from the intended time on, is none.
    pub timeout_ms: u64,
    /// Same seed, same arrivals (at a constant rate).
    pub seed: u64,
}

/// A tenant at work. It stops when this is dropped.
#[derive(Debug)]
pub struct LiveSource {
    shared: Arc<Shared>,
    thread: LoadThread,
}

/// What became of the requests.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LiveSnapshot {
    /// Due so far.
    pub offered: u64,
    /// Answered in time with a status of 200 to 399, so far.
    pub answered: u64,
    /// Answered with 429 or 503, so far.
    pub refused: u64,
    /// All others that have ended, so far: late, broken off, answered with another status, not sent.
    pub failed: u64,
    /// Response times of the answered ones, of the last three seconds.
    pub response: LatencySummary,
}

/// Counts are read to be shown: relaxed, each on its own.
#[derive(Debug)]
struct Shared {
    rate: LiveRate,
    offered: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    response: Mutex<RollingLatency>,
}

impl Shared {
    fn response(&self) -> MutexGuard<'_, RollingLatency> {
        // Figures that miss one request are better than none.
        self.response.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveSource {
    /// Sends requests until stopped. That nobody listens is no error: it shows in the figures.
    ///
    /// # Errors
    /// [`LoadError`] if the configuration describes no load, or this machine does not let it be made.
    pub fn start(config: &LiveConfig) -> Result<Self, LoadError> {
        let LiveConfig { address, ref name, connections, rate_per_s, timeout_ms, seed } = *config;
        let source = Source { name: name.clone(), connections, rate_per_s, timeout_ms, ..Source::default() };
        source.check()?;
        allow_open_files(connections as usize)?;
        let shared = Arc::new(Shared {
            rate: LiveRate::new(rate_per_s),
            offered: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            response: Mutex::new(RollingLatency::new(SLOTS, SLOT_NS)),
        });
        let work = Work {
            slots: Slots::new(&source, Dialler::new(address, 0, 0), None)?,
            idle: (0..connections as usize).rev().collect(),
            rng: Rng::new(seed),
            shared: Arc::clone(&shared),
        };
        let thread = LoadThread::start("requests", |stop| work.run(&stop))?;
        Ok(Self { shared, thread })
    }

    /// Requests per second from now on; negative and odd numbers are zero.
    pub fn set_rate(&self, per_s: f64) {
        self.shared.rate.set(per_s);
    }

    /// The figures so far.
    #[must_use]
    pub fn snapshot(&self) -> LiveSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { offered, answered, refused, failed, .. } = &*self.shared;
        // Those that have ended before all that were due, so that they never seem to be more.
        let (answered, refused, failed) = (read(answered), read(refused), read(failed));
        let response = self.shared.response().summary(clock::now());
        LiveSnapshot { offered: read(offered), answered, refused, failed, response }
    }

    /// False if it had to give up; [`stop`](Self::stop) says why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.is_running()
    }

    /// Ends the requests.
    ///
    /// # Errors
    /// [`LoadError`] if the machine had ended them before.
    pub fn stop(self) -> Result<(), LoadError> {
        self.thread.stop()
    }
}

struct Work {
    slots: Slots,
    /// Slots without a request; the one used last is the next, so that no more connections are open than are needed.
    idle: Vec<usize>,
    rng: Rng,
    shared: Arc<Shared>,
}

impl Work {
    fn run(mut self, stop: &StopSign) -> Result<(), LoadError> {
        prepare_thread(None)?;
        let mut arrivals = LiveArrivals::new();
        while !stop.is_up() {
            let now = clock::now();
            arrivals.follow(&self.shared.rate, now, &mut self.rng);
            while let Some(ended) = self.slots.expire(now) {
                self.settle(Some(ended));
            }
            for _ in 0..BEGIN_MAX {
                let Some(intended) = arrivals.take(now, &mut self.rng) else { break };
                self.begin(intended, now)?;
            }
            let deadline = self.slots.next_deadline().unwrap_or(Instant::MAX);
            self.slots.wait(arrivals.next().min(deadline).min(now.plus_nanos(GLANCE_NS)))?;
            for event in 0.. {
                let Some(ready) = self.slots.ready(event) else { break };
                let ended = self.slots.on_ready(ready)?;
                self.settle(ended);
            }
        }
        Ok(())
    }

    fn begin(&mut self, intended: Instant, now: Instant) -> Result<(), LoadError> {
        self.shared.offered.fetch_add(1, Ordering::Relaxed);
        // A machine that could not send it in time has no answer to wait for either.
        let in_time = self.slots.deadline(intended) > now;
        let Some(slot) = in_time.then(|| self.idle.pop()).flatten() else {
            self.count(intended, Ending::Unsent);
            return Ok(());
        };
        let ended = self.slots.begin(slot, intended)?;
        self.settle(ended);
        Ok(())
    }

    /// A slot's request has ended.
    fn settle(&mut self, ended: Option<Ended>) {
        if let Some(Ended { slot, intended, ending, .. }) = ended {
            self.idle.push(slot);
            self.count(intended, ending);
        }
    }

    fn count(&self, intended: Instant, ending: Ending) {
        let Shared { answered, refused, failed, .. } = &*self.shared;
        let counter = match ending {
            Ending::Answered => {
                self.shared.response().record(intended, clock::now());
                answered
            }
            Ending::OverShare | Ending::SystemFull => refused,
            _ => failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers every request on one connection after the other, in turn with these statuses.
    fn server(statuses: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut answers = statuses.iter().cycle();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4_096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    let head = format!("HTTP/1.1 {} x\r\nContent-Length: 0\r\n\r\n", answers.next().unwrap());
                    if stream.write_all(head.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        address
    }

    fn config(address: SocketAddr) -> LiveConfig {
        LiveConfig { address, name: "a".into(), connections: 1, rate_per_s: 500.0, timeout_ms: 10_000, seed: 1 }
    }

    /// Waits for a state of the figures, however long this machine takes.
    fn until(source: &LiveSource, is_so: impl Fn(&LiveSnapshot) -> bool) -> LiveSnapshot {
        loop {
            let snapshot = source.snapshot();
            if is_so(&snapshot) {
                return snapshot;
            }
            assert!(source.is_running());
            thread::yield_now();
        }
    }

    #[test]
    fn answers_refusals_and_failures_are_told_apart() {
        let source = LiveSource::start(&config(server(&["200", "429", "503", "500"]))).unwrap();
        let seen = until(&source, |seen| seen.answered >= 3 && seen.refused >= 6 && seen.failed >= 3);
        assert!(seen.offered >= seen.answered + seen.refused + seen.failed, "{seen:?}");
        source.stop().unwrap();
    }

    #[test]
    fn a_rate_of_zero_is_silence_until_it_changes() {
        let source = LiveSource::start(&LiveConfig { rate_per_s: 0.0, ..config(server(&["200"])) }).unwrap();
        assert_eq!(source.snapshot().offered, 0);
        source.set_rate(500.0);
        until(&source, |seen| seen.answered >= 3);
        source.stop().unwrap();
    }

    #[test]
    fn nobody_there_shows_in_the_figures() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let source = LiveSource::start(&config(nobody)).unwrap();
        assert_eq!(until(&source, |seen| seen.failed >= 3).answered, 0);
        source.stop().unwrap();
    }
}
