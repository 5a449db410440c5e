//! How topics and channels come and go.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::window::{WindowConfig, WindowedHistogram};
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::Pause;
use super::channel::{Channel, ChannelCounts, ChannelKey};
use super::contracts::LimitKey;
use super::deferred::Deferred;
use super::lanes::Rest;
use super::logging::QueueOwner;
use super::output::{ConnId, Notice, Output};
use super::peers::ParkedLine;
use super::queue::{Item, Queue};
use super::shard::Shard;
use super::topic::{Topic, TopicCounts, TopicKey};

/// Ten slots: the window is at most a tenth shorter than configured, and a channel that is used costs 25 KiB.
fn e2e_histogram(window: Duration) -> WindowedHistogram {
    let slot = (window / 10).max(Duration::from_nanos(1));
    WindowedHistogram::new(WindowConfig { slots: 10, slot })
}

impl Shard {
    /// The topic called `name`, created if need be.
    pub(super) fn topic(&mut self, name: &TopicName, now: Instant) -> TopicKey {
        if let Some(key) = self.topics_by_name.get(name) {
            return *key;
        }
        let key = self.topics.next_key();
        let queue = self.new_queue(!name.is_ephemeral(), QueueOwner::Topic(key), || name.to_string()).moving_on();
        let limiter = self.contracts.limiter(&LimitKey::topic(name), now);
        self.topics.insert(Topic {
            name: name.clone(),
            channels: BTreeMap::new(),
            routes: Vec::new(),
            queue,
            paused: false,
            started: !self.config.topics_wait_for_start,
            deferred: Deferred::default(),
            limiter,
            staged: Vec::new(),
            staged_bytes: 0,
            line_bytes_max: self.config.line_bytes,
            blocked: Vec::new(),
            parked: ParkedLine::default(),
            moving: Vec::new(),
            counts: TopicCounts::default(),
            access_delay: WindowedHistogram::new(WindowConfig::default()),
            recording: None,
            watch: None,
            host: self.laning.as_ref().and_then(|laning| laning.host_of(name)),
            dirty: false,
        });
        self.topics_by_name.insert(name.clone(), key);
        self.notify(Notice::TopicCreated(name.clone()));
        self.join_wished(name, now);
        key
    }

    /// The channel of `topic` called `name`, created if need be.
    pub(super) fn channel(&mut self, topic: TopicKey, name: &ChannelName, now: Instant) -> ChannelKey {
        if let Some(key) = self.topics[topic].channels.get(name) {
            return *key;
        }
        let topic_name = self.topics[topic].name.clone();
        let key = self.channels.next_key();
        let kept = !name.is_ephemeral() && !topic_name.is_ephemeral();
        let queue = self.new_queue(kept, QueueOwner::Channel(key), || format!("{topic_name}:{name}"));
        let limiter = self.contracts.limiter(&LimitKey::channel(&topic_name, name), now);
        self.channels.insert(Channel {
            name: name.clone(),
            topic,
            queue,
            paused: false,
            limiter,
            clients: Vec::new(),
            ready: VecDeque::new(),
            deferred: Deferred::default(),
            in_flight: 0,
            counts: ChannelCounts::default(),
            access_delay: WindowedHistogram::new(WindowConfig::default()),
            end_to_end: WindowedHistogram::new(WindowConfig::default()),
            e2e: (!self.config.e2e_percentiles.is_empty()).then(|| e2e_histogram(self.config.e2e_window)),
            dirty: false,
        });
        self.topics[topic].channels.insert(name.clone(), key);
        self.topics[topic].routes.push(key);
        if kept {
            self.await_channel_name(topic);
        }
        self.notify(Notice::ChannelCreated(topic_name, name.clone()));
        // What the topic kept for its first channel flows now.
        self.mark_topic(topic);
        key
    }

    /// A queue, with a log behind it if it is `kept`.
    fn new_queue<T: Item>(&mut self, kept: bool, owner: QueueOwner, name: impl FnOnce() -> String) -> Queue<T> {
        if !kept {
            return Queue::in_memory();
        }
        let (queue, open) = Queue::with_log(self.queues.insert(owner), name());
        self.outputs.push_back(Output::Log(open));
        queue
    }

    /// Brings back a topic and its channels as an earlier run left them: their names are durable.
    pub fn restore(&mut self, name: &TopicName, pause: Pause, channels: &[(ChannelName, Pause)], now: Instant) {
        let topic = self.topic(name, now);
        self.topics[topic].paused = pause == Pause::Paused;
        self.topics[topic].started = true;
        for (channel, pause) in channels {
            let channel = self.channel(topic, channel, now);
            self.channels[channel].paused = *pause == Pause::Paused;
        }
        let told = self.queues.notices();
        self.on_names_saved(told);
    }

    pub(super) fn delete_topic(&mut self, key: TopicKey, now: Instant) {
        let channels: Vec<_> = self.topics[key].channels.values().copied().collect();
        for channel in channels {
            self.delete_channel(channel, now);
        }
        if !self.topics.contains(key) {
            return; // An ephemeral topic went with its last channel.
        }
        self.clear_topic(key);
        self.shut_lanes(key, Rest::Drops, now);
        let mut topic = self.topics.remove(key);
        self.topics_by_name.remove(&topic.name);
        self.changed.topics.retain(|dirty| *dirty != key);
        self.changed.blocked.retain(|blocked| *blocked != key);
        self.forfeit_loans(&mut topic, now);
        if let (Some(host), Some(limiter)) = (&topic.host, &mut topic.limiter)
            && !host.is_all_in()
        {
            // What its lanes have left does not come back to it, and is worth nothing from now on.
            limiter.forfeit(now);
        }
        if let Some(limiter) = topic.limiter {
            self.contracts.retire(LimitKey::topic(&topic.name), limiter, now);
        }
        for conn in topic.blocked {
            self.resume(conn);
        }
        self.forget_queue(topic.queue.log_mut());
        self.notify(Notice::TopicDeleted(topic.name.clone()));
        while let Some(parked) = topic.parked.pop_front() {
            // The topic is new to those who waited for it.
            let key = self.topic(&topic.name, now);
            self.publish_parked(key, parked, now);
        }
    }

    pub(super) fn delete_channel(&mut self, key: ChannelKey, now: Instant) {
        let clients = self.channels[key].clients.clone();
        for conn in clients {
            self.drop_in_flight(conn);
            self.clients[conn].channel = None;
            self.kill(conn);
        }
        self.clear_channel(key);
        let mut channel = self.channels.remove(key);
        self.changed.channels.retain(|dirty| *dirty != key);
        self.forget_queue(channel.queue.log_mut());
        let topic = &mut self.topics[channel.topic];
        topic.channels.remove(&channel.name);
        topic.routes.retain(|route| *route != key);
        let (name, orphaned) = (topic.name.clone(), topic.channels.is_empty() && topic.name.is_ephemeral());
        if let Some(limiter) = channel.limiter {
            self.contracts.retire(LimitKey::channel(&name, &channel.name), limiter, now);
        }
        self.notify(Notice::ChannelDeleted(name, channel.name));
        self.mark_topic(channel.topic);
        if orphaned {
            self.delete_topic(channel.topic, now);
        }
    }

    /// Drops what is queued and deferred, and what is in flight.
    pub(super) fn empty_channel(&mut self, key: ChannelKey) {
        self.clear_channel(key);
        self.empty_log(QueueOwner::Channel(key));
        self.mark_topic(self.channels[key].topic); // Its records may have been on their way here.
    }

    /// The same of what is in memory.
    fn clear_channel(&mut self, key: ChannelKey) {
        let clients = self.channels[key].clients.clone();
        for conn in clients {
            self.drop_in_flight(conn);
            self.list_if_ready(conn);
        }
        let Self { channels, messages, timers, .. } = self;
        let channel = &mut channels[key];
        for queued in channel.queue.drain_memory() {
            messages.release(queued.message);
        }
        for queued in channel.deferred.drain(timers) {
            messages.release(queued.message);
        }
    }

    /// Drops what waits in the topic, for whatever reason.
    pub(super) fn empty_topic(&mut self, key: TopicKey, now: Instant) {
        self.clear_topic(key);
        self.shut_lanes(key, Rest::Drops, now);
        self.empty_log(QueueOwner::Topic(key));
        self.mark_topic(key);
    }

    /// The same of what is in memory.
    fn clear_topic(&mut self, key: TopicKey) {
        let Self { topics, messages, timers, .. } = self;
        let topic = &mut topics[key];
        for pending in topic.queue.drain_memory() {
            messages.release(pending.message);
        }
        for pending in topic.deferred.drain(timers) {
            messages.release(pending.message);
        }
        topic.staged_bytes = 0;
        let staged = std::mem::take(&mut topic.staged);
        for staged in &staged {
            messages.release(staged.pending.message);
        }
        for ack in staged.into_iter().filter_map(|staged| staged.ack) {
            self.settle_ack(ack, None);
        }
    }

    fn drop_in_flight(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        for (_, held) in client.in_flight.drain() {
            self.timers.cancel(held.timer);
            self.messages.release(held.message);
        }
        if let Some(channel) = client.channel {
            // Everything in flight of every client is dropped with it.
            self.channels[channel].in_flight = 0;
        }
    }
}
