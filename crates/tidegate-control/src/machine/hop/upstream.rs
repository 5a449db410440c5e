//! The side of the brokers: connections, answers, failures.

use bytes::{Buf as _, Bytes};
use tidegate_core::Instant;

use super::answers::{Answer, Then};
use super::node::{self, Awaited, NodeId, Said, State, Upstream};
use super::routes::Route;
use super::{Alone, Hop, IDLE, NODES_MAX, Order, Phase};

/// What a failed broker's publishes are answered.
const GONE: &str = "the broker's connection failed before it answered";

impl Hop {
    /// A connection that [`Order::Connect`] asked for stands.
    pub fn on_connected(&mut self, node: NodeId, now: Instant) {
        let Some(upstream) = self.nodes.get_mut(&node).filter(|upstream| upstream.state == State::Connecting) else {
            return;
        };
        upstream.state = State::Greeting;
        upstream.heard = now;
        self.orders.push_back(Order::Write(node, self.greeting.clone()));
        upstream.awaited.push_back(match self.alone {
            Some(Alone::Identify(number)) => Awaited::Command { number, route: None },
            _ => Awaited::Greeting,
        });
        if let Some(secret) = &self.secret {
            self.orders.push_back(Order::Write(node, secret.clone()));
            upstream.awaited.push_back(Awaited::Greeting);
        }
    }

    /// A broker sent bytes, which are in [`Hop::node_buffer`].
    pub fn on_node_bytes(&mut self, node: NodeId, now: Instant) {
        let Some(upstream) = self.nodes.get_mut(&node).filter(|upstream| !upstream.is_down()) else { return };
        upstream.heard = now;
        let mut input = std::mem::take(&mut upstream.input);
        let is_sound = loop {
            let (said, used) = match node::said(&input) {
                Ok(Some(found)) => found,
                Ok(None) => break true,
                Err(_) => break false,
            };
            let answer = match said {
                Said::Response | Said::Refusal | Said::Away | Said::Fatal => {
                    Answer::Frame(input.split_to(used).freeze())
                }
                Said::Heartbeat | Said::Ok | Said::Message => {
                    input.advance(used);
                    Answer::Ok
                }
            };
            if !self.on_said(node, said, answer, now) {
                break false;
            }
        };
        if is_sound {
            // A connection without a torn frame holds no buffer.
            if let Some(upstream) = self.nodes.get_mut(&node).filter(|_| !input.is_empty()) {
                upstream.input = input;
            }
        } else {
            self.fail_node(node, now);
        }
        self.advance(now);
    }

    /// A broker's connection is closed, or could not be made.
    pub fn on_node_closed(&mut self, node: NodeId, now: Instant) {
        let Some(upstream) = self.nodes.get(&node).filter(|upstream| !upstream.is_down()) else { return };
        if upstream.is_ready() && upstream.proved && upstream.awaited.is_empty() {
            // It owes nothing: the broker lets this publisher go, and may take it again.
            self.leave_node(node);
        } else {
            self.fail_node(node, now);
        }
        self.advance(now);
    }

    /// False if the broker is of no use after that.
    fn on_said(&mut self, node: NodeId, said: Said, answer: Answer, now: Instant) -> bool {
        let Some(upstream) = self.nodes.get_mut(&node) else { return true };
        let is_accepted = match said {
            Said::Message => return false,
            Said::Heartbeat => {
                self.orders.push_back(Order::Write(node, Bytes::from_static(b"NOP\n")));
                return true;
            }
            Said::Ok | Said::Response => true,
            Said::Refusal | Said::Away | Said::Fatal => false,
        };
        let is_greeting = upstream.state == State::Greeting;
        match upstream.awaited.pop_front() {
            None => return false,
            Some(Awaited::Greeting) if !is_accepted => return false,
            Some(Awaited::Greeting) => {}
            Some(Awaited::Command { number, route }) => {
                match route {
                    None => self.alone = None,
                    Some(key) => {
                        if is_accepted {
                            upstream.prove();
                            self.counts.accepted += 1;
                        } else {
                            self.counts.refused += 1;
                        }
                        self.routes.route(key).outstanding -= 1;
                    }
                }
                let then = if said == Said::Fatal { Then::End } else { Then::GoOn };
                self.answers.settle(number, answer, then);
                if then == Then::End && self.is_open() {
                    // The broker takes nothing more on this connection, and the producer is to send it nothing more.
                    self.phase = Phase::Closing;
                }
            }
        }
        if is_greeting {
            self.on_greeted(node, now);
        }
        said != Said::Away
    }

    /// A broker that has answered all of its greeting takes publishes.
    fn on_greeted(&mut self, node: NodeId, now: Instant) {
        let Some(upstream) = self.nodes.get_mut(&node).filter(|upstream| upstream.awaited.is_empty()) else { return };
        upstream.state = State::Ready;
        upstream.used = now;
        self.adopt(node, now);
    }

    /// Topics that are to go to `node` and have no open command go there, if it is ready.
    pub(super) fn adopt(&mut self, node: NodeId, now: Instant) {
        if !self.nodes.get(&node).is_some_and(Upstream::is_ready) {
            return;
        }
        let may_move = |route: &Route| route.outstanding == 0 && route.at.is_some_and(|at| at != node);
        let idle: Vec<usize> = self.routes.iter().filter(|(_, route)| may_move(route)).map(|(key, _)| key).collect();
        for key in idle {
            if self.wanted(key, now) == Some(node) {
                self.counts.moves += u64::from(self.routes.go(key, node));
            }
        }
    }

    /// Where a topic is to go: its first broker that does not rest after a failure.
    pub(super) fn wanted(&mut self, key: usize, now: Instant) -> Option<NodeId> {
        let nodes = &self.nodes;
        let candidates = self.routes.route(key).candidates.as_ref()?;
        candidates.iter().copied().find(|node| !nodes.get(node).is_some_and(|upstream| upstream.rests_at(now)))
    }

    /// The broker for IDENTIFY and AUTH.
    pub(super) fn home_now(&self, now: Instant) -> Option<NodeId> {
        let rests = |node: &NodeId| self.nodes.get(node).is_some_and(|upstream| upstream.rests_at(now));
        self.home.iter().copied().find(|node| !rests(node))
    }

    /// Has a connection made to `node` if there is none. False if there are too many, or it rests.
    pub(super) fn connect(&mut self, node: NodeId, now: Instant) -> bool {
        match self.nodes.get_mut(&node) {
            Some(upstream) if upstream.rests_at(now) => return false,
            Some(upstream) if upstream.is_down() => upstream.reconnect(now),
            Some(_) => return true,
            None => {
                if self.nodes.len() >= NODES_MAX {
                    self.nodes.retain(|_, upstream| !upstream.is_down());
                }
                if self.nodes.len() >= NODES_MAX {
                    return false;
                }
                self.nodes.insert(node, Upstream::connecting(now));
            }
        }
        self.orders.push_back(Order::Connect(node));
        self.tick_at = self.tick_at.or(Some(now + self.config.node_heartbeat));
        true
    }

    /// Has an open IDENTIFY sent to its first broker that can be reached; without one the connection ends.
    pub(super) fn greet(&mut self, now: Instant) {
        let Some(Alone::Identify(number)) = self.alone else { return };
        if self.home_now(now).is_some_and(|home| self.connect(home, now)) {
            return;
        }
        self.alone = None;
        let text = "E_IDENTIFY_FAILED IDENTIFY failed: no broker can be reached".to_owned();
        self.answers.settle(number, Answer::Error(text), Then::End);
        self.phase = Phase::Closing;
    }

    /// A broker failed: what it owes is answered with errors, and topics go elsewhere.
    fn fail_node(&mut self, node: NodeId, now: Instant) {
        let Some(upstream) = self.nodes.get_mut(&node) else { return };
        let owed = upstream.fail(now);
        self.counts.node_failures += 1;
        self.orders.push_back(Order::Close(node));
        for awaited in owed {
            let Awaited::Command { number, route } = awaited else { continue };
            let verb = self.answers.verb(number);
            match (route, self.alone) {
                (Some(key), _) => {
                    self.routes.route(key).outstanding -= 1;
                    self.counts.lost += 1;
                    if let Some(verb) = verb {
                        self.answers.settle(number, Answer::Error(verb.failed(GONE)), Then::GoOn);
                    }
                }
                // It is sent to the next one.
                (None, Some(Alone::Identify(_))) => {}
                (None, _) => {
                    self.alone = None;
                    let text = "E_AUTH_FAILED AUTH failed: the broker's connection failed".to_owned();
                    self.answers.settle(number, Answer::Error(text), Then::End);
                    self.phase = Phase::Closing;
                }
            }
        }
        self.routes.leave(node);
        self.greet(now);
    }

    /// Lets a broker go that owes nothing.
    fn leave_node(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.routes.leave(node);
        self.orders.push_back(Order::Close(node));
    }

    /// Brokers that are silent have failed; those that no topic goes to are left after a while.
    pub(super) fn look_after_nodes(&mut self, now: Instant) {
        let silence = self.config.node_heartbeat * 2;
        let (mut silent, mut unused) = (Vec::new(), Vec::new());
        for (node, upstream) in &self.nodes {
            match upstream.state {
                State::Down { until } if now >= until + IDLE => unused.push(*node),
                State::Greeting | State::Ready if now.since(upstream.heard) >= silence => silent.push(*node),
                State::Ready
                    if upstream.awaited.is_empty() && now.since(upstream.used) >= IDLE && !self.routes.uses(*node) =>
                {
                    unused.push(*node);
                }
                State::Down { .. } | State::Connecting | State::Greeting | State::Ready => {}
            }
        }
        for node in silent {
            self.fail_node(node, now);
        }
        for node in unused {
            if self.nodes.get(&node).is_some_and(Upstream::is_down) {
                self.nodes.remove(&node);
            } else {
                self.leave_node(node);
            }
        }
    }
}
