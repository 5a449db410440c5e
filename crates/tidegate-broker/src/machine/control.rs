//! What the HTTP APIs do to a shard: administration, contracts, draining.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::time::nanos;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::acks::Origin;
use super::admin::{AdminReply, AdminRequest, Answered, Newcomers, Pause, PublishRefused, Recording};
use super::channel::ChannelKey;
use super::contracts::{KeptBucket, LimitKey};
use super::flow::write_all;
use super::lanes::Rest;
use super::limiter::{Contract, Discipline, Mode, Source, Terms, Unit};
use super::log::LogCommand;
use super::output::{Notice, Output};
use super::publish::{Publish, Published};
use super::publishers::HttpPublisher;
use super::queue::{Item, Queue, Queued};
use super::queue_log::QueueLog;
use super::shard::Shard;
use super::topic::{Pending, TopicKey};
use super::trace::{self, Traced};

impl Shard {
    /// Carries out a request from outside the NSQ protocol.
    pub fn on_admin(&mut self, request: AdminRequest, now: Instant) -> Answered {
        if self.is_ending() && !matches!(request, AdminRequest::Snapshot(_)) {
            // Nothing may open a queue, or change one that is closed.
            return Answered::Now(AdminReply::Refused(PublishRefused::Exiting));
        }
        self.lapse_parts(now);
        Answered::Now(match request {
            AdminRequest::Publish { topic, bodies, defer, by } => {
                return self.publish_for_admin(&topic, &bodies, (defer, &by), now);
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
            AdminRequest::EmptyTopic(topic) => self.with_topic(&topic, |shard, key| shard.empty_topic(key, now)),
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
                self.part_status(&topic, now).map_or(AdminReply::Done, |part| AdminReply::Parts(vec![part]))
            }
            AdminRequest::SetChannelLimit(topic, channel, contract) => {
                self.set_channel_limit(&topic, &channel, contract, now);
                AdminReply::Done
            }
            AdminRequest::ReleaseLine(topic) => self.with_topic(&topic, Self::release_line),
            AdminRequest::Record(topic, recording) => {
                self.record(&topic, recording, now);
                AdminReply::Done
            }
            AdminRequest::Snapshot(scope) => return self.snapshot(scope, now),
            AdminRequest::Publishers(scope) => return self.list_publishers(scope, now),
            AdminRequest::PutParts(order) => self.put_parts(&order, now),
            AdminRequest::RemovePart { topic, revision } => self.remove_part(&topic, revision, now),
            AdminRequest::Parts => AdminReply::Parts(self.part_statuses(now)),
            AdminRequest::Lending => AdminReply::Lending(Box::new(self.lend_snapshot())),
            AdminRequest::Prepare { topic, channels, creation } => self.prepare(&topic, &channels, creation, now),
            AdminRequest::Disconnect { topic, identities } => {
                AdminReply::Disconnected(self.disconnect_publishers(&topic, &identities))
            }
            AdminRequest::SetNewcomers(newcomers) => {
                self.newcomers = newcomers;
                AdminReply::Done
            }
        })
    }

    fn publish_for_admin(
        &mut self,
        topic: &TopicName,
        bodies: &[Vec<u8>],
        (defer, by): (Option<Duration>, &HttpPublisher),
        now: Instant,
    ) -> Answered {
        if self.newcomers == Newcomers::Refused {
            return Answered::Now(AdminReply::Refused(PublishRefused::Draining));
        }
        let key = self.topic(topic, now);
        let publisher = self.publisher_over_http(by, key, now);
        let publish = Publish {
            count: bodies.len(),
            bytes: bodies.iter().map(Vec::len).sum(),
            bodies: bodies.iter().map(Vec::as_slice),
            defer_ns: defer.map_or(0, nanos),
            arrival: now,
            read: now,
            publisher,
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

    fn record(&mut self, topic: &TopicName, recording: Recording, now: Instant) {
        let key = self.topic(topic, now);
        self.numbers.recordings = self.numbers.recordings.wrapping_add(1).max(1);
        let begun = (recording == Recording::On).then(|| trace::Recording::new(self.numbers.recordings));
        let ended = std::mem::replace(&mut self.topics[key].recording, begun);
        let left = ended.map_or_else(Traced::default, trace::Recording::finish);
        self.outputs.push_back(Output::Trace(topic.clone(), left));
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
        let before = self.contracts.terms(&limit);
        self.contracts.set(limit, contract);
        self.put_in_force(name, before, now, now);
    }

    /// Puts `terms` in force on the topic at `key`, from `at` on; what was due until then has gone.
    pub(super) fn rule_topic(&mut self, key: TopicKey, limit: &LimitKey, terms: Option<Terms>, at: Instant) {
        self.shut_lanes(key, Rest::Comes, at);
        let Self { topics, contracts, messages, .. } = self;
        let topic = &mut topics[key];
        let line = topic.depth();
        let line_cost = |unit| match unit {
            Unit::Messages => line,
            // Records in the log count with their headers, which errs on the side of the contract.
            Unit::Bytes => topic.queue.body_bytes(messages) + topic.queue.log().map_or(0, QueueLog::bytes),
        };
        match (terms, topic.limiter.as_mut()) {
            (Some(terms), Some(limiter)) => {
                let pays = limiter.pays(line);
                limiter.rule(terms, line_cost(terms.contract.unit), at);
                // What was accepted under a contract that acted goes at its pace.
                limiter.pace(if terms.contract.mode == Mode::Shadow { pays } else { 0 });
            }
            (Some(terms), None) => {
                let line_cost = line_cost(terms.contract.unit);
                let mut limiter = contracts.limiter_under(limit, terms, line_cost, at);
                if let Some(until) = contracts.parts.withheld_until(&topic.name).filter(|until| *until > at) {
                    limiter.forfeit(until);
                }
                topic.limiter = Some(limiter);
            }
            (None, Some(limiter)) => {
                let pays = limiter.pays(line);
                limiter.retire(pays, at);
            }
            (None, None) => {}
        }
        self.mark_topic(key);
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
                (Some(contract), Some(limiter)) => limiter.rule(Terms::of(contract), 0, now),
                (Some(contract), None) => *slot = Some(contracts.limiter_under(&limit, Terms::of(contract), 0, now)),
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
    pub fn restore_buckets(&mut self, kept: Vec<KeptBucket>, at: Instant) {
        for kept in kept {
            self.contracts.restore(kept, at);
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
    ///
    /// Where lanes of its topics are open on other shards, it waits for what is in them first.
    pub fn drain(&mut self, now: Instant) {
        if self.is_ending() {
            return;
        }
        let conns: Vec<_> = self.clients.iter().map(|(conn, _)| conn).collect();
        for conn in conns {
            self.kill(conn);
            self.leave_channel(conn, now);
        }
        self.end_batch(now);
        self.leave_all_circles(now);
        self.end_surveys(now);
        self.end_listings(now);
        if self.end_lanes(now) {
            self.drain_queues();
        }
    }

    /// The second half: nothing comes any more.
    pub(super) fn drain_queues(&mut self) {
        self.draining = true;
        if let Some(laning) = &mut self.laning {
            laning.ends_by = None;
        }
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

    /// True once everything that [`Shard::drain`] sent to the log is there, and nothing is lent any more: that takes a
    /// lease at most, where others are not heard of.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_saved() && self.has_left_all_circles()
    }

    /// The first half: all messages are in the log.
    #[must_use]
    pub fn is_saved(&self) -> bool {
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
