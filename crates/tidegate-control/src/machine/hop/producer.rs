//! The side of the producer: its commands, in order.

use bytes::{Buf as _, Bytes, BytesMut};
use tidegate_core::Instant;
use tidegate_wire::nsq::TopicName;
use tidegate_wire::nsq::command::MAGIC;

use super::answers::{Answer, Then};
use super::command::{self, Command, Read, Verb};
use super::identify::Hello;
use super::node::{Awaited, NodeId, State, Upstream};
use super::{Alone, Hop, Order, Phase};

/// What one look at the producer's bytes came to.
enum Step {
    /// Something was taken.
    Taken,
    /// At least so many bytes are missing.
    Partial { lacks: usize },
    /// The next command must wait; its bytes are not taken.
    Held,
}

/// Where a publish goes.
enum Choice {
    Send(NodeId),
    Wait,
    Refuse(&'static str),
}

impl Hop {
    /// The producer sent bytes, which are in [`Hop::read_buffer`].
    pub fn on_bytes(&mut self, now: Instant) {
        self.heard = now;
        self.advance(now);
    }

    /// The producer will send no more. Whole commands that it sent before are carried out and answered.
    pub fn on_eof(&mut self, now: Instant) {
        self.is_eof = true;
        self.advance(now);
    }

    /// Takes commands as far as they go, and gives answers whose turn it is.
    pub(super) fn advance(&mut self, now: Instant) {
        self.is_held = false;
        while self.is_open() {
            match self.step(now) {
                Step::Taken => {}
                Step::Partial { lacks } => {
                    self.lacks = lacks;
                    if self.is_eof {
                        self.phase = Phase::Closing;
                    }
                    break;
                }
                Step::Held => {
                    self.is_held = true;
                    break;
                }
            }
        }
        self.end_run();
        if self.input.is_empty() {
            // An idle connection holds no buffer.
            self.input = BytesMut::new();
        }
        self.flush();
    }

    /// Gives the answers whose turn it is; ends the connection behind the last one.
    fn flush(&mut self) {
        if self.is_ended() {
            return;
        }
        let then = self.answers.flush(&mut self.out);
        if then == Then::End || (self.phase == Phase::Closing && self.answers.is_empty()) {
            self.end();
        }
    }

    fn step(&mut self, now: Instant) -> Step {
        if self.phase == Phase::Greeting {
            return self.greeting_step();
        }
        if self.answers.is_full() {
            self.flush();
            if self.answers.is_full() {
                return Step::Held;
            }
        }
        if self.hello.is_some() || self.alone.is_some() {
            return Step::Held;
        }
        match command::read(&self.input[self.taken()..], self.config.max_body_size) {
            Read::Partial { lacks } => Step::Partial { lacks },
            Read::Wrong(text) => self.refuse(text),
            Read::Whole(command) => match command.verb {
                Verb::Identify => self.identify(&command, now),
                Verb::Auth => self.auth(&command, now),
                Verb::Pub | Verb::Mpub | Verb::Dpub => self.publish(&command, now),
                Verb::Nop => {
                    self.skip(command.bytes);
                    Step::Taken
                }
                Verb::Cls => {
                    self.skip(command.bytes);
                    self.answers.push_answered(Verb::Cls, Answer::Response(b"CLOSE_WAIT"), Then::End);
                    self.phase = Phase::Closing;
                    Step::Taken
                }
            },
        }
    }

    fn greeting_step(&mut self) -> Step {
        let known = self.input.len().min(MAGIC.len());
        if self.input[..known] != MAGIC[..known] {
            return self.refuse("E_BAD_PROTOCOL".to_owned());
        }
        if known < MAGIC.len() {
            return Step::Partial { lacks: MAGIC.len() - known };
        }
        self.input.advance(known);
        self.phase = Phase::Open;
        Step::Taken
    }

    /// The connection ends with this error, behind the answers to all earlier commands.
    fn refuse(&mut self, text: String) -> Step {
        self.answers.push_answered(Verb::Nop, Answer::Error(text), Then::End);
        self.phase = Phase::Closing;
        Step::Taken
    }

    /// Bytes at the front of the input that are taken and not yet sent.
    fn taken(&self) -> usize {
        self.run.map_or(0, |(_, bytes)| bytes)
    }

    /// Sends the commands that were taken one after another for one broker, as one piece of the input.
    fn end_run(&mut self) {
        if let Some((node, bytes)) = self.run.take() {
            self.counts.bytes += bytes as u64;
            self.orders.push_back(Order::Write(node, self.input.split_to(bytes).freeze()));
        }
    }

    /// Takes bytes that go to no broker.
    fn skip(&mut self, bytes: usize) {
        self.end_run();
        self.input.advance(bytes);
    }

    /// Begins to name the connection.
    fn introduce(&mut self, hello: Hello, now: Instant) {
        self.heartbeat = hello.heartbeat;
        self.beat_at = hello.heartbeat.map(|interval| now + interval);
        self.orders.push_back(Order::Name(hello.base.clone()));
        self.hello = Some(hello);
    }

    /// The first command of a connection that did not IDENTIFY: it is named by its address.
    fn introduce_plain(&mut self, now: Instant) -> Step {
        let hello = Hello::plain(&self.peer);
        self.introduce(hello, now);
        Step::Held
    }

    fn identify(&mut self, command: &Command, now: Instant) -> Step {
        if !self.greeting.is_empty() {
            return self.refuse("E_INVALID cannot IDENTIFY in current state".to_owned());
        }
        let body = &self.input[command.line + 4..command.bytes];
        match Hello::read(body, &self.peer) {
            Err(text) => self.refuse(text),
            Ok(hello) => {
                self.skip(command.bytes);
                let number = self.answers.push(Verb::Identify, command.bytes);
                self.alone = Some(Alone::Identify(number));
                self.introduce(hello, now);
                Step::Held
            }
        }
    }

    fn auth(&mut self, command: &Command, now: Instant) -> Step {
        if self.greeting.is_empty() {
            return self.introduce_plain(now);
        }
        // After the answers to all earlier commands, as at nsqd.
        if !self.answers.is_empty() {
            return Step::Held;
        }
        let Some(home) = self.home_now(now) else {
            return self.refuse("E_AUTH_FAILED AUTH failed: no broker can be reached".to_owned());
        };
        if !self.nodes.get(&home).is_some_and(Upstream::is_ready) {
            if !self.connect(home, now) {
                return self.refuse("E_AUTH_FAILED AUTH failed: too many brokers".to_owned());
            }
            return Step::Held;
        }
        self.end_run();
        // A copy: it is kept, and the piece of the input that it stands in need not be.
        let secret = Bytes::copy_from_slice(&self.input[..command.bytes]);
        self.input.advance(command.bytes);
        let number = self.answers.push(Verb::Auth, command.bytes);
        self.alone = Some(Alone::Auth(number));
        for (node, upstream) in &mut self.nodes {
            if !matches!(upstream.state, State::Ready | State::Greeting) {
                continue;
            }
            self.orders.push_back(Order::Write(*node, secret.clone()));
            upstream.awaited.push_back(if *node == home {
                Awaited::Command { number, route: None }
            } else {
                upstream.state = State::Greeting;
                Awaited::Greeting
            });
        }
        self.secret = Some(secret);
        Step::Held
    }

    fn publish(&mut self, command: &Command, now: Instant) -> Step {
        if self.greeting.is_empty() {
            return self.introduce_plain(now);
        }
        let start = self.taken();
        let name = start + command.topic.start..start + command.topic.end;
        let key = if let Some(key) = self.routes.find(&self.input[name.clone()]) {
            key
        } else if let Ok(topic) = TopicName::from_bytes(&self.input[name.clone()]) {
            self.begin_route(topic)
        } else {
            let text = bad_topic(command.verb, &self.input[name]);
            return self.refuse(text);
        };
        match self.choose(key, now) {
            Choice::Wait => Step::Held,
            Choice::Send(node) => {
                self.send(command, key, node, now);
                Step::Taken
            }
            Choice::Refuse(why) => {
                self.skip(command.bytes);
                self.counts.unplaced += 1;
                let text = command.verb.failed(why);
                self.answers.push_answered(command.verb, Answer::Error(text), Then::GoOn);
                Step::Taken
            }
        }
    }

    fn begin_route(&mut self, topic: TopicName) -> usize {
        if self.routes.is_full() {
            self.orders.extend(self.routes.evict().into_iter().map(Order::Forget));
        }
        self.orders.push_back(Order::Place(topic.clone()));
        self.routes.insert(topic)
    }

    /// Where the next command of a topic goes.
    fn choose(&mut self, key: usize, now: Instant) -> Choice {
        let route = self.routes.route(key);
        let (at, is_drained) = (route.at, route.outstanding == 0);
        if route.candidates.is_none() {
            return Choice::Wait;
        }
        let is_ready = |hop: &Self, node: NodeId| hop.nodes.get(&node).is_some_and(Upstream::is_ready);
        let wanted = self.wanted(key, now);
        match (at.filter(|at| is_ready(self, *at)), wanted) {
            (Some(at), None) => Choice::Send(at),
            (Some(at), Some(wanted)) if at == wanted => Choice::Send(at),
            (_, Some(wanted)) if is_ready(self, wanted) => {
                // Before a topic goes elsewhere, all that it sent is answered.
                if is_drained { Choice::Send(wanted) } else { Choice::Wait }
            }
            (Some(at), Some(wanted)) => {
                self.connect(wanted, now);
                Choice::Send(at)
            }
            (None, Some(wanted)) if self.connect(wanted, now) => Choice::Wait,
            (None, Some(_)) => Choice::Refuse("the producer's topics are on too many brokers"),
            (None, None) => Choice::Refuse("no broker of the topic can be reached"),
        }
    }

    fn send(&mut self, command: &Command, key: usize, node: NodeId, now: Instant) {
        let taken = match self.run {
            Some((to, bytes)) if to == node => bytes,
            _ => {
                self.end_run();
                0
            }
        };
        self.run = Some((node, taken + command.bytes));
        let number = self.answers.push(command.verb, command.bytes);
        let upstream = self.nodes.get_mut(&node).expect("a publish is sent where the connection is ready");
        upstream.awaited.push_back(Awaited::Command { number, route: Some(key) });
        upstream.used = now;
        self.routes.route(key).outstanding += 1;
        self.counts.moves += u64::from(self.routes.go(key, node));
    }
}

/// nsqd says the code twice for MPUB, and clients may have learnt to expect it.
fn bad_topic(verb: Verb, name: &[u8]) -> String {
    let again = if verb == Verb::Mpub { "E_BAD_TOPIC " } else { "" };
    format!("E_BAD_TOPIC {again}{} topic name \"{}\" is not valid", verb.text(), String::from_utf8_lossy(name))
}
