//! Who waits for a server, and in which order they start.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tidegate_core::Instant;

use super::pool::Tried;
use super::ring::Key;
use crate::machine::neighbours::Claimant;

/// Whose request it is, as far as turns and slots are concerned. A claimant is one, and another one with its streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Flow {
    /// Whose slots it takes.
    pub claimant: Claimant,
    /// The number of its tenant: of a source that makes up names, one of these.
    pub tenant: u32,
    /// It shares its client's connection with others, as requests of HTTP/2 do.
    pub is_stream: bool,
}

impl Flow {
    fn line(self) -> LineKey {
        (self.claimant, self.is_stream)
    }
}

#[cfg(test)]
impl Flow {
    /// What a tenant asks over HTTP/1.
    pub(crate) const fn http1(tenant: u32) -> Self {
        Self { claimant: Claimant::numbered(tenant), tenant, is_stream: false }
    }

    /// What a name asks over HTTP/1 that this source makes up.
    pub(crate) const fn made_up(source: u32, tenant: u32) -> Self {
        Self { claimant: Claimant::Source(source), tenant, is_stream: false }
    }
}

/// A request that wants a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asker {
    /// Whose it is.
    pub flow: Flow,
    /// Its tenant's share beside those of others; `None` if it is not known, and then 1.
    pub weight: Option<u32>,
    /// Requests of one group take about as long as each other; 0 for those of which nothing is known.
    pub group: u8,
    /// Requests of one key meet the same server, where keys decide.
    pub key: Option<Key>,
}

impl From<Flow> for Asker {
    fn from(flow: Flow) -> Self {
        Self { flow, ..Self::default() }
    }
}

/// Whether a request may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum May {
    Start,
    /// Another name of its claimant perhaps may.
    NotItsName,
    /// None of its flow may.
    NotItsFlow,
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) request: u64,
    pub(super) arrival: Instant,
    pub(super) tried: Tried,
    weight: Option<u32>,
    group: u8,
    key: Option<Key>,
}

/// What a start costs a flow of weight 1, in its time.
const STEP: u64 = 1 << 20;

/// How many flows are asked in one search for the next, and how many names of one of them. A search costs a microsecond
/// or two at most, however many wait; the next one goes on where it ended.
const ASKED: usize = 32;

/// Requests that wait: first come, first served for each name, the names of a flow in turn, and the flows in turn, by
/// weight. So however many requests one flow has here, or names, another one's next request waits behind one of it at
/// most, if their weights are the same.
///
/// When there is no room, the flow with the most requests loses the newest of its name with the most: a flow that has
/// fewer than others is never refused for what they send.
/// Source: Goyal, Vin and Cheng, "Start-time fair queuing" (SIGCOMM 1996), with a start as the unit of work; dropping from
/// the longest queue as in Suter et al., "Design considerations for supporting TCP with per-flow queueing" (1998).
/// Departure: of more flows than are asked in one search, one further behind may start before one ahead that could not
/// start when it was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    lines: Order<LineKey, Line>,
    /// All of them by age.
    ages: BTreeMap<(Instant, u64), Flow>,
    latest: Instant,
}

type LineKey = (Claimant, bool);

/// Those of one flow.
#[derive(Clone, Debug, Default)]
struct Line {
    len: usize,
    names: Order<u32, VecDeque<Waiting>>,
}

/// Keys in turn, each with what waits there. One where nothing waits is not in turn, and remembers what it has had.
#[derive(Clone, Debug)]
struct Order<K, V> {
    entries: BTreeMap<K, (Place, V)>,
    /// Those in turn, by their times; of those at the same time the one that came to it first.
    by_time: BTreeMap<Place, K>,
    /// The time of the key that was in turn last: who comes has had no less.
    time: u64,
    entered: u64,
    /// Where the next search begins: behind the last one that was asked in vain, if that was not the last of all.
    asked: Option<Place>,
}

type Place = (u64, u64);

impl<K, V> Default for Order<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), by_time: BTreeMap::new(), time: 0, entered: 0, asked: None }
    }
}

impl<K: Copy + Ord, V: Default> Order<K, V> {
    fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|(_, value)| value)
    }

    fn get(&self, key: K) -> Option<&V> {
        self.entries.get(&key).map(|(_, value)| value)
    }

    /// The entry of `key`, for something that waits there from now on. If nothing did, it comes last of those that have
    /// had as much. If there are more entries than `room`, those that are not in turn are forgotten, and begin anew.
    fn enter(&mut self, key: K, room: usize) -> &mut V {
        let Self { entries, by_time, .. } = self;
        if entries.len() > room && !entries.contains_key(&key) {
            entries.retain(|_, (place, _)| by_time.contains_key(place));
        }
        let (place, value) = entries.entry(key).or_default();
        if !by_time.contains_key(place) {
            self.entered += 1;
            *place = (place.0.max(self.time), self.entered);
            by_time.insert(*place, key);
        }
        value
    }

    /// Nothing waits at `key` any more.
    fn leave(&mut self, key: K) {
        if let Some((place, _)) = self.entries.get(&key) {
            self.by_time.remove(place);
        }
    }

    /// The first one of [`ASKED`] that `find` finds something at. If it finds nothing, and there are more, the next
    /// search asks those behind; after one that was found it begins with the first.
    fn find<T>(&mut self, mut find: impl FnMut(K, &mut V) -> Option<T>) -> Option<T> {
        let Self { entries, by_time, asked, .. } = self;
        let from = asked.take();
        let behind = from.map_or(Bound::Unbounded, Bound::Excluded);
        let ahead = by_time.range(..=from.unwrap_or_default());
        for (at, (place, &key)) in by_time.range((behind, Bound::Unbounded)).chain(ahead).enumerate() {
            let found = entries.get_mut(&key).and_then(|(_, value)| find(key, value));
            if found.is_some() {
                return found;
            }
            if at + 1 == ASKED {
                *asked = (by_time.len() > ASKED).then_some(*place);
                break;
            }
        }
        None
    }

    /// One of `key`, which is in turn, has started, which costs so much of its time.
    fn pass(&mut self, key: K, cost: u64) {
        let Some((place, _)) = self.entries.get_mut(&key) else { return };
        self.by_time.remove(place);
        // Who could not start for a while does not make up for it.
        let start = place.0.max(self.time);
        self.time = start;
        self.entered += 1;
        *place = (start + cost, self.entered);
        self.by_time.insert(*place, key);
    }
}

impl Line {
    fn longest(&self) -> Option<(u32, usize)> {
        let lens = self.names.entries.iter().map(|(&name, (_, queue))| (name, queue.len()));
        lens.max_by_key(|(_, len)| *len)
    }

    fn len_of(&self, name: u32) -> usize {
        self.names.get(name).map_or(0, VecDeque::len)
    }
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    /// Whether one of `flow` waits.
    pub(super) fn has(&self, flow: Flow) -> bool {
        self.lines.get(flow.line()).is_some_and(|line| line.len_of(flow.tenant) > 0)
    }

    /// A request waits from `now` on. O(log n).
    pub(super) fn push(&mut self, asker: Asker, request: u64, tried: Tried, now: Instant) {
        let Asker { flow, weight, group, key } = asker;
        // Time that steps back makes nobody older than the one ahead, so that the head of a flow is its oldest.
        self.latest = self.latest.max(now);
        let waiting = Waiting { request, arrival: self.latest, tried, weight, group, key };
        self.ages.insert((waiting.arrival, request), flow);
        // Those that are not in turn are no more than others, and some.
        let line = self.lines.enter(flow.line(), 2 * self.ages.len() + ASKED);
        line.len += 1;
        line.names.enter(flow.tenant, 2 * line.len + ASKED).push_back(waiting);
    }

    /// The one whose turn it is, of those that `may` start.
    pub(super) fn next(&mut self, may: impl Fn(Asker) -> May) -> Option<(Asker, Waiting)> {
        self.lines.find(|(claimant, is_stream), line| {
            // When none of the flow may start, one answer is enough.
            let answer = line.names.find(|tenant, queue| {
                let head = *queue.front()?;
                let asker = asker(Flow { claimant, tenant, is_stream }, head);
                match may(asker) {
                    May::Start => Some(Some((asker, head))),
                    May::NotItsName => None,
                    May::NotItsFlow => Some(None),
                }
            });
            answer.flatten()
        })
    }

    /// The first one of `flow`.
    pub(super) fn first(&self, flow: Flow) -> Option<(Asker, Waiting)> {
        let head = *self.lines.get(flow.line())?.names.get(flow.tenant)?.front()?;
        Some((asker(flow, head), head))
    }

    /// The first one of `flow` has started: the others have their turns.
    pub(super) fn pop(&mut self, flow: Flow) {
        let Some(line) = self.lines.get_mut(flow.line()) else { return };
        let Some(head) = line.names.get(flow.tenant).and_then(VecDeque::front).copied() else { return };
        line.names.pass(flow.tenant, STEP);
        let cost = STEP / u64::from(head.weight.unwrap_or(1).max(1)).min(STEP);
        self.lines.pass(flow.line(), cost);
        self.ages.remove(&(head.arrival, head.request));
        self.take_out(flow, VecDeque::pop_front);
    }

    /// The one that waits longest.
    pub(super) fn oldest(&self) -> Option<(Instant, u64)> {
        self.ages.first_key_value().map(|(&age, _)| age)
    }

    /// The flow of the one that waits longest.
    pub(super) fn oldest_flow(&self) -> Option<Flow> {
        self.ages.first_key_value().map(|(_, &flow)| flow)
    }

    /// Takes out the one that waits longest.
    pub(super) fn pop_oldest(&mut self) {
        if let Some((_, flow)) = self.ages.pop_first() {
            // The oldest of all is the oldest of its name.
            self.take_out(flow, VecDeque::pop_front);
        }
    }

    /// Takes out the newest request of the longest flow, if that is longer than `flow` would be with one more; else
    /// that of the longest name of `flow`, in the same way. O(flows + names of one).
    pub(super) fn make_room(&mut self, flow: Flow) -> Option<u64> {
        let mine = self.lines.get(flow.line());
        let (len, own) = mine.map_or((0, 0), |line| (line.len, line.len_of(flow.tenant)));
        let longest = self.lines.entries.iter().max_by_key(|(_, (_, line))| line.len);
        let (key, name) = match longest.map(|(&key, (_, line))| (key, line)) {
            Some((key, line)) if line.len > len + 1 => (key, line.longest()?.0),
            _ => (flow.line(), mine?.longest().filter(|(_, longest)| *longest > own + 1)?.0),
        };
        let (claimant, is_stream) = key;
        let newest = self.take_out(Flow { claimant, tenant: name, is_stream }, VecDeque::pop_back)?;
        self.ages.remove(&(newest.arrival, newest.request));
        Some(newest.request)
    }

    /// Takes out `request`; false if it does not wait. O(n).
    pub(super) fn cancel(&mut self, request: u64) -> bool {
        let found = self.ages.iter().find(|((_, waiting), _)| *waiting == request);
        let Some((&age, &flow)) = found else { return false };
        self.ages.remove(&age);
        self.take_out(flow, |queue| {
            let at = queue.iter().position(|waiting| waiting.request == request)?;
            queue.remove(at)
        });
        true
    }

    /// Takes one of `flow` out of its queue.
    fn take_out(
        &mut self,
        flow: Flow,
        take: impl FnOnce(&mut VecDeque<Waiting>) -> Option<Waiting>,
    ) -> Option<Waiting> {
        let line = self.lines.get_mut(flow.line())?;
        let queue = line.names.get_mut(flow.tenant)?;
        let taken = take(queue)?;
        if queue.is_empty() {
            line.names.leave(flow.tenant);
        }
        line.len -= 1;
        if line.len == 0 {
            self.lines.leave(flow.line());
        }
        Some(taken)
    }
}

fn asker(flow: Flow, head: Waiting) -> Asker {
    Asker { flow, weight: head.weight, group: head.group, key: head.key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(requests: &[(u32, u64)]) -> Turns {
        let mut turns = Turns::default();
        for &(flow, request) in requests {
            turns.push(Flow::http1(flow).into(), request, Tried::default(), Instant::from_nanos(request));
        }
        turns
    }

    fn drain(turns: &mut Turns) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some((asker, next)) = turns.next(|_| May::Start) {
            order.push(next.request);
            turns.pop(asker.flow);
        }
        order
    }

    #[test]
    fn flows_take_turns_and_each_keeps_its_order() {
        let mut turns = turns(&[(1, 1), (1, 2), (1, 3), (2, 4), (1, 5), (3, 6), (2, 7)]);
        assert_eq!(drain(&mut turns), [1, 4, 6, 2, 7, 3, 5]);
        assert!(turns.len() == 0 && turns.oldest().is_none());
    }

    #[test]
    fn a_flow_of_twice_the_weight_has_two_turns_for_one() {
        let mut turns = Turns::default();
        for request in 0..12 {
            let flow = Flow::http1(u32::from(request >= 6));
            let asker = Asker { weight: Some([1, 2][usize::from(request >= 6)]), ..flow.into() };
            turns.push(asker, request, Tried::default(), Instant::from_nanos(request));
        }
        let order = drain(&mut turns);
        let heavy = order[..9].iter().filter(|&&request| request >= 6).count();
        assert_eq!(heavy, 6, "{order:?}");
    }

    #[test]
    fn a_flow_that_comes_back_does_not_jump_its_turn() {
        let mut turns = turns(&[(1, 1), (2, 2), (2, 3)]);
        turns.pop(Flow::http1(1));
        turns.push(Flow::http1(1).into(), 4, Tried::default(), Instant::from_nanos(4));
        assert_eq!(drain(&mut turns), [2, 4, 3]);
    }

    #[test]
    fn who_may_not_start_is_passed_over_and_keeps_its_turn() {
        let mut turns = turns(&[(1, 1), (2, 2), (1, 3), (2, 4)]);
        let only = |asker: Asker| if asker.flow == Flow::http1(2) { May::Start } else { May::NotItsFlow };
        let only_second = turns.next(only).map(|(_, next)| next.request);
        assert_eq!(only_second, Some(2));
        turns.pop(Flow::http1(2));
        assert_eq!(turns.next(|_| May::NotItsFlow), None);
        assert_eq!(drain(&mut turns), [1, 4, 3]);
    }

    #[test]
    fn the_longest_flow_makes_room_for_a_shorter_one_only() {
        let mut turns = turns(&[(1, 1), (1, 2), (1, 3), (2, 4)]);
        assert_eq!(turns.make_room(Flow::http1(1)), None, "its own excess is its own loss");
        assert_eq!(turns.make_room(Flow::http1(3)), Some(3));
        assert_eq!(turns.make_room(Flow::http1(2)), None, "one more would make it the longest");
        assert_eq!(turns.make_room(Flow::http1(3)), Some(2));
        assert_eq!(turns.make_room(Flow::http1(3)), None);
    }

    /// Request `number` of a name of source 1 for each of these.
    fn made_up(names: impl IntoIterator<Item = u32>) -> Turns {
        let mut turns = Turns::default();
        for (request, name) in (1..).zip(names) {
            turns.push(Flow::made_up(1, name).into(), request, Tried::default(), Instant::from_nanos(request));
        }
        turns
    }

    #[test]
    fn names_of_one_source_have_its_turns_and_take_turns_in_these() {
        let mut turns = made_up([1, 1, 1, 2, 3]);
        for request in [6, 7] {
            turns.push(Flow::http1(9).into(), request, Tried::default(), Instant::from_nanos(request));
        }
        assert_eq!(drain(&mut turns), [1, 6, 4, 7, 5, 2, 3]);
    }

    #[test]
    fn names_of_one_source_make_room_as_one_and_among_each_other() {
        let mut turns = made_up([1, 1, 2]);
        assert_eq!(turns.make_room(Flow::http1(9)), Some(2), "the newest of the name with the most");
        assert!(
            [turns.make_room(Flow::made_up(1, 3)), turns.make_room(Flow::made_up(1, 1))].iter().all(Option::is_none)
        );
        let mut turns = made_up([1, 1, 2]);
        assert_eq!(turns.make_room(Flow::made_up(1, 3)), Some(2), "a name of its own that has more");
        assert_eq!(turns.make_room(Flow::http1(9)), Some(3));
        assert_eq!((turns.make_room(Flow::http1(9)), turns.len()), (None, 1));
    }

    #[test]
    fn a_name_that_may_not_start_lets_the_next_of_its_source() {
        let mut turns = made_up([1, 2]);
        let not_first = |asker: Asker| if asker.flow.tenant == 1 { May::NotItsName } else { May::Start };
        assert_eq!(turns.next(not_first).map(|(_, next)| next.request), Some(2));
        assert_eq!(turns.next(|_| May::NotItsFlow), None);
    }

    #[test]
    fn a_search_asks_a_few_and_the_next_one_goes_on_behind_them() {
        let flows = 3 * u32::try_from(ASKED).unwrap();
        let mut turns = turns(&(1..=flows).map(|flow| (flow, flow.into())).collect::<Vec<_>>());
        let asked = std::cell::Cell::new(0);
        let only_last = |asker: Asker| {
            asked.set(asked.get() + 1);
            if asker.flow == Flow::http1(flows) { May::Start } else { May::NotItsFlow }
        };
        let found: Vec<_> = (0..3).map(|_| turns.next(only_last).map(|(_, next)| next.request)).collect();
        assert_eq!(found, [None, None, Some(flows.into())]);
        assert_eq!(asked.get(), 3 * ASKED);
        turns.pop(Flow::http1(flows));
        assert_eq!(
            turns.next(|_| May::Start).map(|(_, next)| next.request),
            Some(1),
            "then the first one is asked again"
        );
        // All of them have their turns.
        let mut left: Vec<_> = drain(&mut turns);
        left.sort_unstable();
        assert_eq!(left, (1..u64::from(flows)).collect::<Vec<_>>());
    }

    #[test]
    fn names_that_come_and_go_are_forgotten() {
        let mut turns = turns(&[(1, 1)]);
        for request in 2..10_000 {
            let (flow, now) = (Flow::made_up(1, u32::try_from(request).unwrap()), Instant::from_nanos(request));
            turns.push(flow.into(), request, Tried::default(), now);
            assert!(turns.cancel(request));
            let other = Flow::http1(u32::try_from(request).unwrap());
            turns.push(other.into(), request, Tried::default(), now);
            assert!(turns.cancel(request));
        }
        let names = turns.lines.get((Claimant::Source(1), false)).map_or(0, |line| line.names.entries.len());
        assert!(names <= ASKED + 2 && turns.lines.entries.len() <= ASKED + 4, "{names} {}", turns.lines.entries.len());
        assert_eq!(turns.lines.by_time.len(), 1);
        assert_eq!(drain(&mut turns), [1]);
    }

    #[test]
    fn the_oldest_leaves_first_whatever_its_flow() {
        let mut turns = turns(&[(2, 1), (1, 2), (2, 3)]);
        turns.pop_oldest();
        assert_eq!(turns.oldest(), Some((Instant::from_nanos(2), 2)));
        assert!(turns.cancel(2) && !turns.cancel(2));
        assert_eq!((drain(&mut turns), turns.len()), (vec![3], 0));
    }
}
