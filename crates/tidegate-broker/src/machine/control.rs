//! What the HTTP APIs do to a shard: administration, contracts, draining.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::acks::Origin;
use super::admin::{AdminReply, AdminRequest, Answered, Pause, PublishRefused, Recording};
use super::channel::ChannelKey;
use super::contracts::{KeptBucket, LimitKey};
use super::flow::write_all;
use super::limiter::{Contract, Discipline, Mode, Source, Unit};
use super::log::LogCommand;
use super::output::{Notice, Output};
use super::publish::{Publish, Published};
use super::queue::{Item, Queue, Queued};
use super::queue_log::QueueLog;
use super::shard::Shard;
use super::topic::{Pending, TopicKey};

impl Shard {
    /// Carries out a request from outside the NSQ protocol.
    pub fn on_admin(&mut self, request: AdminRequest, now: Instant) -> Answered {
        if self.draining && !matches!(request, AdminRequest::Snapshot(_)) {
            // Nothing may open a queue, or change one that is closed.
            return Answered::Now(AdminReply::Refused(PublishRefused::Exiting));
        }
        Answered::Now(match request {
            AdminRequest::Publish { topic, bodies, defer } => {
                return self.publish_for_admin(&topic, &bodies, defer, now);
            }
            AdminRequest::CreateTopic(topic) => {
                self.topic(&topic, now);
                AdminReply::Done
            }
            AdminRequest::StartTopic(topic, channels) => {
                let key = self.topic(&topic, now);
                for channel in channels {
                    self.channel(key, &channel, now);
                }
                self.topics[key].started = true;
                self.mark_topic(key);
                AdminReply::Done
            }
            AdminRequest::DeleteTopic(topic) => self.with_topic(&topic, |shard, key| shard.delete_topic(key, now)),
            AdminRequest::EmptyTopic(topic) => self.with_topic(&topic, Self::empty_topic),
            AdminRequest::PauseTopic(topic, pause) => self.with_topic(&topic, |shard, key| {
                shard.topics[key].paused = pause == Pause::Paused;
                shard.notify(Notice::PauseChanged(topic.clone(), None, pause));
                shard.mark_topic(key);
            }),
            AdminRequest::CreateChannel(topic, channel) => self.with_topic(&topic, |shard, key| {
                shard.channel(key, &channel, now);
            }),
            AdminRequest::DeleteChannel(topic, channel) => {
                self.with_channel(&topic, &channel, |shard, key| shard.delete_channel(key, now))
            }
            AdminRequest::EmptyChannel(topic, channel) => self.with_channel(&topic, &channel, Self::empty_channel),
            AdminRequest::PauseChannel(topic, channel, pause) => self.with_channel(&topic, &channel, |shard, key| {
                shard.channels[key].paused = pause == Pause::Paused;
                shard.notify(Notice::PauseChanged(topic.clone(), Some(channel.clone()), pause));
                shard.mark_channel(key);
            }),
            AdminRequest::SetTopicLimit(topic, contract) => {
                self.set_topic_limit(&topic, contract, now);
                AdminReply::Done
            }
            AdminRequest::SetChannelLimit(topic, channel, contract) => {
                self.set_channel_limit(&topic, &channel, contract, now);
                AdminReply::Done
            }
            AdminRequest::ReleaseLine(topic) => self.with_topic(&topic, Self::release_line),
            AdminRequest::Record(topic, recording) => {
                let key = self.topic(&topic, now);
                let topic = &mut self.topics[key];
                let left = std::mem::replace(&mut topic.recording, (recording == Recording::On).then(Vec::new));
                self.outputs.push_back(Output::Trace(topic.name.clone(), left.unwrap_or_default()));
                AdminReply::Done
            }
            AdminRequest::Snapshot(scope) => return self.snapshot(scope, now),
        })
    }

    fn publish_for_admin(
        &mut self,
        topic: &TopicName,
        bodies: &[Vec<u8>],
        defer: Option<Duration>,
        now: Instant,
    ) -> Answered {
        let key = self.topic(topic, now);
        let publish = Publish {
            count: bodies.len(),
            bytes: bodies.iter().map(Vec::len).sum(),
            bodies: bodies.iter().map(Vec::as_slice),
            defer_ns: defer.map_or(0, nanos),
            arrival: now,
            read: now,
        };
        Answered::Now(match self.publish(key, publish, now) {
            Published::Done => AdminReply::Done,
            Published::Later(ack) => {
                self.numbers.requests += 1;
                self.acks[ack].origin = Some(Origin::Admin(self.numbers.requests));
                return Answered::Later(self.numbers.requests);
            }
            Published::Blocked => AdminReply::Refused(PublishRefused::QueueFull),
            Published::Refused(why) => AdminReply::Refused(why),
        })
    }

    fn with_topic(&mut self, topic: &TopicName, act: impl FnOnce(&mut Self, TopicKey)) -> AdminReply {
        let Some(key) = self.topics_by_name.get(topic).copied() else { return AdminReply::TopicNotFound };
        act(self, key);
        AdminReply::Done
    }

    fn with_channel(
        &mut self,
        topic: &TopicName,
        channel: &ChannelName,
        act: impl FnOnce(&mut Self, ChannelKey),
    ) -> AdminReply {
        let Some(topic) = self.topics_by_name.get(topic) else { return AdminReply::TopicNotFound };
        let Some(key) = self.topics[*topic].channels.get(channel).copied() else { return AdminReply::ChannelNotFound };
        act(self, key);
        AdminReply::Done
    }

    // Contracts.

    fn set_topic_limit(&mut self, name: &TopicName, contract: Option<(Contract, Source)>, now: Instant) {
        let limit = LimitKey::topic(name);
        if let Some(key) = self.topics_by_name.get(name).copied() {
            // What is due until now is due under the old contract.
            self.drain_topic(key, now);
            let topic = &mut self.topics[key];
            let line = topic.depth();
            let line_cost = |unit| match unit {
                Unit::Messages => line,
                // Records in the log count with their headers, which errs on the side of the contract.
                Unit::Bytes => topic.queue.body_bytes(&self.messages) + topic.queue.log().map_or(0, QueueLog::bytes),
            };
            match (contract, topic.limiter.as_mut()) {
                (Some((contract, source)), Some(limiter)) => {
                    let pays = limiter.pays(line);
                    limiter.rule(contract, source, line_cost(contract.unit), now);
                    // What was accepted under a contract that acted goes at its pace.
                    limiter.pace(if contract.mode == Mode::Shadow { pays } else { 0 });
                }
                (Some(contract), None) => {
                    let line_cost = line_cost(contract.0.unit);
                    topic.limiter = Some(self.contracts.limiter_under(&limit, contract, line_cost, now));
                }
                (None, Some(limiter)) => limiter.retire(limiter.pays(line)),
                (None, None) => {}
            }
            self.mark_topic(key);
        }
        self.contracts.set(limit, contract);
    }

    fn set_channel_limit(
        &mut self,
        topic: &TopicName,
        channel: &ChannelName,
        contract: Option<(Contract, Source)>,
        now: Instant,
    ) {
        // Channels always wait.
        let contract =
            contract.map(|(contract, source)| (Contract { discipline: Discipline::Wait, ..contract }, source));
        let limit = LimitKey::channel(topic, channel);
        let key = self.topics_by_name.get(topic).and_then(|topic| self.topics[*topic].channels.get(channel)).copied();
        if let Some(key) = key {
            self.pump(key, now);
            let Self { channels, contracts, .. } = self;
            let slot = &mut channels[key].limiter;
            match (contract, slot.as_mut()) {
                (Some((contract, source)), Some(limiter)) => limiter.rule(contract, source, 0, now),
                (Some(contract), None) => *slot = Some(contracts.limiter_under(&limit, contract, 0, now)),
                (None, _) => {
                    if let Some(limiter) = slot.take() {
                        contracts.retire(limit.clone(), limiter, now);
                    }
                }
            }
            self.mark_channel(key);
        }
        self.contracts.set(limit, contract);
    }

    /// Lets the line of a contract go that no longer acts.
    fn release_line(&mut self, key: TopicKey) {
        if let Some(limiter) = &mut self.topics[key].limiter {
            limiter.pace(0);
        }
        self.mark_topic(key);
    }

    // Tokens that outlive the process.

    /// Every bucket that is not full, as it is at `now`: to be given to [`Shard::restore_buckets`] of the next run.
    #[must_use]
    pub fn kept_buckets(&self, now: Instant) -> Vec<KeptBucket> {
        let topics =
            self.topics.values().filter_map(|topic| Some((LimitKey::topic(&topic.name), topic.limiter.as_ref()?)));
        let channels = self.channels.values().filter_map(|channel| {
            let topic = &self.topics[channel.topic].name;
            Some((LimitKey::channel(topic, &channel.name), channel.limiter.as_ref()?))
        });
        let at_work = topics.chain(channels).map(|(key, limiter)| limiter.kept(key, now));
        at_work.chain(self.contracts.kept(now)).collect()
    }

    /// When it was last not known what had been taken: buckets that are not kept held nothing then. `None` if all is known.
    #[must_use]
    pub fn unknown_before(&self) -> Option<Instant> {
        self.contracts.unknown_before()
    }

    /// Buckets as an earlier run left them, which held their levels at `at`; before contracts and topics are restored.
    pub fn restore_buckets(&mut self, kept: Vec<KeptBucket>, at: Instant, now: Instant) {
        for kept in kept {
            self.contracts.restore(kept, at, now);
        }
    }

    /// What was taken before `now` is not known: buckets that are not restored count as empty at `now`.
    pub fn forget_buckets(&mut self, now: Instant) {
        self.contracts.forget_before(now);
    }

    // Draining.

    /// Stops taking anything, closes every connection, and sends all that is in memory to the log.
    ///
    /// What was in flight, deferred or in line becomes part of its queue, as in nsqd. The driver carries out the outputs
    /// and is done when each queue has answered [`super::log::LogEvent::Closed`] (see [`Shard::is_drained`]).
    pub fn drain(&mut self, now: Instant) {
        if self.draining {
            return;
        }
        let conns: Vec<_> = self.clients.iter().map(|(conn, _)| conn).collect();
        for conn in conns {
            self.kill(conn);
            self.leave_channel(conn, now);
        }
        self.end_batch(now);
        self.end_surveys(now);
        self.draining = true;
        // Channels first: what left a topic's log is in theirs before it is advanced over there.
        let channels: Vec<ChannelKey> = self.channels.iter().map(|(key, _)| key).collect();
        for key in channels {
            self.drain_channel_to_log(key);
        }
        let topics: Vec<TopicKey> = self.topics.iter().map(|(key, _)| key).collect();
        for key in topics {
            self.drain_topic_to_log(key);
        }
    }

    /// True once everything that [`Shard::drain`] sent to the log is there.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.queues.is_empty()
    }

    fn drain_topic_to_log(&mut self, key: TopicKey) {
        let Self { topics, messages, outputs, timers, .. } = self;
        let topic = &mut topics[key];
        let mut left: Vec<Pending> = topic.queue.drain_memory().collect();
        left.extend(topic.deferred.drain(timers));
        write_all(&mut topic.queue, left, messages);
        close(&mut topic.queue, outputs);
    }

    fn drain_channel_to_log(&mut self, key: ChannelKey) {
        let Self { channels, messages, outputs, timers, .. } = self;
        let channel = &mut channels[key];
        let mut left: Vec<Queued> = channel.queue.drain_memory().collect();
        left.extend(channel.deferred.drain(timers));
        write_all(&mut channel.queue, left, messages);
        close(&mut channel.queue, outputs);
    }
}

fn close<T: Item>(queue: &mut Queue<T>, outputs: &mut std::collections::VecDeque<Output>) {
    if let Some(log) = queue.log_mut() {
        log.flush(&mut |command| outputs.push_back(Output::Log(command)));
        outputs.push_back(Output::Log(LogCommand::Close { queue: log.id() }));
    }
}
