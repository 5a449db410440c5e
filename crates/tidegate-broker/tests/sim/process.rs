//! The broker's process: shards, each on a thread of its own, the disk thread, the keeper of names, and sockets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tidegate_broker::io::adoption::adopt;
use tidegate_broker::io::broker::{Left, StartingLimit, bring_back};
use tidegate_broker::io::buckets::{self, BootTime, Found, Kept};
use tidegate_broker::io::disk_queue::{DiskQueueOptions, Listing, RecordLen};
use tidegate_broker::io::disk_thread::{DiskThreadOptions, Queues};
use tidegate_broker::io::metadata::Metadata;
use tidegate_broker::io::names::{Names, StartingNames};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Answered, PublishRefused, Recording};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::limiter::Source;
use tidegate_broker::machine::log::{LogCommand, LogEvent, QueueId};
use tidegate_broker::machine::output::{ConnId, Migrant, Notice, Output, PeerMessage};
use tidegate_broker::machine::shard::{Shard, ShardConfig};
use tidegate_core::Instant;
use tidegate_sim::network::NodeId;
use tidegate_wire::nsq::TopicName;

use super::disk::SimFiles;
use super::law::{Law, On};
use super::ledger::{End, Fate};
use super::{ConnNo, Event, LimitOn, Parcel, World, channel_of, key_of, topic_of};
use crate::harness::{Want, next_want, replies_in};

const FOLDER: &str = "/data";
/// The disk thread syncs what is due so often.
const SYNC_EVERY: Duration = Duration::from_millis(400);
/// A read or an append that failed is tried again within this.
const RETRY: Duration = Duration::from_millis(300);
/// Rounds of a wake-up: as many as the thread has.
const ROUNDS: usize = 8;

/// What a shard's thread finds when it wakes.
pub(super) enum Inbound {
    Accepted(ConnNo),
    Readable(ConnNo),
    Gone(ConnNo),
    Adopt(Box<Migrant>, ConnNo),
    Peer(PeerMessage),
    Log(LogEvent),
    NamesSaved(u64),
    /// With the messages of a publish.
    Admin(AdminRequest, Vec<usize>),
    Drain,
}

/// A shard and its thread.
pub(super) struct Host {
    shard: Shard,
    inbox: VecDeque<Inbound>,
    paused_until: Instant,
    wake_at: Option<Instant>,
    conns: BTreeMap<ConnId, ConnNo>,
    /// Queues that have not said yet what they hold.
    opening: BTreeSet<QueueId>,
    asked: BTreeMap<u64, Vec<usize>>,
    drained: bool,
}

struct Job {
    shard: usize,
    command: LogCommand,
    asked: Instant,
}

type Answers = Rc<RefCell<Vec<(usize, LogEvent)>>>;
type Answer = Box<dyn Fn(usize, LogEvent)>;

/// A running process.
pub(super) struct Process {
    pub(super) hosts: Vec<Host>,
    queues: Queues<SimFiles, Answer>,
    answers: Answers,
    jobs: VecDeque<Job>,
    /// Queues that could not be opened yet, and since when.
    unopened: BTreeMap<(usize, QueueId), Instant>,
    disk_free_at: Instant,
    names: Names,
    draft: Option<Metadata>,
    names_look_at: Option<Instant>,
    /// Since when some queue waits for its name to be durable.
    unnamed_since: Option<Instant>,
    /// Clients are accepted.
    listens: bool,
    next_shard: usize,
    peers: BTreeMap<(usize, usize), VecDeque<PeerMessage>>,
    pub(super) stopping: bool,
    kept: Kept,
    saved: bool,
    /// Topics and channels that there are.
    there: BTreeSet<LimitOn>,
}

impl World {
    // Starting and ending.

    /// What `Broker::start` does.
    pub(super) fn start(&mut self) {
        let now = self.now();
        self.incarnation += 1;
        self.set_disk_faults(false, false);
        self.files.dies_after(None);
        let config = ShardConfig { shards: self.shards, ..self.config.clone() };
        let options = DiskThreadOptions {
            data_path: PathBuf::from(FOLDER),
            queue: DiskQueueOptions {
                max_bytes_per_file: self.settings.max_bytes_per_file,
                record_len: RecordLen::for_messages(1024),
                sync_every: self.settings.sync_every,
            },
            sync_timeout: SYNC_EVERY,
            holders_max: self.settings.holders_max,
        };
        let folder = Path::new(FOLDER);
        let mut found = Metadata::read_on(&self.files, folder).expect("the file of names is whole").metadata;
        let listing = Listing::read(&self.files, folder).expect("the folder can be read");
        let adopted = adopt(&self.files, &options, &listing, &mut found);
        let used = !found.topics.is_empty() || adopted;
        let (tokens, noted) = buckets::take(&self.files, folder, used, &self.boot_time());
        noted.expect("the disk has room at a start");
        self.tell_story(|| format!("the broker starts: {tokens:?}"));
        if tokens == Found::Unknown {
            // It may have ended well, and its disk was full.
            self.forget_buckets();
        }
        let answers = Answers::default();
        let sink = answers.clone();
        let answer: Answer = Box::new(move |shard, event| sink.borrow_mut().push((shard, event)));
        let limits: Vec<StartingLimit> = self
            .contracts
            .iter()
            .map(|((topic, channel), contract)| StartingLimit {
                topic: topic_of(*topic),
                channel: channel.map(channel_of),
                contract: *contract,
                source: Source::Admin,
            })
            .collect();
        // Numbers of messages follow the clock at the start: one that stands before what an earlier run had seen would
        // give numbers again that are in use.
        self.furthest_step_ns = self.furthest_step_ns.max(self.wall_step_ns);
        let unix_ns = self.unix_ns() - self.wall_step_ns + self.furthest_step_ns;
        let hosts = (0..self.shards).map(|number| {
            let mut shard = Shard::new(ShardConfig { shard: number, ..config.clone() }, now, unix_ns);
            let left = Left { limits: &limits, names: &found, tokens: &tokens, parts: &[] };
            bring_back(&mut shard, (number, config.shards), left, now);
            Host {
                shard,
                inbox: VecDeque::new(),
                paused_until: now,
                wake_at: None,
                conns: BTreeMap::new(),
                opening: BTreeSet::new(),
                asked: BTreeMap::new(),
                drained: false,
            }
        });
        self.process = Some(Process {
            hosts: hosts.collect(),
            queues: Queues::new(self.files.clone(), options, listing, answer),
            answers,
            jobs: VecDeque::new(),
            disk_free_at: now,
            names: Names::new(StartingNames { names: found, adopted }, self.shards),
            draft: None,
            names_look_at: None,
            unopened: BTreeMap::new(),
            unnamed_since: None,
            listens: false,
            next_shard: 0,
            peers: BTreeMap::new(),
            stopping: false,
            kept: Kept::default(),
            saved: true,
            there: BTreeSet::new(),
        });
        // What is in force is in force for what is brought back.
        for (topic, channel) in super::limits() {
            self.judge_under((topic, channel), self.contracts.get(&(topic, channel)).copied());
        }
        for shard in 0..self.shards {
            self.settle(shard);
        }
        self.look_at_openings();
        self.look_at_names();
        self.after(SYNC_EVERY, Event::DiskSync(self.incarnation));
    }

    /// SIGTERM.
    pub(super) fn terminate(&mut self) {
        let Some(process) = &mut self.process else { return };
        if process.stopping {
            return;
        }
        (process.stopping, process.listens) = (true, false);
        for shard in 0..self.shards {
            self.tell(shard, Inbound::Drain);
        }
    }

    /// All shards have drained: what `Broker::stop` does then.
    fn stopped(&mut self) {
        let now = self.now();
        let mut process = self.process.take().expect("it has just drained");
        let unsynced = process.queues.close();
        if let Some(since) = process.unnamed_since {
            self.stall_all_topics(since, now);
        }
        process.names.stop();
        let folder = Path::new(FOLDER);
        loop {
            if let Some(draft) = process.draft.take().or_else(|| process.names.next_draft(now)) {
                process.names.on_written(draft.write_on(&self.files, folder, "1.3.0"), now);
            }
            if let Some(ended) = process.names.take_end() {
                process.saved &= ended.is_ok();
                break;
            }
        }
        if process.saved {
            // If it cannot be written, the next run begins with empty buckets.
            let _ = buckets::keep(&self.files, folder, &process.kept, self.boot_time());
        }
        let clean = process.saved && unsynced == 0;
        self.hang_up(true);
        self.ended(if clean { End::Clean } else { End::Killed });
    }

    /// SIGKILL, or the power goes.
    pub(super) fn kill(&mut self, power: bool) {
        let Some(mut process) = self.process.take() else { return };
        // Often in the middle of something.
        if self.rng.chance(0.5)
            && let Some(job) = process.jobs.pop_front()
        {
            self.stall_shard(job.shard, job.asked, self.now());
            self.files.dies_after(Some(self.rng.below(6)));
            process.queues.carry_out(job.shard, job.command);
        } else if self.rng.chance(0.3)
            && let Some(draft) = process.draft.take()
        {
            self.files.dies_after(Some(self.rng.below(5)));
            let _ = draft.write_on(&self.files, Path::new(FOLDER), "1.3.0");
        }
        self.files.dies_after(Some(0));
        // What waited for the disk waits on.
        let now = self.now();
        for job in &process.jobs {
            self.stall_shard(job.shard, job.asked, now);
        }
        for ((shard, _), since) in &process.unopened {
            self.stall_shard(*shard, *since, now);
        }
        if let Some(since) = process.unnamed_since {
            self.stall_all_topics(since, now);
        }
        drop(process);
        if power {
            let mut rng = self.rng.split();
            self.files.lose_power(&mut rng);
            self.boot += 1;
            self.booted = self.now();
        }
        self.hang_up(!power);
        let durable = !power || self.settings.sync_every == 1;
        let safe = self.settings.without_memory() && durable;
        self.ended(if safe { End::KilledWithoutMemory } else { End::Killed });
    }

    fn ended(&mut self, end: End) {
        (0..super::TOPICS.len()).for_each(|topic| self.judge_releases(topic));
        self.note(end);
        self.tell_story(|| format!("the broker has ended: {end:?}"));
        self.ends[end as usize] += 1;
        if end != End::Clean {
            self.forget_buckets();
        }
        self.ledger.ended(end);
        if self.restart_wanted {
            self.restart_wanted = false;
            self.after(Duration::from_millis(20), Event::Start);
        }
    }

    /// What removed contracts held is not known to the next process.
    fn forget_buckets(&mut self) {
        let laws = self.topic_laws.iter_mut().chain(&mut self.release_laws).chain(self.channel_laws.values_mut());
        laws.for_each(Law::forget);
    }

    fn boot_time(&self) -> BootTime {
        BootTime { id: format!("boot {}", self.boot), ns: self.now().nanos_since(self.booted) }
    }

    // The seams between threads.

    pub(super) fn tell(&mut self, shard: usize, inbound: Inbound) {
        let now = self.now();
        let Some(process) = &mut self.process else { return };
        process.hosts[shard].inbox.push_back(inbound);
        self.wake_by(shard, now);
    }

    fn wake_by(&mut self, shard: usize, at: Instant) {
        let (now, incarnation) = (self.now(), self.incarnation);
        let Some(process) = &mut self.process else { return };
        let host = &mut process.hosts[shard];
        let at = at.max(now).max(host.paused_until);
        if host.wake_at.is_none_or(|wake| wake > at) {
            host.wake_at = Some(at);
            self.kernel.at(at, Event::Wake(incarnation, shard));
        }
    }

    /// The shard's thread does nothing until then.
    pub(super) fn pause_shard(&mut self, shard: usize, span: Duration) {
        let until = self.now() + span;
        let Some(process) = &mut self.process else { return };
        let Some(host) = process.hosts.get_mut(shard) else { return };
        host.paused_until = host.paused_until.max(until);
        self.stall_all(self.now(), until);
    }

    pub(super) fn on_wake(&mut self, shard: usize) {
        let (now, unix_ns) = (self.now(), self.unix_ns());
        let Some(process) = &mut self.process else { return };
        let host = &mut process.hosts[shard];
        if host.wake_at != Some(now) {
            return;
        }
        host.wake_at = None;
        if host.paused_until > now {
            let until = host.paused_until;
            self.wake_by(shard, until);
            return;
        }
        host.shard.set_wall_clock(now, unix_ns);
        while let Some(inbound) = self.host(shard).inbox.pop_front() {
            self.on_inbound(shard, inbound);
        }
        self.host(shard).shard.on_timeout(now);
        self.settle(shard);
    }

    fn host(&mut self, shard: usize) -> &mut Host {
        &mut self.process.as_mut().expect("it runs").hosts[shard]
    }

    fn on_inbound(&mut self, number: usize, inbound: Inbound) {
        let now = self.now();
        let host = self.host(number);
        match inbound {
            Inbound::Accepted(conn) => {
                let id = host.shard.on_connect(format!("10.0.0.1:{}", 1_000 + conn), now);
                host.conns.insert(id, conn);
                self.conns[conn].place = Some((number, id));
                self.feed(conn, false);
            }
            Inbound::Readable(conn) => self.feed(conn, false),
            Inbound::Gone(conn) => self.drop_connection(conn),
            Inbound::Adopt(migrant, conn) => {
                let id = host.shard.adopt(*migrant, now);
                host.conns.insert(id, conn);
                self.conns[conn].place = Some((number, id));
                self.feed(conn, true);
                if self.conns[conn].hung_up {
                    self.drop_connection(conn);
                }
            }
            Inbound::Peer(message) => host.shard.on_peer(message, now),
            Inbound::Log(event) => {
                if let LogEvent::Opened { queue, .. } | LogEvent::ReadFailed { queue, .. } = &event {
                    host.opening.remove(queue);
                }
                host.shard.on_log(event, now);
                self.look_at_openings();
            }
            Inbound::NamesSaved(notices) => host.shard.on_names_saved(notices),
            Inbound::Admin(request, messages) => self.on_admin(number, request, messages),
            Inbound::Drain => {
                self.flush_records(number);
                self.host(number).shard.drain(now);
            }
        }
    }

    /// Gives the shard what it has not taken yet.
    fn feed(&mut self, conn: ConnNo, again: bool) {
        let now = self.now();
        let Self { conns, process, .. } = self;
        let entry = &mut conns[conn];
        let Some((shard, id)) = entry.place else { return };
        let shard = &mut process.as_mut().expect("it runs").hosts[shard].shard;
        if again && !entry.unread.is_empty() {
            let used = shard.on_bytes(id, &entry.unread, now, now);
            entry.unread.drain(..used);
            entry.free_since = now;
        }
        while shard.wants_bytes(id)
            && let Some((at, bytes)) = entry.chunks.pop_front()
        {
            entry.unread.extend(bytes);
            let arrival = if entry.stamped { at.max(entry.free_since) } else { now };
            let used = shard.on_bytes(id, &entry.unread, arrival, now);
            entry.unread.drain(..used);
        }
    }

    fn drop_connection(&mut self, conn: ConnNo) {
        let now = self.now();
        let entry = &mut self.conns[conn];
        entry.hung_up = true;
        if let Some((shard, id)) = entry.place.take() {
            let host = self.host(shard);
            host.conns.remove(&id);
            host.shard.on_disconnect(id, now);
        }
    }

    fn on_admin(&mut self, number: usize, request: AdminRequest, messages: Vec<usize>) {
        let now = self.now();
        // What is known of topics and channels is up to date.
        while let Some(want) = next_want(&mut self.host(number).shard) {
            self.carry_out(number, want);
        }
        let edited = match &request {
            AdminRequest::SetTopicLimit(topic, contract) => Some(((key_of(topic), None), topic.clone(), *contract)),
            AdminRequest::SetChannelLimit(topic, channel, contract) => {
                Some((super::channel_key(topic, channel), topic.clone(), *contract))
            }
            AdminRequest::EmptyTopic(topic) => {
                let topic = key_of(topic);
                self.ledger.emptied(|(of, _)| of == topic);
                None
            }
            AdminRequest::EmptyChannel(topic, channel) => {
                let (topic, channel) = super::channel_key(topic, channel);
                self.ledger.emptied(|id| (id.0, Some(id.1)) == (topic, channel));
                None
            }
            _ => None,
        };
        self.tell_story(|| format!("{request:?}"));
        match self.host(number).shard.on_admin(request, now) {
            Answered::Now(reply @ AdminReply::Refused(_)) => {
                // It is stopping.
                self.on_admin_reply(&reply, messages);
                return;
            }
            Answered::Now(reply) => self.on_admin_reply(&reply, messages),
            Answered::Later(later) => drop(self.host(number).asked.insert(later, messages)),
        }
        if let Some((key, topic, contract)) = edited {
            // What was due before is recorded as such.
            self.flush_record(number, &topic);
            self.judge_under(key, contract.map(|(contract, _)| contract));
        }
    }

    /// The trace of a topic is handed over, and goes on.
    fn flush_record(&mut self, number: usize, topic: &TopicName) {
        let now = self.now();
        if !self.process.as_ref().is_some_and(|process| process.there.contains(&(key_of(topic), None))) {
            return;
        }
        for recording in [Recording::Off, Recording::On] {
            self.host(number).shard.on_admin(AdminRequest::Record(topic.clone(), recording), now);
        }
        // Only traces are taken out of their order.
        let mut others = VecDeque::new();
        while let Some(want) = next_want(&mut self.host(number).shard) {
            others.push_back(want);
        }
        for want in others {
            self.carry_out(number, want);
        }
    }

    pub(super) fn flush_records(&mut self, number: usize) {
        for topic in (0..super::TOPICS.len()).map(topic_of) {
            if home_shard(topic.as_str(), self.shards) == number {
                self.flush_record(number, &topic);
            }
        }
    }

    /// Nothing comes any more that was released before now.
    fn judge_releases(&mut self, topic: usize) {
        let mut passages = std::mem::take(&mut self.passages[topic]);
        passages.sort_by_key(|passage| passage.release);
        for passage in passages {
            let judged = self.release_laws[topic].take(passage.bytes as usize, passage.release, passage.release);
            if let Err(violation) = judged {
                panic!("{}, by release times: {violation}", super::TOPICS[topic]);
            }
        }
    }

    /// What leaves is judged by this contract from now on.
    fn judge_under(&mut self, on: LimitOn, contract: Option<super::Contract>) {
        let (now, edit) = (self.now(), super::edit_to(contract));
        let there = self.process.as_ref().is_some_and(|process| process.there.contains(&on));
        let present = if there { On::Present } else { On::Absent };
        self.tell_story(|| format!("{on:?} {present:?}: {edit:?}"));
        if let (topic, Some(channel)) = on {
            let earliest = self.pauses.earliest(now, self.settings.way);
            self.channel_laws.entry((topic, channel)).or_default().edit(edit, present, earliest, now);
        } else {
            let earliest = self.earliest_to_come(on.0);
            self.judge_releases(on.0);
            self.topic_laws[on.0].edit(edit, present, earliest, now);
            self.release_laws[on.0].edit(edit, present, now, now);
        }
    }

    /// When something may have left the topic that its consumer has not seen yet: some stalls are not over.
    fn earliest_to_come(&self, topic: usize) -> Instant {
        let now = self.now();
        let home = home_shard(super::TOPICS[topic], self.shards);
        let process = self.process.as_ref();
        let asked = process.and_then(|process| process.jobs.iter().find(|job| job.shard == home)).map(|job| job.asked);
        let unnamed = process.and_then(|process| process.unnamed_since);
        let unopened = process.and_then(|process| {
            process.unopened.iter().filter(|((shard, _), _)| *shard == home).map(|(_, since)| *since).min()
        });
        let stalled = [asked, unnamed, unopened, self.absent_since[topic]].into_iter().flatten().min().unwrap_or(now);
        self.topic_stalls[topic].earliest(stalled, self.settings.way)
    }

    // What shards want.

    fn settle(&mut self, number: usize) {
        let now = self.now();
        for _ in 0..ROUNDS {
            self.host(number).shard.end_batch(now);
            let mut idle = true;
            while let Some(want) = next_want(&mut self.host(number).shard) {
                idle = false;
                self.carry_out(number, want);
            }
            if idle {
                break;
            }
        }
        self.settled += 1;
        let check = self.settled.is_multiple_of(32);
        let host = self.host(number);
        if check && host.shard.is_serving() {
            host.shard.assert_invariants();
        }
        if host.shard.is_drained() && !host.drained {
            host.drained = true;
            let (kept, saved) = (Kept::of(&host.shard, now), host.shard.log_error().is_none());
            let process = self.process.as_mut().expect("it runs");
            process.kept.join(kept);
            process.saved &= saved;
            if process.hosts.iter().all(|host| host.drained) {
                self.after(Duration::ZERO, Event::Stopped(self.incarnation));
            }
            return;
        }
        if let Some(at) = host.shard.next_timeout() {
            self.wake_by(number, at);
        }
    }

    pub(super) fn on_stopped(&mut self) {
        self.stopped();
    }

    fn carry_out(&mut self, number: usize, want: Want) {
        let now = self.now();
        let output = match want {
            Want::Flush(id) => {
                if let Some(conn) = self.host(number).conns.get(&id).copied() {
                    self.flush(conn);
                }
                return;
            }
            Want::Output(output) => output,
        };
        let host = self.host(number);
        match output {
            Output::Close(id) => {
                let Some(conn) = host.conns.get(&id).copied() else { return };
                self.flush(conn);
                self.send_client(conn, Parcel::Close);
                self.drop_connection(conn);
            }
            Output::Stamp(id) => {
                if let Some(conn) = host.conns.get(&id).copied() {
                    self.conns[conn].stamped = true;
                    self.conns[conn].free_since = now;
                }
            }
            Output::Resume(id) => {
                if let Some(conn) = host.conns.get(&id).copied() {
                    self.conns[conn].free_since = now;
                    self.feed(conn, true);
                }
            }
            Output::Log(command) => self.ask_disk(number, command),
            Output::Trace(topic, traced) => {
                for passage in &traced.passages {
                    if self.talks {
                        eprintln!("{now:?} {topic} {passage:?}");
                    }
                }
                self.passages[key_of(&topic)].extend(traced.passages);
            }
            Output::Notice(notice) => self.on_notice(number, notice),
            Output::AdminReply(request, reply) => {
                let messages = host.asked.remove(&request).expect("it was asked");
                self.on_admin_reply(&reply, messages);
            }
            Output::Migrate { conn: id, shard } => {
                let Some(conn) = host.conns.remove(&id) else { return };
                let migrant = host.shard.take(id);
                let entry = &mut self.conns[conn];
                (entry.place, entry.stamped, entry.heading) = (None, false, shard);
                self.tell(shard, Inbound::Adopt(Box::new(migrant), conn));
            }
            Output::Peer { shard, message } => {
                let process = self.process.as_mut().expect("it runs");
                process.peers.entry((number, shard)).or_default().push_back(message);
                let event = Event::Peer(self.incarnation, number, shard);
                let node = |shard: usize| NodeId(u32::try_from(shard).expect("a few shards"));
                self.send(node(number), node(shard), event);
            }
            Output::Upgrade(..) | Output::Authenticate { .. } => unreachable!("no client asks for it"),
            Output::Lend(..) => unreachable!("it does not lend"),
        }
    }

    pub(super) fn on_peer(&mut self, from: usize, to: usize) {
        let process = self.process.as_mut().expect("it runs");
        let message = process.peers.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("it was sent");
        self.tell(to, Inbound::Peer(message));
    }

    fn on_notice(&mut self, number: usize, notice: Notice) {
        let now = self.now();
        let ephemeral = self.keeps_ephemeral();
        let process = self.process.as_mut().expect("it runs");
        process.names.on_notice(number, notice.clone());
        process.unnamed_since.get_or_insert(now);
        let story = notice.clone();
        match notice {
            Notice::TopicCreated(topic) => {
                process.there.insert((key_of(&topic), None));
                self.host(number).shard.on_admin(AdminRequest::Record(topic, Recording::On), now);
            }
            Notice::TopicDeleted(topic) => {
                let topic = key_of(&topic);
                process.there.remove(&(topic, None));
                self.ledger.emptied(|(of, _)| of == topic);
            }
            Notice::ChannelCreated(topic, channel) => {
                process.there.insert(super::channel_key(&topic, &channel));
                let transient = topic.is_ephemeral() || channel.is_ephemeral();
                if let (topic, Some(channel)) = super::channel_key(&topic, &channel)
                    && (ephemeral || !transient)
                {
                    self.ledger.created((topic, channel));
                }
            }
            Notice::ChannelDeleted(topic, channel) => {
                process.there.remove(&super::channel_key(&topic, &channel));
                if let (topic, Some(channel)) = super::channel_key(&topic, &channel) {
                    self.ledger.deleted((topic, channel));
                }
            }
            Notice::PauseChanged(..) => {}
        }
        self.tell_story(|| format!("{story:?}"));
        self.look_at_names();
    }

    /// Writes the output of a connection to its socket.
    fn flush(&mut self, conn: ConnNo) {
        let now = self.now();
        let Some((number, id)) = self.conns[conn].place else { return };
        let shard = &mut self.host(number).shard;
        let output = std::mem::take(shard.output_of(id));
        shard.on_written(id);
        if output.is_empty() {
            return;
        }
        let replies = replies_in(&output, now);
        if let Some(channel) = self.conns[conn].channel {
            for number in replies.iter().filter_map(super::message_of) {
                self.ledger.written(channel, number);
            }
        }
        self.send_client(conn, Parcel::Replies(replies));
    }

    // Sockets.

    /// A parcel of a client has arrived.
    pub(super) fn on_arrival(&mut self, conn: ConnNo) {
        let now = self.now();
        let Some(parcel) = self.conns[conn].to_broker.pop_front() else { return };
        let alive = self.conns[conn].incarnation == self.incarnation && self.process.is_some();
        let listens = self.process.as_ref().is_some_and(|process| process.listens);
        match parcel {
            Parcel::Open if listens => {
                let process = self.process.as_mut().expect("it listens");
                let shard = process.next_shard % process.hosts.len();
                process.next_shard += 1;
                (self.conns[conn].incarnation, self.conns[conn].heading) = (self.incarnation, shard);
                self.tell(shard, Inbound::Accepted(conn));
            }
            Parcel::Open => self.send_client(conn, Parcel::Close),
            Parcel::Bytes(bytes) if alive && !self.conns[conn].hung_up => {
                self.conns[conn].chunks.push_back((now, bytes));
                self.tell_of(conn, Inbound::Readable(conn));
            }
            Parcel::Close if alive => self.tell_of(conn, Inbound::Gone(conn)),
            Parcel::Bytes(_) | Parcel::Close | Parcel::Replies(_) => {}
        }
    }

    /// Tells the shard that has the connection. One on its way between shards is told when it is there.
    fn tell_of(&mut self, conn: ConnNo, inbound: Inbound) {
        let entry = &mut self.conns[conn];
        match (entry.place, &inbound) {
            (Some((shard, _)), _) => self.tell(shard, inbound),
            (None, Inbound::Gone(_)) if entry.heading == usize::MAX => {}
            (None, Inbound::Gone(_)) => {
                entry.hung_up = true;
                let shard = entry.heading;
                self.tell(shard, inbound);
            }
            (None, _) => {}
        }
    }

    /// Every socket of the process closes; what is on its way arrives, or some of it.
    fn hang_up(&mut self, whole: bool) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].incarnation == self.incarnation && !self.conns[conn].hung_up {
                self.conns[conn].hung_up = true;
                self.conns[conn].place = None;
                if !whole && self.rng.chance(0.5) {
                    self.conns[conn].cut = true;
                }
                self.send_client(conn, Parcel::Close);
            }
        }
        let now = self.now();
        for topic in 0..super::TOPICS.len() {
            self.reference_absent(topic, now);
        }
    }

    fn look_at_openings(&mut self) {
        let Some(process) = &mut self.process else { return };
        if !process.listens && !process.stopping && process.hosts.iter().all(|host| host.opening.is_empty()) {
            process.listens = true;
        }
    }

    // The disk thread.

    fn ask_disk(&mut self, shard: usize, command: LogCommand) {
        let now = self.now();
        self.tell_story(|| format!("asked of the disk, by shard {shard}: {command:?}").chars().take(90).collect());
        let delay = Duration::from_nanos(self.settings.disk.sample_ns(&mut self.rng));
        let process = self.process.as_mut().expect("it runs");
        if let LogCommand::Open { queue, .. } = &command
            && !process.listens
        {
            process.hosts[shard].opening.insert(*queue);
        }
        let done = process.disk_free_at.max(now).max(self.disk_paused_until) + delay;
        process.disk_free_at = done;
        process.jobs.push_back(Job { shard, command, asked: now });
        self.kernel.at(done, Event::Disk(self.incarnation));
    }

    pub(super) fn on_disk(&mut self) {
        let now = self.now();
        let process = self.process.as_mut().expect("it runs");
        let Some(Job { shard, command, asked }) = process.jobs.pop_front() else { return };
        self.tell_story(|| format!("disk, for shard {shard}: {command:?}").chars().take(90).collect());
        let process = self.process.as_mut().expect("it runs");
        let closes = matches!(command, LogCommand::Close { .. });
        match &command {
            LogCommand::Open { queue, .. } => {
                process.unopened.insert((shard, *queue), asked);
            }
            LogCommand::Close { queue } | LogCommand::Delete { queue } => {
                process.unopened.remove(&(shard, *queue));
            }
            _ => {}
        }
        process.queues.carry_out(shard, command);
        if closes {
            self.after(Duration::from_millis(5), Event::DiskClose(self.incarnation));
        }
        self.stall_shard(shard, asked, now);
        self.give_answers();
    }

    pub(super) fn on_disk_close(&mut self) {
        self.process.as_mut().expect("it runs").queues.finish_closing();
        self.give_answers();
    }

    pub(super) fn on_disk_sync(&mut self) {
        self.process.as_mut().expect("it runs").queues.sync();
        self.give_answers();
        self.after(SYNC_EVERY, Event::DiskSync(self.incarnation));
    }

    fn give_answers(&mut self) {
        let now = self.now();
        let answers = self.process.as_mut().expect("it runs").answers.take();
        for (shard, event) in answers {
            if matches!(event, LogEvent::AppendFailed { .. } | LogEvent::ReadFailed { .. }) {
                self.stall_shard(shard, now, now + RETRY);
            }
            if let LogEvent::Opened { queue, .. } = &event
                && let Some(since) = self.process.as_mut().expect("it runs").unopened.remove(&(shard, *queue))
            {
                self.stall_shard(shard, since, now);
            }
            self.tell(shard, Inbound::Log(event));
        }
    }

    /// Something of a shard waited for the disk: so may the messages of its topics.
    fn stall_shard(&mut self, shard: usize, from: Instant, to: Instant) {
        for (topic, name) in super::TOPICS.iter().enumerate() {
            if home_shard(name, self.shards) == shard {
                self.topic_stalls[topic].add(from, to);
            }
        }
    }

    pub(super) fn pause_disk(&mut self, span: Duration) {
        self.disk_paused_until = self.disk_paused_until.max(self.now() + span);
    }

    // The keeper of names.

    pub(super) fn look_at_names(&mut self) {
        let (now, incarnation) = (self.now(), self.incarnation);
        let Some(process) = &mut self.process else { return };
        if process.draft.is_none()
            && let Some(draft) = process.names.next_draft(now)
        {
            process.draft = Some(draft);
            let delay = Duration::from_nanos(3 * self.settings.disk.sample_ns(&mut self.rng));
            self.kernel.at(now + delay, Event::NamesWritten(incarnation));
        }
        for (shard, notices) in process.names.newly_durable() {
            self.tell_story(|| format!("the first {notices} names of shard {shard} are saved"));
            self.tell(shard, Inbound::NamesSaved(notices));
        }
        let process = self.process.as_mut().expect("it runs");
        if process.draft.is_none()
            && process.names.next_timeout().is_none()
            && let Some(since) = process.unnamed_since.take()
        {
            self.tell_story(|| format!("names were waited for since {since:?}"));
            self.stall_all_topics(since, now);
        }
        let process = self.process.as_mut().expect("it runs");
        if let Some(at) = process.names.next_timeout()
            && process.names_look_at != Some(at)
        {
            process.names_look_at = Some(at);
            self.kernel.at(at, Event::NamesLook(incarnation));
        }
    }

    pub(super) fn on_names_written(&mut self) {
        let now = self.now();
        let process = self.process.as_mut().expect("it runs");
        if let Some(draft) = process.draft.take() {
            let outcome = draft.write_on(&self.files, Path::new(FOLDER), "1.3.0");
            process.names.on_written(outcome, now);
        }
        if let Some(since) = process.unnamed_since {
            self.stall_all_topics(since, now);
        }
        self.look_at_names();
    }

    fn on_admin_reply(&mut self, reply: &AdminReply, messages: Vec<usize>) {
        let fate = match reply {
            AdminReply::Done => Fate::Accepted,
            // Some of it may be in the logs of some channels.
            AdminReply::Refused(PublishRefused::LogFailed { .. }) => Fate::Unknown,
            _ => Fate::Refused,
        };
        for message in messages {
            self.ledger.answered(message, fate);
        }
    }
}
