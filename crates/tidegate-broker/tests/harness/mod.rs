//! Drives shards by hand: connections as byte strings, a log in memory, and time that moves when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Answered, Pause, PublishRefused, SnapshotScope};
use tidegate_broker::machine::auth::AuthState;
use tidegate_broker::machine::contracts::KeptBucket;
use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Source, Unit};
use tidegate_broker::machine::output::{ConnId, Layers, Notice, Output, PeerMessage};
use tidegate_broker::machine::parts::KeptPart;
use tidegate_broker::machine::publishers::HttpPublisher;
use tidegate_broker::machine::shard::{OutputBuffer, QueuePolicy, Shard, ShardConfig};
use tidegate_broker::machine::snapshot::{ChannelSnapshot, TopicSnapshot};
use tidegate_broker::machine::trace::TracedPublisher;
use tidegate_broker::machine::{Passage, home_shard};
use tidegate_core::lend::Frame as LendFrame;
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate, Rng};
use tidegate_wire::nsq::client::{self, Frame};
use tidegate_wire::nsq::frame::Header;
use tidegate_wire::nsq::{ChannelName, TopicName};

mod disk;

pub(crate) use disk::Disk;

/// When every test begins; not zero, so that "before" exists.
pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);
/// The wall clock at [`START`]: 14 November 2023.
pub(crate) const START_UNIX_NS: i64 = 1_700_000_000_000_000_000;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client of the broker under test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Client(pub usize);

/// A message as its client got it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) id: [u8; 16],
    pub(crate) attempts: u16,
    pub(crate) timestamp: i64,
    pub(crate) body: String,
    /// When it was sent to the client.
    pub(crate) at: Instant,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Response(String),
    Error(String),
    Message(Message),
}

/// A client's end of its connection.
struct End {
    place: Option<(usize, ConnId)>,
    unread: Vec<u8>,
    inbox: Vec<Reply>,
    closed: bool,
    /// It reads what it is sent.
    reads: bool,
    layers: Option<Layers>,
    stamped: bool,
}

/// What a shard wants its driver to do next.
pub(crate) enum Want {
    Output(Output),
    /// Write what is in the connection's output.
    Flush(ConnId),
}

/// The next thing that a shard wants, in the order in which a driver carries it out.
pub(crate) fn next_want(shard: &mut Shard) -> Option<Want> {
    shard.poll_output().map(Want::Output).or_else(|| shard.next_dirty().map(Want::Flush))
}

/// What a client reads in bytes that were sent at `at`.
pub(crate) fn replies_in(mut bytes: &[u8], at: Instant) -> Vec<Reply> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let (frame, used) = client::frame(bytes, 16 << 20).expect("frames are sound").expect("frames are whole");
        replies.push(match frame {
            Frame::Response(bytes) => Reply::Response(text(bytes)),
            Frame::Error(bytes) => Reply::Error(text(bytes)),
            Frame::Message(Header { id, attempts, timestamp }, body) => {
                Reply::Message(Message { id, attempts, timestamp, body: text(body), at })
            }
        });
        bytes = &bytes[used..];
    }
    replies
}

/// A message between shards, under way.
struct Hop {
    due: Instant,
    from: usize,
    to: usize,
    message: PeerMessage,
}

/// A shard's question to an AUTH server.
pub(crate) struct AuthQuestion {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
    pub(crate) serial: u64,
    pub(crate) secret: Vec<u8>,
}

/// A broker of one or more shards with everything around them.
pub(crate) struct Broker {
    pub(crate) now: Instant,
    pub(crate) disk: Disk,
    pub(crate) notices: Vec<Notice>,
    pub(crate) auth_questions: Vec<AuthQuestion>,
    pub(crate) passages: Vec<Passage>,
    /// Datagrams for other brokers.
    pub(crate) lent: Vec<(SocketAddr, LendFrame)>,
    /// Who they are of, by their numbers.
    pub(crate) traced: Vec<TracedPublisher>,
    /// Messages between shards are not handed over while this is set.
    pub(crate) hold_peers: bool,
    /// Names of new topics and channels do not become durable while this is set.
    pub(crate) hold_names: bool,
    /// The next restart is that of a broker that crashed: what was left of its tokens is not known.
    pub(crate) crashed: bool,
    /// The contracts that were set, by what they are on.
    contracts: BTreeMap<String, AdminRequest>,
    noticed: Vec<u64>,
    settled: u64,
    admin_replies: BTreeMap<(usize, u64), AdminReply>,
    /// FNV-1a over everything that came out of the shards, with its time.
    pub(crate) trace_hash: u64,
    config: ShardConfig,
    shards: Vec<Shard>,
    ends: Vec<End>,
    places: BTreeMap<(usize, ConnId), Client>,
    peers: VecDeque<Hop>,
    /// Messages between shards take up to so long, at random; the order between two is kept.
    hops: Option<(Duration, Rng)>,
    next_shard: usize,
}

/// nsqd's defaults on one shard.
pub(crate) fn config() -> ShardConfig {
    ShardConfig {
        shard: 0,
        shards: 1,
        node_id: 7,
        version: "0.1.0".to_owned(),
        max_msg_size: 1024 * 1024,
        max_body_size: 5 * 1024 * 1024,
        max_rdy_count: 2500,
        msg_timeout: Duration::from_mins(1),
        max_msg_timeout: Duration::from_mins(15),
        max_req_timeout: Duration::from_hours(1),
        heartbeat: Duration::from_secs(30),
        max_heartbeat: Duration::from_mins(1),
        output_buffer: OutputBuffer {
            size: 16 * 1024,
            size_max: 64 * 1024,
            timeout: ms(250),
            timeout_min: ms(25),
            timeout_max: Duration::from_secs(30),
        },
        tls: false,
        tls_required: false,
        snappy: true,
        deflate: Some(6),
        auth: false,
        max_channel_consumers: 0,
        mem_queue_size: 10_000,
        max_queue_bytes: 1 << 30,
        queue_policy: QueuePolicy::Overflow,
        line_bytes: 64 << 20,
        spread: BTreeSet::new(),
        topics_wait_for_start: false,
        e2e_percentiles: Vec::new(),
        e2e_window: Duration::from_mins(10),
        seed: 1,
    }
}

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

pub(crate) fn channel_name(name: &str) -> ChannelName {
    ChannelName::new(name).unwrap()
}

/// A publish over HTTP, by a client of a unix socket.
pub(crate) fn over_http(topic: &str, bodies: &[&str], defer: Option<Duration>) -> AdminRequest {
    let bodies = bodies.iter().map(|body| body.as_bytes().to_vec()).collect();
    AdminRequest::Publish { topic: topic_name(topic), bodies, defer, by: HttpPublisher::default() }
}

/// `rate` messages a second with a bucket of `burst`, waiting, enforced.
pub(crate) fn wait(rate: u64, burst: u64) -> Contract {
    Contract {
        limit: Limit::new(Rate::per_s(rate), burst),
        unit: Unit::Messages,
        discipline: Discipline::Wait,
        mode: Mode::Enforce,
    }
}

/// The same, refusing.
pub(crate) fn refuse(rate: u64, burst: u64) -> Contract {
    Contract { discipline: Discipline::Refuse, ..wait(rate, burst) }
}

impl Default for Broker {
    fn default() -> Self {
        Self::new(config())
    }
}

impl Broker {
    pub(crate) fn new(config: ShardConfig) -> Self {
        Self::on(Disk::default(), config, START)
    }

    /// The defaults, changed.
    pub(crate) fn with(change: impl FnOnce(&mut ShardConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        Self::new(config)
    }

    fn on(disk: Disk, config: ShardConfig, now: Instant) -> Self {
        let unix_ns = START_UNIX_NS + now.nanos_since(START).cast_signed();
        let shard = |number| Shard::new(ShardConfig { shard: number, ..config.clone() }, now, unix_ns);
        let shards: Vec<Shard> = (0..config.shards).map(shard).collect();
        Self {
            now,
            disk,
            notices: Vec::new(),
            auth_questions: Vec::new(),
            passages: Vec::new(),
            lent: Vec::new(),
            traced: Vec::new(),
            hold_peers: false,
            hold_names: false,
            noticed: vec![0; shards.len()],
            settled: 0,
            crashed: false,
            contracts: BTreeMap::new(),
            admin_replies: BTreeMap::new(),
            trace_hash: 0xcbf2_9ce4_8422_2325,
            config,
            shards,
            ends: Vec::new(),
            places: BTreeMap::new(),
            peers: VecDeque::new(),
            hops: None,
            next_shard: 0,
        }
    }

    /// SIGTERM, and a new run on the same log that knows the topics and channels of the old one, its contracts and parts,
    /// and, if it has not crashed, what was left of its tokens.
    pub(crate) fn restart(mut self) -> Self {
        let topics = self.topics();
        let parts = self.kept_parts();
        self.drain();
        let stopped = self.now;
        let kept: Vec<_> = self.shards.iter().flat_map(|shard| shard.kept_buckets(stopped)).collect();
        let unknown = self.shards.iter().filter_map(Shard::unknown_before).max();
        let mut next = Self::on(self.disk, self.config, self.now + SECOND);
        let (now, shards) = (next.now, next.shards.len());
        for (number, shard) in next.shards.iter_mut().enumerate() {
            if self.crashed {
                shard.forget_buckets(now);
            } else {
                let home = |bucket: &&KeptBucket| home_shard(bucket.key.topic.as_str(), shards) == number;
                if let Some(unknown) = unknown {
                    shard.forget_buckets(unknown);
                }
                shard.restore_buckets(kept.iter().filter(home).cloned().collect(), stopped);
            }
            let home = |part: &&KeptPart| home_shard(part.topic.as_str(), shards) == number;
            shard.restore_parts(parts.iter().filter(home).cloned(), now);
        }
        for request in self.contracts.into_values() {
            next.order(request);
        }
        for topic in topics.iter().filter(|topic| !topic.name.ends_with("#ephemeral")) {
            let pause = |paused| if paused { Pause::Paused } else { Pause::Flowing };
            let kept = topic.channels.iter().filter(|channel| !channel.name.ends_with("#ephemeral"));
            let channels: Vec<_> = kept.map(|channel| (channel_name(&channel.name), pause(channel.paused))).collect();
            let name = topic_name(&topic.name);
            let home = home_shard(&topic.name, next.shards.len());
            let now = next.now;
            next.shards[home].restore(&name, pause(topic.paused), &channels, now);
        }
        next.settle();
        next
    }

    /// The wall clock steps by so many seconds, in either direction.
    pub(crate) fn step_wall_clock(&mut self, seconds: i64) {
        let unix_ns = START_UNIX_NS + self.now.nanos_since(START).cast_signed() + 1_000_000_000 * seconds;
        for shard in &mut self.shards {
            shard.set_wall_clock(self.now, unix_ns);
        }
    }

    /// As they stand in the file.
    fn kept_parts(&mut self) -> Vec<KeptPart> {
        let now = self.now;
        let replies = self.ask_all(&AdminRequest::Parts);
        let parts = |reply| match reply {
            AdminReply::Parts(parts) => parts,
            AdminReply::Refused(PublishRefused::Exiting) => Vec::new(),
            other => panic!("{other:?}"),
        };
        replies.into_iter().flat_map(parts).map(|part| KeptPart::of(&part, now)).collect()
    }

    /// [`Broker::restart`] after a clean stop, with these limits of channels.
    pub(crate) fn restart_with_limits(mut self, limits: &[(&str, &str, Contract)]) -> Self {
        self.crashed = false;
        let mut next = self.restart();
        for (topic, channel, contract) in limits {
            next.limit_channel(topic, channel, *contract);
        }
        next
    }

    /// A broker that was killed and started again at `now`, which lends; nothing is known of its tokens, and what it held
    /// in memory is lost.
    pub(crate) fn lending(boot: u32, now: Instant) -> Self {
        let mut broker = Self::on(Disk::default(), config(), now);
        for shard in &mut broker.shards {
            shard.start_lending(boot, now);
            if now > START {
                shard.forget_buckets(now);
            }
        }
        broker
    }

    /// A datagram of another broker came.
    pub(crate) fn on_lend_frame(&mut self, frame: LendFrame) {
        self.shards[0].on_lend_frame(frame, self.now);
        self.settle();
    }

    /// The machine has slept.
    pub(crate) fn slept(&mut self) {
        for shard in &mut self.shards {
            shard.on_slept(self.now);
        }
        self.settle();
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.shards.iter().all(Shard::is_drained)
    }

    /// SIGTERM, of which nothing is waited for.
    pub(crate) fn drain_only(&mut self) {
        for shard in &mut self.shards {
            shard.drain(self.now);
        }
        self.settle();
    }

    /// SIGTERM: everything goes to the log.
    pub(crate) fn drain(&mut self) {
        self.drain_only();
        for _ in 0..10_000 {
            if self.is_drained() {
                return;
            }
            let next = self.next_timeout().expect("a shard that has not drained waits for something");
            self.advance_to(next);
        }
        panic!("the broker does not drain");
    }

    // Clients.

    /// A connection that has said nothing yet.
    pub(crate) fn raw(&mut self) -> Client {
        let shard = self.next_shard % self.shards.len();
        self.next_shard += 1;
        self.raw_on(shard)
    }

    pub(crate) fn raw_on(&mut self, shard: usize) -> Client {
        let client = Client(self.ends.len());
        let conn = self.shards[shard].on_connect(format!("10.0.0.1:{}", 1000 + client.0), self.now);
        self.ends.push(End {
            place: Some((shard, conn)),
            unread: Vec::new(),
            inbox: Vec::new(),
            closed: false,
            reads: true,
            layers: None,
            stamped: false,
        });
        let before = self.places.insert((shard, conn), client);
        assert_eq!(before, None, "a connection's number is not reused while it is open");
        client
    }

    /// A connection that has said the magic.
    pub(crate) fn connect(&mut self) -> Client {
        let client = self.raw();
        self.send(client, client::MAGIC);
        client
    }

    /// A subscriber that is ready for `ready` messages.
    pub(crate) fn subscribe(&mut self, topic: &str, channel: &str, ready: u32) -> Client {
        let client = self.connect();
        self.send(client, format!("SUB {topic} {channel}\n"));
        assert_eq!(self.replies(client), [Reply::Response("OK".to_owned())]);
        self.send(client, format!("RDY {ready}\n"));
        client
    }

    /// Sends bytes and lets everything happen that they cause.
    pub(crate) fn send(&mut self, client: Client, bytes: impl AsRef<[u8]>) {
        self.give(client, bytes, self.now);
        self.settle();
    }

    /// Bytes that arrived at `arrival`; the batch goes on.
    pub(crate) fn give(&mut self, client: Client, bytes: impl AsRef<[u8]>, arrival: Instant) {
        let end = &mut self.ends[client.0];
        if end.place.is_some() {
            end.unread.extend_from_slice(bytes.as_ref());
            self.feed(client, arrival);
        }
    }

    fn feed(&mut self, client: Client, arrival: Instant) {
        let end = &mut self.ends[client.0];
        let Some((shard, conn)) = end.place else { return };
        let used = self.shards[shard].on_bytes(conn, &end.unread, arrival, self.now);
        end.unread.drain(..used);
    }

    /// Publishes one message and checks that it was accepted.
    pub(crate) fn publish(&mut self, client: Client, topic: &str, body: &str) {
        self.send(client, put(topic, body));
        assert_eq!(self.replies(client), [Reply::Response("OK".to_owned())]);
    }

    /// The client goes away.
    pub(crate) fn disconnect(&mut self, client: Client) {
        self.drop_connection(client);
        self.settle();
    }

    /// In one batch, `client`'s channel `c` of `topic` is deleted, the client goes, and another connection takes its
    /// number.
    pub(crate) fn replace_while_deleting(&mut self, client: Client, topic: &str) -> Client {
        let (shard, conn) = self.ends[client.0].place.expect("it is connected");
        let request = AdminRequest::DeleteChannel(topic_name(topic), channel_name("c"));
        let reply = self.shards[shard].on_admin(request, self.now);
        assert!(matches!(reply, Answered::Now(AdminReply::Done)));
        self.drop_connection(client);
        let newcomer = self.raw_on(shard);
        assert_eq!(self.ends[newcomer.0].place, Some((shard, conn)), "the number is taken again");
        newcomer
    }

    fn drop_connection(&mut self, client: Client) {
        let end = &mut self.ends[client.0];
        if let Some(place) = end.place.take() {
            self.places.remove(&place);
            self.shards[place.0].on_disconnect(place.1, self.now);
        }
    }

    /// Whether the client reads what it is sent.
    pub(crate) fn set_reading(&mut self, client: Client, reads: bool) {
        self.ends[client.0].reads = reads;
        if reads {
            self.flush(client);
            self.settle();
        }
    }

    pub(crate) fn is_closed(&self, client: Client) -> bool {
        self.ends[client.0].closed
    }

    pub(crate) fn is_stamped(&self, client: Client) -> bool {
        self.ends[client.0].stamped
    }

    pub(crate) fn layers(&self, client: Client) -> Option<Layers> {
        self.ends[client.0].layers
    }

    /// Bytes that the broker has not taken.
    pub(crate) fn unread(&self, client: Client) -> usize {
        self.ends[client.0].unread.len()
    }

    pub(crate) fn shard_of(&self, client: Client) -> Option<usize> {
        self.ends[client.0].place.map(|(shard, _)| shard)
    }

    /// Everything the client has got since it was last asked.
    pub(crate) fn replies(&mut self, client: Client) -> Vec<Reply> {
        std::mem::take(&mut self.ends[client.0].inbox)
    }

    /// The messages among that; anything else but heartbeats and OKs fails the test.
    pub(crate) fn messages(&mut self, client: Client) -> Vec<Message> {
        let message = |reply| match reply {
            Reply::Message(message) => Some(message),
            Reply::Response(text) if text == "OK" || text == "_heartbeat_" => None,
            other => panic!("expected messages, got {other:?}"),
        };
        self.replies(client).into_iter().filter_map(message).collect()
    }

    pub(crate) fn bodies(&mut self, client: Client) -> Vec<String> {
        self.messages(client).into_iter().map(|message| message.body).collect()
    }

    /// The one error that the client got.
    pub(crate) fn error(&mut self, client: Client) -> String {
        match self.replies(client).as_slice() {
            [Reply::Error(text)] => text.clone(),
            other => panic!("expected one error, got {other:?}"),
        }
    }

    pub(crate) fn finish(&mut self, client: Client, message: &Message) {
        let mut bytes = Vec::new();
        client::put_fin(&mut bytes, &message.id);
        self.send(client, bytes);
    }

    // Around the protocol.

    pub(crate) fn admin(&mut self, request: AdminRequest) -> AdminReply {
        let name = match &request {
            AdminRequest::Publish { topic, .. }
            | AdminRequest::CreateTopic(topic)
            | AdminRequest::DeleteTopic(topic)
            | AdminRequest::EmptyTopic(topic)
            | AdminRequest::PauseTopic(topic, _)
            | AdminRequest::CreateChannel(topic, _)
            | AdminRequest::DeleteChannel(topic, _)
            | AdminRequest::EmptyChannel(topic, _)
            | AdminRequest::PauseChannel(topic, ..)
            | AdminRequest::SetTopicLimit(topic, _)
            | AdminRequest::SetChannelLimit(topic, ..)
            | AdminRequest::ReleaseLine(topic)
            | AdminRequest::Record(topic, _)
            | AdminRequest::RemovePart { topic, .. }
            | AdminRequest::Prepare { topic, .. }
            | AdminRequest::StartTopic(topic, _) => topic.as_str().to_owned(),
            AdminRequest::Publishers(scope) => scope.topic.as_str().to_owned(),
            AdminRequest::PutParts(_)
            | AdminRequest::Parts
            | AdminRequest::Lending
            | AdminRequest::Disconnect { .. }
            | AdminRequest::SetNewcomers(_) => panic!("{request:?} is for all shards: ask_all"),
            AdminRequest::Snapshot(scope) => scope.topic.as_ref().map_or("", TopicName::as_str).to_owned(),
        };
        let home = home_shard(&name, self.shards.len());
        let answered = self.shards[home].on_admin(request, self.now);
        self.settle();
        match answered {
            Answered::Now(reply) => reply,
            // What is under way on a slow disk is answered when it is there.
            Answered::Later(number) => loop {
                if let Some(reply) = self.admin_replies.remove(&(home, number)) {
                    return reply;
                }
                let next = self.next_timeout().expect("the log answers");
                self.advance_to(next);
            },
        }
    }

    /// Names that were held become durable, and later ones at once.
    pub(crate) fn name_all(&mut self) {
        self.hold_names = false;
        for (shard, told) in self.shards.iter_mut().zip(&self.noticed) {
            shard.on_names_saved(*told);
        }
        self.settle();
    }

    /// What queues do at their bound, from the next restart on.
    pub(crate) fn set_policy(&mut self, policy: QueuePolicy) {
        self.config.queue_policy = policy;
    }

    /// A request that must succeed.
    pub(crate) fn order(&mut self, request: AdminRequest) {
        let reply = self.admin(request);
        assert!(matches!(reply, AdminReply::Done | AdminReply::Parts(_)), "{reply:?}");
    }

    /// The answers of all shards to a request that each of them answers at once.
    pub(crate) fn ask_all(&mut self, request: &AdminRequest) -> Vec<AdminReply> {
        let mut replies = Vec::new();
        for shard in &mut self.shards {
            match shard.on_admin(request.clone(), self.now) {
                Answered::Now(reply) => replies.push(reply),
                Answered::Later(_) => panic!("{request:?} is answered at once"),
            }
        }
        self.settle();
        replies
    }

    pub(crate) fn limit(&mut self, topic: &str, contract: impl Into<Option<Contract>>) {
        let contract = contract.into().map(|contract| (contract, Source::Admin));
        let request = AdminRequest::SetTopicLimit(topic_name(topic), contract);
        self.contracts.insert(topic.to_owned(), request.clone());
        self.order(request);
    }

    pub(crate) fn limit_channel(&mut self, topic: &str, channel: &str, contract: impl Into<Option<Contract>>) {
        let contract = contract.into().map(|contract| (contract, Source::Admin));
        let request = AdminRequest::SetChannelLimit(topic_name(topic), channel_name(channel), contract);
        self.contracts.insert(format!("{topic}:{channel}"), request.clone());
        self.order(request);
    }

    pub(crate) fn create_channel(&mut self, topic: &str, channel: &str) {
        self.order(AdminRequest::CreateTopic(topic_name(topic)));
        self.order(AdminRequest::CreateChannel(topic_name(topic), channel_name(channel)));
    }

    /// All topics of all shards.
    pub(crate) fn topics(&mut self) -> Vec<TopicSnapshot> {
        let mut topics = Vec::new();
        for shard in &mut self.shards {
            let scope = SnapshotScope { clients: true, ..SnapshotScope::default() };
            let Answered::Now(AdminReply::Snapshot(snapshot)) = shard.on_admin(AdminRequest::Snapshot(scope), self.now)
            else {
                panic!("a snapshot was asked for");
            };
            topics.extend(snapshot.topics);
        }
        topics
    }

    pub(crate) fn topic(&mut self, name: &str) -> TopicSnapshot {
        self.topics().into_iter().find(|topic| topic.name == name).unwrap_or_else(|| panic!("no topic {name}"))
    }

    pub(crate) fn channel(&mut self, topic: &str, name: &str) -> ChannelSnapshot {
        let channels = self.topic(topic).channels;
        channels.into_iter().find(|channel| channel.name == name).unwrap_or_else(|| panic!("no channel {name}"))
    }

    pub(crate) fn has_topic(&mut self, name: &str) -> bool {
        self.topics().iter().any(|topic| topic.name == name)
    }

    pub(crate) fn log_errors(&self) -> Vec<&str> {
        self.shards.iter().filter_map(Shard::log_error).collect()
    }

    /// Answers the oldest question of a shard to its AUTH server.
    pub(crate) fn authorize(&mut self, answer: Option<&str>) {
        let question = self.auth_questions.remove(0);
        let answer = answer.map(|json| AuthState::from_json(json.as_bytes(), self.now).unwrap());
        self.shards[question.shard].on_authorized(question.conn, question.serial, answer);
        self.settle();
    }

    // Time.

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let shards = self.shards.iter().filter_map(Shard::next_timeout).chain(self.disk.next_timeout());
        shards.chain(self.peers.iter().map(|hop| hop.due).filter(|_| !self.hold_peers)).min()
    }

    /// Time passes, and everything happens exactly when it is due.
    pub(crate) fn advance(&mut self, span: Duration) {
        self.advance_to(self.now + span);
    }

    pub(crate) fn advance_to(&mut self, until: Instant) {
        while let Some(next) = self.next_timeout().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.wake();
        }
        self.now = until;
        self.wake();
    }

    /// From now on messages between shards take up to `most`.
    pub(crate) fn delay_peers(&mut self, most: Duration, seed: u64) {
        self.hops = Some((most, Rng::new(seed)));
    }

    /// Time passes while the broker's thread does not run.
    pub(crate) fn pause(&mut self, span: Duration) {
        self.now += span;
    }

    pub(crate) fn wake(&mut self) {
        for shard in &mut self.shards {
            shard.on_timeout(self.now);
        }
        self.settle();
    }

    // Effects.

    /// Carries everything out until nothing is left to do now.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut idle = true;
            for number in 0..self.shards.len() {
                self.shards[number].end_batch(self.now);
                while let Some(want) = next_want(&mut self.shards[number]) {
                    idle = false;
                    match want {
                        Want::Output(output) => self.carry_out(number, output),
                        Want::Flush(conn) => self.flush(self.places[&(number, conn)]),
                    }
                }
            }
            while let Some((shard, event)) = self.disk.poll(self.now) {
                idle = false;
                self.shards[shard].on_log(event, self.now);
            }
            if !self.hold_peers
                && let Some(place) = self.peers.iter().position(|hop| hop.due <= self.now)
                && let Some(Hop { to, message, .. }) = self.peers.remove(place)
            {
                idle = false;
                self.shards[to].on_peer(message, self.now);
            }
            if idle {
                self.check_invariants();
                return;
            }
        }
        panic!("the broker does not come to rest");
    }

    /// What holds after every step; with very many messages only now and then.
    fn check_invariants(&mut self) {
        self.settled += 1;
        for shard in self.shards.iter().filter(|shard| shard.is_serving()) {
            if shard.messages() < 500 || self.settled.is_multiple_of(256) {
                shard.assert_invariants();
            }
        }
    }

    fn carry_out(&mut self, shard: usize, output: Output) {
        self.trace(format!("{shard} {output:?}").as_bytes());
        let client_of = |places: &BTreeMap<_, _>, conn| places.get(&(shard, conn)).copied();
        match output {
            Output::Close(conn) => {
                let Some(client) = client_of(&self.places, conn) else { return };
                self.flush(client);
                self.ends[client.0].closed = true;
                self.drop_connection(client);
            }
            Output::Upgrade(conn, layers) => {
                let Some(client) = client_of(&self.places, conn) else { return };
                self.flush(client);
                self.ends[client.0].layers = Some(layers);
                let shard = &mut self.shards[shard];
                if layers.tls {
                    shard.on_tls(conn, "TLS1.3".to_owned(), "TLS_AES_128_GCM_SHA256".to_owned());
                    shard.on_layer(conn);
                }
                if layers.snappy || layers.deflate.is_some() {
                    shard.on_layer(conn);
                }
                shard.on_upgraded(conn);
            }
            Output::Authenticate { conn, serial, secret } => {
                self.auth_questions.push(AuthQuestion { shard, conn, serial, secret });
            }
            Output::Stamp(conn) => {
                if let Some(client) = client_of(&self.places, conn) {
                    self.ends[client.0].stamped = true;
                }
            }
            Output::Resume(conn) => {
                if let Some(client) = client_of(&self.places, conn) {
                    self.feed(client, self.now);
                }
            }
            Output::Log(command) => self.disk.send(shard, command, self.now),
            Output::Trace(_, traced) => {
                self.traced.extend(traced.publishers);
                self.passages.extend(traced.passages);
            }
            Output::Notice(notice) => {
                self.notices.push(notice);
                self.noticed[shard] += 1;
                if !self.hold_names {
                    self.shards[shard].on_names_saved(self.noticed[shard]);
                }
            }
            Output::AdminReply(number, reply) => {
                self.admin_replies.insert((shard, number), reply);
            }
            Output::Migrate { conn, shard: target } => {
                let Some(client) = self.places.remove(&(shard, conn)) else { return };
                let migrant = self.shards[shard].take(conn);
                let conn = self.shards[target].adopt(migrant, self.now);
                self.ends[client.0].place = Some((target, conn));
                self.places.insert((target, conn), client);
                self.feed(client, self.now);
            }
            Output::Lend(to, frame) => self.lent.push((to, frame)),
            Output::Peer { shard: to, message } => {
                let before = self.peers.iter().filter(|hop| (hop.from, hop.to) == (shard, to)).map(|hop| hop.due).max();
                let takes = self.hops.as_mut().map_or(0, |(most, rng)| rng.below(most.as_nanos().try_into().unwrap()));
                let due = self.now.plus_nanos(takes).max(before.unwrap_or(self.now));
                self.peers.push_back(Hop { due, from: shard, to, message });
            }
        }
    }

    fn flush(&mut self, client: Client) {
        let end = &mut self.ends[client.0];
        let (true, Some((shard, conn))) = (end.reads, end.place) else { return };
        let output = std::mem::take(self.shards[shard].output_of(conn));
        self.shards[shard].on_written(conn);
        end.inbox.extend(replies_in(&output, self.now));
        self.trace(&output);
    }

    fn trace(&mut self, bytes: &[u8]) {
        let stamp = self.now.as_nanos().to_be_bytes();
        for byte in stamp.iter().chain(bytes) {
            self.trace_hash = (self.trace_hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

// Commands as bytes.

pub(crate) fn put(topic: &str, body: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_pub(&mut bytes, topic, body.as_bytes());
    bytes
}

pub(crate) fn put_deferred(topic: &str, delay_ms: u64, body: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_dpub(&mut bytes, topic, delay_ms, body.as_bytes());
    bytes
}

pub(crate) fn put_many<S: AsRef<str>>(topic: &str, bodies: &[S]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut batch = client::Batch::begin(&mut bytes, topic);
    for body in bodies {
        batch.push(body.as_ref().as_bytes());
    }
    batch.finish();
    bytes
}

/// A command line with a sized body.
pub(crate) fn sized(line: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("{line}\n").into_bytes();
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn fin(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_fin(&mut bytes, &message.id);
    bytes
}

pub(crate) fn req(message: &Message, delay_ms: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_req(&mut bytes, &message.id, delay_ms);
    bytes
}

pub(crate) fn touch(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    client::put_touch(&mut bytes, &message.id);
    bytes
}

/// The bodies `0` to `count - 1`.
pub(crate) fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}
