//! The line of admitted calls that no core has started yet, and whose turn it is.
//!
//! Without it, every admitted call would sit in the executor's run queue, and with them the tasks that read requests
//! and write answers: a request's bytes would be read late, its wait would not be seen, and a refusal would take as long
//! as an answer. So only as many calls as there are threads may be between "it is your turn" and the end of their first
//! poll; the others sleep here, and the run queue stays short. It does not limit how many calls run: a handler that
//! waits for something else has given its turn away.
//!
//! Every operation is O(1), amortised.

use std::collections::VecDeque;
use std::task::Waker;

use tidegate_core::Instant;

/// A call's place, unique for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u64);

impl Place {
    /// Nowhere: a call that has not joined.
    pub(super) const NONE: Self = Self(u64::MAX);
}

/// Whether a call may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Now.
    Mine,
    /// Later; its waker is called.
    Later,
}

/// One call in line.
struct Entry {
    arrived: Instant,
    state: EntryState,
}

enum EntryState {
    /// Its turn has not come; its waker, once it was polled.
    Waiting(Option<Waker>),
    /// Its turn has come.
    Called,
    /// It started or was cancelled; the entry goes when it is the first.
    Gone,
}

/// See the module.
pub(super) struct Line {
    entries: VecDeque<Entry>,
    /// The place of the first entry.
    first: u64,
    /// The place of the first entry that may be waiting; those before it are called or gone.
    next: u64,
    /// Calls whose turn it is and that have not handed it back.
    starting: usize,
    threads: usize,
    waiting: usize,
}

impl Line {
    /// An empty line before `threads` threads, at least 1.
    pub(super) fn new(threads: usize) -> Self {
        Self { entries: VecDeque::new(), first: 0, next: 0, starting: 0, threads: threads.max(1), waiting: 0 }
    }

    /// A call joins at the end; if a thread is free, its turn is now.
    pub(super) fn join(&mut self, arrived: Instant) -> Place {
        let place = Place(self.first + self.entries.len() as u64);
        self.entries.push_back(Entry { arrived, state: EntryState::Waiting(None) });
        self.waiting += 1;
        // Whoever is called here is polled without being woken: nobody waits while a thread is free.
        let woken = self.call_next();
        debug_assert!(woken.is_none(), "a thread was free while a call waited");
        place
    }

    /// Asks whether it is the turn of `place`; if not, `waker` is called when it is.
    pub(super) fn turn(&mut self, place: Place, waker: &Waker) -> Turn {
        match self.entry(place).map(|entry| &mut entry.state) {
            Some(EntryState::Waiting(Some(known))) => known.clone_from(waker),
            Some(EntryState::Waiting(none)) => *none = Some(waker.clone()),
            Some(EntryState::Called | EntryState::Gone) | None => return Turn::Mine,
        }
        Turn::Later
    }

    /// The call at `place`, whose turn it is, starts and leaves the line; it owes [`Self::hand_back`].
    pub(super) fn start(&mut self, place: Place) {
        self.leave(place);
    }

    /// The call at `place` goes without having started. Whom to wake.
    pub(super) fn cancel(&mut self, place: Place) -> Option<Waker> {
        if self.leave(place) { self.hand_back() } else { None }
    }

    /// A call whose turn it was has been polled, or will not be. Whom to wake.
    pub(super) fn hand_back(&mut self) -> Option<Waker> {
        self.starting = self.starting.saturating_sub(1);
        self.call_next()
    }

    /// When the oldest call that waits arrived.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.arrived)
    }

    /// Calls in line.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    fn entry(&mut self, place: Place) -> Option<&mut Entry> {
        let index = usize::try_from(place.0.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    /// Removes the call; whether its turn had come.
    fn leave(&mut self, place: Place) -> bool {
        let Some(entry) = self.entry(place) else { return false };
        let state = core::mem::replace(&mut entry.state, EntryState::Gone);
        if !matches!(state, EntryState::Gone) {
            self.waiting -= 1;
        }
        while matches!(self.entries.front(), Some(Entry { state: EntryState::Gone, .. })) {
            self.entries.pop_front();
            self.first += 1;
        }
        matches!(state, EntryState::Called)
    }

    /// Calls the next one if a thread is free.
    fn call_next(&mut self) -> Option<Waker> {
        if self.starting >= self.threads {
            return None;
        }
        self.next = self.next.max(self.first);
        loop {
            let next = Place(self.next);
            let entry = self.entry(next)?;
            let called = match &mut entry.state {
                EntryState::Waiting(waker) => Some(waker.take()),
                EntryState::Called | EntryState::Gone => None,
            };
            self.next += 1;
            if let Some(waker) = called {
                self.entry(next)?.state = EntryState::Called;
                self.starting += 1;
                return waker;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn one_thread_starts_calls_one_by_one_in_order() {
        let mut line = Line::new(1);
        let (a, b, c) = (line.join(at(1)), line.join(at(2)), line.join(at(3)));
        assert_eq!(line.turn(a, Waker::noop()), Turn::Mine);
        assert_eq!((line.turn(b, Waker::noop()), line.turn(c, Waker::noop())), (Turn::Later, Turn::Later));
        line.start(a);
        assert_eq!(line.oldest(), Some(at(2)));
        assert_eq!(line.turn(b, Waker::noop()), Turn::Later, "the first has not been polled yet");
        assert!(line.hand_back().is_some());
        assert_eq!((line.turn(b, Waker::noop()), line.turn(c, Waker::noop())), (Turn::Mine, Turn::Later));
        assert!(line.cancel(b).is_some(), "a cancelled call hands its turn on");
        assert_eq!(line.turn(c, Waker::noop()), Turn::Mine);
        line.start(c);
        assert!(line.hand_back().is_none());
        assert_eq!((line.oldest(), line.len()), (None, 0));
    }

    #[test]
    fn a_call_whose_turn_came_before_its_first_poll_finds_it() {
        let mut line = Line::new(1);
        let (a, b) = (line.join(at(1)), line.join(at(2)));
        line.start(a);
        assert!(line.hand_back().is_none(), "it was not polled yet: nobody to wake");
        assert_eq!(line.turn(b, Waker::noop()), Turn::Mine);
    }

    #[test]
    fn a_cancelled_call_in_the_middle_is_skipped() {
        let mut line = Line::new(1);
        let places: Vec<Place> = (0..4).map(|i| line.join(at(i))).collect();
        assert!(line.cancel(places[1]).is_none());
        assert_eq!(line.len(), 3);
        line.start(places[0]);
        line.hand_back();
        assert_eq!(line.turn(places[2], Waker::noop()), Turn::Mine);
        assert_eq!(line.turn(places[3], Waker::noop()), Turn::Later);
    }

    proptest! {
        #[test]
        fn nobody_waits_while_a_thread_is_free(
            threads in 1_usize..4,
            steps in proptest::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut line = Line::new(threads);
            let mut waiting: Vec<(Place, u64)> = Vec::new();
            let mut running = 0_usize;
            let mut started: BTreeSet<u64> = BTreeSet::new();
            for (now, (step, which)) in (1_u64..).zip(steps) {
                match step {
                    0 | 1 => waiting.push((line.join(at(now)), now)),
                    2 if running > 0 => {
                        running -= 1;
                        line.hand_back();
                    }
                    3 if !waiting.is_empty() => {
                        let (place, _) = waiting.remove(which.index(waiting.len()));
                        line.cancel(place);
                    }
                    _ => {
                        if let Some(index) =
                            (0..waiting.len()).find(|i| line.turn(waiting[*i].0, Waker::noop()) == Turn::Mine)
                        {
                            prop_assert_eq!(index, 0, "calls start in order");
                            let (place, arrived) = waiting.remove(index);
                            line.start(place);
                            running += 1;
                            started.insert(arrived);
                        }
                    }
                }
                let mine =
                    waiting.iter().filter(|(place, _)| line.turn(*place, Waker::noop()) == Turn::Mine).count();
                prop_assert_eq!(mine, waiting.len().min(threads - running));
                prop_assert_eq!(line.len(), waiting.len());
                prop_assert_eq!(line.oldest(), waiting.first().map(|(_, arrived)| at(*arrived)));
            }
        }
    }
}
