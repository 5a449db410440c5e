//! A plan that stands, and changes by single publishers.
//!
//! Between plans publishers come, go and change their rates. A new one goes to the node with most room of those that take
//! publishers; nobody else moves. O(log n) for each on n nodes.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use tidegate_core::limit::Limit;
use tidegate_core::number::{float, whole};

use super::portion::{Portion, WHOLE, divide};
use super::types::{NodeLoad, NodeNo, Plan, Publisher, PublisherNo};

/// Rates count to a thousandth of a token per second in the division of a contract.
const WEIGHT_PER_RATE: f64 = 1e3;

/// Room of a node, ordered: the most room first, of equal ones the lowest number.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Room {
    per_s: f64,
    node: usize,
}

impl Eq for Room {}

impl PartialOrd for Room {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Room {
    fn cmp(&self, other: &Self) -> Ordering {
        other.per_s.total_cmp(&self.per_s).then(self.node.cmp(&other.node))
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    load: NodeLoad,
    takes: bool,
    /// Of this claim.
    rate_per_s: f64,
    publishers: u32,
}

impl Place {
    fn room_per_s(&self) -> f64 {
        self.load.mcap_per_s - self.load.allocated_per_s - self.rate_per_s
    }
}

/// Where a publisher is.
#[derive(Clone, Copy, Debug)]
struct Seat {
    rate_per_s: f64,
    at: Option<usize>,
}

/// Publishers on nodes, which are numbered as in a plan. Numbers of publishers that left are given again.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    places: Vec<Place>,
    rooms: BTreeSet<Room>,
    /// By number; `None`: nobody has the number.
    seats: Vec<Option<Seat>>,
    free: Vec<PublisherNo>,
}

impl Standing {
    /// Nobody on `nodes`, of which none takes publishers.
    #[must_use]
    pub fn new(nodes: &[NodeLoad]) -> Self {
        let place = |&load: &NodeLoad| Place { load, takes: false, rate_per_s: 0.0, publishers: 0 };
        Self { places: nodes.iter().map(place).collect(), ..Self::default() }
    }

    /// What `plan` says of `publishers` on `nodes`; the nodes that it names take publishers.
    #[must_use]
    pub fn of(plan: &Plan, nodes: &[NodeLoad], publishers: &[Publisher]) -> Self {
        let mut standing = Self::new(nodes);
        let seat = |publisher: &Publisher| Some(Seat { rate_per_s: publisher.rate_per_s.max(0.0), at: None });
        standing.seats = publishers.iter().map(seat).collect();
        for part in &plan.parts {
            standing.set_takes(part.node, true);
            for &publisher in &part.publishers {
                standing.put(publisher, Some(part.node));
            }
        }
        standing
    }

    /// Another node, which takes no publishers yet; its number follows the last.
    pub fn add_node(&mut self, load: NodeLoad) -> NodeNo {
        self.places.push(Place { load, takes: false, rate_per_s: 0.0, publishers: 0 });
        NodeNo(u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX))
    }

    /// A node's capacity, or what others have of it, changed.
    pub fn set_load(&mut self, node: NodeNo, load: NodeLoad) {
        self.change(node, |place| place.load = load);
    }

    /// Whether a node takes publishers.
    pub fn set_takes(&mut self, node: NodeNo, takes: bool) {
        self.change(node, |place| place.takes = takes);
    }

    /// True if a node takes publishers.
    #[must_use]
    pub fn takes(&self, node: NodeNo) -> bool {
        self.places.get(node.0 as usize).is_some_and(|place| place.takes)
    }

    /// A publisher comes: it goes to the node with most room, if there is one that takes publishers; its number, and its
    /// node.
    pub fn add_publisher(&mut self, rate_per_s: f64) -> (PublisherNo, Option<NodeNo>) {
        let publisher = self.seat(rate_per_s);
        (publisher, self.settle(publisher))
    }

    /// A number for a publisher that has no node yet.
    pub fn seat(&mut self, rate_per_s: f64) -> PublisherNo {
        let seat = Some(Seat { rate_per_s: rate_per_s.max(0.0), at: None });
        if let Some(publisher) = self.free.pop() {
            self.seats[publisher.0 as usize] = seat;
            return publisher;
        }
        self.seats.push(seat);
        PublisherNo(u32::try_from(self.seats.len() - 1).unwrap_or(u32::MAX))
    }

    /// A publisher goes to the node with most room, wherever it was; its node.
    pub fn settle(&mut self, publisher: PublisherNo) -> Option<NodeNo> {
        self.put(publisher, None);
        let node = self.most_room().map(|(node, _)| node);
        self.put(publisher, node);
        node
    }

    /// A publisher goes to this node, or to none.
    pub fn put(&mut self, publisher: PublisherNo, node: Option<NodeNo>) {
        let Some(Some(seat)) = self.seats.get_mut(publisher.0 as usize) else { return };
        let rate_per_s = seat.rate_per_s;
        let to = node.map(|node| node.0 as usize).filter(|&to| to < self.places.len());
        let from = core::mem::replace(&mut seat.at, to);
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.change_at(from, |place| {
                place.publishers = place.publishers.saturating_sub(1);
                // What is left after many additions and subtractions is nothing.
                place.rate_per_s = if place.publishers == 0 { 0.0 } else { (place.rate_per_s - rate_per_s).max(0.0) };
            });
        }
        if let Some(to) = to {
            self.change_at(to, |place| {
                place.publishers += 1;
                place.rate_per_s += rate_per_s;
            });
        }
    }

    /// A publisher sends at another rate; it stays where it is.
    pub fn set_rate(&mut self, publisher: PublisherNo, rate_per_s: f64) {
        let rate_per_s = rate_per_s.max(0.0);
        let Some(Some(seat)) = self.seats.get_mut(publisher.0 as usize) else { return };
        let more = rate_per_s - core::mem::replace(&mut seat.rate_per_s, rate_per_s);
        if let Some(at) = seat.at {
            self.change_at(at, |place| place.rate_per_s = (place.rate_per_s + more).max(0.0));
        }
    }

    /// A publisher leaves.
    pub fn remove_publisher(&mut self, publisher: PublisherNo) {
        self.put(publisher, None);
        if let Some(seat) = self.seats.get_mut(publisher.0 as usize)
            && seat.take().is_some()
        {
            self.free.push(publisher);
        }
    }

    /// Where a publisher is.
    #[must_use]
    pub fn node_of(&self, publisher: PublisherNo) -> Option<NodeNo> {
        let at = self.seats.get(publisher.0 as usize)?.as_ref()?.at?;
        Some(NodeNo(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    /// A publisher's rate; 0 if there is none of this number.
    #[must_use]
    pub fn rate_of(&self, publisher: PublisherNo) -> f64 {
        self.seats.get(publisher.0 as usize).and_then(Option::as_ref).map_or(0.0, |seat| seat.rate_per_s)
    }

    /// Rate of this claim on a node.
    #[must_use]
    pub fn rate_per_s(&self, node: NodeNo) -> f64 {
        self.places.get(node.0 as usize).map_or(0.0, |place| place.rate_per_s)
    }

    /// Publishers on a node.
    #[must_use]
    pub fn publishers(&self, node: NodeNo) -> u32 {
        self.places.get(node.0 as usize).map_or(0, |place| place.publishers)
    }

    /// What is left of a node's capacity; below 0 if it has more than that.
    #[must_use]
    pub fn room_per_s(&self, node: NodeNo) -> f64 {
        self.places.get(node.0 as usize).map_or(0.0, Place::room_per_s)
    }

    /// The node with most room of those that take publishers, and its room.
    #[must_use]
    pub fn most_room(&self) -> Option<(NodeNo, f64)> {
        let room = self.rooms.first()?;
        Some((NodeNo(u32::try_from(room.node).unwrap_or(u32::MAX)), room.per_s))
    }

    /// The contract divided by the rates on nodes, with at least a hundredth of it and a token, or half an even share, for
    /// each node that takes publishers, has some, or for which `also` says so. Empty if there is no such node, or the burst
    /// has no token for each.
    #[must_use]
    pub fn portions(&self, contract: Limit, also: impl Fn(NodeNo) -> bool) -> Vec<(NodeNo, Portion)> {
        self.portions_with(contract, also, |_| 0.0)
    }

    /// The same with `more` of the rate for each node, in tokens per second, than its publishers need.
    #[must_use]
    pub fn portions_with(
        &self,
        contract: Limit,
        also: impl Fn(NodeNo) -> bool,
        more: impl Fn(NodeNo) -> f64,
    ) -> Vec<(NodeNo, Portion)> {
        let numbered = (0..).map(NodeNo).zip(&self.places);
        let of: Vec<(NodeNo, &Place)> =
            numbered.filter(|(node, place)| place.takes || place.publishers > 0 || also(*node)).collect();
        let many = of.len() as u64;
        if many == 0 || contract.burst < many {
            return Vec::new();
        }
        let weight = |rate_per_s: f64| whole((rate_per_s.max(0.0) * WEIGHT_PER_RATE).round());
        let weights: Vec<u64> = of.iter().map(|(_, place)| weight(place.rate_per_s)).collect();
        let with_more: Vec<u64> = of.iter().map(|(node, place)| weight(place.rate_per_s + more(*node))).collect();
        let floor = whole((float(WHOLE) / 100.0).min(float(WHOLE) / (2.0 * float(many))));
        let rates = divide(WHOLE, &with_more, floor);
        let bursts = divide(contract.burst, &weights, 1);
        let portions = rates.into_iter().zip(bursts).map(|(rate_shares, burst)| Portion { rate_shares, burst });
        of.into_iter().map(|(node, _)| node).zip(portions).collect()
    }

    fn change(&mut self, node: NodeNo, change: impl FnOnce(&mut Place)) {
        self.change_at(node.0 as usize, change);
    }

    fn change_at(&mut self, at: usize, change: impl FnOnce(&mut Place)) {
        let Some(place) = self.places.get_mut(at) else { return };
        if place.takes {
            self.rooms.remove(&Room { per_s: place.room_per_s(), node: at });
        }
        change(place);
        if place.takes {
            self.rooms.insert(Room { per_s: place.room_per_s(), node: at });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Rate;

    use super::super::portion::sum;
    use super::super::types::{GroupNo, Part};
    use super::*;

    fn loads(many: usize) -> Vec<NodeLoad> {
        vec![NodeLoad { mcap_per_s: 1_000.0, allocated_per_s: 0.0 }; many]
    }

    #[test]
    fn a_new_publisher_goes_where_most_room_is() {
        let publishers = vec![Publisher { rate_per_s: 100.0, group: GroupNo(0) }; 5];
        let limit = Limit::new(Rate::per_s(1), 1);
        let on = |node: u32, publishers: &[u32]| Part {
            node: NodeNo(node),
            limit,
            publishers: publishers.iter().copied().map(PublisherNo).collect(),
        };
        let plan = Plan { parts: vec![on(0, &[0, 1, 2]), on(1, &[3, 4])], ..Plan::default() };
        // The third node is in no plan.
        let mut standing = Standing::of(&plan, &loads(3), &publishers);
        assert_eq!(standing.most_room(), Some((NodeNo(1), 800.0)));
        assert_eq!(standing.add_publisher(150.0), (PublisherNo(5), Some(NodeNo(1))));
        assert_eq!(standing.add_publisher(10.0), (PublisherNo(6), Some(NodeNo(0))));
        standing.remove_publisher(PublisherNo(0));
        standing.remove_publisher(PublisherNo(0));
        assert_eq!((standing.publishers(NodeNo(0)), standing.rate_per_s(NodeNo(0))), (3, 210.0));
        // Its number is given again.
        assert_eq!(standing.add_publisher(1.0), (PublisherNo(0), Some(NodeNo(0))));
        standing.set_takes(NodeNo(0), false);
        assert_eq!(standing.settle(PublisherNo(1)), Some(NodeNo(1)));
        standing.set_rate(PublisherNo(1), 5_000.0);
        assert!((standing.room_per_s(NodeNo(1)) + 4_350.0).abs() < 1e-9);
        assert_eq!(Standing::new(&loads(2)).add_publisher(1.0).1, None);
    }

    #[test]
    fn parts_follow_the_rates() {
        let mut standing = Standing::new(&loads(3));
        standing.set_takes(NodeNo(0), true);
        standing.set_takes(NodeNo(1), true);
        for node in [0, 0, 0, 1] {
            let publisher = standing.seat(10.0);
            standing.put(publisher, Some(NodeNo(node)));
        }
        let contract = Limit::new(Rate::per_s(1_000), 20);
        let portions = standing.portions(contract, |node| node == NodeNo(2));
        let shares: Vec<(u32, u64, u64)> = portions
            .iter()
            .map(|(node, portion)| (node.0, portion.rate_shares * 1_000 / WHOLE, portion.burst))
            .collect();
        assert_eq!(shares, [(0, 742, 14), (1, 247, 5), (2, 10, 1)]);
        // A line at the third: the rate follows it, the burst does not.
        let more = |node| if node == NodeNo(2) { 40.0 } else { 0.0 };
        let portions = standing.portions_with(contract, |node| node == NodeNo(2), more);
        let rates: Vec<u64> = portions.iter().map(|(_, portion)| portion.rate_shares * 1_000 / WHOLE).collect();
        assert_eq!((rates, portions[2].1.burst), (vec![375, 125, 500], 1));
        assert!(standing.portions(Limit::new(Rate::per_s(1), 2), |_| true).is_empty());
    }

    proptest! {
        #[test]
        fn rooms_are_those_of_the_publishers_there(
            steps in proptest::collection::vec((0..6u8, 0..40u32, 0.0..300.0f64), 1..200),
        ) {
            let mut standing = Standing::new(&loads(4));
            for (what, number, rate) in steps {
                let node = NodeNo(number % 4);
                match what {
                    0 => {
                        standing.add_publisher(rate);
                    }
                    1 => standing.remove_publisher(PublisherNo(number)),
                    2 => standing.put(PublisherNo(number), Some(node)),
                    3 => standing.set_rate(PublisherNo(number), rate),
                    4 => standing.set_takes(node, rate > 100.0),
                    _ => {
                        standing.settle(PublisherNo(number));
                    }
                }
            }
            for node in (0..4).map(NodeNo) {
                let on = (0..200).map(PublisherNo).filter(|&publisher| standing.node_of(publisher) == Some(node));
                let rate: f64 = on.map(|publisher| standing.rate_of(publisher)).sum();
                prop_assert!((standing.rate_per_s(node) - rate).abs() < 1e-6);
                let most = standing.most_room();
                prop_assert!(!standing.takes(node) || most.is_some_and(|(_, room)| room >= standing.room_per_s(node)));
            }
            let portions = standing.portions(Limit::new(Rate::per_s(9), 9), |_| true);
            let whole = sum(portions.iter().map(|(_, portion)| portion));
            prop_assert_eq!(whole, Portion { rate_shares: WHOLE, burst: 9 });
        }
    }
}
