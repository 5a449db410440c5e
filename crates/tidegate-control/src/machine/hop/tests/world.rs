//! One hop, one producer and a few brokers, in memory; every byte moves when it is told to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tidegate_core::Instant;
use tidegate_wire::nsq::client::Frame;
use tidegate_wire::nsq::command::{self, Verb};
use tidegate_wire::nsq::{TopicName, client, frame};

use crate::machine::hop::{Hop, HopConfig, NodeId, Order};

/// What the producer was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Response(String),
    Error(String),
}

/// A publish that a broker accepted: the number in its body, and the connection that it came on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Accepted {
    pub(super) topic: String,
    pub(super) body: usize,
    pub(super) connection: usize,
}

/// The broker's end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) number: usize,
    /// Written by the hop and not read by the broker.
    pub(super) to_broker: Vec<u8>,
    /// Said by the broker and not read by the hop.
    pub(super) to_hop: Vec<u8>,
    greeted: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is what a test switches on")]
#[derive(Debug, Default)]
pub(super) struct Broker {
    pub(super) is_alive: bool,
    pub(super) refuses_connections: bool,
    /// What it says does not come through.
    pub(super) is_mute: bool,
    pub(super) is_draining: bool,
    /// Publishes that it refuses from now on.
    pub(super) refuses: usize,
    pub(super) is_dialled: bool,
    pub(super) link: Option<Link>,
    /// What a connection held that the hop has left: it may still be read.
    pub(super) left: Vec<Link>,
    pub(super) identified: Vec<Value>,
    pub(super) secrets: Vec<Vec<u8>>,
    pub(super) nops: usize,
}

impl Broker {
    pub(super) fn say_heartbeat(&mut self) {
        if let Some(link) = &mut self.link {
            frame::put_response(&mut link.to_hop, client::HEARTBEAT);
        }
    }

    /// Carries out the first command of `link`. False if it is not whole.
    fn serve(&mut self, link: &mut Link, log: &mut Vec<Accepted>) -> bool {
        if !link.greeted {
            if link.to_broker.len() < 4 {
                return false;
            }
            assert_eq!(link.to_broker.drain(..4).collect::<Vec<_>>(), client::MAGIC);
            link.greeted = true;
        }
        let Ok(Some((command, used))) = command::line(&link.to_broker) else { return false };
        let (verb, topic) = (command.verb, command.param(0).map(|name| String::from_utf8(name.to_vec()).unwrap()));
        if verb == Verb::Nop {
            self.nops += 1;
            link.to_broker.drain(..used);
            return true;
        }
        let Some(length) = command::length(&link.to_broker[used..]) else { return false };
        let end = used + 4 + usize::try_from(length).unwrap();
        if link.to_broker.len() < end {
            return false;
        }
        let body = link.to_broker[used + 4..end].to_vec();
        link.to_broker.drain(..end);
        match verb {
            Verb::Identify => {
                let said: Value = serde_json::from_slice(&body).unwrap();
                let negotiates = said["feature_negotiation"] == true;
                let answer = if negotiates { format!(r#"{{"tls_v1":{}}}"#, said["tls_v1"]) } else { "OK".to_owned() };
                frame::put_response(&mut link.to_hop, answer.as_bytes());
                self.identified.push(said);
            }
            Verb::Auth => {
                self.secrets.push(body);
                frame::put_response(&mut link.to_hop, b"{}");
            }
            _ => self.publish(link, verb, topic.unwrap(), &body, log),
        }
        true
    }

    fn publish(&mut self, link: &mut Link, verb: Verb, topic: String, body: &[u8], log: &mut Vec<Accepted>) {
        let body = if verb == Verb::Mpub { command::Batch::parse(body, 99, 99).unwrap().next().unwrap() } else { body };
        let Some(body) = std::str::from_utf8(body).ok().and_then(|text| text.parse().ok()) else {
            return frame::put_error(&mut link.to_hop, b"E_BAD_MESSAGE bad");
        };
        if self.is_draining {
            return frame::put_error(&mut link.to_hop, b"E_FAILED draining");
        }
        if self.refuses > 0 {
            self.refuses -= 1;
            let code = match verb {
                Verb::Pub => "E_PUB_FAILED",
                Verb::Mpub => "E_MPUB_FAILED",
                _ => "E_DPUB_FAILED",
            };
            return frame::put_error(&mut link.to_hop, code.as_bytes());
        }
        log.push(Accepted { topic, body, connection: link.number });
        frame::put_ok(&mut link.to_hop);
    }
}

pub(super) struct World {
    pub(super) hop: Hop,
    pub(super) brokers: Vec<Broker>,
    pub(super) now: Instant,
    /// Sent by the producer and not read by the hop.
    to_hop: Vec<u8>,
    heard: Vec<u8>,
    placements: BTreeMap<TopicName, Vec<NodeId>>,
    /// Topics that the hop asks for.
    asked: Vec<TopicName>,
    /// Everything that was accepted, in order.
    pub(super) log: Vec<Accepted>,
    pub(super) has_ended: bool,
    connections: usize,
    /// The broker of each connection.
    pub(super) owners: Vec<NodeId>,
}

pub(super) fn index(node: NodeId) -> usize {
    usize::try_from(node.0).unwrap()
}

impl World {
    pub(super) fn new(brokers: u32) -> Self {
        let now = Instant::from_nanos(1);
        Self {
            hop: Hop::new(HopConfig::default(), "10.0.0.9", now),
            brokers: (0..brokers).map(|_| Broker { is_alive: true, ..Broker::default() }).collect(),
            now,
            to_hop: Vec::new(),
            heard: Vec::new(),
            placements: BTreeMap::new(),
            asked: Vec::new(),
            log: Vec::new(),
            has_ended: false,
            connections: 0,
            owners: Vec::new(),
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        (0..).map(NodeId).take(self.brokers.len()).collect()
    }

    /// The producer sends this; the hop reads it when it wants to.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.to_hop.extend_from_slice(bytes);
        self.feed(usize::MAX);
    }

    /// The hop reads at most so many bytes of the producer.
    pub(super) fn feed(&mut self, most: usize) -> bool {
        let bytes = self.to_hop.len().min(most);
        if bytes == 0 || !self.hop.wants_bytes() {
            return false;
        }
        let piece: Vec<u8> = self.to_hop.drain(..bytes).collect();
        self.hop.read_buffer().extend_from_slice(&piece);
        self.hop.on_bytes(self.now);
        self.carry_out();
        true
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.to_hop.extend_from_slice(bytes);
    }

    pub(super) fn place(&mut self, topic: &str, candidates: &[NodeId]) {
        let topic = TopicName::new(topic).unwrap();
        self.placements.insert(topic.clone(), candidates.to_vec());
        if self.asked.contains(&topic) {
            self.hop.on_place(&topic, candidates.to_vec(), self.now);
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        while let Some(order) = self.hop.poll_output() {
            assert!(!self.has_ended, "an order behind the end: {order:?}");
            match order {
                Order::Name(base) => {
                    let home = self.nodes();
                    self.hop.on_named(&base, home, self.now);
                }
                Order::Place(topic) => {
                    self.asked.push(topic.clone());
                    if let Some(candidates) = self.placements.get(&topic) {
                        self.hop.on_place(&topic, candidates.clone(), self.now);
                    }
                }
                Order::Forget(topic) => self.asked.retain(|other| *other != topic),
                Order::Connect(node) => {
                    let broker = &mut self.brokers[index(node)];
                    assert!(broker.link.is_none() && !broker.is_dialled, "one connection to a broker");
                    broker.is_dialled = true;
                }
                Order::Write(node, bytes) => {
                    let link = self.brokers[index(node)].link.as_mut();
                    link.expect("only connected brokers are written to").to_broker.extend_from_slice(&bytes);
                }
                Order::Close(node) => {
                    let broker = &mut self.brokers[index(node)];
                    broker.is_dialled = false;
                    broker.left.extend(broker.link.take());
                }
                Order::Answer(bytes) => self.heard.extend_from_slice(&bytes),
                Order::End => {
                    self.has_ended = true;
                    for broker in &mut self.brokers {
                        broker.is_dialled = false;
                        broker.left.extend(broker.link.take());
                    }
                }
            }
        }
    }

    /// A broker that was dialled takes the connection, or is not there.
    pub(super) fn dial(&mut self, node: NodeId) -> bool {
        let broker = &mut self.brokers[index(node)];
        if !std::mem::take(&mut broker.is_dialled) {
            return false;
        }
        if broker.is_alive && !broker.refuses_connections {
            let number = self.connections;
            let link = Link { number, to_broker: Vec::new(), to_hop: Vec::new(), greeted: false };
            broker.link = Some(link);
            self.connections += 1;
            self.owners.push(node);
            self.hop.on_connected(node, self.now);
        } else {
            self.hop.on_node_closed(node, self.now);
        }
        self.carry_out();
        true
    }

    /// A broker carries out its first command.
    pub(super) fn serve(&mut self, node: NodeId) -> bool {
        let broker = &mut self.brokers[index(node)];
        let Some(mut link) = broker.link.take_if(|_| broker.is_alive) else { return false };
        let served = broker.serve(&mut link, &mut self.log);
        broker.link = Some(link);
        served
    }

    /// A broker carries out a command of a connection that the hop has left.
    pub(super) fn serve_left(&mut self, node: NodeId) -> bool {
        let broker = &mut self.brokers[index(node)];
        let Some(mut link) = broker.left.pop() else { return false };
        let served = broker.serve(&mut link, &mut self.log);
        if served {
            broker.left.push(link);
        }
        served
    }

    /// The hop reads at most so many bytes of a broker.
    pub(super) fn hear(&mut self, node: NodeId, most: usize) -> bool {
        let broker = &mut self.brokers[index(node)];
        let Some(link) = broker.link.as_mut().filter(|_| !broker.is_mute) else { return false };
        let bytes = link.to_hop.len().min(most);
        if bytes == 0 {
            return false;
        }
        let piece: Vec<u8> = link.to_hop.drain(..bytes).collect();
        self.hop.node_buffer(node).expect("it is connected").extend_from_slice(&piece);
        self.hop.on_node_bytes(node, self.now);
        self.carry_out();
        true
    }

    /// A broker dies with all that it has not carried out; what it said and is not heard is lost.
    pub(super) fn kill(&mut self, node: NodeId) {
        let broker = &mut self.brokers[index(node)];
        broker.is_alive = false;
        broker.left.clear();
        if broker.link.take().is_some() {
            self.hop.on_node_closed(node, self.now);
            self.carry_out();
        }
    }

    /// A connection breaks; the broker may carry out what it has of it.
    pub(super) fn cut(&mut self, node: NodeId) {
        let broker = &mut self.brokers[index(node)];
        if let Some(link) = broker.link.take() {
            broker.left.push(link);
            self.hop.on_node_closed(node, self.now);
            self.carry_out();
        }
    }

    /// Everything that can happen now happens.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            let mut is_busy = self.feed(usize::MAX);
            for node in self.nodes() {
                is_busy |= self.dial(node);
                while self.serve(node) {
                    is_busy = true;
                }
                is_busy |= self.hear(node, usize::MAX);
            }
            self.carry_out();
            if !is_busy {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Time goes by, and then everything happens.
    pub(super) fn wait(&mut self, span: Duration) {
        self.pass(span);
        self.run();
    }

    /// Time goes by.
    pub(super) fn pass(&mut self, span: Duration) {
        self.now += span;
        if self.hop.next_timeout().is_some_and(|due| due <= self.now) {
            self.hop.on_timeout(self.now);
            self.carry_out();
        }
    }

    pub(super) fn is_connected(&self, node: NodeId) -> bool {
        self.brokers[index(node)].link.is_some()
    }

    /// What a broker accepted, in order.
    pub(super) fn bodies(&self, node: NodeId) -> Vec<usize> {
        let is_there = |accepted: &&Accepted| self.owners[accepted.connection] == node;
        self.log.iter().filter(is_there).map(|accepted| accepted.body).collect()
    }

    /// What the producer was told since it was asked last.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        let bytes = std::mem::take(&mut self.heard);
        let (mut heard, mut at) = (Vec::new(), 0);
        while let Some((frame, used)) = client::frame(&bytes[at..], 1 << 20).unwrap() {
            at += used;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            heard.push(match frame {
                Frame::Response(bytes) => Heard::Response(text(bytes)),
                Frame::Error(bytes) => Heard::Error(text(bytes)),
                Frame::Message(..) => panic!("no producer gets messages"),
            });
        }
        assert_eq!(at, bytes.len(), "the hop writes whole frames");
        heard
    }
}
