//! The hop between one NSQ producer and the brokers that its topics are placed on.
//!
//! | module | its one job |
//! |---|---|
//! | `command` | where a producer's commands end, and their topics |
//! | `identify` | what a producer says of itself, and what brokers are told |
//! | [`identity`] | names of publishers, unique over the hop |
//! | [`placement`] | where a topic's publishers go |
//! | `answers` | answers in the order of commands |
//! | `routes` | where this producer's topics go, and which commands are open there |
//! | `node` | the connection to one broker |
//! | `producer` | the side of the producer: its commands |
//! | `upstream` | the side of the brokers: their answers and failures |
//!
//! A producer dials one address and knows of no placement. Its [`Hop`] reads commands, writes each to the broker that the
//! placement names for the command's topic and this publisher, and gives the answers back in the order of the commands,
//! whichever broker was faster. Its laws:
//!
//! - Each command has exactly one answer, in order. (Behind an error that ends a connection there is none, as at nsqd.)
//! - A topic's open commands are all at one broker. When its placement changes, the next command waits until those are
//!   answered: what a publisher sends to a topic is accepted in its order, and nothing is sent to two brokers.
//! - Commands at a broker that fails are answered `E_PUB_FAILED` and are not sent again: whether the broker accepted
//!   them is not known, as when a connection to nsqd breaks.
//! - A command is sent whole or not at all.
//!
//! It serves producers only. TLS, snappy and deflate are not offered: the hop reads the commands.
//!
//! ```
//! use tidegate_control::machine::hop::{Hop, HopConfig, NodeId, Order};
//! use tidegate_core::Instant;
//! use tidegate_wire::nsq::client;
//!
//! let (now, node) = (Instant::ZERO, NodeId(0));
//! let mut hop = Hop::new(HopConfig::default(), "10.0.0.1", now);
//! let mut bytes = client::MAGIC.to_vec();
//! client::put_pub(&mut bytes, "orders", b"hello");
//! hop.read_buffer().extend_from_slice(&bytes);
//! hop.on_bytes(now);
//! assert_eq!(hop.poll_output(), Some(Order::Name("10.0.0.1@10.0.0.1".to_owned())));
//! hop.on_named("10.0.0.1@10.0.0.1", vec![node], now);
//! let Some(Order::Place(topic)) = hop.poll_output() else { panic!("it asks where the topic goes") };
//! hop.on_place(&topic, vec![node], now);
//! assert_eq!(hop.poll_output(), Some(Order::Connect(node)));
//! hop.on_connected(node, now);
//! assert!(matches!(hop.poll_output(), Some(Order::Write(_, _))), "it says who publishes");
//! ```

mod answers;
mod command;
mod identify;
pub mod identity;
mod node;
pub mod placement;
mod producer;
mod routes;
mod upstream;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidegate_core::Instant;
use tidegate_wire::nsq::{TopicName, client, frame};

use answers::Answers;
use identify::Hello;
use node::Upstream;
use routes::Routes;

pub use answers::{OUTSTANDING_BYTES_MAX, OUTSTANDING_MAX};
pub use node::NodeId;
pub use routes::TOPICS_MAX;

/// Brokers that one producer is connected to, or that rest after a failure.
pub const NODES_MAX: usize = 256;

/// Room for one read of a producer, bytes, and of a broker, whose answers are short.
const READ_BYTES: usize = 16 * 1024;
const READ_BYTES_NODE: usize = 1_024;
/// Room that is made at once for a command whose size is known; the rest when this much is there.
const READ_BYTES_MAX: usize = 256 * 1024;

/// A broker to which no topic goes is left after this time without a command.
const IDLE: Duration = Duration::from_mins(1);

/// Settings of every connection of a hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HopConfig {
    /// Largest body of a publish, bytes. As large as the brokers' own bound, or larger.
    pub max_body_size: usize,
    /// How often brokers send heartbeats to the hop, 1 s to 60 s. One that is silent for twice as long has failed.
    pub node_heartbeat: Duration,
}

impl Default for HopConfig {
    /// nsqd's `-max-body-size`; and ten seconds, which finds a stalled broker within thirty.
    fn default() -> Self {
        Self { max_body_size: 5 << 20, node_heartbeat: Duration::from_secs(10) }
    }
}

/// What is to be done for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Take a free name of this base, and tell it to [`Hop::on_named`]. Once, before any connection.
    Name(String),
    /// Tell [`Hop::on_place`] where this topic goes, now and whenever it changes.
    Place(TopicName),
    /// This topic is of no interest any more.
    Forget(TopicName),
    /// Connect to a broker: [`Hop::on_connected`], or [`Hop::on_node_closed`] if it cannot be reached.
    Connect(NodeId),
    /// Write this to a broker: whole commands.
    Write(NodeId, Bytes),
    /// Close the connection to a broker, with what is not written.
    Close(NodeId),
    /// Write this to the producer: whole frames.
    Answer(Bytes),
    /// Close the producer's connection once all is written to it, and all others. The last order.
    End,
}

/// What a connection has counted since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Publishes that a broker accepted.
    pub accepted: u64,
    /// Publishes that a broker answered with an error.
    pub refused: u64,
    /// Publishes whose broker failed before it answered.
    pub lost: u64,
    /// Publishes for which there was no broker.
    pub unplaced: u64,
    /// Bytes of publishes that were sent to brokers.
    pub bytes: u64,
    /// Topics that went to another broker than before.
    pub moves: u64,
    /// Brokers that failed.
    pub node_failures: u64,
}

/// How far the producer's connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The magic has not been seen.
    Greeting,
    /// Commands are taken.
    Open,
    /// No more commands are taken; open ones are answered.
    Closing,
    /// All is answered.
    Ended { told: bool },
}

/// A command before whose answer no other one is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alone {
    /// IDENTIFY, with its number.
    Identify(u64),
    /// AUTH, with its number.
    Auth(u64),
}

/// One producer's connection. See the [module](self).
///
/// Every `on_..` may leave orders; [`Hop::poll_output`] gives them. What is told after [`Order::End`] is ignored.
#[derive(Debug)]
pub struct Hop {
    config: HopConfig,
    /// The producer's IP address.
    peer: String,
    phase: Phase,
    /// The producer will send no more.
    is_eof: bool,
    /// The next command waits for something else than bytes.
    is_held: bool,
    /// Bytes of the producer that were not taken yet.
    input: BytesMut,
    /// At the front of `input`: commands that are taken and go to one broker.
    run: Option<(NodeId, usize)>,
    /// Bytes that the next command lacks at least.
    lacks: usize,
    /// What the producer said of itself, until the connection is named.
    hello: Option<Hello>,
    /// What a broker hears first; empty until the connection is named.
    greeting: Bytes,
    /// The producer's AUTH, for each broker.
    secret: Option<Bytes>,
    /// Brokers for IDENTIFY and AUTH, in the order in which they are tried.
    home: Vec<NodeId>,
    alone: Option<Alone>,
    answers: Answers,
    out: Vec<u8>,
    nodes: BTreeMap<NodeId, Upstream>,
    routes: Routes,
    orders: VecDeque<Order>,
    counts: Counts,
    heard: Instant,
    heartbeat: Option<Duration>,
    /// When the producer's next heartbeat is due.
    beat_at: Option<Instant>,
    /// When brokers are looked after next.
    tick_at: Option<Instant>,
}

impl Hop {
    /// A connection of a producer with this IP address.
    #[must_use]
    pub fn new(config: HopConfig, peer: &str, now: Instant) -> Self {
        let heartbeat = Hello::plain(peer).heartbeat;
        Self {
            config,
            peer: peer.to_owned(),
            phase: Phase::Greeting,
            is_eof: false,
            is_held: false,
            input: BytesMut::new(),
            run: None,
            lacks: 0,
            hello: None,
            greeting: Bytes::new(),
            secret: None,
            home: Vec::new(),
            alone: None,
            answers: Answers::default(),
            out: Vec::new(),
            nodes: BTreeMap::new(),
            routes: Routes::default(),
            orders: VecDeque::new(),
            counts: Counts::default(),
            heard: now,
            heartbeat,
            beat_at: heartbeat.map(|interval| now + interval),
            tick_at: None,
        }
    }

    /// Whether bytes of the producer are wanted. While they are not, it should not be read: it has [`OUTSTANDING_MAX`]
    /// open commands, or [`OUTSTANDING_BYTES_MAX`] bytes of them, or its next command waits for a broker.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        self.is_open() && !self.is_held && !self.is_eof
    }

    /// Where to read the producer's bytes to: they are appended. Then comes [`Self::on_bytes`], or [`Self::on_eof`].
    pub fn read_buffer(&mut self) -> &mut BytesMut {
        self.input.reserve(self.lacks.clamp(READ_BYTES, READ_BYTES_MAX));
        &mut self.input
    }

    /// Where to read a broker's bytes to; `None` if it is not connected. Then comes [`Self::on_node_bytes`].
    pub fn node_buffer(&mut self, node: NodeId) -> Option<&mut BytesMut> {
        let upstream = self.nodes.get_mut(&node).filter(|upstream| !upstream.is_down())?;
        upstream.input.reserve(READ_BYTES_NODE);
        Some(&mut upstream.input)
    }

    /// The next order; call until `None`.
    pub fn poll_output(&mut self) -> Option<Order> {
        if let Some(order) = self.orders.pop_front() {
            return Some(order);
        }
        if !self.out.is_empty() {
            return Some(Order::Answer(Bytes::from(std::mem::take(&mut self.out))));
        }
        if self.phase == (Phase::Ended { told: false }) {
            self.phase = Phase::Ended { told: true };
            return Some(Order::End);
        }
        None
    }

    /// When to call [`Self::on_timeout`] if nothing else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        match (self.beat_at, self.tick_at) {
            _ if self.is_ended() => None,
            (Some(beat), Some(tick)) => Some(beat.min(tick)),
            (beat, tick) => beat.or(tick),
        }
    }

    /// That moment came: heartbeats, and brokers that are silent or not used.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.is_ended() {
            return;
        }
        if let Some(interval) = self.heartbeat.filter(|_| self.beat_at.is_some_and(|beat| beat <= now)) {
            self.beat_at = Some(now + interval);
            if !self.wants_bytes() {
                // It cannot be heard while it is not read.
                self.heard = now;
            }
            if now.since(self.heard) >= interval * 2 {
                self.end();
                return;
            }
            frame::put_response(&mut self.out, client::HEARTBEAT);
        }
        if self.tick_at.is_some_and(|tick| tick <= now) {
            self.look_after_nodes(now);
            let is_needed = !self.nodes.is_empty();
            self.tick_at = is_needed.then(|| now + self.config.node_heartbeat);
            self.advance(now);
        }
    }

    /// The connection is called `identity`; IDENTIFY and AUTH go to the first of `home` that answers.
    pub fn on_named(&mut self, identity: &str, home: Vec<NodeId>, now: Instant) {
        let Some(hello) = self.hello.take().filter(|_| !self.is_ended()) else { return };
        self.greeting = hello.forwarded(identity, self.config.node_heartbeat).into();
        self.home = home;
        if matches!(self.alone, Some(Alone::Identify(_))) {
            self.greet(now);
        }
        self.advance(now);
    }

    /// `topic` goes to the first of `candidates` that works. The connection moves when its open commands are answered.
    pub fn on_place(&mut self, topic: &TopicName, candidates: Vec<NodeId>, now: Instant) {
        let Some(key) = self.routes.find(topic.as_str().as_bytes()).filter(|_| !self.is_ended()) else { return };
        let route = self.routes.route(key);
        route.candidates = Some(candidates);
        if let Some(at) = route.at
            && let Some(wanted) = self.wanted(key, now)
            && wanted != at
        {
            // Connected before it is needed, so that the next publish need not wait for that.
            self.connect(wanted, now);
            self.adopt(wanted, now);
        }
        self.advance(now);
    }

    /// The hop ends: no more commands are taken, and the connection ends when the open ones are answered.
    pub fn on_drain(&mut self, now: Instant) {
        if self.is_open() {
            self.phase = Phase::Closing;
        }
        self.advance(now);
    }

    /// The producer's topics, and the broker to which the newest command of each went.
    pub fn places(&self) -> impl Iterator<Item = (&TopicName, Option<NodeId>)> {
        self.routes.iter().map(|(_, route)| (&route.topic, route.at))
    }

    /// Grows whenever what [`Self::places`] says changes.
    #[must_use]
    pub const fn place_changes(&self) -> u64 {
        self.routes.changes()
    }

    /// Commands without an answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.answers.len()
    }

    /// What was counted so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Greeting | Phase::Open)
    }

    fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    /// Nothing more is done for the connection.
    fn end(&mut self) {
        self.phase = Phase::Ended { told: false };
        self.nodes.clear();
    }
}
