//! Bytes per second of a tenant, over all its bodies and tunnels together.
//!
//! A piece of a body is charged when it is there and goes on when its tokens are. The pieces form one line, first come,
//! first served, and each body has one piece in it at most: so bodies take turns, whatever their number, and a body that
//! waits is not read on. The line is never formed: it is the tokens that are taken ahead of now.
//!
//! Source: SRTM, §5.2, by way of [`TokenBucket`]. The law is the bucket's: in any interval no more than burst and rate times
//! its length.

use core::time::Duration;

use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Depth of the bucket in time. A thread that looks late finds what was due meanwhile, as long as it is no later than
    /// this: 50 ms is more than a busy core lets its timers wait, and no more than a pause that a client notices.
    pub depth: Duration,
    /// Bytes of the shallowest bucket: a few pieces.
    pub burst_min: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { depth: Duration::from_millis(50), burst_min: 64 << 10 }
    }
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes that passed, or will when their turn comes.
    pub bytes: u64,
    /// Pieces that had to wait.
    pub waits: u64,
}

/// The line of one tenant. O(1) for each piece.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    tuning: Tuning,
    /// `None` if there is no limit any more.
    bucket: Option<TokenBucket>,
    counts: Counts,
}

impl Bandwidth {
    /// Most bytes per second that can be asked for.
    pub const RATE_MAX: u64 = 1 << 50;

    /// `bytes_per_s` from now on, beginning with a full bucket.
    #[must_use]
    pub fn new(bytes_per_s: u64, tuning: Tuning, now: Instant) -> Self {
        let bucket = Some(TokenBucket::new(limit(bytes_per_s, tuning), now));
        Self { tuning, bucket, counts: Counts::default() }
    }

    /// Another number, or none. Pieces in the line go when they were told to; those behind them go at the new rate, and no
    /// bucket fills by the change.
    pub fn set_rate(&mut self, bytes_per_s: Option<u64>, now: Instant) {
        self.bucket = match (self.bucket.take(), bytes_per_s.map(|rate| limit(rate, self.tuning))) {
            (Some(bucket), Some(limit)) if bucket.limit() == limit => Some(bucket),
            (Some(mut bucket), Some(limit)) => {
                // Those who wait were promised their tokens: they count under the new rate as well.
                let ahead = bucket.taken_ahead(now);
                bucket.forget_future(now);
                bucket.set_limit(limit, now);
                let release = bucket.ready_in_line(ahead, now);
                if let Some(release) = release.filter(|_| ahead > 0) {
                    bucket.take_in_line(ahead, release);
                }
                Some(bucket)
            }
            (None, Some(limit)) => Some(TokenBucket::empty(limit, now)),
            (_, None) => None,
        };
    }

    /// When so many bytes that are there at `now` may go on: at `now`, or later.
    pub fn pass(&mut self, bytes: u64, now: Instant) -> Instant {
        self.counts.bytes = self.counts.bytes.saturating_add(bytes);
        let Some(bucket) = &mut self.bucket else { return now };
        // A rate is never zero, so that there always is such an instant.
        let release = bucket.ready_in_line(bytes, now).unwrap_or(now);
        bucket.take_in_line(bytes, release);
        self.counts.waits += u64::from(release > now);
        release.max(now)
    }

    /// What was counted since the beginning.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

fn limit(bytes_per_s: u64, tuning: Tuning) -> Limit {
    let bytes_per_s = bytes_per_s.clamp(1, Bandwidth::RATE_MAX);
    let deep = u128::from(bytes_per_s) * tuning.depth.as_nanos() / 1_000_000_000;
    let burst = u64::try_from(deep).unwrap_or(u64::MAX).max(tuning.burst_min);
    Limit::new(Rate::per_s(bytes_per_s), burst)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PIECE: u64 = 16 << 10;
    const RATE: u64 = 100_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// What each of `bodies` moves until `end`, if each reads its next piece when the last one went. Those whose time came are
    /// woken every `every` milliseconds, in the order of their times as timers are, and then run in turns of eight pieces as
    /// tasks do.
    fn moved(bodies: usize, rate: u64, end: u64, every: u64) -> Vec<u64> {
        let mut line = Bandwidth::new(rate, Tuning::default(), at(0));
        let mut waiting: BTreeSet<_> = (0..bodies).map(|body| (line.pass(PIECE, at(0)), body, body)).collect();
        let (mut moved, mut turns) = (vec![0; bodies], bodies);
        for now in (0..=end).step_by(usize::try_from(every).unwrap()).map(at) {
            while let Some((mut due, turn, body)) = waiting.pop_first() {
                if due > now {
                    waiting.insert((due, turn, body));
                    break;
                }
                for _ in 0..8 {
                    moved[body] += PIECE;
                    due = line.pass(PIECE, now);
                    if due > now {
                        break;
                    }
                }
                turns += 1;
                waiting.insert((due, turns, body));
            }
        }
        moved
    }

    #[test]
    fn the_number_holds_for_any_number_of_bodies_and_each_has_its_turn() {
        for bodies in [1, 10, 1_000] {
            for every in [1, 20] {
                let moved = moved(bodies, RATE, 10_000, every);
                let all: u64 = moved.iter().sum();
                let wanted = 10 * RATE;
                assert!(all.abs_diff(wanted) <= wanted / 50, "{bodies} bodies, every {every} ms: {all}");
                let (least, most) = (moved.iter().min().unwrap(), moved.iter().max().unwrap());
                assert!(most - least <= 2 * PIECE + all / bodies as u64 / 20, "{bodies}: {least} to {most}");
            }
        }
    }

    #[test]
    fn in_any_time_no_more_passes_than_burst_and_rate() {
        let mut line = Bandwidth::new(RATE, Tuning::default(), at(0));
        let burst = RATE / 20;
        let mut passed = Vec::new();
        for step in 0..10_000_u64 {
            // Bursts with pauses between them, of pieces of all sizes.
            let now = at(step / 500 * 300);
            passed.push((line.pass(step * 7_919 % (4 * PIECE), now), step * 7_919 % (4 * PIECE)));
        }
        for (from, (begin, _)) in passed.iter().enumerate().step_by(97) {
            let mut sum = 0;
            for (end, bytes) in &passed[from..] {
                sum += bytes;
                let most = burst
                    + PIECE * 4
                    + u64::try_from(end.since(*begin).as_nanos() * u128::from(RATE) / 1_000_000_000).unwrap();
                assert!(sum <= most, "{sum} in {:?}", end.since(*begin));
            }
        }
    }

    #[test]
    fn a_piece_dearer_than_the_bucket_is_deep_passes_in_time() {
        let mut line = Bandwidth::new(1_000, Tuning::default(), at(0));
        assert_eq!(line.pass(64 << 10, at(0)), at(0));
        assert_eq!(line.pass(10_000, at(0)), at(10_000));
        assert_eq!(line.pass(1, at(0)), at(10_001));
        assert_eq!(line.counts(), Counts { bytes: (64 << 10) + 10_001, waits: 2 });
    }

    #[test]
    fn another_number_holds_at_once_and_mints_nothing() {
        let mut line = Bandwidth::new(1_000, Tuning::default(), at(0));
        line.pass(64 << 10, at(0));
        assert_eq!(line.pass(100_000, at(0)), at(100_000));
        line.set_rate(Some(1_000_000), at(0));
        // Those who wait are before it, at the new rate.
        assert_eq!(line.pass(1_000, at(0)), at(101));
        line.set_rate(Some(1_000_000), at(50));
        assert_eq!(line.pass(1_000, at(50)), at(102));
        line.set_rate(None, at(60));
        assert_eq!(line.pass(1 << 40, at(60)), at(60));
        line.set_rate(Some(1_000), at(60));
        assert_eq!(line.pass(1, at(60)), at(61), "an empty bucket");
    }
}
