//! How long a process leads: until a moment that each renewal of its leadership moves.

use tidegate_core::Instant;

/// The end of a term. From then on a machine orders nothing, whether it hears that it does not lead or not: a process that
/// stood still must not act on what it believed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TermEnd(Instant);

impl TermEnd {
    /// It was not told: the term has no end.
    pub(crate) const UNKNOWN: Self = Self(Instant::MAX);

    /// It leads until then, unless it is told a later moment before.
    pub(crate) fn at(until: Instant) -> Self {
        Self(until)
    }

    /// The term is over.
    pub(crate) fn has_come(self, now: Instant) -> bool {
        now >= self.0
    }

    /// When to look again; `None` if the end is unknown.
    pub(crate) fn next_timeout(self) -> Option<Instant> {
        Some(self.0).filter(|end| *end < Instant::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_ends_at_its_nanosecond_and_one_without_an_end_never() {
        let at = Instant::from_nanos;
        let end = TermEnd::at(at(9));
        assert_eq!((end.has_come(at(8)), end.has_come(at(9)), end.next_timeout()), (false, true, Some(at(9))));
        assert_eq!((TermEnd::UNKNOWN.has_come(at(u64::MAX - 1)), TermEnd::UNKNOWN.next_timeout()), (false, None));
    }
}
