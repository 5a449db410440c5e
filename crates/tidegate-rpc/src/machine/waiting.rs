//! The queue in which a client holds calls that may not be sent yet: short, bounded, and each call for a limited time.

use std::collections::VecDeque;

use core::time::Duration;

use tidegate_core::Instant;

use super::shape::{Ask, CallId, Priority, Request, ShedReason};

/// A call that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) id: CallId,
    pub(crate) since: Instant,
    pub(crate) priority: Priority,
}

impl Entry {
    pub(crate) fn of(request: &Request, now: Instant) -> Self {
        Self { id: request.id, since: now, priority: request.priority }
    }

    /// What the call carries when it leaves at last. The schemes that wait here know no deadlines, so it has no budget.
    pub(crate) fn ask(&self) -> Ask {
        Ask { aware: true, priority: self.priority, ..Ask::default() }
    }
}

/// What a request carries in a scheme that tells the server nothing.
pub(crate) fn plain(request: &Request, now: Instant) -> Ask {
    let budget = request.deadline.map(|at| at.since(now));
    Ask { aware: true, priority: request.priority, budget, ..Ask::default() }
}

/// How long and how deep the queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// Calls at most, up to a few dozen: a cancelled one is searched for.
    pub(crate) calls: u32,
    /// The age at which a call fails.
    pub(crate) expiry: Duration,
}

/// Calls in the order of their arrival.
///
/// It yields its failures one by one from [`Waiting::pop_failed`] instead of queueing them a second time, so that an
/// idle client owns no more memory than a few entries.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    bounds: Bounds,
    entries: VecDeque<Entry>,
    /// All that wait shall fail: the connection ended.
    lost: bool,
}

/// Memory for more entries than this goes back when the queue empties: most of a million clients are idle.
const KEPT: usize = 8;

impl Waiting {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, entries: VecDeque::new(), lost: false }
    }

    /// Calls that wait, at most one beyond the bound until the next [`Waiting::pop_failed`].
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("the bound is a `u32`")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// No call more may wait without pushing another one out.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.bounds.calls
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front();
        if self.entries.is_empty() && self.entries.capacity() > KEPT {
            self.entries = VecDeque::new();
        }
        entry
    }

    /// The next call that may wait no longer, oldest first.
    pub(crate) fn pop_failed(&mut self, now: Instant) -> Option<(CallId, ShedReason)> {
        let reason = if self.lost && !self.is_empty() {
            ShedReason::Lost
        } else if self.len() > self.bounds.calls {
            ShedReason::ClientFull
        } else if self.next_timeout()? <= now {
            ShedReason::Expired
        } else {
            return None;
        };
        let entry = self.pop()?;
        self.lost &= !self.is_empty();
        Some((entry.id, reason))
    }

    /// Forgets a call; whether it waited.
    pub(crate) fn cancel(&mut self, id: CallId) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.id == id) else { return false };
        self.entries.remove(place);
        true
    }

    /// Fails all that wait.
    pub(crate) fn lose(&mut self) {
        self.lost = !self.is_empty();
    }

    /// When the oldest call fails.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.since + self.bounds.expiry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, at_us: u64) -> Entry {
        Entry { id: CallId(id), since: Instant::from_nanos(at_us * 1_000), priority: Priority::DEFAULT }
    }

    fn two_calls_for_10_us() -> Waiting {
        Waiting::new(Bounds { calls: 2, expiry: Duration::from_micros(10) })
    }

    #[test]
    fn a_call_fails_at_its_age_and_not_a_nanosecond_sooner() {
        let mut queue = two_calls_for_10_us();
        queue.push(entry(1, 5));
        let due = queue.next_timeout().unwrap();
        assert_eq!(due, Instant::from_nanos(15_000));
        assert_eq!(queue.pop_failed(due.minus_nanos(1)), None);
        assert_eq!(queue.pop_failed(due), Some((CallId(1), ShedReason::Expired)));
        assert_eq!(queue.next_timeout(), None);
    }

    #[test]
    fn one_too_many_pushes_out_the_oldest() {
        let mut queue = two_calls_for_10_us();
        (1..=3).for_each(|id| queue.push(entry(id, 0)));
        assert_eq!(queue.pop_failed(Instant::ZERO), Some((CallId(1), ShedReason::ClientFull)));
        assert_eq!(queue.pop_failed(Instant::ZERO), None);
        assert_eq!(queue.pop().map(|entry| entry.id), Some(CallId(2)));
    }

    #[test]
    fn what_waits_when_the_connection_ends_fails_and_later_calls_do_not() {
        let mut queue = two_calls_for_10_us();
        queue.lose();
        queue.push(entry(1, 0));
        assert_eq!(queue.pop_failed(Instant::ZERO), None, "an empty queue had nothing to lose");
        queue.lose();
        assert_eq!(queue.pop_failed(Instant::ZERO), Some((CallId(1), ShedReason::Lost)));
        queue.push(entry(2, 0));
        assert_eq!(queue.pop_failed(Instant::ZERO), None);
    }
}
