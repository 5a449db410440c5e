//! Which publishers go to which node.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate_core::Rng;

use super::types::{Publisher, PublisherNo};

/// What a node still lacks of what it should get.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Lack {
    rate_per_s: f64,
    node: usize,
}

impl Eq for Lack {}

impl PartialOrd for Lack {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Lack {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of two nodes that lack the same rate the one with the lower number comes first.
        self.rate_per_s.total_cmp(&other.rate_per_s).then(other.node.cmp(&self.node))
    }
}

/// Deals `chosen` of `publishers` to nodes with these quotas, in messages per second; `result[i]` belongs to `quotas[i]`.
///
/// Each node gets its quota but for one publisher more or less. With `by_groups` it gets of every group as large a part as
/// of all, so that no node has those of a group that send together: §3.4 of the paper. A group of one is none. Every
/// beginning of a node's list is spread over the groups as the whole list is; so a search that tries part of a list
/// compares like with like. O(p log n) for p publishers and n nodes, and O(n) for each group.
#[must_use]
pub fn deal(
    publishers: &[Publisher],
    chosen: &[PublisherNo],
    quotas: &[f64],
    by_groups: bool,
    rng: &mut Rng,
) -> Vec<Vec<PublisherNo>> {
    let mut dealt = vec![Vec::new(); quotas.len()];
    if quotas.is_empty() {
        return dealt.into_iter().map(spread).collect();
    }
    // Publishers without a rate are divided evenly.
    let even = vec![1.0; quotas.len()];
    let quotas = if quotas.iter().sum::<f64>() > 0.0 { quotas } else { &even };
    let whole: f64 = quotas.iter().sum();
    let mut lacks = vec![0.0; quotas.len()];
    for group in groups(publishers, chosen, by_groups, rng) {
        let rate: f64 = group.iter().map(|&publisher| rate_of(publishers, publisher)).sum();
        let mut heap: BinaryHeap<Lack> = quotas
            .iter()
            .enumerate()
            .map(|(node, quota)| Lack { rate_per_s: lacks[node] + rate * quota / whole, node })
            .collect();
        let mut placed: Vec<Vec<PublisherNo>> = vec![Vec::new(); quotas.len()];
        for publisher in group {
            let Some(mut most) = heap.pop() else { break };
            placed[most.node].push(publisher);
            most.rate_per_s -= rate_of(publishers, publisher);
            heap.push(most);
        }
        for lack in heap {
            lacks[lack.node] = lack.rate_per_s;
        }
        for (list, mut placed) in dealt.iter_mut().zip(placed) {
            // Before the rates decided; among themselves they have no order.
            rng.shuffle(&mut placed);
            list.push(placed);
        }
    }
    dealt.into_iter().map(spread).collect()
}

/// The chosen publishers by group, in the order of the groups' numbers, each by falling rate. Those that are alone in
/// their group are together the last one, in random order.
fn groups(publishers: &[Publisher], chosen: &[PublisherNo], by_groups: bool, rng: &mut Rng) -> Vec<Vec<PublisherNo>> {
    let mut grouped: BTreeMap<u32, Vec<PublisherNo>> = BTreeMap::new();
    if by_groups {
        for &publisher in chosen {
            let Some(known) = publishers.get(publisher.0 as usize) else { continue };
            grouped.entry(known.group.0).or_default().push(publisher);
        }
    }
    let (mut lists, mut alone) = (Vec::new(), if by_groups { Vec::new() } else { chosen.to_vec() });
    for mut members in grouped.into_values() {
        if members.len() == 1 {
            alone.append(&mut members);
        } else {
            lists.push(members);
        }
    }
    rng.shuffle(&mut alone);
    lists.push(alone);
    for list in &mut lists {
        list.sort_by(|&a, &b| rate_of(publishers, b).total_cmp(&rate_of(publishers, a)));
    }
    lists
}

fn rate_of(publishers: &[Publisher], publisher: PublisherNo) -> f64 {
    publishers.get(publisher.0 as usize).map_or(0.0, |publisher| publisher.rate_per_s)
}

/// One list of several, such that every beginning of it has of each in proportion.
fn spread(groups: Vec<Vec<PublisherNo>>) -> Vec<PublisherNo> {
    let mut placed: Vec<(f64, usize, PublisherNo)> = Vec::new();
    for (group, members) in groups.into_iter().enumerate() {
        let step = 1.0 / f64::from(u32::try_from(members.len()).unwrap_or(u32::MAX).max(1));
        let mut at = step / 2.0;
        for member in members {
            placed.push((at, group, member));
            at += step;
        }
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    placed.into_iter().map(|(_, _, publisher)| publisher).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::super::types::GroupNo;
    use super::*;

    fn all(publishers: &[Publisher]) -> Vec<PublisherNo> {
        (0..u32::try_from(publishers.len()).unwrap()).map(PublisherNo).collect()
    }

    fn in_groups(many: u32, size: u32) -> Vec<Publisher> {
        (0..many).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / size) }).collect()
    }

    fn of_group(publishers: &[Publisher], list: &[PublisherNo], group: u32) -> usize {
        list.iter().filter(|publisher| publishers[publisher.0 as usize].group.0 == group).count()
    }

    #[test]
    fn every_node_has_as_much_of_each_group() {
        let publishers = in_groups(990, 30);
        let dealt = deal(&publishers, &all(&publishers), &[1.0; 6], true, &mut Rng::new(1));
        for list in &dealt {
            for group in 0..33 {
                assert!((4..=6).contains(&of_group(&publishers, list, group)));
                // And half of its list has half of that.
                assert!((2..=3).contains(&of_group(&publishers, &list[..list.len() / 2], group)));
            }
        }
        let blind = deal(&publishers, &all(&publishers), &[1.0; 6], false, &mut Rng::new(1));
        let uneven = (0..33).filter(|&group| !(4..=6).contains(&of_group(&publishers, &blind[0], group))).count();
        assert!(uneven > 5, "{uneven}");
    }

    #[test]
    fn without_groups_or_nodes_there_is_an_answer() {
        let publishers = in_groups(10, 1);
        let dealt = deal(&publishers, &all(&publishers), &[3.0, 1.0], true, &mut Rng::new(1));
        assert_eq!(dealt.iter().map(Vec::len).collect::<Vec<_>>(), [8, 2], "{dealt:?}");
        assert!(deal(&publishers, &all(&publishers), &[], true, &mut Rng::new(1)).is_empty());
        assert_eq!(deal(&publishers, &[], &[1.0], true, &mut Rng::new(1)), [vec![]]);
    }

    proptest! {
        #[test]
        fn all_are_dealt_once_and_quotas_are_met_to_a_publisher(
            rates in proptest::collection::vec((0.1..100.0f64, 0u32..20), 1..200),
            weights in proptest::collection::vec(0.1..10.0f64, 1..8),
            by_groups in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let publishers: Vec<Publisher> =
                rates.iter().map(|&(rate_per_s, group)| Publisher { rate_per_s, group: GroupNo(group) }).collect();
            let dealt = deal(&publishers, &all(&publishers), &weights, by_groups, &mut Rng::new(seed));
            let mut seen: Vec<PublisherNo> = dealt.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, all(&publishers));
            let (sum, weight): (f64, f64) = (rates.iter().map(|rate| rate.0).sum(), weights.iter().sum());
            let largest = rates.iter().map(|rate| rate.0).fold(0.0, f64::max);
            for (list, own) in dealt.iter().zip(&weights) {
                let has: f64 = list.iter().map(|publisher| rates[publisher.0 as usize].0).sum();
                let off = has - sum * own / weight;
                prop_assert!(off <= largest + 1e-6, "{off} of {largest}");
            }
        }
    }
}
