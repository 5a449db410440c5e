//! A simulated machine with a broker on it, its clients and its operator: the code that decides and the code that writes
//! files are those of the product; threads, network, clock and device are simulated.
//!
//! | module | its one job |
//! |---|---|
//! | [`process`] | the broker's process: shards, disk thread, keeper of names, sockets |
//! | [`clients`] | publishers, consumers, an operator |
//! | [`disk`] | a device that loses what was not synced, and tears |
//! | [`law`] | b + r·t, from outside |
//! | [`ledger`] | no accepted message is lost beyond the stated durability |
//!
//! What is claimed of limits is in [`law`], what of messages in [`ledger`]. When all faults and contracts have ended,
//! everything is delivered; and one seed has one trace.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tidegate_broker::machine::Passage;
use tidegate_broker::machine::admin::{AdminRequest, Pause};
pub(crate) use tidegate_broker::machine::limiter::Contract;
use tidegate_broker::machine::limiter::{Mode, Unit};
use tidegate_broker::machine::output::ConnId;
use tidegate_broker::machine::shard::{QueuePolicy, ShardConfig};
use tidegate_core::{Instant, Rng};
use tidegate_sim::fault::{ClockStep, Fault, FaultPlan, FaultRates};
use tidegate_sim::network::{Network, NodeId};
use tidegate_sim::{Bounds, Distribution, Simulation, TraceHash};
use tidegate_wire::nsq::{ChannelName, TopicName};

use crate::harness::{Reply, START_UNIX_NS};

mod clients;
mod disk;
mod law;
mod ledger;
mod process;

use clients::{Client, ROLES};
use disk::SimFiles;
use law::{Edit, Law, Stalls, Terms};
use ledger::{ChannelId, Ledger};
use process::Process;

pub(crate) const TOPICS: [&str; 3] = ["a", "b", "e#ephemeral"];
const CHANNELS: [&str; 3] = ["ref", "c", "x#ephemeral"];

const BROKER: NodeId = NodeId(0);
const SHARDS_MAX: u32 = 3;
const DISK: NodeId = NodeId(SHARDS_MAX);
const CLIENT_0: NodeId = NodeId(SHARDS_MAX + 1);

/// A connection's place in the list of all there ever were.
type ConnNo = usize;
/// What a contract is on.
type LimitOn = (usize, Option<&'static str>);

#[derive(Clone, Copy, Hash)]
enum Event {
    Fault(Fault),
    Start,
    Wake(u32, usize),
    Stopped(u32),
    Disk(u32),
    DiskClose(u32),
    DiskSync(u32),
    NamesWritten(u32),
    NamesLook(u32),
    Peer(u32, usize, usize),
    /// At the broker's socket.
    Arrival(ConnNo),
    /// At the client's.
    Delivery(ConnNo),
    Connect(usize),
    Act(usize),
    Operate,
}

enum Parcel {
    Open,
    Bytes(Vec<u8>),
    Replies(Vec<Reply>),
    Close,
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts about a connection")]
struct Conn {
    client: usize,
    channel: Option<ChannelId>,
    /// Of the process that accepted it.
    incarnation: u32,
    to_broker: VecDeque<Parcel>,
    to_client: VecDeque<Parcel>,
    place: Option<(usize, ConnId)>,
    /// The shard that will find it in its inbox.
    heading: usize,
    /// Arrived and not read, with the kernel's stamps.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    unread: Vec<u8>,
    stamped: bool,
    /// Stamps before count for nothing: it was not read, or not stamped.
    free_since: Instant,
    /// The client's end is closed.
    hung_up: bool,
    /// The client has gone.
    left: bool,
    /// What is on its way does not arrive.
    cut: bool,
}

impl Conn {
    fn new(client: usize, channel: Option<ChannelId>) -> Self {
        Self {
            client,
            channel,
            incarnation: 0,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            place: None,
            heading: usize::MAX,
            chunks: VecDeque::new(),
            unread: Vec::new(),
            stamped: false,
            free_since: Instant::ZERO,
            hung_up: false,
            left: false,
            cut: false,
        }
    }
}

/// What differs from seed to seed.
struct Settings {
    mem_queue_size: usize,
    policy: QueuePolicy,
    sync_every: u64,
    max_bytes_per_file: u64,
    holders_max: usize,
    disk: Distribution,
    network: Distribution,
    /// The longest way from a release to a consumer's socket.
    way: Duration,
    publish_every_us: u64,
    operate_every_us: u64,
    faults: FaultRates,
    length: Duration,
}

impl Settings {
    fn new(rng: &mut Rng) -> Self {
        let mut choose = |of: &[u64]| of[usize::try_from(rng.below(of.len() as u64)).unwrap()];
        let way_us = choose(&[200, 200, 2_000]);
        let disk_us = choose(&[50, 50, 500, 10_000]);
        let ms = |ms| Some(Duration::from_millis(ms));
        Self {
            mem_queue_size: usize::try_from(choose(&[0, 0, 1, 10, 10_000, 10_000])).unwrap(),
            policy: [QueuePolicy::Overflow, QueuePolicy::BackPressure, QueuePolicy::Refuse]
                [usize::try_from(choose(&[0, 0, 0, 1, 2])).unwrap()],
            sync_every: choose(&[1, 1, 50]),
            max_bytes_per_file: choose(&[300, 3_000, 1 << 20]),
            holders_max: usize::try_from(choose(&[1, 100])).unwrap(),
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            disk: Distribution::Uniform { from_us: 1.0, to_us: disk_us as f64 },
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            network: Distribution::Uniform { from_us: 20.0, to_us: way_us as f64 },
            way: Duration::from_micros(way_us * 3),
            publish_every_us: choose(&[5_000, 20_000, 60_000]),
            operate_every_us: choose(&[10_000, 40_000, 200_000]),
            faults: FaultRates {
                crash_every: ms(choose(&[30, 60, 120])),
                pause_every: ms(choose(&[40, 200])),
                clock_step_every: ms(300),
            },
            length: Duration::from_millis(choose(&[500, 1_000, 2_000])),
        }
    }

    /// All that is accepted is in the files.
    fn without_memory(&self) -> bool {
        self.mem_queue_size == 0 && self.policy == QueuePolicy::Overflow
    }
}

/// What a run did, for tests that check that runs do something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Report {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Messages judged at consumers' sockets and by release times.
    pub(crate) judged: u64,
    pub(crate) judged_releases: u64,
    /// Clean stops; kills that may lose nothing; kills that may lose what was in memory.
    pub(crate) ends: [u64; 3],
    pub(crate) lost_with_memory: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.judged += other.judged;
        self.judged_releases += other.judged_releases;
        self.lost_with_memory += other.lost_with_memory;
        for (end, more) in self.ends.iter_mut().zip(other.ends) {
            *end += more;
        }
    }
}

pub(crate) struct World {
    kernel: Simulation<Event>,
    network: Network,
    rng: Rng,
    settings: Settings,
    config: ShardConfig,
    shards: usize,
    files: SimFiles,
    disk_paused_until: Instant,
    boot: u64,
    booted: Instant,
    wall_step_ns: i64,
    /// The furthest that the wall clock stood ahead at a start.
    furthest_step_ns: i64,
    /// Runs of the broker so far; the number of the one that runs.
    incarnation: u32,
    process: Option<Process>,
    restart_wanted: bool,
    conns: Vec<Conn>,
    clients: Vec<Client>,
    /// The control store.
    contracts: BTreeMap<LimitOn, Contract>,
    ledger: Ledger,
    topic_laws: [Law; 3],
    release_laws: [Law; 3],
    /// Passages that are not judged yet: what shards release apart from each other is judged in the order of its releases.
    passages: [Vec<Passage>; 3],
    channel_laws: BTreeMap<ChannelId, Law>,
    topic_stalls: [Stalls; 3],
    pauses: Stalls,
    absent_since: [Option<Instant>; 3],
    settled: u64,
    ends: [u64; 3],
    /// Faults have ended.
    calm: bool,
    talks: bool,
}

/// Plays one seed; panics where a law is broken.
pub(crate) fn run(seed: u64) -> (TraceHash, Report) {
    let mut world = World::new(seed);
    let end = Instant::ZERO + world.settings.length;
    world.run_to(end);
    world.calm_down();
    let report = world.report();
    (world.kernel.trace(), report)
}

impl World {
    fn new(seed: u64) -> Self {
        let kernel = Simulation::new(seed, Bounds::default());
        let mut rng = kernel.rng(0);
        let settings = Settings::new(&mut kernel.rng(1));
        let mut wide = kernel.rng(3);
        let config = ShardConfig {
            mem_queue_size: settings.mem_queue_size,
            max_queue_bytes: if rng.chance(0.2) { 4_000 } else { 1 << 30 },
            queue_policy: settings.policy,
            line_bytes: if rng.chance(0.3) { 300 } else { 1 << 20 },
            msg_timeout: Duration::from_millis(200),
            max_msg_timeout: Duration::from_millis(600),
            max_msg_size: 1024,
            spread: TOPICS.iter().filter(|_| wide.chance(0.4)).map(|name| TopicName::new(name).unwrap()).collect(),
            ..crate::harness::config()
        };
        let nodes = CLIENT_0.0 + u32::try_from(ROLES.len()).unwrap();
        let end = Instant::ZERO + settings.length;
        let plan = FaultPlan::random(settings.faults, nodes, end, &mut kernel.rng(2));
        let mut world = Self {
            network: Network::new(settings.network),
            shards: 1 + usize::try_from(rng.below(SHARDS_MAX.into())).unwrap(),
            kernel,
            rng,
            settings,
            config,
            files: SimFiles::default(),
            disk_paused_until: Instant::ZERO,
            boot: 0,
            booted: Instant::ZERO,
            wall_step_ns: 0,
            furthest_step_ns: 0,
            incarnation: 0,
            process: None,
            restart_wanted: false,
            conns: Vec::new(),
            clients: ROLES.into_iter().map(Client::new).collect(),
            contracts: BTreeMap::new(),
            ledger: Ledger::default(),
            topic_laws: Default::default(),
            release_laws: Default::default(),
            passages: Default::default(),
            channel_laws: BTreeMap::new(),
            topic_stalls: Default::default(),
            pauses: Stalls::default(),
            absent_since: [Some(Instant::ZERO); 3],
            settled: 0,
            ends: [0; 3],
            calm: false,
            talks: std::env::var_os("TIDEGATE_SIM_STORY").is_some(),
        };
        for (at, fault) in plan.iter() {
            world.kernel.at(*at, Event::Fault(*fault));
        }
        world.kernel.at(Instant::ZERO, Event::Start);
        world.after(Duration::from_millis(5), Event::Operate);
        for client in 0..ROLES.len() {
            world.after(Duration::from_millis(1), Event::Connect(client));
            world.after(Duration::from_millis(2), Event::Act(client));
        }
        world
    }

    /// Ephemeral queues have room for all there can be.
    fn keeps_ephemeral(&self) -> bool {
        let has_room = self.settings.mem_queue_size >= 10_000 && self.config.max_queue_bytes > 1 << 20;
        has_room || self.settings.policy != QueuePolicy::Overflow
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn unix_ns(&self) -> i64 {
        START_UNIX_NS + self.now().as_nanos().cast_signed() + self.wall_step_ns
    }

    /// Tells a person who replays one seed what happens.
    fn tell_story(&self, what: impl FnOnce() -> String) {
        if self.talks {
            eprintln!("{:?} {}", self.now(), what());
        }
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.kernel.after(span, event);
    }

    fn note(&mut self, observation: impl Hash) {
        self.kernel.note(observation);
    }

    fn send(&mut self, from: NodeId, to: NodeId, event: Event) {
        let at = self.network.send(from, to, self.now(), &mut self.rng);
        self.kernel.at(at, event);
    }

    fn stall_all(&mut self, from: Instant, to: Instant) {
        self.pauses.add(from, to);
        self.stall_all_topics(from, to);
    }

    fn stall_all_topics(&mut self, from: Instant, to: Instant) {
        for stalls in &mut self.topic_stalls {
            stalls.add(from, to);
        }
    }

    fn set_disk_faults(&mut self, full: bool, unreadable: bool) {
        self.files.set_full(full);
        self.files.set_unreadable(unreadable);
    }

    fn run_to(&mut self, end: Instant) {
        while let Some(event) = self.kernel.next_until(end).expect("within the bounds") {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: Event) {
        let alive = |world: &Self, incarnation| world.incarnation == incarnation && world.process.is_some();
        match event {
            Event::Fault(fault) => self.on_fault(&fault),
            Event::Start if self.process.is_none() => self.start(),
            Event::Wake(run, shard) if alive(self, run) => self.on_wake(shard),
            Event::Stopped(run) if alive(self, run) => self.on_stopped(),
            Event::Disk(run) if alive(self, run) => self.on_disk(),
            Event::DiskClose(run) if alive(self, run) => self.on_disk_close(),
            Event::DiskSync(run) if alive(self, run) => self.on_disk_sync(),
            Event::NamesWritten(run) if alive(self, run) => self.on_names_written(),
            Event::NamesLook(run) if alive(self, run) => self.look_at_names(),
            Event::Peer(run, from, to) if alive(self, run) => self.on_peer(from, to),
            Event::Arrival(conn) => self.on_arrival(conn),
            Event::Delivery(conn) => self.on_delivery(conn),
            Event::Connect(client) => self.connect(client),
            Event::Act(client) => self.act(client),
            Event::Operate => self.operate(),
            _ => {} // Of a process that is gone.
        }
    }

    fn on_fault(&mut self, fault: &Fault) {
        self.tell_story(|| format!("{fault:?}"));
        match *fault {
            Fault::Crash(DISK) => {
                let (full, unreadable) = [(true, false), (false, true)][usize::from(self.rng.chance(0.3))];
                self.set_disk_faults(full, unreadable);
            }
            Fault::Restart(DISK) => self.set_disk_faults(false, false),
            Fault::Crash(NodeId(node)) if node < SHARDS_MAX => match self.rng.below(3) {
                0 => self.terminate(),
                1 => self.kill(false),
                _ => self.kill(true),
            },
            Fault::Restart(NodeId(node)) if node < SHARDS_MAX => {
                if self.process.is_none() {
                    self.after(Duration::ZERO, Event::Start);
                } else if self.process.as_ref().is_some_and(|process| process.stopping) {
                    self.restart_wanted = true;
                }
                if self.process.is_none() && self.rng.chance(0.3) {
                    self.shards = 1 + usize::try_from(self.rng.below(SHARDS_MAX.into())).unwrap();
                }
            }
            Fault::Crash(NodeId(node)) => self.crash_client((node - CLIENT_0.0) as usize, true),
            Fault::Restart(NodeId(node)) => self.return_client((node - CLIENT_0.0) as usize),
            Fault::Pause(DISK, span) => self.pause_disk(span * 10),
            Fault::Pause(NodeId(node), span) if node < SHARDS_MAX => self.pause_shard(node as usize, span * 10),
            Fault::Pause(..) => {}
            Fault::ClockStep(_, step) => {
                let by = |span: Duration| i64::try_from(span.as_nanos()).expect("a second");
                self.wall_step_ns += match step {
                    ClockStep::Forward(span) => by(span),
                    ClockStep::Back(span) => -by(span),
                };
            }
        }
    }

    /// Faults and contracts end: everything is delivered.
    fn calm_down(&mut self) {
        self.calm = true;
        self.set_disk_faults(false, false);
        if self.process.as_ref().is_some_and(|process| process.stopping) {
            self.restart_wanted = true;
        } else {
            self.after(Duration::ZERO, Event::Start);
        }
        for client in 0..ROLES.len() {
            self.return_client(client);
        }
        for round in 0..200 {
            let end = self.now() + Duration::from_millis(100);
            self.run_to(end);
            if round % 10 == 1 {
                self.let_everything_go();
            }
            for client in 0..ROLES.len() {
                self.act(client);
            }
            if round > 5 && self.ledger.owed().is_empty() {
                return;
            }
        }
        let owed = self.ledger.owed();
        let some: Vec<_> =
            owed.iter().step_by(owed.len().div_ceil(8)).map(|owed| (owed, &self.ledger.sent[owed.1])).collect();
        let Settings { mem_queue_size, sync_every, policy, max_bytes_per_file, .. } = self.settings;
        panic!(
            "{} messages are lost, of them {some:?}; {mem_queue_size} in memory, {policy:?}, sync {sync_every}, files of {max_bytes_per_file}, {} bytes",
            owed.len(),
            self.config.max_queue_bytes
        );
    }

    fn let_everything_go(&mut self) {
        for on in limits() {
            self.set_limit(on, None);
        }
        for (topic, name) in TOPICS.iter().enumerate() {
            let name = TopicName::new(name).unwrap();
            self.order(topic, AdminRequest::PauseTopic(name.clone(), Pause::Flowing));
            self.order(topic, AdminRequest::PauseChannel(name.clone(), channel_of("c"), Pause::Flowing));
            self.order(topic, AdminRequest::ReleaseLine(name));
        }
    }

    fn report(&self) -> Report {
        let judged = |laws: &[Law]| laws.iter().map(|law| law.judged).sum();
        let channels: u64 = self.channel_laws.values().map(|law| law.judged).sum();
        Report {
            sent: self.ledger.sent.len() as u64,
            received: self.ledger.received,
            judged: channels + judged(&self.topic_laws),
            judged_releases: judged(&self.release_laws),
            ends: self.ends,
            lost_with_memory: self.ledger.lost_with_memory() as u64,
        }
    }
}

// Names and numbers.

fn topic_of(topic: usize) -> TopicName {
    TopicName::new(TOPICS[topic]).unwrap()
}

fn channel_of(name: &str) -> ChannelName {
    ChannelName::new(name).unwrap()
}

/// All that a contract can be on.
fn limits() -> impl Iterator<Item = LimitOn> {
    let of = |topic| [None, Some("c"), Some("x#ephemeral")].map(|channel| (topic, channel));
    (0..TOPICS.len()).flat_map(of)
}

fn key_of(topic: &TopicName) -> usize {
    TOPICS.iter().position(|name| *name == topic.as_str()).expect("one of ours")
}

fn channel_key(topic: &TopicName, channel: &ChannelName) -> LimitOn {
    (key_of(topic), CHANNELS.into_iter().find(|name| *name == channel.as_str()))
}

/// The number of the message with this body.
fn number_in(body: &str) -> Option<usize> {
    body.split_once(':')?.0.parse().ok()
}

fn message_of(reply: &Reply) -> Option<usize> {
    match reply {
        Reply::Message(message) => number_in(&message.body),
        Reply::Response(_) | Reply::Error(_) => None,
    }
}

/// What a contract promises.
fn edit_to(contract: Option<Contract>) -> Edit {
    let Some(contract) = contract else { return Edit::Removed };
    let limit = contract.limit;
    let rate = limit.rate.tokens() * (1_000_000_000 / limit.rate.period_ns());
    let terms = Terms { rate, burst: limit.burst, bytes: contract.unit == Unit::Bytes };
    match contract.mode {
        Mode::Enforce => Edit::Enforced(terms),
        Mode::Shadow => Edit::Shadow(terms),
    }
}
