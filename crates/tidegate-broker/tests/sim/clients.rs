//! Publishers, consumers and an operator.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_broker::machine::admin::{AdminRequest, Pause};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Source, Unit};
use tidegate_broker::machine::publishers::HttpPublisher;
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_sim::network::NodeId;
use tidegate_wire::nsq::client;

use super::ledger::{ChannelId, Fate, Sent};
use super::process::Inbound;
use super::{BROKER, CLIENT_0, Conn, ConnNo, Event, LimitOn, Parcel, TOPICS, World, channel_of, topic_of};
use crate::harness::{Message, Reply, fin, put, put_deferred, put_many, req, touch};

/// Commands that a publisher has under way.
const PIPELINE: usize = 6;
/// After a refused connection.
const RECONNECT: Duration = Duration::from_millis(15);

/// What a client is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Publisher,
    /// Always ready, and finishes at once: what leaves the topic is seen here.
    Reference(usize),
    /// Finishes, requeues, touches, forgets.
    Worker(usize),
    /// Of an ephemeral channel.
    Guest(usize),
}

pub(super) const ROLES: [Role; 11] = [
    Role::Publisher,
    Role::Publisher,
    Role::Publisher,
    Role::Reference(0),
    Role::Reference(1),
    Role::Reference(2),
    Role::Worker(0),
    Role::Worker(0),
    Role::Worker(1),
    Role::Worker(2),
    Role::Guest(0),
];

impl Role {
    fn channel(self) -> Option<ChannelId> {
        match self {
            Self::Publisher => None,
            Self::Reference(topic) => Some((topic, "ref")),
            Self::Worker(topic) => Some((topic, "c")),
            Self::Guest(topic) => Some((topic, "x#ephemeral")),
        }
    }
}

pub(super) struct Client {
    role: Role,
    conn: Option<ConnNo>,
    /// Crashed.
    away: bool,
    /// What it has sent and not been answered; nothing for what publishes nothing.
    expects: VecDeque<Vec<usize>>,
    held: Vec<Message>,
}

impl Client {
    pub(super) fn new(role: Role) -> Self {
        Self { role, conn: None, away: false, expects: VecDeque::new(), held: Vec::new() }
    }
}

fn node(client: usize) -> NodeId {
    NodeId(CLIENT_0.0 + u32::try_from(client).unwrap())
}

impl World {
    // Connections.

    pub(super) fn connect(&mut self, client: usize) {
        let entry = &self.clients[client];
        if entry.conn.is_some() || entry.away {
            return;
        }
        let conn = self.conns.len();
        let role = entry.role;
        self.conns.push(Conn::new(client, role.channel()));
        self.clients[client].conn = Some(conn);
        self.clients[client].expects.clear();
        self.clients[client].held.clear();
        self.send_broker(conn, Parcel::Open);
        let mut hello = client::MAGIC.to_vec();
        if let Some((topic, channel)) = role.channel() {
            client::put_sub(&mut hello, TOPICS[topic], channel);
            self.clients[client].expects.push_back(Vec::new());
            let ready = if matches!(role, Role::Worker(_)) { 1 + self.rng.below(20) } else { 2_500 };
            client::put_rdy(&mut hello, u32::try_from(ready).unwrap());
        }
        self.send_broker(conn, Parcel::Bytes(hello));
    }

    fn send_broker(&mut self, conn: ConnNo, parcel: Parcel) {
        self.conns[conn].to_broker.push_back(parcel);
        let from = node(self.conns[conn].client);
        self.send(from, BROKER, Event::Arrival(conn));
    }

    pub(super) fn send_client(&mut self, conn: ConnNo, parcel: Parcel) {
        self.conns[conn].to_client.push_back(parcel);
        let to = node(self.conns[conn].client);
        self.send(BROKER, to, Event::Delivery(conn));
    }

    fn write(&mut self, client: usize, bytes: Vec<u8>) {
        if let Some(conn) = self.clients[client].conn {
            self.send_broker(conn, Parcel::Bytes(bytes));
        }
    }

    /// The client goes, and stays away until it comes back.
    pub(super) fn crash_client(&mut self, client: usize, away: bool) {
        self.clients[client].away = away;
        if let Some(conn) = self.clients[client].conn {
            self.send_broker(conn, Parcel::Close);
            self.gone(client, conn);
        }
    }

    pub(super) fn return_client(&mut self, client: usize) {
        self.clients[client].away = false;
        self.connect(client);
    }

    fn gone(&mut self, client: usize, conn: ConnNo) {
        self.conns[conn].left = true;
        if self.clients[client].conn == Some(conn) {
            self.clients[client].conn = None;
            if let Role::Reference(topic) = self.clients[client].role {
                let now = self.now();
                self.reference_absent(topic, now);
            }
            self.after(RECONNECT, Event::Connect(client));
        }
    }

    /// From now on nobody sees what leaves the topic, until there is a consumer again.
    pub(super) fn reference_absent(&mut self, topic: usize, now: Instant) {
        let since = self.topic_stalls[topic].earliest(now, self.settings.way);
        self.absent_since[topic].get_or_insert(since);
    }

    // What comes.

    pub(super) fn on_delivery(&mut self, conn: ConnNo) {
        let Some(parcel) = self.conns[conn].to_client.pop_front() else { return };
        let client = self.conns[conn].client;
        match parcel {
            Parcel::Replies(replies) if !self.conns[conn].left && !self.conns[conn].cut => {
                let mut answers = Vec::new();
                for reply in replies {
                    self.on_reply(client, conn, reply, &mut answers);
                }
                if !answers.is_empty() {
                    self.write(client, answers);
                }
            }
            Parcel::Close if !self.conns[conn].left => self.gone(client, conn),
            _ => {}
        }
    }

    fn on_reply(&mut self, client: usize, conn: ConnNo, reply: Reply, answers: &mut Vec<u8>) {
        match reply {
            Reply::Response(text) if text == "_heartbeat_" => client::put_nop(answers),
            Reply::Response(text) => {
                assert_eq!(text, "OK", "nobody asked for anything else");
                let published = self.clients[client].expects.pop_front().expect("an answer has its command");
                for number in published {
                    self.ledger.answered(number, Fate::Accepted);
                }
                if let Some((topic, "ref")) = self.conns[conn].channel
                    && let Some(since) = self.absent_since[topic].take()
                {
                    // What gathered meanwhile is on its way.
                    let now = self.now();
                    self.tell_story(|| format!("{} had no consumer since {since:?}", TOPICS[topic]));
                    self.topic_stalls[topic].add(since, now + self.settings.way);
                }
            }
            Reply::Error(text) => {
                self.tell_story(|| {
                    format!("client {client} is told {text}, of {:?}", self.clients[client].expects.front())
                });
                if text.contains("E_FIN_FAILED") || text.contains("E_REQ_FAILED") || text.contains("E_TOUCH_FAILED") {
                    return;
                }
                let fate = if text.contains("cannot be written") { Fate::Unknown } else { Fate::Refused };
                for number in self.clients[client].expects.pop_front().unwrap_or_default() {
                    self.ledger.answered(number, fate);
                }
            }
            Reply::Message(message) => self.on_message(client, conn, message, answers),
        }
    }

    fn on_message(&mut self, client: usize, conn: ConnNo, message: Message, answers: &mut Vec<u8>) {
        let now = self.now();
        let channel = self.conns[conn].channel.expect("only subscribers get messages");
        let number = super::number_in(&message.body)
            .unwrap_or_else(|| panic!("nobody published this body: {:?}, attempts {}", message.body, message.attempts));
        self.note((number, message.attempts, channel));
        let sent = &self.ledger.sent[number];
        assert_eq!((sent.topic, sent.bytes), (channel.0, message.body.len()), "message {number} is as it was sent");
        assert_ne!(sent.fate, Fate::Refused, "message {number} was refused, and is delivered");
        self.tell_story(|| format!("client {client} of {channel:?} has message {number}, {} times", message.attempts));
        let (first, deferred, sent_at) = (!sent.seen, sent.deferred, sent.at);
        // The reference channel's copy may have waited for the disk while another channel's was on its way already.
        let first_seen = *self.ledger.sent[number].first_seen.get_or_insert(now);
        if channel.1 == "ref" && first {
            self.ledger.sent[number].seen = true;
            let earliest = self.topic_stalls[channel.0].earliest(first_seen, self.settings.way);
            self.tell_story(|| {
                let law = &self.topic_laws[channel.0];
                format!("message {number}, {} bytes, left after {earliest:?}; {law:?}", message.body.len())
            });
            // One that was deferred before there was a contract waits out its time behind the topic.
            if !(deferred && self.topic_laws[channel.0].began_after(sent_at)) {
                let judged = self.topic_laws[channel.0].take(message.body.len(), earliest, now);
                if let Err(violation) = judged {
                    if self.talks {
                        let at = self.ledger.sent[number].at;
                        eprintln!("message {number} was sent at {at:?}; the trace of its topic:");
                        let home = home_shard(TOPICS[channel.0], self.shards);
                        self.flush_records(home);
                    }
                    panic!(
                        "{}, message {number} at its consumer: {violation}, earliest {earliest:?}",
                        TOPICS[channel.0]
                    );
                }
            }
        }
        if let Some(law) = self.channel_laws.get_mut(&channel) {
            let earliest = self.pauses.earliest(now, self.settings.way);
            if self.talks {
                eprintln!("{now:?} {channel:?}, {} bytes, left after {earliest:?}; {law:?}", message.body.len());
            }
            if let Err(violation) = law.take(message.body.len(), earliest, now) {
                panic!("{channel:?}, message {number} at its consumer: {violation}, earliest {earliest:?}");
            }
        }
        self.ledger.received(channel, number);
        let role = self.clients[client].role;
        let calm = self.calm || !matches!(role, Role::Worker(_));
        match if calm { 0 } else { self.rng.below(10) } {
            0..=6 => answers.extend(fin(&message)),
            7 => answers.extend(req(&message, self.rng.below(300))),
            8 => self.clients[client].held.push(message),
            _ => {} // It times out.
        }
    }

    // What they do.

    pub(super) fn act(&mut self, client: usize) {
        let every = match self.clients[client].role {
            Role::Publisher if self.calm => return,
            Role::Publisher => {
                self.publish(client);
                self.settings.publish_every_us
            }
            Role::Worker(_) => {
                self.work(client);
                40_000
            }
            Role::Guest(_) => {
                if self.rng.chance(0.5) {
                    self.crash_client(client, false);
                }
                100_000
            }
            Role::Reference(_) => return,
        };
        if !self.calm {
            let every = Duration::from_micros(1 + self.rng.below(2 * every));
            self.after(every, Event::Act(client));
        }
    }

    fn body(&mut self, topic: usize, deferred: bool) -> (usize, String) {
        let padding = if self.rng.chance(0.1) { self.rng.below(200) } else { self.rng.below(12) };
        let number = self.ledger.sent.len();
        let body = format!("{number}:{}", "x".repeat(usize::try_from(padding).unwrap()));
        let at = self.now();
        self.ledger.send(Sent {
            topic,
            at,
            bytes: body.len(),
            deferred,
            fate: Fate::Unknown,
            first_seen: None,
            seen: false,
        });
        (number, body)
    }

    fn publish(&mut self, client: usize) {
        if self.clients[client].conn.is_none() || self.clients[client].expects.len() >= PIPELINE {
            return;
        }
        // Mostly one topic, so that it is loaded.
        let topic = if self.rng.chance(0.6) { client % TOPICS.len() } else { self.topic() };
        let mut bytes = Vec::new();
        match self.rng.below(10) {
            0..=3 => {
                for _ in 0..=self.rng.below(3) {
                    let (number, body) = self.body(topic, false);
                    bytes.extend(put(TOPICS[topic], &body));
                    self.clients[client].expects.push_back(vec![number]);
                }
            }
            4..=8 => {
                let (numbers, bodies): (Vec<_>, Vec<_>) =
                    (0..=self.rng.below(9)).map(|_| self.body(topic, false)).unzip();
                bytes.extend(put_many(TOPICS[topic], &bodies));
                self.clients[client].expects.push_back(numbers);
            }
            _ => {
                let (number, body) = self.body(topic, true);
                bytes.extend(put_deferred(TOPICS[topic], 1 + self.rng.below(200), &body));
                self.clients[client].expects.push_back(vec![number]);
            }
        }
        self.write(client, bytes);
    }

    fn work(&mut self, client: usize) {
        let mut bytes = Vec::new();
        for message in std::mem::take(&mut self.clients[client].held) {
            match if self.calm { 0 } else { self.rng.below(4) } {
                0 | 1 => bytes.extend(fin(&message)),
                2 => bytes.extend(req(&message, 0)),
                _ => {
                    bytes.extend(touch(&message));
                    self.clients[client].held.push(message);
                }
            }
        }
        if !self.calm && self.rng.chance(0.2) {
            client::put_rdy(&mut bytes, u32::try_from(self.rng.below(10)).unwrap());
        } else if self.calm || self.rng.chance(0.2) {
            client::put_rdy(&mut bytes, 20);
        }
        if !bytes.is_empty() {
            self.write(client, bytes);
        }
    }

    fn topic(&mut self) -> usize {
        usize::try_from(self.rng.below(TOPICS.len() as u64)).unwrap()
    }

    /// An operator, over HTTP.
    pub(super) fn operate(&mut self) {
        let topic = self.topic();
        let on: LimitOn = [(topic, None), (topic, None), (topic, Some("c")), (0, Some("x#ephemeral"))]
            [usize::try_from(self.rng.below(4)).unwrap()];
        let name = topic_of(topic);
        let channel = channel_of("c");
        let pause = if self.rng.chance(0.3) { Pause::Paused } else { Pause::Flowing };
        match self.rng.below(20) {
            0..=6 => {
                let contract = self.contract();
                self.set_limit(on, Some(contract));
            }
            7 => self.set_limit(on, None),
            8 => {
                // Removed and put again at once, as an undo and a redo do.
                let contract = self.contracts.get(&on).copied();
                self.set_limit(on, None);
                self.set_limit(on, contract);
            }
            9 => {
                // Changed and changed back.
                let (contract, other) = (self.contracts.get(&on).copied(), self.contract());
                self.set_limit(on, Some(other));
                self.set_limit(on, contract);
            }
            10 => self.order(topic, AdminRequest::PauseTopic(name, pause)),
            11 => self.order(topic, AdminRequest::PauseChannel(name, channel, pause)),
            12 => self.order(topic, AdminRequest::DeleteTopic(name)),
            13 => self.order(topic, AdminRequest::CreateTopic(name)),
            14 => self.order(topic, AdminRequest::DeleteChannel(name, channel)),
            15 => self.order(topic, AdminRequest::EmptyTopic(name)),
            16 => self.order(topic, AdminRequest::EmptyChannel(name, channel)),
            17 => {
                // Deleted and created at once.
                self.order(topic, AdminRequest::DeleteTopic(name.clone()));
                self.order(topic, AdminRequest::CreateTopic(name));
            }
            18 => {
                if self.contracts.get(&(topic, None)).is_none_or(|contract| contract.mode == Mode::Shadow) {
                    self.order(topic, AdminRequest::ReleaseLine(name));
                }
            }
            _ => {
                let (number, body) = self.body(topic, false);
                let publish = AdminRequest::Publish {
                    topic: name,
                    bodies: vec![body.into_bytes()],
                    defer: None,
                    by: HttpPublisher::default(),
                };
                let home = home_shard(TOPICS[topic], self.shards);
                self.tell(home, Inbound::Admin(publish, vec![number]));
            }
        }
        if !self.calm {
            let every = Duration::from_micros(1 + self.rng.below(2 * self.settings.operate_every_us));
            self.after(every, Event::Operate);
        }
    }

    pub(super) fn order(&mut self, topic: usize, request: AdminRequest) {
        let home = home_shard(TOPICS[topic], self.shards);
        self.tell(home, Inbound::Admin(request, Vec::new()));
    }

    /// A limit is durable before it is in force.
    pub(super) fn set_limit(&mut self, (topic, channel): LimitOn, contract: Option<Contract>) {
        match contract {
            Some(contract) => self.contracts.insert((topic, channel), contract),
            None => self.contracts.remove(&(topic, channel)),
        };
        let contract = contract.map(|contract| (contract, Source::Admin));
        let request = match channel {
            None => AdminRequest::SetTopicLimit(topic_of(topic), contract),
            Some(channel) => AdminRequest::SetChannelLimit(topic_of(topic), channel_of(channel), contract),
        };
        self.order(topic, request);
    }

    fn contract(&mut self) -> Contract {
        let rate = [1, 20, 100, 300, 1_000][usize::try_from(self.rng.below(5)).unwrap()];
        let burst = 1 + self.rng.below(20);
        let bytes = self.rng.chance(0.2);
        let times = if bytes { 20 } else { 1 };
        Contract {
            limit: Limit::new(Rate::per_s(rate * times), burst * times),
            unit: if bytes { Unit::Bytes } else { Unit::Messages },
            discipline: if self.rng.chance(0.3) { Discipline::Refuse } else { Discipline::Wait },
            mode: if self.rng.chance(0.1) { Mode::Shadow } else { Mode::Enforce },
        }
    }
}
