//! Who waits for a server, and in which order they start.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::Instant;

use super::pool::Tried;
use super::ring::Key;

/// Whose request it is, as far as turns and slots are concerned. A proxy's tenant is one, and another one with its streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Flow {
    /// Whose slots it takes.
    pub tenant: u32,
    /// It shares its client's connection with others, as requests of HTTP/2 do.
    pub is_stream: bool,
}

#[cfg(test)]
impl Flow {
    /// What a tenant asks over HTTP/1.
    pub(crate) const fn http1(tenant: u32) -> Self {
        Self { tenant, is_stream: false }
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

/// Requests that wait: first come, first served within a flow, and the flows in turn, by weight. So however many requests
/// one flow has here, another one's next request waits behind one of it at most, if their weights are the same.
///
/// When there is no room, the flow with the most requests loses its newest: a flow that has fewer than others is never
/// refused for what they send.
/// Source: Goyal, Vin and Cheng, "Start-time fair queuing" (SIGCOMM 1996), with a start as the unit of work; dropping from
/// the longest queue as in Suter et al., "Design considerations for supporting TCP with per-flow queueing" (1998).
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Every flow of the order; an empty one leaves when its turn comes.
    flows: BTreeMap<Flow, Line>,
    /// Each flow once, by its time; of those at the same time the one that came to it first.
    order: BTreeMap<(u64, u64), Flow>,
    /// The time of the flow that was in turn last: who comes has had no less.
    time: u64,
    entered: u64,
    /// All of them by age.
    ages: BTreeMap<(Instant, u64), Flow>,
    latest: Instant,
}

#[derive(Clone, Debug)]
struct Line {
    place: (u64, u64),
    queue: VecDeque<Waiting>,
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    /// A request waits from `now` on. O(log n).
    pub(super) fn push(&mut self, asker: Asker, request: u64, tried: Tried, now: Instant) {
        let Asker { flow, weight, group, key } = asker;
        // Time that steps back makes nobody older than the one ahead, so that the head of a flow is its oldest.
        self.latest = self.latest.max(now);
        let waiting = Waiting { request, arrival: self.latest, tried, weight, group, key };
        self.ages.insert((waiting.arrival, request), flow);
        let (order, entered, time) = (&mut self.order, &mut self.entered, self.time);
        let line = self.flows.entry(flow).or_insert_with(|| {
            *entered += 1;
            let place = (time, *entered);
            order.insert(place, flow);
            Line { place, queue: VecDeque::new() }
        });
        line.queue.push_back(waiting);
    }

    /// The one whose turn it is, of those that `may` start. O(flows that may not).
    pub(super) fn next(&mut self, may: impl Fn(Asker) -> bool) -> Option<(Asker, Waiting)> {
        while let Some((_, flow)) = self.order.first_key_value()
            && self.flows.get(flow).is_none_or(|line| line.queue.is_empty())
        {
            self.flows.remove(flow);
            self.order.pop_first();
        }
        self.order.values().find_map(|&flow| {
            let head = *self.flows.get(&flow)?.queue.front()?;
            let asker = Asker { flow, weight: head.weight, group: head.group, key: head.key };
            may(asker).then_some((asker, head))
        })
    }

    /// The next one of `flow` has started: the other flows have their turns.
    pub(super) fn pop(&mut self, flow: Flow) {
        let Some(line) = self.flows.get_mut(&flow) else { return };
        let Some(head) = line.queue.pop_front() else { return };
        self.ages.remove(&(head.arrival, head.request));
        // An empty one keeps its place, and leaves there if nothing came by then.
        self.order.remove(&line.place);
        // Who could not start for a while does not make up for it.
        let start = line.place.0.max(self.time);
        self.time = start;
        self.entered += 1;
        line.place = (start + STEP / u64::from(head.weight.unwrap_or(1).max(1)).min(STEP), self.entered);
        self.order.insert(line.place, flow);
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
        if let Some((_, flow)) = self.ages.pop_first()
            && let Some(line) = self.flows.get_mut(&flow)
        {
            // The oldest of all is the oldest of its flow.
            line.queue.pop_front();
        }
    }

    /// Takes out the newest request of the longest flow, if that is longer than `flow` would be with one more.
    /// O(flows).
    pub(super) fn make_room(&mut self, flow: Flow) -> Option<u64> {
        let mine = self.flows.get(&flow).map_or(0, |line| line.queue.len());
        let longest = &mut self.flows.values_mut().max_by_key(|line| line.queue.len())?.queue;
        if longest.len() <= mine + 1 {
            return None;
        }
        let newest = longest.pop_back()?;
        self.ages.remove(&(newest.arrival, newest.request));
        Some(newest.request)
    }

    /// Takes out `request`; false if it does not wait. O(n).
    pub(super) fn cancel(&mut self, request: u64) -> bool {
        let found = self.ages.iter().find(|((_, waiting), _)| *waiting == request);
        let Some((&age, &flow)) = found else { return false };
        self.ages.remove(&age);
        if let Some(line) = self.flows.get_mut(&flow) {
            line.queue.retain(|waiting| waiting.request != request);
        }
        true
    }
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
        while let Some((asker, next)) = turns.next(|_| true) {
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
        let only_second = turns.next(|asker| asker.flow == Flow::http1(2)).map(|(_, next)| next.request);
        assert_eq!(only_second, Some(2));
        turns.pop(Flow::http1(2));
        assert_eq!(turns.next(|_| false), None);
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

    #[test]
    fn the_oldest_leaves_first_whatever_its_flow() {
        let mut turns = turns(&[(2, 1), (1, 2), (2, 3)]);
        turns.pop_oldest();
        assert_eq!(turns.oldest(), Some((Instant::from_nanos(2), 2)));
        assert!(turns.cancel(2) && !turns.cancel(2));
        assert_eq!((drain(&mut turns), turns.len()), (vec![3], 0));
    }
}
