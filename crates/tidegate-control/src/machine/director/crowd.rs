//! The publishers of a claim: their names, groups, and where they were seen.

use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_core::Instant;

use super::super::types::{GroupNo, NodeNo, PublisherNo};
use super::types::{IDENTITIES_MAX, Identity, Key, Seen};

/// What is known of a publisher.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) identity: Identity,
    key: Option<Key>,
    /// When it was seen last,
    pub(super) seen: Instant,
    /// and where.
    pub(super) on: NodeNo,
    /// The node that those who steer were told.
    pub(super) told: Option<NodeNo>,
    /// The placement for which it was disconnected.
    pub(super) disconnected: u64,
}

/// Publishers by number; at most [`IDENTITIES_MAX`]. Numbers are given by whoever keeps rates and nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd {
    numbers: BTreeMap<Identity, PublisherNo>,
    known: Vec<Option<Known>>,
}

/// What a sighting means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// It was seen before.
    Known(PublisherNo),
    /// It is new and needs a number.
    New,
    /// There are too many.
    Full,
}

impl Crowd {
    /// A publisher was seen.
    pub(super) fn see(&mut self, seen: &Seen, on: NodeNo, now: Instant) -> Sight {
        let Some(&number) = self.numbers.get(&seen.identity) else {
            return if self.numbers.len() < IDENTITIES_MAX { Sight::New } else { Sight::Full };
        };
        if let Some(Some(known)) = self.known.get_mut(number.0 as usize) {
            (known.seen, known.on) = (now, on);
            if known.key != seen.correlation {
                known.key.clone_from(&seen.correlation);
            }
        }
        Sight::Known(number)
    }

    /// A new publisher has this number.
    pub(super) fn add(&mut self, number: PublisherNo, seen: &Seen, on: NodeNo, now: Instant) {
        let at = number.0 as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        let identity = seen.identity.clone();
        self.numbers.insert(identity.clone(), number);
        let key = seen.correlation.clone();
        self.known[at] = Some(Known { identity, key, seen: now, on, told: None, disconnected: 0 });
    }

    /// Those that were not seen since `now` less `span`; they are taken out.
    pub(super) fn forget(&mut self, span: Duration, now: Instant) -> Vec<(PublisherNo, Known)> {
        let old = |known: &Known| known.seen + span <= now;
        let mut gone = Vec::new();
        for (number, slot) in (0..).map(PublisherNo).zip(&mut self.known) {
            if let Some(known) = slot.take_if(|known| old(known)) {
                self.numbers.remove(&known.identity);
                gone.push((number, known));
            }
        }
        gone
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn get(&self, number: PublisherNo) -> Option<&Known> {
        self.known.get(number.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: PublisherNo) -> Option<&mut Known> {
        self.known.get_mut(number.0 as usize)?.as_mut()
    }

    pub(super) fn number_of(&self, identity: &Identity) -> Option<PublisherNo> {
        self.numbers.get(identity).copied()
    }

    /// All, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PublisherNo, &Known)> {
        (0..).map(PublisherNo).zip(&self.known).filter_map(|(number, known)| Some((number, known.as_ref()?)))
    }

    /// The groups of these publishers: those with one key have one, others are alone.
    pub(super) fn groups(&self, publishers: &[PublisherNo]) -> Vec<GroupNo> {
        let mut of_key: BTreeMap<&Key, GroupNo> = BTreeMap::new();
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            GroupNo(next - 1)
        };
        let group = |&publisher: &PublisherNo| match self.get(publisher).and_then(|known| known.key.as_ref()) {
            Some(key) => *of_key.entry(key).or_insert_with(&mut fresh),
            None => fresh(),
        };
        publishers.iter().map(group).collect()
    }
}
