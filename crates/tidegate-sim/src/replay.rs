//! Many seeds, and the command that repeats the one that failed.

use std::env;
use std::ops::Range;
use std::thread;

use crate::trace::TraceHash;

/// Names the seed to run instead of all of them.
pub const SEED_VARIABLE: &str = "TIDEGATE_SEED";

/// Says how many seeds to run.
pub const SEEDS_VARIABLE: &str = "TIDEGATE_SEEDS";

/// One of so many seeds is run twice.
const TWICE: u64 = 50;

/// A simulation test: where it is, so that its failure can say how to repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulationTest {
    /// The crate: `env!("CARGO_PKG_NAME")`.
    pub package: &'static str,
    /// The test's name, or as much of it as is unique.
    pub name: &'static str,
}

impl SimulationTest {
    /// How many seeds to run: as [`SEEDS_VARIABLE`] says, or `usual`.
    ///
    /// # Panics
    /// If it is no number.
    #[must_use]
    pub fn seeds(usual: u64) -> u64 {
        number_in(SEEDS_VARIABLE).unwrap_or(usual)
    }

    /// Runs `simulation` for each of `seeds`, the first one and some others twice; only for the seed in
    /// [`SEED_VARIABLE`] if that is set. A failure prints the command that repeats it.
    ///
    /// # Panics
    /// If the simulation does, or if two runs of one seed differ.
    pub fn for_each_seed(self, seeds: Range<u64>, simulation: impl Fn(u64) -> TraceHash) {
        let seeds = number_in(SEED_VARIABLE).map_or(seeds, |seed| seed..seed.saturating_add(1));
        let first = seeds.start;
        for seed in seeds {
            let on_failure = PrintOnPanic { test: self, seed };
            let trace = simulation(seed);
            assert!(
                !(seed - first).is_multiple_of(TWICE) || simulation(seed) == trace,
                "two runs of seed {seed} differ"
            );
            drop(on_failure);
        }
    }

    /// The command that repeats the run of `seed`.
    #[must_use]
    pub fn command(self, seed: u64) -> String {
        format!("{SEED_VARIABLE}={seed} cargo test -p {} {}", self.package, self.name)
    }
}

fn number_in(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a whole number, not `{text}`")))
}

struct PrintOnPanic {
    test: SimulationTest,
    seed: u64,
}

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("To repeat this failure:\n  {}", self.test.command(self.seed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::Hash;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const THIS: SimulationTest = SimulationTest { package: "tidegate-sim", name: "replay" };

    fn trace_of(value: u64) -> TraceHash {
        let mut trace = TraceHash::new();
        value.hash(&mut trace);
        trace
    }

    #[test]
    fn the_command_names_seed_package_and_test() {
        assert_eq!(THIS.command(17), "TIDEGATE_SEED=17 cargo test -p tidegate-sim replay");
    }

    #[test]
    fn a_run_that_differs_from_itself_is_found() {
        THIS.for_each_seed(3..6, trace_of);
        let runs = Cell::new(0);
        let drifting = catch_unwind(AssertUnwindSafe(|| {
            THIS.for_each_seed(3..4, |_| {
                runs.set(runs.get() + 1);
                trace_of(runs.get())
            });
        }));
        assert!(drifting.is_err());
    }
}
