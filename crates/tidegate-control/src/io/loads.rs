//! What each claim has of each node, so that a claim's planner knows what others left.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::machine::name::Name;

/// Rates by node: each claim's own, and their sum.
#[derive(Debug, Default)]
pub struct Loads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    totals: BTreeMap<Name, f64>,
    claims: BTreeMap<String, BTreeMap<Name, f64>>,
}

impl Loads {
    /// The claim of `topic` has these rates on nodes from now on, and none on others. O(nodes).
    pub fn set(&self, topic: &str, rates: BTreeMap<Name, f64>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Table { totals, claims } = &mut *table;
        for (node, rate) in claims.remove(topic).unwrap_or_default() {
            if let Some(total) = totals.get_mut(&node) {
                *total -= rate;
            }
        }
        for (node, rate) in &rates {
            *totals.entry(node.clone()).or_default() += rate;
        }
        if !rates.is_empty() {
            claims.insert(topic.to_owned(), rates);
        }
    }

    /// What claims but that of `topic` have of `node`.
    #[must_use]
    pub fn of_others(&self, topic: &str, node: &str) -> f64 {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total = table.totals.get(node).copied().unwrap_or(0.0);
        let own = table.claims.get(topic).and_then(|rates| rates.get(node)).copied().unwrap_or(0.0);
        // Sums of floats that come and go leave a rest.
        let others = total - own;
        if others < 1e-6 { 0.0 } else { others }
    }

    /// What all claims have of `node`.
    #[must_use]
    pub fn of_all(&self, node: &str) -> f64 {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.totals.get(node).copied().unwrap_or(0.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_sees_what_others_have() {
        let loads = Loads::default();
        let rates = |of: &[(&str, f64)]| of.iter().map(|(node, rate)| (Name::from(*node), *rate)).collect();
        loads.set("x", rates(&[("a", 10.0), ("b", 1.0)]));
        loads.set("y", rates(&[("a", 5.0)]));
        let seen = |topic: &str| ["a", "b", "c"].map(|node| loads.of_others(topic, node));
        assert_eq!((seen("x"), seen("y"), seen("z")), ([5.0, 0.0, 0.0], [10.0, 1.0, 0.0], [15.0, 1.0, 0.0]));
        loads.set("x", rates(&[("b", 2.0)]));
        assert_eq!((seen("z"), loads.of_all("a")), ([5.0, 2.0, 0.0], 5.0));
    }
}
