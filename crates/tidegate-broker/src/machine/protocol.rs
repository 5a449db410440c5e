//! What clients say, and what they are answered: the NSQ TCP protocol on a shard's connections.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::Instant;
use tidegate_core::time::nanos;
use tidegate_wire::nsq::command::{self, BadBatch, Batch, Line, Verb};
use tidegate_wire::nsq::{ChannelName, TopicName, frame};

use super::acks::{Origin, Publisher};
use super::admin::{Newcomers, PublishRefused};
use super::auth::AuthState;
use super::client::{Hold, LastPub, State};
use super::lanes::Way;
use super::laning::InLane;
use super::output::{ConnId, Layers, Output, PeerMessage};
use super::peers::{Parcel, Parked, PeerAnswer, PeerBatch, PeerEntry};
use super::publish::{Publish, Published};
use super::publishers::{Label, Link, PublisherRef};
use super::queue::Queued;
use super::shard::Shard;
use super::timers::Timer;
use super::topic::TopicKey;
use crate::machine::home_shard;

/// What one look at a connection's bytes came to.
enum Step {
    /// A command took so many bytes.
    Used(usize),
    /// The command is not whole yet.
    Incomplete,
    /// The command must wait; its bytes are not taken.
    Held,
    /// The command is answered with this error; `fatal` ones end the connection.
    Failed { used: usize, fatal: bool, text: String },
}

fn fatal(text: impl Into<String>) -> Step {
    Step::Failed { used: 0, fatal: true, text: text.into() }
}

#[expect(clippy::struct_excessive_bools, reason = "the fields are the protocol's")]
/// What IDENTIFY may carry. A null counts as absent, as it does for nsqd.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Identify {
    #[serde(deserialize_with = "null_is_default")]
    client_id: String,
    #[serde(deserialize_with = "null_is_default")]
    hostname: String,
    #[serde(deserialize_with = "null_is_default")]
    user_agent: String,
    #[serde(deserialize_with = "null_is_default")]
    feature_negotiation: bool,
    #[serde(deserialize_with = "null_is_default")]
    heartbeat_interval: i64,
    #[serde(deserialize_with = "null_is_default")]
    output_buffer_size: i64,
    #[serde(deserialize_with = "null_is_default")]
    output_buffer_timeout: i64,
    #[serde(deserialize_with = "null_is_default")]
    tls_v1: bool,
    #[serde(deserialize_with = "null_is_default")]
    deflate: bool,
    #[serde(deserialize_with = "null_is_default")]
    deflate_level: i64,
    #[serde(deserialize_with = "null_is_default")]
    snappy: bool,
    #[serde(deserialize_with = "null_is_default")]
    sample_rate: i64,
    #[serde(deserialize_with = "null_is_default")]
    msg_timeout: i64,
    // Tidegate's own.
    #[serde(deserialize_with = "null_is_default")]
    tidegate_publisher: String,
    #[serde(deserialize_with = "null_is_default")]
    tidegate_correlation: String,
}

fn null_is_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(field: D) -> Result<T, D::Error> {
    Option::deserialize(field).map(Option::unwrap_or_default)
}

#[expect(clippy::struct_excessive_bools, reason = "the fields are the protocol's")]
#[derive(Serialize)]
struct Negotiated<'a> {
    max_rdy_count: u32,
    version: &'a str,
    max_msg_timeout: u128,
    msg_timeout: u64,
    tls_v1: bool,
    deflate: bool,
    deflate_level: u32,
    max_deflate_level: u32,
    snappy: bool,
    sample_rate: u8,
    auth_required: bool,
    output_buffer_size: i64,
    output_buffer_timeout: i64,
}

impl Shard {
    /// Bytes arrived on a connection: all that were not taken before, and new ones. Takes whole commands and answers how
    /// many bytes they were; the rest is to be given again with more behind it. `arrival` is when the newest came.
    pub fn on_bytes(&mut self, conn: ConnId, input: &[u8], arrival: Instant, now: Instant) -> usize {
        self.lapse_parts(now);
        let Some(client) = self.clients.get_mut(conn) else { return input.len() };
        client.last_heard = now;
        let mut used = 0;
        while self.wants_bytes(conn) && used < input.len() {
            match self.on_command(conn, &input[used..], arrival, now) {
                Step::Used(bytes) => used += bytes,
                Step::Incomplete | Step::Held => break,
                Step::Failed { fatal: true, .. } if !self.clients[conn].answers.is_empty() => {
                    // It is closed when what was published before has been answered.
                    self.clients[conn].hold = Hold::Answers;
                    break;
                }
                Step::Failed { used: bytes, fatal, text } => {
                    used += bytes;
                    let client = &mut self.clients[conn];
                    client.answers.error(&text, &mut client.out);
                    self.mark_client(conn);
                    if fatal {
                        self.kill(conn);
                        return input.len();
                    }
                }
            }
        }
        used
    }

    fn on_command(&mut self, conn: ConnId, input: &[u8], arrival: Instant, now: Instant) -> Step {
        if self.clients[conn].state == State::Greeting {
            return self.on_greeting(conn, input);
        }
        let (line, used) = match command::line(input) {
            Ok(Some(found)) => found,
            Ok(None) => return Step::Incomplete,
            Err(too_long) => return fatal(format!("E_INVALID {too_long}")),
        };
        if self.config.tls_required && !self.clients[conn].tls && line.verb != Verb::Identify {
            let verb = String::from_utf8_lossy(line.verb_text);
            return fatal(format!("E_INVALID cannot {verb} in current state (TLS required)"));
        }
        let (answers, rest) = (&self.clients[conn].answers, &input[used..]);
        let waits = match line.verb {
            Verb::Pub | Verb::Mpub | Verb::Dpub => answers.is_full(),
            Verb::Fin | Verb::Req | Verb::Touch | Verb::Rdy | Verb::Nop => false,
            _ => !answers.is_empty(),
        };
        if waits {
            self.clients[conn].hold = Hold::Answers;
            return Step::Held;
        }
        let step = match line.verb {
            Verb::Fin => self.on_fin(conn, &line, now),
            Verb::Pub => self.on_pub(conn, &line, rest, arrival, now),
            Verb::Mpub => self.on_mpub(conn, &line, rest, arrival, now),
            Verb::Dpub => self.on_dpub(conn, &line, rest, arrival, now),
            Verb::Rdy => self.on_rdy(conn, &line),
            Verb::Req => self.on_req(conn, &line, now),
            Verb::Touch => self.on_touch(conn, &line, now),
            Verb::Nop => Step::Used(0),
            Verb::Sub => self.on_sub(conn, &line, now),
            Verb::Cls => self.on_cls(conn),
            Verb::Identify => self.on_identify(conn, rest, now),
            Verb::Auth => self.on_auth(conn, &line, rest),
            Verb::Unknown => fatal(format!("E_INVALID invalid command {}", String::from_utf8_lossy(line.verb_text))),
        };
        match step {
            Step::Used(bytes) => Step::Used(used + bytes),
            Step::Failed { used: bytes, fatal, text } => Step::Failed { used: used + bytes, fatal, text },
            other => other,
        }
    }

    fn on_greeting(&mut self, conn: ConnId, input: &[u8]) -> Step {
        let known = input.len().min(command::MAGIC.len());
        if input[..known] != command::MAGIC[..known] {
            return fatal("E_BAD_PROTOCOL");
        }
        if known < command::MAGIC.len() {
            return Step::Incomplete;
        }
        self.clients[conn].state = State::Init;
        Step::Used(known)
    }

    // Metadata.

    fn on_identify(&mut self, conn: ConnId, rest: &[u8], now: Instant) -> Step {
        if self.clients[conn].state != State::Init {
            return fatal("E_INVALID cannot IDENTIFY in current state");
        }
        let body = match self.body(rest, "IDENTIFY") {
            Ok(body) => body,
            Err(step) => return step,
        };
        // An object, and no array of the same values.
        let asked = serde_json::from_slice(body).and_then(|fields| serde_json::from_value(Value::Object(fields)));
        let Ok(asked) = asked as Result<Identify, _> else {
            return fatal("E_BAD_BODY IDENTIFY failed to decode JSON body");
        };
        let buffer = match self.negotiate(conn, &asked, now) {
            Ok(buffer) => buffer,
            Err(text) => return fatal(format!("E_BAD_BODY IDENTIFY {text}")),
        };
        let used = 4 + body.len();
        if !asked.feature_negotiation {
            frame::put_ok(&mut self.clients[conn].out);
            self.mark_client(conn);
            return Step::Used(used);
        }
        let level_max = self.config.deflate.unwrap_or(0);
        let level = if asked.deflate_level > 0 { u32::try_from(asked.deflate_level).unwrap_or(level_max) } else { 6 };
        let level = level.min(if level_max == 0 { 6 } else { level_max });
        let deflate = self.config.deflate.is_some() && asked.deflate;
        let layers = Layers {
            tls: self.config.tls && asked.tls_v1,
            snappy: self.config.snappy && asked.snappy,
            deflate: deflate.then_some(level),
        };
        if layers.snappy && deflate {
            return fatal("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression");
        }
        let client = &mut self.clients[conn];
        let answer = Negotiated {
            max_rdy_count: self.config.max_rdy_count,
            version: &self.config.version,
            max_msg_timeout: self.config.max_msg_timeout.as_millis(),
            msg_timeout: client.msg_timeout_ns / 1_000_000,
            tls_v1: layers.tls,
            deflate,
            deflate_level: level,
            max_deflate_level: level_max,
            snappy: layers.snappy,
            sample_rate: client.sample_rate,
            auth_required: self.config.auth,
            output_buffer_size: buffer.0,
            output_buffer_timeout: buffer.1,
        };
        let answer = serde_json::to_vec(&answer).expect("plain numbers and strings");
        frame::put_response(&mut client.out, &answer);
        client.about.snappy = layers.snappy;
        client.about.deflate = deflate;
        if layers != Layers::default() {
            client.hold = Hold::Upgrading;
            self.outputs.push_back(Output::Upgrade(conn, layers));
        }
        self.mark_client(conn);
        Step::Used(used)
    }

    /// Checks and applies what IDENTIFY asks for; answers the output buffer's size and time-out in ms.
    fn negotiate(&mut self, conn: ConnId, asked: &Identify, now: Instant) -> Result<(i64, i64), String> {
        let heartbeat = match asked.heartbeat_interval {
            0 => None,
            -1 => Some(0),
            ms if in_ms(ms, Duration::from_secs(1), self.config.max_heartbeat) => Some(ms.unsigned_abs() * 1_000_000),
            ms => return Err(format!("heartbeat interval ({ms}) is invalid")),
        };
        let buffer = self.config.output_buffer;
        let timeout = match asked.output_buffer_timeout {
            0 => i64::try_from(buffer.timeout.as_millis()).unwrap_or(i64::MAX),
            -1 => 0,
            ms if in_ms(ms, buffer.timeout_min, buffer.timeout_max) => ms,
            ms => return Err(format!("output buffer timeout ({ms}) is invalid")),
        };
        let buffer = match asked.output_buffer_size {
            0 => (i64::from(buffer.size), timeout),
            -1 => (1, 0),
            size if (64..=i64::from(buffer.size_max)).contains(&size) => (size, timeout),
            size => return Err(format!("output buffer size ({size}) is invalid")),
        };
        let Some(sample_rate) = u8::try_from(asked.sample_rate).ok().filter(|rate| *rate <= 99) else {
            return Err(format!("sample rate ({}) is invalid", asked.sample_rate));
        };
        let msg_timeout = match asked.msg_timeout {
            0 => nanos(self.config.msg_timeout),
            ms if in_ms(ms, Duration::from_secs(1), self.config.max_msg_timeout) => ms.unsigned_abs() * 1_000_000,
            ms => return Err(format!("msg timeout ({ms}) is invalid")),
        };
        let publisher = label("tidegate_publisher", &asked.tidegate_publisher)?;
        let correlation = label("tidegate_correlation", &asked.tidegate_correlation)?;
        let client = &mut self.clients[conn];
        let places = client.take_places();
        (client.about.publisher, client.about.correlation) = (publisher, correlation);
        client.about.client_id.clone_from(&asked.client_id);
        client.about.hostname.clone_from(&asked.hostname);
        client.about.user_agent.clone_from(&asked.user_agent);
        client.sample_rate = sample_rate;
        client.msg_timeout_ns = msg_timeout;
        self.vacate(places);
        if let Some(interval_ns) = heartbeat {
            self.set_heartbeat(conn, interval_ns, now);
        }
        Ok(buffer)
    }

    /// One of the layers of [`Output::Upgrade`] stands: the client is told, inside it.
    pub fn on_layer(&mut self, conn: ConnId) {
        if let Some(client) = self.clients.get_mut(conn) {
            frame::put_ok(&mut client.out);
            self.mark_client(conn);
        }
    }

    /// TLS stands, with these parameters for people to see.
    pub fn on_tls(&mut self, conn: ConnId, version: String, cipher_suite: String) {
        if let Some(client) = self.clients.get_mut(conn) {
            client.tls = true;
            client.about.tls_version = version;
            client.about.tls_cipher_suite = cipher_suite;
        }
    }

    /// All layers stand: commands are looked at again.
    pub fn on_upgraded(&mut self, conn: ConnId) {
        if self.clients.contains(conn) {
            self.resume(conn);
        }
    }

    fn on_auth(&mut self, conn: ConnId, line: &Line<'_>, rest: &[u8]) -> Step {
        if self.clients[conn].state != State::Init {
            return fatal("E_INVALID cannot AUTH in current state");
        }
        if line.param_count() != 0 {
            return fatal("E_INVALID AUTH invalid number of parameters");
        }
        let secret = match self.body(rest, "AUTH") {
            Ok(body) => body.to_vec(),
            Err(step) => return step,
        };
        let used = 4 + secret.len();
        if self.clients[conn].about.auth.is_some() {
            return fatal("E_INVALID AUTH already set");
        }
        if !self.config.auth {
            return fatal("E_AUTH_DISABLED AUTH disabled");
        }
        self.clients[conn].about.secret = secret;
        self.ask_auth(conn);
        Step::Used(used)
    }

    fn ask_auth(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        client.hold = Hold::Authorizing;
        let secret = client.about.secret.clone();
        self.outputs.push_back(Output::Authenticate { conn, serial: client.serial, secret });
    }

    /// The AUTH server answered, or (`None`) it could not be asked.
    pub fn on_authorized(&mut self, conn: ConnId, serial: u64, answer: Option<AuthState>) {
        let Some(client) = self.clients.get_mut(conn).filter(|client| client.serial == serial) else { return };
        if client.hold != Hold::Authorizing {
            return;
        }
        let first = client.about.auth.is_none();
        let refusal = match answer {
            None => Some("E_AUTH_FAILED AUTH failed"),
            Some(auth) if auth.permission_count() == 0 && first => Some("E_UNAUTHORIZED AUTH no authorizations found"),
            Some(auth) => {
                if first {
                    frame::put_response(&mut client.out, &auth.to_json());
                }
                client.about.auth = Some(auth);
                None
            }
        };
        if let Some(text) = refusal {
            frame::put_error(&mut client.out, text.as_bytes());
            client.hold = Hold::Free;
            self.kill(conn);
        } else {
            self.resume(conn);
        }
        self.mark_client(conn);
    }

    /// `Some(step)` if the command may not go on now.
    fn forbid(
        &mut self,
        conn: ConnId,
        verb: &str,
        topic: &TopicName,
        channel: Option<&ChannelName>,
        now: Instant,
    ) -> Option<Step> {
        if !self.config.auth {
            return None;
        }
        let Some(auth) = &self.clients[conn].about.auth else {
            return Some(fatal(format!("E_AUTH_FIRST AUTH required before {verb}")));
        };
        if auth.is_expired(now) {
            self.ask_auth(conn);
            return Some(Step::Held);
        }
        if auth.is_allowed(topic, channel) {
            return None;
        }
        let channel = channel.map_or("", ChannelName::as_str);
        Some(fatal(format!("E_UNAUTHORIZED AUTH failed for {verb} on \"{topic}\" \"{channel}\"")))
    }

    // Subscribing.

    fn on_sub(&mut self, conn: ConnId, line: &Line<'_>, now: Instant) -> Step {
        if self.clients[conn].state != State::Init {
            return fatal("E_INVALID cannot SUB in current state");
        }
        if self.clients[conn].heartbeat_ns == 0 {
            return fatal("E_INVALID cannot SUB with heartbeats disabled");
        }
        let (Some(topic), Some(channel)) = (line.param(0), line.param(1)) else {
            return fatal("E_INVALID SUB insufficient number of parameters");
        };
        let topic = match topic_name(topic, "SUB") {
            Ok(name) => name,
            Err(text) => return fatal(text),
        };
        let Ok(channel) = ChannelName::from_bytes(channel) else {
            let channel = String::from_utf8_lossy(channel);
            return fatal(format!("E_BAD_CHANNEL SUB channel name \"{channel}\" is not valid"));
        };
        if let Some(step) = self.forbid(conn, "SUB", &topic, Some(&channel), now) {
            return step;
        }
        if self.is_ending() {
            return fatal("E_SUB_FAILED SUB failed exiting");
        }
        if self.waits_in_lanes(conn) {
            return Step::Held;
        }
        let home = home_shard(topic.as_str(), self.config.shards);
        if home != self.config.shard {
            self.clients[conn].hold = Hold::Moving;
            self.outputs.push_back(Output::Migrate { conn, shard: home });
            return Step::Held;
        }
        let topic_key = self.topic(&topic, now);
        let key = self.channel(topic_key, &channel, now);
        let limit = self.config.max_channel_consumers;
        if limit > 0 && self.channels[key].clients.len() >= limit {
            return fatal(format!("E_SUB_FAILED SUB failed consumers for {topic}:{channel} exceeds limit of {limit}"));
        }
        self.channels[key].clients.push(conn);
        let client = &mut self.clients[conn];
        client.state = State::Subscribed;
        client.topic = Some(topic_key);
        client.channel = Some(key);
        frame::put_ok(&mut client.out);
        self.mark_client(conn);
        Step::Used(0)
    }

    fn on_rdy(&mut self, conn: ConnId, line: &Line<'_>) -> Step {
        match self.clients[conn].state {
            State::Closing => return Step::Used(0),
            State::Subscribed => {}
            _ => return fatal("E_INVALID cannot RDY in current state"),
        }
        let count = match line.param(0) {
            None => 1,
            Some(text) => match command::decimal(text) {
                Some(count) => count,
                None => return fatal(format!("E_INVALID RDY could not parse count {}", String::from_utf8_lossy(text))),
            },
        };
        let max = self.config.max_rdy_count;
        let Some(count) = u32::try_from(count).ok().filter(|count| *count <= max) else {
            return fatal(format!("E_INVALID RDY count {count} out of range 0-{max}"));
        };
        self.clients[conn].ready = count;
        self.list_if_ready(conn);
        Step::Used(0)
    }

    fn on_cls(&mut self, conn: ConnId) -> Step {
        let client = &mut self.clients[conn];
        if client.state != State::Subscribed {
            return fatal("E_INVALID cannot CLS in current state");
        }
        client.state = State::Closing;
        client.ready = 0;
        frame::put_response(&mut client.out, b"CLOSE_WAIT");
        self.mark_client(conn);
        Step::Used(0)
    }

    /// The message id that FIN, REQ or TOUCH names.
    fn message_id(&self, conn: ConnId, line: &Line<'_>, verb: &str, params: usize) -> Result<[u8; 16], Step> {
        if !matches!(self.clients[conn].state, State::Subscribed | State::Closing) {
            return Err(fatal(format!("E_INVALID cannot {verb} in current state")));
        }
        if line.param_count() < params {
            return Err(fatal(format!("E_INVALID {verb} insufficient number of params")));
        }
        let id = line.param(0).and_then(|text| <[u8; 16]>::try_from(text).ok());
        id.ok_or_else(|| fatal("E_INVALID invalid message ID"))
    }

    #[inline]
    fn on_fin(&mut self, conn: ConnId, line: &Line<'_>, now: Instant) -> Step {
        let id = match self.message_id(conn, line, "FIN", 1) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let client = &mut self.clients[conn];
        let (Some(held), Some(channel)) = (client.in_flight.remove(&id), client.channel) else {
            return not_in_flight("FIN", id);
        };
        client.finish_count += 1;
        self.timers.cancel(held.timer);
        let channel = &mut self.channels[channel];
        channel.in_flight -= 1;
        channel.counts.finished += 1;
        let delay_ns = now.nanos_since(self.messages.get(held.message).arrival);
        channel.end_to_end.record(delay_ns, now);
        if let Some(e2e) = &mut channel.e2e {
            e2e.record(delay_ns, now);
        }
        if let Some(watch) = &mut self.topics[channel.topic].watch {
            watch.record_delay(delay_ns, now);
        }
        self.messages.release(held.message);
        self.list_if_ready(conn);
        Step::Used(0)
    }

    fn on_req(&mut self, conn: ConnId, line: &Line<'_>, now: Instant) -> Step {
        let id = match self.message_id(conn, line, "REQ", 2) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let text = line.param(1).unwrap_or_default();
        let Some(delay_ms) = command::decimal(text) else {
            return fatal(format!("E_INVALID REQ could not parse timeout {}", String::from_utf8_lossy(text)));
        };
        let delay = Duration::from_millis(delay_ms).min(self.config.max_req_timeout);
        let client = &mut self.clients[conn];
        let Some(channel) = client.channel else { return not_in_flight("REQ", id) };
        let bound = self.config.max_queue_bytes;
        if !delay.is_zero() && self.channels[channel].deferred.bytes() >= bound && client.in_flight.contains_key(&id) {
            // It stays in flight, and comes again when its time-out ends.
            let text = format!("E_REQ_FAILED REQ failed {}", PublishRefused::DeferredFull { bound });
            return Step::Failed { used: 0, fatal: false, text };
        }
        let Some(held) = client.in_flight.remove(&id) else { return not_in_flight("REQ", id) };
        client.requeue_count += 1;
        self.timers.cancel(held.timer);
        let entry = &mut self.channels[channel];
        entry.in_flight -= 1;
        entry.counts.requeued += 1;
        let queued = Queued { message: held.message, attempts: held.attempts, entered: now };
        if delay.is_zero() {
            self.requeue(channel, queued);
        } else {
            self.defer(channel, queued, now + delay);
        }
        self.list_if_ready(conn);
        Step::Used(0)
    }

    fn on_touch(&mut self, conn: ConnId, line: &Line<'_>, now: Instant) -> Step {
        let id = match self.message_id(conn, line, "TOUCH", 1) {
            Ok(id) => id,
            Err(step) => return step,
        };
        let client = &mut self.clients[conn];
        let msg_timeout_ns = client.msg_timeout_ns;
        let Some(held) = client.in_flight.get_mut(&id) else { return not_in_flight("TOUCH", id) };
        let latest = held.delivered + self.config.max_msg_timeout;
        self.timers.cancel(held.timer);
        let due = now.plus_nanos(msg_timeout_ns).min(latest);
        held.timer = self.timers.insert(due, Timer::Message { conn, id });
        Step::Used(0)
    }

    // Publishing.

    #[inline]
    fn on_pub(&mut self, conn: ConnId, line: &Line<'_>, rest: &[u8], arrival: Instant, now: Instant) -> Step {
        let Some(topic) = line.param(0) else {
            return fatal("E_INVALID PUB insufficient number of parameters");
        };
        let target = match self.target(conn, topic, "PUB") {
            Ok(target) => target,
            Err(text) => return fatal(text),
        };
        let body = match self.message_body(rest, "PUB") {
            Ok(body) => body,
            Err(step) => return step,
        };
        let (bodies, bytes, publisher) = (std::iter::once(body), body.len(), PublisherRef::default());
        let publish = Publish { bodies, count: 1, bytes, defer_ns: 0, arrival, read: now, publisher };
        self.publish_for(conn, target, publish, ("PUB", 4 + body.len()), now)
    }

    fn on_dpub(&mut self, conn: ConnId, line: &Line<'_>, rest: &[u8], arrival: Instant, now: Instant) -> Step {
        let (Some(topic), Some(delay)) = (line.param(0), line.param(1)) else {
            return fatal("E_INVALID DPUB insufficient number of parameters");
        };
        let target = match self.target(conn, topic, "DPUB") {
            Ok(target) => target,
            Err(text) => return fatal(text),
        };
        let Some(delay_ms) = command::decimal(delay) else {
            return fatal(format!("E_INVALID DPUB could not parse timeout {}", String::from_utf8_lossy(delay)));
        };
        let delay = Duration::from_millis(delay_ms);
        let max = self.config.max_req_timeout;
        if delay > max {
            return fatal(format!("E_INVALID DPUB timeout {delay_ms} out of range 0-{}", max.as_millis()));
        }
        let body = match self.message_body(rest, "DPUB") {
            Ok(body) => body,
            Err(step) => return step,
        };
        let (bodies, bytes, publisher) = (std::iter::once(body), body.len(), PublisherRef::default());
        let publish = Publish { bodies, count: 1, bytes, defer_ns: nanos(delay), arrival, read: now, publisher };
        self.publish_for(conn, target, publish, ("DPUB", 4 + bytes), now)
    }

    fn on_mpub(&mut self, conn: ConnId, line: &Line<'_>, rest: &[u8], arrival: Instant, now: Instant) -> Step {
        let Some(topic) = line.param(0) else {
            return fatal("E_INVALID MPUB insufficient number of parameters");
        };
        let target = match self.target(conn, topic, "MPUB") {
            Ok(target) => target,
            // nsqd says the code twice here, and clients may have learnt to expect it.
            Err(text) => return fatal(format!("E_BAD_TOPIC {text}")),
        };
        let body = match self.body(rest, "MPUB") {
            Ok(body) => body,
            Err(step) => return step,
        };
        // A message takes at least its length and one byte.
        let max_count = self.config.max_body_size.saturating_sub(4) / 5;
        let batch = match Batch::parse(body, self.config.max_msg_size, max_count) {
            Ok(batch) => batch,
            Err(BadBatch::Count(count)) => return fatal(format!("E_BAD_BODY MPUB invalid message count {count}")),
            Err(bad) => return fatal(format!("E_BAD_MESSAGE MPUB {bad}")),
        };
        let (count, bytes, publisher) = (batch.message_count(), batch.body_bytes(), PublisherRef::default());
        let publish = Publish { bodies: batch, count, bytes, defer_ns: 0, arrival, read: now, publisher };
        self.publish_for(conn, target, publish, ("MPUB", 4 + body.len()), now)
    }

    /// The topic a publish names, here or elsewhere.
    fn target(&self, conn: ConnId, name: &[u8], verb: &str) -> Result<Target, String> {
        // Most connections publish to one topic for ever.
        match &self.clients[conn].last_pub {
            Some(LastPub::Here(key, _))
                if self.topics.get(*key).is_some_and(|topic| topic.name.as_str().as_bytes() == name) =>
            {
                return Ok(Target::Here(*key));
            }
            Some(LastPub::Elsewhere(topic)) if topic.as_str().as_bytes() == name => {
                return Ok(Target::Named(topic.clone()));
            }
            _ => {}
        }
        topic_name(name, verb).map(Target::Named)
    }

    fn publish_for<'b>(
        &mut self,
        conn: ConnId,
        target: Target,
        publish: Publish<impl Iterator<Item = &'b [u8]> + Clone>,
        (verb, used): (&'static str, usize),
        now: Instant,
    ) -> Step {
        if self.newcomers == Newcomers::Refused && self.clients[conn].about.pub_counts.is_empty() {
            return refused(verb, used, &PublishRefused::Draining);
        }
        let name = match target {
            Target::Here(key) if !self.config.auth => return self.publish_here(conn, key, publish, (verb, used), now),
            Target::Here(key) => self.topics[key].name.clone(),
            Target::Named(name) => name,
        };
        if let Some(step) = self.forbid(conn, verb, &name, None, now) {
            return step;
        }
        let home = home_shard(name.as_str(), self.config.shards);
        if home != self.config.shard {
            self.clients[conn].last_pub = Some(LastPub::Elsewhere(name.clone()));
            return match self.publish_in_lane(conn, &name, publish) {
                InLane::Not(publish) => self.publish_elsewhere(conn, home, &name, publish, (verb, used)),
                InLane::Blocked => Step::Held,
                InLane::Taken => {
                    let client = &mut self.clients[conn];
                    client.answers.ok(&mut client.out);
                    self.mark_client(conn);
                    Step::Used(used)
                }
            };
        }
        let key = self.topic(&name, now);
        self.clients[conn].last_pub = Some(LastPub::Here(key, PublisherRef::default()));
        self.publish_here(conn, key, publish, (verb, used), now)
    }

    #[inline]
    fn publish_here<'b>(
        &mut self,
        conn: ConnId,
        key: TopicKey,
        publish: Publish<impl Iterator<Item = &'b [u8]> + Clone>,
        (verb, used): (&'static str, usize),
        now: Instant,
    ) -> Step {
        let count = publish.count as u64;
        let publish = Publish { publisher: self.publisher_of(conn, key, now), ..publish };
        let client = &self.clients[conn];
        // One publish of a subscriber may wait for room while its answers to messages are read.
        let parks = client.channel.is_some() && !client.parked && self.parks_more(key);
        let (bodies, parcel) = parcel_of(publish);
        let spare = parks.then(|| bodies.clone());
        match self.publish(key, publish_of(bodies, parcel), now) {
            Published::Done => {
                self.count_publish(conn, key, count);
                let client = &mut self.clients[conn];
                client.answers.ok(&mut client.out);
                self.mark_client(conn);
                Step::Used(used)
            }
            Published::Later(ack) => {
                self.count_publish(conn, key, count);
                let publisher = self.await_answer(conn, verb, 0);
                self.acks[ack].origin = Some(Origin::Client(publisher));
                Step::Used(used)
            }
            Published::Blocked => {
                let Some(bodies) = spare else {
                    self.block(key, conn);
                    return Step::Held;
                };
                self.count_publish(conn, key, count);
                let publisher = self.await_answer(conn, verb, parcel.bytes);
                self.clients[conn].parked = true;
                self.park(key, Parked::new(Origin::Client(publisher), parcel, bodies));
                Step::Used(used)
            }
            Published::Refused(why) => refused(verb, used, &why),
        }
    }

    fn count_publish(&mut self, conn: ConnId, topic: TopicKey, count: u64) {
        let topic = &self.topics[topic];
        let client = &mut self.clients[conn];
        client.count_publishes(&topic.name, count);
        if !client.stamped && topic.needs_stamps() {
            client.stamped = true;
            self.outputs.push_back(Output::Stamp(conn));
        }
    }

    /// The next answer of `conn` comes later.
    fn await_answer(&mut self, conn: ConnId, verb: &'static str, bytes: usize) -> Publisher {
        let client = &mut self.clients[conn];
        Publisher { conn, serial: client.serial, answer: client.answers.await_one(bytes), verb }
    }

    /// An awaited answer is there.
    pub(super) fn answer_client(&mut self, publisher: Publisher, result: Result<(), PublishRefused>) {
        let Publisher { conn, serial, answer, verb } = publisher;
        let Some(client) = self.clients.get_mut(conn).filter(|client| client.serial == serial) else { return };
        let exiting = matches!(result, Err(PublishRefused::Exiting));
        client.answers.settle(answer, result.map_err(|why| refusal_text(verb, &why)), &mut client.out);
        let goes_on = if client.answers.is_empty() {
            client.parked = false;
            true
        } else {
            client.answers.has_room()
        };
        let held = client.hold == Hold::Answers;
        let leaving = client.leaving;
        self.mark_client(conn);
        if exiting {
            self.kill(conn);
        }
        if leaving {
            self.leave_if_answered(conn);
            return;
        }
        if held && goes_on {
            self.resume(conn);
        }
    }

    /// The topic lives on another shard: a fresh connection moves there, what another one says goes there.
    fn publish_elsewhere<'b>(
        &mut self,
        conn: ConnId,
        shard: usize,
        topic: &TopicName,
        publish: Publish<impl Iterator<Item = &'b [u8]>>,
        (verb, used): (&'static str, usize),
    ) -> Step {
        let spread = self.is_spread(topic);
        let client = &mut self.clients[conn];
        if client.state == State::Init && client.about.pub_counts.is_empty() && !spread {
            client.hold = Hold::Moving;
            self.outputs.push_back(Output::Migrate { conn, shard });
            return Step::Held;
        }
        client.count_publishes(topic, publish.count as u64);
        client.introduce_to(shard, &mut self.peers);
        let publisher = self.await_answer(conn, verb, publish.bytes);
        let (bodies, parcel) = parcel_of(publish);
        self.peers.publish(shard, topic.as_str(), bodies, (Way::Asked, publisher), parcel);
        Step::Used(used)
    }

    /// Another shard spoke.
    pub fn on_peer(&mut self, message: PeerMessage, now: Instant) {
        self.lapse_parts(now);
        match message {
            PeerMessage::Publish(mut batch) => {
                self.peers.received(&mut batch);
                for number in 0..batch.entries.len() {
                    self.read_notes(&mut batch, number, now);
                    self.publish_for_peer(&batch, &batch.entries[number], now);
                }
                self.read_notes(&mut batch, usize::MAX, now);
                self.peers.carried_out(batch);
            }
            PeerMessage::Answers(mut answers) => {
                for answer in answers.answers.drain(..) {
                    if answer.stamp
                        && let Some(client) = self.clients.get_mut(answer.publisher.conn)
                        && client.serial == answer.publisher.serial
                        && !client.stamped
                    {
                        client.stamped = true;
                        self.outputs.push_back(Output::Stamp(answer.publisher.conn));
                    }
                    self.answer_client(answer.publisher, answer.result);
                }
                self.peers.read(answers);
            }
        }
    }

    /// Reads what comes before the entry of this number.
    fn read_notes(&mut self, batch: &mut PeerBatch, entry: usize, now: Instant) {
        while let Some(note) = batch.note_before(entry) {
            self.on_note(batch.from_shard, note, now);
        }
    }

    /// Publishes for another shard's client. At a full line or queue it waits, and the client goes on.
    fn publish_for_peer(&mut self, batch: &PeerBatch, entry: &PeerEntry, now: Instant) {
        let (origin, asked) = (Origin::Peer(batch.from_shard, entry.publisher), entry.way == Way::Asked);
        if self.draining || (asked && self.is_ending()) {
            // What lanes had has come before; it was of a topic that was deleted meanwhile.
            if asked {
                self.answer(origin, Err(PublishRefused::Exiting));
            }
            return;
        }
        let name = batch.topic(entry);
        let key = match self.topics_by_name.get(name) {
            Some(key) => *key,
            None => self.topic(&TopicName::new(name).expect("it was valid when it was published"), now),
        };
        if !asked {
            self.land(key, batch, entry, now);
            return;
        }
        if let Some(host) = &mut self.topics[key].host {
            host.on_guest();
        }
        let stamp = self.topics[key].needs_stamps();
        let link = Link { shard: batch.from_shard, serial: entry.publisher.serial };
        let parcel = Parcel { publisher: self.publisher_of_guest(link, key, now), ..entry.parcel };
        let result = match self.publish(key, publish_of(batch.bodies(entry), parcel), now) {
            Published::Done => Ok(()),
            Published::Refused(why) => Err(why),
            Published::Later(ack) => {
                self.acks[ack].origin = Some(origin);
                return;
            }
            Published::Blocked if !self.parks_more(key) => Err(PublishRefused::QueueFull),
            Published::Blocked => {
                self.park(key, Parked::new(origin, parcel, batch.bodies(entry)));
                return;
            }
        };
        self.peers.answer(batch.from_shard, PeerAnswer { publisher: entry.publisher, result, stamp });
    }

    // Bodies.

    fn body<'b>(&self, rest: &'b [u8], verb: &str) -> Result<&'b [u8], Step> {
        let Some(announced) = command::length(rest) else { return Err(Step::Incomplete) };
        let max = self.config.max_body_size;
        let Some(length) = usize::try_from(announced).ok().filter(|length| *length > 0) else {
            return Err(fatal(format!("E_BAD_BODY {verb} invalid body size {announced}")));
        };
        if length > max {
            return Err(fatal(format!("E_BAD_BODY {verb} body too big {announced} > {max}")));
        }
        rest.get(4..4 + length).ok_or(Step::Incomplete)
    }

    #[inline]
    fn message_body<'b>(&self, rest: &'b [u8], verb: &str) -> Result<&'b [u8], Step> {
        let Some(announced) = command::length(rest) else { return Err(Step::Incomplete) };
        let max = self.config.max_msg_size;
        let Some(length) = usize::try_from(announced).ok().filter(|length| *length > 0) else {
            return Err(fatal(format!("E_BAD_MESSAGE {verb} invalid message body size {announced}")));
        };
        if length > max {
            return Err(fatal(format!("E_BAD_MESSAGE {verb} message too big {announced} > {max}")));
        }
        rest.get(4..4 + length).ok_or(Step::Incomplete)
    }
}

enum Target {
    Here(TopicKey),
    Named(TopicName),
}

fn parcel_of<B>(publish: Publish<B>) -> (B, Parcel) {
    let Publish { bodies, count, bytes, defer_ns, arrival, read, publisher } = publish;
    (bodies, Parcel { count, bytes, defer_ns, arrival, read, publisher })
}

fn publish_of<B>(bodies: B, parcel: Parcel) -> Publish<B> {
    let Parcel { count, bytes, defer_ns, arrival, read, publisher } = parcel;
    Publish { bodies, count, bytes, defer_ns, arrival, read, publisher }
}

/// One of Tidegate's fields of IDENTIFY; an empty text counts as absent.
fn label(field: &str, text: &str) -> Result<Option<Label>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    Label::new(text).map(Some).map_err(|_| format!("{field} ({} bytes) is invalid", text.len()))
}

fn topic_name(name: &[u8], verb: &str) -> Result<TopicName, String> {
    TopicName::from_bytes(name)
        .map_err(|_| format!("E_BAD_TOPIC {verb} topic name \"{}\" is not valid", String::from_utf8_lossy(name)))
}

fn not_in_flight(verb: &str, id: [u8; 16]) -> Step {
    let id = String::from_utf8_lossy(&id).into_owned();
    Step::Failed { used: 0, fatal: false, text: format!("E_{verb}_FAILED {verb} {id} failed ID not in flight") }
}

/// A publish that was refused: the connection stays, since the client did nothing wrong by the protocol, unless it should
/// go to another node.
fn refused(verb: &str, used: usize, why: &PublishRefused) -> Step {
    let fatal = matches!(why, PublishRefused::Exiting | PublishRefused::Draining);
    Step::Failed { used, fatal, text: refusal_text(verb, why) }
}

fn refusal_text(verb: &str, why: &PublishRefused) -> String {
    format!("E_{verb}_FAILED {verb} failed {why}")
}

fn in_ms(ms: i64, least: Duration, most: Duration) -> bool {
    u64::try_from(ms).is_ok_and(|ms| (least..=most).contains(&Duration::from_millis(ms)))
}
