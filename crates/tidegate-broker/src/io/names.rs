//! Which topics and channels there are, and which of them are paused, kept in nsqd's file of them.
//!
//! The keeper follows the [`Notice`]s of all shards and asks no shard for anything. One thread follows them and never
//! waits for the disk, so that what waits for it stays short; a second thread writes. What changes while a write is
//! under way goes into the next one together. After each write, shards are told how many of their notices are durable.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::handle::Notice;
use super::metadata::{ChannelMetadata, Metadata, MetadataError, TopicMetadata};
use crate::machine::admin::Pause;

/// After a write that failed, the next one waits this long.
const RETRY: Duration = Duration::from_secs(1);
/// After a write, the next one waits as long as that one took, but not longer than this: very many names are written
/// at most half of the time.
const REST_MAX: Duration = Duration::from_millis(100);
/// Notices taken before the file is looked at again.
const NOTICES: usize = 4096;

/// Owns the keeper's threads. They run until [`NamesKeeper::stop`].
#[derive(Debug)]
pub(super) struct NamesKeeper {
    sender: Sender<Told>,
    thread: JoinHandle<Result<(), MetadataError>>,
}

/// Tells the keeper of notices. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct NamesHandle {
    sender: Sender<Told>,
}

#[derive(Debug)]
enum Told {
    /// A shard's notice, in its order.
    Notice(usize, Notice),
    /// What became of the write under way.
    Written(Result<(), MetadataError>),
    Stop,
}

/// What the file said at the start, beside what shards have been given since.
pub struct StartingNames {
    /// The names.
    pub names: Metadata,
    /// Some of them are not in the file.
    pub adopted: bool,
}

impl NamesKeeper {
    /// Starts to follow the notices of `shards` shards. `write` replaces the file; `saved` is told a shard's number and
    /// how many of its notices are durable, and must not wait.
    pub(super) fn start(
        at_start: StartingNames,
        shards: usize,
        write: impl FnMut(&Metadata) -> Result<(), MetadataError> + Send + 'static,
        saved: impl Fn(usize, u64) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, inbox) = mpsc::channel();
        let (drafts, to_write) = mpsc::sync_channel(1);
        let names = Names::new(at_start, shards);
        let answers = sender.clone();
        let writer = thread::Builder::new()
            .name("names-writer".to_owned())
            .spawn(move || write_drafts(&to_write, write, &answers))?;
        let thread = thread::Builder::new().name("names".to_owned()).spawn(move || {
            let outcome = follow(names, &inbox, &drafts, saved);
            // Without drafts to come the writer ends.
            drop(drafts);
            let _ = writer.join();
            outcome
        })?;
        Ok(Self { sender, thread })
    }

    pub(super) fn handle(&self) -> NamesHandle {
        NamesHandle { sender: self.sender.clone() }
    }

    /// Takes note of all notices so far, writes them down if they are not, and ends.
    pub(super) fn stop(self) -> Result<(), MetadataError> {
        // An error means that the thread is gone already.
        let _ = self.sender.send(Told::Stop);
        self.thread.join().unwrap_or_else(|_| {
            tracing::error!("the keeper of nsqd.dat panicked; the last changes of topics and channels may be lost");
            Ok(())
        })
    }
}

impl NamesHandle {
    /// Takes note of what a shard said. Call it in the order of the shard's notices.
    pub(super) fn observe(&self, shard: usize, notice: Notice) {
        // The keeper outlives the shards.
        let _ = self.sender.send(Told::Notice(shard, notice));
    }
}

fn write_drafts(
    drafts: &Receiver<Metadata>,
    mut write: impl FnMut(&Metadata) -> Result<(), MetadataError>,
    answers: &Sender<Told>,
) {
    while let Ok(draft) = drafts.recv() {
        if answers.send(Told::Written(write(&draft))).is_err() {
            return;
        }
    }
}

/// The keeper's thread.
fn follow(
    mut names: Names,
    inbox: &Receiver<Told>,
    drafts: &SyncSender<Metadata>,
    saved: impl Fn(usize, u64),
) -> Result<(), MetadataError> {
    loop {
        let now = clock::now();
        if let Some(draft) = names.next_draft(now) {
            // The writer takes one at a time, and one is given at a time.
            let _ = drafts.send(draft);
        }
        for (shard, notices) in names.newly_durable() {
            saved(shard, notices);
        }
        if let Some(outcome) = names.take_end() {
            return outcome;
        }
        let first = match names.next_timeout() {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => inbox.recv_timeout(at - now),
        };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        for told in std::iter::once(first).chain(inbox.try_iter().take(NOTICES)) {
            match told {
                Told::Notice(shard, notice) => names.on_notice(shard, notice),
                Told::Written(outcome) => names.on_written(outcome, clock::now()),
                Told::Stop => names.stop(),
            }
        }
    }
}

/// The names, and how far they are durable: what the keeper's thread decides.
pub struct Names {
    topics: BTreeMap<TopicName, Topic>,
    shards: Vec<Noted>,
    /// The file does not say what `topics` says.
    behind: bool,
    writing: Option<Writing>,
    /// No write begins before.
    rest_until: Instant,
    /// What the last write failed with.
    failure: Option<MetadataError>,
    stopping: bool,
    /// The last write, after which nothing is to come, has been tried.
    tried_last: bool,
}

struct Topic {
    pause: Pause,
    channels: BTreeMap<ChannelName, Pause>,
}

/// Notices of a shard.
#[derive(Clone, Copy, Default)]
struct Noted {
    taken: u64,
    durable: u64,
    /// The shard knows that so many are durable.
    told: u64,
}

/// A write under way.
struct Writing {
    since: Instant,
    /// For each shard, the notices that it makes durable.
    covers: Vec<u64>,
    /// It began after the shards' last notice.
    last: bool,
}

impl Names {
    /// Follows `shards` shards.
    #[must_use]
    pub fn new(at_start: StartingNames, shards: usize) -> Self {
        let topics = at_start.names.topics.into_iter().map(|topic| {
            let channels = topic.channels.into_iter().map(|channel| (channel.name, pause(channel.paused)));
            (topic.name, Topic { pause: pause(topic.paused), channels: channels.collect() })
        });
        Self {
            topics: topics.collect(),
            shards: vec![Noted::default(); shards],
            behind: at_start.adopted,
            writing: None,
            rest_until: Instant::ZERO,
            failure: None,
            stopping: false,
            tried_last: false,
        }
    }

    /// A shard told something.
    pub fn on_notice(&mut self, shard: usize, notice: Notice) {
        self.shards[shard].taken += 1;
        self.behind |= self.apply(notice);
    }

    /// Answers whether the file has to change. What is ephemeral is not in it.
    fn apply(&mut self, notice: Notice) -> bool {
        match notice {
            Notice::TopicCreated(topic) => !topic.is_ephemeral() && self.topic(topic).1,
            Notice::TopicDeleted(topic) => self.topics.remove(&topic).is_some(),
            Notice::ChannelCreated(topic, channel) => {
                if topic.is_ephemeral() || channel.is_ephemeral() {
                    return false;
                }
                match self.topic(topic).0.channels.entry(channel) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(Pause::Flowing);
                        true
                    }
                    // An earlier run left it, and the shard was told.
                    Entry::Occupied(_) => false,
                }
            }
            Notice::ChannelDeleted(topic, channel) => {
                self.topics.get_mut(&topic).is_some_and(|topic| topic.channels.remove(&channel).is_some())
            }
            Notice::PauseChanged(topic, channel, pause) => {
                let topic = self.topics.get_mut(&topic);
                let of = topic.and_then(|topic| match channel {
                    None => Some(&mut topic.pause),
                    Some(channel) => topic.channels.get_mut(&channel),
                });
                of.is_some_and(|of| std::mem::replace(of, pause) != pause)
            }
        }
    }

    /// The topic, and whether it is new.
    fn topic(&mut self, name: TopicName) -> (&mut Topic, bool) {
        match self.topics.entry(name) {
            Entry::Vacant(vacant) => (vacant.insert(Topic { pause: Pause::Flowing, channels: BTreeMap::new() }), true),
            Entry::Occupied(topic) => (topic.into_mut(), false),
        }
    }

    /// What is to be written now; then [`Self::on_written`] says what became of it.
    pub fn next_draft(&mut self, now: Instant) -> Option<Metadata> {
        if self.writing.is_some() || !self.behind || (now < self.rest_until && !self.stopping) || self.tried_last {
            return None;
        }
        self.behind = false;
        let covers = self.shards.iter().map(|noted| noted.taken).collect();
        self.writing = Some(Writing { since: now, covers, last: self.stopping });
        Some(self.metadata())
    }

    /// What became of the last [`Self::next_draft`].
    pub fn on_written(&mut self, outcome: Result<(), MetadataError>, now: Instant) {
        let Some(writing) = self.writing.take() else { return };
        self.tried_last = writing.last;
        match outcome {
            Ok(()) => {
                for (noted, covered) in self.shards.iter_mut().zip(writing.covers) {
                    noted.durable = covered;
                }
                self.rest_until = now + (now - writing.since).min(REST_MAX);
                if self.failure.take().is_some() {
                    tracing::info!("the file of topics and channels is written again");
                }
            }
            Err(error) => {
                self.behind = true;
                self.rest_until = now + RETRY;
                if self.failure.is_none() {
                    tracing::error!(
                        %error,
                        "new topics and channels are not safe from a crash; trying again every second"
                    );
                }
                self.failure = Some(error);
            }
        }
    }

    /// The shards with notices that have become durable, and how many of them are.
    pub fn newly_durable(&mut self) -> Vec<(usize, u64)> {
        let clean = !self.behind && self.writing.is_none();
        let mut newly = Vec::new();
        for (shard, noted) in self.shards.iter_mut().enumerate() {
            if clean {
                // Notices that change nothing in the file have nothing to wait for.
                noted.durable = noted.taken;
            }
            if noted.told < noted.durable {
                noted.told = noted.durable;
                newly.push((shard, noted.durable));
            }
        }
        newly
    }

    /// When to look again if nothing happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.behind && self.writing.is_none()).then_some(self.rest_until)
    }

    /// Nothing more is to come: what is not written is written at once.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// How the keeper ends, once it is to end and everything is written or was tried.
    pub fn take_end(&mut self) -> Option<Result<(), MetadataError>> {
        let over = self.stopping && self.writing.is_none() && (!self.behind || self.tried_last);
        over.then(|| self.failure.take().map_or(Ok(()), Err))
    }

    fn metadata(&self) -> Metadata {
        let channel = |(name, pause): (&ChannelName, &Pause)| ChannelMetadata {
            name: name.clone(),
            paused: *pause == Pause::Paused,
        };
        let topic = |(name, topic): (&TopicName, &Topic)| TopicMetadata {
            name: name.clone(),
            paused: topic.pause == Pause::Paused,
            channels: topic.channels.iter().map(channel).collect(),
        };
        Metadata { topics: self.topics.iter().map(topic).collect() }
    }
}

pub(super) fn pause(paused: bool) -> Pause {
    if paused { Pause::Paused } else { Pause::Flowing }
}

#[cfg(test)]
mod tests;
