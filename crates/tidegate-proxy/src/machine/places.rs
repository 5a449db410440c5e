//! Who is ended when there is no room for one more.
//!
//! A place is a connection's; what is in here are those on which nothing is under way, because their clients have to send
//! or to read something. Whoever comes gets the place of one of them: a client that does what it came for waits for
//! moments and is hardly ever in here, and one that holds places without using them loses them one by one.

use core::hash::Hash;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// No place, no group.
const NONE: usize = usize::MAX;

/// Places that wait, in groups: by their tenants or, while nobody knows the tenant, by the addresses they came from.
///
/// The group that has the most loses its oldest: so who has fewer than others loses nothing to them, and a crowd of equals
/// loses its oldest. Every operation is O(1); memory is that of the highest place and of the groups that have one.
/// Source: dropping from the longest queue as in Suter et al., "Design considerations for supporting TCP with per-flow
/// queueing" (1998).
#[derive(Clone, Debug)]
pub struct Waiting<G> {
    places: Vec<Node<usize>>,
    groups: Vec<Node<Group<G>>>,
    /// Groups that are not used.
    free: Vec<usize>,
    names: HashMap<G, usize, RandomState>,
    /// Of each number of places, the groups that have so many; who got there first is first.
    sizes: Vec<List>,
    /// The number of places of the largest group.
    largest: usize,
    count: usize,
}

/// Something in a list.
#[derive(Clone, Copy, Debug)]
struct Node<T> {
    before: usize,
    behind: usize,
    of: T,
}

#[derive(Clone, Copy, Debug)]
struct Group<G> {
    name: G,
    list: List,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: usize,
    last: usize,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    fn push<T>(&mut self, nodes: &mut [Node<T>], node: usize) {
        (nodes[node].before, nodes[node].behind) = (self.last, NONE);
        match nodes.get_mut(self.last) {
            Some(last) => last.behind = node,
            None => self.first = node,
        }
        self.last = node;
    }

    fn remove<T>(&mut self, nodes: &mut [Node<T>], node: usize) {
        let (before, behind) = (nodes[node].before, nodes[node].behind);
        match nodes.get_mut(before) {
            Some(before) => before.behind = behind,
            None => self.first = behind,
        }
        match nodes.get_mut(behind) {
            Some(behind) => behind.before = before,
            None => self.last = before,
        }
    }
}

impl<G> Default for Waiting<G> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            groups: Vec::new(),
            free: Vec::new(),
            names: HashMap::with_hasher(RandomState::default()),
            sizes: Vec::new(),
            largest: 0,
            count: 0,
        }
    }
}

impl<G: Copy + Eq + Hash> Waiting<G> {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// `place` waits from now on, in the group of this name; one that waits already begins anew.
    pub fn push(&mut self, place: usize, name: G) {
        self.remove(place);
        if place >= self.places.len() {
            self.places.resize(place + 1, Node { before: NONE, behind: NONE, of: NONE });
        }
        let group = match self.names.get(&name) {
            Some(&group) => group,
            None => self.found(name),
        };
        self.places[place].of = group;
        self.groups[group].of.list.push(&mut self.places, place);
        self.count += 1;
        self.resize(group, self.groups[group].of.count + 1);
    }

    /// `place` waits no longer; nothing if it did not.
    pub fn remove(&mut self, place: usize) {
        let Some(node) = self.places.get_mut(place).filter(|node| node.of != NONE) else { return };
        let group = std::mem::replace(&mut node.of, NONE);
        self.groups[group].of.list.remove(&mut self.places, place);
        self.count -= 1;
        self.resize(group, self.groups[group].of.count - 1);
    }

    /// Whose place is the next one to be given to somebody else.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        let group = self.sizes.get(self.largest).filter(|_| self.largest > 0)?.first;
        self.groups.get(group).map(|group| group.of.list.first)
    }

    /// An empty group of this name.
    fn found(&mut self, name: G) -> usize {
        let node = Node { before: NONE, behind: NONE, of: Group { name, list: List::EMPTY, count: 0 } };
        let group = if let Some(free) = self.free.pop() {
            self.groups[free] = node;
            free
        } else {
            self.groups.push(node);
            self.groups.len() - 1
        };
        self.names.insert(name, group);
        group
    }

    /// The group has `count` places, one more or less than before.
    fn resize(&mut self, group: usize, count: usize) {
        let before = std::mem::replace(&mut self.groups[group].of.count, count);
        if before > 0 {
            self.sizes[before].remove(&mut self.groups, group);
        }
        if count == 0 {
            self.names.remove(&self.groups[group].of.name);
            self.free.push(group);
        } else {
            if count >= self.sizes.len() {
                self.sizes.resize(count + 1, List::EMPTY);
            }
            self.sizes[count].push(&mut self.groups, group);
        }
        // A group that shrinks goes to the list below, so the largest is at most one smaller than before.
        let largest = self.largest.max(count);
        self.largest = if self.sizes.get(largest).is_some_and(|list| list.first != NONE) { largest } else { count };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(places: &[(usize, char)]) -> Waiting<char> {
        let mut waiting = Waiting::default();
        for &(place, group) in places {
            waiting.push(place, group);
        }
        waiting
    }

    /// Everybody, in the order in which they lose their places.
    fn order(mut waiting: Waiting<char>) -> Vec<usize> {
        std::iter::from_fn(|| waiting.next().inspect(|&next| waiting.remove(next))).collect()
    }

    #[test]
    fn the_group_with_the_most_loses_its_oldest() {
        let crowd = waiting(&[(9, 'a'), (1, 'b'), (2, 'b'), (3, 'b'), (4, 'c'), (5, 'c')]);
        assert_eq!(order(crowd)[..2], [1, 4]);
    }

    #[test]
    fn of_equals_the_oldest_goes_first() {
        let mut crowd = waiting(&[(3, 'a'), (1, 'b'), (2, 'c')]);
        crowd.push(3, 'a');
        assert_eq!(order(crowd), [1, 2, 3], "who begins anew is the youngest");
    }

    #[test]
    fn who_has_few_places_loses_none_to_a_crowd_that_comes_and_goes() {
        let mut crowd = waiting(&[(0, 'q')]);
        for place in 1..100 {
            crowd.push(place, 'n');
        }
        for _ in 0..10_000 {
            let place = crowd.next().unwrap();
            assert_ne!(place, 0);
            crowd.push(place, 'n');
        }
    }

    #[test]
    fn who_left_is_not_found_and_leaves_once() {
        let mut crowd = waiting(&[(7, 'a')]);
        crowd.remove(7);
        crowd.remove(7);
        crowd.remove(1_000);
        assert!(crowd.is_empty() && crowd.next().is_none());
        crowd.push(7, 'b');
        assert_eq!((crowd.len(), crowd.next()), (1, Some(7)));
    }

    proptest! {
        #[test]
        fn it_is_as_a_search_through_all_of_them_would_be(
            steps in prop::collection::vec((0_usize..20, 0_u8..5, prop::bool::weighted(0.3)), 1..300),
        ) {
            let mut waiting = Waiting::default();
            // In the order of age.
            let mut all: Vec<(usize, u8)> = Vec::new();
            for (place, group, leaves) in steps {
                all.retain(|(other, _)| *other != place);
                if leaves {
                    waiting.remove(place);
                } else {
                    waiting.push(place, group);
                    all.push((place, group));
                }
                prop_assert_eq!(waiting.len(), all.len());
                let count = |group| all.iter().filter(|(_, other)| *other == group).count();
                let most = all.iter().map(|&(_, group)| count(group)).max();
                let next = waiting.next();
                prop_assert_eq!(next.is_none(), all.is_empty());
                if let Some(next) = next {
                    let group = all.iter().find(|(place, _)| *place == next).unwrap().1;
                    prop_assert_eq!(Some(count(group)), most);
                    let oldest = all.iter().find(|(_, other)| *other == group).unwrap().0;
                    prop_assert_eq!(next, oldest);
                }
            }
        }
    }
}
