//! A consumer of stated capacity.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Frame};
use tidegate_wire::nsq::frame::ID_BYTES;

use super::LiveRate;
use crate::arrivals::whole;
use crate::error::LoadError;
use crate::latency::{LatencySummary, RollingLatency};
use crate::ledger::{Ledger, Received};
use crate::link::{Buffering, Flushed, Heard, Identify, Link, Scratch, Subscription};
use crate::load_thread::{LoadThread, StopSign};
use crate::poll::{Interest, Poller, prepare_thread};
use crate::stamp::Stamp;

/// A stop is seen this soon, and so is a capacity that was zero.
const GLANCE_NS: u64 = 10_000_000;
/// What a reader sees: five seconds, in half seconds.
const WINDOW_SLOTS: usize = 10;
const WINDOW_SLOT_NS: u64 = 500_000_000;
/// 4,096 messages of a publisher may be missing before the oldest count as lost for good.
const LEDGER_WORDS_MAX: usize = 64;
/// A broker that times messages out sends them again; beyond this many times RDY they go back to it for a second.
const QUEUE_RDYS_MAX: usize = 4;
const SEND_BACK_MS: u64 = 1_000;

/// Who consumes what.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerConfig {
    /// The broker's TCP address.
    pub address: SocketAddr,
    /// Subscriptions, one connection each, which share the capacity first come, first served.
    pub feeds: Vec<Feed>,
    /// Messages per second of all feeds together, to begin with.
    pub capacity_per_s: f64,
    /// Messages in flight for each feed.
    pub rdy: u32,
    /// A message served later than this after its intended time is late. It is served all the same: a consumer cannot
    /// know that nobody waits for it any more.
    pub deadline: Duration,
}

/// A subscription.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feed {
    /// Its topic.
    pub topic: String,
    /// Its channel.
    pub channel: String,
    /// Who publishes there: the number of publishers and their run.
    pub publishers: u32,
    /// As in [`super::PublishersConfig::run`]; other messages are finished and not counted.
    pub run: u32,
}

/// A consumer at work. It stops when this is dropped.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    thread: LoadThread,
}

/// What a feed brought so far.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FeedSnapshot {
    /// Arrivals.
    pub received: Received,
    /// Served to the end.
    pub finished: u64,
    /// Those of them that were served after their deadline.
    pub late: u64,
    /// Received and not yet served.
    pub waiting: u64,
    /// Missing though later messages of the same publisher are there. What a broker refused is missing too.
    pub missing: u64,
    /// From the intended time to the end of service, over the last five seconds.
    pub end_to_end: LatencySummary,
}

#[derive(Debug)]
struct Shared {
    capacity: LiveRate,
    feeds: Vec<Mutex<Live>>,
}

#[derive(Debug)]
struct Live {
    ledger: Ledger,
    finished: u64,
    late: u64,
    waiting: u64,
    end_to_end: RollingLatency,
}

impl Shared {
    fn feed(&self, index: usize) -> MutexGuard<'_, Live> {
        // Counters have no half-done state that a panic elsewhere could leave.
        self.feeds[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consumer {
    /// Connects and subscribes, then serves until stopped.
    ///
    /// # Errors
    /// [`LoadError`] if a connection or its handshake fails.
    pub fn start(config: &ConsumerConfig) -> Result<Self, LoadError> {
        let poller = Poller::new()?;
        let identify = Identify::new(Buffering::Unbuffered, 0);
        let mut feeds = Vec::with_capacity(config.feeds.len());
        for (feed, token) in config.feeds.iter().zip(0..) {
            let subscription = Subscription { topic: &feed.topic, channel: &feed.channel };
            let mut link = Link::open(config.address, Some(&identify), Some(subscription))?;
            poller.add(&link, token).map_err(LoadError::os("watch a socket"))?;
            client::put_rdy(link.out(), config.rdy);
            feeds.push(Open { link, interest: Interest::Read, run: feed.run });
        }
        let live = config.feeds.iter().map(|feed| {
            Mutex::new(Live {
                ledger: Ledger::new(feed.publishers, LEDGER_WORDS_MAX),
                finished: 0,
                late: 0,
                waiting: 0,
                end_to_end: RollingLatency::new(WINDOW_SLOTS, WINDOW_SLOT_NS),
            })
        });
        let shared = Arc::new(Shared { capacity: LiveRate::new(config.capacity_per_s), feeds: live.collect() });
        let work = Work {
            poller,
            queue_max: QUEUE_RDYS_MAX * config.rdy as usize * feeds.len(),
            feeds,
            queue: VecDeque::new(),
            service_ends: None,
            deadline: config.deadline,
            shared: Arc::clone(&shared),
        };
        let thread = LoadThread::start("consumer", |stop| work.run(&stop))?;
        Ok(Self { shared, thread })
    }

    /// Messages per second from the next message on; negative and odd numbers are zero.
    pub fn set_capacity(&self, per_s: f64) {
        self.shared.capacity.set(per_s);
    }

    /// What feed `index` brought so far; the feeds are in the order of the configuration.
    ///
    /// # Panics
    /// If there is no such feed.
    #[must_use]
    pub fn snapshot(&self, index: usize) -> FeedSnapshot {
        let now = clock::now();
        // The sum over the window's slots is made outside the lock, so that looking does not disturb.
        let (end_to_end, mut snapshot) = {
            let live = self.shared.feed(index);
            let snapshot = FeedSnapshot {
                received: live.ledger.received(),
                finished: live.finished,
                late: live.late,
                waiting: live.waiting,
                missing: live.ledger.missing(),
                end_to_end: LatencySummary::default(),
            };
            (live.end_to_end.clone(), snapshot)
        };
        snapshot.end_to_end = end_to_end.summary(now);
        snapshot
    }

    /// False if it had to give up; [`stop`](Self::stop) says why.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.is_running()
    }

    /// Ends the consumption.
    ///
    /// # Errors
    /// [`LoadError`] if it had ended before, such as with the broker.
    pub fn stop(self) -> Result<(), LoadError> {
        self.thread.stop()
    }
}

struct Work {
    poller: Poller,
    feeds: Vec<Open>,
    queue: VecDeque<Waiting>,
    queue_max: usize,
    /// When the message at the front is done; `None` while nothing is served.
    service_ends: Option<Instant>,
    deadline: Duration,
    shared: Arc<Shared>,
}

struct Open {
    link: Link,
    interest: Interest,
    run: u32,
}

struct Waiting {
    feed: usize,
    id: [u8; ID_BYTES],
    intended: Instant,
}

impl Work {
    fn run(mut self, stop: &StopSign) -> Result<(), LoadError> {
        prepare_thread(None)?;
        let mut scratch = Scratch::new();
        for index in 0..self.feeds.len() {
            self.flush(index)?;
        }
        while !stop.is_up() {
            let now = clock::now();
            self.serve(now);
            for index in 0..self.feeds.len() {
                self.flush(index)?;
            }
            let glance = now.plus_nanos(GLANCE_NS);
            self.poller.wait(self.service_ends.unwrap_or(glance).min(glance), 0)?;
            for event in 0.. {
                let Some(ready) = self.poller.ready(event) else { break };
                self.hear(usize::try_from(ready.token).expect("a token of ours"), &mut scratch)?;
            }
        }
        Ok(())
    }

    /// Finishes what has been served by `now` and begins with the next.
    fn serve(&mut self, now: Instant) {
        let capacity = self.shared.capacity.per_s();
        while let Some(first) = self.queue.front() {
            let begun = match self.service_ends {
                // A server that is looked at late has not worked less: its messages end on time, back to back.
                Some(ends) if ends <= now => {
                    client::put_fin(self.feeds[first.feed].link.out(), &first.id);
                    let mut live = self.shared.feed(first.feed);
                    live.finished += 1;
                    live.late += u64::from(now.since(first.intended) > self.deadline);
                    live.waiting -= 1;
                    live.end_to_end.record(first.intended, now);
                    self.queue.pop_front();
                    ends
                }
                Some(_) => return,
                None => now,
            };
            let begins = !self.queue.is_empty() && capacity > 0.0;
            self.service_ends = begins.then(|| begun.plus_nanos(whole(1e9 / capacity)));
            if !begins {
                return;
            }
        }
    }

    fn hear(&mut self, index: usize, scratch: &mut Scratch) -> Result<(), LoadError> {
        let Self { feeds, queue, queue_max, shared, .. } = self;
        let Open { link, run, .. } = &mut feeds[index];
        let mut last_error = String::new();
        let mut live = shared.feed(index);
        let heard = link.read(scratch, |frame, out| match frame {
            Frame::Message(header, body) => match Stamp::read(body).filter(|stamp| stamp.run == *run) {
                None => client::put_fin(out, &header.id),
                Some(_) if queue.len() >= *queue_max => client::put_req(out, &header.id, SEND_BACK_MS),
                Some(stamp) => {
                    live.ledger.record(stamp.publisher, stamp.sequence);
                    live.waiting += 1;
                    queue.push_back(Waiting { feed: index, id: header.id, intended: stamp.intended });
                }
            },
            Frame::Error(text) => last_error = String::from_utf8_lossy(text).into_owned(),
            Frame::Response(_) => {}
        })?;
        if heard == Heard::Closed { Err(LoadError::Closed { role: "consumer", index, last_error }) } else { Ok(()) }
    }

    fn flush(&mut self, index: usize) -> Result<(), LoadError> {
        let feed = &mut self.feeds[index];
        let flushed = feed.link.flush().map_err(LoadError::os("write to the broker"))?;
        let interest = if flushed == Flushed::All { Interest::Read } else { Interest::ReadWrite };
        if interest != feed.interest {
            feed.interest = interest;
            self.poller.modify(&feed.link, index as u64, interest).map_err(LoadError::os("watch a socket"))?;
        }
        Ok(())
    }
}
