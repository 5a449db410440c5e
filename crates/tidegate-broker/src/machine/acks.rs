//! Publishes that are answered later: when their records are in the log, or when another shard has answered.
//!
//! A message that goes to the log is as safe as nsqd's only once it is in the file, so its OK waits until then. Answers
//! leave a connection in the order of its commands whatever they waited for.

use std::collections::VecDeque;

use tidegate_wire::nsq::frame;

use super::admin::PublishRefused;
use super::arena::Key;
use super::output::ConnId;

/// A publish under way.
pub(super) type AckKey = Key<Ack>;

/// A publish whose messages are not all safe yet.
#[derive(Debug)]
pub(super) struct Ack {
    /// Where the answer goes; `None` while the publish is still being carried out.
    pub(super) origin: Option<Origin>,
    /// Queues and staged messages that it waits for, and one for the publish itself while it is carried out.
    pub(super) awaited: u32,
    /// The first thing that went wrong.
    pub(super) refused: Option<PublishRefused>,
}

/// The publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A connection of this shard, and the place of the answer among its answers.
    Client(Publisher),
    /// A connection of another shard.
    Peer(usize, Publisher),
    /// The HTTP API, by the number that it was given.
    Admin(u64),
}

impl Origin {
    /// Its connection, with the number of its shard if that is another one.
    pub(super) fn connection(&self) -> Option<(Option<usize>, ConnId)> {
        match self {
            Self::Client(publisher) => Some((None, publisher.conn)),
            Self::Peer(shard, publisher) => Some((Some(*shard), publisher.conn)),
            Self::Admin(_) => None,
        }
    }
}

/// A connection's publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Publisher {
    pub(super) conn: ConnId,
    /// Which connection it is, should the number be reused.
    pub(super) serial: u64,
    /// The place of the answer among the connection's answers.
    pub(super) answer: u64,
    /// What it said: PUB, MPUB or DPUB.
    pub(super) verb: &'static str,
}

/// Answers awaited of one connection above which its next command waits.
const AWAITED_MAX: usize = 1024;
/// The same of the bytes of publishes that other shards have not answered.
const AWAITED_BYTES_MAX: usize = 1024 * 1024;

/// A connection's answers from the first that is still awaited on.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The number of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// Bytes of the publishes that are awaited, at most as many as since the last time that none was.
    bytes: usize,
}

#[derive(Debug)]
enum Slot {
    Awaited,
    Ok,
    Error(Box<[u8]>),
}

impl Answers {
    /// True if the next answer goes out at once.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// No further publish can wait for its answer.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= AWAITED_MAX || self.bytes >= AWAITED_BYTES_MAX
    }

    /// So many are out that a connection that was held for it can go on.
    pub(super) fn has_room(&self) -> bool {
        self.slots.len() <= AWAITED_MAX / 2 && self.bytes < AWAITED_BYTES_MAX
    }

    #[inline]
    pub(super) fn ok(&mut self, out: &mut Vec<u8>) {
        if self.slots.is_empty() {
            frame::put_ok(out);
        } else {
            self.slots.push_back(Slot::Ok);
        }
    }

    pub(super) fn error(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.slots.is_empty() {
            frame::put_error(out, text.as_bytes());
        } else {
            self.slots.push_back(Slot::Error(text.as_bytes().into()));
        }
    }

    /// The next answer comes later, of a publish of `bytes`; answers its place.
    pub(super) fn await_one(&mut self, bytes: usize) -> u64 {
        self.slots.push_back(Slot::Awaited);
        self.bytes += bytes;
        self.first + self.slots.len() as u64 - 1
    }

    /// The answer at `place` is there: it goes out with those behind it, once those before it have.
    pub(super) fn settle(&mut self, place: u64, result: Result<(), String>, out: &mut Vec<u8>) {
        let index = place.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) else { return };
        *slot = match result {
            Ok(()) => Slot::Ok,
            Err(text) => Slot::Error(text.into_bytes().into()),
        };
        while let Some(slot) = self.slots.pop_front_if(|slot| !matches!(slot, Slot::Awaited)) {
            self.first += 1;
            match slot {
                Slot::Ok => frame::put_ok(out),
                Slot::Error(text) => frame::put_error(out, &text),
                Slot::Awaited => {}
            }
        }
        if self.slots.is_empty() {
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_the_commands() {
        let (mut answers, mut out) = (Answers::default(), Vec::new());
        answers.ok(&mut out);
        let now = out.len();
        let [first, second] = [answers.await_one(1), answers.await_one(1)];
        answers.ok(&mut out);
        answers.error("E_X", &mut out);
        answers.settle(second, Err("E_SECOND".to_owned()), &mut out);
        assert_eq!(out.len(), now, "the first is still awaited");
        answers.settle(first, Ok(()), &mut out);
        assert!(answers.is_empty());
        let mut expected = Vec::new();
        for text in [None, None, Some("E_SECOND"), None, Some("E_X")] as [Option<&str>; 5] {
            match text {
                None => frame::put_ok(&mut expected),
                Some(text) => frame::put_error(&mut expected, text.as_bytes()),
            }
        }
        assert_eq!(out, expected);
        answers.settle(first, Ok(()), &mut out);
        assert_eq!(out, expected, "an answer is given once");
    }

    #[test]
    fn a_connection_awaits_so_many_answers_and_bytes_at_most() {
        let (mut answers, mut out) = (Answers::default(), Vec::new());
        let places: Vec<_> = (0..AWAITED_MAX).map(|_| answers.await_one(1)).collect();
        assert!(answers.is_full());
        for place in &places[..AWAITED_MAX / 2] {
            answers.settle(*place, Ok(()), &mut out);
        }
        assert!(answers.has_room());
        answers.await_one(AWAITED_BYTES_MAX);
        assert!(answers.is_full() && !answers.has_room());
    }
}
