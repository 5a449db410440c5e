//! How messages move: line, token, topic, channels, clients, and back.

use std::cmp::Reverse;
use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_wire::nsq::frame::{self, Header};

use super::acks::{Ack, AckKey};
use super::arena::Arena;
use super::channel::{Channel, ChannelKey};
use super::client::{InFlight, State};
use super::contracts::LimitKey;
use super::limiter::Pass;
use super::messages::{MessageKey, Messages};
use super::output::{ConnId, Output};
use super::publish::is_full;
use super::publishers::PublisherNo;
use super::queue::{Head, Item, Next, Queue, Queued};
use super::queue_log::QueueLog;
use super::shard::{QueuePolicy, Shard, ShardConfig};
use super::timers::{Gated, Timer};
use super::topic::{Mark, Pending, Staged, Topic, TopicKey};
use super::trace::Passage;

impl Shard {
    pub(super) fn stage(&mut self, topic: TopicKey, staged: Staged) {
        if let Some(ack) = staged.ack {
            self.acks[ack].awaited += 1;
        }
        let entry = &mut self.topics[topic];
        entry.staged_bytes += u64::from(Queue::bytes_of(staged.pending, &self.messages));
        entry.staged.push(staged);
        self.mark_topic(topic);
    }

    /// Under a contract, a deferred message takes its token when it is due.
    pub(super) fn defer_in_topic(&mut self, topic: TopicKey, pending: Pending) {
        let id = self.messages.get(pending.message).id;
        let timer = self.timers.insert(pending.due, Timer::Deferred { of: Gated::Topic(topic), id });
        let twin = self.topics[topic].deferred.insert(timer, pending, &self.messages);
        debug_assert!(twin.is_none(), "a new message has a new id");
    }

    pub(super) fn on_topic_deferred_due(&mut self, topic: TopicKey, id: [u8; 16], now: Instant) {
        let Some(entry) = self.topics.get_mut(topic) else { return };
        let Some(pending) = entry.deferred.remove(&id, &self.messages) else { return };
        self.stage(topic, Staged { pending, arrival: now, ack: None });
    }

    /// A message comes to the end of the topic's line; it goes through if nothing is before it and nothing holds it.
    pub(super) fn enter_topic(&mut self, topic: TopicKey, pending: Pending, ack: Option<AckKey>, now: Instant) {
        let entry = &self.topics[topic];
        if entry.flows() && entry.queue.is_empty() {
            let message = self.messages.get(pending.message);
            let (bytes, arrival) = (message.body_bytes(), pending.in_line_since(message.arrival, now));
            if let Some(release) = self.token_of(topic, bytes, arrival, now) {
                self.leave_topic(topic, pending, release, ack, now);
                return;
            }
        }
        self.keep_in_topic(topic, pending, ack);
    }

    /// When the head of the topic's line, which nothing but tokens holds, got its tokens; `None` if it has not.
    #[inline]
    fn token_of(&mut self, topic: TopicKey, bytes: usize, arrival: Instant, now: Instant) -> Option<Instant> {
        let entry = &mut self.topics[topic];
        let Some(limiter) = &mut entry.limiter else { return Some(arrival) };
        match limiter.pass(bytes, arrival, now) {
            Pass::Released { since, release } => {
                let delay = release.nanos_since(since);
                entry.access_delay.record(delay, now);
                entry.counts.delayed += u64::from(delay > 0);
                Some(release)
            }
            Pass::Free { shadow_delay_ns } => {
                entry.counts.shadow += u64::from(shadow_delay_ns > 0);
                Some(now)
            }
            Pass::Until(at) => {
                if limiter.waiting_until != Some(at) {
                    limiter.waiting_until = Some(at);
                    self.releases.push(Reverse((at, Gated::Topic(topic))));
                }
                None
            }
            Pass::Never => None,
        }
    }

    /// The message passed the topic's contract, which let it go at `release`, or came when there was none.
    pub(super) fn admit(&mut self, topic: TopicKey, pending: Pending, release: Instant, now: Instant) {
        let message = self.messages.get(pending.message);
        let (arrival, bytes) = (message.arrival, message.body_bytes());
        let entry = &mut self.topics[topic];
        entry.counts.admitted += 1;
        entry.counts.admitted_bytes += bytes as u64;
        if let Some(recording) = &mut entry.recording {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let publisher = entry
                .watch
                .as_mut()
                .map_or(0, |watch| watch.publishers_mut().trace_number(pending.mark.publisher(), recording));
            let passage = Passage { arrival, read: pending.read, release, passed: now.max(release), bytes, publisher };
            if let Some(traced) = recording.push(passage) {
                self.outputs.push_back(Output::Trace(entry.name.clone(), traced));
            }
        }
    }

    /// The message leaves the topic, whose contract let it go at `release`: every channel gets it.
    pub(super) fn leave_topic(
        &mut self,
        topic: TopicKey,
        pending: Pending,
        release: Instant,
        ack: Option<AckKey>,
        now: Instant,
    ) {
        if !pending.mark.is_admitted() {
            self.admit(topic, pending, release, now);
        }
        let entry = &self.topics[topic];
        let routes = entry.routes.len();
        self.messages.share(pending.message, routes);
        for route in 0..routes {
            let channel = self.topics[topic].routes[route];
            self.enter_channel(channel, pending, ack, now);
        }
    }

    /// A message enters a channel for the first time.
    fn enter_channel(&mut self, channel: ChannelKey, pending: Pending, ack: Option<AckKey>, now: Instant) {
        self.channels[channel].counts.messages += 1;
        let queued = Queued { message: pending.message, attempts: 0, entered: now };
        if pending.due > now {
            self.defer(channel, queued, pending.due);
            return;
        }
        self.keep_in_channel(channel, queued, ack);
    }

    /// Puts a message at the end of the channel's queue.
    fn keep_in_channel(&mut self, channel: ChannelKey, queued: Queued, ack: Option<AckKey>) {
        let Self { channels, messages, config, acks, .. } = self;
        let entry = &mut channels[channel];
        let kept = keep(&mut entry.queue, queued, config, messages, &mut entry.counts.dropped);
        note_ack(kept, &mut entry.queue, ack, acks);
        self.mark_channel(channel);
    }

    /// Holds a message of the channel back until `due`.
    pub(super) fn defer(&mut self, channel: ChannelKey, queued: Queued, due: Instant) {
        let id = self.messages.get(queued.message).id;
        let timer = self.timers.insert(due, Timer::Deferred { of: Gated::Channel(channel), id });
        let twin = self.channels[channel].deferred.insert(timer, queued, &self.messages);
        if let Some((timer, twin)) = twin {
            self.timers.cancel(timer);
            self.messages.release(twin.message);
        }
    }

    /// Puts a message that was delivered before back in line: where memory is full, into the log, as what comes anew. Where
    /// there is none it stays in memory, since what was in flight is bounded.
    pub(super) fn requeue(&mut self, channel: ChannelKey, queued: Queued) {
        let entry = &mut self.channels[channel];
        let is_in_log = entry.queue.log().is_some()
            && self.config.queue_policy == QueuePolicy::Overflow
            && is_full(&entry.queue, &self.config);
        if is_in_log {
            self.keep_in_channel(channel, queued, None);
        } else {
            entry.queue.push_memory(queued, &self.messages);
            self.mark_channel(channel);
        }
    }

    pub(super) fn keep_in_topic(&mut self, topic: TopicKey, pending: Pending, ack: Option<AckKey>) {
        let Self { topics, messages, config, acks, .. } = self;
        let entry = &mut topics[topic];
        let kept = keep(&mut entry.queue, pending, config, messages, &mut entry.counts.dropped);
        note_ack(kept, &mut entry.queue, ack, acks);
        self.mark_topic(topic);
    }

    // Topics to channels.

    /// Whether the channels of `topic` take a message that is due at `due`: the log keeps up, and there is room in
    /// memory where the policy does not spill.
    pub(super) fn channels_take(&self, topic: TopicKey, due: Instant, now: Instant) -> bool {
        let config = &self.config;
        self.topics[topic].routes.iter().all(|channel| {
            let channel = &self.channels[*channel];
            let bounded = matches!(config.queue_policy, QueuePolicy::BackPressure | QueuePolicy::Refuse);
            let held_up =
                channel.queue.log().is_some_and(QueueLog::is_congested) || (bounded && is_full(&channel.queue, config));
            !held_up && (due <= now || channel.deferred.bytes() < config.max_queue_bytes)
        })
    }

    /// Moves what the topic holds: those in line that have their token, then what came in this batch.
    pub(super) fn drain_topic(&mut self, key: TopicKey, now: Instant) {
        self.settle_loans(now);
        let flows = self.topics[key].flows();
        if flows {
            self.drain_line(key, now);
        } else if let Some(limiter) = &mut self.topics[key].limiter {
            limiter.hold_up();
        }
        self.enter_staged(key, now);
        let Self { topics, channels, contracts, outputs, .. } = self;
        let topic = &mut topics[key];
        topic.note_backlog(now);
        if topic.queue.bytes() < self.config.line_bytes || !flows {
            // What gathers in a pause may be more than a line; it leaves at its pace, and so much may come in.
            topic.line_bytes_max = self.config.line_bytes.max(topic.queue.bytes());
        }
        topic.queue.commands(flows, &mut |command| outputs.push_back(Output::Log(command)));
        if topic.queue.is_empty()
            && let Some(limiter) = &mut topic.limiter
        {
            limiter.pace(0); // What came under an earlier contract has gone, or was dropped.
        }
        Self::move_on(topic, channels, outputs);
        // What it lent comes back to it first.
        if let Some(limiter) = topic.limiter.take_if(|limiter| limiter.has_retired() && limiter.is_unlent()) {
            contracts.retire(LimitKey::topic(&topic.name), limiter, now);
            self.mark_topic(key);
        }
        if self.laning.is_some() {
            self.review_lanes(key, now);
            self.look_for_shares(key, now);
        }
        self.look_for_loans(key, now);
    }

    /// What left the topic's log for those of its channels is advanced over once they have it: a crash between the two
    /// delivers it again and loses nothing.
    fn move_on(topic: &mut Topic, channels: &Arena<Channel>, outputs: &mut VecDeque<Output>) {
        let Some(log) = topic.queue.log_mut() else { return };
        let log_of = |channel: ChannelKey| channels.get(channel).and_then(|channel| channel.queue.log());
        if log.begin_move() {
            let pushed = topic.routes.iter().filter_map(|key| Some((*key, log_of(*key)?.pushed())));
            topic.moving.extend(pushed);
        }
        topic.moving.retain(|(key, pushed)| log_of(*key).is_some_and(|log| !log.has_confirmed(*pushed)));
        if topic.moving.is_empty() {
            log.end_move(&mut |command| outputs.push_back(Output::Log(command)));
        }
    }

    fn drain_line(&mut self, key: TopicKey, now: Instant) {
        loop {
            let topic = &mut self.topics[key];
            let head = topic.queue.head();
            let (bytes, arrival, due) = match head {
                Some(Head::Memory(pending)) => {
                    let message = self.messages.get(pending.message);
                    (message.body_bytes(), pending.in_line_since(message.arrival, now), pending.due)
                }
                // When it came does not matter: nothing was taken since the read that brought it here, or the record
                // before it left.
                Some(Head::Record { body_bytes }) => (body_bytes, Instant::ZERO, Instant::ZERO),
                None => {
                    if !topic.queue.is_empty()
                        && let Some(limiter) = &mut topic.limiter
                    {
                        limiter.hold_up(); // The log is being read.
                    }
                    return;
                }
            };
            if !self.channels_take(key, due, now) {
                if let Some(limiter) = &mut self.topics[key].limiter {
                    limiter.hold_up();
                }
                self.list_blocked(key);
                return;
            }
            let Some(release) = self.token_of(key, bytes, arrival, now) else { return };
            let Self { topics, messages, wall_offset, .. } = self;
            let topic = &mut topics[key];
            if let Some(host) = &mut topic.host {
                host.on_popped();
            }
            let pending = match topic.queue.pop() {
                None => return,
                Some(Next::Memory(pending)) => pending,
                Some(Next::Record(header, body)) => {
                    let arrival = arrival_of(&header, now, *wall_offset);
                    let message = messages.insert(header.id, header.timestamp, arrival, body);
                    // Without a contract it counted when it came.
                    let mark = match &topic.limiter {
                        None => Mark::admitted(PublisherNo::UNKNOWN),
                        Some(_) => Mark::in_line(PublisherNo::UNKNOWN),
                    };
                    Pending { message, due: Instant::ZERO, read: now, mark }
                }
            };
            self.leave_topic(key, pending, release, None, now);
        }
    }

    /// Puts the arrivals of this batch in line.
    pub(super) fn enter_staged(&mut self, key: TopicKey, now: Instant) {
        let topic = &mut self.topics[key];
        if topic.staged.is_empty() {
            return;
        }
        // Connections are read one after another, so their stamps come out of order; the bucket wants them merged. The
        // sort is stable: messages of one connection keep their order.
        if !topic.staged.is_sorted_by_key(|staged| staged.arrival) {
            topic.staged.sort_by_key(|staged| staged.arrival);
        }
        topic.staged_bytes = 0;
        let mut arrivals = std::mem::take(&mut topic.staged);
        for staged in arrivals.drain(..) {
            self.enter_topic(key, staged.pending, staged.ack, now);
            if let Some(ack) = staged.ack {
                self.settle_ack(ack, None);
            }
        }
        self.topics[key].staged = arrivals;
    }

    // Channels to clients.

    /// Delivers what the channel has to whoever is ready.
    pub(super) fn pump(&mut self, key: ChannelKey, now: Instant) {
        let wall_offset = self.wall_offset;
        loop {
            let Self { channels, clients, messages, timers, releases, rng, .. } = self;
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
                    Head::Memory(queued) => (messages.get(queued.message).body_bytes(), queued.entered),
                    Head::Record { body_bytes } => (body_bytes, Instant::ZERO),
                };
                match limiter.pass(bytes, entered, now) {
                    Pass::Released { since, release } => channel.access_delay.record(release.nanos_since(since), now),
                    Pass::Free { shadow_delay_ns } => channel.counts.shadow += u64::from(shadow_delay_ns > 0),
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
                Some(Next::Memory(queued)) => queued,
                Some(Next::Record(header, body)) => {
                    let arrival = arrival_of(&header, now, wall_offset);
                    let message = messages.insert(header.id, header.timestamp, arrival, body);
                    Queued { message, attempts: header.attempts, entered: now }
                }
            };
            // As nsqd: a sampling client eats what it does not get.
            if client.sample_rate > 0 && rng.below(100) > u64::from(client.sample_rate) {
                messages.release(queued.message);
                continue;
            }
            let attempts = queued.attempts.saturating_add(1);
            let message = messages.get(queued.message);
            frame::put_message(&mut client.out, &message.header(attempts), messages.body(queued.message));
            let due = now.plus_nanos(client.msg_timeout_ns);
            let timer = timers.insert(due, Timer::Message { conn, id: message.id });
            let in_flight = InFlight { message: queued.message, attempts, timer, delivered: now };
            channel.in_flight += 1;
            if let Some(twin) = client.in_flight.insert(message.id, in_flight) {
                // A crash left the message in the log twice: one answer is for both copies.
                timers.cancel(twin.timer);
                messages.release(twin.message);
                channel.in_flight -= 1;
            }
            client.message_count += 1;
            channel.counts.delivered += 1;
            if !client.dirty {
                client.dirty = true;
                self.changed.clients.push(conn);
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
            limiter.hold_up();
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
        let (Some(held), Some(channel)) = (client.in_flight.get_mut(&id), client.channel) else { return };
        if client.hold.is_ours() && client.state != State::Dead {
            // Its answer may be in the bytes that are not read while it is held back here.
            let due = now.plus_nanos(client.msg_timeout_ns);
            held.timer = self.timers.insert(due, Timer::Message { conn, id });
            return;
        }
        let queued = Queued { message: held.message, attempts: held.attempts, entered: now };
        client.in_flight.remove(&id);
        let entry = &mut self.channels[channel];
        entry.in_flight -= 1;
        entry.counts.timed_out += 1;
        self.requeue(channel, queued);
        self.list_if_ready(conn);
    }

    pub(super) fn on_deferred_due(&mut self, channel: ChannelKey, id: [u8; 16], now: Instant) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        let Some(queued) = entry.deferred.remove(&id, &self.messages) else { return };
        let topic = entry.topic;
        self.keep_in_channel(channel, Queued { entered: now, ..queued }, None);
        self.mark_topic(topic); // It may wait for room among the deferred.
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

/// Where a message was put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Memory,
    Log,
    /// The queue is full, and nothing is behind it.
    Dropped,
}

/// Puts a message at the end of a queue, in memory or, by the policy, elsewhere.
fn keep<T: Item>(
    queue: &mut Queue<T>,
    item: T,
    config: &ShardConfig,
    messages: &mut Messages,
    dropped: &mut u64,
) -> Kept {
    match config.queue_policy {
        QueuePolicy::Overflow if queue.must_spill() || is_full(queue, config) => {
            let message = messages.get(item.message());
            let kept = if let Some(log) = queue.log_mut() {
                log.push(&message.header(item.attempts()), messages.body(item.message()));
                Kept::Log
            } else {
                *dropped += 1; // Ephemeral: what does not fit is not kept.
                Kept::Dropped
            };
            messages.release(item.message());
            return kept;
        }
        QueuePolicy::DropOldest => {
            while is_full(queue, config)
                && let Some(oldest) = queue.drop_oldest_in_memory()
            {
                *dropped += 1;
                messages.release(oldest.message());
            }
        }
        QueuePolicy::Overflow | QueuePolicy::BackPressure | QueuePolicy::Refuse => {}
    }
    queue.push_memory(item, messages);
    Kept::Memory
}

/// The publish waits for what was put into the log.
fn note_ack<T: Item>(kept: Kept, queue: &mut Queue<T>, ack: Option<AckKey>, acks: &mut Arena<Ack>) {
    if kept == Kept::Log
        && let (Some(ack), Some(log)) = (ack, queue.log_mut())
        && log.await_pushed(ack)
    {
        acks[ack].awaited += 1;
    }
}

/// When a message of the log arrived, on the driver's clock; `now` if its stamp is in the future.
fn arrival_of(header: &Header, now: Instant, wall_offset: i64) -> Instant {
    let at = header.timestamp.wrapping_sub(wall_offset);
    Instant::from_nanos(u64::try_from(at).unwrap_or(0)).min(now)
}

/// A message on its way to the log that a stopping shard writes all at once.
pub(super) fn write_all<T: Item>(queue: &mut Queue<T>, left: Vec<T>, messages: &mut Messages) {
    for item in left {
        let message: MessageKey = item.message();
        // A queue without a log belongs to something ephemeral: it ends with the broker.
        if let Some(log) = queue.log_mut() {
            log.push(&messages.get(message).header(item.attempts()), messages.body(message));
        }
        messages.release(message);
    }
}
