//! Which times count: those in which the machine did not stop us.

use tidegate_core::Instant;

/// Spans that are left out, ascending and apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Spoiled(Vec<(Instant, Instant)>);

impl Spoiled {
    /// Spoilt time: gaps in any order, each followed by `after_ns` in which its backlog is worked off.
    pub(super) fn new(mut gaps: Vec<(Instant, Instant)>, after_ns: u64) -> Self {
        gaps.sort_unstable();
        let mut apart: Vec<(Instant, Instant)> = Vec::new();
        for (from, to) in gaps {
            let to = to.plus_nanos(after_ns);
            match apart.last_mut().filter(|last| from <= last.1) {
                Some(last) => last.1 = last.1.max(to),
                None => apart.push((from, to)),
            }
        }
        Self(apart)
    }

    /// Something between `from` and `to` is left out.
    pub(super) fn meets(&self, from: Instant, to: Instant) -> bool {
        let first = self.0.partition_point(|span| span.1 < from);
        self.0.get(first).is_some_and(|span| span.0 <= to)
    }

    /// How much between `from` and `to` is left out.
    pub(super) fn nanos_between(&self, from: Instant, to: Instant) -> u64 {
        self.0.iter().map(|span| span.1.min(to).nanos_since(span.0.max(from))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_join_and_spoil_what_follows_them() {
        let at = Instant::from_nanos;
        let spoiled = Spoiled::new(vec![(at(500), at(600)), (at(100), at(200)), (at(220), at(230))], 50);
        // 100 to 280 and 500 to 650.
        for (from, to, meets) in
            [(0, 99, false), (0, 100, true), (281, 499, false), (270, 290, true), (651, 900, false)]
        {
            assert_eq!(spoiled.meets(at(from), at(to)), meets, "{from} to {to}");
        }
        assert_eq!(spoiled.nanos_between(at(200), at(510)), 90);
        assert!(!Spoiled::default().meets(at(0), Instant::MAX));
    }
}
