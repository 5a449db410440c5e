//! The thread of one shard: it waits, tells the shard what happened, and carries out what the shard answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustls::ServerConfig;
use tidegate_core::Instant;
use tidegate_runtime::process::{self, Reserve};
use tidegate_runtime::{clock, slice};
use tidegate_wire::nsq::TopicName;
use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::arrival::{Arrivals, Reported};
use super::buckets::Kept;
use super::connection::{Connection, Scratch, Step};
use super::handshake::{Deadline, Deadlines, HandshakeThread, Stepped};
use super::lend_socket::LendSocket;
use super::listener::Listener;
use super::mailbox::{Inbound, ShardMailbox};
use super::socket::Socket;
use crate::machine::admin::{AdminReply, Answered};
use crate::machine::log::{LogCommand, LogEvent, QueueId};
use crate::machine::output::{ConnId, Layers, Notice, Output};
use crate::machine::shard::Shard;
use crate::machine::trace::Traced;
use tidegate_core::sleep::Sleep;

const BELL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const ALARM: u64 = u64::MAX - 2;
const LENDING: u64 = u64::MAX - 3;
/// Connections that are being closed are watched under their number plus this.
const CLOSING: u64 = 1 << 40;

/// Events taken from one poll.
const EVENTS: usize = 1024;
/// Rounds of delivering and writing before new bytes are looked at.
const ROUNDS: usize = 8;
/// Connections taken from the listener in one go.
const ACCEPTS: usize = 64;
/// Datagrams taken in one go; the rest is announced again.
const DATAGRAMS: usize = 64;
/// Out of file descriptors: the listener rests this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A closed connection's peer has this long to read what it was told.
const LINGER: Duration = Duration::from_secs(1);
/// Closed connections that linger at once; beyond, they are cut.
const LINGERING_MAX: usize = 1024;
/// A draining shard gives up when the log has answered nothing for so long.
const DRAIN_MAX: Duration = Duration::from_mins(1);

/// What a shard's thread hands to others.
pub(super) trait Surroundings: Send {
    fn log(&self, shard: usize, command: LogCommand);
    fn notice(&self, shard: usize, notice: Notice);
    fn trace(&self, topic: TopicName, traced: Traced);
    fn authenticate(&self, asked: Authentication);
    /// What is left of the tokens, once the shard has drained.
    fn keep(&self, kept: Kept);
}

/// A question for the AUTH server.
pub(super) struct Authentication {
    pub(super) conn: ConnId,
    pub(super) serial: u64,
    pub(super) secret: Vec<u8>,
    pub(super) remote_address: String,
    pub(super) tls: bool,
    pub(super) common_name: String,
}

/// What a shard's thread is made of.
pub(super) struct Parts<S> {
    pub(super) number: usize,
    pub(super) shard: Shard,
    pub(super) mailboxes: Arc<[Arc<ShardMailbox>]>,
    pub(super) inbox: Receiver<Inbound>,
    /// Dropped when each queue that an earlier run left has said what it holds, or that it cannot.
    pub(super) opened: Option<Sender<()>>,
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// For a TLS handshake, from the answer to IDENTIFY on.
    pub(super) handshake_time: Duration,
    pub(super) surroundings: S,
}

struct Lingering {
    socket: Socket,
    until: Instant,
}

struct Worker<S> {
    parts: Parts<S>,
    epoll: OwnedFd,
    alarm: Alarm,
    /// `None`: parts of limits are static.
    lend: Option<LendSocket>,
    sleep: Sleep,
    /// Shard 0 accepts for all, as soon as it is told to ([`Inbound::Listen`]).
    listener: Option<Listener>,
    connections: Vec<Option<Box<Connection>>>,
    lingering: Vec<Option<Lingering>>,
    lingering_count: usize,
    scratch: Scratch,
    arrivals: Arrivals,
    now: Instant,
    accept_again: Option<Instant>,
    next_shard: usize,
    drain_until: Option<Instant>,
    /// Requests of the HTTP APIs that the shard answers later, by their number.
    asked: BTreeMap<u64, oneshot::Sender<AdminReply>>,
    /// Queues of an earlier run that have not said yet what they hold; `None` once all have.
    opening: Option<BTreeSet<QueueId>>,
    /// Connections with decoded or undecoded bytes that no event of a socket will announce.
    pending: Vec<ConnId>,
    /// `None` without TLS.
    handshakes: Option<HandshakeThread>,
    deadlines: Deadlines,
    /// Turns until a debug build looks at the invariants again.
    unchecked_turns: usize,
    #[cfg(test)]
    failure: Option<io::Error>,
}

/// What a shard waits with, and its thread of handshakes. They are made before its thread starts, so that a lack of
/// descriptors or threads is an error of the start.
pub(super) struct Waiting {
    epoll: OwnedFd,
    alarm: Alarm,
    handshakes: Option<HandshakeThread>,
    lend: Option<LendSocket>,
}

impl Waiting {
    pub(super) fn new(
        number: usize,
        mailbox: &Arc<ShardMailbox>,
        tls: bool,
        lend: Option<LendSocket>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, mailbox.bell(), bell, epoll::EventFlags::IN)?;
        let alarm = Alarm::new()?;
        epoll::add(&epoll, &alarm, epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN)?;
        if let Some(lend) = &lend {
            epoll::add(&epoll, lend, epoll::EventData::new_u64(LENDING), epoll::EventFlags::IN)?;
        }
        let handshakes = tls.then(|| HandshakeThread::start(number, mailbox.clone())).transpose()?;
        Ok(Self { epoll, alarm, handshakes, lend })
    }
}

/// How a shard's thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It was told to drain.
    Drained { saved: bool },
    /// It could not wait for events any more.
    Failed { saved: bool },
}

/// Runs a shard until it has drained. One that cannot wait for events any more saves its messages and ends.
pub(super) fn run<S: Surroundings>(parts: Parts<S>, waiting: Waiting) -> End {
    // A shard shares its CPU with HTTP threads, handshakes and other processes; messages go first.
    slice::run_when_woken();
    let Waiting { epoll, alarm, handshakes, lend } = waiting;
    let number = parts.number;
    let now = clock::now();
    let mut worker = Worker {
        parts,
        epoll,
        alarm,
        lend,
        sleep: Sleep::default(),
        listener: None,
        connections: Vec::new(),
        lingering: Vec::new(),
        lingering_count: 0,
        scratch: Scratch::new(),
        arrivals: Arrivals::new(now, clock::realtime_ns()),
        now,
        accept_again: None,
        next_shard: 0,
        drain_until: None,
        asked: BTreeMap::new(),
        opening: Some(BTreeSet::new()),
        pending: Vec::new(),
        handshakes,
        deadlines: Deadlines::default(),
        unchecked_turns: 0,
        #[cfg(test)]
        failure: None,
    };
    match worker.run() {
        Ok(saved) => End::Drained { saved },
        Err(error) => {
            tracing::error!(%error, number, "a shard cannot go on; its messages are being saved");
            End::Failed { saved: worker.save() }
        }
    }
}

impl<S: Surroundings> Worker<S> {
    fn run(&mut self) -> io::Result<bool> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        // What an earlier run left is opened before anything happens.
        let mut more = self.settle();
        self.look_at_openings();
        loop {
            #[cfg(test)]
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            self.wait(&mut events, more)?;
            for event in &events {
                let data = event.data;
                let flags = event.flags;
                match data.u64() {
                    BELL => self.read_mail(),
                    LISTENER => self.accept(),
                    ALARM => self.alarm.on_ring(),
                    LENDING => self.read_datagrams(),
                    closing if closing >= CLOSING => self.drop_lingering(slot_of(closing - CLOSING)),
                    conn => self.on_event(slot_of(conn), flags),
                }
            }
            for conn in std::mem::take(&mut self.pending) {
                self.decode(conn, 0, self.now);
            }
            self.parts.shard.on_timeout(self.now);
            self.sweep();
            more = self.settle();
            self.check();
            if self.parts.shard.is_drained() {
                self.parts.surroundings.keep(Kept::of(&self.parts.shard, self.now));
                return Ok(self.parts.shard.log_error().is_none());
            }
            if self.drain_until.is_some_and(|until| self.now >= until) {
                return Ok(false);
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, more: bool) -> io::Result<()> {
        let before = clock::now();
        let mut until = self.parts.shard.next_timeout();
        let lingering = (self.lingering_count > 0).then(|| before + LINGER);
        for also in [self.accept_again, self.drain_until, lingering, self.deadlines.next()] {
            until = match (until, also) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        if more || !self.pending.is_empty() {
            until = Some(before);
        }
        let until = self.arrivals.before_poll(before, until);
        let due = until.is_some_and(|until| until <= before);
        if let Some(until) = until.filter(|_| !due) {
            self.alarm.ring_by(until)?;
        }
        // A look without waiting, or a wait that the alarm ends.
        let timeout = due.then(Timespec::default);
        events.clear();
        let interrupted = match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) => false,
            Err(rustix::io::Errno::INTR) => true,
            Err(error) => return Err(error.into()),
        };
        self.look_at_clock();
        let unix_ns = clock::realtime_ns();
        let reported = if events.len() < EVENTS && !interrupted { Reported::All } else { Reported::Some };
        self.arrivals.after_poll(self.now, unix_ns, reported);
        self.parts.shard.set_wall_clock(self.now, unix_ns);
        Ok(())
    }

    /// What time it is, and whether the machine has slept meanwhile.
    fn look_at_clock(&mut self) {
        if self.lend.is_none() {
            self.now = clock::now();
            return;
        }
        // In this order: what comes between the two makes the difference smaller, and is no sleep.
        let since_boot_ns = clock::since_boot_ns();
        self.now = clock::now();
        if self.sleep.has_slept(since_boot_ns, self.now) {
            tracing::info!("the machine has slept; what is borrowed of other brokers' tokens is given up");
            self.parts.shard.on_slept(self.now);
        }
    }

    // What happened.

    fn read_datagrams(&mut self) {
        for _ in 0..DATAGRAMS {
            let Some(read) = self.lend.as_ref().and_then(LendSocket::receive) else { return };
            // After it was read: what its sender is granted counts from now.
            self.look_at_clock();
            match read {
                Ok(frame) => self.parts.shard.on_lend_frame(frame, self.now),
                Err(error) => {
                    tracing::trace!(%error, "a datagram cannot be read");
                    self.parts.shard.on_bad_datagram();
                }
            }
        }
    }

    fn read_mail(&mut self) {
        self.parts.mailboxes[self.parts.number].answer_bell();
        while let Ok(inbound) = self.parts.inbox.try_recv() {
            self.take(inbound);
        }
    }

    fn take(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Accepted(socket) => self.connect(socket),
            Inbound::Adopt(migrant, connection) => {
                let conn = self.parts.shard.adopt(migrant, self.now);
                self.place(conn, *connection);
                self.feed(conn, self.now);
            }
            Inbound::Admin(request, answer) => {
                match self.parts.shard.on_admin(request, self.now) {
                    // Whoever asked may have gone.
                    Answered::Now(reply) => drop(answer.send(reply)),
                    Answered::Later(number) => drop(self.asked.insert(number, answer)),
                }
            }
            Inbound::Peer(message) => self.parts.shard.on_peer(message, self.now),
            Inbound::Log(event) => self.on_log(event),
            Inbound::NamesSaved(notices) => self.parts.shard.on_names_saved(notices),
            Inbound::Listen(listener) => self.listen(listener),
            Inbound::Authorized(conn, serial, answer) => self.parts.shard.on_authorized(conn, serial, answer),
            Inbound::Handshake(stepped) => self.on_handshake(*stepped),
            Inbound::Drain => self.drain(),
            #[cfg(test)]
            Inbound::Fail => self.failure = Some(io::Error::other("a test wants this shard to fail")),
            #[cfg(test)]
            Inbound::Panic => panic!("a test wants this shard to panic"),
        }
    }

    /// Saves all messages with the mailbox alone, without waiting for sockets; `true` if that went well.
    fn save(&mut self) -> bool {
        self.drain();
        loop {
            while self.settle() {}
            if self.parts.shard.is_saved() {
                return self.parts.shard.log_error().is_none();
            }
            self.now = clock::now();
            let left = self.drain_until.map_or(Duration::ZERO, |until| until.since(self.now));
            let Ok(inbound) = self.parts.inbox.recv_timeout(left) else { return false };
            self.take(inbound);
        }
    }

    /// In a debug build, holds the machine to its invariants: after every turn while it holds little, and the more rarely
    /// the more it holds, so that a turn costs about as much.
    fn check(&mut self) {
        if !cfg!(debug_assertions) || !self.parts.shard.is_serving() {
            return;
        }
        match self.unchecked_turns.checked_sub(1) {
            Some(left) => self.unchecked_turns = left,
            None => self.unchecked_turns = self.parts.shard.assert_invariants() / 64,
        }
    }

    fn on_log(&mut self, event: LogEvent) {
        let answered = match &event {
            LogEvent::Opened { queue, .. } | LogEvent::ReadFailed { queue, .. } => Some(*queue),
            _ => None,
        };
        self.parts.shard.on_log(event, self.now);
        if self.drain_until.is_some() {
            // As long as something goes to the disk there is no reason to give up.
            self.drain_until = Some(self.now + DRAIN_MAX);
        }
        if let (Some(opening), Some(queue)) = (&mut self.opening, answered) {
            opening.remove(&queue);
            self.look_at_openings();
        }
    }

    fn look_at_openings(&mut self) {
        if self.opening.as_ref().is_some_and(BTreeSet::is_empty) {
            (self.opening, self.parts.opened) = (None, None);
        }
    }

    fn listen(&mut self, listener: Listener) {
        let data = epoll::EventData::new_u64(LISTENER);
        if self.drain_until.is_none() {
            if let Err(error) = epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN) {
                // As when descriptors run out: tried again soon.
                tracing::warn!(%error, "cannot accept connections for now");
                self.accept_again = Some(self.now + ACCEPT_PAUSE);
            }
            self.listener = Some(listener);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok(Some(socket)) => {
                    let scarce = process::is_scarce(socket.as_fd(), Reserve::Clients);
                    let target = self.next_shard % self.parts.mailboxes.len();
                    self.next_shard = target + 1;
                    if target == self.parts.number {
                        self.connect(socket);
                    } else {
                        self.parts.mailboxes[target].send(Inbound::Accepted(socket));
                    }
                    if scarce {
                        self.rest_accepting(&io::Error::from(rustix::io::Errno::MFILE));
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.rest_accepting(&error);
                    return;
                }
            }
        }
    }

    /// Out of descriptors, most likely: those who are connected go on, the others wait in the backlog.
    fn rest_accepting(&mut self, error: &io::Error) {
        if let Some(listener) = &self.listener {
            tracing::warn!(
                %error,
                limit = process::open_files_limit(),
                "new connections wait until others close; `ulimit -n` or LimitNOFILE= raises the limit of open files"
            );
            let _ = epoll::delete(&self.epoll, listener);
            self.accept_again = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn accept_again(&mut self) {
        let Some(listener) = &self.listener else { return };
        let data = epoll::EventData::new_u64(LISTENER);
        if !process::next_is_scarce(listener.as_fd(), Reserve::Clients)
            && epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN).is_ok()
        {
            self.accept_again = None;
            tracing::info!("new connections are accepted again");
        } else {
            self.accept_again = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn connect(&mut self, socket: Socket) {
        if socket.set_up().is_err() {
            return; // Gone already.
        }
        let conn = self.parts.shard.on_connect(socket.peer(), self.now);
        self.place(conn, Connection::new(socket));
    }

    fn place(&mut self, conn: ConnId, mut connection: Connection) {
        connection.watched = (true, false);
        let data = epoll::EventData::new_u64(conn as u64);
        if epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN).is_err() {
            self.parts.shard.on_disconnect(conn, self.now);
            return;
        }
        if self.connections.len() <= conn {
            self.connections.resize_with(conn + 1, || None);
        }
        self.connections[conn] = Some(Box::new(connection));
    }

    fn on_event(&mut self, conn: ConnId, flags: epoll::EventFlags) {
        let Some(Some(connection)) = self.connections.get(conn) else { return };
        if flags.contains(epoll::EventFlags::OUT) && connection.watched.1 {
            self.flush(conn);
        }
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        match self.connections.get(conn) {
            // Not watched for reading, so the socket has ended. The step that comes back finds nobody.
            Some(Some(connection)) if connection.is_away() => self.disconnect(conn),
            _ => self.read(conn),
        }
    }

    fn read(&mut self, conn: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        let Some((bytes, arrival)) = connection.receive(&mut self.scratch, &mut self.arrivals, self.now) else {
            self.disconnect(conn);
            return;
        };
        if bytes == 0 {
            return;
        }
        if connection.stamped {
            // The poll may be long past. What is due since then goes with what was read, and a trace says when that was.
            self.now = clock::now();
        }
        if !connection.is_plain() {
            self.decode(conn, bytes, arrival);
            return;
        }
        if connection.unread.is_empty() {
            // The common case: whole commands, straight from the shared buffer.
            let used = self.parts.shard.on_bytes(conn, &self.scratch.bytes[..bytes], arrival, self.now);
            connection.unread.extend_from_slice(&self.scratch.bytes[used..bytes]);
        } else {
            connection.unread.extend_from_slice(&self.scratch.bytes[..bytes]);
            self.feed(conn, arrival);
        }
        self.watch(conn);
    }

    /// Puts `bytes` of the shared buffer through the connection's layers and goes on with what comes out.
    fn decode(&mut self, conn: ConnId, bytes: usize, arrival: Instant) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        match connection.decode(&self.scratch.bytes[..bytes]) {
            Ok(true) => self.go_on(conn, arrival),
            Ok(false) => {
                self.go_on(conn, arrival);
                self.disconnect(conn);
            }
            Err(_) => {
                // What TLS says about it goes out, if it can.
                let _ = connection.send(&mut Vec::new(), &mut self.scratch);
                self.disconnect(conn);
            }
        }
    }

    /// Goes on with an upgrade, or with what was decoded.
    fn go_on(&mut self, conn: ConnId, arrival: Instant) {
        if self.connections.get(conn).is_some_and(|c| c.as_ref().is_some_and(|c| c.is_upgrading())) {
            self.upgrade(conn);
        } else {
            self.feed(conn, arrival);
        }
        let Some(Some(connection)) = self.connections.get(conn) else { return };
        if connection.is_pending() && self.parts.shard.wants_bytes(conn) && !self.pending.contains(&conn) {
            self.pending.push(conn);
        }
        self.watch(conn);
    }

    /// Gives the shard what it has not taken yet.
    fn feed(&mut self, conn: ConnId, arrival: Instant) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        if connection.unread.is_empty() {
            return;
        }
        let used = self.parts.shard.on_bytes(conn, &connection.unread, arrival, self.now);
        if used == connection.unread.len() {
            connection.unread = Vec::new();
        } else {
            connection.unread.drain(..used);
        }
    }

    fn disconnect(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(conn).and_then(Option::take) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
        self.parts.shard.on_disconnect(conn, self.now);
    }

    fn drain(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = epoll::delete(&self.epoll, &listener);
        }
        self.accept_again = None;
        self.parts.shard.drain(self.now);
        self.drain_until = Some(self.now + DRAIN_MAX);
    }

    // What the shard wants.

    /// Carries out everything; `true` if there is more to do at once.
    fn settle(&mut self) -> bool {
        for _ in 0..ROUNDS {
            self.parts.shard.end_batch(self.now);
            let mut idle = true;
            while let Some(output) = self.parts.shard.poll_output() {
                idle = false;
                self.carry_out(output);
            }
            while let Some(conn) = self.parts.shard.next_dirty() {
                idle = false;
                self.flush(conn);
            }
            if idle {
                return false;
            }
        }
        true
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Close(conn) => self.close(conn),
            Output::Upgrade(conn, layers) => self.begin_upgrade(conn, layers),
            Output::Authenticate { conn, serial, secret } => {
                let (remote_address, tls) = self.parts.shard.peer_of(conn);
                let common_name = self.connections[conn].as_ref().map(|c| c.common_name()).unwrap_or_default();
                let asked = Authentication { conn, serial, secret, remote_address, tls, common_name };
                self.parts.surroundings.authenticate(asked);
            }
            Output::Stamp(conn) => {
                if let Some(Some(connection)) = self.connections.get_mut(conn) {
                    connection.socket.stamp_arrivals();
                    connection.stamped = true;
                }
            }
            Output::Resume(conn) => {
                self.feed(conn, self.now);
                self.go_on(conn, self.now);
            }
            Output::Log(command) => {
                if let (Some(opening), LogCommand::Open { queue, .. }) = (&mut self.opening, &command) {
                    opening.insert(*queue);
                }
                self.parts.surroundings.log(self.parts.number, command);
            }
            Output::Trace(topic, traced) => self.parts.surroundings.trace(topic, traced),
            Output::Notice(notice) => self.parts.surroundings.notice(self.parts.number, notice),
            Output::AdminReply(number, reply) => {
                if let Some(answer) = self.asked.remove(&number) {
                    let _ = answer.send(reply);
                }
            }
            Output::Lend(to, frame) => {
                if let Some(lend) = &mut self.lend {
                    lend.send(to, &frame);
                }
            }
            Output::Migrate { conn, shard } => self.migrate(conn, shard),
            Output::Peer { shard, message } => self.parts.mailboxes[shard].send(Inbound::Peer(message)),
        }
    }

    fn flush(&mut self, conn: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        let out = self.parts.shard.output_of(conn);
        if connection.send(out, &mut self.scratch).is_err() {
            self.disconnect(conn);
            return;
        }
        self.parts.shard.on_written(conn);
        self.watch(conn);
    }

    /// Has epoll watch for what the connection waits for.
    fn watch(&mut self, conn: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        // A client that does not read its answers is not read either.
        let swamped = self.parts.shard.output_of(conn).len() > OUTPUT_MAX;
        let reads = self.parts.shard.wants_bytes(conn) || connection.is_upgrading() && !connection.is_away();
        let wanted = (reads && !swamped, connection.is_stuck());
        if wanted != connection.watched {
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, wanted.0);
            flags.set(epoll::EventFlags::OUT, wanted.1);
            let data = epoll::EventData::new_u64(conn as u64);
            if epoll::modify(&self.epoll, &connection.socket, data, flags).is_ok() {
                connection.watched = wanted;
            }
        }
    }

    fn begin_upgrade(&mut self, conn: ConnId, layers: Layers) {
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        let out = self.parts.shard.output_of(conn);
        if connection.send(out, &mut self.scratch).is_err() {
            self.disconnect(conn);
            return;
        }
        let until = self.now + self.parts.handshake_time;
        connection.begin_upgrade(layers, out, until);
        if layers.tls
            && let Some(serial) = self.parts.shard.serial_of(conn)
            && let Some(oldest) = self.deadlines.enter(Deadline { until, conn, serial })
        {
            self.end_handshake(oldest);
        }
        self.upgrade(conn);
    }

    /// Goes on with a handshake of which a step was computed.
    fn on_handshake(&mut self, stepped: Stepped) {
        let Stepped { conn, serial, layer, alive } = stepped;
        if self.parts.shard.serial_of(conn) != Some(serial) {
            return; // Gone meanwhile.
        }
        let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
        connection.take_back(layer);
        if connection.send(&mut Vec::new(), &mut self.scratch).is_err() || !alive {
            self.disconnect(conn);
            return;
        }
        self.go_on(conn, self.now);
    }

    /// Ends the connection of a handshake that has had its time, if it is still that.
    fn end_handshake(&mut self, late: Deadline) {
        let is_it = self.parts.shard.serial_of(late.conn) == Some(late.serial);
        let handshaking = matches!(self.connections.get(late.conn), Some(Some(c)) if c.is_handshaking());
        if is_it && handshaking {
            tracing::debug!(peer = self.parts.shard.peer_of(late.conn).0, "a TLS handshake took too long");
            self.disconnect(late.conn);
        }
    }

    fn upgrade(&mut self, conn: ConnId) {
        loop {
            let Some(Some(connection)) = self.connections.get_mut(conn) else { return };
            let Ok(step) = connection.upgrade(self.parts.tls.as_ref()) else {
                self.disconnect(conn);
                return;
            };
            match step {
                Step::Waiting => {
                    let step = self.parts.shard.serial_of(conn).and_then(|serial| connection.next_step(conn, serial));
                    if let (Some(handshakes), Some(step)) = (&self.handshakes, step) {
                        handshakes.send(step);
                    }
                    self.watch(conn);
                    return;
                }
                Step::Tls(version, suite) => {
                    self.parts.shard.on_tls(conn, version, suite);
                    self.parts.shard.on_layer(conn);
                    self.flush(conn);
                }
                Step::Compression => {
                    self.parts.shard.on_layer(conn);
                    self.flush(conn);
                }
                Step::Done => {
                    if connection.decode(&[]).is_err() {
                        self.disconnect(conn);
                        return;
                    }
                    self.parts.shard.on_upgraded(conn);
                    return;
                }
            }
        }
    }

    fn migrate(&mut self, conn: ConnId, shard: usize) {
        let Some(connection) = self.connections.get_mut(conn).and_then(Option::take) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        let migrant = self.parts.shard.take(conn);
        let mut connection = connection;
        connection.leave();
        self.parts.mailboxes[shard].send(Inbound::Adopt(migrant, connection));
    }

    fn close(&mut self, conn: ConnId) {
        self.flush(conn);
        let Some(mut connection) = self.connections.get_mut(conn).and_then(Option::take) else { return };
        connection.close();
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.parts.shard.on_disconnect(conn, self.now);
        self.linger(connection.socket);
    }

    /// Closing a socket with unread bytes resets the connection, and the peer may lose the error it was sent: so it
    /// gets the end of the stream first, and a little time.
    fn linger(&mut self, socket: Socket) {
        if self.lingering_count >= LINGERING_MAX || self.drain_until.is_some() {
            return;
        }
        socket.shut_down_write();
        let slot = self.lingering.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lingering.push(None);
            self.lingering.len() - 1
        });
        let data = epoll::EventData::new_u64(CLOSING + slot as u64);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok() {
            self.lingering[slot] = Some(Lingering { socket, until: self.now + LINGER });
            self.lingering_count += 1;
        }
    }

    fn drop_lingering(&mut self, slot: usize) {
        let Some(Some(lingering)) = self.lingering.get(slot) else { return };
        let read = lingering.socket.receive(&mut self.scratch.bytes);
        let over = match read {
            Ok(received) => received.bytes == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if over {
            self.cut(slot);
        }
    }

    fn cut(&mut self, slot: usize) {
        if let Some(lingering) = self.lingering[slot].take() {
            let _ = epoll::delete(&self.epoll, &lingering.socket);
            self.lingering_count -= 1;
        }
    }

    /// Ends what has had its time.
    fn sweep(&mut self) {
        while let Some(late) = self.deadlines.pop_due(self.now) {
            self.end_handshake(late);
        }
        if self.lingering_count > 0 {
            for slot in 0..self.lingering.len() {
                if self.lingering[slot].as_ref().is_some_and(|lingering| lingering.until <= self.now) {
                    self.cut(slot);
                }
            }
        }
        if self.accept_again.is_some_and(|at| at <= self.now) {
            self.accept_again();
        }
    }
}

/// Answers a client has not read above which it is not read either.
const OUTPUT_MAX: usize = 1024 * 1024;

/// The number that an event was registered with.
fn slot_of(data: u64) -> usize {
    usize::try_from(data).expect("it was a usize when it was registered")
}
