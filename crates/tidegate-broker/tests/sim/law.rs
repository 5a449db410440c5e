//! The law: over any window, b + r·t at most, seen from outside in O(1) for each message.
//!
//! A virtual bucket counts what was used of a burst. A message that is seen at `at` left at `earliest` at the earliest:
//! what the simulation held up between the release and the socket (see [`Stalls`]) widens a window by that much and by
//! no more. By release times the two are one, and the law holds exactly.
//!
//! Across an edit: tokens are kept, a deeper bucket does not fill by itself, and a shallower one is cut to its depth;
//! at sockets that cut counts once nothing can arrive that left before it, and till then the deeper of the two holds.
//! While no contract acts nothing is claimed; what was used before is remembered and refills, so a removed contract that
//! is put again mints nothing. Once it has refilled, or a crash has made it unknown, another contract begins with its own depth, and so does an edit of a
//! topic or channel that is not there. A message dearer than the burst may be the whole window.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tidegate_core::Instant;

/// Parts of a token: rates are whole tokens a second.
const TOKEN: i128 = 1_000_000_000;

/// A contract as the law sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    pub(crate) bytes: bool,
}

/// A window with more than its b + r·t.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    pub(crate) terms: Terms,
    pub(crate) at: Instant,
    /// Parts of a token that are too many.
    over: i128,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { terms, at, over } = self;
        write!(f, "{terms:?}: at {at:?} a window has {over} billionths of a token too many")
    }
}

/// What becomes of the contract of a topic or channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edit {
    Removed,
    /// It only counts from now on.
    Shadow(Terms),
    Enforced(Terms),
}

/// Whether a contract is on something that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Present,
    Absent,
}

/// The virtual bucket of a topic or channel.
#[derive(Clone, Default, Debug)]
pub(crate) struct Law {
    /// In force; or in force before, if the contract does not act.
    terms: Option<Terms>,
    acts: bool,
    removed: bool,
    /// A contract that is put again may begin full: a crash made unknown what was used.
    forgotten: bool,
    /// What is not claimed before: the contract came into force then.
    since: Instant,
    /// Costs that may be of the unit of before are counted as one token.
    unit_since: Instant,
    /// The depth that is claimed, and a smaller one that is from then on.
    depth: i128,
    shallower: Option<(Instant, i128)>,
    /// By how much the depth grew, and when last: what is dearer may have left under the one before.
    grown: Option<(Instant, i128)>,
    /// Parts of the depth in use at `at`; below zero for what may have been earned before.
    used: i128,
    at: Instant,
    /// Changes of the rate, with what was minted until then.
    mints: VecDeque<(Instant, i128, i128)>,
    /// Messages that were judged.
    pub(crate) judged: u64,
}

impl Law {
    /// A contract comes into force, changes, or goes. What is seen later left after `earliest`.
    pub(crate) fn edit(&mut self, edit: Edit, on: On, earliest: Instant, now: Instant) {
        if self.acts && !self.removed && self.terms.is_some_and(|terms| edit == Edit::Enforced(terms)) {
            return;
        }
        self.run_to(earliest, now);
        self.cut(earliest, now);
        let (new, acts) = match edit {
            Edit::Removed => {
                // One that was at work until now knows what it held.
                self.forgotten &= self.removed || on == On::Absent;
                (self.acts, self.removed) = (false, true);
                return;
            }
            Edit::Shadow(terms) => (terms, false),
            Edit::Enforced(terms) => (terms, true),
        };
        if acts && !self.acts {
            self.since = now;
        }
        if self.terms.is_none_or(|old| old.bytes != new.bytes) {
            self.unit_since = now;
        }
        let depth = i128::from(new.burst) * TOKEN;
        let fresh = self.terms != Some(new) && on == On::Absent || self.removed && (self.used <= 0 || self.forgotten);
        let full = self.minted(earliest) - self.minted(now);
        if fresh {
            // What left before it is of another window.
            self.since = now;
        }
        if self.terms.is_none() || fresh {
            (self.depth, self.used, self.shallower) = (depth, full, None);
        } else if depth >= self.depth {
            self.used += depth - self.depth;
            let before = self.grown.filter(|(at, _)| earliest < *at).map_or(0, |(_, by)| by);
            self.grown = Some((now, before + depth - self.depth));
            (self.depth, self.shallower) = (depth, None);
        } else {
            self.shallower = Some((now, depth));
        }
        (self.terms, self.acts, self.removed, self.forgotten) = (Some(new), acts, false, false);
        self.mints.push_back((now, self.minted(now), i128::from(new.rate)));
    }

    /// The process died: a removed contract that comes again begins with what a new bucket has earned since.
    pub(crate) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Nothing was in force at `at`, and maybe nothing is.
    pub(crate) fn began_after(&self, at: Instant) -> bool {
        !self.acts || self.since > at
    }

    /// A message of `bytes` is seen at `at`; it did not leave before `earliest`.
    pub(crate) fn take(&mut self, bytes: usize, earliest: Instant, at: Instant) -> Result<(), Violation> {
        let at = at.max(self.at);
        let earliest = earliest.min(at);
        let Some(terms) = self.terms.filter(|_| self.acts) else { return Ok(()) };
        if earliest < self.since {
            return Ok(());
        }
        self.run_to(earliest, at);
        self.cut(earliest, at);
        let cost = if terms.bytes && earliest >= self.unit_since { bytes as i128 * TOKEN } else { TOKEN };
        self.used += cost;
        self.judged += 1;
        let grown = self.grown.filter(|(at, _)| earliest < *at).map_or(0, |(_, by)| by);
        let over = self.used - self.depth.max(cost + grown);
        if cost + grown > self.depth {
            // It took all there was when it left.
            self.used = self.used.min(self.depth - (self.minted(at) - self.minted(earliest)));
        }
        if over > 0 { Err(Violation { terms, at, over }) } else { Ok(()) }
    }

    /// The bucket is as shallow as it was made, once nothing can be seen any more that left before.
    fn cut(&mut self, earliest: Instant, at: Instant) {
        if let Some((since, depth)) = self.shallower.filter(|(since, _)| *since <= earliest) {
            debug_assert!(since <= at);
            self.used = (self.used + depth - self.depth).max(self.minted(earliest) - self.minted(at));
            (self.depth, self.shallower) = (depth, None);
        }
    }

    /// Tokens are minted until `at`; a window may begin at `earliest` with a full bucket.
    fn run_to(&mut self, earliest: Instant, at: Instant) {
        let minted = self.minted(at);
        self.used = (self.used - (minted - self.minted(self.at))).max(self.minted(earliest.min(at)) - minted);
        self.at = self.at.max(at);
        while self.mints.len() > 64 {
            self.mints.pop_front();
        }
    }

    /// Minted since the first contract.
    fn minted(&self, at: Instant) -> i128 {
        let since = self.mints.iter().rev().find(|(since, ..)| *since <= at);
        since.map_or(0, |(since, minted, rate)| minted + rate * i128::from(at.nanos_since(*since)))
    }
}

/// When something held messages up between their release and the socket.
#[derive(Clone, Default, Debug)]
pub(crate) struct Stalls {
    /// In order, apart.
    spans: VecDeque<(Instant, Instant)>,
}

impl Stalls {
    /// Timers are as exact as this.
    const TICK: Duration = Duration::from_millis(1);

    /// Nothing went on from `from` to `to`.
    pub(crate) fn add(&mut self, from: Instant, to: Instant) {
        let (mut from, mut to) = (from, to);
        let mut later = Vec::new();
        while let Some((start, end)) = self.spans.pop_back() {
            if start > to {
                later.push((start, end));
            } else if end >= from {
                (from, to) = (from.min(start), to.max(end));
            } else {
                self.spans.push_back((start, end));
                break;
            }
        }
        self.spans.push_back((from, to));
        self.spans.extend(later.into_iter().rev());
        while self.spans.len() > 256 {
            self.spans.pop_front();
        }
    }

    /// The earliest that a message seen at `at` may have left, if its way takes `way` at most while nothing stalls.
    pub(crate) fn earliest(&self, at: Instant, way: Duration) -> Instant {
        let (mut earliest, mut way) = (at, way + Self::TICK);
        for (start, end) in self.spans.iter().rev().filter(|(start, _)| *start < at) {
            let moved = earliest.since(*end);
            if moved > way {
                break;
            }
            way -= moved;
            earliest = *start;
        }
        before(earliest, way)
    }
}

fn before(at: Instant, span: Duration) -> Instant {
    at.minus_nanos(u64::try_from(span.as_nanos()).expect("a short span"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn terms(rate: u64, burst: u64) -> Terms {
        Terms { rate, burst, bytes: false }
    }

    fn law(rate: u64, burst: u64) -> Law {
        let mut law = Law::default();
        law.edit(Edit::Enforced(terms(rate, burst)), On::Present, at(0), at(0));
        law
    }

    fn takes(law: &mut Law, times: impl IntoIterator<Item = u64>) -> Result<(), Violation> {
        times.into_iter().try_for_each(|ns| law.take(1, at(ns), at(ns)))
    }

    #[test]
    fn a_burst_and_the_rate_are_lawful_and_one_more_is_not() {
        let mut exact = law(1_000, 5);
        let lawful = [0; 5].into_iter().chain((1..1_000).map(|n| n * MS));
        assert_eq!(takes(&mut exact, lawful), Ok(()));
        assert!(takes(&mut law(1_000, 5), [0; 6]).is_err(), "b + 1 in a burst");
        assert!(takes(&mut law(1_000, 1), [0, MS - 1]).is_err(), "a nanosecond early");
    }

    #[test]
    fn one_percent_too_fast_is_found_whatever_the_burst() {
        let fast = (0..2_000).map(|n| n * MS * 99 / 100);
        assert!(takes(&mut law(1_000, 10), fast).is_err());
    }

    #[test]
    fn a_token_minted_at_a_restart_is_found() {
        // Spent at 0; a second later, of which the process was down the half, 1 is there, and not 2.
        assert_eq!(takes(&mut law(1, 3), [0, 0, 0, 1_000 * MS]), Ok(()));
        assert!(takes(&mut law(1, 3), [0, 0, 0, 1_000 * MS, 1_000 * MS]).is_err());
    }

    #[test]
    fn an_edit_mints_nothing_and_neither_does_a_removal() {
        let mut deeper = law(1_000, 2);
        takes(&mut deeper, [0, 0]).unwrap();
        deeper.edit(Edit::Enforced(terms(1_000, 50)), On::Present, at(0), at(0));
        assert!(takes(&mut deeper.clone(), [0]).is_err(), "a deeper bucket does not fill by itself");
        assert_eq!(takes(&mut deeper, [MS, 2 * MS]), Ok(()));
        let mut again = law(1_000, 2);
        takes(&mut again, [0, 0]).unwrap();
        again.edit(Edit::Removed, On::Present, at(0), at(0));
        takes(&mut again, [0; 9]).unwrap();
        again.edit(Edit::Enforced(terms(1_000, 2)), On::Present, at(MS), at(MS));
        assert_eq!(takes(&mut again.clone(), [MS]), Ok(()), "what was earned meanwhile");
        assert!(takes(&mut again, [MS, MS]).is_err());
        let mut shallower = law(1_000, 9);
        shallower.edit(Edit::Enforced(terms(1_000, 2)), On::Present, at(MS), at(MS));
        assert_eq!(takes(&mut shallower.clone(), [MS, MS]), Ok(()));
        assert!(takes(&mut shallower, [MS, MS, MS]).is_err());
    }

    #[test]
    fn a_contract_put_when_all_is_refilled_or_nothing_is_there_begins_with_its_own_depth() {
        let mut later = law(1_000, 2);
        takes(&mut later, [0, 0]).unwrap();
        later.edit(Edit::Removed, On::Present, at(0), at(0));
        later.edit(Edit::Enforced(terms(1_000, 9)), On::Present, at(2 * MS), at(2 * MS));
        assert_eq!(takes(&mut later, [2 * MS; 9]), Ok(()));
        assert!(takes(&mut later, [2 * MS]).is_err());
        later.edit(Edit::Enforced(terms(1_000, 9)), On::Absent, at(2 * MS), at(2 * MS));
        assert!(takes(&mut later.clone(), [2 * MS]).is_err(), "the same contract is no edit");
        later.edit(Edit::Enforced(terms(1_000, 10)), On::Absent, at(2 * MS), at(2 * MS));
        assert_eq!(takes(&mut later, [2 * MS; 10]), Ok(()));
    }

    #[test]
    fn a_stall_widens_the_window_by_its_length_and_no_more() {
        let mut stalls = Stalls::default();
        stalls.add(at(100 * MS), at(110 * MS));
        let way = Duration::ZERO;
        assert_eq!(stalls.earliest(at(50 * MS), way), at(49 * MS));
        assert_eq!(stalls.earliest(at(111 * MS), way), at(100 * MS));
        assert_eq!(stalls.earliest(at(200 * MS), way), at(199 * MS));
        let late = |count| {
            let mut law = law(1_000, 1);
            (0..count).try_for_each(|_| law.take(1, stalls.earliest(at(110 * MS), way), at(110 * MS)))
        };
        assert_eq!(late(12), Ok(()), "one, and those of 11 ms");
        assert!(late(13).is_err());
    }

    #[test]
    fn bytes_are_charged_by_their_number() {
        let mut law = Law::default();
        law.edit(Edit::Enforced(Terms { rate: 1_000, burst: 10, bytes: true }), On::Present, at(0), at(0));
        assert_eq!(law.take(10, at(0), at(0)), Ok(()));
        assert!(law.clone().take(2, at(MS), at(MS)).is_err());
        assert_eq!(law.take(30, at(30 * MS), at(30 * MS)), Ok(()), "dearer than the burst");
    }
}
