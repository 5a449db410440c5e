//! What a node takes within an objective: the search for its mcap.
//!
//! Load is offered at one rate after the other. The rate doubles until the objective is missed; then the interval between
//! the largest rate that met it and the smallest that missed it is halved until it is narrow. A rate that missed it is
//! measured once more before that counts: a moment in which the machine did something else is no limit of the node.
//! Source: §3 of the paper takes a capacity as given, "benchmarked once per broker and SLO" (§7.6 of the specification).

/// How the search goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BenchmarkConfig {
    /// The first rate, per second; at least 1.
    pub first_per_s: u64,
    /// No more is offered.
    pub most_per_s: u64,
    /// The search ends when the rate that missed is above the one that met by no more than this share.
    pub within: f64,
}

impl Default for BenchmarkConfig {
    /// From a thousand to two million a second, to a twentieth: what two runs of the same node differ by.
    fn default() -> Self {
        Self { first_per_s: 1_000, most_per_s: 2_000_000, within: 0.05 }
    }
}

/// What a measurement showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Showed {
    /// The objective, and all that was sent.
    Meets,
    /// Less.
    Misses,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Benchmark {
    config: BenchmarkConfig,
    /// The largest that met it.
    met: u64,
    /// The smallest that missed it.
    missed: Option<u64>,
    /// The rate to try next missed once.
    doubted: bool,
}

impl Benchmark {
    /// Nothing is known of the node.
    #[must_use]
    pub fn new(config: BenchmarkConfig) -> Self {
        Self { config, met: 0, missed: None, doubted: false }
    }

    /// The rate to offer next, per second; `None` when the search is over. After at most 2 log2(most / first) + 2
    /// log2(1 / within) + 40 measurements it is.
    #[must_use]
    pub fn next_per_s(&self) -> Option<u64> {
        let BenchmarkConfig { first_per_s, most_per_s, within } = self.config;
        let next = match self.missed {
            None if self.met == 0 => first_per_s.clamp(1, most_per_s.max(1)),
            None => self.met.saturating_mul(2).min(most_per_s),
            Some(missed) => u64::midpoint(self.met, missed),
        };
        let is_new = next > self.met && self.missed.is_none_or(|missed| next < missed);
        let width = self.missed.map(|missed| missed - self.met);
        let is_wide = width.is_none_or(|width| {
            tidegate_core::number::float(width) > within.max(0.0) * tidegate_core::number::float(self.met)
        });
        (is_new && is_wide).then_some(next)
    }

    /// What the rate of [`Self::next_per_s`] showed.
    pub fn on_measured(&mut self, showed: Showed) {
        let Some(tried) = self.next_per_s() else { return };
        match (showed, self.doubted) {
            (Showed::Meets, _) => (self.met, self.doubted) = (tried, false),
            (Showed::Misses, false) => self.doubted = true,
            (Showed::Misses, true) => (self.missed, self.doubted) = (Some(tried), false),
        }
    }

    /// The largest rate that met the objective, per second; 0 if none did.
    #[must_use]
    pub fn mcap_per_s(&self) -> u64 {
        self.met
    }

    /// True if no more was offered though more might have met it.
    #[must_use]
    pub fn is_at_most(&self) -> bool {
        self.missed.is_none() && self.met >= self.config.most_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of a node with this capacity, in how many measurements; `hiccup` misses for another reason.
    fn found(capacity: u64, hiccup: Option<u32>) -> (u64, u32) {
        let mut search = Benchmark::new(BenchmarkConfig::default());
        let mut measurements = 0;
        while let Some(rate) = search.next_per_s() {
            measurements += 1;
            let is_fine = rate <= capacity && hiccup != Some(measurements);
            search.on_measured(if is_fine { Showed::Meets } else { Showed::Misses });
            assert!(measurements < 100);
        }
        (search.mcap_per_s(), measurements)
    }

    #[test]
    fn it_ends_within_a_twentieth_below_the_capacity() {
        for capacity in [3, 777, 1_000, 9_999, 73_000, 1_500_000] {
            let (mcap, measurements) = found(capacity, None);
            assert!(mcap <= capacity && mcap * 21 >= capacity * 20 - 20, "{capacity}: {mcap}");
            assert!(measurements <= 32, "{capacity}: {measurements}");
        }
    }

    #[test]
    fn one_that_takes_nothing_and_one_that_takes_everything_end() {
        assert_eq!(found(0, None).0, 0);
        assert_eq!(found(u64::MAX, None), (2_000_000, 12));
        let mut search = Benchmark::new(BenchmarkConfig { most_per_s: 500, ..BenchmarkConfig::default() });
        assert_eq!(search.next_per_s(), Some(500));
        search.on_measured(Showed::Meets);
        assert!(search.next_per_s().is_none() && search.is_at_most());
    }

    #[test]
    fn a_moment_that_was_no_fault_of_the_node_changes_nothing() {
        let (expected, measurements) = found(73_000, None);
        for hiccup in 1..6 {
            assert_eq!(found(73_000, Some(hiccup)), (expected, measurements + 1));
        }
    }
}
