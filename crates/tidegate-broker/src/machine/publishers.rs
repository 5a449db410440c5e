//! The publishers of a topic: their identities, and how much each of them sent in the last whole seconds.
//!
//! A publisher is a connection, by the name that it gave itself in IDENTIFY or else by `CLIENT_ID@HOSTNAME`; further
//! connections of the same derived name are `#2`, `#3` and so on, the lowest number that is free in the topic.
//! Connections that gave themselves the same name are one publisher. What comes over HTTP is published by `http@IP`.
//! A publisher whose connection is gone keeps its place while its counts last, and gets it back when it returns.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::Serialize;
use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::estimate::seconds::{Ring, SECONDS_MAX, Window, second_of};
use tidegate_core::number::float;

use super::trace::{Recording, TracedPublisher};
use super::who::Who;
pub use super::who::{BadLabel, HttpPublisher, LABEL_BYTES_MAX, Label};

/// Publishers of a topic that are told apart; the rest are counted together.
pub const PUBLISHERS_MAX: usize = 65_536;
/// Publishers without a connection that are looked at when one more finds no place.
const SWEPT_FOR_ROOM: usize = 4;

/// A connection: its shard, and its serial there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Link {
    pub(super) shard: usize,
    pub(super) serial: u64,
}

/// A publisher's number in its topic: 31 bits, of which 14 tell it from others that had the same place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PublisherNo(u32);

impl PublisherNo {
    /// Nobody, or one of those that are counted together.
    pub(super) const UNKNOWN: Self = Self(0);
    const PLACE_BITS: u32 = 17;
    const GENERATION_MAX: u32 = (1 << 14) - 1;

    fn new(place: usize, generation: u32) -> Self {
        let place = u32::try_from(place + 1).expect("places are bounded");
        Self(place | ((generation & Self::GENERATION_MAX) << Self::PLACE_BITS))
    }

    fn place(self) -> Option<usize> {
        let place = self.0 & ((1 << Self::PLACE_BITS) - 1);
        usize::try_from(place).ok()?.checked_sub(1)
    }

    /// For those who have a bit to add.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// From [`bits`](Self::bits).
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// A publisher's number with that of the table that it is from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PublisherRef {
    /// Tables are numbered from 1 on.
    table: u32,
    no: PublisherNo,
}

impl PublisherRef {
    pub(super) fn no(self) -> PublisherNo {
        self.no
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Sent {
    messages: u32,
    batches: u32,
}

impl Sent {
    #[inline]
    fn add(&mut self, messages: u64) {
        self.messages = self.messages.saturating_add(u32::try_from(messages).unwrap_or(u32::MAX));
        self.batches = self.batches.saturating_add(1);
    }
}

/// Messages and batches in `window`.
fn sum(sent: &Ring<Sent>, window: Window) -> (u64, u64) {
    window.seconds().fold((0, 0), |(messages, batches), second| {
        let sent = sent.get(second);
        (messages + u64::from(sent.messages), batches + u64::from(sent.batches))
    })
}

/// A publisher of the topic.
#[derive(Debug)]
struct Entry {
    no: PublisherNo,
    base: Arc<str>,
    /// Its number among those of the same name.
    rank: u32,
    who: Arc<Who>,
    /// Its connections.
    links: u32,
    /// When the first of them was made.
    since: Instant,
    sent: Ring<Sent>,
    /// It stands in the line of those without a connection.
    idle: bool,
    /// The recording that has its identity, and its number there.
    traced: (u32, u32),
}

impl Entry {
    fn is_address(&self) -> bool {
        self.who.is_address()
    }

    fn identity(&self) -> String {
        if self.rank == 1 { self.base.to_string() } else { format!("{}#{}", self.base, self.rank) }
    }
}

/// The places of a name.
#[derive(Default, Debug)]
struct Name {
    /// By number: publishers that are there, and those that are remembered.
    places: BTreeMap<u32, PublisherNo>,
    /// Numbers up to here are taken, but for those in `free`.
    taken: u32,
    free: BTreeSet<u32>,
    /// Numbers above `taken` + 1 that are taken: of publishers that chose them.
    beyond: BTreeSet<u32>,
}

impl Name {
    fn lowest_free(&self) -> u32 {
        self.free.first().copied().unwrap_or(self.taken + 1)
    }

    fn take(&mut self, number: u32) {
        if number <= self.taken {
            self.free.remove(&number);
        } else if number == self.taken + 1 {
            self.taken = number;
            while self.beyond.remove(&(self.taken + 1)) {
                self.taken += 1;
            }
        } else {
            self.beyond.insert(number);
        }
    }

    fn give_back(&mut self, number: u32) {
        if number <= self.taken {
            self.free.insert(number);
        } else {
            self.beyond.remove(&number);
        }
    }
}

/// The publishers of one topic, at most [`PUBLISHERS_MAX`]. About a kilobyte each.
#[derive(Debug)]
pub(super) struct Publishers {
    table: u32,
    entries: Slab<Entry>,
    /// Every place that was ever used is below.
    places: usize,
    generation: u32,
    links: HashMap<Link, PublisherNo, RandomState>,
    names: HashMap<Arc<str>, Name, RandomState>,
    /// Publishers without a connection, in the order in which they are looked at.
    idle: VecDeque<PublisherNo>,
    /// Connections that found no place.
    unplaced: u64,
    /// What they and unknown publishers sent.
    others: Option<Ring<Sent>>,
}

/// A publisher's numbers. Counts are of the window that was asked for.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct PublisherReport {
    /// One of its kind in the topic.
    pub identity: String,
    /// What it is correlated with, as it said.
    pub correlation: Option<String>,
    /// `address:port`; over HTTP the address, or `unix`.
    pub remote: String,
    /// As in IDENTIFY, cut to 128 bytes, or the host part of its address.
    pub client_id: String,
    /// The same of its host.
    pub hostname: String,
    /// Messages that it sent, those that the contract refused included.
    pub messages: u64,
    /// Publishes: PUB and DPUB of one message each, MPUB of many.
    pub batches: u64,
    /// Messages over the length of the window.
    pub rate_per_s: f64,
    /// Whole seconds since it connected, or was first heard of over HTTP; 0 for one that has gone.
    pub connected_s: u64,
}

/// Those that are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct OthersReport {
    /// Connections.
    pub publishers: u64,
    /// What they sent in the window, with what publishers sent that cannot be told any more.
    pub messages: u64,
}

impl Publishers {
    /// An empty table with a number of its own, which is not zero.
    pub(super) fn new(table: u32) -> Self {
        Self {
            table,
            entries: Slab::new(),
            places: 0,
            // Tables begin far from each other, so that numbers which outlive a table name nobody in the next.
            generation: table.wrapping_mul(0x9e37_79b9),
            links: HashMap::default(),
            names: HashMap::default(),
            idle: VecDeque::new(),
            unplaced: 0,
            others: None,
        }
    }

    pub(super) fn table(&self) -> u32 {
        self.table
    }

    fn entry(&self, no: PublisherNo) -> Option<&Entry> {
        self.entries.get(no.place()?).filter(|entry| entry.no == no)
    }

    fn entry_mut(&mut self, no: PublisherNo) -> Option<&mut Entry> {
        self.entries.get_mut(no.place()?).filter(|entry| entry.no == no)
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= PUBLISHERS_MAX
    }

    /// Whether `publisher` is still good: it has its place, or there is none for it.
    #[inline]
    pub(super) fn knows(&self, publisher: PublisherRef) -> bool {
        publisher.table == self.table && (self.entry(publisher.no).is_some() || self.is_full())
    }

    pub(super) fn reference(&self, no: PublisherNo) -> PublisherRef {
        PublisherRef { table: self.table, no }
    }

    /// The publisher that a connection is; `None` if it has not joined, or had found no place and there is one now.
    pub(super) fn of(&mut self, link: Link) -> Option<PublisherNo> {
        let no = *self.links.get(&link)?;
        if no == PublisherNo::UNKNOWN && !self.is_full() {
            self.leave(link);
            return None;
        }
        Some(no)
    }

    /// How the publisher is called whose connection it is, if it has a place.
    pub(super) fn identity_of(&self, link: Link) -> Option<String> {
        self.entry(*self.links.get(&link)?).map(Entry::identity)
    }

    /// A connection that is not here begins to publish.
    pub(super) fn join(&mut self, link: Link, who: &Arc<Who>, now: Instant) -> PublisherNo {
        let no = self.place(who, now);
        match self.entry_mut(no) {
            Some(entry) => {
                entry.since = if entry.links == 0 { who.since() } else { entry.since.min(who.since()) };
                entry.links += 1;
            }
            None => self.unplaced += 1,
        }
        let before = self.links.insert(link, no);
        debug_assert!(before.is_none(), "a connection joins once");
        no
    }

    /// A publish comes over HTTP.
    pub(super) fn visit(&mut self, who: Who, now: Instant) -> PublisherNo {
        let no = self.place(&Arc::new(who), now);
        if let Some(entry) = self.entry_mut(no)
            && !std::mem::replace(&mut entry.idle, true)
        {
            self.idle.push_back(no);
        }
        no
    }

    /// The place of `who`, which may be one that it had before.
    fn place(&mut self, who: &Arc<Who>, now: Instant) -> PublisherNo {
        let (base, wanted) = who.place();
        if let Some(name) = self.names.get_mut(base) {
            let rank = wanted.unwrap_or_else(|| name.lowest_free());
            if let Some(no) = name.places.get(&rank).copied() {
                name.take(rank);
                if let Some(entry) = self.entry_mut(no) {
                    entry.meet(who);
                }
                return no;
            }
        }
        if self.is_full() {
            self.sweep(SWEPT_FOR_ROOM, now);
            if self.is_full() {
                return PublisherNo::UNKNOWN;
            }
        }
        let base = self.names.get_key_value(base).map_or_else(|| Arc::from(base), |(base, _)| Arc::clone(base));
        let name = self.names.entry(Arc::clone(&base)).or_default();
        let rank = wanted.unwrap_or_else(|| name.lowest_free());
        self.generation = self.generation.wrapping_add(1);
        let vacant = self.entries.vacant_entry();
        let no = PublisherNo::new(vacant.key(), self.generation);
        self.places = self.places.max(vacant.key() + 1);
        name.take(rank);
        name.places.insert(rank, no);
        vacant.insert(Entry {
            no,
            base,
            rank,
            who: Arc::clone(who),
            links: 0,
            since: who.since(),
            sent: Ring::new(now),
            idle: false,
            traced: (0, 0),
        });
        no
    }

    /// A connection is gone.
    pub(super) fn leave(&mut self, link: Link) {
        let Some(no) = self.links.remove(&link) else { return };
        let Some(entry) = self.entry_mut(no) else {
            self.unplaced -= 1;
            return;
        };
        entry.links -= 1;
        if entry.links > 0 {
            return;
        }
        let was_idle = std::mem::replace(&mut entry.idle, true);
        let (base, rank, keeps_number) = (Arc::clone(&entry.base), entry.rank, entry.is_address());
        if !was_idle {
            self.idle.push_back(no);
        }
        if !keeps_number && let Some(name) = self.names.get_mut(&base) {
            name.give_back(rank);
        }
    }

    /// Looks at `most` publishers without a connection, and forgets those that sent nothing within what is kept.
    pub(super) fn sweep(&mut self, most: usize, now: Instant) {
        for _ in 0..most.min(self.idle.len()) {
            let Some(no) = self.idle.pop_front() else { return };
            let Some(entry) = self.entry_mut(no) else { continue };
            if entry.links > 0 {
                entry.idle = false;
            } else if entry.sent.newest() + SECONDS_MAX >= second_of(now) {
                self.idle.push_back(no);
            } else {
                self.forget(no);
            }
        }
    }

    fn forget(&mut self, no: PublisherNo) {
        let Some(place) = no.place() else { return };
        let entry = self.entries.remove(place);
        let Some(name) = self.names.get_mut(&entry.base) else { return };
        name.places.remove(&entry.rank);
        if entry.is_address() {
            name.give_back(entry.rank);
        }
        if name.places.is_empty() {
            self.names.remove(&entry.base);
        }
    }

    /// A publish of so many messages.
    #[inline]
    pub(super) fn count(&mut self, publisher: PublisherRef, messages: u64, now: Instant) {
        let no = if publisher.table == self.table { publisher.no } else { PublisherNo::UNKNOWN };
        let entry = no.place().and_then(|place| self.entries.get_mut(place)).filter(|entry| entry.no == no);
        let sent = match entry {
            Some(entry) => &mut entry.sent,
            None => self.others.get_or_insert_with(|| Ring::new(now)),
        };
        sent.at(now).add(messages);
    }

    /// A publisher's number in a recording, which gets its identity with the first message; 0 if it is not known.
    pub(super) fn trace_number(&mut self, no: PublisherNo, recording: &mut Recording) -> u32 {
        let Some(entry) = self.entry_mut(no) else { return 0 };
        if entry.traced.0 != recording.id() {
            let identity = entry.identity();
            let correlation = entry.who.correlation().map(Label::to_string);
            let number = recording.introduce(|number| TracedPublisher { number, identity, correlation });
            entry.traced = (recording.id(), number);
        }
        entry.traced.1
    }

    /// Places are numbered up to here; some may be empty.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Adds those at `places` to `list` that have a connection or sent something in `window`.
    pub(super) fn report(&self, places: Range<usize>, window: Window, now: Instant, list: &mut Vec<PublisherReport>) {
        for entry in places.filter_map(|place| self.entries.get(place)) {
            let (messages, batches) = sum(&entry.sent, window);
            let is_there = entry.links > 0 || (entry.is_address() && messages > 0);
            if !is_there && messages == 0 {
                continue;
            }
            let rate_per_s = float(messages) / float(window.length().max(1));
            list.push(PublisherReport {
                identity: entry.identity(),
                correlation: entry.who.correlation().map(Label::to_string),
                remote: entry.who.remote().to_owned(),
                client_id: entry.who.client_id().to_owned(),
                hostname: entry.who.hostname().to_owned(),
                messages,
                batches,
                rate_per_s: (rate_per_s * 1e3).round() / 1e3,
                connected_s: if is_there { now.since(entry.since).as_secs() } else { 0 },
            });
        }
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_invariants(&self, is_connected: impl Fn(&Link) -> bool) {
        assert!(self.links.keys().all(is_connected), "a connection that has gone has left");
        let placed = self.links.values().filter(|no| self.entry(**no).is_some()).count() as u64;
        let linked: u64 = self.entries.iter().map(|(_, entry)| u64::from(entry.links)).sum();
        assert_eq!(placed, linked, "a publisher counts its connections");
        assert_eq!(self.links.len() as u64, placed + self.unplaced, "a connection has a place or none");
    }

    /// Those that are counted together.
    pub(super) fn others(&self, window: Window) -> OthersReport {
        let messages = self.others.as_ref().map_or(0, |sent| sum(sent, window).0);
        OthersReport { publishers: self.unplaced, messages }
    }
}

impl Entry {
    /// It is the same publisher, perhaps with something new to say.
    fn meet(&mut self, who: &Arc<Who>) {
        // An address is first heard of once, and what it says mostly stays the same.
        let is_address = who.is_address() && self.is_address();
        if !is_address || self.who.correlation() != who.correlation() {
            self.who = Arc::clone(who);
        }
    }
}

#[cfg(test)]
mod tests;
