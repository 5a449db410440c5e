//! Whether somebody is alone.

use core::time::Duration;

use tidegate_core::Instant;

/// The one that came last, and the last one before it that was another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Company<K> {
    recent: [(K, Option<Instant>); 2],
}

impl<K: Copy + PartialEq> Company<K> {
    /// `who` came.
    #[inline]
    pub(super) fn on_arrival(&mut self, who: K, now: Instant) {
        if self.recent[0].0 != who {
            self.recent.swap(0, 1);
        }
        self.recent[0] = (who, Some(now));
    }

    /// Whether no other than `who` has come for so long.
    pub(super) fn is_alone(&self, who: K, span: Duration, now: Instant) -> bool {
        let [last, before] = self.recent;
        let other = if last.0 == who { before } else { last };
        other.1.is_none_or(|at| now.since(at) >= span)
    }
}
