//! One topic of a witness: its publisher and its three consumers.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tidegate_wire::nsq::client::{self, Frame};

use super::record::{Book, Seen};
use super::{LINKS, WitnessConfig};
use crate::error::LoadError;
use crate::link::{Buffering, Flushed, Heard, Identify, Link, Scratch, Subscription};
use crate::poll::{Interest, Poller};

/// In the order of their numbers.
const CHANNELS: [&str; 3] = ["all", "part", "brief#ephemeral"];
const ALL: usize = 0;
const BRIEF: usize = 2;
/// The publisher's place among the links, behind the consumers.
const PUBLISHER: usize = 3;
/// nsqd's largest: the consumers are always ready.
const RDY: u32 = 2_500;
/// A topic whose messages have not come for so long lost them, by a kill or a deletion: they are waited for no more.
const PATIENCE_NS: u64 = 1_000_000_000;
/// What was missed by being late is not made up for beyond this many messages.
const CATCH_UP: u64 = 50;
/// A topic is published to for 1 to 3 s, then rests for up to 0.8 s: its bucket fills, and the next burst is seen.
const ON_NS: (u64, u64) = (1_000_000_000, 2_000_000_000);
const OFF_NS: (u64, u64) = (100_000_000, 700_000_000);

#[derive(Debug)]
struct Open {
    link: Link,
    interest: Interest,
    is_closed: bool,
}

/// One topic.
#[derive(Debug)]
pub(super) struct Topic {
    address: SocketAddr,
    number: u16,
    name: String,
    identify: Identify,
    links: [Option<Open>; LINKS],
    offered_per_s: u64,
    backlog_max: u64,
    rng: Rng,
    /// Of the turn: its begin, its end, and what was published in it. Between turns `end` is in the past.
    turn: (Instant, Instant, u64),
    rest_until: Instant,
    is_paused: bool,
    sequence: u32,
    unanswered: VecDeque<(u32, Instant)>,
    /// Written, not refused, and not seen at `all`.
    outstanding: u64,
    refused: u64,
    last_seen: Instant,
    /// Sequence numbers seen at `all`.
    seen: Vec<u64>,
}

impl Topic {
    pub(super) fn new(config: &WitnessConfig, number: u32, rng: Rng, now: Instant) -> Self {
        Self {
            address: config.address,
            number: u16::try_from(number).unwrap_or(u16::MAX),
            name: format!("{}{number}", config.topic),
            identify: Identify::new(Buffering::Unbuffered, 0),
            links: [const { None }; LINKS],
            offered_per_s: config.offered_per_s.into(),
            backlog_max: config.backlog_max,
            rng,
            turn: (now, now, 0),
            rest_until: now,
            is_paused: false,
            sequence: 0,
            unanswered: VecDeque::new(),
            outstanding: 0,
            refused: 0,
            last_seen: now,
            seen: Vec::new(),
        }
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    pub(super) fn resume(&mut self, now: Instant) {
        self.is_paused = false;
        // A turn begins at once: what is full now is to be seen.
        self.rest_until = now;
    }

    /// Nothing is outstanding, or nothing comes any more.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        self.outstanding == 0 || now.nanos_since(self.last_seen) > PATIENCE_NS
    }

    /// Opens what is closed; false if the broker does not answer.
    pub(super) fn connect(&mut self, poller: &Poller, book: &mut Book) -> bool {
        for place in 0..LINKS {
            if self.links[place].is_some() {
                continue;
            }
            let subscription = CHANNELS.get(place).map(|channel| Subscription { topic: &self.name, channel });
            let Ok(mut link) = Link::open(self.address, Some(&self.identify), subscription) else { return false };
            if place < PUBLISHER {
                client::put_rdy(link.out(), RDY);
            }
            let token = (usize::from(self.number) * LINKS + place) as u64;
            if link.flush().is_err() || poller.add(&link, token).is_err() {
                return false;
            }
            if let Ok(channel) = u8::try_from(place)
                && place < PUBLISHER
            {
                book.note(Seen::Ready { topic: self.number, channel, at: clock::now() });
            }
            self.links[place] = Some(Open { link, interest: Interest::Read, is_closed: false });
        }
        true
    }

    /// Writes what is due.
    pub(super) fn publish(&mut self, now: Instant) {
        if self.links[PUBLISHER].is_none() || self.is_paused {
            // A turn that was broken off is not made up for.
            self.turn = (now, now, 0);
            return;
        }
        let (begin, end, offered) = self.turn;
        if now >= end {
            if begin < end {
                self.rest_until = now.plus_nanos(OFF_NS.0 + self.rng.below(OFF_NS.1));
                self.turn = (now, now, 0);
            } else if now >= self.rest_until {
                self.turn = (now, now.plus_nanos(ON_NS.0 + self.rng.below(ON_NS.1)), 0);
            }
            return;
        }
        if self.outstanding >= self.backlog_max && now.nanos_since(self.last_seen) > PATIENCE_NS {
            self.outstanding = 0;
        }
        let due = self.offered_per_s.saturating_mul(now.nanos_since(begin)) / 1_000_000_000;
        let room = self.backlog_max.saturating_sub(self.outstanding);
        let count = due.saturating_sub(offered).min(CATCH_UP).min(room);
        // What there was no room for is not made up for either.
        self.turn.2 = due;
        for _ in 0..count {
            let Some(publisher) = &mut self.links[PUBLISHER] else { return };
            client::put_pub(publisher.link.out(), &self.name, &self.sequence.to_be_bytes());
            self.unanswered.push_back((self.sequence, clock::now()));
            self.sequence += 1;
            self.outstanding += 1;
        }
    }

    /// Sends what is buffered, on all connections.
    pub(super) fn flush(&mut self, poller: &Poller, now: Instant, book: &mut Book) -> Result<(), LoadError> {
        for place in 0..LINKS {
            let token = (usize::from(self.number) * LINKS + place) as u64;
            if let Some(open) = &mut self.links[place] {
                match open.link.flush() {
                    Ok(flushed) => {
                        let interest = if flushed == Flushed::All { Interest::Read } else { Interest::ReadWrite };
                        if interest != open.interest {
                            open.interest = interest;
                            poller.modify(&open.link, token, interest).map_err(LoadError::os("watch a socket"))?;
                        }
                    }
                    Err(_) => open.is_closed = true,
                }
            }
            self.forget_closed(place, poller, now, book)?;
        }
        Ok(())
    }

    /// Reads once; returns when a message came to `all`.
    pub(super) fn read(
        &mut self,
        place: usize,
        scratch: &mut Scratch,
        book: &mut Book,
    ) -> Result<Option<Instant>, LoadError> {
        let Some(open) = &mut self.links[place] else { return Ok(None) };
        let (topic, mut arrived) = (self.number, None);
        let (unanswered, outstanding, refused) = (&mut self.unanswered, &mut self.outstanding, &mut self.refused);
        let seen = &mut self.seen;
        let channel = u8::try_from(place).expect("a link of four");
        let mut now = None;
        let heard = open.link.read(scratch, |frame, out| {
            // After the bytes came; one stamp for all that came with one read.
            let now = *now.get_or_insert_with(clock::now);
            match frame {
                Frame::Message(header, body) => {
                    client::put_fin(out, &header.id);
                    let Some(sequence) = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else { return };
                    book.note(Seen::Delivery { topic, channel, sequence, at: now });
                    arrived = Some(now);
                    if place == ALL && is_first(seen, sequence) {
                        *outstanding = outstanding.saturating_sub(1);
                    }
                }
                Frame::Response(b"OK") if place == PUBLISHER => {
                    if let Some((sequence, sent)) = unanswered.pop_front() {
                        book.note(Seen::Accepted { topic, sequence, sent, answered: now });
                    }
                }
                Frame::Error(_) if place == PUBLISHER && unanswered.pop_front().is_some() => {
                    *refused += 1;
                    *outstanding = outstanding.saturating_sub(1);
                }
                // A FIN that came too late, an answer to nothing.
                Frame::Error(_) | Frame::Response(_) => {}
            }
        })?;
        // FINs go at once: a time-out of a message that was seen would be the witness's own doing.
        open.is_closed |= heard == Heard::Closed || open.link.flush().is_err();
        if let Some(at) = arrived.filter(|_| place == ALL) {
            self.last_seen = at;
        }
        Ok(arrived.filter(|_| place == ALL))
    }

    /// Closes the consumer of the ephemeral channel; it is opened again at the next tick.
    pub(super) fn close_brief(&mut self, poller: &Poller, book: &mut Book) -> Result<(), LoadError> {
        if let Some(open) = &mut self.links[BRIEF] {
            open.is_closed = true;
        }
        self.forget_closed(BRIEF, poller, clock::now(), book)
    }

    /// Drops a connection that was found closed.
    pub(super) fn forget_closed(
        &mut self,
        place: usize,
        poller: &Poller,
        at: Instant,
        book: &mut Book,
    ) -> Result<(), LoadError> {
        let Some(open) = self.links[place].take_if(|open| open.is_closed) else { return Ok(()) };
        poller.remove(&open.link).map_err(LoadError::os("forget a socket"))?;
        if place == PUBLISHER {
            // They may have arrived or not.
            self.outstanding = self.outstanding.saturating_sub(self.unanswered.len() as u64);
            self.unanswered.clear();
        } else if let Ok(channel) = u8::try_from(place) {
            book.note(Seen::Closed { topic: self.number, channel, at });
        }
        Ok(())
    }
}

/// Notes a sequence number; false if it was noted before.
fn is_first(seen: &mut Vec<u64>, sequence: u32) -> bool {
    let (word, bit) = (sequence as usize / 64, 1 << (sequence % 64));
    if seen.len() <= word {
        seen.resize(word + 1, 0);
    }
    let is_first = seen[word] & bit == 0;
    seen[word] |= bit;
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_first_once() {
        let mut seen = Vec::new();
        assert!(is_first(&mut seen, 64) && is_first(&mut seen, 0) && !is_first(&mut seen, 64));
    }

    #[test]
    fn a_topic_offers_its_rate_in_its_turn_and_no_more_than_may_be_outstanding() {
        let now = Instant::from_nanos(1);
        let config = WitnessConfig { offered_per_s: 1_000, backlog_max: 30, ..WitnessConfig::default() };
        let mut topic = Topic::new(&config, 3, Rng::new(1), now);
        topic.publish(now);
        assert_eq!(topic.outstanding, 0, "nothing is published without a connection");
        assert!(topic.is_drained(now));
        topic.outstanding = 1;
        assert!(!topic.is_drained(now) && topic.is_drained(now.plus_nanos(PATIENCE_NS + 1)));
    }
}
