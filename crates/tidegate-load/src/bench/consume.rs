//! The consuming half of a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Frame};
use tidegate_wire::nsq::frame::Header;

use super::config::{Action, BenchConfig, Command};
use super::engine::{Counters, Run, Times};
use crate::access::AccessCheck;
use crate::error::LoadError;
use crate::latency::Latency;
use crate::ledger::Ledger;
use crate::link::{Flushed, Heard, Link, Scratch};
use crate::poll::{Interest, Poller, Ready};
use crate::release_law::ReleaseLaw;
use crate::stamp::Stamp;

/// 2^28 messages of one publisher may be behind its newest before the oldest are given up.
const LEDGER_WORDS_MAX: usize = 1 << 22;
/// Deliveries that are noted: 128 MiB. Later ones are left out.
const DELIVERIES_MAX: usize = 1 << 23;
/// When every accepted message is there, messages without an answer may still come, for so long after the last.
const QUIET_NS: u64 = 1_000_000_000;

/// All consumers of a run.
#[derive(Debug)]
pub(crate) struct Consuming {
    consumers: Vec<Consumer>,
    first_token: u64,
    intake: Intake,
    tolerate_disconnect: bool,
    counters: Arc<Counters>,
    done: bool,
}

/// What the consumers of a run measured.
#[derive(Debug)]
pub(crate) struct ConsumeFigures {
    /// From the intended time to the return of the read that brought the message.
    pub(crate) end_to_end: Latency,
    /// Behind the moment at which a deferred, requeued or timed-out message was due.
    pub(crate) timers: Latency,
    pub(crate) ledger: Ledger,
    pub(crate) release: Option<ReleaseLaw>,
    pub(crate) access: Option<AccessCheck>,
    /// When messages were sent and came, if that is asked for.
    pub(crate) deliveries: Option<Vec<(Instant, Instant)>>,
    /// Messages of other runs, or of nobody; they are finished.
    pub(crate) foreign: u64,
    /// Error frames, such as a FIN that came too late.
    pub(crate) errors: u64,
    pub(crate) last_error: String,
    /// When the last message came.
    pub(crate) last: Instant,
}

#[derive(Debug)]
struct Consumer {
    link: Link,
    interest: Interest,
    is_open: bool,
}

/// What happens to a message, apart from sockets.
#[derive(Debug)]
struct Intake {
    run: u32,
    action: Action,
    /// After the publishing, or after the first delivery, when the message is due.
    due_after_ns: Option<u64>,
    /// When messages came, or were sent back, for the first time.
    first_seen: BTreeMap<(u32, u64), Instant>,
    times: Times,
    figures: ConsumeFigures,
}

impl Consuming {
    /// Consumers on `links`, which `poller` will watch under the tokens from `first_token` on.
    pub(crate) fn new(
        config: &BenchConfig,
        links: Vec<Link>,
        run: &Run,
        poller: &Poller,
        first_token: u64,
    ) -> Result<Self, LoadError> {
        let mut consumers = Vec::with_capacity(links.len());
        for (mut link, token) in links.into_iter().zip(first_token..) {
            poller.add(&link, token).map_err(LoadError::os("watch a socket"))?;
            client::put_rdy(link.out(), config.rdy);
            consumers.push(Consumer { link, interest: Interest::Read, is_open: true });
        }
        Ok(Self {
            consumers,
            first_token,
            intake: Intake::new(config, run),
            tolerate_disconnect: config.tolerate_disconnect,
            counters: Arc::clone(&run.counters),
            done: false,
        })
    }

    /// Lets the messages come.
    pub(crate) fn start(&mut self, poller: &Poller) -> Result<(), LoadError> {
        (0..self.consumers.len()).try_for_each(|index| self.flush(index, poller))
    }

    /// Returns when to be called again if no socket speaks before.
    pub(crate) fn turn(&mut self) -> Instant {
        if self.done {
            return Instant::MAX;
        }
        let now = clock::now();
        let quiet_at = self.intake.figures.last.max(self.intake.times.start).plus_nanos(QUIET_NS);
        let unique = self.intake.figures.ledger.received().unique;
        let expected = self.counters.expected();
        let is_complete =
            expected.is_some_and(|(accepted, written)| unique >= written || (unique >= accepted && now >= quiet_at));
        if is_complete || now >= self.intake.times.end || self.consumers.iter().all(|consumer| !consumer.is_open) {
            self.done = true;
            return Instant::MAX;
        }
        let wake = if expected.is_some() && now < quiet_at { quiet_at } else { self.intake.times.end };
        wake.min(self.intake.times.end)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Closes the subscriptions, so that the broker has read every FIN when this returns.
    pub(crate) fn close(mut self, scratch: &mut Scratch) -> Result<ConsumeFigures, LoadError> {
        for consumer in self.consumers.iter_mut().filter(|consumer| consumer.is_open) {
            match consumer.link.close_subscription(scratch) {
                Err(error) if !self.tolerate_disconnect => return Err(error),
                _ => {}
            }
        }
        Ok(self.intake.figures)
    }

    /// A socket of ours speaks, or takes bytes again.
    pub(crate) fn on_ready(&mut self, ready: Ready, scratch: &mut Scratch, poller: &Poller) -> Result<(), LoadError> {
        let index = usize::try_from(ready.token - self.first_token).expect("a token of ours");
        let consumer = &mut self.consumers[index];
        if !consumer.is_open {
            return Ok(());
        }
        if ready.readable {
            let before = self.intake.figures.ledger.received().unique;
            let intake = &mut self.intake;
            // Read behind the first frame, that is, after the bytes came; one stamp for all that came with one read.
            let mut now = None;
            let heard = consumer.link.read(scratch, |frame, out| {
                let now = *now.get_or_insert_with(clock::now);
                match frame {
                    Frame::Message(header, body) => intake.on_message(now, &header, body, out),
                    Frame::Error(text) => intake.on_error(text),
                    Frame::Response(_) => {}
                }
            })?;
            let delivered = self.intake.figures.ledger.received().unique - before;
            self.counters.delivered.fetch_add(delivered, Ordering::Relaxed);
            if heard == Heard::Closed {
                return self.on_closed(index, poller);
            }
        }
        self.flush(index, poller)
    }

    fn flush(&mut self, index: usize, poller: &Poller) -> Result<(), LoadError> {
        let consumer = &mut self.consumers[index];
        let Ok(flushed) = consumer.link.flush() else { return self.on_closed(index, poller) };
        let interest = if flushed == Flushed::All { Interest::Read } else { Interest::ReadWrite };
        if interest != consumer.interest {
            consumer.interest = interest;
            let token = self.first_token + index as u64;
            poller.modify(&consumer.link, token, interest).map_err(LoadError::os("watch a socket"))?;
        }
        Ok(())
    }

    fn on_closed(&mut self, index: usize, poller: &Poller) -> Result<(), LoadError> {
        let consumer = &mut self.consumers[index];
        consumer.is_open = false;
        poller.remove(&consumer.link).map_err(LoadError::os("forget a socket"))?;
        if self.tolerate_disconnect {
            return Ok(());
        }
        Err(LoadError::Closed { role: "consumer", index, last_error: self.intake.figures.last_error.clone() })
    }
}

impl Intake {
    fn new(config: &BenchConfig, run: &Run) -> Self {
        let expected = config.expect.as_ref().map_or(0, |manifest| manifest.publishers.len());
        let publishers = config.publishers.max(u32::try_from(expected).unwrap_or(u32::MAX));
        let due_after_ms = match (config.action, config.command) {
            (Action::Requeue { delay_ms }, _) | (Action::Finish | Action::Hold, Command::Dpub { delay_ms }) => {
                Some(delay_ms)
            }
            (Action::TimeOut, _) => Some(u64::from(config.msg_timeout_ms)),
            (Action::Finish | Action::Hold, _) => None,
        };
        Self {
            run: run.number,
            action: config.action,
            due_after_ns: due_after_ms.map(|ms| ms * 1_000_000),
            first_seen: BTreeMap::new(),
            times: run.times.clone(),
            figures: ConsumeFigures {
                end_to_end: Latency::default(),
                timers: Latency::default(),
                ledger: Ledger::new(publishers, LEDGER_WORDS_MAX),
                release: config.release.map(|law| ReleaseLaw::new(law.rate(), law.burst, law.slack_us * 1_000)),
                access: config.access.map(|limit| AccessCheck::new(limit.rate(), limit.burst)),
                deliveries: config.deliveries.is_some().then(Vec::new),
                foreign: 0,
                errors: 0,
                last_error: String::new(),
                last: Instant::ZERO,
            },
        }
    }

    fn on_error(&mut self, text: &[u8]) {
        self.figures.errors += 1;
        self.figures.last_error = String::from_utf8_lossy(text).into_owned();
    }

    fn on_message(&mut self, now: Instant, header: &Header, body: &[u8], out: &mut Vec<u8>) {
        let Some(stamp) = Stamp::read(body).filter(|stamp| stamp.run == self.run) else {
            self.figures.foreign += 1;
            return client::put_fin(out, &header.id);
        };
        self.figures.last = now;
        let key = (stamp.publisher, stamp.sequence);
        let due_from = match self.action {
            Action::Finish | Action::Hold => Some(stamp.sent),
            Action::Requeue { .. } | Action::TimeOut => self.first_seen.remove(&key),
        };
        let Some(due_from) = due_from else {
            if let Action::Requeue { delay_ms } = self.action {
                client::put_req(out, &header.id, delay_ms);
            }
            self.first_seen.insert(key, now);
            return;
        };
        let is_first = self.figures.ledger.record(stamp.publisher, stamp.sequence) == Some(true);
        if is_first && let Some(deliveries) = self.figures.deliveries.as_mut().filter(|all| all.len() < DELIVERIES_MAX)
        {
            deliveries.push((stamp.sent, now));
        }
        if is_first && self.times.measured.contains(&stamp.intended) {
            self.figures.end_to_end.record(stamp.intended, now);
            if let Some(after_ns) = self.due_after_ns {
                self.figures.timers.record(due_from.plus_nanos(after_ns), now);
            }
        }
        if let Some(law) = &mut self.figures.release {
            law.observe(now);
        }
        if let Some(check) = &mut self.figures.access {
            // The stamp is of the real-time clock; so must be the end of the way.
            let real = |ns: i64| Instant::from_nanos(u64::try_from(ns).unwrap_or(0));
            check.observe(real(header.timestamp), real(clock::realtime_ns()));
        }
        if self.action != Action::Hold {
            client::put_fin(out, &header.id);
        }
    }
}
