//! The thread of one shard: it stamps what arrives, tells the machine, runs handlers and writes answers in batches.
//!
//! One round is: look at the sockets, read each readable one once, tell the machine of every request with the instant
//! at which its bytes were read, write what that caused together with earlier answers; then run waiting calls until
//! there are none or it is time to look again. A write costs as much as a short call: the answers of a connection whose
//! next calls are about to run are held for those, for a bounded time.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::time::nanos;
use tidegate_runtime::clock;
use tidegate_wire::rpc::Decoded;
use tidegate_wire::rpc::client::{self, Frame, Wish};
use tidegate_wire::rpc::server::{self, Response, Status};

use super::config::ServerConfig;
use super::connection::{Buffers, Connection};
use super::listener::Listener;
use super::poller::{Bell, Interest, Poller, exact_timers};
use super::server::{Handler, ShardStats, SharedStats, micros};
use super::waiting::{Call, Room, Waiting};
use super::words::{ask_of, number_of, wire_grant};
use crate::error::{RpcError, Violation};
use crate::machine::desk::{Arrival, Called, Desk, Ended, Refused};
use crate::machine::{Done, Grant, Known, Server, SessionId, ShedReason, Tenant};

const BELL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
/// Connections taken from the listener in one go.
const ACCEPTS: usize = 64;
/// Out of file descriptors: the listener rests this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most bytes read from one connection before the others get their turn.
const READ_BYTES: usize = 64 * 1024;

/// What a shard is made of.
pub(super) struct Parts<S, H> {
    pub(super) machine: S,
    pub(super) handler: H,
    pub(super) listener: Listener,
    pub(super) bell: Arc<Bell>,
    pub(super) stats: Arc<SharedStats>,
}

pub(super) struct Shard<S, H> {
    config: ServerConfig,
    /// The machine, with the keys of the calls that wait.
    desk: Desk<S, usize>,
    handler: H,
    listener: Listener,
    bell: Arc<Bell>,
    shared: Arc<SharedStats>,
    poller: Poller,
    connections: Slab<Connection>,
    /// Whom grants outside answers are for.
    sessions: HashMap<SessionId, usize, RandomState>,
    waiting: Waiting,
    buffers: Buffers,
    scratch: Vec<u8>,
    answer: Vec<u8>,
    /// Connections with something to write.
    dirty: Vec<usize>,
    accept_again: Option<Instant>,
    stats: ShardStats,
    /// When a handler last ran or bytes were last read.
    active: Instant,
}

impl<S: Server, H: Handler> Shard<S, H> {
    pub(super) fn new(config: ServerConfig, parts: Parts<S, H>) -> Result<Self, RpcError> {
        let Parts { machine, handler, listener, bell, stats: shared } = parts;
        let poller = Poller::new()?;
        let watch = RpcError::os("watch a listener");
        poller.add(&*bell, BELL, Interest::READ).map_err(&watch)?;
        poller.add(&listener, LISTENER, Interest::READ).map_err(&watch)?;
        let mut desk = Desk::new(machine, 1);
        // One handler runs at a time, to its end: there is always room for the next.
        desk.ignore_room(true);
        let room = Room { calls: config.waiting_max, bytes: config.waiting_bytes_max };
        Ok(Self {
            config,
            desk,
            handler,
            listener,
            bell,
            shared,
            poller,
            connections: Slab::new(),
            sessions: HashMap::default(),
            waiting: Waiting::new(room),
            buffers: Buffers::default(),
            scratch: vec![0; READ_BYTES],
            answer: Vec::new(),
            dirty: Vec::new(),
            accept_again: None,
            stats: ShardStats::default(),
            active: Instant::ZERO,
        })
    }

    /// Works until the bell rings.
    pub(super) fn run(mut self) -> Result<(), RpcError> {
        exact_timers();
        loop {
            self.look()?;
            if self.bell.is_rung() {
                self.flush(Flush::All);
                return Ok(());
            }
            self.desk.on_timeout(Duration::ZERO, clock::now());
            self.send_grants();
            self.flush(if self.desk.waiting() == 0 { Flush::All } else { Flush::Ripe });
            self.work();
            if self.desk.waiting() == 0 {
                self.send_grants();
                self.flush(Flush::All);
            }
            self.publish();
        }
    }

    // What happened.

    fn look(&mut self) -> Result<(), RpcError> {
        let at_most = self.patience();
        self.poller.wait(at_most)?;
        let mut index = 0;
        while let Some(ready) = self.poller.ready(index) {
            index += 1;
            match ready.token {
                BELL => {}
                LISTENER => self.accept(),
                token => {
                    let slot = usize::try_from(token).expect("tokens are slots");
                    if ready.writable {
                        self.write(slot);
                    }
                    if ready.readable {
                        self.read(slot);
                    }
                }
            }
        }
        Ok(())
    }

    /// How long nothing but a socket needs this thread.
    fn patience(&mut self) -> Option<Duration> {
        if self.accept_again.is_none() && self.desk.waiting() > 0 {
            return Some(Duration::ZERO);
        }
        let now = clock::now();
        // However much there is to do: under overload something always waits.
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            if self.poller.add(&self.listener, LISTENER, Interest::READ).is_err() {
                self.accept_again = Some(now + ACCEPT_PAUSE);
            }
        }
        if self.desk.waiting() > 0 || now < self.active + micros(self.config.busy_poll_us) {
            return Some(Duration::ZERO);
        }
        let tick = self.desk.next_timeout().map(|at| at.max(now + micros(self.config.idle_tick_us)));
        let until = [tick, self.accept_again].into_iter().flatten().min();
        until.map(|until| until.since(now))
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok(socket) => self.place(socket),
                Err(error) => {
                    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                    if !matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) {
                        // Out of descriptors, most likely: those who are connected go on, the others wait.
                        self.poller.remove(&self.listener);
                        self.accept_again = Some(clock::now() + ACCEPT_PAUSE);
                    }
                    return;
                }
            }
        }
    }

    fn place(&mut self, socket: OwnedFd) {
        if self.connections.len() >= self.config.connections_max {
            self.stats.refused += 1;
            return;
        }
        if self.listener.prepare(&socket).is_err() {
            return;
        }
        let connection = Connection::new(socket);
        let slot = self.connections.vacant_key();
        if self.poller.add(&connection.socket, slot as u64, Interest::READ).is_ok() {
            self.connections.insert(connection);
            self.stats.accepted += 1;
        }
    }

    fn read(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot).filter(|connection| connection.interest.read) else {
            return;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        match connection.receive(&mut scratch) {
            Ok(None) => {}
            Ok(Some(0)) | Err(_) => self.close(slot),
            Ok(Some(bytes)) => {
                let now = clock::now();
                self.active = now;
                if let Err(violation) = self.on_bytes(slot, &scratch[..bytes], now) {
                    self.expel(slot, violation);
                }
            }
        }
        self.scratch = scratch;
    }

    fn on_bytes(&mut self, slot: usize, bytes: &[u8], now: Instant) -> Result<(), Violation> {
        let connection = &mut self.connections[slot];
        if connection.unread.is_empty() {
            // The common case: whole frames, straight from the shared buffer.
            let (used, need) = self.on_frames(slot, bytes, now)?;
            let connection = &mut self.connections[slot];
            connection.keep(&bytes[used..], &mut self.buffers);
            connection.need = need;
            return Ok(());
        }
        connection.keep(bytes, &mut self.buffers);
        if connection.unread.len() < connection.need {
            return Ok(());
        }
        let unread = std::mem::take(&mut connection.unread);
        let outcome = self.on_frames(slot, &unread, now);
        let connection = &mut self.connections[slot];
        connection.unread = unread;
        let (used, need) = outcome?;
        connection.consume(used, &mut self.buffers);
        connection.need = need;
        Ok(())
    }

    /// Takes whole frames; how many bytes they had, and how many the next one needs.
    fn on_frames(&mut self, slot: usize, bytes: &[u8], arrived: Instant) -> Result<(usize, usize), Violation> {
        let mut used = 0;
        loop {
            match client::frame(&bytes[used..], self.config.payload_bytes_max)? {
                Decoded::Need(need) => return Ok((used, need)),
                Decoded::Frame(frame, length) => {
                    self.on_frame(slot, &frame, arrived)?;
                    used += length;
                }
            }
        }
    }

    fn on_frame(&mut self, slot: usize, frame: &Frame<'_>, arrived: Instant) -> Result<(), Violation> {
        let connection = &mut self.connections[slot];
        let session = match (frame, connection.session) {
            (Frame::Hello { tenant }, None) => {
                let known = self.handler.tenant(connection.peer());
                connection.tenant = self.config.claims.tenant(Tenant(*tenant), known);
                let session = self.desk.machine_mut().open(connection.tenant, arrived).map_err(|_| Violation::Full)?;
                connection.session = Some(session);
                self.sessions.insert(session, slot);
                return Ok(());
            }
            (Frame::Hello { .. }, Some(_)) | (_, None) => return Err(Violation::Hello),
            (_, Some(session)) => session,
        };
        match frame {
            Frame::Request { id, wish, payload } => {
                let named = Named { slot, session, id: *id };
                self.on_request(&named, wish, payload, arrived)
            }
            Frame::Demand(wish) => {
                let known = Known { tenant: Some(connection.tenant), priority: None };
                let ask = self.config.claims.judge(ask_of(wish, connection.tenant), known);
                self.desk.machine_mut().on_demand(session, &ask, arrived);
                Ok(())
            }
            Frame::Cancel { id } => {
                if let Some(call) = self.waiting.take(slot, *id, &mut connection.waiting) {
                    self.cancel(call, arrived);
                }
                // Else it runs, or its answer has left: the client knows that it may come.
                Ok(())
            }
            Frame::Hello { .. } => unreachable!("a hello was dealt with above"),
        }
    }

    fn on_request(&mut self, named: &Named, wish: &Wish, payload: &[u8], arrived: Instant) -> Result<(), Violation> {
        let Named { slot, session, id } = *named;
        if self.waiting.contains(slot, id) {
            return Err(Violation::DuplicateId { id });
        }
        let tenant = self.connections[slot].tenant;
        let known = Known { tenant: Some(tenant), priority: self.handler.priority(payload) };
        let ask = self.config.claims.judge(ask_of(wish, tenant), known);
        let key = self.waiting.next_key();
        let refused = match self.desk.on_request(&Arrival::new(session, &ask, arrived), key, arrived) {
            Ok(waiting) if self.waiting.has_room(payload) => {
                self.waiting.push(slot, id, waiting, payload, &mut self.connections[slot].waiting);
                return Ok(());
            }
            Ok(waiting) => self.desk.refuse(waiting, ShedReason::ServerFull, arrived),
            Err(refused) => refused,
        };
        self.shed(slot, id, &refused, arrived);
        Ok(())
    }

    // What is to be done.

    /// Runs waiting calls until there are none, or sockets have not been looked at for long enough.
    fn work(&mut self) {
        if self.desk.waiting() == 0 {
            return;
        }
        let mut now = clock::now();
        let look_at = now + micros(self.config.poll_every_us);
        while let Some(Called::Start(key) | Called::GoOn(key)) = self.desk.poll_call(now) {
            now = self.start(key, now);
            self.desk.on_timeout(Duration::ZERO, now);
            if now >= look_at {
                break;
            }
        }
        self.active = now;
    }

    /// Runs the call whose turn it is unless the machine forbids it; the time after it.
    fn start(&mut self, key: usize, now: Instant) -> Instant {
        let slot = self.waiting.connection(key).expect("whose turn it is waits, and keys are of waiting calls");
        let Some(call) = self.waiting.pop(key, &mut self.connections[slot].waiting) else { return now };
        let Call { id, waiting, payload, .. } = call;
        let running = match self.desk.start(waiting, now) {
            Ok(running) => running,
            Err(refused) => {
                self.shed(slot, id, &refused, now);
                self.waiting.recycle(payload);
                return now;
            }
        };
        let mut answer = std::mem::take(&mut self.answer);
        answer.clear();
        // The handler's state after a panic is its own affair; nothing of ours is under way in it.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.handler.handle(&payload, &mut answer)));
        self.waiting.recycle(payload);
        let now = clock::now();
        let is_served = matches!(outcome, Ok(Ok(()))) && answer.len() <= self.config.payload_bytes_max as usize;
        let status = if is_served {
            self.stats.served += 1;
            Status::Served
        } else {
            self.stats.failed += 1;
            answer.truncate(self.config.payload_bytes_max as usize);
            Status::Failed
        };
        let arrived = running.arrived();
        let Ended::Told(grant) = self.desk.end(running, Done::Served, now) else {
            unreachable!("the machine is told of every call")
        };
        self.respond(&Respond { slot, id, status, grant, arrived }, &answer, now);
        self.mark_dirty(slot, now);
        self.answer = answer;
        now
    }

    fn shed(&mut self, slot: usize, id: u64, refused: &Refused, now: Instant) {
        self.stats.shed += 1;
        let Refused { reason, grant, arrived } = *refused;
        let status = Status::Shed { reason: number_of(reason) };
        self.respond(&Respond { slot, id, status, grant, arrived }, &[], now);
        // A refusal leaves without delay.
        self.mark_dirty(slot, Instant::ZERO);
    }

    fn respond(&mut self, respond: &Respond, payload: &[u8], now: Instant) {
        let response = Response {
            id: respond.id,
            status: respond.status,
            server_time_ns: now.nanos_since(respond.arrived),
            grant: Some(wire_grant(&respond.grant)),
        };
        server::put_response(self.connections[respond.slot].out(&mut self.buffers), &response, payload);
    }

    fn cancel(&mut self, call: Call, now: Instant) {
        self.stats.cancelled += 1;
        // Its grant has no answer to travel in; the next one says the same.
        let _ = self.desk.cancel(call.waiting, now);
        self.waiting.recycle(call.payload);
    }

    fn send_grants(&mut self) {
        while let Some((session, grant)) = self.desk.poll_grant() {
            let Some(&slot) = self.sessions.get(&session) else { continue };
            server::put_grant(self.connections[slot].out(&mut self.buffers), &wire_grant(&grant));
            self.mark_dirty(slot, Instant::ZERO);
        }
    }

    /// The connection has something to write, which may be held for others from `since` on.
    fn mark_dirty(&mut self, slot: usize, since: Instant) {
        let connection = &mut self.connections[slot];
        if connection.dirty.is_none() {
            self.dirty.push(slot);
        }
        connection.dirty = Some(connection.dirty.map_or(since, |earlier| earlier.min(since)));
    }

    // Sockets.

    fn flush(&mut self, which: Flush) {
        if self.dirty.is_empty() {
            return;
        }
        let held_until = clock::now().minus_nanos(nanos(micros(self.config.hold_us)));
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&slot| {
            // A slot may have a new connection by now, which has nothing to write.
            let Some(connection) = self.connections.get_mut(slot).filter(|connection| connection.dirty.is_some())
            else {
                return false;
            };
            if which == Flush::Ripe && !connection.is_ripe(held_until) {
                return true;
            }
            connection.dirty = None;
            self.write(slot);
            false
        });
        // Closing a connection makes none dirty.
        self.dirty = dirty;
    }

    fn write(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        if connection.send(&mut self.buffers).is_err() {
            self.close(slot);
            return;
        }
        let (unsent, max) = (connection.unsent(), self.config.unsent_bytes_max);
        if unsent / 2 > max {
            self.expel(slot, Violation::Unread { bytes: unsent });
            return;
        }
        let interest = Interest { read: unsent <= max, write: unsent > 0 };
        if interest != connection.interest {
            connection.interest = interest;
            if self.poller.modify(&connection.socket, slot as u64, interest).is_err() {
                self.close(slot);
            }
        }
    }

    fn expel(&mut self, slot: usize, violation: Violation) {
        self.stats.violations += 1;
        tracing::debug!(%violation, "closing a connection");
        self.close(slot);
    }

    /// Ends a connection: its waiting calls are cancelled, its credit returns.
    fn close(&mut self, slot: usize) {
        let now = clock::now();
        let Some(mut connection) = self.connections.try_remove(slot) else { return };
        self.poller.remove(&connection.socket);
        while let Some(call) = self.waiting.take_first(&mut connection.waiting) {
            self.cancel(call, now);
        }
        if let Some(session) = connection.session {
            self.sessions.remove(&session);
            self.desk.machine_mut().close(session, now);
        }
    }

    fn publish(&mut self) {
        self.stats.connections = self.connections.len() as u64;
        self.stats.waiting = self.desk.waiting() as u64;
        self.stats.queueing_delay_ns =
            if self.desk.waiting() > 0 { nanos(self.desk.signal(clock::now()).queueing_delay) } else { 0 };
        self.shared.publish(&self.stats);
    }
}

/// Which connections to write to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    All,
    /// Those whose answers need not or must not be held any longer.
    Ripe,
}

/// A call by its names.
struct Named {
    slot: usize,
    session: SessionId,
    id: u64,
}

/// The answer of a call that has ended.
struct Respond {
    slot: usize,
    id: u64,
    status: Status,
    grant: Grant,
    arrived: Instant,
}
