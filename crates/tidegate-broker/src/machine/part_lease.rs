//! What is granted until an instant, and fenced by revision.

use tidegate_core::Instant;

/// A grant of one revision. It holds until its end, and lapses there if it is not renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartLease {
    revision: u64,
    /// `None` once it has lapsed.
    ends: Option<Instant>,
}

impl PartLease {
    /// A grant of `revision` that holds until `ends`.
    pub(super) fn granted(revision: u64, ends: Instant) -> Self {
        Self { revision, ends: Some(ends) }
    }

    /// One of `revision` that has lapsed.
    pub(super) fn lapsed(revision: u64) -> Self {
        Self { revision, ends: None }
    }

    pub(super) fn revision(self) -> u64 {
        self.revision
    }

    /// When it ends; `None` if it has.
    pub(super) fn ends(self) -> Option<Instant> {
        self.ends
    }

    /// Whether an order of `revision` comes too late to change anything.
    pub(super) fn fences(self, revision: u64) -> bool {
        revision < self.revision
    }

    /// It holds until `ends`, or longer if it did: orders of one revision may overtake each other.
    pub(super) fn renew(&mut self, ends: Instant) {
        self.ends = self.ends.max(Some(ends));
    }

    /// Its end has come.
    pub(super) fn lapse(&mut self) {
        self.ends = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_never_shortens_and_an_older_revision_is_fenced() {
        let at = Instant::from_nanos;
        let mut lease = PartLease::granted(3, at(100));
        lease.renew(at(50));
        assert_eq!(lease.ends(), Some(at(100)));
        lease.renew(at(150));
        assert_eq!(lease.ends(), Some(at(150)));
        assert_eq!([2, 3, 4].map(|revision| lease.fences(revision)), [true, false, false]);
        lease.lapse();
        assert_eq!(lease.ends(), None);
        lease.renew(at(10));
        assert_eq!((lease.ends(), lease.revision()), (Some(at(10)), 3), "it holds again");
        assert_eq!(PartLease::lapsed(3).ends(), None);
    }
}
