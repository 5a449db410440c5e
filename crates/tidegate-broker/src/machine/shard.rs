//! One shard: the connections, topics and channels that live on one thread.
//!
//! The driver tells it what arrived with the `on_*` methods, calls [`Shard::end_batch`] when it has told it everything
//! that one wake-up brought, carries out [`Shard::poll_output`] until `None`, and writes the output of
//! [`Shard::next_dirty`] connections to their sockets.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::rng::Rng;
use tidegate_core::time::nanos;
use tidegate_core::timer_wheel::TimerWheel;
use tidegate_wire::nsq::TopicName;

use super::acks::{Ack, Answers};
use super::admin::Newcomers;
use super::arena::Arena;
use super::channel::{Channel, ChannelKey};
use super::client::{About, Client, Hold, InFlightMap, State, host_of};
use super::contracts::Contracts;
use super::lanes::Laning;
use super::lending::Lender;
use super::logging::Queues;
use super::messages::Messages;
use super::output::{ConnId, Migrant, Output};
use super::peers::Peers;
use super::publishers::Link;
use super::survey::Survey;
use super::timers::{Gated, Timer};
use super::topic::{Topic, TopicKey};
use super::watching::{Guest, Listing};

/// Timers are exact to this.
const TICK: Duration = Duration::from_millis(1);

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
    /// Topics whose publishers stay on the shards that accepted them; at most
    /// [`SPREAD_TOPICS_MAX`](super::lanes::SPREAD_TOPICS_MAX).
    pub spread: BTreeSet<TopicName>,
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

/// What has changed since the last look, each thing once.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Connections with output to write.
    pub(super) clients: Vec<ConnId>,
    /// Topics with messages to move.
    pub(super) topics: Vec<TopicKey>,
    /// Channels with messages to deliver.
    pub(super) channels: Vec<ChannelKey>,
    /// Topics that wait for room: their publishers do, or their messages on the way to channels.
    pub(super) blocked: Vec<TopicKey>,
}

/// Numbers that are given once.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) serials: u64,
    pub(super) message_id: u64,
    pub(super) requests: u64,
    /// Tables of publishers.
    pub(super) watches: u32,
    pub(super) recordings: u32,
}

/// A shard. See the [module](self).
pub struct Shard {
    pub(super) config: ShardConfig,
    pub(super) clients: Slab<Client>,
    pub(super) topics: Arena<Topic>,
    pub(super) topics_by_name: HashMap<TopicName, TopicKey, RandomState>,
    pub(super) channels: Arena<Channel>,
    pub(super) messages: Messages,
    pub(super) queues: Queues,
    /// Snapshots under way, the next to be answered first.
    pub(super) surveys: VecDeque<Survey>,
    /// Lists of publishers under way, the first one being made.
    pub(super) listings: VecDeque<Listing>,
    /// Connections of other shards that publish here.
    pub(super) guests: HashMap<Link, Guest, RandomState>,
    pub(super) contracts: Contracts,
    pub(super) acks: Arena<Ack>,
    pub(super) peers: Peers,
    pub(super) timers: TimerWheel<Timer>,
    /// When heads of lines get their tokens.
    pub(super) releases: BinaryHeap<Reverse<(Instant, Gated)>>,
    pub(super) changed: Changed,
    pub(super) outputs: VecDeque<Output>,
    pub(super) numbers: Numbers,
    pub(super) rng: Rng,
    /// Unix time minus the driver's clock, ns.
    pub(super) wall_offset: i64,
    pub(super) draining: bool,
    pub(super) newcomers: Newcomers,
    /// `None`: parts of limits are static.
    pub(super) lender: Option<Box<Lender<TopicKey>>>,
    /// `None`: no topic is spread.
    pub(super) laning: Option<Box<Laning<TopicKey>>>,
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
        let message_id = (u64::from(config.node_id) << 54) | (ticks / shards * shards + config.shard as u64);
        let peers = Peers::new(config.shard, config.shards);
        let laning = Laning::new(&config.spread, config.shard, config.shards, now).map(Box::new);
        let mut shard = Self {
            rng: Rng::new(config.seed ^ config.shard as u64),
            config,
            clients: Slab::new(),
            topics: Arena::default(),
            topics_by_name: HashMap::default(),
            channels: Arena::default(),
            messages: Messages::default(),
            queues: Queues::default(),
            surveys: VecDeque::new(),
            listings: VecDeque::new(),
            guests: HashMap::default(),
            contracts: Contracts::default(),
            acks: Arena::default(),
            peers,
            timers: TimerWheel::new(TICK, now),
            releases: BinaryHeap::new(),
            changed: Changed::default(),
            outputs: VecDeque::new(),
            numbers: Numbers { serials: 0, message_id, requests: 0, watches: 0, recordings: 0 },
            wall_offset: 0,
            draining: false,
            newcomers: Newcomers::default(),
            lender: None,
            laning,
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
        self.numbers.serials += 1;
        let host = host_of(&remote_address).to_owned();
        let connected_unix_s = self.unix_ns(now) / 1_000_000_000;
        let heartbeat_ns = nanos(self.config.heartbeat);
        let conn = self.clients.insert(Client {
            serial: self.numbers.serials,
            state: State::Greeting,
            hold: Hold::Free,
            out: Vec::new(),
            answers: Answers::default(),
            parked: false,
            leaving: false,
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
                connected: now,
                ..About::default()
            }),
        });
        self.arm_heartbeat(conn, now);
        conn
    }

    /// The connection is gone, whoever closed it. What it had in flight goes back to its channel at once.
    pub fn on_disconnect(&mut self, conn: ConnId, now: Instant) {
        self.leave_channel(conn, now);
        let Some(mut client) = self.clients.try_remove(conn) else { return };
        self.vacate(client.take_places());
        // Its number may be taken again before the driver comes to them.
        self.outputs.retain(|output| output.connection() != Some(conn));
        if let Some(key) = client.heartbeat {
            self.timers.cancel(key);
        }
        if client.hold == Hold::LineFull {
            for topic in &self.changed.blocked {
                self.topics[*topic].blocked.retain(|blocked| *blocked != conn);
            }
            self.leave_lanes(conn);
        }
        if client.dirty {
            self.changed.clients.retain(|dirty| *dirty != conn);
        }
    }

    /// Takes a connection out of this shard without closing it; its driver hands it to [`Shard::adopt`] of another.
    pub fn take(&mut self, conn: ConnId) -> Migrant {
        let mut client = self.clients.remove(conn);
        self.vacate(client.take_places());
        if let Some(key) = client.heartbeat.take() {
            self.timers.cancel(key);
        }
        if client.dirty {
            self.changed.clients.retain(|dirty| *dirty != conn);
            client.dirty = false;
        }
        client.stamped = false;
        Migrant(Box::new(client))
    }

    /// Takes over a connection; its unread bytes are to be given to [`Shard::on_bytes`] next.
    pub fn adopt(&mut self, migrant: Migrant, now: Instant) -> ConnId {
        let mut client = *migrant.0;
        self.numbers.serials += 1;
        client.serial = self.numbers.serials;
        client.hold = Hold::Free;
        let has_output = !client.out.is_empty();
        let leaving = client.leaving;
        let conn = self.clients.insert(client);
        if leaving {
            self.kill(conn);
        }
        if has_output {
            self.mark_client(conn);
        }
        self.arm_heartbeat(conn, now);
        conn
    }

    /// The next connection with output to write, each once; call until `None`.
    pub fn next_dirty(&mut self) -> Option<ConnId> {
        let conn = self.changed.clients.pop()?;
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
        let wanted = |client: &Client| client.hold == Hold::Free && client.state != State::Dead && !client.leaving;
        self.clients.get(conn).is_some_and(wanted)
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
        if now.nanos_since(client.last_heard) >= 2 * client.heartbeat_ns && !client.hold.is_ours() {
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
            self.changed.clients.push(conn);
        }
    }

    pub(super) fn mark_topic(&mut self, topic: TopicKey) {
        let entry = &mut self.topics[topic];
        if !entry.dirty {
            entry.dirty = true;
            self.changed.topics.push(topic);
        }
    }

    pub(super) fn mark_channel(&mut self, channel: ChannelKey) {
        let entry = &mut self.channels[channel];
        if !entry.dirty {
            entry.dirty = true;
            self.changed.channels.push(channel);
        }
    }

    // Time and effects.

    /// When to call [`Shard::on_timeout`] if nothing else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let release = self.releases.peek().map(|Reverse((at, _))| *at);
        let lending = self.lender.as_ref().and_then(|lender| lender.next_timeout());
        let laning = self.laning.as_ref().and_then(|laning| laning.next_timeout());
        [self.timers.next_timeout(), release, self.contracts.parts.next_end(), lending, laning]
            .into_iter()
            .flatten()
            .min()
    }

    /// A moment came: messages time out, deferred ones are due, tokens are there, leases of parts end.
    pub fn on_timeout(&mut self, now: Instant) {
        self.settle_loans(now);
        self.lapse_parts(now);
        self.end_if_all_in(now);
        while let Some((_, _, timer)) = self.timers.pop(now) {
            match timer {
                Timer::Message { conn, id } => self.on_message_timeout(conn, id, now),
                Timer::Deferred { of: Gated::Topic(topic), id } => self.on_topic_deferred_due(topic, id, now),
                Timer::Deferred { of: Gated::Channel(channel), id } => self.on_deferred_due(channel, id, now),
                Timer::Heartbeat(conn) => self.on_heartbeat(conn, now),
                Timer::LogRetry(queue) => self.retry_log(queue),
                Timer::Survey => self.on_survey_due(now),
                Timer::Listing => self.on_listing_due(now),
            }
        }
        while let Some(Reverse((at, gated))) = self.releases.peek().copied() {
            if at > now {
                break;
            }
            self.releases.pop();
            let limiter = match gated {
                Gated::Topic(topic) => self.topics.get_mut(topic).and_then(|topic| topic.limiter.as_mut()),
                Gated::Channel(channel) => self.channels.get_mut(channel).and_then(|channel| channel.limiter.as_mut()),
            };
            // Without one it was taken away or deleted meanwhile.
            let Some(limiter) = limiter else { continue };
            limiter.waiting_until = None;
            match gated {
                Gated::Topic(topic) => self.mark_topic(topic),
                Gated::Channel(channel) => self.mark_channel(channel),
            }
        }
    }

    /// Everything that one wake-up brought has been told: messages move.
    pub fn end_batch(&mut self, now: Instant) {
        self.move_messages(now);
        // What was due is gone: now tokens are given and asked for.
        loop {
            let (traded, ran) = (self.trade(now), self.run_lanes(now));
            if !(traded || ran) || self.draining {
                break;
            }
            self.move_messages(now);
        }
        let Self { peers, outputs, .. } = self;
        peers.flush(|output| outputs.push_back(output));
    }

    pub(super) fn move_messages(&mut self, now: Instant) {
        // While it drains, everything is on its way to the log, and the queues are closed behind it.
        while !self.draining {
            // Topics first: they feed channels. Channels never feed topics.
            while let Some(topic) = self.changed.topics.pop() {
                self.topics[topic].dirty = false;
                self.drain_topic(topic, now);
            }
            while let Some(channel) = self.changed.channels.pop() {
                self.channels[channel].dirty = false;
                self.pump(channel, now);
            }
            if !self.unblock(now) {
                break;
            }
        }
    }

    /// The next effect to carry out; call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(super) fn resume(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        client.hold = Hold::Free;
        if client.leaving {
            self.leave_if_answered(conn);
        } else if client.state != State::Dead {
            self.outputs.push_back(Output::Resume(conn));
        }
    }

    /// Messages in memory.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// True until [`Shard::drain`].
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !self.draining
    }

    // Invariants.

    /// What holds after every step. For tests and debug builds; returns how many things were looked at, O(n) in them.
    ///
    /// # Panics
    /// Where it does not.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it panics at")]
    pub fn assert_invariants(&self) -> usize {
        let mut held = 0;
        for topic in self.topics.values() {
            topic.queue.assert_invariants(&self.messages);
            topic.deferred.assert_invariants(&self.messages);
            held += (topic.queue.memory_len() + topic.deferred.len() + topic.staged.len()) as u64;
            assert!(
                topic.flows() || topic.waiting() == topic.staged.len() as u64,
                "what does not flow waits for no token"
            );
        }
        for channel in self.channels.values() {
            channel.queue.assert_invariants(&self.messages);
            channel.deferred.assert_invariants(&self.messages);
            held += (channel.queue.memory_len() + channel.deferred.len()) as u64;
            let in_flight: usize = channel.clients.iter().map(|conn| self.clients[*conn].in_flight.len()).sum();
            assert_eq!(channel.in_flight, in_flight as u64, "a channel counts what its clients hold");
            held += in_flight as u64;
        }
        self.assert_watches();
        self.assert_lanes();
        assert_eq!(held, self.messages.holders(), "every use of a message is known");
        assert!(self.messages.len() as u64 <= held, "no message is kept for nobody");
        self.topics.len() + self.channels.len() + self.clients.len() + self.messages.len()
    }
}
