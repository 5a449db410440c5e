//! What waits for tokens beside the topic's home.

use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_core::lend::Purse;
use tidegate_core::limit::{Pacer, TokenBucket};

use super::words::{Landed, Left, Stand};
use crate::machine::limiter::Unit;

/// Memory of a message in line beside its body, bytes.
const MESSAGE_BYTES: u64 = size_of::<Waiting>() as u64;
/// Released messages that may be on their way to the home at a time,
const UNDER_WAY_MAX: u64 = 4_096;
/// and bytes of their bodies, but for one message.
const UNDER_WAY_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A message that a lane has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) arrival: Instant,
    pub(crate) read: Instant,
    /// The connection that published it, by its serial.
    pub(crate) serial: u64,
    pub(crate) body: Box<[u8]>,
}

/// A message that has its tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Passed {
    pub(crate) message: Waiting,
    pub(crate) epoch: u64,
    pub(crate) since: Instant,
    pub(crate) release: Instant,
}

/// What a lane's line may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
enum State {
    /// Everything goes to the home as it is.
    Shut,
    /// What is taken waits for the share.
    Held { epoch: u64 },
    /// What is taken waits for tokens.
    Open { epoch: u64, pacer: Pacer, unit: Unit },
}

/// A topic's lane on a shard that is not its home.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) home: usize,
    state: State,
    /// Taken since the last step, not yet in order of their stamps.
    staged: Vec<Waiting>,
    line: VecDeque<Waiting>,
    /// Bytes of memory that `staged` and `line` take.
    bytes: u64,
    /// Bytes of the bodies in `staged` and `line`.
    body_bytes: u64,
    under_way: Landed,
    /// When the head gets its tokens.
    due: Option<Instant>,
    /// Connections held back because the line is full.
    pub(crate) blocked: Vec<usize>,
    /// Something changed since it was last said how the lane stands.
    changed: bool,
}

impl Lane {
    /// A lane of a topic that lives on shard `home`.
    pub(crate) fn new(home: usize) -> Self {
        Self {
            home,
            state: State::Shut,
            staged: Vec::new(),
            line: VecDeque::new(),
            bytes: 0,
            body_bytes: 0,
            under_way: Landed::default(),
            due: None,
            blocked: Vec::new(),
            changed: false,
        }
    }

    /// What is published waits here.
    pub(crate) fn takes(&self) -> bool {
        !matches!(self.state, State::Shut)
    }

    /// The opening that the lane holds or releases in.
    pub(crate) fn epoch(&self) -> Option<u64> {
        match &self.state {
            State::Shut => None,
            State::Held { epoch } | State::Open { epoch, .. } => Some(*epoch),
        }
    }

    /// It has a share.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.line.is_empty()
    }

    pub(crate) fn has_room(&self, bounds: Bounds) -> bool {
        self.staged.len() + self.line.len() < bounds.messages && self.bytes < bounds.bytes
    }

    /// Takes a message; it is put in line in the next [`Lane::step`].
    pub(crate) fn take(&mut self, message: Waiting) {
        self.bytes += message.body.len() as u64 + MESSAGE_BYTES;
        self.body_bytes += message.body.len() as u64;
        self.changed = true;
        self.staged.push(message);
    }

    /// A connection waits for room.
    pub(crate) fn block(&mut self, conn: usize) {
        self.changed = true;
        self.blocked.push(conn);
    }

    /// The connections that waited for room.
    pub(crate) fn unblock(&mut self) -> Vec<usize> {
        self.changed |= !self.blocked.is_empty();
        std::mem::take(&mut self.blocked)
    }

    /// Holds what comes.
    pub(crate) fn hold(&mut self, epoch: u64) {
        self.state = State::Held { epoch };
    }

    /// Gets its share; `false` if it does not hold for `epoch`.
    pub(crate) fn go(&mut self, epoch: u64, bucket: TokenBucket, unit: Unit) -> bool {
        if !matches!(self.state, State::Held { epoch: held } if held == epoch) {
            return false;
        }
        self.state = State::Open { epoch, pacer: Pacer::new(bucket), unit };
        (self.under_way, self.changed) = (Landed::default(), true);
        true
    }

    /// So much of what was released has come to the home.
    pub(crate) fn on_landed(&mut self, landed: Landed) {
        self.under_way.messages = self.under_way.messages.saturating_sub(landed.messages);
        self.under_way.bytes = self.under_way.bytes.saturating_sub(landed.bytes);
    }

    /// Puts in line what was taken, and gives out what has its tokens.
    pub(crate) fn step(&mut self, now: Instant, mut out: impl FnMut(Passed)) {
        self.line_up();
        self.due = None;
        let State::Open { epoch, pacer, unit } = &mut self.state else { return };
        while let Some(head) = self.line.front() {
            if is_full(self.under_way) {
                pacer.hold_up();
                return;
            }
            let bytes = head.body.len() as u64;
            let cost = unit.cost(1, bytes);
            pacer.resume(now);
            let since = pacer.since(head.arrival);
            match pacer.release_of(cost, head.arrival) {
                Some(release) if release <= now => {
                    pacer.take(cost, release);
                    self.bytes -= bytes + MESSAGE_BYTES;
                    self.body_bytes -= bytes;
                    self.under_way.messages += 1;
                    self.under_way.bytes += bytes;
                    self.changed = true;
                    if let Some(message) = self.line.pop_front() {
                        out(Passed { message, epoch: *epoch, since, release });
                    }
                }
                Some(release) => {
                    self.due = Some(release);
                    return;
                }
                // A share without a rate gets nothing but what it borrows.
                None => return,
            }
        }
    }

    fn line_up(&mut self) {
        // As in the home: connections are read one after another, and the sort is stable.
        if !self.staged.is_sorted_by_key(|message| message.arrival) {
            self.staged.sort_by_key(|message| message.arrival);
        }
        self.line.extend(self.staged.drain(..));
    }

    /// When to step if nothing else happens.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Tokens that what waits here needs, if it waits for them.
    pub(crate) fn wanted(&self) -> u64 {
        match &self.state {
            State::Open { unit, .. } if !is_full(self.under_way) => unit.cost(self.line.len() as u64, self.body_bytes),
            _ => 0,
        }
    }

    /// The share, to be lent.
    pub(crate) fn purse(&mut self) -> Option<&mut TokenBucket> {
        match &mut self.state {
            State::Open { pacer, .. } => Some(pacer.bucket_mut()),
            _ => None,
        }
    }

    /// It is over: what waits, in order, and what is left of the share.
    pub(crate) fn shut(&mut self, now: Instant) -> (impl Iterator<Item = Waiting> + '_, Option<Left>) {
        self.line_up();
        let left = match &self.state {
            State::Open { pacer, .. } => Some(Left { tokens: Purse::tokens(pacer.bucket(), now), at: now }),
            _ => None,
        };
        self.state = State::Shut;
        (self.bytes, self.body_bytes, self.due, self.changed) = (0, 0, None, true);
        (self.line.drain(..), left)
    }

    /// How it stands, if that has changed since it was last asked.
    pub(crate) fn news(&mut self) -> Option<Stand> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let messages = self.line.len() as u64;
        let bucket = match &self.state {
            State::Open { pacer, .. } => Some(pacer.bucket().clone()),
            _ => None,
        };
        let (bytes, body_bytes, blocked) = (self.bytes, self.body_bytes, self.blocked.len() as u64);
        Some(Stand { messages, bytes, body_bytes, blocked, bucket })
    }
}

/// No more may be on its way.
fn is_full(under_way: Landed) -> bool {
    under_way.messages >= UNDER_WAY_MAX || under_way.bytes >= UNDER_WAY_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;
    use tidegate_core::limit::Limit;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn message(arrival: u64, body: &str) -> Waiting {
        Waiting { arrival: at(arrival), read: at(arrival), serial: 1, body: body.as_bytes().into() }
    }

    fn open() -> Lane {
        let mut lane = Lane::new(0);
        lane.hold(7);
        let bucket = TokenBucket::new(Limit::new(Rate::per_s(1_000), 2), at(0));
        assert!(lane.go(7, bucket, Unit::Messages));
        lane
    }

    fn step(lane: &mut Lane, now: u64) -> Vec<(String, u64)> {
        let mut passed = Vec::new();
        lane.step(at(now), |it| {
            let body = String::from_utf8(it.message.body.to_vec()).unwrap();
            passed.push((body, it.release.as_nanos() / 1_000_000));
        });
        passed
    }

    fn named(passed: &[(&str, u64)]) -> Vec<(String, u64)> {
        passed.iter().map(|(body, at)| ((*body).to_owned(), *at)).collect()
    }

    #[test]
    fn what_waits_goes_at_the_instant_of_its_token_in_order_of_arrival() {
        let mut lane = open();
        for (arrival, body) in [(3, "c"), (1, "a"), (1, "b"), (3, "d")] {
            lane.take(message(arrival, body));
        }
        assert_eq!(step(&mut lane, 3), named(&[("a", 1), ("b", 1), ("c", 3), ("d", 3)]));
        lane.take(message(3, "e"));
        assert_eq!((step(&mut lane, 3), lane.due(), lane.wanted()), (named(&[]), Some(at(4)), 1));
        assert_eq!(step(&mut lane, 9), named(&[("e", 4)]));
        assert!(lane.is_empty());
    }

    #[test]
    fn a_lane_that_holds_gives_nothing_and_one_that_is_shut_gives_all_back() {
        let mut lane = Lane::new(0);
        assert!(!lane.takes());
        lane.hold(7);
        lane.take(message(2, "b"));
        lane.take(message(1, "a"));
        assert_eq!(step(&mut lane, 5), named(&[]));
        let other = TokenBucket::empty(Limit::new(Rate::per_s(1), 1), at(0));
        assert!(!lane.go(6, other, Unit::Messages), "of another opening");
        let (rest, left) = lane.shut(at(5));
        let rest: Vec<_> = rest.map(|message| message.body[0]).collect();
        assert_eq!((rest, left), (b"ab".to_vec(), None));
        let mut lane = open();
        lane.take(message(1, "a"));
        step(&mut lane, 1);
        let left = Left { tokens: 1, at: at(1) };
        assert_eq!(lane.shut(at(1)).1, Some(left));
        assert!(!lane.takes());
    }

    #[test]
    fn a_home_that_does_not_keep_up_holds_the_lane_up() {
        let mut lane = Lane::new(0);
        lane.hold(7);
        lane.go(7, TokenBucket::new(Limit::new(Rate::per_s(1), 10_000), at(0)), Unit::Messages);
        for _ in 0..UNDER_WAY_MAX + 2 {
            lane.take(message(1, "m"));
        }
        assert_eq!(step(&mut lane, 1).len() as u64, UNDER_WAY_MAX);
        assert_eq!((lane.due(), lane.wanted()), (None, 0));
        lane.on_landed(Landed { messages: 2, bytes: 2 });
        // From now on nothing but tokens holds it.
        assert_eq!(step(&mut lane, 9), named(&[("m", 9), ("m", 9)]));
    }

    #[test]
    fn the_line_is_bounded_in_messages_and_bytes() {
        let mut lane = open();
        lane.take(message(1, "0123456789"));
        let bounds = |messages, bytes| Bounds { messages, bytes };
        assert!(lane.has_room(bounds(2, 1_000)) && !lane.has_room(bounds(1, 1_000)) && !lane.has_room(bounds(2, 20)));
        assert_eq!(lane.news().map(|stand| stand.messages), Some(0), "it is not in line yet");
        assert_eq!(lane.news(), None);
    }
}
