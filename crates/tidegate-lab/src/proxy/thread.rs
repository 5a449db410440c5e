//! The core's loop, and its second thread.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use tidegate_core::Instant;
use tidegate_proxy::machine::admission::{Admission, Output, Tuning as AdmissionTuning};
use tidegate_proxy::machine::neighbours::{Capacity, Neighbours, NeighboursConfig, Tenant};
use tidegate_proxy::machine::resource::Resource;
use tidegate_proxy::machine::signing::{Signing, Tuning as SigningTuning};
use tidegate_proxy::machine::starts::{Follow, Starts};
use tidegate_proxy::machine::turns::{Tuning as TurnsTuning, Turns};
use tidegate_sim::processor::{Processor, Supply};

use super::account::{Account, Work};
use super::clients::Side;
use super::handshakes::Port;
use super::report::{Report, Spent};
use super::requests::Told;
use super::scenario::{ClientKind, Costs, Scenario};

/// Tasks between two looks at the sockets, as the proxy sets it.
const EVENT_INTERVAL: usize = 31;
/// The proxy's ticker, and its rounds of learning.
const TICK: Duration = Duration::from_millis(20);
const ROUND: Duration = Duration::from_millis(60);
/// The runtime's timers are as fine as this.
const TIMER_NS: u64 = 1_000_000;
/// The proxy's patience with requests that wait, by default.
const PATIENCE: Duration = Duration::from_secs(1);
/// Half of a round trip.
pub(super) const HALF_NS: u64 = 50_000;
/// Flights that the second thread is given: one that it computes and one behind it.
const GIVEN: usize = 2;
/// Connections that a core has places for.
const CONNECTIONS: u64 = 16_384;

/// A connection, until it ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    at: u32,
    generation: u32,
}

/// What happens outside of the core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// The next request of this tenant comes.
    Arrive(usize),
    /// A new connection is at the kernel.
    Syn(Key),
    /// Something came on a connection.
    Readable(Key),
    /// A client has its answer, on a connection that stays.
    Told(Key),
    /// A client waits no longer, and closes.
    GiveUp(Key),
}

/// Who computes flights beside the first thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Other {
    Second,
    Third,
}

/// What the runtime runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Accept,
    Connection(Key),
    /// The driver of those who wait for what is left over.
    Waits,
    /// The driver of turns.
    Fair,
    Ticker,
    /// Takes a flight back from another thread, which took so many nanoseconds.
    Back(Other, Key, u64),
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Stage {
    /// Before it is taken.
    New,
    /// A handshake that waits for its turn on the first thread; or has it, and waits for a look at the sockets.
    Turn {
        granted: bool,
    },
    Looked,
    /// One that is beyond its share, before it asks for a turn of the second thread.
    Beyond {
        waiting_ns: u64,
    },
    BeyondTurn {
        waiting_ns: u64,
        granted: Option<Follow>,
    },
    BeyondLooked {
        waiting_ns: u64,
        follow: Follow,
    },
    /// It is with the second thread, or comes back from there.
    Second {
        done_ns: Option<u64>,
    },
    /// The client has the first flight.
    Flight,
    /// It has answered that.
    Finish,
    Idle,
    /// A request was sent, and has come.
    Sent,
    Request,
    /// It waits for what is left over.
    Waits {
        ticket: u64,
        ns: u64,
    },
    Told {
        told: Told,
        ns: u64,
    },
}

#[derive(Debug)]
pub(super) struct Connection {
    generation: u32,
    is_open: bool,
    pub(super) side: usize,
    pub(super) account: Account,
    pub(super) stage: Stage,
    /// When its request came to its client.
    pub(super) arrived: Instant,
    pub(super) gone: bool,
    is_queued: bool,
    /// Its place in a line of the turns.
    place: Option<u64>,
}

/// A driver's task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// It sleeps until somebody wakes it.
    Rests,
    Queued,
    Sleeps(Instant),
}

/// The second thread and the third, and the first one's side of them.
#[derive(Debug)]
pub(super) struct Second {
    pub(super) signing: Signing,
    pub(super) starts: Starts,
    pub(super) waiting: BTreeMap<u64, Key>,
    /// Whose flights the second thread has, and what is left to do of each.
    jobs: VecDeque<(Key, u64)>,
    /// Likewise of the third.
    stand_ins: VecDeque<(Key, u64)>,
    cpu_ns: u64,
}

pub(super) struct Thread<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) costs: Costs,
    pub(super) now: Instant,
    window: [Instant; 2],
    processor: Processor,
    world: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    events: u64,
    ready: VecDeque<Task>,
    /// Those that yielded: they are ready after the next look.
    deferred: Vec<Task>,
    pub(super) sides: Vec<Side>,
    connections: Vec<Connection>,
    free: Vec<u32>,
    pub(super) port: Port,
    pub(super) limiter: Neighbours,
    pub(super) admission: Admission,
    pub(super) waits: BTreeMap<u64, Key>,
    waits_driver: Driver,
    turns: Turns,
    turns_waiting: BTreeMap<u64, Key>,
    fair_driver: Driver,
    pub(super) starts: Starts,
    pub(super) starts_waiting: BTreeMap<u64, Key>,
    pub(super) second: Second,
    tick_at: Instant,
    round: (Instant, u64, u64),
    /// Time for which the first thread had nothing to do, as it sees it.
    pub(super) idle_ns: u64,
    /// Time that it worked, and what of it was stamped.
    busy_ns: u64,
    stamped_ns: u64,
    /// Names that were seen, which cost time in each tick.
    names: u64,
    pub(super) spent: Spent,
}

impl<'a> Thread<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let config = NeighboursConfig { mode: scenario.mode, ..NeighboursConfig::default() };
        let config = config.with(Resource::Connections, Capacity::Fixed(CONNECTIONS));
        let from = now + Duration::from_millis(scenario.warmup_ms);
        let window = [from, from + Duration::from_millis(scenario.measured_ms)];
        let names =
            scenario.clients.iter().map(|client| u64::from(client.made_up_names) * u64::from(client.times)).sum();
        let second = Second {
            signing: Signing::new(SigningTuning::default()),
            starts: Starts::new(GIVEN),
            waiting: BTreeMap::new(),
            jobs: VecDeque::new(),
            stand_ins: VecDeque::new(),
            cpu_ns: 0,
        };
        Self {
            scenario,
            costs: scenario.costs,
            now,
            window,
            processor: Processor::new(scenario.supply),
            world: BinaryHeap::new(),
            events: 0,
            ready: VecDeque::new(),
            deferred: Vec::new(),
            sides: Side::all(scenario, window),
            connections: Vec::new(),
            free: Vec::new(),
            port: Port::default(),
            limiter: Neighbours::new(config, now),
            admission: Admission::new(AdmissionTuning::default(), PATIENCE, now),
            waits: BTreeMap::new(),
            waits_driver: Driver::Rests,
            turns: Turns::new(TurnsTuning::default()),
            turns_waiting: BTreeMap::new(),
            fair_driver: Driver::Rests,
            starts: Starts::new(1),
            starts_waiting: BTreeMap::new(),
            second,
            tick_at: now,
            round: (now, 0, 0),
            idle_ns: 0,
            busy_ns: 0,
            stamped_ns: 0,
            names,
            spent: Spent::default(),
        }
    }

    /// Until all that came while it was measured has its answer, or its client has given up.
    pub(super) fn run(mut self) -> Report {
        let begin = self.now;
        let clients = self.scenario.clients.iter();
        let each = clients.flat_map(|client| (0..client.times).map(move |_| client)).enumerate().collect::<Vec<_>>();
        for (side, client) in each {
            let from = begin + Duration::from_millis(client.from_ms);
            if client.kind != ClientKind::NewTls {
                self.open_all(side, client.connections, from);
            }
            if client.kind != ClientKind::ClosedLoop {
                let first = self.sides[side].next_after(from);
                self.at(first, Event::Arrive(side));
            }
        }
        let end = self.window[1] + self.scenario.timeout();
        while self.now < end {
            self.turn_loop();
        }
        for side in &mut self.sides {
            side.tally.lost = side.tally.offered - side.tally.answered - side.tally.refused;
        }
        Report::new(self.scenario, &self.sides, self.spent)
    }

    /// Connections of a tenant that are there from the beginning.
    fn open_all(&mut self, side: usize, count: u32, from: Instant) {
        for number in 0..count {
            let tenant = self.sides[side].tenant(&mut self.limiter, self.now);
            let key = self.open(side, tenant, self.now);
            let Self { connections, limiter, now, .. } = self;
            let connection = &mut connections[key.at as usize];
            connection.account.hold([1, 0], limiter, *now);
            connection.stage = Stage::Idle;
            if self.sides[side].kind == ClientKind::ClosedLoop {
                // They do not begin at one instant.
                self.at(from.plus_nanos(u64::from(number) * 1_000), Event::Told(key));
            } else {
                self.sides[side].idle.push(key);
            }
        }
    }

    /// Some tasks, and a look at the sockets.
    fn turn_loop(&mut self) {
        for _ in 0..EVENT_INTERVAL {
            let Some(task) = self.ready.pop_front() else { break };
            self.poll(task);
        }
        if self.ready.is_empty() && self.deferred.is_empty() {
            self.on_park();
            if self.ready.is_empty() {
                self.park();
            }
        }
        self.look();
    }

    fn poll(&mut self, task: Task) {
        match task {
            Task::Connection(key) => self.poll_connection(key),
            Task::Accept => self.accept(),
            Task::Waits => self.drive_waits(),
            Task::Fair => self.drive_turns(),
            Task::Ticker => self.tick(),
            Task::Back(from, key, ns) => self.take_back(from, key, ns),
        }
        // What is not put on an account is nobody's.
        self.stamp();
    }

    /// The thread is about to wait.
    fn on_park(&mut self) {
        if !self.admission.is_empty() {
            self.admission.spare(&mut self.limiter, self.now);
            self.deliver();
        }
        if self.second.signing.wants_stand_in(self.idle_ns) {
            let next = self.second.starts.one_more();
            self.grant_second(next, Follow::Nobody);
        }
    }

    /// Waits until something happens; the other threads have the processor meanwhile.
    fn park(&mut self) {
        let begin = self.now;
        let next = self.world.peek().map_or(Instant::MAX, |event| event.0.0).min(self.next_timer()).max(begin);
        let (mut wake, mut second_ns) = (next, 0);
        // The second one runs when nobody else wants the processor; another process that always wants it leaves it nothing.
        let may_run = !matches!(self.scenario.supply, Supply::Slices { .. });
        let is_third = !self.second.stand_ins.is_empty();
        let (other, jobs) =
            if is_third { (Other::Third, &mut self.second.stand_ins) } else { (Other::Second, &mut self.second.jobs) };
        if let Some((key, left)) = jobs.front_mut().filter(|_| is_third || may_run) {
            let given = self.processor.give(begin, next, *left);
            self.second.cpu_ns += given.ns;
            second_ns = given.ns;
            *left -= given.ns;
            if *left == 0 {
                wake = given.end;
                let task = Task::Back(other, *key, nanos(self.costs.handshake_us));
                jobs.pop_front();
                self.ready.push_back(task);
            }
        }
        self.now = self.processor.begin(wake);
        self.idle_ns += self.now.nanos_since(begin);
        if self.is_measured() {
            self.spent.idle += wake.nanos_since(begin) - second_ns;
        }
    }

    fn next_timer(&self) -> Instant {
        let due = match self.waits_driver {
            Driver::Sleeps(due) => due.min(self.tick_at),
            _ => self.tick_at,
        };
        if due == Instant::MAX { due } else { Instant::from_nanos(due.as_nanos().next_multiple_of(TIMER_NS)) }
    }

    /// Looks at the sockets and timers.
    fn look(&mut self) {
        self.spend(self.costs.look_us);
        let ns = self.stamp();
        if self.is_measured() {
            self.spent.looking += ns;
        }
        while let Some(&Reverse((at, _, event))) = self.world.peek() {
            if at > self.now {
                break;
            }
            self.world.pop();
            self.happen(at, event);
        }
        let now = Instant::from_nanos(self.now.as_nanos() / TIMER_NS * TIMER_NS);
        if matches!(self.waits_driver, Driver::Sleeps(due) if due <= now) {
            self.waits_driver = Driver::Queued;
            self.ready.push_back(Task::Waits);
        }
        if self.tick_at <= now {
            self.tick_at = Instant::MAX;
            self.ready.push_back(Task::Ticker);
        }
        self.ready.extend(self.deferred.drain(..));
    }

    fn happen(&mut self, at: Instant, event: Event) {
        match event {
            Event::Arrive(side) => {
                let next = self.sides[side].next_after(at);
                self.at(next, Event::Arrive(side));
                self.sides[side].tally.offer(at);
                if self.sides[side].kind == ClientKind::NewTls {
                    let key = self.open(side, Tenant::OTHER, at);
                    self.at(at.plus_nanos(HALF_NS), Event::Syn(key));
                    self.at(at + self.scenario.timeout(), Event::GiveUp(key));
                } else if let Some(key) = self.sides[side].idle.pop() {
                    self.send(key, at, at);
                } else {
                    self.sides[side].put_in_queue(at);
                }
            }
            Event::Told(key) => {
                let Some(connection) = self.connection(key) else { return };
                let side = connection.side;
                if self.sides[side].kind == ClientKind::ClosedLoop {
                    self.sides[side].tally.offer(at);
                    self.send(key, at, at);
                } else if let Some(arrived) = self.sides[side].take_queued(at) {
                    self.send(key, arrived, at);
                } else {
                    self.sides[side].idle.push(key);
                }
            }
            Event::Readable(key) => {
                let Some(connection) = self.connection(key) else { return };
                connection.stage = match connection.stage {
                    Stage::Sent => Stage::Request,
                    Stage::Flight => Stage::Finish,
                    stage => stage,
                };
                self.wake(key);
            }
            Event::Syn(key) => self.arrive_at_port(key, at),
            Event::GiveUp(key) => self.give_up(key),
        }
    }

    /// A client sends the request that came to it at `arrived`.
    fn send(&mut self, key: Key, arrived: Instant, at: Instant) {
        if let Some(connection) = self.connection(key) {
            (connection.arrived, connection.stage) = (arrived, Stage::Sent);
            self.at(at.plus_nanos(HALF_NS), Event::Readable(key));
        }
    }

    pub(super) fn at(&mut self, at: Instant, event: Event) {
        self.events += 1;
        self.world.push(Reverse((at, self.events, event)));
    }

    /// Works for so long.
    pub(super) fn spend(&mut self, us: f64) {
        let ns = nanos(us);
        self.now = self.processor.give(self.now, Instant::MAX, ns).end;
        self.busy_ns += ns;
    }

    /// Time that was worked since the last stamp.
    pub(super) fn stamp(&mut self) -> u64 {
        let ns = self.busy_ns - self.stamped_ns;
        self.stamped_ns = self.busy_ns;
        ns
    }

    pub(super) fn is_measured(&self) -> bool {
        self.window[0] <= self.now && self.now < self.window[1]
    }

    pub(super) fn wake(&mut self, key: Key) {
        if let Some(connection) = self.connection(key).filter(|connection| !connection.is_queued) {
            connection.is_queued = true;
            self.ready.push_back(Task::Connection(key));
        }
    }

    pub(super) fn wake_accept(&mut self) {
        self.ready.push_back(Task::Accept);
    }

    /// The task goes on after the next look.
    pub(super) fn defer(&mut self, task: Task) {
        if let Task::Connection(key) = task
            && let Some(connection) = self.connection(key)
        {
            connection.is_queued = true;
        }
        self.deferred.push(task);
    }

    pub(super) fn open(&mut self, side: usize, tenant: Tenant, arrived: Instant) -> Key {
        let at = self.free.pop();
        let generation = at.map_or(0, |at| self.connections[at as usize].generation + 1);
        let made = Connection {
            generation,
            is_open: true,
            side,
            account: Account::open(tenant),
            stage: Stage::New,
            arrived,
            gone: false,
            is_queued: false,
            place: None,
        };
        if let Some(at) = at {
            self.connections[at as usize] = made;
            return Key { at, generation };
        }
        self.connections.push(made);
        Key { at: u32::try_from(self.connections.len() - 1).expect("arrivals of a run are bounded"), generation }
    }

    pub(super) fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(key.at as usize)?;
        (connection.is_open && connection.generation == key.generation).then_some(connection)
    }

    /// The connection ends.
    pub(super) fn close(&mut self, key: Key) {
        let ns = self.stamp();
        let Self { connections, limiter, now, .. } = self;
        let connection = &mut connections[key.at as usize];
        connection.account.add_time(ns);
        connection.account.close(limiter, *now);
        self.forget(key);
    }

    /// A connection ends on whose account nothing stands.
    pub(super) fn forget(&mut self, key: Key) {
        self.connections[key.at as usize].is_open = false;
        self.free.push(key.at);
    }

    /// The truth about what was done so far on the connection.
    pub(super) fn settle(&mut self, key: Key) {
        let ns = self.stamp();
        let Self { connections, limiter, now, .. } = self;
        let account = &mut connections[key.at as usize].account;
        account.add_time(ns);
        account.settle(limiter, *now);
    }

    /// What was done so far of a piece of work.
    pub(super) fn charge(&mut self, key: Key) {
        let ns = self.stamp();
        let Self { connections, limiter, now, .. } = self;
        let account = &mut connections[key.at as usize].account;
        account.add_time(ns);
        account.charge(limiter, *now);
    }

    pub(super) fn turn_to(&mut self, key: Key, tenant: Tenant) {
        let Self { connections, limiter, now, .. } = self;
        connections[key.at as usize].account.turn_to(tenant, limiter, *now);
    }

    pub(super) fn forgo_handshake(&mut self, key: Key) {
        let Self { connections, limiter, now, .. } = self;
        connections[key.at as usize].account.forgo_handshake(limiter, *now);
    }

    fn poll_connection(&mut self, key: Key) {
        let now = self.now;
        let Some(connection) = self.connection(key) else { return };
        connection.is_queued = false;
        let (tenant, work, place) = (connection.account.tenant, connection.account.work, connection.place);
        let tenant = self.limiter.claimant(tenant);
        if let Some(ticket) = place {
            if self.turns_waiting.contains_key(&ticket) {
                return;
            }
        } else if work != Work::Handshake && self.turns.is_over(tenant, now) {
            if self.turns.is_empty() && self.fair_driver == Driver::Rests {
                self.fair_driver = Driver::Queued;
                self.ready.push_back(Task::Fair);
            }
            let ticket = self.turns.wait(tenant);
            self.turns_waiting.insert(ticket, key);
            self.connections[key.at as usize].place = Some(ticket);
            return;
        }
        self.connections[key.at as usize].place = None;
        let before = self.busy_ns;
        self.spend(self.costs.poll_us);
        self.step(key);
        let ns = self.stamp();
        if let Some(connection) = self.connection(key) {
            connection.account.add_time(ns);
        }
        self.turns.ran(tenant, self.busy_ns - before, self.now);
    }

    fn step(&mut self, key: Key) {
        let Some(connection) = self.connection(key) else { return };
        match connection.stage {
            Stage::Request | Stage::Waits { .. } | Stage::Told { .. } => self.step_request(key),
            _ => self.step_handshake(key),
        }
    }

    /// Somebody waits for what is left over.
    pub(super) fn wake_waits(&mut self) {
        if self.waits_driver == Driver::Rests {
            // It is woken only to look when to turn.
            let due = self.admission.next_timeout(self.now);
            self.waits_driver = due.map_or(Driver::Rests, Driver::Sleeps);
        }
    }

    fn drive_waits(&mut self) {
        self.spend(self.costs.poll_us);
        self.admission.turn(&mut self.limiter, self.now);
        self.deliver();
        let due = self.admission.next_timeout(self.now);
        self.waits_driver = due.map_or(Driver::Rests, Driver::Sleeps);
    }

    fn deliver(&mut self) {
        while let Some(output) = self.admission.poll_output() {
            let (ticket, told) = match output {
                Output::Go(ticket, _) => (ticket, Told::Go),
                Output::Refuse(ticket, _) => (ticket, Told::No),
            };
            let Some(key) = self.waits.remove(&ticket) else { continue };
            if let Some(connection) = self.connection(key)
                && let Stage::Waits { ns, .. } = connection.stage
            {
                connection.stage = Stage::Told { told, ns };
                self.wake(key);
            }
        }
    }

    fn drive_turns(&mut self) {
        if self.fair_driver == Driver::Queued {
            // It gives turns after the next look.
            self.fair_driver = Driver::Sleeps(Instant::ZERO);
            return self.defer(Task::Fair);
        }
        let mut go = Vec::new();
        self.spend(self.costs.poll_us);
        self.turns.turn(&mut go, self.now);
        for ticket in go {
            if let Some(key) = self.turns_waiting.remove(&ticket) {
                self.wake(key);
            }
        }
        if self.turns.is_empty() { self.fair_driver = Driver::Rests } else { self.defer(Task::Fair) }
    }

    fn tick(&mut self) {
        let (round_at, idle_ns, second_ns) = self.round;
        if self.now >= round_at + ROUND {
            let slept = self.idle_ns - idle_ns;
            let idle = slept.saturating_sub(self.second.cpu_ns - second_ns);
            self.limiter.on_idle(Duration::from_nanos(idle), self.now.since(round_at), self.now);
            self.round = (self.now, self.idle_ns, self.second.cpu_ns);
        }
        let mut next = None;
        if self.limiter.next_timeout().is_some_and(|due| due <= self.now) {
            self.limiter.on_timeout(self.now);
            #[expect(clippy::cast_precision_loss, reason = "some thousand at most")]
            let names = self.names.min(1_024) as f64;
            self.spend(self.costs.share_us * names);
            let ns = self.stamp();
            if self.is_measured() {
                self.spent.sharing += ns;
            }
            next = self.limiter.on_slice(Duration::from_nanos(ns), self.now);
            self.check_books();
        }
        let usual = self.now + TICK;
        self.tick_at = next.map_or(usual, |next| next.min(usual));
    }

    /// Notes whether shares and what is nobody's are the capacity.
    fn check_books(&mut self) {
        let ledger = self.limiter.ledger(Resource::EventTime);
        let sum = i64::try_from(ledger.kept.shares).unwrap_or(i64::MAX).saturating_add(ledger.global);
        let is_capacity = ledger.capacity.is_none_or(|capacity| i64::try_from(capacity) == Ok(sum));
        self.spent.books_wrong += u64::from(!is_capacity || ledger.kept != ledger.counted);
    }

    /// Gives another thread a flight: the third, if nobody follows on it.
    pub(super) fn give(&mut self, key: Key, follow: Follow) {
        let job = (key, nanos(self.costs.handshake_us));
        match follow {
            Follow::Next => {
                self.second.jobs.push_back(job);
                self.second.signing.give(self.idle_ns);
            }
            Follow::Nobody => {
                self.second.stand_ins.push_back(job);
                self.second.signing.stand_in();
            }
        }
    }

    fn take_back(&mut self, from: Other, key: Key, ns: u64) {
        self.spend(self.costs.poll_us);
        let follow = match from {
            Other::Second => {
                self.second.signing.take_back(Some(ns), self.idle_ns);
                Follow::Next
            }
            Other::Third => {
                self.second.signing.stand_in_ends(Some(ns), self.idle_ns);
                Follow::Nobody
            }
        };
        let next = self.second.starts.end(follow);
        self.grant_second(next, follow);
        if let Some(connection) = self.connection(key) {
            connection.stage = Stage::Second { done_ns: Some(ns) };
            self.wake(key);
        }
    }
}

pub(super) fn nanos(us: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "costs are checked: positive and small"
    )]
    let ns = (us * 1e3) as u64;
    ns
}
