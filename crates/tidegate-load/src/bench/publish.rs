//! The publishing half of a run.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Batch, Frame};

use super::config::{BenchConfig, Command, Pace};
use super::engine::{Counters, Run, Times};
use crate::arrivals::Arrivals;
use crate::error::LoadError;
use crate::latency::Latency;
use crate::ledger::{Manifest, Sent};
use crate::link::{Flushed, Heard, Link, Scratch};
use crate::poll::{Interest, Poller, Ready};
use crate::stamp::Stamp;

/// What one connection may hold back in an open loop before the run is given up.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Arrivals sent before sockets are looked at again.
const ARRIVALS_AT_ONCE: usize = 64;
/// How often a saturating publisher whose consumer is in another thread looks whether it has caught up.
const BACKLOG_POLL_NS: u64 = 50_000;

/// All publishers of a run.
#[derive(Debug)]
pub(crate) struct Publishing {
    publishers: Vec<Publisher>,
    plan: Plan,
    pace: Loop,
    counters: Arc<Counters>,
    figures: PublishFigures,
    done: bool,
}

/// What the publishers of a run measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishFigures {
    /// Of the generator, behind the intended times.
    pub(crate) lateness: Latency,
    /// From the intended time to the broker's answer.
    pub(crate) answer: Latency,
    /// Arrivals whose connection was gone.
    pub(crate) unsent: u64,
    pub(crate) manifest: Manifest,
}

#[derive(Debug)]
struct Plan {
    topic: String,
    command: Command,
    batch: u32,
    body: Vec<u8>,
    run: u32,
    times: Times,
    tolerate_disconnect: bool,
}

#[derive(Debug)]
enum Loop {
    Open(Box<Peekable<Arrivals>>),
    Saturate { window: usize, backlog_max: Option<u64>, shares_thread: bool },
}

#[derive(Debug)]
struct Publisher {
    link: Link,
    interest: Interest,
    is_open: bool,
    sent: Sent,
    /// Commands without an answer, oldest first.
    unanswered: VecDeque<Unanswered>,
    /// Intended times of messages that wait for the answer to another.
    waiting: VecDeque<Instant>,
    last_error: String,
}

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    intended: Instant,
    messages: u32,
}

impl Publishing {
    /// Publishers on `links`, which `poller` will watch under the tokens from 0 on.
    pub(crate) fn new(config: &BenchConfig, links: Vec<Link>, run: &Run, poller: &Poller) -> Result<Self, LoadError> {
        let mut publishers = Vec::with_capacity(links.len());
        for (link, token) in links.into_iter().zip(0..) {
            poller.add(&link, token).map_err(LoadError::os("watch a socket"))?;
            publishers.push(Publisher {
                link,
                interest: Interest::Read,
                is_open: true,
                sent: Sent::default(),
                unanswered: VecDeque::new(),
                waiting: VecDeque::new(),
                last_error: String::new(),
            });
        }
        let pace = match (config.shape(), config.pace) {
            (Some(shape), _) => Loop::Open(Box::new(Arrivals::new(shape, run.times.start, config.seed).peekable())),
            (None, Pace::Saturate { window, backlog_max }) => Loop::Saturate {
                window: if config.command == Command::PubWait { 1 } else { window as usize },
                backlog_max: (config.consumers > 0).then_some(backlog_max),
                shares_thread: config.thread_count() == 1,
            },
            (None, Pace::Open { .. }) => unreachable!("a run without publishers has no publishing half"),
        };
        let plan = Plan {
            topic: config.topic.clone(),
            command: config.command,
            batch: config.batch,
            body: vec![b'.'; config.payload_bytes],
            run: run.number,
            times: run.times.clone(),
            tolerate_disconnect: config.tolerate_disconnect,
        };
        let counters = Arc::clone(&run.counters);
        Ok(Self { publishers, plan, pace, counters, figures: PublishFigures::default(), done: false })
    }

    /// Sends what is due; returns when to be called again if no socket speaks before.
    pub(crate) fn turn(&mut self, poller: &Poller) -> Result<Instant, LoadError> {
        if self.done {
            return Ok(Instant::MAX);
        }
        let now = clock::now();
        let stop = self.plan.times.measured.end;
        let next = match &self.pace {
            Loop::Open(_) => self.send_due(poller)?,
            Loop::Saturate { .. } if now < stop => self.fill_windows(poller)?.min(stop),
            Loop::Saturate { .. } => Instant::MAX,
        };
        let is_sending = next != Instant::MAX || now < stop;
        let is_answered = || self.publishers.iter().all(|p| p.unanswered.is_empty() && p.waiting.is_empty());
        if (!is_sending && is_answered()) || now >= self.plan.times.end || self.publishers.iter().all(|p| !p.is_open) {
            self.finish();
            return Ok(Instant::MAX);
        }
        Ok(next.min(self.plan.times.end))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    pub(crate) fn into_figures(self) -> PublishFigures {
        self.figures
    }

    /// A socket of ours speaks, or takes bytes again.
    pub(crate) fn on_ready(&mut self, ready: Ready, scratch: &mut Scratch, poller: &Poller) -> Result<(), LoadError> {
        let index = usize::try_from(ready.token).expect("a token of ours");
        let publisher = &mut self.publishers[index];
        if !publisher.is_open {
            return Ok(());
        }
        if ready.readable {
            let now = clock::now();
            let (measured, figures) = (&self.plan.times.measured, &mut self.figures);
            let (mut accepted, mut refused) = (0, 0);
            let Publisher { link, sent, unanswered, last_error, .. } = publisher;
            let heard = link.read(scratch, |frame, _| {
                if let Frame::Error(text) = frame {
                    *last_error = String::from_utf8_lossy(text).into_owned();
                }
                // An error that answers nothing announces the end of the connection.
                let Some(answered) = unanswered.pop_front() else { return };
                let messages = u64::from(answered.messages);
                if frame == Frame::Response(b"OK") {
                    accepted += messages;
                    if measured.contains(&answered.intended) {
                        figures.answer.record(answered.intended, now);
                    }
                } else {
                    refused += messages;
                    sent.refuse(messages);
                }
                sent.answered += messages;
            })?;
            self.counters.accepted.fetch_add(accepted, Ordering::Relaxed);
            self.counters.refused.fetch_add(refused, Ordering::Relaxed);
            if heard == Heard::Closed {
                return self.close(index, poller);
            }
            if publisher.unanswered.is_empty()
                && let Some(intended) = publisher.waiting.pop_front()
            {
                self.write(index, intended);
            }
        }
        self.flush(index, poller)
    }

    /// Open loop: everything whose time has come, up to a bound; returns the time of the next.
    fn send_due(&mut self, poller: &Poller) -> Result<Instant, LoadError> {
        for _ in 0..ARRIVALS_AT_ONCE {
            let Loop::Open(arrivals) = &mut self.pace else { break };
            let Some(arrival) = arrivals.peek().copied().filter(|next| next.at < self.plan.times.measured.end) else {
                return Ok(Instant::MAX);
            };
            let now = clock::now();
            if arrival.at > now {
                return Ok(arrival.at);
            }
            arrivals.next();
            if self.plan.times.measured.contains(&arrival.at) {
                self.figures.lateness.record(arrival.at, now);
            }
            let index = arrival.publisher as usize;
            let publisher = &mut self.publishers[index];
            if !publisher.is_open {
                self.figures.unsent += u64::from(self.plan.batch);
                continue;
            }
            if self.plan.command == Command::PubWait {
                let held = publisher.waiting.len() * self.plan.body.len();
                if held > UNSENT_BYTES_MAX {
                    return Err(LoadError::Unsent { index, bytes: held });
                }
                publisher.waiting.extend((0..self.plan.batch).map(|_| arrival.at));
                if publisher.unanswered.is_empty() && publisher.waiting.pop_front().is_some() {
                    self.write(index, arrival.at);
                }
            } else {
                self.write(index, arrival.at);
            }
            self.flush(index, poller)?;
        }
        Ok(Instant::ZERO)
    }

    /// Closed loop: tops up every window that is half empty.
    fn fill_windows(&mut self, poller: &Poller) -> Result<Instant, LoadError> {
        let Loop::Saturate { window, backlog_max, shares_thread } = self.pace else { return Ok(Instant::MAX) };
        let per_command = u64::from(self.messages_per_command());
        let mut room = backlog_max.map_or(u64::MAX, |max| max.saturating_sub(self.counters.backlog()));
        for index in 0..self.publishers.len() {
            let in_flight = self.publishers[index].unanswered.len();
            if in_flight > window / 2 || !self.publishers[index].is_open {
                continue;
            }
            let commands = ((window - in_flight) as u64).min(room / per_command);
            let now = clock::now();
            for _ in 0..commands {
                self.write(index, now);
            }
            room -= commands * per_command;
            self.flush(index, poller)?;
        }
        let is_blocked = room < per_command && !shares_thread;
        Ok(if is_blocked { clock::now().plus_nanos(BACKLOG_POLL_NS) } else { Instant::MAX })
    }

    fn messages_per_command(&self) -> u32 {
        if self.plan.command == Command::Mpub { self.plan.batch } else { 1 }
    }

    /// Appends what one arrival asks for: a batch, or one message if each waits for an answer or keeps a window.
    fn write(&mut self, index: usize, intended: Instant) {
        let Plan { topic, command, batch, body, run, .. } = &mut self.plan;
        let publisher = &mut self.publishers[index];
        let is_single =
            *command == Command::PubWait || (*command != Command::Mpub && matches!(self.pace, Loop::Saturate { .. }));
        let messages = if is_single { 1 } else { *batch };
        let mut stamp = Stamp {
            intended,
            sent: clock::now(),
            run: *run,
            publisher: u32::try_from(index).expect("publishers are counted in 32 bits"),
            sequence: publisher.sent.written,
        };
        let out = publisher.link.out();
        if *command == Command::Mpub {
            let mut mpub = Batch::begin(out, topic);
            for _ in 0..messages {
                stamp.write(body);
                mpub.push(body);
                stamp.sequence += 1;
            }
            mpub.finish();
            publisher.unanswered.push_back(Unanswered { intended, messages });
        } else {
            for _ in 0..messages {
                stamp.write(body);
                match *command {
                    Command::Dpub { delay_ms } => client::put_dpub(out, topic, delay_ms, body),
                    _ => client::put_pub(out, topic, body),
                }
                stamp.sequence += 1;
                publisher.unanswered.push_back(Unanswered { intended, messages: 1 });
            }
        }
        publisher.sent.written += u64::from(messages);
        self.counters.written.fetch_add(u64::from(messages), Ordering::Relaxed);
    }

    fn flush(&mut self, index: usize, poller: &Poller) -> Result<(), LoadError> {
        let publisher = &mut self.publishers[index];
        if !publisher.is_open {
            return Ok(());
        }
        let Ok(flushed) = publisher.link.flush() else { return self.close(index, poller) };
        let bytes = publisher.link.unsent();
        if bytes > UNSENT_BYTES_MAX {
            return Err(LoadError::Unsent { index, bytes });
        }
        let interest = if flushed == Flushed::All { Interest::Read } else { Interest::ReadWrite };
        if interest != publisher.interest {
            publisher.interest = interest;
            poller.modify(&publisher.link, index as u64, interest).map_err(LoadError::os("watch a socket"))?;
        }
        Ok(())
    }

    fn close(&mut self, index: usize, poller: &Poller) -> Result<(), LoadError> {
        let publisher = &mut self.publishers[index];
        publisher.is_open = false;
        poller.remove(&publisher.link).map_err(LoadError::os("forget a socket"))?;
        self.figures.unsent += publisher.waiting.len() as u64;
        publisher.waiting.clear();
        // Without an answer for good: nobody waits for one any more.
        publisher.unanswered.clear();
        if self.plan.tolerate_disconnect {
            return Ok(());
        }
        Err(LoadError::Closed { role: "publisher", index, last_error: publisher.last_error.clone() })
    }

    fn finish(&mut self) {
        self.done = true;
        let sent = self.publishers.iter_mut().map(|publisher| std::mem::take(&mut publisher.sent)).collect();
        self.figures.manifest = Manifest { run: self.plan.run, publishers: sent };
        self.counters.publishing_ends(&self.figures.manifest);
    }
}
