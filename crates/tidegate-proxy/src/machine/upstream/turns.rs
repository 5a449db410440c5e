//! Who waits for a server, and in which order they start.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::Instant;

use super::pool::Tried;

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

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) request: u64,
    pub(super) arrival: Instant,
    pub(super) tried: Tried,
}

/// Requests that wait: first come, first served within a flow, and the flows in turn. So however many requests one flow
/// has here, another one's next request waits behind one of it at most.
///
/// When there is no room, the flow with the most requests loses its newest: a flow that has fewer than others is never
/// refused for what they send.
/// Source: round-robin fair queueing as in Nagle, "On packet switches with infinite storage" (RFC 970); dropping from the
/// longest queue as in Suter et al., "Design considerations for supporting TCP with per-flow queueing" (1998).
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Every flow of the ring; an empty one leaves when its turn comes.
    flows: BTreeMap<Flow, VecDeque<Waiting>>,
    /// Each flow once, the next one first.
    ring: VecDeque<Flow>,
    /// All of them by age.
    ages: BTreeMap<(Instant, u64), Flow>,
    latest: Instant,
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    /// A request of `flow` waits from `now` on. O(log n).
    pub(super) fn push(&mut self, flow: Flow, request: u64, tried: Tried, now: Instant) {
        // Time that steps back makes nobody older than the one ahead, so that the head of a flow is its oldest.
        self.latest = self.latest.max(now);
        let waiting = Waiting { request, arrival: self.latest, tried };
        self.ages.insert((waiting.arrival, request), flow);
        let ring = &mut self.ring;
        let queue = self.flows.entry(flow).or_insert_with(|| {
            ring.push_back(flow);
            VecDeque::new()
        });
        queue.push_back(waiting);
    }

    /// The one whose turn it is, of flows that `may` start; with its flow. O(flows that may not).
    pub(super) fn next(&mut self, may: impl Fn(Flow) -> bool) -> Option<(Flow, Waiting)> {
        while let Some(flow) = self.ring.front()
            && self.flows.get(flow).is_none_or(VecDeque::is_empty)
        {
            self.flows.remove(flow);
            self.ring.pop_front();
        }
        let head = |flow: &Flow| self.flows.get(flow)?.front().filter(|_| may(*flow)).map(|head| (*flow, *head));
        self.ring.iter().find_map(head)
    }

    /// The next one of `flow` has started: the other flows have their turns.
    pub(super) fn pop(&mut self, flow: Flow) {
        let Some(head) = self.flows.get_mut(&flow).and_then(VecDeque::pop_front) else { return };
        self.ages.remove(&(head.arrival, head.request));
        // An empty one keeps its place, and leaves there if nothing came by then.
        self.ring.retain(|other| *other != flow);
        self.ring.push_back(flow);
    }

    /// The one that waits longest.
    pub(super) fn oldest(&self) -> Option<(Instant, u64)> {
        self.ages.first_key_value().map(|(&age, _)| age)
    }

    /// Takes out the one that waits longest.
    pub(super) fn pop_oldest(&mut self) {
        if let Some((_, flow)) = self.ages.pop_first() {
            // The oldest of all is the oldest of its flow.
            self.flows.entry(flow).or_default().pop_front();
        }
    }

    /// Takes out the newest request of the longest flow, if that is longer than `flow` would be with one more.
    /// O(flows).
    pub(super) fn make_room(&mut self, flow: Flow) -> Option<u64> {
        let mine = self.flows.get(&flow).map_or(0, VecDeque::len);
        let (_, longest) = self.flows.iter_mut().max_by_key(|(_, queue)| queue.len())?;
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
        self.flows.entry(flow).or_default().retain(|waiting| waiting.request != request);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(requests: &[(u32, u64)]) -> Turns {
        let mut turns = Turns::default();
        for &(flow, request) in requests {
            turns.push(Flow::http1(flow), request, Tried::default(), Instant::from_nanos(request));
        }
        turns
    }

    fn drain(turns: &mut Turns) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some((flow, next)) = turns.next(|_| true) {
            order.push(next.request);
            turns.pop(flow);
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
    fn a_flow_that_comes_back_does_not_jump_its_turn() {
        let mut turns = turns(&[(1, 1), (2, 2), (2, 3)]);
        turns.pop(Flow::http1(1));
        turns.push(Flow::http1(1), 4, Tried::default(), Instant::from_nanos(4));
        assert_eq!(drain(&mut turns), [2, 4, 3]);
    }

    #[test]
    fn who_may_not_start_is_passed_over_and_keeps_its_turn() {
        let mut turns = turns(&[(1, 1), (2, 2), (1, 3), (2, 4)]);
        let only_second = turns.next(|flow| flow == Flow::http1(2)).map(|(_, next)| next.request);
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
