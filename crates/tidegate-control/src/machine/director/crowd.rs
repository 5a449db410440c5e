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
    /// When it was seen last.
    seen: Instant,
    /// Where it sends, or did: the node that saw most of it.
    pub(super) on: NodeNo,
    /// Each node that lists it, once. Rates are means over some seconds: while it moves, either node has a part of it.
    sightings: Vec<Sighting>,
    /// The node that those who steer were told.
    pub(super) told: Option<NodeNo>,
    /// The placement for which it was disconnected.
    pub(super) disconnected: u64,
}

/// What a node says of a publisher.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    on: NodeNo,
    at: Instant,
    rate_per_s: f64,
}

impl Known {
    fn see(&mut self, seen: &Seen, on: NodeNo, at: Instant) {
        self.seen = at;
        self.sightings.retain(|sighting| sighting.on != on);
        self.sightings.push(Sighting { on, at, rate_per_s: seen.rate_per_s });
        let most = self.sightings.iter().max_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
        self.on = most.map_or(on, |sighting| sighting.on);
    }

    /// Forgets what a node did not say again. What one that is not there any more said counts until another has seen the
    /// publisher. True if something was forgotten.
    fn refresh(&mut self, listed: impl Fn(NodeNo) -> Option<Instant>) -> bool {
        let before = self.sightings.len();
        let is_fresh = |sighting: &Sighting| listed(sighting.on).is_some_and(|at| at <= sighting.at);
        let is_elsewhere = self.sightings.iter().any(is_fresh);
        self.sightings.retain(|sighting| is_fresh(sighting) || (listed(sighting.on).is_none() && !is_elsewhere));
        self.sightings.len() != before
    }

    /// At all nodes together.
    fn rate_per_s(&self) -> f64 {
        self.sightings.iter().map(|sighting| sighting.rate_per_s).sum()
    }
}

/// Publishers by number; at most [`IDENTITIES_MAX`]. Numbers are given by whoever keeps rates and nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd {
    numbers: BTreeMap<Identity, PublisherNo>,
    known: Vec<Option<Known>>,
}

/// What a sighting means.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Sight {
    /// It was seen before; with its rate at all nodes together.
    Known(PublisherNo, f64),
    /// It is new and needs a number.
    New,
    /// There are too many.
    Full,
}

impl Crowd {
    /// A publisher was seen. `listed` says when a node told its publishers last; `None`: it is not there.
    pub(super) fn see(
        &mut self,
        seen: &Seen,
        on: NodeNo,
        now: Instant,
        listed: impl Fn(NodeNo) -> Option<Instant>,
    ) -> Sight {
        let number = self.numbers.get(&seen.identity).copied();
        let slot = number.and_then(|number| self.known.get_mut(number.0 as usize)?.as_mut());
        let (Some(number), Some(known)) = (number, slot) else {
            return if self.numbers.len() < IDENTITIES_MAX { Sight::New } else { Sight::Full };
        };
        known.see(seen, on, now);
        known.refresh(listed);
        if known.key != seen.correlation {
            known.key.clone_from(&seen.correlation);
        }
        Sight::Known(number, known.rate_per_s())
    }

    /// Publishers that a node lists no more, with the rate that is left: 0 at the last. Such a one sends nothing; it keeps its
    /// place until it is forgotten, and needs no room. O(n).
    pub(super) fn refresh(&mut self, listed: impl Fn(NodeNo) -> Option<Instant>) -> Vec<(PublisherNo, f64)> {
        let numbered = (0..).map(PublisherNo).zip(&mut self.known);
        let known = numbered.filter_map(|(number, slot)| Some((number, slot.as_mut()?)));
        known.filter_map(|(number, known)| known.refresh(&listed).then(|| (number, known.rate_per_s()))).collect()
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
        let sightings = vec![Sighting { on, at: now, rate_per_s: seen.rate_per_s }];
        self.known[at] = Some(Known { identity, key, seen: now, on, sightings, told: None, disconnected: 0 });
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
