//! The line of admitted calls that no core has started yet, the line of those that may go on after they have waited for
//! something, and whose turn it is.
//!
//! A turn is the right to occupy a thread until the handler ends or waits. There are as many turns as threads. The
//! machine says how many more calls may be in flight (its room); a call that goes on needs none.
//!
//! Both lines are lists inside of a table, so a call leaves from anywhere in O(1), and the memory is that of the calls
//! which wait. Every operation is O(1), amortised.

use core::time::Duration;

use tidegate_core::Instant;

/// After this time a call that was told that its turn has come, and did not start, will hardly start: its task would
/// have run by then.
const STRANDED: Duration = Duration::from_millis(50);
/// No entry.
const NIL: u32 = u32::MAX;

/// Where a call stands in its line; reused once it has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u32);

/// Whether a call may run.
#[derive(PartialEq, Eq, Debug)]
pub enum Turn<'a, V> {
    /// Now.
    Mine,
    /// It waited for room for as long as it may: it is to start beside the others, or to be refused.
    Expired,
    /// Later; its value is named then, and may be replaced until then.
    Later(&'a mut V),
}

/// The value of a call whose turn has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Called<V> {
    /// It is to start.
    Start(V),
    /// It has started before, and is to go on.
    GoOn(V),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// Its turn has come.
    Called,
    /// Its turn came and was taken back.
    Stranded,
    /// It waited for too long.
    Expired,
}

#[derive(Clone, Debug)]
struct Entry<V> {
    /// From when on its wait counts.
    since: Instant,
    /// The last instant at which it is worth starting.
    start_by: Instant,
    value: V,
    state: State,
    before: u32,
    /// The next one in the line, or the next free entry.
    after: u32,
}

/// Calls that wait for a turn of one kind, in order: first those that were called or have expired, then those that wait.
#[derive(Clone, Debug)]
struct Queue<V> {
    entries: Vec<Entry<V>>,
    free: u32,
    first: u32,
    last: u32,
    /// The first one that waits.
    next: u32,
    /// The first one that was called and whose turn was not taken back.
    first_called: u32,
    len: usize,
    /// Calls that were called, did not take their turn yet, and still have it.
    called: u32,
}

impl<V: Default> Queue<V> {
    fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, first: NIL, last: NIL, next: NIL, first_called: NIL, len: 0, called: 0 }
    }

    #[inline]
    fn get(&self, at: u32) -> Option<&Entry<V>> {
        // No table is as long as `NIL`.
        self.entries.get(at as usize)
    }

    #[inline]
    fn join(&mut self, since: Instant, start_by: Instant, value: V) -> Place {
        let entry = Entry { since, start_by, value, state: State::Waiting, before: self.last, after: NIL };
        let at = self.free;
        let at = if let Some(free) = self.entries.get_mut(at as usize) {
            self.free = free.after;
            *free = entry;
            at
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).expect("fewer calls wait than 32 bits count")
        };
        match self.entries.get_mut(self.last as usize) {
            Some(last) => last.after = at,
            None => self.first = at,
        }
        self.last = at;
        if self.next == NIL {
            self.next = at;
        }
        self.len += 1;
        Place(at)
    }

    /// Removes the call; whether it has a turn.
    #[inline]
    fn leave(&mut self, Place(at): Place) -> bool {
        let Entry { state, before, after, .. } = self.entries[at as usize];
        if self.next == at {
            self.next = after;
        }
        let has_turn = state == State::Called;
        self.called -= u32::from(has_turn);
        if self.first_called == at {
            self.first_called = self.called_from(after);
        }
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.after = after,
            None => self.first = after,
        }
        match self.entries.get_mut(after as usize) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
        let entry = &mut self.entries[at as usize];
        entry.value = V::default();
        entry.after = self.free;
        self.free = at;
        self.len -= 1;
        has_turn
    }

    /// The first call from `at` on that has a turn. It only ever moves towards the end, so each entry is passed once.
    fn called_from(&self, mut at: u32) -> u32 {
        loop {
            match self.get(at) {
                Some(entry) if entry.state == State::Called => return at,
                Some(entry) if entry.state != State::Waiting => at = entry.after,
                _ => return NIL,
            }
        }
    }

    #[inline]
    fn turn(&mut self, Place(at): Place) -> Turn<'_, V> {
        let entry = &mut self.entries[at as usize];
        match entry.state {
            State::Waiting => Turn::Later(&mut entry.value),
            State::Called | State::Stranded => Turn::Mine,
            State::Expired => Turn::Expired,
        }
    }

    /// The next call gets `state`.
    #[inline]
    fn pass(&mut self, state: State) -> V {
        let at = self.next;
        let entry = &mut self.entries[at as usize];
        entry.state = state;
        self.next = entry.after;
        let value = core::mem::take(&mut entry.value);
        if state == State::Called {
            self.called += 1;
            if self.first_called == NIL {
                self.first_called = at;
            }
        }
        value
    }

    /// Takes the turn of the first call that has one; false if none has.
    fn strand(&mut self) -> bool {
        let at = self.first_called;
        let Some(entry) = self.entries.get_mut(at as usize) else { return false };
        entry.state = State::Stranded;
        self.called -= 1;
        self.first_called = self.called_from(at);
        true
    }
}

/// See the module. `V` is what the driver keeps with a call that waits: how to wake it, or where it is.
#[derive(Clone, Debug)]
pub(super) struct Line<V> {
    starts: Queue<V>,
    woken: Queue<V>,
    /// Calls whose turn it is and that have not handed it back.
    turns: u32,
    /// When a turn was last given or taken back.
    given: Instant,
    threads: u32,
}

impl<V: Default> Line<V> {
    /// An empty line before `threads` threads, at least 1.
    pub(super) fn new(threads: u32) -> Self {
        Self { starts: Queue::new(), woken: Queue::new(), turns: 0, given: Instant::ZERO, threads: threads.max(1) }
    }

    /// A call joins at the end, to start by `start_by`. Its wait counts from `since` on.
    #[inline]
    pub(super) fn join(&mut self, since: Instant, start_by: Instant, value: V) -> Place {
        self.starts.join(since, start_by, value)
    }

    /// A call that waited for something joins, to go on.
    #[inline]
    pub(super) fn join_again(&mut self, since: Instant, value: V) -> Place {
        self.woken.join(since, Instant::MAX, value)
    }

    /// Whether it is the turn of the call at `place` to start.
    #[inline]
    pub(super) fn turn(&mut self, place: Place) -> Turn<'_, V> {
        self.starts.turn(place)
    }

    /// Whether it is the turn of the call at `place` to go on.
    #[inline]
    pub(super) fn turn_again(&mut self, place: Place) -> Turn<'_, V> {
        self.woken.turn(place)
    }

    /// The call at `place` leaves the line to start. Whether it takes a turn with it and owes [`Self::hand_back`].
    #[inline]
    pub(super) fn start(&mut self, place: Place) -> bool {
        self.starts.leave(place)
    }

    /// The same of one that goes on.
    #[inline]
    pub(super) fn go_on(&mut self, place: Place) -> bool {
        self.woken.leave(place)
    }

    /// A thread is free again.
    #[inline]
    pub(super) fn hand_back(&mut self) {
        debug_assert!(self.turns > 0, "only turns that were given are handed back");
        self.turns = self.turns.saturating_sub(1);
    }

    /// Since when the oldest call has waited, to start or to go on.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Instant> {
        let since = |queue: &Queue<V>| queue.get(queue.first).map(|entry| entry.since);
        match (since(&self.starts), since(&self.woken)) {
            (Some(start), Some(woken)) => Some(start.min(woken)),
            (start, woken) => start.or(woken),
        }
    }

    /// Calls that wait to start.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.starts.len
    }

    /// Gives the next turn if a thread is free and, if it is to start a call, so many may start: `room` of them,
    /// [`u32::MAX`] if nothing bounds them. Call until `None`.
    #[inline]
    pub(super) fn call(&mut self, room: u32, now: Instant) -> Option<Called<V>> {
        if self.turns >= self.threads {
            return None;
        }
        let start = self.starts.get(self.starts.next).map(|entry| entry.since).filter(|_| self.starts.called < room);
        let goes_on = self.woken.get(self.woken.next).map(|entry| entry.since);
        let starts = match (start, goes_on) {
            (None, None) => return None,
            // A call for which there is room takes the place of one that has ended, and no more do: it goes first.
            // Without a bound on those in flight, calls that go on might never have a turn then: the older one goes first.
            (Some(start), Some(goes_on)) => room < u32::MAX || start < goes_on,
            (start, None) => start.is_some(),
            (None, Some(_)) => false,
        };
        self.turns += 1;
        self.given = now;
        Some(if starts {
            Called::Start(self.starts.pass(State::Called))
        } else {
            Called::GoOn(self.woken.pass(State::Called))
        })
    }

    /// The first call in line, if it waits for room that may never come and is no longer worth starting. Call until
    /// `None`.
    ///
    /// Calls behind it that would expire sooner wait until it has left: looking for them would not be O(1), and their
    /// callers know their own deadlines.
    pub(super) fn expire(&mut self, room: u32, now: Instant) -> Option<V> {
        let is_late = self.expires_at(room)? <= now;
        is_late.then(|| self.starts.pass(State::Expired))
    }

    /// When the first call in line has waited for too long, if it waits for room and not for a thread.
    #[inline]
    fn expires_at(&self, room: u32) -> Option<Instant> {
        if self.starts.called < room {
            return None;
        }
        let start_by = self.starts.get(self.starts.next)?.start_by;
        (start_by < Instant::MAX).then(|| start_by.plus_nanos(1))
    }

    /// When a turn is taken back, unless it is used before.
    #[inline]
    fn stranded_at(&self) -> Option<Instant> {
        let called = self.starts.called + self.woken.called;
        (self.turns >= self.threads && called > 0).then(|| (self.given + STRANDED).plus_nanos(1))
    }

    /// When to look at the line again if nothing else happens.
    #[inline]
    pub(super) fn next_timeout(&self, room: u32) -> Option<Instant> {
        let is_anybody_kept = self.starts.next != NIL || self.woken.next != NIL;
        match (self.expires_at(room), self.stranded_at().filter(|_| is_anybody_kept)) {
            (Some(expires), Some(stranded)) => Some(expires.min(stranded)),
            (expires, stranded) => expires.or(stranded),
        }
    }

    /// Frees a turn that nobody came for: the future of its call is held and not polled, or is polled inside of another
    /// call that waits for a turn itself. If that call comes after all, it runs beside the others.
    #[inline]
    pub(super) fn take_back(&mut self, now: Instant) {
        if self.stranded_at().is_some_and(|at| at <= now) && (self.starts.strand() || self.woken.strand()) {
            self.hand_back();
            self.given = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const FREE: u32 = u32::MAX;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn join(line: &mut Line<u64>, now: u64) -> Place {
        line.join(at(now), Instant::MAX, now)
    }

    #[test]
    fn one_thread_starts_calls_one_by_one_in_order() {
        let mut line = Line::new(1);
        let places = [1, 2, 3].map(|now| join(&mut line, now));
        assert_eq!(line.call(FREE, at(3)), Some(Called::Start(1)));
        assert_eq!(line.call(FREE, at(3)), None, "the only thread is taken");
        assert_eq!(line.turn(places[0]), Turn::Mine);
        assert_eq!(line.turn(places[1]), Turn::Later(&mut 2));
        assert!(line.start(places[0]), "it takes its turn along");
        assert_eq!((line.oldest(), line.len(), line.call(FREE, at(4))), (Some(at(2)), 2, None));
        line.hand_back();
        assert_eq!(line.call(FREE, at(5)), Some(Called::Start(2)));
        assert!(line.start(places[1]));
        line.hand_back();
        assert_eq!(line.call(FREE, at(6)), Some(Called::Start(3)));
    }

    #[test]
    fn a_call_that_leaves_from_the_middle_is_skipped_and_its_place_used_again() {
        let mut line = Line::new(1);
        let places = [1, 2, 3].map(|now| join(&mut line, now));
        assert!(!line.start(places[1]), "it had no turn");
        assert_eq!(join(&mut line, 4), places[1]);
        let order: Vec<_> = (0..3).map(|_| (line.call(FREE, at(9)), line.hand_back()).0).collect();
        assert_eq!(order, [1, 3, 4].map(|now| Some(Called::Start(now))));
    }

    #[test]
    fn without_room_nobody_is_called_and_with_some_the_oldest_is() {
        let mut line = Line::new(4);
        let first = join(&mut line, 1);
        join(&mut line, 2);
        assert_eq!(line.call(0, at(2)), None);
        assert_eq!(line.call(1, at(2)), Some(Called::Start(1)));
        assert_eq!(line.call(1, at(2)), None, "the room is for the one that was called");
        line.start(first);
        assert_eq!((line.call(0, at(3)), line.call(1, at(3))), (None, Some(Called::Start(2))));
    }

    #[test]
    fn a_call_with_room_starts_before_one_goes_on_and_without_a_bound_the_older_goes_first() {
        for (room, order) in [(2, [Called::Start(3), Called::GoOn(2)]), (FREE, [Called::GoOn(2), Called::Start(3)])] {
            let mut line = Line::new(1);
            line.join_again(at(2), 2);
            join(&mut line, 3);
            let called = [(); 2].map(|()| (line.call(room, at(4)).unwrap(), line.hand_back()).0);
            assert_eq!(called, order);
        }
        let mut line = Line::new(1);
        join(&mut line, 1);
        line.join_again(at(2), 2);
        assert_eq!(line.call(0, at(3)), Some(Called::GoOn(2)), "that needs no room");
    }

    #[test]
    fn a_turn_that_nobody_comes_for_is_taken_back() {
        let mut line = Line::new(1);
        let first = join(&mut line, 1);
        assert_eq!((line.call(FREE, at(1)), line.next_timeout(FREE)), (Some(Called::Start(1)), None));
        let second = join(&mut line, 2);
        let due = line.next_timeout(FREE).unwrap();
        assert_eq!(due, at(2) + STRANDED);
        line.take_back(due.minus_nanos(1));
        assert_eq!(line.call(FREE, due), None);
        line.take_back(due);
        assert_eq!(line.call(FREE, due), Some(Called::Start(2)));
        assert_eq!(line.turn(first), Turn::Mine);
        assert_eq!(line.turn(second), Turn::Mine);
        assert!(!line.start(first), "it runs beside the others, on nobody's turn");
        assert!(line.start(second));
    }

    #[test]
    fn a_call_that_waits_for_room_expires_after_its_last_worthwhile_instant() {
        let mut line = Line::new(1);
        let [first, second] = [7, 5].map(|by| line.join(at(1), at(by), by));
        assert_eq!((line.next_timeout(1), line.expire(1, at(9))), (None, None), "there is room");
        assert_eq!((line.next_timeout(0), line.expire(0, at(7))), (Some(at(8)), None));
        assert_eq!((line.expire(0, at(8)), line.expire(0, at(8)), line.expire(0, at(8))), (Some(7), Some(5), None));
        assert_eq!(line.turn(first), Turn::Expired);
        assert_eq!(line.turn(second), Turn::Expired);
        assert!(!line.start(first) && !line.start(second));
        assert_eq!((line.len(), line.oldest()), (0, None));
    }

    /// A line as slow and simple as possible.
    struct Plain {
        starts: VecDeque<(u64, State)>,
        threads: usize,
        running: usize,
    }

    impl Plain {
        fn called(&self) -> usize {
            self.starts.iter().filter(|(_, state)| *state == State::Called).count()
        }

        fn call(&mut self, room: usize) -> Option<u64> {
            if self.called() + self.running >= self.threads || self.called() >= room {
                return None;
            }
            let (name, state) = self.starts.iter_mut().find(|(_, state)| *state == State::Waiting)?;
            *state = State::Called;
            Some(*name)
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_list(
            threads in 1_u32..4,
            steps in proptest::collection::vec((0_u8..6, 0_u32..3, any::<prop::sample::Index>()), 0..300),
        ) {
            let mut line = Line::new(threads);
            let mut places: VecDeque<Place> = VecDeque::new();
            let mut plain = Plain { starts: VecDeque::new(), threads: threads as usize, running: 0 };
            for (now, (step, room, which)) in (1_u64..).zip(steps) {
                let index = (!places.is_empty()).then(|| which.index(places.len()));
                match (step, index) {
                    (0 | 1, _) => {
                        places.push_back(join(&mut line, now));
                        plain.starts.push_back((now, State::Waiting));
                    }
                    (2, _) if plain.running > 0 => {
                        plain.running -= 1;
                        line.hand_back();
                    }
                    (3, Some(index)) => {
                        let (_, state) = plain.starts.remove(index).unwrap();
                        let has_turn = line.start(places.remove(index).unwrap());
                        prop_assert_eq!(has_turn, state == State::Called);
                        plain.running += usize::from(has_turn);
                    }
                    (4, _) if plain.called() > 0 && plain.starts.iter().any(|(_, state)| *state == State::Waiting) => {
                        let is_full = plain.called() + plain.running == threads as usize;
                        line.take_back(at(now) + 2 * STRANDED);
                        line.given = Instant::ZERO;
                        if is_full {
                            let called = plain.starts.iter_mut().find(|(_, state)| *state == State::Called);
                            called.unwrap().1 = State::Stranded;
                        }
                    }
                    _ => {
                        let room = if room == 2 { FREE } else { room };
                        let expected = plain.call(room as usize).map(Called::Start);
                        prop_assert_eq!(line.call(room, at(now)), expected);
                        line.given = Instant::ZERO;
                    }
                }
                prop_assert_eq!(line.len(), plain.starts.len());
                prop_assert_eq!(line.oldest(), plain.starts.front().map(|(name, _)| at(*name)));
                prop_assert_eq!(line.turns as usize, plain.called() + plain.running);
                prop_assert!(line.starts.entries.len() <= 300);
            }
        }
    }
}
