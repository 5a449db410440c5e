//! Who is ended when there is no room for one more.
//!
//! A place is a connection's; what is in here are those on which nothing is under way, because their clients have to send
//! or to read something. Whoever comes gets the place of one of them: a client that does what it came for waits for
//! moments and is hardly ever in here, and one that holds places without using them loses them one by one.

use core::cmp::Reverse;
use core::hash::Hash;
use std::collections::BinaryHeap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// No place, no group.
const NONE: usize = usize::MAX;

/// Places that wait, in groups: by their tenants or, while nobody knows the tenant, by the addresses they came from.
///
/// The group that has the most loses its oldest: so who has fewer than others loses nothing to them, and a crowd of equals
/// loses its oldest. Every operation but [`too_many`](Self::too_many) is O(1); memory is that of the highest place and of the groups that have one.
/// Source: dropping from the longest queue as in Suter et al., "Design considerations for supporting TCP with per-flow
/// queueing" (1998).
#[derive(Clone, Debug)]
pub struct Waiting<G> {
    places: Vec<Node<usize>>,
    groups: Vec<Node<Group<G>>>,
    /// Groups that are not used.
    free: Vec<usize>,
    names: HashMap<G, usize, RandomState>,
    /// Of each number of places, the groups that have so many. That of none is the end of both ways through the others.
    sizes: Vec<Size>,
    count: usize,
}

/// The groups of one size, and the next sizes that have any.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Who got there first is first.
    list: List,
    smaller: usize,
    larger: usize,
}

/// Where a look through the groups goes on.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hand(Option<usize>);

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

impl Size {
    const EMPTY: Self = Self { list: List::EMPTY, smaller: 0, larger: 0 };
}

impl<G> Default for Waiting<G> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            groups: Vec::new(),
            free: Vec::new(),
            names: HashMap::with_hasher(RandomState::default()),
            sizes: vec![Size::EMPTY],
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
        self.groups().next().map(|group| self.groups[group].of.list.first)
    }

    /// The groups, the largest first.
    fn groups(&self) -> impl Iterator<Item = usize> {
        core::iter::successors(self.first_of(self.sizes[0].smaller), |&group| self.behind(group))
    }

    /// The group that comes behind this one.
    fn behind(&self, group: usize) -> Option<usize> {
        let node = &self.groups[group];
        if node.behind != NONE {
            return Some(node.behind);
        }
        self.first_of(self.sizes[node.of.count].smaller)
    }

    fn first_of(&self, size: usize) -> Option<usize> {
        Some(self.sizes[size].list.first).filter(|&group| group != NONE)
    }

    /// Up to `most` places of groups that have too many: the oldest of whichever of these groups has the most, again and
    /// again. `too_many` says of a group how many it has beyond what it may have; at most `looked_at` groups are asked for
    /// it, from `hand` on, which is left where the next look is to begin.
    pub fn too_many(&self, most: usize, looked_at: usize, hand: &mut Hand, too_many: impl Fn(G) -> u64) -> Vec<usize> {
        // The group that the last look ended at may be gone, or have become smaller or larger than others.
        let first = hand.0.filter(|&group| self.groups.get(group).is_some_and(|group| group.of.count > 0));
        let mut next = first.or_else(|| self.groups().next());
        let mut over = BinaryHeap::new();
        for _ in 0..looked_at {
            let Some(group) = next else { break };
            let Group { name, count, list } = self.groups[group].of;
            let beyond = usize::try_from(too_many(name)).unwrap_or(usize::MAX).min(count);
            if beyond > 0 {
                over.push((count, Reverse(over.len()), beyond, list.first));
            }
            next = self.behind(group);
        }
        hand.0 = next;
        let mut found = Vec::new();
        while let Some((count, order, beyond, place)) = over.pop().filter(|_| found.len() < most) {
            found.push(place);
            if beyond > 1 {
                over.push((count - 1, order, beyond - 1, self.places[place].behind));
            }
        }
        found
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
            self.sizes[before].list.remove(&mut self.groups, group);
        }
        if count == 0 {
            self.names.remove(&self.groups[group].of.name);
            self.free.push(group);
        } else {
            if count >= self.sizes.len() {
                self.sizes.resize(count + 1, Size::EMPTY);
            }
            if self.sizes[count].list.first == NONE {
                self.link(count, before);
            }
            self.sizes[count].list.push(&mut self.groups, group);
        }
        if before > 0 && self.sizes[before].list.first == NONE {
            let Size { smaller, larger, .. } = self.sizes[before];
            self.sizes[smaller].larger = larger;
            self.sizes[larger].smaller = smaller;
        }
    }

    /// Groups of `size` come up, of which there were none, beside `neighbour`, which is one more or less.
    fn link(&mut self, size: usize, neighbour: usize) {
        let (smaller, larger) = if size > neighbour {
            (neighbour, self.sizes[neighbour].larger)
        } else {
            (self.sizes[neighbour].smaller, neighbour)
        };
        (self.sizes[size].smaller, self.sizes[size].larger) = (smaller, larger);
        self.sizes[smaller].larger = size;
        self.sizes[larger].smaller = size;
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
    fn who_has_too_many_is_found_behind_larger_groups_and_gives_no_more_than_those() {
        let mut crowd = Waiting::default();
        for place in 0..100 {
            crowd.push(place, if place < 50 { 'a' } else { char::from(b'b' + u8::try_from(place % 5).unwrap()) });
        }
        let mut hand = Hand::default();
        let of = |name| u64::from(name == 'c') * 3 + u64::from(name == 'd');
        // Those of c are 51, 56 and so on, of d 52, 57 and so on.
        assert_eq!(crowd.too_many(9, 100, &mut hand, of), [51, 52, 56, 61]);
        assert_eq!(crowd.too_many(2, 100, &mut hand, of), [51, 52]);
        assert_eq!(crowd.too_many(9, 100, &mut hand, |name| u64::from(name == 'e') * 99).len(), 9);
    }

    #[test]
    fn a_look_that_is_too_short_goes_on_the_next_time() {
        let mut crowd = Waiting::default();
        (0..26).for_each(|place| crowd.push(place, char::from(b'a' + u8::try_from(place).unwrap())));
        let mut hand = Hand::default();
        let found: Vec<_> = (0..4).map(|_| crowd.too_many(9, 10, &mut hand, |name| u64::from(name == 'u'))).collect();
        assert_eq!(found, [vec![], vec![], vec![20], vec![]]);
        (0..26).for_each(|place| crowd.remove(place));
        assert!(crowd.too_many(9, 10, &mut hand, |_| 1).is_empty());
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
                let sizes: Vec<_> = waiting.groups().map(|group| waiting.groups[group].of.count).collect();
                prop_assert!(sizes.is_sorted_by(|a, b| a >= b), "{:?}", sizes);
                let names: std::collections::BTreeSet<_> = all.iter().map(|&(_, group)| group).collect();
                prop_assert_eq!(sizes.len(), names.len());
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
