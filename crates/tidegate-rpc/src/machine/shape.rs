//! What every scheme looks like from outside: one trait for the caller's side, one for the server's.
//!
//! A call's way: [`Client::on_call`] says whether it is sent, waits or fails at once. A sent call carries an [`Ask`].
//! The server's [`Server::on_request`] admits or sheds it when its bytes are read; [`Server::on_start`] is asked again
//! when a core would start it; [`Server::on_done`] ends it and returns the [`Grant`] for the answer. The answer reaches
//! [`Client::on_reply`], which may release calls that waited ([`Client::poll_output`]).

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Began;
use tidegate_core::{Instant, Rng};

use super::short::View;

/// A call, named by its client: unique among the calls that the client has not yet ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// A session of a server: one client's connection. Reused after [`Server::close`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u32);

/// Whom a call belongs to; 0 if nobody said.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Tenant(pub u32);

/// How much a call matters: 0 most, 255 least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Priority(pub u8);

impl Priority {
    /// Must be answered as long as anything is.
    pub const CRITICAL: Self = Self(0);
    /// What a call is that does not say.
    pub const DEFAULT: Self = Self(128);
    /// May wait for a better time.
    pub const BATCH: Self = Self(255);
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A call as its caller hands it over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its name.
    pub id: CallId,
    /// How much it matters.
    pub priority: Priority,
    /// When its answer becomes worthless; `None` if never.
    pub deadline: Option<Instant>,
}

/// What a request carries beside its payload; also what a demand message without a call carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    /// Calls that wait at the client after this one left.
    pub demand: u32,
    /// `demand` is all there is: the server must not speculate about more.
    pub exact: bool,
    /// Sent under a credit of the window, not by the [`Grant::level`].
    pub credited: bool,
    /// The sender obeys grants; false for a client that does not know the scheme.
    pub aware: bool,
    /// How much the call matters.
    pub priority: Priority,
    /// By which priority its caller let it through, if the server knows better how much it matters. Never on the wire: who
    /// drives the server's machine sets it, see [`Claims::judge`](super::Claims::judge).
    pub claimed: Option<Priority>,
    /// Whom it belongs to.
    pub tenant: Tenant,
    /// Time that was left to its deadline when it was sent.
    pub budget: Option<Duration>,
    /// The shortest time between sending and answer that the client has seen, without the server's own time; zero if
    /// it has seen none.
    pub round_trip: Duration,
    /// The chance with which its client let it through, in 1/65536, where that is not what this server told it: because the
    /// client did not know which of several servers would get it. 0 where it is.
    pub chance: u32,
    /// Which of the server's groups of calls it is of, such as its method; 0 where nobody tells them apart. Not the
    /// client's word: who drives the machine sets it.
    pub group: u8,
}

/// What an answer carries beside its payload: a permission, in the terms of the scheme.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grant {
    /// Calls that the client may have in flight, replacing what it was told before.
    pub window: u32,
    /// Which calls may be sent beyond the window: the scheme's own scale, see its client.
    pub level: u32,
    /// How long this holds from its arrival on; zero means until the next one.
    pub lease: Duration,
}

/// Why a call was refused. Whatever the reason, its handler never ran: it is safe to send again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShedReason {
    /// The client had no credit, no token, or was not among those let through.
    NoCredit,
    /// It waited at the client for as long as it may.
    Expired,
    /// The client's queue was full.
    ClientFull,
    /// The server's queueing delay was above the threshold.
    Delay,
    /// It would not have been ready before its deadline.
    Deadline,
    /// Its priority is not served at present.
    Priority,
    /// Its tenant or its client has had its share.
    Share,
    /// A table of the server was full.
    ServerFull,
    /// The connection ended.
    Lost,
}

impl ShedReason {
    /// All of them, in the order in which they are declared. New ones come at the end: places are numbers on the wire.
    pub const ALL: [Self; 9] = [
        Self::NoCredit,
        Self::Expired,
        Self::ClientFull,
        Self::Delay,
        Self::Deadline,
        Self::Priority,
        Self::Share,
        Self::ServerFull,
        Self::Lost,
    ];
}

/// The server's delay as measured outside the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signal {
    /// How long the oldest request has waited that waits for a core: since its bytes were read if no core has started it,
    /// else since its handler could go on.
    pub queueing_delay: Duration,
}

/// The chance of a call that nobody held back, in 1/65536.
pub const CERTAIN: u32 = 1 << 16;

/// What the server machine has to know of an admitted call until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Where it came from.
    pub session: SessionId,
    /// When its bytes were read.
    pub arrived: Instant,
    /// The last instant at which it is worth starting.
    pub start_by: Instant,
    /// When it was started; its arrival until then.
    pub started: Instant,
    /// For how long it has waited since for something else than a core.
    pub waited: Duration,
    /// How it began to be in flight; `None` while it is not.
    pub began: Option<Began>,
    /// Its group, see [`Ask::group`].
    pub group: u8,
    /// How much it matters.
    pub priority: Priority,
    /// See [`Ask::claimed`].
    pub claimed: Option<Priority>,
    /// The chance with which it came as far as this, in 1/65536: [`Client::on_call_below`] wants it for the calls that its
    /// handler makes.
    pub chance: u32,
    /// The scheme's own mark.
    pub mark: u64,
}

impl Ticket {
    /// Of a call that was read at `arrived` and has not started, with all the time there is.
    #[must_use]
    #[inline]
    pub fn new(session: SessionId, ask: &Ask, arrived: Instant) -> Self {
        Self {
            session,
            arrived,
            start_by: Instant::MAX,
            started: arrived,
            waited: Duration::ZERO,
            began: None,
            group: ask.group,
            priority: ask.priority,
            claimed: ask.claimed,
            chance: CERTAIN,
            mark: 0,
        }
    }
}

/// The answer to [`Server::on_request`] and [`Server::on_start`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may run.
    Admit(Ticket),
    /// It must not: answer at once. [`Server::on_done`] is still owed.
    Shed(Ticket, ShedReason),
}

/// How an admitted or shed call ended at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// Its handler ran to the end.
    Served,
    /// It was shed and its handler did not run.
    Shed,
    /// Its caller went away before the end.
    Cancelled,
}

/// A table of the machine is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server holds {sessions} sessions, as many as it may")]
pub struct Full {
    /// The bound.
    pub sessions: usize,
}

/// The server's side of a scheme.
pub trait Server {
    /// A client connected.
    ///
    /// # Errors
    /// [`Full`] if the table of sessions is.
    fn open(&mut self, tenant: Tenant, now: Instant) -> Result<SessionId, Full>;

    /// A connection ended; calls of it that run may still end with [`Server::on_done`], which changes nothing.
    fn close(&mut self, session: SessionId, now: Instant);

    /// A request's bytes were read at `arrived`, not after `now`.
    fn on_request(&mut self, session: SessionId, ask: &Ask, signal: Signal, arrived: Instant, now: Instant) -> Verdict;

    /// A core is about to run the handler of an admitted call.
    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        let _ = now;
        Verdict::Admit(ticket)
    }

    /// The handler of a started call waits for bytes that its client has not sent yet: until [`Server::on_resume`] or
    /// its end it occupies nothing, and the time is its client's. Returns what to keep of the call from now on.
    fn on_pause(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        let _ = now;
        ticket
    }

    /// The handler of a call that has waited for its client since `paused` goes on.
    fn on_resume(&mut self, ticket: Ticket, paused: Instant, now: Instant) -> Ticket {
        let _ = (paused, now);
        ticket
    }

    /// The handler of a started call waits for something that is neither a core nor its client: until
    /// [`Server::on_wake`] or its end it takes no core, and is in flight all the same. Returns what to keep of the call.
    fn on_wait(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        let _ = now;
        ticket
    }

    /// The handler of a call that has waited for something else since `waits` goes on.
    fn on_wake(&mut self, ticket: Ticket, waits: Instant, now: Instant) -> Ticket {
        let _ = (waits, now);
        ticket
    }

    /// How many more calls may be started, as far as what is behind the handlers goes. Asked whenever a core is free for
    /// one that waits; asked again after every call that ends or pauses.
    fn room(&self) -> u32 {
        u32::MAX
    }

    /// From now on it is told of a server on paper, or of a real one again ([`crate::machine::shadow`]): on paper nothing behind
    /// the handlers is ever short, so nothing is learnt of that.
    fn on_paper(&mut self, is_on_paper: bool, now: Instant) {
        let _ = (is_on_paper, now);
    }

    /// The handlers call others that let through what is within `level` and no more, as [`Client::level_below`] says: from now
    /// on the server refuses what these would refuse later, and tells its own clients.
    fn on_level_below(&mut self, level: u32) {
        let _ = level;
    }

    /// A call ended; what the answer, if there is one, shall carry.
    fn on_done(&mut self, ticket: Ticket, done: Done, now: Instant) -> Grant;

    /// Whether a client of the scheme sends nothing before it was granted something, so that its session has to be there
    /// first.
    fn grants_before_calls(&self) -> bool {
        false
    }

    /// A client told its demand without a call.
    fn on_demand(&mut self, session: SessionId, ask: &Ask, now: Instant) {
        let _ = (session, ask, now);
    }

    /// When [`Server::on_timeout`] shall be called if nothing else happens.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// That moment came, perhaps late.
    fn on_timeout(&mut self, signal: Signal, now: Instant) {
        let _ = (signal, now);
    }

    /// The next grant to send outside an answer; call until `None`.
    fn poll_output(&mut self) -> Option<(SessionId, Grant)> {
        None
    }

    /// What the scheme measures and decides, for display; `None` for one that shows nothing.
    fn view(&self, signal: Signal, now: Instant) -> Option<View> {
        let _ = (signal, now);
        None
    }
}

/// The answer to [`Client::on_call`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send it now.
    Send(Ask),
    /// It waits; [`Client::poll_output`] will name it.
    Wait,
    /// It failed.
    Fail(ShedReason),
}

/// How a sent call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The server answered.
    Served,
    /// The server shed it.
    Shed,
}

/// What came back for a sent call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Which call it was.
    pub id: CallId,
    /// How it ended.
    pub outcome: Outcome,
    /// The server's word; `None` from a server that does not know the scheme.
    pub grant: Option<Grant>,
    /// From [`Client::on_call`] to now.
    pub response_time: Duration,
    /// How long the call was at the server, as the server says.
    pub server_time: Duration,
}

/// What a client machine wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientOutput {
    /// Send a call that waited.
    Send(CallId, Ask),
    /// A call that waited failed.
    Fail(CallId, ShedReason),
    /// Tell the server the demand, without a call.
    Demand(Ask),
}

/// The caller's side of a scheme, for one connection to one server.
pub trait Client {
    /// A caller wants something. O(1).
    fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> Step;

    /// A handler wants something, for a call that came to it with a chance of `came_by` / 65536 ([`Ticket::chance`]): who was
    /// chosen there is not chosen by lot again.
    fn on_call_below(&mut self, request: &Request, came_by: u32, now: Instant, rng: &mut Rng) -> Step {
        let _ = came_by;
        self.on_call(request, now, rng)
    }

    /// What the server lets through, for [`Server::on_level_below`] of the server whose handlers use this client; `None` if
    /// the scheme has no such thing.
    fn level_below(&self, now: Instant) -> Option<u32> {
        let _ = now;
        None
    }

    /// A sent call was answered.
    fn on_reply(&mut self, reply: &Reply, now: Instant);

    /// A grant came outside an answer.
    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        let _ = (grant, now);
    }

    /// The caller no longer wants a call. If it was sent, no [`Client::on_reply`] follows: the server ends it.
    fn on_cancel(&mut self, id: CallId, now: Instant);

    /// Another machine of the same kind, for another server that answers in this one's place; `None` if servers are not told
    /// apart by this scheme.
    fn another(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// A call that [`Client::another`] let through went to this one's server; [`Client::on_reply`] follows at once.
    fn adopt(&mut self) {}

    /// A call that this one let through went to another server, which answered: no sign of what this one's does.
    fn on_elsewhere(&mut self, id: CallId, now: Instant) {
        self.on_cancel(id, now);
    }

    /// Whether the server has said nothing for so long that hardly a call is let through any more.
    fn is_silent(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// The chance of a call of `priority` to be sent, as far as the server told.
    fn chance(&self, priority: Priority, now: Instant) -> f64 {
        let _ = (priority, now);
        1.0
    }

    /// The connection ended: nothing that was sent will be answered, and every grant is void. Calls that wait fail.
    fn on_lost(&mut self, now: Instant);

    /// When [`Client::on_timeout`] shall be called if nothing else happens.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// That moment came, perhaps late.
    fn on_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// The next thing to do; call until `None`, after every other call but [`Client::on_call`] and after a
    /// [`Step::Wait`].
    fn poll_output(&mut self) -> Option<ClientOutput> {
        None
    }
}
