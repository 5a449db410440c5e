//! Conservation: what was sent, what arrived, and what became of the rest.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What the publishers of a run sent, so that another run may check what arrives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The run's number, as its stamps carry it.
    pub run: u32,
    /// Each publisher's messages.
    pub publishers: Vec<Sent>,
}

/// What one publisher sent. Its messages are numbered from 0.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Messages written.
    pub written: u64,
    /// Messages below this number were answered; those from it on may have arrived or not.
    pub answered: u64,
    /// Ranges among the answered ones that the broker refused.
    pub refused: Vec<Range<u64>>,
}

impl Sent {
    /// Messages that the broker said it had taken.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.answered - self.refused.iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// Messages without an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.written - self.answered
    }

    /// The next `messages` answers are refusals.
    pub(crate) fn refuse(&mut self, messages: u64) {
        let range = self.answered..self.answered + messages;
        match self.refused.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.refused.push(range),
        }
    }

    /// The accepted messages as ranges, in order.
    fn accepted_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = std::iter::once(0).chain(self.refused.iter().map(|range| range.end));
        let ends = self.refused.iter().map(|range| range.start).chain(std::iter::once(self.answered));
        starts.zip(ends).map(|(start, end)| start..end)
    }
}

impl Manifest {
    /// Messages that the broker said it had taken.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.publishers.iter().map(Sent::accepted).sum()
    }

    /// Messages without an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.publishers.iter().map(Sent::unanswered).sum()
    }
}

/// Which messages have arrived.
///
/// One bit for each message not known to be the last of an unbroken sequence, so a few words for each publisher as long
/// as nothing is missing. A publisher's oldest bits are given up at `words_max` words; what was missing there stays
/// missing, and its late arrival counts as a duplicate.
#[derive(Clone, Debug)]
pub struct Ledger {
    publishers: Vec<Seen>,
    words_max: usize,
    unique: u64,
    duplicates: u64,
    out_of_order: u64,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// Number of the first word; all before it have arrived, or were given up.
    first_word: u64,
    words: VecDeque<u64>,
    /// One more than the highest number that arrived.
    next: u64,
}

/// Counts of a [`Ledger`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Messages that arrived at least once.
    pub unique: u64,
    /// Arrivals beyond the first of a message.
    pub duplicates: u64,
    /// First arrivals behind a later message of the same publisher.
    pub out_of_order: u64,
}

impl Ledger {
    /// A ledger for `publishers` publishers that remembers at most `words_max * 64` messages behind the newest.
    #[must_use]
    pub fn new(publishers: u32, words_max: usize) -> Self {
        let publishers = (0..publishers).map(|_| Seen::default()).collect();
        Self { publishers, words_max: words_max.max(1), unique: 0, duplicates: 0, out_of_order: 0 }
    }

    /// Notes an arrival; true if it is the message's first. `None` if there is no such publisher.
    pub fn record(&mut self, publisher: u32, sequence: u64) -> Option<bool> {
        let seen = self.publishers.get_mut(publisher as usize)?;
        let is_late = sequence < seen.next;
        let is_first = seen.insert(sequence, self.words_max);
        if is_first {
            self.unique += 1;
            self.out_of_order += u64::from(is_late);
        } else {
            self.duplicates += 1;
        }
        Some(is_first)
    }

    /// The counts so far.
    #[must_use]
    pub fn received(&self) -> Received {
        Received { unique: self.unique, duplicates: self.duplicates, out_of_order: self.out_of_order }
    }

    /// Messages that are missing though a later one of the same publisher is there.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.publishers.iter().map(|seen| seen.next).sum::<u64>() - self.unique
    }

    /// Messages that `manifest` says were accepted and that have not arrived. O(messages / 64).
    #[must_use]
    pub fn lost(&self, manifest: &Manifest) -> u64 {
        let none = Seen::default();
        let seen = self.publishers.iter().chain(std::iter::repeat(&none));
        manifest.publishers.iter().zip(seen).map(|(sent, seen)| seen.absent(sent)).sum()
    }
}

impl Seen {
    /// False if it was there already.
    fn insert(&mut self, sequence: u64, words_max: usize) -> bool {
        self.next = self.next.max(sequence.saturating_add(1));
        let word = sequence / 64;
        if word < self.first_word {
            return false;
        }
        // Make room: forget from the front, and all at once if the jump is longer than what is kept.
        let keep_from = (word + 1).saturating_sub(words_max as u64);
        while self.first_word < keep_from && self.words.pop_front().is_some() {
            self.first_word += 1;
        }
        self.first_word = self.first_word.max(keep_from);
        let at = usize::try_from(word - self.first_word).expect("below words_max");
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (sequence % 64);
        let is_new = self.words[at] & bit == 0;
        self.words[at] |= bit;
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.first_word += 1;
        }
        is_new
    }

    fn absent(&self, sent: &Sent) -> u64 {
        sent.accepted_ranges().map(|range| (range.end - range.start) - self.present(&range)).sum()
    }

    fn present(&self, range: &Range<u64>) -> u64 {
        let behind = self.first_word * 64;
        let complete = range.end.min(behind).saturating_sub(range.start.min(behind));
        let counted = self.words.iter().zip(self.first_word..).map(|(word, number)| {
            let (start, end) = (number * 64, number * 64 + 64);
            let (from, to) = (range.start.clamp(start, end) - start, range.end.clamp(start, end) - start);
            let mask = if from >= to { 0 } else { (u64::MAX >> (64 - (to - from))) << from };
            u64::from((word & mask).count_ones())
        });
        complete + counted.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn manifest(written: u64, answered: u64, refused: Vec<Range<u64>>) -> Manifest {
        Manifest { run: 1, publishers: vec![Sent { written, answered, refused }] }
    }

    #[test]
    fn losses_duplicates_and_disorder_are_told_apart() {
        let mut ledger = Ledger::new(1, 100);
        for sequence in [0, 2, 1, 2, 5] {
            assert!(ledger.record(0, sequence).is_some());
        }
        assert_eq!(ledger.record(1, 0), None);
        assert_eq!(ledger.received(), Received { unique: 4, duplicates: 1, out_of_order: 1 });
        assert_eq!(ledger.missing(), 2); // 3 and 4
        assert_eq!(ledger.lost(&manifest(9, 9, vec![])), 5); // 3, 4, 6, 7, 8
        assert_eq!(ledger.lost(&manifest(9, 7, vec![])), 3); // 7 and 8 were not answered
        assert_eq!(ledger.lost(&manifest(9, 7, vec![Range { start: 3, end: 5 }])), 1);
        assert_eq!(Ledger::new(0, 1).lost(&manifest(9, 7, vec![])), 7);
    }

    #[test]
    fn memory_stays_bounded_when_much_is_missing() {
        let mut ledger = Ledger::new(1, 4);
        for sequence in (0..100_000).step_by(2).chain([1 << 50]) {
            ledger.record(0, sequence);
            assert!(ledger.publishers[0].words.len() <= 4);
        }
        assert_eq!(ledger.missing(), (1 << 50) - 50_000);
        assert_eq!(ledger.record(0, 1), Some(false));
    }

    proptest! {
        #[test]
        fn the_ledger_is_a_set(arrivals in proptest::collection::vec(0..400_u64, 0..500), answered in 0..400_u64, cut in 0..400_u64, length in 0..100_u64) {
            let mut ledger = Ledger::new(1, 1_000);
            let mut set = BTreeSet::new();
            for &sequence in &arrivals {
                prop_assert_eq!(ledger.record(0, sequence), Some(set.insert(sequence)));
            }
            prop_assert_eq!(ledger.received().unique, set.len() as u64);
            let refused = cut.min(answered)..(cut + length).min(answered);
            let lost = (0..answered).filter(|n| !refused.contains(n) && !set.contains(n)).count() as u64;
            prop_assert_eq!(ledger.lost(&manifest(400, answered, vec![refused])), lost);
        }
    }
}
