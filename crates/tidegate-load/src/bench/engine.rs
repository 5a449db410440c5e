//! The threads of a run: one loop that serves publishers, consumers or both.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::config::BenchConfig;
use super::consume::{ConsumeFigures, Consuming};
use super::publish::{PublishFigures, Publishing};
use crate::error::LoadError;
use crate::ledger::Manifest;
use crate::link::{Link, Scratch};
use crate::poll::{Poller, prepare_thread, prioritise_thread};

/// How long a thread may sleep before it looks whether the other one has failed or finished.
const GLANCE_NS: u64 = 50_000_000;
/// Consumers' tokens begin here; publishers are fewer.
const CONSUMERS: u64 = 1 << 32;

/// What the threads of a run tell each other.
///
/// Plain counts, read to look at the progress; only `is_published` orders anything, see there.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) written: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) delivered: AtomicU64,
    expected_accepted: AtomicU64,
    expected_written: AtomicU64,
    is_published: AtomicBool,
    is_failed: AtomicBool,
    running: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) written: u64,
    pub(crate) accepted: u64,
    pub(crate) delivered: u64,
}

impl Counters {
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            written: self.written.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            delivered: self.delivered.load(Ordering::Relaxed),
        }
    }

    /// Messages written, not refused and not delivered.
    pub(crate) fn backlog(&self) -> u64 {
        let gone = self.refused.load(Ordering::Relaxed) + self.delivered.load(Ordering::Relaxed);
        self.written.load(Ordering::Relaxed).saturating_sub(gone)
    }

    /// From now on consumers know what to wait for.
    pub(crate) fn publishing_ends(&self, manifest: &Manifest) {
        let accepted = manifest.accepted();
        self.expected_accepted.store(accepted, Ordering::Relaxed);
        self.expected_written.store(accepted + manifest.unanswered(), Ordering::Relaxed);
        // Release: whoever sees the flag sees the two numbers.
        self.is_published.store(true, Ordering::Release);
    }

    /// Messages accepted, and those that may have been; `None` while publishing goes on.
    pub(crate) fn expected(&self) -> Option<(u64, u64)> {
        // Acquire: pairs with the release in `publishing_ends`.
        let is_published = self.is_published.load(Ordering::Acquire);
        let numbers =
            || (self.expected_accepted.load(Ordering::Relaxed), self.expected_written.load(Ordering::Relaxed));
        is_published.then(numbers)
    }

    /// True once no thread works any more.
    pub(crate) fn is_over(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }
}

/// What the threads of a run have in common.
#[derive(Debug)]
pub(crate) struct Run {
    /// Tells its messages from others.
    pub(crate) number: u32,
    pub(crate) times: Times,
    pub(crate) counters: Arc<Counters>,
}

/// When, in one run, what happens.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// The first message.
    pub(crate) start: Instant,
    /// Messages intended in here count.
    pub(crate) measured: Range<Instant>,
    /// Nobody waits longer.
    pub(crate) end: Instant,
}

/// Open connections that a thread is to serve.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) publishers: Vec<Link>,
    pub(crate) consumers: Vec<Link>,
}

/// One thread's share of a run.
#[derive(Debug)]
pub(crate) struct Engine {
    poller: Poller,
    publishing: Option<Publishing>,
    consuming: Option<Consuming>,
    counters: Arc<Counters>,
    start: Instant,
    cpu: Option<u32>,
    nice: i32,
    spin_ns: u64,
}

/// What a thread measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) publish: Option<PublishFigures>,
    pub(crate) consume: Option<ConsumeFigures>,
}

impl Engine {
    /// A thread for `links`; it counts as running from now on.
    pub(crate) fn new(config: &BenchConfig, links: Links, run: &Run, cpu: Option<u32>) -> Result<Self, LoadError> {
        let poller = Poller::new()?;
        let Links { publishers, consumers } = links;
        let publishing =
            (!publishers.is_empty()).then(|| Publishing::new(config, publishers, run, &poller)).transpose()?;
        let consuming =
            (!consumers.is_empty()).then(|| Consuming::new(config, consumers, run, &poller, CONSUMERS)).transpose()?;
        let counters = Arc::clone(&run.counters);
        counters.running.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            poller,
            publishing,
            consuming,
            counters,
            start: run.times.start,
            cpu,
            nice: config.nice,
            spin_ns: config.spin_us * 1_000,
        })
    }

    /// Runs to the end. A failure ends the other threads too.
    pub(crate) fn run(self) -> Result<Figures, LoadError> {
        let counters = Arc::clone(&self.counters);
        let result = self.serve();
        if result.is_err() {
            counters.is_failed.store(true, Ordering::Relaxed);
        }
        counters.running.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn serve(mut self) -> Result<Figures, LoadError> {
        prepare_thread(self.cpu)?;
        prioritise_thread(self.nice)?;
        let mut scratch = Scratch::new();
        self.poller.sleep(self.start)?;
        if let Some(consuming) = &mut self.consuming {
            consuming.start(&self.poller)?;
        }
        while !self.counters.is_failed.load(Ordering::Relaxed) {
            let mut wake = clock::now().plus_nanos(GLANCE_NS);
            let mut is_done = true;
            if let Some(publishing) = &mut self.publishing {
                wake = wake.min(publishing.turn(&self.poller)?);
                is_done &= publishing.is_done();
            }
            if let Some(consuming) = &mut self.consuming {
                wake = wake.min(consuming.turn());
                is_done &= consuming.is_done();
            }
            if is_done {
                break;
            }
            self.poller.wait(wake, self.spin_ns)?;
            for index in 0.. {
                let Some(ready) = self.poller.ready(index) else { break };
                match (&mut self.publishing, &mut self.consuming) {
                    (_, Some(consuming)) if ready.token >= CONSUMERS => {
                        consuming.on_ready(ready, &mut scratch, &self.poller)?;
                    }
                    (Some(publishing), _) => publishing.on_ready(ready, &mut scratch, &self.poller)?,
                    (None, _) => {}
                }
            }
        }
        let consume = self.consuming.map(|consuming| consuming.close(&mut scratch)).transpose()?;
        Ok(Figures { publish: self.publishing.map(Publishing::into_figures), consume })
    }
}
