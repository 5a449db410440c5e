//! A shard's queues on disk: which there are, whether their names are durable, and what the log says of them.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;
use tidegate_core::Instant;

use super::admin::PublishRefused;
use super::channel::ChannelKey;
use super::log::{LogCommand, LogEvent, QueueId};
use super::output::{Notice, Output};
use super::queue_log::QueueLog;
use super::shard::Shard;
use super::timers::Timer;
use super::topic::TopicKey;

/// A failed append is tried again after this.
const LOG_RETRY: Duration = Duration::from_millis(250);

/// Whose queue it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueOwner {
    Topic(TopicKey),
    Channel(ChannelKey),
    /// Deleted; its last event is awaited.
    Nobody,
}

/// The queues of a shard that have a log.
#[derive(Debug, Default)]
pub(super) struct Queues {
    owners: Slab<QueueOwner>,
    /// Notices that were given out. The names of topics and channels are durable up to some number of them.
    notices: u64,
    /// Queues that wait for a name to be durable, each with the number of the notice that told of it.
    unnamed: VecDeque<(u64, QueueId)>,
    /// Why some queue cannot be written or read, while that is so.
    error: Option<String>,
}

impl Queues {
    pub(super) fn insert(&mut self, owner: QueueOwner) -> QueueId {
        let queue = QueueId(u32::try_from(self.owners.insert(owner)).expect("fewer than 2^32 queues"));
        self.awaits_next_notice(queue);
        queue
    }

    /// `queue` waits for the name that the next notice tells of.
    fn awaits_next_notice(&mut self, queue: QueueId) {
        self.unnamed.push_back((self.notices + 1, queue));
    }

    pub(super) fn notices(&self) -> u64 {
        self.notices
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }
}

impl Shard {
    /// Tells the rest of the process, which will say when it is durable.
    pub(super) fn notify(&mut self, notice: Notice) {
        self.queues.notices += 1;
        self.outputs.push_back(Output::Notice(notice));
    }

    /// The next notice tells of a channel of `topic`: a publish that is answered from the topic's log is safe for that
    /// channel too.
    pub(super) fn await_channel_name(&mut self, topic: TopicKey) {
        if let Some(log) = self.topics[topic].queue.log_mut() {
            log.await_name();
            self.queues.awaits_next_notice(log.id());
        }
    }

    /// What the first `notices` notices of this shard told is durable: queues that came to be until then may be written.
    pub fn on_names_saved(&mut self, notices: u64) {
        while let Some((_, queue)) = self.queues.unnamed.pop_front_if(|(notice, _)| *notice <= notices) {
            let Some(owner) = self.queues.owners.get(queue.0 as usize).copied() else { continue };
            if let Some(log) = self.log_of(owner).filter(|log| log.id() == queue) {
                log.on_named();
                self.mark_owner(owner);
            }
        }
    }

    /// Why the log cannot be written, while it cannot.
    #[must_use]
    pub fn log_error(&self) -> Option<&str> {
        self.queues.error.as_deref()
    }

    fn log_of(&mut self, owner: QueueOwner) -> Option<&mut QueueLog> {
        match owner {
            QueueOwner::Topic(key) => self.topics.get_mut(key)?.queue.log_mut(),
            QueueOwner::Channel(key) => self.channels.get_mut(key)?.queue.log_mut(),
            QueueOwner::Nobody => None,
        }
    }

    fn mark_owner(&mut self, owner: QueueOwner) {
        match owner {
            QueueOwner::Topic(key) => self.mark_topic(key),
            QueueOwner::Channel(key) => self.mark_channel(key),
            QueueOwner::Nobody => {}
        }
    }

    /// What became of a [`LogCommand`].
    pub fn on_log(&mut self, event: LogEvent, now: Instant) {
        let queue = match &event {
            LogEvent::Opened { queue, .. }
            | LogEvent::Appended { queue, .. }
            | LogEvent::AppendFailed { queue, .. }
            | LogEvent::Read { queue, .. }
            | LogEvent::ReadFailed { queue, .. }
            | LogEvent::Closed { queue } => *queue,
        };
        let Some(owner) = self.queues.owners.get(queue.0 as usize).copied() else { return };
        if let LogEvent::Closed { .. } = event {
            self.queues.owners.remove(queue.0 as usize);
            self.queues.unnamed.retain(|(_, unnamed)| *unnamed != queue);
            return;
        }
        let Some(log) = self.log_of(owner) else { return };
        let failed_before = log.failure().is_some();
        let fails = matches!(event, LogEvent::AppendFailed { .. } | LogEvent::ReadFailed { .. });
        match event {
            LogEvent::Opened { depth, .. } => log.on_opened(depth),
            LogEvent::Appended { buffer, .. } => log.on_appended(buffer),
            LogEvent::AppendFailed { records, count, error, .. } => log.on_append_failed(records, count, error),
            LogEvent::Read { records, count, .. } => log.on_read(records, count),
            LogEvent::ReadFailed { error, .. } => log.on_read_failed(error),
            LogEvent::Closed { .. } => {}
        }
        match log.failure().map(str::to_owned) {
            Some(error) if fails => {
                self.queues.error = Some(error);
                self.timers.insert(now + LOG_RETRY, Timer::LogRetry(queue));
            }
            None if failed_before => self.refresh_log_error(),
            _ => {}
        }
        self.answer_publishes(owner);
        self.mark_owner(owner);
        if let QueueOwner::Channel(key) = owner
            && let topic = self.channels[key].topic
            && self.topics[topic].queue.log().is_some_and(QueueLog::is_moving)
        {
            self.mark_topic(topic);
        }
    }

    /// Answers the publishes whose records are safe, or cannot be made so.
    fn answer_publishes(&mut self, owner: QueueOwner) {
        while let Some(ack) = self.log_of(owner).and_then(QueueLog::next_confirmed) {
            self.settle_ack(ack, None);
        }
        let Some(log) = self.log_of(owner) else { return };
        if let Some(error) = log.error().map(str::to_owned) {
            let failed: Vec<_> = log.abandon().collect();
            for ack in failed {
                self.settle_ack(ack, Some(PublishRefused::LogFailed { error: error.clone() }));
            }
        }
    }

    /// Forgets what is in the log of `owner`; publishes that wait for it were accepted.
    pub(super) fn empty_log(&mut self, owner: QueueOwner) {
        let Some(command) = self.log_of(owner).map(QueueLog::empty) else { return };
        self.outputs.push_back(Output::Log(command));
        self.answer_publishes(owner);
        self.refresh_log_error();
    }

    /// The queue of a topic or channel that is gone; publishes that wait for it were accepted.
    pub(super) fn forget_queue(&mut self, log: Option<&mut QueueLog>) {
        let Some(log) = log else { return };
        self.queues.owners[log.id().0 as usize] = QueueOwner::Nobody;
        self.outputs.push_back(Output::Log(LogCommand::Delete { queue: log.id() }));
        for ack in log.abandon() {
            self.settle_ack(ack, None);
        }
        self.refresh_log_error();
    }

    /// A queue has recovered, or is gone: another one may still fail.
    fn refresh_log_error(&mut self) {
        if self.queues.error.is_some() {
            let topics = self.topics.values().filter_map(|topic| topic.queue.log());
            let channels = self.channels.values().filter_map(|channel| channel.queue.log());
            self.queues.error = topics.chain(channels).find_map(QueueLog::failure).map(str::to_owned);
        }
    }

    pub(super) fn retry_log(&mut self, queue: QueueId) {
        if self.draining {
            return;
        }
        let Some(owner) = self.queues.owners.get(queue.0 as usize).copied() else { return };
        let mut commands = Vec::new();
        if let Some(log) = self.log_of(owner) {
            log.retry(&mut |command| commands.push(command));
        }
        self.outputs.extend(commands.into_iter().map(Output::Log));
        self.mark_owner(owner);
    }
}
