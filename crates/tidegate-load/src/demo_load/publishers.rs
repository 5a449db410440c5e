//! Publishers whose rate changes while they run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Frame};

use super::{LiveArrivals, LiveRate};
use crate::error::LoadError;
use crate::link::{Buffering, Flushed, Heard, Identify, Link, Scratch};
use crate::load_thread::{LoadThread, StopSign};
use crate::poll::{Interest, Poller, allow_open_files, prepare_thread};
use crate::stamp::{STAMP_BYTES, Stamp};

/// A changed rate, a burst or a stop is seen this soon.
const GLANCE_NS: u64 = 10_000_000;
const ARRIVALS_AT_ONCE: usize = 64;

/// Who publishes what.
#[derive(Clone, PartialEq, Debug)]
pub struct PublishersConfig {
    /// The broker's TCP address.
    pub address: SocketAddr,
    /// Where to.
    pub topic: String,
    /// Connections; together they are a Poisson process.
    pub publishers: u32,
    /// Bytes of a message, at least 32.
    pub payload_bytes: usize,
    /// Messages per second of all together, to begin with.
    pub rate_per_s: f64,
    /// What one publisher may have unanswered; what is due beyond that it drops itself, as a device with little memory.
    pub unanswered_max: u64,
    /// Tells these messages from others; the consumer is given the same.
    pub run: u32,
    /// Same seed, same arrivals (at a constant rate).
    pub seed: u64,
}

/// Publishers at work. They stop when this is dropped.
#[derive(Debug)]
pub struct Publishers {
    shared: Arc<Shared>,
    thread: LoadThread,
}

/// What became of the messages so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PublisherCounts {
    /// Due.
    pub offered: u64,
    /// Taken by the broker.
    pub accepted: u64,
    /// Refused by the broker.
    pub refused: u64,
    /// Never sent, because the broker had not answered `unanswered_max` earlier ones.
    pub dropped: u64,
}

/// Counts are read to be shown: relaxed, each on its own.
#[derive(Debug)]
struct Shared {
    rate: LiveRate,
    burst: AtomicU64,
    offered: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

impl Publishers {
    /// Connects, then publishes until stopped.
    ///
    /// # Errors
    /// [`LoadError`] if a connection or its handshake fails.
    pub fn start(config: &PublishersConfig) -> Result<Self, LoadError> {
        if config.publishers == 0 || config.payload_bytes < STAMP_BYTES {
            let value = format!("{} of {} bytes", config.publishers, config.payload_bytes);
            return Err(LoadError::Config { key: "publishers", value, expected: "at least 1, of 32 bytes each" });
        }
        allow_open_files(config.publishers as usize)?;
        let poller = Poller::new()?;
        let identify = Identify::new(Buffering::Default, 0);
        let mut publishers = Vec::with_capacity(config.publishers as usize);
        for token in 0..u64::from(config.publishers) {
            let link = Link::open(config.address, Some(&identify), None)?;
            poller.add(&link, token).map_err(LoadError::os("watch a socket"))?;
            publishers.push(Publisher { link, interest: Interest::Read, sequence: 0, answered: 0 });
        }
        let shared = Arc::new(Shared {
            rate: LiveRate::new(config.rate_per_s),
            burst: AtomicU64::new(0),
            offered: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let work = Work {
            poller,
            publishers,
            topic: config.topic.clone(),
            body: vec![b'.'; config.payload_bytes],
            run: config.run,
            unanswered_max: config.unanswered_max,
            rng: Rng::new(config.seed),
            shared: Arc::clone(&shared),
        };
        let thread = LoadThread::start("publishers", |stop| work.run(&stop))?;
        Ok(Self { shared, thread })
    }

    /// Messages per second from now on; negative and odd numbers are zero.
    pub fn set_rate(&self, per_s: f64) {
        self.shared.rate.set(per_s);
    }

    /// Messages per second, as set.
    #[must_use]
    pub fn rate_per_s(&self) -> f64 {
        self.shared.rate.per_s()
    }

    /// `messages` more, now.
    pub fn burst(&self, messages: u64) {
        self.shared.burst.fetch_add(messages, Ordering::Relaxed);
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> PublisherCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { offered, accepted, refused, dropped, .. } = &*self.shared;
        PublisherCounts {
            offered: read(offered),
            accepted: read(accepted),
            refused: read(refused),
            dropped: read(dropped),
        }
    }

    /// False if they had to give up; [`stop`](Self::stop) says why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.is_running()
    }

    /// Ends the publishing.
    ///
    /// # Errors
    /// [`LoadError`] if it had ended before, such as with the broker.
    pub fn stop(self) -> Result<(), LoadError> {
        self.thread.stop()
    }
}

struct Work {
    poller: Poller,
    publishers: Vec<Publisher>,
    topic: String,
    body: Vec<u8>,
    run: u32,
    unanswered_max: u64,
    rng: Rng,
    shared: Arc<Shared>,
}

struct Publisher {
    link: Link,
    interest: Interest,
    sequence: u64,
    answered: u64,
}

impl Work {
    fn run(mut self, stop: &StopSign) -> Result<(), LoadError> {
        prepare_thread(None)?;
        let mut scratch = Scratch::new();
        let mut arrivals = LiveArrivals::new();
        while !stop.is_up() {
            let now = clock::now();
            arrivals.follow(&self.shared.rate, now, &mut self.rng);
            for _ in 0..ARRIVALS_AT_ONCE {
                let Some(intended) = arrivals.take(now, &mut self.rng) else { break };
                self.publish(intended)?;
            }
            for _ in 0..self.shared.burst.swap(0, Ordering::Relaxed) {
                self.publish(now)?;
            }
            self.poller.wait(arrivals.next().min(now.plus_nanos(GLANCE_NS)), 0)?;
            for event in 0.. {
                let Some(ready) = self.poller.ready(event) else { break };
                let index = usize::try_from(ready.token).expect("a token of ours");
                self.hear(index, &mut scratch)?;
                self.flush(index)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, intended: Instant) -> Result<(), LoadError> {
        self.shared.offered.fetch_add(1, Ordering::Relaxed);
        let number = self.rng.below(self.publishers.len() as u64);
        let index = usize::try_from(number).expect("below a length");
        let publisher = &mut self.publishers[index];
        if publisher.sequence - publisher.answered >= self.unanswered_max {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let stamp = Stamp {
            intended,
            sent: clock::now(),
            run: self.run,
            publisher: u32::try_from(index).expect("publishers are counted in 32 bits"),
            sequence: publisher.sequence,
        };
        stamp.write(&mut self.body);
        client::put_pub(publisher.link.out(), &self.topic, &self.body);
        publisher.sequence += 1;
        self.flush(index)
    }

    fn hear(&mut self, index: usize, scratch: &mut Scratch) -> Result<(), LoadError> {
        let publisher = &mut self.publishers[index];
        let (mut accepted, mut refused, mut last_error) = (0, 0, String::new());
        let heard = publisher.link.read(scratch, |frame, _| match frame {
            Frame::Response(b"OK") => accepted += 1,
            Frame::Error(text) => {
                refused += 1;
                last_error = String::from_utf8_lossy(text).into_owned();
            }
            _ => {}
        })?;
        publisher.answered = (publisher.answered + accepted + refused).min(publisher.sequence);
        self.shared.accepted.fetch_add(accepted, Ordering::Relaxed);
        self.shared.refused.fetch_add(refused, Ordering::Relaxed);
        if heard == Heard::Closed { Err(LoadError::Closed { role: "publisher", index, last_error }) } else { Ok(()) }
    }

    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let publisher = &mut self.publishers[index];
        let flushed = publisher.link.flush().map_err(LoadError::os("write to the broker"))?;
        let interest = if flushed == Flushed::All { Interest::Read } else { Interest::ReadWrite };
        if interest != publisher.interest {
            publisher.interest = interest;
            let watched = self.poller.modify(&publisher.link, index as u64, interest);
            watched.map_err(LoadError::os("watch a socket"))?;
        }
        Ok(())
    }
}
