//! The lanes of a shard, and those of the topics that live on it.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::lend::{Circle, Frame, LendConfig, Lending, Member};
use tidegate_wire::nsq::TopicName;

use super::host::Host;
use super::lane::Lane;
use crate::machine::home::home_shard;

/// All that a shard has of lanes. `K` is the key of a topic.
#[derive(Debug)]
pub(crate) struct Laning<K> {
    shard: usize,
    shards: usize,
    /// Topics that are spread.
    spread: BTreeSet<TopicName>,
    /// The lane of each spread topic that lives on another shard.
    pub(crate) lanes: HashMap<TopicName, Lane, RandomState>,
    /// Topics that live here, by the circle in which their shares lend.
    pub(crate) homes: BTreeMap<Circle, K>,
    /// Topics with an open lane here, by the same circle.
    pub(crate) guests: BTreeMap<Circle, TopicName>,
    pub(crate) lending: Lending,
    /// Frames that wait for the end of a batch. Each shard sends one at a time and circle, and waits for its answer.
    pub(crate) inbox: Vec<Frame>,
    /// Shards that have ended.
    gone: BTreeSet<usize>,
    epochs: u64,
    /// Lanes with something to do.
    pub(crate) dirty: Vec<TopicName>,
    /// The shard is about to drain, and waits for lanes until then.
    pub(crate) ends_by: Option<Instant>,
}

impl<K> Laning<K> {
    /// `None` if no topic is spread.
    pub(crate) fn new(spread: &BTreeSet<TopicName>, shard: usize, shards: usize, now: Instant) -> Option<Self> {
        if spread.is_empty() || shards < 2 {
            return None;
        }
        let elsewhere = spread.iter().map(|topic| (topic, home_shard(topic.as_str(), shards)));
        let lanes = elsewhere.filter(|(_, home)| *home != shard);
        Some(Self {
            shard,
            shards,
            spread: spread.clone(),
            lanes: lanes.map(|(topic, home)| (topic.clone(), Lane::new(home))).collect(),
            homes: BTreeMap::new(),
            guests: BTreeMap::new(),
            // The shares of all shards begin and end with the process: no session is of an earlier one.
            lending: Lending::new(LendConfig::new(member(shard)), 1, now),
            inbox: Vec::new(),
            gone: BTreeSet::new(),
            epochs: 0,
            dirty: Vec::new(),
            ends_by: None,
        })
    }

    /// What this shard is to know of the lanes of `topic`, which came to be here.
    pub(crate) fn host_of(&self, topic: &TopicName) -> Option<Box<Host>> {
        if !self.spread.contains(topic) {
            return None;
        }
        let mut host = Host::new(self.shard, self.shards);
        for shard in &self.gone {
            host.on_gone(*shard);
        }
        Some(Box::new(host))
    }

    /// The number of the next opening: none had it before, on no shard.
    pub(crate) fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs * self.shards as u64 + self.shard as u64
    }

    /// All shards, as members of the circles in which shares lend.
    pub(crate) fn members(&self) -> Vec<Member> {
        (0..self.shards).map(member).collect()
    }

    pub(crate) fn on_gone(&mut self, shard: usize) {
        self.gone.insert(shard);
    }

    /// The lane of `topic` has something to do.
    pub(crate) fn mark(&mut self, topic: &TopicName) {
        if !self.dirty.contains(topic) {
            self.dirty.push(topic.clone());
        }
    }

    /// When to do something if nothing comes.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let due = self.lanes.values().filter_map(Lane::due).min();
        [due, self.lending.next_timeout(), self.ends_by].into_iter().flatten().min()
    }

    /// Marks the lanes of which a message has its tokens by now.
    pub(crate) fn mark_due(&mut self, now: Instant) {
        let Self { lanes, dirty, .. } = self;
        for (topic, lane) in lanes {
            if lane.due().is_some_and(|due| due <= now) && !dirty.contains(topic) {
                dirty.push(topic.clone());
            }
        }
    }
}

/// A shard, as those who lend each other call it.
fn member(shard: usize) -> Member {
    Member(u16::try_from(shard).expect("topics are spread over 64 shards at most"))
}

/// The shard that is called so.
pub(crate) fn shard_of(member: Member) -> usize {
    member.0.into()
}
