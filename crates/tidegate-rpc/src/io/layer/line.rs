//! The line of admitted calls that no core has started yet, and of those that may go on after they have waited for
//! something; and whose turn it is.
//!
//! Without it, every admitted call would sit in the executor's run queue, and with them the tasks that read requests
//! and write answers: a request's bytes would be read late, its wait would not be seen, and a refusal would take as long
//! as an answer. So only as many calls as there are threads may be between "it is your turn" and the end of their first
//! poll; the others sleep here, and the run queue stays short. A handler that waits for something else has given its
//! turn away; how many may do so at a time, the machine says (`room`).
//!
//! Every operation is O(1), amortised.

use core::time::Duration;
use std::collections::VecDeque;
use std::task::Waker;

use tidegate_core::Instant;

/// After this time a call that was told that its turn has come, and was not polled, will hardly be: its task would have been
/// run by then.
const STRANDED: Duration = Duration::from_millis(50);

/// A call's place, unique for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u64);

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
    /// When it arrived, or could go on.
    since: Instant,
    state: EntryState,
}

enum EntryState {
    /// Its turn has not come; its waker, once it was polled.
    Waiting(Option<Waker>),
    /// Its turn has come.
    Called,
    /// It left; the entry goes when it is the first.
    Gone,
}

/// Calls that wait for a turn of one kind, in order.
#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// The place of the first entry.
    first: u64,
    /// The place of the first entry that may be waiting; those before it are called or gone.
    next: u64,
    waiting: usize,
    /// Calls that were called and have not taken their turn yet.
    called: u32,
}

impl Queue {
    fn join(&mut self, since: Instant) -> Place {
        let place = Place(self.first + self.entries.len() as u64);
        self.entries.push_back(Entry { since, state: EntryState::Waiting(None) });
        self.waiting += 1;
        place
    }

    fn entry(&mut self, place: Place) -> Option<&mut Entry> {
        let index = usize::try_from(place.0.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    fn turn(&mut self, place: Place, waker: &Waker) -> Turn {
        match self.entry(place).map(|entry| &mut entry.state) {
            Some(EntryState::Waiting(Some(known))) => known.clone_from(waker),
            Some(EntryState::Waiting(none)) => *none = Some(waker.clone()),
            Some(EntryState::Called | EntryState::Gone) | None => return Turn::Mine,
        }
        Turn::Later
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
        let was_called = matches!(state, EntryState::Called);
        self.called -= u32::from(was_called);
        was_called
    }

    /// Since when the next one has waited that was not called.
    fn next_since(&mut self) -> Option<Instant> {
        self.next = self.next.max(self.first);
        loop {
            let entry = self.entry(Place(self.next))?;
            if matches!(entry.state, EntryState::Waiting(_)) {
                return Some(entry.since);
            }
            self.next += 1;
        }
    }

    /// Calls that one. Whom to wake.
    fn call(&mut self) -> Option<Waker> {
        let entry = self.entry(Place(self.next))?;
        let EntryState::Waiting(waker) = core::mem::replace(&mut entry.state, EntryState::Called) else { return None };
        self.next += 1;
        self.called += 1;
        waker
    }
}

/// See the module.
pub(super) struct Line {
    starts: Queue,
    woken: Queue,
    /// Calls whose turn it is and that have not handed it back.
    turns: usize,
    /// When a turn was last given, or taken back from one that did not come for it.
    given: Instant,
    threads: usize,
}

impl Line {
    /// An empty line before `threads` threads, at least 1.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            starts: Queue::default(),
            woken: Queue::default(),
            turns: 0,
            given: Instant::ZERO,
            threads: threads.max(1),
        }
    }

    /// A call that arrived at `arrived` joins at the end, to start; if a thread is free and there is `room`, its turn is now,
    /// or that of one before it. Whom to wake.
    pub(super) fn join(&mut self, arrived: Instant, room: u32) -> (Place, Option<Waker>) {
        let place = self.starts.join(arrived);
        self.take_back(arrived);
        // If it is called itself, it is polled without being woken.
        (place, self.call_next(room))
    }

    /// A call that waited for something joins at `now`, to go on. Whom to wake.
    pub(super) fn join_again(&mut self, now: Instant, room: u32) -> (Place, Option<Waker>) {
        let place = self.woken.join(now);
        self.take_back(now);
        (place, self.call_next(room))
    }

    /// Asks whether it is the turn of `place` to start; if not, `waker` is called when it is.
    pub(super) fn turn(&mut self, place: Place, waker: &Waker) -> Turn {
        self.starts.turn(place, waker)
    }

    /// The same of one that goes on.
    pub(super) fn turn_again(&mut self, place: Place, waker: &Waker) -> Turn {
        self.woken.turn(place, waker)
    }

    /// The call at `place`, whose turn it is, starts and leaves the line; it owes [`Self::hand_back`].
    pub(super) fn start(&mut self, place: Place) {
        self.starts.leave(place);
    }

    /// The same of one that goes on.
    pub(super) fn go_on(&mut self, place: Place) {
        self.woken.leave(place);
    }

    /// The call at `place` goes without having started. Whom to wake.
    pub(super) fn cancel(&mut self, place: Place, room: u32) -> Option<Waker> {
        if self.starts.leave(place) { self.hand_back(room) } else { None }
    }

    /// The same of one that was to go on.
    pub(super) fn cancel_again(&mut self, place: Place, room: u32) -> Option<Waker> {
        if self.woken.leave(place) { self.hand_back(room) } else { None }
    }

    /// A call whose turn it was has been polled, or will not be. Whom to wake.
    pub(super) fn hand_back(&mut self, room: u32) -> Option<Waker> {
        self.turns = self.turns.saturating_sub(1);
        self.call_next(room)
    }

    /// When the oldest call that waits to start arrived.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.starts.entries.front().map(|entry| entry.since)
    }

    /// Calls that wait to start.
    pub(super) fn len(&self) -> usize {
        self.starts.waiting
    }

    /// Frees the turn of one that did not come for it: its future is held and not polled, or polled inside of another call
    /// that waits for a turn itself. Should it come after all, it is polled beside the others.
    fn take_back(&mut self, now: Instant) {
        let called = self.starts.called + self.woken.called;
        if self.turns >= self.threads && called > 0 && now.since(self.given) > STRANDED {
            self.turns -= 1;
            self.given = now;
        }
    }

    /// Calls the next one if a thread is free and, if it is to start, so many may. Whom to wake.
    pub(super) fn call_next(&mut self, room: u32) -> Option<Waker> {
        if self.turns >= self.threads {
            return None;
        }
        let start = self.starts.next_since().filter(|_| self.starts.called < room);
        let goes_on = self.woken.next_since();
        let starts = match (start, goes_on) {
            (None, None) => return None,
            // One for which there is room takes the place of one that has ended, and no more do: it goes first. Without a
            // bound, those that go on might never have their turn then.
            (Some(start), Some(goes_on)) => room < u32::MAX || start < goes_on,
            (start, None) => start.is_some(),
            (None, Some(_)) => false,
        };
        self.turns += 1;
        self.given = self.given.max(start.max(goes_on).unwrap_or(Instant::ZERO));
        if starts { self.starts.call() } else { self.woken.call() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const FREE: u32 = u32::MAX;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn one_thread_starts_calls_one_by_one_in_order() {
        let mut line = Line::new(1);
        let (a, b, c) = (line.join(at(1), FREE).0, line.join(at(2), FREE).0, line.join(at(3), FREE).0);
        assert_eq!(line.turn(a, Waker::noop()), Turn::Mine);
        assert_eq!((line.turn(b, Waker::noop()), line.turn(c, Waker::noop())), (Turn::Later, Turn::Later));
        line.start(a);
        assert_eq!(line.oldest(), Some(at(2)));
        assert_eq!(line.turn(b, Waker::noop()), Turn::Later, "the first has not been polled yet");
        assert!(line.hand_back(FREE).is_some());
        assert_eq!((line.turn(b, Waker::noop()), line.turn(c, Waker::noop())), (Turn::Mine, Turn::Later));
        assert!(line.cancel(b, FREE).is_some(), "a cancelled call hands its turn on");
        assert_eq!(line.turn(c, Waker::noop()), Turn::Mine);
        line.start(c);
        assert!(line.hand_back(FREE).is_none());
        assert_eq!((line.oldest(), line.len()), (None, 0));
    }

    #[test]
    fn a_call_whose_turn_came_before_its_first_poll_finds_it() {
        let mut line = Line::new(1);
        let (a, b) = (line.join(at(1), FREE).0, line.join(at(2), FREE).0);
        line.start(a);
        assert!(line.hand_back(FREE).is_none(), "it was not polled yet: nobody to wake");
        assert_eq!(line.turn(b, Waker::noop()), Turn::Mine);
    }

    #[test]
    fn a_cancelled_call_in_the_middle_is_skipped() {
        let mut line = Line::new(1);
        let places: Vec<Place> = (0..4).map(|i| line.join(at(i), FREE).0).collect();
        assert!(line.cancel(places[1], FREE).is_none());
        assert_eq!(line.len(), 3);
        line.start(places[0]);
        line.hand_back(FREE);
        assert_eq!(line.turn(places[2], Waker::noop()), Turn::Mine);
        assert_eq!(line.turn(places[3], Waker::noop()), Turn::Later);
    }

    #[test]
    fn without_room_nobody_is_called_and_with_some_the_oldest_is() {
        let mut line = Line::new(2);
        let (a, none) = line.join(at(1), 0);
        assert!(none.is_none());
        assert_eq!(line.turn(a, Waker::noop()), Turn::Later);
        let (b, woken) = line.join(at(2), 1);
        assert!(woken.is_some(), "there is room for the first now");
        assert_eq!((line.turn(a, Waker::noop()), line.turn(b, Waker::noop())), (Turn::Mine, Turn::Later));
        assert!(line.call_next(1).is_none(), "the room is for the one that was called");
        line.start(a);
        assert!(line.call_next(0).is_none() && line.hand_back(0).is_none());
        assert!(line.call_next(1).is_some());
        assert_eq!(line.turn(b, Waker::noop()), Turn::Mine);
    }

    #[test]
    fn one_that_goes_on_waits_for_its_turn_and_one_with_room_starts_before_it() {
        let mut line = Line::new(1);
        let (a, _) = line.join(at(1), FREE);
        line.start(a);
        let (again, _) = line.join_again(at(2), 1);
        assert_eq!(line.turn_again(again, Waker::noop()), Turn::Later, "another is polled");
        let (b, _) = line.join(at(3), 1);
        assert_eq!(line.turn(b, Waker::noop()), Turn::Later);
        assert!(line.hand_back(1).is_some());
        assert_eq!((line.turn(b, Waker::noop()), line.turn_again(again, Waker::noop())), (Turn::Mine, Turn::Later));
        line.start(b);
        assert!(line.hand_back(0).is_some());
        assert_eq!(line.turn_again(again, Waker::noop()), Turn::Mine);
        line.go_on(again);
        assert!(line.hand_back(0).is_none());
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn without_a_bound_the_older_one_goes_first() {
        let mut line = Line::new(1);
        let (a, _) = line.join(at(1), FREE);
        line.start(a);
        let (again, _) = line.join_again(at(2), FREE);
        let (b, _) = line.join(at(3), FREE);
        line.hand_back(FREE);
        assert_eq!((line.turn_again(again, Waker::noop()), line.turn(b, Waker::noop())), (Turn::Mine, Turn::Later));
        assert!(line.cancel_again(again, FREE).is_some());
        assert_eq!(line.turn(b, Waker::noop()), Turn::Mine);
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
                    0 | 1 => waiting.push((line.join(at(now), FREE).0, now)),
                    2 if running > 0 => {
                        running -= 1;
                        line.hand_back(FREE);
                    }
                    3 if !waiting.is_empty() => {
                        let (place, _) = waiting.remove(which.index(waiting.len()));
                        line.cancel(place, FREE);
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
