//! How messages move: publish, token, topic, channels, clients, and back.

use std::cmp::Reverse;
use std::time::Duration;

use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::limit::Throttled;
use tidegate_wire::nsq::frame::{self, Header};

use super::admin::PublishRefused;
use super::channel::{ChannelKey, Pass};
use super::client::{Hold, InFlight, State};
use super::limiter::Mode;
use super::output::{ConnId, Output, PeerPublish};
use super::queue::{Head, MessageKey, Next, Queue, Queued};
use super::shard::{Gated, Message, QueuePolicy, Shard, ShardConfig, Timer, unref};
use super::store::BodyStore;
use super::topic::{Entrant, Passage, Pending, Staged, TopicKey};

/// What became of a publish.
pub(super) enum Published {
    Done,
    /// There is no room now; the publisher is to wait.
    Blocked,
    Refused(PublishRefused),
}

/// Messages to publish, all or none.
pub(super) struct Publish<B> {
    pub(super) bodies: B,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) defer_ns: u64,
    /// As the contract charges it.
    pub(super) arrival: Instant,
    pub(super) read: Instant,
}

/// Whether a queue takes more.
enum Room {
    Yes,
    Wait,
    Refuse(PublishRefused),
}

impl Shard {
    /// Publishes all of `publish` to `topic`, or none of it.
    #[inline]
    pub(super) fn publish<'b>(
        &mut self,
        topic: TopicKey,
        publish: Publish<impl Iterator<Item = &'b [u8]>>,
        now: Instant,
    ) -> Published {
        match self.room(topic) {
            Room::Yes => {}
            Room::Wait => return Published::Blocked,
            Room::Refuse(why) => return Published::Refused(why),
        }
        let (count, bytes) = (publish.count as u64, publish.bytes as u64);
        let entry = &mut self.topics[topic];
        entry.counts.offered += count;
        entry.counts.offered_bytes += bytes;
        let delays = match &mut entry.limiter {
            None => false,
            Some(limiter) if limiter.delays() => true,
            Some(limiter) => {
                let cost = limiter.cost_of_all(count, bytes);
                match (limiter.gate.try_pass(cost, publish.arrival), limiter.contract.mode) {
                    (Ok(()), _) => {}
                    (Err(_), Mode::Shadow) => entry.counts.shadow += count,
                    (Err(why), Mode::Enforce) => {
                        entry.counts.refused += count;
                        let burst = limiter.contract.limit.burst;
                        return Published::Refused(match why {
                            Throttled::Until(at) => {
                                PublishRefused::Throttled { retry_after: at.since(now).max(Duration::from_micros(1)) }
                            }
                            Throttled::Never => PublishRefused::ExceedsBurst { cost, burst },
                        });
                    }
                }
                false
            }
        };
        let timestamp = self.unix_ns(publish.arrival);
        let due = if publish.defer_ns > 0 { now.plus_nanos(publish.defer_ns) } else { Instant::ZERO };
        for body in publish.bodies {
            let message = self.new_message(body, timestamp, publish.arrival);
            let entrant = Entrant { pending: Pending { message, due }, read: publish.read };
            if delays {
                self.stage(topic, entrant, body.len(), publish.arrival);
            } else {
                self.admit(topic, entrant, publish.arrival, now);
            }
        }
        Published::Done
    }

    fn new_message(&mut self, body: &[u8], timestamp: i64, arrival: Instant) -> MessageKey {
        let id = frame::hex_id(self.next_id);
        self.next_id += self.config.shards as u64;
        let body = self.bodies.put(body);
        self.messages.insert(Message { id, timestamp, arrival, body, refs: 1 })
    }

    fn stage(&mut self, topic: TopicKey, entrant: Entrant, bytes: usize, arrival: Instant) {
        if let Some(limiter) = &mut self.topics[topic].limiter {
            let cost = limiter.cost(bytes);
            limiter.waiting_bytes += bytes as u64;
            limiter.staged.push(Staged { arrival, cost, entrant });
        }
        self.mark_topic(topic);
    }

    /// The message has passed the topic's contract, which let it go at `release`.
    fn admit(&mut self, topic: TopicKey, entrant: Entrant, release: Instant, now: Instant) {
        let Entrant { pending, read } = entrant;
        let message = &self.messages[pending.message];
        let (arrival, bytes) = (message.arrival, message.body.len());
        let entry = &mut self.topics[topic];
        entry.counts.admitted += 1;
        entry.counts.admitted_bytes += bytes as u64;
        if let Some(passages) = &mut entry.recording {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            passages.push(Passage { arrival, read, release, passed: now, bytes });
            if passages.len() >= TRACE_BATCH {
                let passages = std::mem::take(passages);
                self.outputs.push_back(Output::Trace(entry.name.clone(), passages));
            }
        }
        self.route(topic, pending, now);
    }

    /// Copies the message to every channel, or keeps it in the topic until that is possible.
    fn route(&mut self, topic: TopicKey, pending: Pending, now: Instant) {
        let entry = &mut self.topics[topic];
        let flows = !entry.paused && entry.started && !entry.routes.is_empty();
        if !flows || !entry.queue.is_empty() {
            self.keep_in_topic(topic, pending);
            if flows {
                self.mark_topic(topic);
            }
            return;
        }
        self.fan_out(topic, pending, now);
    }

    fn fan_out(&mut self, topic: TopicKey, pending: Pending, now: Instant) {
        let routes = self.topics[topic].routes.len();
        self.messages[pending.message].refs = u32::try_from(routes).unwrap_or(u32::MAX);
        for route in 0..routes {
            let channel = self.topics[topic].routes[route];
            self.enter(channel, pending, now);
        }
    }

    /// A message enters a channel for the first time.
    fn enter(&mut self, channel: ChannelKey, pending: Pending, now: Instant) {
        self.channels[channel].counts.messages += 1;
        let queued = Queued { message: pending.message, attempts: 0, entered: now };
        if pending.due > now {
            self.defer(channel, queued, pending.due);
        } else {
            self.enqueue(channel, queued);
        }
    }

    /// Holds a message of the channel back until `due`.
    pub(super) fn defer(&mut self, channel: ChannelKey, queued: Queued, due: Instant) {
        let message = &self.messages[queued.message];
        let timer = self.timers.insert(due, Timer::Deferred { channel, id: message.id });
        let entry = &mut self.channels[channel];
        entry.memory_bytes += message.body.len() as u64;
        entry.deferred.insert(message.id, (timer, queued));
    }

    /// Puts a message at the end of the channel's queue, in memory or, by the policy, elsewhere.
    fn enqueue(&mut self, channel: ChannelKey, queued: Queued) {
        let Self { channels, messages, bodies, config, .. } = self;
        let entry = &mut channels[channel];
        let place =
            Place { queue: &mut entry.queue, bytes: &mut entry.memory_bytes, dropped: &mut entry.counts.dropped };
        place.keep(queued, config, messages, bodies);
        self.mark_channel(channel);
    }

    /// Puts a message that was delivered before back in line. It stays in memory: what was in flight is bounded.
    pub(super) fn requeue(&mut self, channel: ChannelKey, queued: Queued) {
        let entry = &mut self.channels[channel];
        entry.memory_bytes += self.messages[queued.message].body.len() as u64;
        entry.queue.push_memory(queued);
        self.mark_channel(channel);
    }

    fn keep_in_topic(&mut self, topic: TopicKey, pending: Pending) {
        let Self { topics, messages, bodies, config, .. } = self;
        let entry = &mut topics[topic];
        let place =
            Place { queue: &mut entry.queue, bytes: &mut entry.memory_bytes, dropped: &mut entry.counts.dropped };
        // When it entered matters to nobody here; when it is due, to its channels.
        let queued = Queued { message: pending.message, attempts: 0, entered: pending.due };
        place.keep(queued, config, messages, bodies);
        self.mark_topic(topic);
    }

    /// Whether `topic` takes another publish now.
    fn room(&self, topic: TopicKey) -> Room {
        if self.draining {
            return Room::Refuse(PublishRefused::Exiting);
        }
        let entry = &self.topics[topic];
        if entry.limiter.as_ref().is_some_and(|l| l.delays() && l.waiting_bytes >= self.config.line_bytes) {
            return Room::Wait;
        }
        let flows = !entry.paused && entry.started && !entry.routes.is_empty();
        if !flows || !entry.queue.is_empty() {
            match self.queue_room(&entry.queue, entry.memory_bytes) {
                Room::Yes => {}
                other => return other,
            }
        }
        for channel in &entry.routes {
            let channel = &self.channels[*channel];
            match self.queue_room(&channel.queue, channel.memory_bytes) {
                Room::Yes => {}
                other => return other,
            }
        }
        Room::Yes
    }

    #[inline]
    fn queue_room(&self, queue: &Queue, memory_bytes: u64) -> Room {
        if queue.is_congested() {
            return Room::Wait;
        }
        let full = is_full(queue, memory_bytes, &self.config);
        match self.config.queue_policy {
            QueuePolicy::Overflow => match queue.error() {
                Some(error) if full || queue.must_spill() => {
                    Room::Refuse(PublishRefused::LogFailed { error: error.to_owned() })
                }
                _ => Room::Yes,
            },
            QueuePolicy::BackPressure if full => Room::Wait,
            QueuePolicy::Refuse if full => Room::Refuse(PublishRefused::QueueFull),
            _ => Room::Yes,
        }
    }

    /// Holds `conn` back until `topic` has room.
    pub(super) fn block(&mut self, topic: TopicKey, conn: ConnId) {
        self.clients[conn].hold = Hold::LineFull;
        self.topics[topic].blocked.push(conn);
        self.list_blocked(topic);
    }

    /// The same for a publish of another shard.
    pub(super) fn block_peer(&mut self, topic: TopicKey, peer: Box<PeerPublish>) {
        self.topics[topic].blocked_peers.push(peer);
        self.list_blocked(topic);
    }

    fn list_blocked(&mut self, topic: TopicKey) {
        if !self.blocked_topics.contains(&topic) {
            self.blocked_topics.push(topic);
        }
    }

    /// Lets publishers go on whose topic has room again.
    pub(super) fn unblock(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(topic) = self.blocked_topics.get(index).copied() {
            if matches!(self.room(topic), Room::Wait) {
                index += 1;
                continue;
            }
            self.blocked_topics.swap_remove(index);
            for conn in std::mem::take(&mut self.topics[topic].blocked) {
                self.resume(conn);
            }
            for peer in std::mem::take(&mut self.topics[topic].blocked_peers) {
                self.publish_for_peer(peer, now);
            }
        }
    }

    /// Moves what the topic holds: those in line that have their token, then what waits for channels.
    pub(super) fn drain_topic(&mut self, key: TopicKey, now: Instant) {
        self.drain_line(key, now);
        let Self { topics, channels, messages, bodies, outputs, .. } = self;
        let topic = &mut topics[key];
        let flows = !topic.paused && topic.started && !topic.routes.is_empty();
        let mut moved = Vec::new();
        if flows {
            let congested = |channels: &Slab<super::channel::Channel>| {
                topic.routes.iter().any(|c| channels[*c].queue.is_congested())
            };
            while !congested(channels) && moved.len() < MOVE_BATCH {
                let (message, due) = match topic.queue.pop() {
                    None => break,
                    Some(Next::Memory(queued)) => {
                        topic.memory_bytes -= messages[queued.message].body.len() as u64;
                        (queued.message, queued.entered)
                    }
                    Some(Next::Record(header, body)) => {
                        let body = bodies.put(body);
                        let arrival = arrival_of(&header, now, self.wall_offset);
                        let Header { id, timestamp, .. } = header;
                        (messages.insert(Message { id, timestamp, arrival, body, refs: 1 }), Instant::ZERO)
                    }
                };
                moved.push(Pending { message, due });
            }
        }
        topic.queue.commands(flows, &mut |command| outputs.push_back(Output::Log(command)));
        let more = moved.len() == MOVE_BATCH;
        for pending in moved {
            self.fan_out(key, pending, now);
        }
        if more {
            self.mark_topic(key);
        }
    }

    fn drain_line(&mut self, key: TopicKey, now: Instant) {
        let topic = &mut self.topics[key];
        let Some(limiter) = &mut topic.limiter else { return };
        if !limiter.staged.is_empty() {
            // Connections are read one after another, so their stamps come out of order; the bucket wants them merged.
            // The sort is stable: messages of one connection keep their order.
            if !limiter.staged.is_sorted_by_key(|staged| staged.arrival) {
                limiter.staged.sort_by_key(|staged| staged.arrival);
            }
            for staged in limiter.staged.drain(..) {
                // The line itself is unbounded in tokens; its bytes were checked when the publish was taken.
                if limiter.gate.push(staged.entrant, staged.cost, staged.arrival).is_err() {
                    debug_assert!(false, "a gate without a bound takes everything");
                }
            }
        }
        // A contract that no longer acts lets its line go at once, in order. One that refuses from now on does not:
        // those who wait were accepted, and go at its pace.
        let free = limiter.contract.mode == Mode::Shadow;
        loop {
            let topic = &mut self.topics[key];
            let Some(limiter) = &mut topic.limiter else { return };
            let next = if free {
                limiter.gate.drop_oldest().map(|entrant| (entrant, now))
            } else {
                limiter.gate.pop(now).map(|released| {
                    let delay = released.release.nanos_since(released.arrival);
                    topic.access_delay.record(delay, now);
                    topic.counts.delayed += u64::from(delay > 0);
                    (released.item, released.release)
                })
            };
            let Some((entrant, release)) = next else { break };
            limiter.waiting_bytes -= self.messages[entrant.pending.message].body.len() as u64;
            self.admit(key, entrant, release, now);
        }
        if let Some(limiter) = &mut self.topics[key].limiter
            && let Some(at) = limiter.gate.next_timeout()
            && limiter.waiting_until != Some(at)
        {
            limiter.waiting_until = Some(at);
            self.releases.push(Reverse((at, Gated::Topic(key))));
        }
    }

    /// Delivers what the channel has to whoever is ready.
    pub(super) fn pump(&mut self, key: ChannelKey, now: Instant) {
        let wall_offset = self.wall_offset;
        loop {
            let Self { channels, clients, messages, bodies, timers, releases, rng, .. } = self;
            let channel = &mut channels[key];
            if channel.paused {
                break;
            }
            let Some(&conn) = channel.ready.front() else { break };
            let client = &mut clients[conn];
            if !client.is_ready() {
                client.listed_ready = false;
                channel.ready.pop_front();
                continue;
            }
            let Some(head) = channel.queue.head() else { break };
            if let Some(limiter) = &mut channel.limiter {
                let (bytes, entered) = match head {
                    Head::Memory(queued) => (messages[queued.message].body.len(), queued.entered),
                    // When a record entered is not known; it could go now.
                    Head::Record { body_bytes } => (body_bytes, now),
                };
                match limiter.pass(bytes, entered, now) {
                    Pass::Since(at) => channel.access_delay.record(at.nanos_since(entered), now),
                    Pass::Shadow => channel.counts.shadow += 1,
                    Pass::Until(at) => {
                        if limiter.waiting_until != Some(at) {
                            limiter.waiting_until = Some(at);
                            releases.push(Reverse((at, Gated::Channel(key))));
                        }
                        break;
                    }
                    Pass::Never => break,
                }
            }
            let queued = match channel.queue.pop() {
                None => break,
                Some(Next::Memory(queued)) => {
                    channel.memory_bytes -= messages[queued.message].body.len() as u64;
                    queued
                }
                Some(Next::Record(header, body)) => {
                    let body = bodies.put(body);
                    let arrival = arrival_of(&header, now, wall_offset);
                    let Header { id, timestamp, attempts } = header;
                    let message = messages.insert(Message { id, timestamp, arrival, body, refs: 1 });
                    Queued { message, attempts, entered: now }
                }
            };
            // As nsqd: a sampling client eats what it does not get.
            if client.sample_rate > 0 && rng.below(100) > u64::from(client.sample_rate) {
                unref(messages, bodies, queued.message);
                continue;
            }
            let message = &messages[queued.message];
            let attempts = queued.attempts.saturating_add(1);
            let header = Header { timestamp: message.timestamp, attempts, id: message.id };
            frame::put_message(&mut client.out, &header, bodies.get(message.body));
            let due = now.plus_nanos(client.msg_timeout_ns);
            let timer = timers.insert(due, Timer::Message { conn, id: message.id });
            let in_flight = InFlight { message: queued.message, attempts, timer, delivered: now };
            client.in_flight.insert(message.id, in_flight);
            client.message_count += 1;
            channel.in_flight += 1;
            channel.counts.delivered += 1;
            if !client.dirty {
                client.dirty = true;
                self.dirty_clients.push(conn);
            }
            if channel.ready.len() > 1 {
                channel.ready.rotate_left(1);
            }
        }
        let Self { channels, outputs, .. } = self;
        let channel = &mut channels[key];
        let reader_waits = !channel.paused && !channel.ready.is_empty();
        if let Some(limiter) = &mut channel.limiter
            && (!reader_waits || channel.queue.head().is_none())
        {
            limiter.leave_line();
        }
        channel.queue.commands(reader_waits, &mut |command| outputs.push_back(Output::Log(command)));
    }

    /// Puts the client in its channel's line for messages if it may get one.
    pub(super) fn list_if_ready(&mut self, conn: ConnId) {
        let Some(client) = self.clients.get_mut(conn) else { return };
        let (Some(channel), false) = (client.channel, client.listed_ready) else { return };
        if client.is_ready() {
            client.listed_ready = true;
            self.channels[channel].ready.push_back(conn);
            self.mark_channel(channel);
        }
    }

    pub(super) fn on_message_timeout(&mut self, conn: ConnId, id: [u8; 16], now: Instant) {
        let Some(client) = self.clients.get_mut(conn) else { return };
        let Some(held) = client.in_flight.remove(&id) else { return };
        let Some(channel) = client.channel else { return };
        let entry = &mut self.channels[channel];
        entry.in_flight -= 1;
        entry.counts.timed_out += 1;
        self.requeue(channel, Queued { message: held.message, attempts: held.attempts, entered: now });
        self.list_if_ready(conn);
    }

    pub(super) fn on_deferred_due(&mut self, channel: ChannelKey, id: [u8; 16], now: Instant) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        let Some((_, queued)) = entry.deferred.remove(&id) else { return };
        entry.memory_bytes -= self.messages[queued.message].body.len() as u64;
        self.requeue(channel, Queued { entered: now, ..queued });
    }

    /// The client leaves its channel; what it held goes back in the order in which it was delivered.
    pub(super) fn leave_channel(&mut self, conn: ConnId, now: Instant) {
        let Some(client) = self.clients.get_mut(conn) else { return };
        let Some(key) = client.channel.take() else { return };
        let mut held: Vec<_> = client.in_flight.drain().map(|(id, held)| (held.delivered, id, held)).collect();
        held.sort_unstable_by_key(|(delivered, id, _)| (*delivered, *id));
        client.state = State::Dead;
        for (_, _, held) in &held {
            self.timers.cancel(held.timer);
        }
        let channel = &mut self.channels[key];
        channel.clients.retain(|member| *member != conn);
        channel.ready.retain(|member| *member != conn);
        channel.in_flight -= held.len() as u64;
        for (_, _, held) in held {
            self.requeue(key, Queued { message: held.message, attempts: held.attempts, entered: now });
        }
        let channel = &self.channels[key];
        if channel.clients.is_empty() && channel.name.is_ephemeral() {
            self.delete_channel(key, now);
        }
    }
}

/// A queue of a topic or channel with its owner's counts.
struct Place<'a> {
    queue: &'a mut Queue,
    bytes: &'a mut u64,
    dropped: &'a mut u64,
}

impl Place<'_> {
    fn keep(self, queued: Queued, config: &ShardConfig, messages: &mut Slab<Message>, bodies: &mut BodyStore) {
        let message = &messages[queued.message];
        let len = message.body.len() as u64;
        match config.queue_policy {
            QueuePolicy::Overflow if self.queue.must_spill() || is_full(self.queue, *self.bytes, config) => {
                let header = Header { timestamp: message.timestamp, attempts: queued.attempts, id: message.id };
                if !self.queue.push_log(&header, bodies.get(message.body)) {
                    *self.dropped += 1; // Ephemeral: what does not fit is not kept.
                }
                unref(messages, bodies, queued.message);
                return;
            }
            QueuePolicy::DropOldest => {
                while is_full(self.queue, *self.bytes, config)
                    && let Some(oldest) = self.queue.drop_oldest_in_memory()
                {
                    *self.bytes -= messages[oldest.message].body.len() as u64;
                    *self.dropped += 1;
                    unref(messages, bodies, oldest.message);
                }
            }
            QueuePolicy::Overflow | QueuePolicy::BackPressure | QueuePolicy::Refuse => {}
        }
        *self.bytes += len;
        self.queue.push_memory(queued);
    }
}

/// Whether a queue is at its bound. One without a log behind it holds a message at least, or nothing could ever pass.
fn is_full(queue: &Queue, memory_bytes: u64, config: &ShardConfig) -> bool {
    let most = config.mem_queue_size.max(usize::from(queue.log_id().is_none()));
    queue.memory_len() >= most || memory_bytes >= config.max_queue_bytes
}

/// Messages of a trace handed over in one go.
const TRACE_BATCH: usize = 1024;
/// Messages that move from a topic to its channels in one go.
const MOVE_BATCH: usize = 4096;

/// When a message of the log arrived, on the driver's clock; `now` if its stamp is in the future.
fn arrival_of(header: &Header, now: Instant, wall_offset: i64) -> Instant {
    let at = header.timestamp.wrapping_sub(wall_offset);
    Instant::from_nanos(u64::try_from(at).unwrap_or(0)).min(now)
}
