//! Room for new flows of a class whose old ones do nothing: its peers may be gone without a word.

use std::collections::BTreeMap;

/// Units of [`HeldFlow::seen`] that a flow must have been idle: about a minute, more than a host waits before it asks whether
/// its peer is there.
const IDLE: u32 = 56;
/// Flows of a class that are forgotten at once, at most: an eighth of the table.
const FORGOTTEN_MAX: usize = super::FLOWS_MAX / 8;

/// A flow that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldFlow<K> {
    /// How it is known.
    pub key: K,
    /// Its class.
    pub class: usize,
    /// When its host last sent, in units of 2^30 ns.
    pub seen: u32,
}

/// Which flows go so that others of the same class find room.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// By class: flows that had found no room when it was asked last.
    unheld: BTreeMap<usize, u64>,
}

impl Sweep {
    /// Classes whose flows found no room since this was asked last. `unheld` counts them from the beginning.
    pub fn crowded(&mut self, unheld: BTreeMap<usize, u64>) -> Vec<usize> {
        let before = core::mem::replace(&mut self.unheld, unheld);
        let is_more =
            |(class, count): (&usize, &u64)| (*count > before.get(class).copied().unwrap_or(0)).then_some(*class);
        self.unheld.iter().filter_map(is_more).collect()
    }
}

/// Flows of `crowded` classes to be forgotten: of each class those longest idle. A class makes room for itself alone.
#[must_use]
pub fn idle_flows<K>(crowded: &[usize], held: Vec<HeldFlow<K>>) -> Vec<HeldFlow<K>> {
    // The class has flows that were just refused, so that the last one seen was seen now.
    let now = held.iter().map(|flow| flow.seen).max().unwrap_or(0);
    let is_idle = |flow: &HeldFlow<K>| crowded.contains(&flow.class) && flow.seen.saturating_add(IDLE) <= now;
    let mut idle: Vec<_> = held.into_iter().filter(is_idle).collect();
    idle.sort_by_key(|flow| flow.seen);
    let mut forgotten = BTreeMap::<usize, usize>::new();
    idle.retain(|flow| {
        let count = forgotten.entry(flow.class).or_default();
        *count += 1;
        *count <= FORGOTTEN_MAX
    });
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_classes_without_room_lose_flows_and_only_idle_ones() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.crowded([(0, 5), (1, 0)].into()), [0]);
        assert_eq!(sweep.crowded([(0, 5), (1, 0)].into()), [0; 0]);
        assert_eq!(sweep.crowded([(0, 6), (1, 1)].into()), [0, 1]);
        let flow = |key, class, seen| HeldFlow { key, class, seen };
        let held = vec![flow("young", 0, 100), flow("old", 0, 44), flow("older", 0, 3), flow("other", 1, 0)];
        let keys =
            |crowded: &[usize]| idle_flows(crowded, held.clone()).iter().map(|flow| flow.key).collect::<Vec<_>>();
        assert_eq!(keys(&[0]), ["older", "old"]);
        assert_eq!(keys(&[]), [""; 0]);
    }

    #[test]
    fn an_eighth_of_the_table_goes_at_once() {
        let held = (0..20_000).map(|key| HeldFlow { key, class: 3, seen: 0 });
        let held: Vec<_> = held.chain([HeldFlow { key: 20_000, class: 3, seen: 1_000 }]).collect();
        assert_eq!(idle_flows(&[3], held).len(), 8_192);
    }
}
