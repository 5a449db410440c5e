//! What a broker recorded of a topic, held against theory that shares no code with it.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr as _};

/// One message: when it came, when it was read, when the contract let it go, when it went. Nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the unit belongs in the name")]
pub(super) struct Passage {
    pub(super) arrival_ns: i128,
    pub(super) read_ns: i128,
    pub(super) release_ns: i128,
    pub(super) passed_ns: i128,
}

impl Passage {
    /// For how long the bucket held it back once it was there and read, in nanoseconds. After a pause of the reader a
    /// message is charged before it was read; what was released meanwhile waited for the reader and not for tokens.
    pub(super) fn held_ns(&self) -> i128 {
        (self.release_ns - self.arrival_ns.max(self.read_ns)).max(0)
    }
}

/// Reads a trace, message by message; `each` gets them in the order of the file.
pub(super) fn read(file: &Path, mut each: impl FnMut(Passage)) -> Result<u64> {
    let open = File::open(file).into_diagnostic().wrap_err_with(|| format!("no trace at {}", file.display()))?;
    let mut count = 0;
    for (at, line) in BufReader::new(open).lines().enumerate() {
        let line = line.into_diagnostic()?;
        // Who a number of the column of publishers is.
        if at > 0 && line.starts_with('@') {
            continue;
        }
        // A header, and a note when the broker had to leave messages out.
        if !line.starts_with(|c: char| c.is_ascii_digit()) {
            if at > 0 {
                miette::bail!("{}:{}: {line}", file.display(), at + 1);
            }
            continue;
        }
        let mut fields = line.split(',').map(|field| field.parse::<i128>().ok());
        let mut next = || fields.next().flatten();
        let (Some(arrival_ns), Some(read_ns), Some(release_ns), Some(passed_ns)) = (next(), next(), next(), next())
        else {
            miette::bail!("{}:{}: no passage: {line}", file.display(), at + 1);
        };
        each(Passage { arrival_ns, read_ns, release_ns, passed_ns });
        count += 1;
    }
    Ok(count)
}

const SECOND_NS: i128 = 1_000_000_000;

/// Eq. 2 of SRTM, exactly: the work in the bucket, in token-nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    rate_per_s: i128,
    burst: i128,
    work: i128,
    at_ns: Option<i128>,
}

impl Replay {
    /// An idle bucket.
    pub(super) fn new(rate_per_s: u32, burst: u32) -> Self {
        Self { rate_per_s: rate_per_s.into(), burst: burst.into(), work: 0, at_ns: None }
    }

    /// The delay of the next message, in nanoseconds, rounded up. Messages come in the order of their stamps.
    pub(super) fn delay_ns(&mut self, arrival_ns: i128) -> i128 {
        let passed = self.at_ns.map_or(0, |at| (arrival_ns - at).max(0));
        self.at_ns = Some(arrival_ns);
        self.work = (self.work - self.rate_per_s * passed).max(0) + SECOND_NS;
        let over = self.work - self.burst * SECOND_NS;
        if over <= 0 { 0 } else { (over + self.rate_per_s - 1) / self.rate_per_s }
    }
}

/// The law of limiters: in any window of t, at most `burst + rate * t` messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    rate_per_s: i128,
    burst: i128,
    index: i128,
    /// The greatest `rate * time - messages before` so far: where the fullest window begins.
    best_start: Option<i128>,
    /// Messages that completed a window with too many.
    pub(super) violations: u64,
}

impl Law {
    /// No message yet.
    pub(super) fn new(rate_per_s: u32, burst: u32) -> Self {
        Self { rate_per_s: rate_per_s.into(), burst: burst.into(), index: 0, best_start: None, violations: 0 }
    }

    /// The next release. Instants are whole nanoseconds, so a window may look one shorter than it was.
    pub(super) fn release(&mut self, at_ns: i128) {
        let start = self.rate_per_s * at_ns - self.index * SECOND_NS;
        let best = self.best_start.map_or(start, |best| best.max(start));
        self.best_start = Some(best);
        self.index += 1;
        let messages_above_rate = self.index * SECOND_NS - self.rate_per_s * at_ns + best;
        if messages_above_rate > self.burst * SECOND_NS + self.rate_per_s {
            self.violations += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits_one_period_each() {
        let mut replay = Replay::new(1_000, 2);
        let delays: Vec<i128> = [0, 0, 0, 0].map(|at| replay.delay_ns(at)).to_vec();
        assert_eq!(delays, [0, 0, 1_000_000, 2_000_000]);
        // Ten periods later the bucket is full again.
        assert_eq!(replay.delay_ns(10_000_000), 0);
    }

    #[test]
    fn releases_by_the_replay_obey_the_law_and_one_more_breaks_it() {
        let (mut replay, mut law) = (Replay::new(11_000, 26), Law::new(11_000, 26));
        let mut last = 0;
        for i in 0..10_000_i128 {
            let arrival = i * 80_000;
            last = arrival + replay.delay_ns(arrival);
            law.release(last);
        }
        assert_eq!(law.violations, 0);
        law.release(last);
        assert_eq!(law.violations, 1);
    }

    #[test]
    fn the_bucket_holds_a_message_from_when_it_is_read() {
        let held =
            |arrival_ns, read_ns, release_ns| Passage { arrival_ns, read_ns, release_ns, passed_ns: 0 }.held_ns();
        assert_eq!(held(10, 12, 10), 0);
        assert_eq!(held(10, 60, 30), 0, "the reader was paused until 60");
        assert_eq!(held(10, 60, 70), 10);
        assert_eq!(held(10, 9, 12), 2);
    }

    #[test]
    fn a_trace_is_read_and_a_gap_in_it_is_an_error() {
        let file = std::env::temp_dir().join(format!("xtask-trace-{}", std::process::id()));
        let text = "arrival_ns,read_ns,release_ns,passed_ns,publisher,bytes\n@{\"publisher\":1}\n1,2,3,4,1,5\n";
        std::fs::write(&file, text).unwrap();
        let mut seen = Vec::new();
        assert_eq!(read(&file, |passage| seen.push(passage)).unwrap(), 1);
        assert_eq!(seen, [Passage { arrival_ns: 1, read_ns: 2, release_ns: 3, passed_ns: 4 }]);
        std::fs::write(&file, "header\n1,2,3,4,5\n# 7 left out\n").unwrap();
        assert!(read(&file, |_| {}).is_err());
        std::fs::remove_file(file).unwrap();
    }
}
