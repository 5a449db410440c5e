//! Which of a class's leaves a flow is queued in, in isolation mode.

use tidegate_core::Instant;

/// Leaves for flows that windows hold.
pub const BULK_LEAVES: u8 = 16;

/// How many flows each leaf has, counted anew in each epoch of the class's window, so that a flow that ended without a word
/// is forgotten. HTB serves leaves in turn: flows that share one have half of what the others have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leaves {
    epoch: Instant,
    now: [u32; BULK_LEAVES as usize],
    last: [u32; BULK_LEAVES as usize],
}

impl Leaves {
    /// A flow that windows hold sends, for the first time in `epoch` or without a leaf. Its leaf: that which it has, or the
    /// one with the fewest flows.
    pub fn enter(&mut self, leaf: Option<u8>, epoch: Instant) -> u8 {
        if self.epoch != epoch {
            *self = Self { epoch, now: [0; BULK_LEAVES as usize], last: self.now };
        }
        let flows = |leaf: &u8| self.now[usize::from(*leaf)].max(self.last[usize::from(*leaf)]);
        let leaf = leaf.or_else(|| (0..BULK_LEAVES).min_by_key(flows)).expect("there are leaves");
        self.now[usize::from(leaf)] += 1;
        leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_leaf_has_two_flows_before_each_has_one() {
        let mut leaves = Leaves::default();
        let epoch = Instant::from_nanos;
        let mut of: Vec<u8> = (0..16).map(|_| leaves.enter(None, epoch(1))).collect();
        of.sort_unstable();
        assert_eq!(of, (0..16).collect::<Vec<_>>());
        // All but that of leaf 5 go on, and one comes.
        (0..16).filter(|leaf| *leaf != 5).for_each(|leaf| assert_eq!(leaves.enter(Some(leaf), epoch(2)), leaf));
        assert_eq!(leaves.enter(None, epoch(3)), 5);
        assert_eq!(leaves.enter(None, epoch(3)), 0);
    }
}
