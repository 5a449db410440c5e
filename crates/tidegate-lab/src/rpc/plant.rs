//! The events: what happens next, and to whom it is told.

use core::hash::Hasher;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::desk::{Desk, Running};
use tidegate_rpc::machine::{Ask, Client, Grant, Server, SessionId, ShedReason, Tenant};
use tidegate_sim::TraceHash;
use tidegate_sim::lane::Lane;

use super::arrivals::{Arrivals, kinds};
use super::behind::Waits;
use super::calls::Calls;
use super::rough::{Host, Jitter};
use super::scenario::{Scenario, ScenarioError};
use super::window::{Place, Window};

/// What arrives at the server, or leaves it outside an answer: a core handles it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Request(u32, Ask),
    /// Of a client, over the connection of this session.
    Demand(u32, SessionId, Ask),
    Grant(u32, SessionId, Grant),
}

/// What arrives at a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Delivery {
    Answer(Answer),
    Grant(u32, SessionId, Grant),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) slot: u32,
    pub(super) shed: Option<(Place, ShedReason)>,
    pub(super) grant: Grant,
    pub(super) server_ns: u64,
}

/// What a core does.
#[derive(Debug)]
pub(super) enum Job {
    /// Handles a message that arrived at the instant.
    Message(Instant, Message),
    /// Runs the handler of the call in this slot.
    Call(u32, Running),
}

/// A server with the machine `S`, and clients with machines `C`, in virtual time.
#[derive(Debug)]
pub struct Plant<S, C> {
    pub(super) now: Instant,
    /// The server's machine, its calls and their line. A turn is a core.
    pub(super) desk: Desk<S, u32>,
    pub(super) clients: Vec<C>,
    /// Session of each client.
    pub(super) sessions: Vec<SessionId>,
    /// Client of each session, by its number.
    pub(super) owners: Vec<u32>,
    /// When each client's time-out is in `timers`; [`Instant::MAX`] if it is not.
    pub(super) armed: Vec<Instant>,
    pub(super) timers: Lane<u32>,
    pub(super) to_server: Lane<Message>,
    pub(super) to_clients: Lane<Delivery>,
    /// Messages that wait for a core, with their arrival.
    pub(super) messages: VecDeque<(Instant, Message)>,
    /// What handlers wait for before they compute, if anything.
    pub(super) waits: Option<Waits>,
    pub(super) jobs: Vec<Option<Job>>,
    pub(super) finishing: BinaryHeap<Reverse<(Instant, u32)>>,
    pub(super) idle: Vec<u32>,
    pub(super) server_at: Instant,
    pub(super) calls: Calls,
    pub(super) arrivals: Arrivals,
    pub(super) half_trip_ns: u64,
    pub(super) jitter: Jitter,
    pub(super) jitter_rng: Rng,
    pub(super) host: Host,
    pub(super) message_ns: u64,
    pub(super) mean_ns: f64,
    pub(super) scenario: Scenario,
    pub(super) service_rng: Rng,
    pub(super) client_rng: Rng,
    pub(super) window: Window,
    pub(super) events: u64,
    pub(super) trace: TraceHash,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Core,
    Host,
    Behind,
    ToServer,
    ToClient,
    Arrival,
    Timer,
    Server,
}

impl<S: Server, C: Client> Plant<S, C> {
    /// A plant at rest at [`Instant::ZERO`], every client connected. `client` makes the machine of a client of a tenant.
    ///
    /// # Errors
    /// [`ScenarioError`] if the scenario makes no sense or the server cannot hold its clients.
    pub fn new(
        scenario: &Scenario,
        mut server: S,
        mut client: impl FnMut(Tenant, Instant, &mut Rng) -> C,
    ) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let stream = |number| Rng::stream(scenario.seed, number);
        let (classes, _) = kinds(scenario);
        let mut client_rng = stream(1);
        let now = Instant::ZERO;
        let count = scenario.clients() as usize;
        let (mut clients, mut sessions) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut owners = vec![0; count];
        for group in &scenario.groups {
            for _ in 0..group.clients {
                let session = server.open(group.tenant, now)?;
                let number = session.0 as usize;
                if owners.len() <= number {
                    owners.resize(number + 1, 0);
                }
                owners[number] = u32::try_from(clients.len()).expect("groups count their clients in 32 bits");
                sessions.push(session);
                clients.push(client(group.tenant, now, &mut client_rng));
            }
        }
        let mut plant = Self {
            now,
            server_at: Instant::MAX,
            armed: vec![Instant::MAX; clients.len()],
            clients,
            sessions,
            owners,
            timers: Lane::default(),
            to_server: Lane::default(),
            to_clients: Lane::default(),
            messages: VecDeque::new(),
            waits: scenario.behind.map(Waits::new),
            jobs: (0..scenario.cores).map(|_| None).collect(),
            finishing: BinaryHeap::with_capacity(scenario.cores as usize),
            idle: (0..scenario.cores).rev().collect(),
            calls: Calls::new(scenario.calls_max),
            arrivals: Arrivals::new(scenario, stream(2)),
            window: Window::new(classes.len(), scenario.groups.len(), scenario.slo()),
            half_trip_ns: nanos(scenario.round_trip) / 2,
            jitter: scenario.jitter.unwrap_or(Jitter::NONE),
            jitter_rng: stream(4),
            host: Host::new(scenario.pauses, stream(5)),
            message_ns: nanos(scenario.message_cost),
            mean_ns: scenario.service.mean.as_secs_f64() * 1e9,
            scenario: scenario.clone(),
            service_rng: stream(3),
            client_rng,
            desk: Desk::new(server, scenario.cores),
            events: 0,
            trace: TraceHash::new(),
        };
        plant.after_server();
        (0..u32::try_from(count).unwrap_or(u32::MAX)).for_each(|client| plant.after_client(client));
        Ok(plant)
    }

    /// The simulated time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The server's machine.
    #[must_use]
    pub fn server(&self) -> &S {
        self.desk.machine()
    }

    /// The clients' machines, group by group.
    #[must_use]
    pub fn clients(&self) -> &[C] {
        &self.clients
    }

    /// Calls under way, from their callers' wish to their end.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Events handled so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The hash of everything that happened so far: same scenario, scheme and seed, same hash.
    #[must_use]
    pub fn trace(&self) -> TraceHash {
        self.trace
    }

    /// The queueing delay as the server machine is told it: see [`Signal`](tidegate_rpc::machine::Signal).
    #[must_use]
    pub fn queueing_delay(&self) -> Duration {
        self.unread() + self.desk.signal(self.now).queueing_delay
    }

    /// From now on, group `index` of the scenario offers `load` times the capacity; nothing if there is no such group.
    pub fn set_load(&mut self, index: usize, load: f64) {
        self.arrivals.set_load(index, load, self.now);
    }

    /// What was counted since the last time.
    pub fn take_window(&mut self) -> Window {
        let empty = self.window.cleared();
        self.window.paused_ns += self.host.take_paused_ns(self.now);
        core::mem::replace(&mut self.window, empty)
    }

    /// Handles everything up to and at `end`, and leaves the clock there.
    pub fn run_until(&mut self, end: Instant) {
        loop {
            let (at, source) = self.next();
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            self.events += 1;
            self.handle(source);
        }
        self.now = self.now.max(end);
    }

    #[inline]
    fn next(&self) -> (Instant, Source) {
        let core = self.finishing.peek().map_or(Instant::MAX, |Reverse((at, _))| *at);
        let others = [
            (self.host.next_at(), Source::Host),
            (self.waits.as_ref().map_or(Instant::MAX, Waits::next_at), Source::Behind),
            (self.to_server.next_at(), Source::ToServer),
            (self.to_clients.next_at(), Source::ToClient),
            (self.arrivals.next_at(), Source::Arrival),
            (self.timers.next_at(), Source::Timer),
            (self.host.runs_at(self.server_at), Source::Server),
        ];
        let earlier = |best: (Instant, Source), next: (Instant, Source)| if next.0 < best.0 { next } else { best };
        others.into_iter().fold((core, Source::Core), earlier)
    }

    #[inline]
    fn handle(&mut self, source: Source) {
        match source {
            Source::Core => self.core_finishes(),
            Source::Host => self.host_changes(),
            Source::Behind => self.wait_ends(),
            Source::ToServer => {
                if let Some((at, message)) = self.to_server.pop() {
                    self.messages.push_back((at, message));
                    self.employ();
                }
            }
            Source::ToClient => {
                if let Some((_, delivery)) = self.to_clients.pop() {
                    self.deliver(delivery);
                }
            }
            Source::Arrival => {
                let calls = self.arrivals.pop(self.now);
                (0..calls).for_each(|_| self.call(calls > 1));
            }
            Source::Timer => self.client_timer(),
            Source::Server => self.server_timer(),
        }
    }

    /// Adds what happened now, in a word, to the trace.
    #[inline]
    pub(super) fn note(&mut self, what: u64) {
        self.trace.write_u64(self.now.as_nanos() ^ what.rotate_left(24));
    }
}
