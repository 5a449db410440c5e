//! What the HTTP APIs do to a shard: administration, contracts, snapshots, draining.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::Histogram;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_wire::nsq::frame::Header;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::{AdminReply, AdminRequest, Delays, Pause, PublishRefused, Recording, SnapshotScope};
use super::channel::{ChannelKey, ChannelLimiter};
use super::flow::{Publish, Published};
use super::limiter::{Contract, Discipline, Mode, Source, Unit};
use super::log::LogCommand;
use super::output::{Notice, Output};
use super::queue::{Queue, Queued};
use super::shard::{Shard, unref};
use super::snapshot::{ChannelSnapshot, DelaySnapshot, LimitSnapshot, ShardSnapshot, TopicSnapshot};
use super::topic::{TopicKey, TopicLimiter};

impl Shard {
    /// Carries out a request from outside the NSQ protocol.
    pub fn on_admin(&mut self, request: AdminRequest, now: Instant) -> AdminReply {
        if self.draining && !matches!(request, AdminRequest::Snapshot(_)) {
            // Nothing may open a queue, or change one that is closed.
            return AdminReply::Refused(PublishRefused::Exiting);
        }
        match request {
            AdminRequest::Publish { topic, bodies, defer } => self.publish_for_admin(&topic, &bodies, defer, now),
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
                shard.outputs.push_back(Output::Notice(Notice::PauseChanged));
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
                shard.outputs.push_back(Output::Notice(Notice::PauseChanged));
                shard.mark_channel(key);
            }),
            AdminRequest::SetTopicLimit(topic, contract) => {
                self.set_topic_limit(topic, contract, now);
                AdminReply::Done
            }
            AdminRequest::SetChannelLimit(topic, channel, contract) => {
                self.set_channel_limit(topic, channel, contract, now);
                AdminReply::Done
            }
            AdminRequest::Record(topic, recording) => {
                let key = self.topic(&topic, now);
                let topic = &mut self.topics[key];
                let left = std::mem::replace(&mut topic.recording, (recording == Recording::On).then(Vec::new));
                self.outputs.push_back(Output::Trace(topic.name.clone(), left.unwrap_or_default()));
                AdminReply::Done
            }
            AdminRequest::Snapshot(scope) => AdminReply::Snapshot(Box::new(self.snapshot(&scope, now))),
        }
    }

    fn publish_for_admin(
        &mut self,
        topic: &TopicName,
        bodies: &[Vec<u8>],
        defer: Option<Duration>,
        now: Instant,
    ) -> AdminReply {
        let key = self.topic(topic, now);
        let publish = Publish {
            count: bodies.len(),
            bytes: bodies.iter().map(Vec::len).sum(),
            bodies: bodies.iter().map(Vec::as_slice),
            defer_ns: defer.map_or(0, nanos),
            arrival: now,
            read: now,
        };
        match self.publish(key, publish, now) {
            Published::Done => AdminReply::Done,
            Published::Blocked => AdminReply::Refused(PublishRefused::QueueFull),
            Published::Refused(why) => AdminReply::Refused(why),
        }
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

    fn set_topic_limit(&mut self, name: TopicName, contract: Option<(Contract, Source)>, now: Instant) {
        if let Some(key) = self.topics_by_name.get(&name).copied() {
            // What is due until now is due under the old contract.
            self.drain_topic(key, now);
            let limiter = &mut self.topics[key].limiter;
            match (contract, limiter.as_mut()) {
                (Some((contract, source)), Some(limiter)) => {
                    limiter.rule(contract, source, now);
                }
                (Some((contract, source)), None) => *limiter = Some(TopicLimiter::new(contract, source, now)),
                (None, Some(limiter)) => {
                    // The line leaves at once, in order; the limiter goes when it is empty.
                    limiter.contract.mode = Mode::Shadow;
                    self.drain_topic(key, now);
                    self.topics[key].limiter = None;
                }
                (None, None) => {}
            }
            self.mark_topic(key);
        }
        match contract {
            Some(entry) => self.topic_contracts.insert(name, entry),
            None => self.topic_contracts.remove(&name),
        };
    }

    fn set_channel_limit(
        &mut self,
        topic: TopicName,
        channel: ChannelName,
        contract: Option<(Contract, Source)>,
        now: Instant,
    ) {
        let key = self.topics_by_name.get(&topic).and_then(|topic| self.topics[*topic].channels.get(&channel)).copied();
        if let Some(key) = key {
            self.pump(key, now);
            let limiter = &mut self.channels[key].limiter;
            match (contract, limiter.as_mut()) {
                (Some((contract, source)), Some(limiter)) => {
                    limiter.bucket.set_limit(contract.limit, now);
                    (limiter.contract, limiter.source, limiter.waiting_until) = (contract, source, None);
                }
                (Some((contract, source)), None) => *limiter = Some(ChannelLimiter::new(contract, source, now)),
                (None, _) => *limiter = None,
            }
            self.mark_channel(key);
        }
        match contract {
            Some(entry) => self.channel_contracts.insert((topic, channel), entry),
            None => self.channel_contracts.remove(&(topic, channel)),
        };
    }

    // Reading.

    fn snapshot(&mut self, scope: &SnapshotScope, now: Instant) -> ShardSnapshot {
        let wanted = |name: &TopicName| scope.topic.as_ref().is_none_or(|topic| topic == name);
        let mut keys: Vec<TopicKey> =
            self.topics.iter().filter(|(_, topic)| wanted(&topic.name)).map(|(key, _)| key).collect();
        keys.sort_unstable_by(|a, b| self.topics[*a].name.cmp(&self.topics[*b].name));
        let topics = keys.into_iter().map(|key| self.topic_snapshot(key, scope, now)).collect();
        let producers = if scope.clients {
            let publishes = |client: &&super::client::Client| !client.about.pub_counts.is_empty();
            self.clients
                .iter()
                .map(|(_, client)| client)
                .filter(publishes)
                .map(super::client::Client::snapshot)
                .collect()
        } else {
            Vec::new()
        };
        ShardSnapshot {
            shard: self.config.shard,
            topics,
            producers,
            connections: self.clients.len() as u64,
            log_error: self.log_error.clone(),
        }
    }

    fn topic_snapshot(&mut self, key: TopicKey, scope: &SnapshotScope, now: Instant) -> TopicSnapshot {
        let topic = &mut self.topics[key];
        let limit = topic
            .limiter
            .as_mut()
            .map(|limiter| limit_snapshot(&limiter.contract, limiter.source, limiter.gate.tokens(now)));
        let (waiting, waiting_bytes) =
            topic.limiter.as_ref().map_or((0, 0), |limiter| (limiter.waiting(), limiter.waiting_bytes));
        let counts = &topic.counts;
        let mut snapshot = TopicSnapshot {
            name: topic.name.to_string(),
            paused: topic.paused,
            limit,
            offered_total: counts.offered,
            offered_bytes_total: counts.offered_bytes,
            admitted_total: counts.admitted,
            admitted_bytes_total: counts.admitted_bytes,
            delayed_total: counts.delayed,
            refused_total: counts.refused,
            shadow_total: counts.shadow,
            dropped_total: counts.dropped,
            waiting,
            waiting_bytes,
            blocked_publishers: (topic.blocked.len() + topic.blocked_peers.len()) as u64,
            access_delay_us: delays(&mut topic.access_delay, scope.delays, now),
            depth: topic.queue.depth(),
            backend_depth: topic.queue.backend_depth(),
            memory_bytes: topic.memory_bytes,
            e2e_count: 0,
            e2e_percentiles_ns: Vec::new(),
            channels: Vec::new(),
        };
        if !self.config.e2e_percentiles.is_empty() && !topic.channels.is_empty() {
            let mut all = Histogram::new();
            for key in topic.channels.values() {
                self.channels[*key].e2e.iter().for_each(|window| window.merge_into(&mut all, now));
            }
            snapshot.e2e_count = all.count();
            snapshot.e2e_percentiles_ns = self.config.e2e_percentiles.iter().map(|q| all.quantile(*q)).collect();
        }
        let channels: Vec<ChannelKey> = topic
            .channels
            .iter()
            .filter(|(name, _)| scope.channel.as_ref().is_none_or(|channel| channel == *name))
            .map(|(_, key)| *key)
            .collect();
        snapshot.channels = channels.into_iter().map(|key| self.channel_snapshot(key, scope, now)).collect();
        snapshot
    }

    fn channel_snapshot(&mut self, key: ChannelKey, scope: &SnapshotScope, now: Instant) -> ChannelSnapshot {
        let channel = &mut self.channels[key];
        let limit = channel
            .limiter
            .as_mut()
            .map(|limiter| limit_snapshot(&limiter.contract, limiter.source, limiter.bucket.tokens(now)));
        let clients = if scope.clients {
            channel.clients.iter().map(|conn| self.clients[*conn].snapshot()).collect()
        } else {
            Vec::new()
        };
        let counts = &channel.counts;
        let e2e = channel.e2e.as_ref().map(|window| window.snapshot(now));
        ChannelSnapshot {
            name: channel.name.to_string(),
            paused: channel.paused,
            limit,
            message_total: counts.messages,
            delivered_total: counts.delivered,
            finished_total: counts.finished,
            requeued_total: counts.requeued,
            timed_out_total: counts.timed_out,
            dropped_total: counts.dropped,
            shadow_total: counts.shadow,
            depth: channel.queue.depth(),
            backend_depth: channel.queue.backend_depth(),
            in_flight: channel.in_flight,
            deferred: channel.deferred.len() as u64,
            client_count: channel.clients.len() as u64,
            access_delay_us: delays(&mut channel.access_delay, scope.delays, now),
            end_to_end_us: delays(&mut channel.end_to_end, scope.delays, now),
            e2e_count: e2e.as_ref().map_or(0, Histogram::count),
            e2e_percentiles_ns: e2e
                .map_or_else(Vec::new, |all| self.config.e2e_percentiles.iter().map(|q| all.quantile(*q)).collect()),
            clients,
        }
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
        self.draining = true;
        let topics: Vec<TopicKey> = self.topics.iter().map(|(key, _)| key).collect();
        for key in topics {
            self.drain_topic_to_log(key);
        }
        let channels: Vec<ChannelKey> = self.channels.iter().map(|(key, _)| key).collect();
        for key in channels {
            self.drain_channel_to_log(key);
        }
    }

    /// True once everything that [`Shard::drain`] sent to the log is there.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.queues.is_empty()
    }

    fn drain_topic_to_log(&mut self, key: TopicKey) {
        let Self { topics, messages, bodies, outputs, .. } = self;
        let topic = &mut topics[key];
        let mut left: Vec<Queued> = topic.queue.drain_memory().collect();
        if let Some(limiter) = &mut topic.limiter {
            while let Some(entrant) = limiter.gate.drop_oldest() {
                left.push(Queued { message: entrant.pending.message, attempts: 0, entered: Instant::ZERO });
            }
        }
        write_all(&mut topic.queue, left, messages, bodies);
        close(&mut topic.queue, outputs);
    }

    fn drain_channel_to_log(&mut self, key: ChannelKey) {
        let Self { channels, messages, bodies, outputs, timers, .. } = self;
        let channel = &mut channels[key];
        let mut left: Vec<Queued> = channel.queue.drain_memory().collect();
        let mut deferred: Vec<_> = channel.deferred.drain().collect();
        deferred.sort_unstable_by_key(|(id, _)| *id);
        for (_, (timer, queued)) in deferred {
            timers.cancel(timer);
            left.push(queued);
        }
        write_all(&mut channel.queue, left, messages, bodies);
        close(&mut channel.queue, outputs);
    }
}

fn write_all(
    queue: &mut Queue,
    left: Vec<Queued>,
    messages: &mut slab::Slab<super::shard::Message>,
    bodies: &mut super::store::BodyStore,
) {
    for queued in left {
        let message = &messages[queued.message];
        let header = Header { timestamp: message.timestamp, attempts: queued.attempts, id: message.id };
        // A queue without a log belongs to something ephemeral: it ends with the broker.
        queue.push_log(&header, bodies.get(message.body));
        unref(messages, bodies, queued.message);
    }
}

fn close(queue: &mut Queue, outputs: &mut std::collections::VecDeque<Output>) {
    queue.flush(&mut |command| outputs.push_back(Output::Log(command)));
    if let Some(queue) = queue.log_id() {
        outputs.push_back(Output::Log(LogCommand::Close { queue }));
    }
}

fn delays(window: &mut WindowedHistogram, wanted: Delays, now: Instant) -> DelaySnapshot {
    if wanted == Delays::Without {
        return DelaySnapshot::default();
    }
    let merged = window.snapshot(now);
    #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
    let us = |ns: u64| (ns as f64 / 1e3 * 10.0).round() / 10.0;
    DelaySnapshot {
        count: merged.count(),
        mean: (merged.mean() / 1e3 * 10.0).round() / 10.0,
        p50: us(merged.quantile(0.5)),
        p90: us(merged.quantile(0.9)),
        p99: us(merged.quantile(0.99)),
        p999: us(merged.quantile(0.999)),
        max: us(merged.max()),
    }
}

fn limit_snapshot(contract: &Contract, source: Source, tokens: f64) -> LimitSnapshot {
    let Limit { rate, burst } = contract.limit;
    LimitSnapshot {
        rate_per_s: rate.as_per_s(),
        burst,
        unit: match contract.unit {
            Unit::Messages => "messages",
            Unit::Bytes => "bytes",
        },
        discipline: match contract.discipline {
            Discipline::Wait => "wait",
            Discipline::Refuse => "refuse",
        },
        mode: match contract.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        },
        source: match source {
            Source::File => "file",
            Source::Admin => "admin",
        },
        tokens: (tokens * 100.0).round() / 100.0,
    }
}
