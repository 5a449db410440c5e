//! The settings that the law is tried in.

use std::time::Duration;

use super::judge::Contract;
use crate::measure::bench::Bench;
use crate::measure::broker::{SHARDS, shards_in_words};

/// How the broker ends when the script wants it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Not at all, and nothing else is done either: what is found here is the witness's own error or the limiter's.
    Never,
    /// SIGTERM only: nothing that was accepted may be lost.
    Terminate,
    /// SIGKILL too, with queues in memory: what was accepted before a kill may be lost.
    Kill,
    /// SIGKILL too, with every message on disk before anything else: nothing that was accepted may be lost.
    KillSynced,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) discipline: &'static str,
    pub(super) shards: u32,
    pub(super) ends: Ends,
    pub(super) seed: u64,
}

/// Its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) topics: usize,
    pub(super) offered_per_s: u32,
    pub(super) backlog_max: u32,
    /// Limits of a topic and of its two channels; the first is set at the start, the script changes to others.
    ///
    /// A burst is worth 0.3 s of the rate or more. So a burst that is given away stands far above what a gap of some
    /// milliseconds forgives.
    pub(super) contracts: [&'static [Contract]; 3],
    pub(super) flags: &'static [&'static str],
    pub(super) length: Duration,
    /// What every window may be longer than it looks.
    pub(super) slack_ns: i128,
}

const fn contract(rate_per_s: u32, burst: u32) -> Contract {
    Contract { rate_per_s, burst }
}

const FAST: [&[Contract]; 3] = [
    &[contract(500, 200), contract(300, 100), contract(650, 250)],
    &[contract(350, 150), contract(200, 80)],
    &[contract(250, 100), contract(150, 60)],
];

/// A disk syncs some hundred times a second for all queues together.
const SYNCED: [&[Contract]; 3] = [
    &[contract(60, 60), contract(40, 40), contract(80, 80)],
    &[contract(40, 40), contract(30, 30)],
    &[contract(30, 30), contract(20, 20)],
];

impl Setting {
    /// All of them.
    pub(super) fn all() -> Vec<Self> {
        let mut settings = Vec::new();
        for ends in [Ends::Never, Ends::Terminate, Ends::Kill, Ends::KillSynced] {
            for discipline in ["wait", "refuse"] {
                for shards in SHARDS {
                    settings.push(Self { discipline, shards, ends, seed: 1 + settings.len() as u64 });
                }
            }
        }
        settings
    }

    /// For tables.
    pub(super) fn name(&self) -> String {
        let ends = match self.ends {
            Ends::Never => "undisturbed",
            Ends::Terminate => "SIGTERM",
            Ends::Kill => "and SIGKILL",
            Ends::KillSynced => "and SIGKILL, all synced",
        };
        format!("{}, {}, {ends}", self.discipline, shards_in_words(self.shards))
    }

    /// For folders.
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}-{:?}", self.discipline, self.shards, self.ends)
    }

    /// Its numbers.
    pub(super) fn plan(&self, bench: &Bench) -> Plan {
        let length = Duration::from_secs(bench.size(45, 6));
        match self.ends {
            Ends::Never | Ends::Terminate | Ends::Kill => Plan {
                topics: 16,
                offered_per_s: 750,
                backlog_max: 300,
                contracts: FAST,
                flags: &[],
                length,
                slack_ns: 200_000,
            },
            // Each message crosses the disk several times. Its syncs are no gaps that a probe of the CPU sees, so every
            // window is forgiven what the rate grants in a quarter of a second: a quarter of a burst.
            Ends::KillSynced => Plan {
                topics: 3,
                offered_per_s: 100,
                backlog_max: 100,
                contracts: SYNCED,
                flags: &["-mem-queue-size=0", "-sync-every=1"],
                length,
                slack_ns: 250_000_000,
            },
        }
    }
}
