//! One shard: the connections, topics and channels that live on one thread.
//!
//! The driver tells it what arrived with the `on_*` methods, calls [`Shard::end_batch`] when it has told it everything
//! that one wake-up brought, carries out [`Shard::poll_output`] until `None`, and writes the output of
//! [`Shard::next_dirty`] connections to their sockets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::estimate::window::{WindowConfig, WindowedHistogram};
use tidegate_core::rng::Rng;
use tidegate_core::time::nanos;
use tidegate_core::timer_wheel::TimerWheel;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::Pause;
use super::channel::{Channel, ChannelCounts, ChannelKey, ChannelLimiter};
use super::client::{About, Client, Hold, InFlightMap, State};
use super::limiter::{Contract, Source};
use super::log::{LogCommand, LogEvent, QueueId};
use super::output::{ConnId, Migrant, Notice, Output};
use super::queue::{MessageKey, Queue};
use super::store::{Body, BodyStore};
use super::topic::{Topic, TopicCounts, TopicKey, TopicLimiter};

/// Timers are exact to this.
const TICK: Duration = Duration::from_millis(1);
/// A failed append is tried again after this.
const LOG_RETRY: Duration = Duration::from_millis(250);
/// What a queue does when it is at its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueuePolicy {
    /// The rest goes to the log on disk, as in nsqd.
    #[default]
    Overflow,
    /// The publisher's connection is not read until there is room.
    BackPressure,
    /// Publishes are refused with an error.
    Refuse,
    /// The oldest message is dropped.
    DropOldest,
}

/// What a shard needs to know; already checked.
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// This shard's number.
    pub shard: usize,
    /// How many there are.
    pub shards: usize,
    /// nsqd's `--node-id`, 0 to 1023.
    pub node_id: u16,
    /// What IDENTIFY tells clients.
    pub version: String,
    /// Bytes of one message at most.
    pub max_msg_size: usize,
    /// Bytes of one command body at most.
    pub max_body_size: usize,
    /// RDY at most.
    pub max_rdy_count: u32,
    /// A delivered message must be answered within this, unless the client asks otherwise.
    pub msg_timeout: Duration,
    /// and never later than this, however often it is touched.
    pub max_msg_timeout: Duration,
    /// DPUB and REQ may defer this long.
    pub max_req_timeout: Duration,
    /// Heartbeat interval unless the client asks otherwise.
    pub heartbeat: Duration,
    /// The longest it may ask for.
    pub max_heartbeat: Duration,
    /// What IDENTIFY accepts and answers; Tidegate flushes when the ready queue runs dry whatever was negotiated.
    pub output_buffer: OutputBuffer,
    /// TLS can be negotiated.
    pub tls: bool,
    /// Every command but IDENTIFY needs TLS.
    pub tls_required: bool,
    /// Snappy can be negotiated.
    pub snappy: bool,
    /// Deflate can be negotiated, up to this level.
    pub deflate: Option<u32>,
    /// Clients must AUTH.
    pub auth: bool,
    /// Subscribers of a channel at most; 0 is no bound.
    pub max_channel_consumers: usize,
    /// Messages in memory for each topic and each channel.
    pub mem_queue_size: usize,
    /// Bytes in memory for each topic and each channel.
    pub max_queue_bytes: u64,
    /// What happens at the two bounds above.
    pub queue_policy: QueuePolicy,
    /// Bytes that may wait in line for the tokens of one topic; above it publishers are not read.
    pub line_bytes: u64,
    /// A new topic waits until nsqlookupd has named its channels.
    pub topics_wait_for_start: bool,
    /// End-to-end quantiles for nsqd's stats, 0 to 1.
    pub e2e_percentiles: Vec<f64>,
    /// How far they look back.
    pub e2e_window: Duration,
    /// Seed of the sampling.
    pub seed: u64,
}

/// Bounds of IDENTIFY's output buffer options.
#[derive(Clone, Copy, Debug)]
pub struct OutputBuffer {
    /// Default size, bytes.
    pub size: u32,
    /// Largest size, bytes.
    pub size_max: u32,
    /// Default time-out.
    pub timeout: Duration,
    /// Shortest time-out.
    pub timeout_min: Duration,
    /// Longest time-out.
    pub timeout_max: Duration,
}

/// A message, held once however many channels it is in.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: [u8; 16],
    pub(super) timestamp: i64,
    pub(super) arrival: Instant,
    pub(super) body: Body,
    pub(super) refs: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// A delivered message was not answered.
    Message {
        conn: ConnId,
        id: [u8; 16],
    },
    /// A deferred message is due.
    Deferred {
        channel: ChannelKey,
        id: [u8; 16],
    },
    Heartbeat(ConnId),
    /// A failed append is tried again.
    LogRetry(QueueId),
}

/// Who waits for a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Gated {
    Topic(TopicKey),
    Channel(ChannelKey),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum QueueOwner {
    Topic(TopicKey),
    Channel(ChannelKey),
    /// Deleted; its last event is awaited.
    Nobody,
}

/// A shard. See the [module](self).
pub struct Shard {
    pub(super) config: ShardConfig,
    pub(super) clients: Slab<Client>,
    pub(super) topics: Slab<Topic>,
    pub(super) topics_by_name: HashMap<TopicName, TopicKey, RandomState>,
    pub(super) channels: Slab<Channel>,
    pub(super) messages: Slab<Message>,
    pub(super) bodies: BodyStore,
    pub(super) queues: Slab<QueueOwner>,
    pub(super) timers: TimerWheel<Timer>,
    pub(super) releases: BinaryHeap<Reverse<(Instant, Gated)>>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) dirty_clients: Vec<ConnId>,
    pub(super) dirty_topics: Vec<TopicKey>,
    pub(super) dirty_channels: Vec<ChannelKey>,
    /// Topics whose publishers are held back.
    pub(super) blocked_topics: Vec<TopicKey>,
    /// Contracts by name, for topics and channels that come to be later, too.
    pub(super) topic_contracts: BTreeMap<TopicName, (Contract, Source)>,
    pub(super) channel_contracts: BTreeMap<(TopicName, ChannelName), (Contract, Source)>,
    pub(super) rng: Rng,
    pub(super) serials: u64,
    pub(super) next_id: u64,
    /// Unix time minus the driver's clock, ns.
    pub(super) wall_offset: i64,
    pub(super) log_error: Option<String>,
    pub(super) draining: bool,
}

/// Ten slots: the window is at most a tenth shorter than configured, and a channel that is used costs 25 KiB.
fn e2e_histogram(window: Duration) -> WindowedHistogram {
    let slot = (window / 10).max(Duration::from_nanos(1));
    WindowedHistogram::new(WindowConfig { slots: 10, slot })
}

impl Shard {
    /// A shard without topics. `unix_ns` is the wall clock at `now`.
    #[must_use]
    pub fn new(config: ShardConfig, now: Instant, unix_ns: i64) -> Self {
        // Eighths of a microsecond since 2020: ids of one node do not repeat across restarts below 8 million messages a
        // second, and the ten bits above them are the node's.
        const EPOCH_2020_NS: i64 = 1_577_836_800_000_000_000;
        let ticks = u64::try_from((unix_ns - EPOCH_2020_NS).max(0) / 125).unwrap_or(0) & ((1 << 54) - 1);
        let shards = config.shards as u64;
        let next_id = (u64::from(config.node_id) << 54) | (ticks / shards * shards + config.shard as u64);
        let mut shard = Self {
            rng: Rng::new(config.seed ^ config.shard as u64),
            config,
            clients: Slab::new(),
            topics: Slab::new(),
            topics_by_name: HashMap::default(),
            channels: Slab::new(),
            messages: Slab::new(),
            bodies: BodyStore::default(),
            queues: Slab::new(),
            timers: TimerWheel::new(TICK, now),
            releases: BinaryHeap::new(),
            outputs: VecDeque::new(),
            dirty_clients: Vec::new(),
            dirty_topics: Vec::new(),
            dirty_channels: Vec::new(),
            blocked_topics: Vec::new(),
            topic_contracts: BTreeMap::new(),
            channel_contracts: BTreeMap::new(),
            serials: 0,
            next_id,
            wall_offset: 0,
            log_error: None,
            draining: false,
        };
        shard.set_wall_clock(now, unix_ns);
        shard
    }

    /// The wall clock stands at `unix_ns` when the driver's stands at `now`. Only messages' time stamps follow it.
    pub fn set_wall_clock(&mut self, now: Instant, unix_ns: i64) {
        self.wall_offset = unix_ns.wrapping_sub(now.as_nanos().cast_signed());
    }

    pub(super) fn unix_ns(&self, at: Instant) -> i64 {
        at.as_nanos().cast_signed().wrapping_add(self.wall_offset)
    }

    // Connections.

    /// A connection was accepted.
    pub fn on_connect(&mut self, remote_address: String, now: Instant) -> ConnId {
        self.serials += 1;
        let host = remote_address.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
        let connected_unix_s = self.unix_ns(now) / 1_000_000_000;
        let heartbeat_ns = nanos(self.config.heartbeat);
        let conn = self.clients.insert(Client {
            serial: self.serials,
            state: State::Greeting,
            hold: Hold::Free,
            out: Vec::new(),
            dirty: false,
            listed_ready: false,
            stamped: false,
            tls: false,
            sample_rate: 0,
            ready: 0,
            in_flight: InFlightMap::default(),
            topic: None,
            channel: None,
            last_pub: None,
            heartbeat_ns,
            heartbeat: None,
            last_heard: now,
            msg_timeout_ns: nanos(self.config.msg_timeout),
            message_count: 0,
            finish_count: 0,
            requeue_count: 0,
            about: Box::new(About {
                remote_address,
                client_id: host.clone(),
                hostname: host,
                connected_unix_s,
                ..About::default()
            }),
        });
        self.arm_heartbeat(conn, now);
        conn
    }

    /// The connection is gone, whoever closed it. What it had in flight goes back to its channel at once.
    pub fn on_disconnect(&mut self, conn: ConnId, now: Instant) {
        self.leave_channel(conn, now);
        let Some(client) = self.clients.try_remove(conn) else { return };
        // Its number may be taken again before the driver comes to them.
        self.outputs.retain(|output| output.connection() != Some(conn));
        if let Some(key) = client.heartbeat {
            self.timers.cancel(key);
        }
        if client.hold == Hold::LineFull {
            for topic in &self.blocked_topics {
                self.topics[*topic].blocked.retain(|blocked| *blocked != conn);
            }
        }
        if client.dirty {
            self.dirty_clients.retain(|dirty| *dirty != conn);
        }
    }

    /// Takes a connection out of this shard without closing it; its driver hands it to [`Shard::adopt`] of another.
    pub fn take(&mut self, conn: ConnId) -> Migrant {
        let mut client = self.clients.remove(conn);
        if let Some(key) = client.heartbeat.take() {
            self.timers.cancel(key);
        }
        if client.dirty {
            self.dirty_clients.retain(|dirty| *dirty != conn);
            client.dirty = false;
        }
        client.last_pub = None;
        client.stamped = false;
        Migrant(Box::new(client))
    }

    /// Takes over a connection; its unread bytes are to be given to [`Shard::on_bytes`] next.
    pub fn adopt(&mut self, migrant: Migrant, now: Instant) -> ConnId {
        let mut client = *migrant.0;
        self.serials += 1;
        client.serial = self.serials;
        client.hold = Hold::Free;
        let has_output = !client.out.is_empty();
        let conn = self.clients.insert(client);
        if has_output {
            self.mark_client(conn);
        }
        self.arm_heartbeat(conn, now);
        conn
    }

    /// The next connection with output to write, each once; call until `None`.
    pub fn next_dirty(&mut self) -> Option<ConnId> {
        let conn = self.dirty_clients.pop()?;
        self.clients[conn].dirty = false;
        Some(conn)
    }

    /// Bytes for the connection's socket. The driver removes what it has written and calls [`Shard::on_written`].
    pub fn output_of(&mut self, conn: ConnId) -> &mut Vec<u8> {
        &mut self.clients[conn].out
    }

    /// Output was written: the client may get more.
    pub fn on_written(&mut self, conn: ConnId) {
        self.list_if_ready(conn);
    }

    /// True if the connection's bytes are wanted; if not, [`Output::Resume`] says when.
    #[must_use]
    pub fn wants_bytes(&self, conn: ConnId) -> bool {
        self.clients.get(conn).is_some_and(|client| client.hold == Hold::Free && client.state != State::Dead)
    }

    /// Tells one connection from another that had the same number.
    #[must_use]
    pub fn serial_of(&self, conn: ConnId) -> Option<u64> {
        self.clients.get(conn).map(|client| client.serial)
    }

    /// A connection's remote address, and whether it speaks TLS.
    #[must_use]
    pub fn peer_of(&self, conn: ConnId) -> (String, bool) {
        self.clients.get(conn).map_or_else(Default::default, |client| (client.about.remote_address.clone(), client.tls))
    }

    /// Why the log cannot be written, while it cannot.
    #[must_use]
    pub fn log_error(&self) -> Option<&str> {
        self.log_error.as_deref()
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.clients.len()
    }

    fn arm_heartbeat(&mut self, conn: ConnId, now: Instant) {
        let client = &mut self.clients[conn];
        if let Some(key) = client.heartbeat.take() {
            self.timers.cancel(key);
        }
        if client.heartbeat_ns > 0 {
            client.heartbeat = Some(self.timers.insert(now.plus_nanos(client.heartbeat_ns), Timer::Heartbeat(conn)));
        }
    }

    /// Changes the interval; 0 turns heartbeats off.
    pub(super) fn set_heartbeat(&mut self, conn: ConnId, interval_ns: u64, now: Instant) {
        self.clients[conn].heartbeat_ns = interval_ns;
        self.arm_heartbeat(conn, now);
    }

    fn on_heartbeat(&mut self, conn: ConnId, now: Instant) {
        let client = &mut self.clients[conn];
        client.heartbeat = None;
        if now.nanos_since(client.last_heard) >= 2 * client.heartbeat_ns
            && matches!(client.hold, Hold::Free | Hold::Upgrading)
        {
            // Those that we hold back ourselves cannot be heard.
            self.kill(conn);
            return;
        }
        if client.state != State::Greeting {
            tidegate_wire::nsq::frame::put_response(&mut client.out, b"_heartbeat_");
            self.mark_client(conn);
        }
        self.arm_heartbeat(conn, now);
    }

    /// Closes the connection after what is in its output.
    pub(super) fn kill(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        if client.state != State::Dead {
            client.state = State::Dead;
            self.outputs.push_back(Output::Close(conn));
        }
    }

    pub(super) fn mark_client(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        if !client.dirty {
            client.dirty = true;
            self.dirty_clients.push(conn);
        }
    }

    pub(super) fn mark_topic(&mut self, topic: TopicKey) {
        let entry = &mut self.topics[topic];
        if !entry.dirty {
            entry.dirty = true;
            self.dirty_topics.push(topic);
        }
    }

    pub(super) fn mark_channel(&mut self, channel: ChannelKey) {
        let entry = &mut self.channels[channel];
        if !entry.dirty {
            entry.dirty = true;
            self.dirty_channels.push(channel);
        }
    }

    // Topics and channels.

    /// The topic called `name`, created if need be.
    pub(super) fn topic(&mut self, name: &TopicName, now: Instant) -> TopicKey {
        if let Some(key) = self.topics_by_name.get(name) {
            return *key;
        }
        let entry = self.topics.vacant_entry();
        let key = entry.key();
        let queue = if name.is_ephemeral() {
            Queue::in_memory()
        } else {
            let id = self.queues.insert(QueueOwner::Topic(key));
            let (queue, open) = Queue::with_log(queue_id(id), name.to_string());
            self.outputs.push_back(Output::Log(open));
            queue
        };
        let limiter =
            self.topic_contracts.get(name).map(|(contract, source)| TopicLimiter::new(*contract, *source, now));
        entry.insert(Topic {
            name: name.clone(),
            channels: BTreeMap::new(),
            routes: Vec::new(),
            queue,
            paused: false,
            started: !self.config.topics_wait_for_start,
            limiter,
            blocked: Vec::new(),
            blocked_peers: Vec::new(),
            memory_bytes: 0,
            counts: TopicCounts::default(),
            access_delay: WindowedHistogram::new(WindowConfig::default()),
            recording: None,
            dirty: false,
        });
        self.topics_by_name.insert(name.clone(), key);
        self.outputs.push_back(Output::Notice(Notice::TopicCreated(name.clone())));
        key
    }

    /// The channel of `topic` called `name`, created if need be.
    pub(super) fn channel(&mut self, topic: TopicKey, name: &ChannelName, now: Instant) -> ChannelKey {
        if let Some(key) = self.topics[topic].channels.get(name) {
            return *key;
        }
        let topic_name = self.topics[topic].name.clone();
        let entry = self.channels.vacant_entry();
        let key = entry.key();
        let queue = if name.is_ephemeral() || topic_name.is_ephemeral() {
            Queue::in_memory()
        } else {
            let id = self.queues.insert(QueueOwner::Channel(key));
            let (queue, open) = Queue::with_log(queue_id(id), format!("{topic_name}:{name}"));
            self.outputs.push_back(Output::Log(open));
            queue
        };
        let contract = self.channel_contracts.get(&(topic_name.clone(), name.clone()));
        let limiter = contract.map(|(contract, source)| ChannelLimiter::new(*contract, *source, now));
        entry.insert(Channel {
            name: name.clone(),
            topic,
            queue,
            paused: false,
            limiter,
            clients: Vec::new(),
            ready: VecDeque::new(),
            deferred: HashMap::default(),
            in_flight: 0,
            memory_bytes: 0,
            counts: ChannelCounts::default(),
            access_delay: WindowedHistogram::new(WindowConfig::default()),
            end_to_end: WindowedHistogram::new(WindowConfig::default()),
            e2e: (!self.config.e2e_percentiles.is_empty()).then(|| e2e_histogram(self.config.e2e_window)),
            dirty: false,
        });
        self.topics[topic].channels.insert(name.clone(), key);
        self.topics[topic].routes.push(key);
        self.outputs.push_back(Output::Notice(Notice::ChannelCreated(topic_name, name.clone())));
        // What the topic kept for its first channel flows now.
        self.mark_topic(topic);
        key
    }

    /// Brings back a topic and its channels as an earlier run left them.
    pub fn restore(&mut self, name: &TopicName, pause: Pause, channels: &[(ChannelName, Pause)], now: Instant) {
        let topic = self.topic(name, now);
        self.topics[topic].paused = pause == Pause::Paused;
        self.topics[topic].started = true;
        for (channel, pause) in channels {
            let channel = self.channel(topic, channel, now);
            self.channels[channel].paused = *pause == Pause::Paused;
        }
    }

    pub(super) fn delete_topic(&mut self, key: TopicKey, now: Instant) {
        let channels: Vec<_> = self.topics[key].channels.values().copied().collect();
        for channel in channels {
            self.delete_channel(channel, now);
        }
        if !self.topics.contains(key) {
            return; // An ephemeral topic went with its last channel.
        }
        let mut topic = self.topics.remove(key);
        self.topics_by_name.remove(&topic.name);
        self.dirty_topics.retain(|dirty| *dirty != key);
        self.blocked_topics.retain(|blocked| *blocked != key);
        for queued in topic.queue.drain_memory() {
            unref(&mut self.messages, &mut self.bodies, queued.message);
        }
        if let Some(mut limiter) = topic.limiter {
            while let Some(entrant) = limiter.gate.drop_oldest() {
                unref(&mut self.messages, &mut self.bodies, entrant.pending.message);
            }
            for staged in limiter.staged {
                unref(&mut self.messages, &mut self.bodies, staged.entrant.pending.message);
            }
        }
        for conn in topic.blocked {
            self.resume(conn);
        }
        self.forget_queue(topic.queue.log_id());
        self.outputs.push_back(Output::Notice(Notice::TopicDeleted(topic.name)));
        for peer in topic.blocked_peers {
            self.publish_for_peer(peer, now);
        }
    }

    pub(super) fn delete_channel(&mut self, key: ChannelKey, now: Instant) {
        let clients = self.channels[key].clients.clone();
        for conn in clients {
            self.drop_in_flight(conn);
            self.clients[conn].channel = None;
            self.kill(conn);
        }
        self.empty_channel(key);
        let channel = self.channels.remove(key);
        self.dirty_channels.retain(|dirty| *dirty != key);
        self.forget_queue(channel.queue.log_id());
        let topic = &mut self.topics[channel.topic];
        topic.channels.remove(&channel.name);
        topic.routes.retain(|route| *route != key);
        let (name, orphaned) = (topic.name.clone(), topic.channels.is_empty() && topic.name.is_ephemeral());
        self.outputs.push_back(Output::Notice(Notice::ChannelDeleted(name, channel.name)));
        if orphaned {
            self.delete_topic(channel.topic, now);
        }
    }

    /// Drops what is queued and deferred, and what is in flight.
    pub(super) fn empty_channel(&mut self, key: ChannelKey) {
        let clients = self.channels[key].clients.clone();
        for conn in clients {
            self.drop_in_flight(conn);
            self.list_if_ready(conn);
        }
        let channel = &mut self.channels[key];
        for queued in channel.queue.drain_memory() {
            unref(&mut self.messages, &mut self.bodies, queued.message);
        }
        for (_, (timer, queued)) in channel.deferred.drain() {
            self.timers.cancel(timer);
            unref(&mut self.messages, &mut self.bodies, queued.message);
        }
        channel.memory_bytes = 0;
        if let Some(command) = channel.queue.empty_log() {
            self.outputs.push_back(Output::Log(command));
            self.refresh_log_error();
        }
    }

    pub(super) fn empty_topic(&mut self, key: TopicKey) {
        let topic = &mut self.topics[key];
        for queued in topic.queue.drain_memory() {
            unref(&mut self.messages, &mut self.bodies, queued.message);
        }
        topic.memory_bytes = 0;
        if let Some(command) = topic.queue.empty_log() {
            self.outputs.push_back(Output::Log(command));
            self.refresh_log_error();
        }
    }

    fn drop_in_flight(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        for (_, held) in client.in_flight.drain() {
            self.timers.cancel(held.timer);
            unref(&mut self.messages, &mut self.bodies, held.message);
        }
        if let Some(channel) = client.channel {
            // Everything in flight of every client is dropped with it.
            self.channels[channel].in_flight = 0;
        }
    }

    fn forget_queue(&mut self, queue: Option<QueueId>) {
        if let Some(queue) = queue {
            self.queues[queue.0 as usize] = QueueOwner::Nobody;
            self.outputs.push_back(Output::Log(LogCommand::Delete { queue }));
            self.refresh_log_error();
        }
    }

    // Time and effects.

    /// When to call [`Shard::on_timeout`] if nothing else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let release = self.releases.peek().map(|Reverse((at, _))| *at);
        match (self.timers.next_timeout(), release) {
            (Some(timer), Some(release)) => Some(timer.min(release)),
            (timer, release) => timer.or(release),
        }
    }

    /// A moment came: messages time out, deferred ones are due, tokens are there.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((_, _, timer)) = self.timers.pop(now) {
            match timer {
                Timer::Message { conn, id } => self.on_message_timeout(conn, id, now),
                Timer::Deferred { channel, id } => self.on_deferred_due(channel, id, now),
                Timer::Heartbeat(conn) => self.on_heartbeat(conn, now),
                Timer::LogRetry(queue) => self.retry_log(queue),
            }
        }
        while let Some(Reverse((at, gated))) = self.releases.peek().copied() {
            if at > now {
                break;
            }
            self.releases.pop();
            match gated {
                Gated::Topic(topic) if self.topics.contains(topic) => {
                    if let Some(limiter) = &mut self.topics[topic].limiter {
                        limiter.waiting_until = None;
                    }
                    self.mark_topic(topic);
                }
                Gated::Channel(channel) if self.channels.contains(channel) => {
                    if let Some(limiter) = &mut self.channels[channel].limiter {
                        limiter.waiting_until = None;
                    }
                    self.mark_channel(channel);
                }
                _ => {} // Deleted meanwhile.
            }
        }
    }

    /// Everything that one wake-up brought has been told: messages move.
    pub fn end_batch(&mut self, now: Instant) {
        if self.draining {
            return; // Everything is on its way to the log, and the queues are closed behind it.
        }
        // Topics first: they feed channels. Channels never feed topics.
        while let Some(topic) = self.dirty_topics.pop() {
            self.topics[topic].dirty = false;
            self.drain_topic(topic, now);
        }
        while let Some(channel) = self.dirty_channels.pop() {
            self.channels[channel].dirty = false;
            self.pump(channel, now);
        }
        self.unblock(now);
    }

    /// The next effect to carry out; call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(super) fn resume(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        client.hold = Hold::Free;
        if client.state != State::Dead {
            self.outputs.push_back(Output::Resume(conn));
        }
    }

    // The log.

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
        let Some(owner) = self.queues.get(queue.0 as usize).copied() else { return };
        if let LogEvent::Closed { .. } = event {
            self.queues.remove(queue.0 as usize);
            return;
        }
        match owner {
            QueueOwner::Topic(key) => {
                self.apply_log(queue, event, key, |shard, key| &mut shard.topics[key].queue, now);
                self.mark_topic(key);
            }
            QueueOwner::Channel(key) => {
                self.apply_log(queue, event, key, |shard, key| &mut shard.channels[key].queue, now);
                self.mark_channel(key);
            }
            QueueOwner::Nobody => {}
        }
    }

    fn apply_log(
        &mut self,
        id: QueueId,
        event: LogEvent,
        key: usize,
        queue: fn(&mut Self, usize) -> &mut Queue,
        now: Instant,
    ) {
        let queue = queue(self, key);
        let failed_before = queue.failure().is_some();
        let fails = matches!(event, LogEvent::AppendFailed { .. } | LogEvent::ReadFailed { .. });
        match event {
            LogEvent::Opened { depth, .. } => queue.on_opened(depth),
            LogEvent::Appended { buffer, .. } => queue.on_appended(buffer),
            LogEvent::AppendFailed { records, count, error, .. } => queue.on_append_failed(records, count, error),
            LogEvent::Read { records, count, .. } => queue.on_read(records, count),
            LogEvent::ReadFailed { error, .. } => queue.on_read_failed(error),
            LogEvent::Closed { .. } => {}
        }
        match queue.failure() {
            Some(error) if fails => {
                self.log_error = Some(error.to_owned());
                self.timers.insert(now + LOG_RETRY, Timer::LogRetry(id));
            }
            None if failed_before => self.refresh_log_error(),
            _ => {}
        }
    }

    /// A queue has recovered, or is gone: another one may still fail.
    fn refresh_log_error(&mut self) {
        if self.log_error.is_some() {
            let topics = self.topics.iter().map(|(_, topic)| &topic.queue);
            let channels = self.channels.iter().map(|(_, channel)| &channel.queue);
            self.log_error = topics.chain(channels).find_map(Queue::failure).map(str::to_owned);
        }
    }

    fn retry_log(&mut self, queue: QueueId) {
        if self.draining {
            return;
        }
        let Self { queues, topics, channels, outputs, .. } = self;
        let mut out = |command| outputs.push_back(Output::Log(command));
        match queues.get(queue.0 as usize) {
            Some(QueueOwner::Topic(key)) => {
                topics[*key].queue.retry(&mut out);
                let key = *key;
                self.mark_topic(key);
            }
            Some(QueueOwner::Channel(key)) => {
                channels[*key].queue.retry(&mut out);
                let key = *key;
                self.mark_channel(key);
            }
            _ => {}
        }
    }
}

fn queue_id(key: usize) -> QueueId {
    QueueId(u32::try_from(key).expect("fewer than 2^32 queues"))
}

/// Lets go of one use of a message.
pub(super) fn unref(messages: &mut Slab<Message>, bodies: &mut BodyStore, key: MessageKey) {
    let message = &mut messages[key];
    message.refs -= 1;
    if message.refs == 0 {
        bodies.free(message.body);
        messages.remove(key);
    }
}
