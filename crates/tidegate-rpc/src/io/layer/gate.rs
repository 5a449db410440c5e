//! The server's machine behind its lock, with the line and the sessions: each event of a call, told once.

use core::time::Duration;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use tidegate_core::{Instant, Rng};

use super::config::{Mode, ServerConfig};
use super::counts::{ServerSnapshot, SessionSnapshot, Sheds};
use super::headers::GrantHeader;
use super::line::{Line, Place, Turn};
use super::lock::BriefLock;
use super::methods::Methods;
use super::sessions::{Key, Sessions};
use crate::machine::shadow::{self, Shadow};
use crate::machine::{Ask, Done, Grant, Priority, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict};

/// An admitted call, until it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    key: Key,
    /// The name that it came with and that has no session yet, and its tenant.
    new: Option<(Key, Tenant)>,
    place: Place,
    course: Course,
    arrived: Instant,
    priority: Priority,
    budget: Option<Duration>,
    /// Since when its handler has waited, and for what.
    paused: Option<(Instant, Pause)>,
    /// Its place among those that may go on.
    again: Option<Place>,
}

/// How an admitted call is accounted for.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// The machine.
    Told(Ticket),
    /// Nobody: in a dry run it is measured, and the machine is told of calls on paper.
    Measured(Measured),
}

/// What a call has taken so far.
#[derive(Clone, Copy, Debug)]
struct Measured {
    group: u8,
    /// When it started; its arrival until then. A wait for its client moves it on.
    started: Instant,
    waited: Duration,
}

impl Course {
    fn map(&mut self, tell: impl FnOnce(Ticket) -> Ticket) {
        if let Self::Told(ticket) = self {
            *ticket = tell(*ticket);
        }
    }
}

impl Call {
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

/// What a handler that was polled and is not ready waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pause {
    /// Bytes that its client has not sent.
    Client,
    /// Anything else.
    Else,
}

/// A refusal, with what its answer carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) reason: ShedReason,
    /// `None` if the machine was not asked.
    pub(super) grant: Option<GrantHeader>,
    pub(super) pushback: Duration,
}

/// A request as the machine shall see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    /// Whom it comes from: by its number, else by its address.
    pub(super) keys: [Key; 2],
    pub(super) ask: Ask,
    /// What it asks for.
    pub(super) method: Option<&'a str>,
    pub(super) arrived: Option<Instant>,
}

/// What all clones of a server layer share.
pub(super) struct Gate<S> {
    state: BriefLock<State<S>>,
    pub(super) config: ServerConfig,
}

struct State<S> {
    machine: S,
    /// What the machine is told of in a dry run.
    shadow: Shadow,
    line: Line,
    sessions: Sessions,
    methods: Methods,
    counts: Counts,
    rng: Rng,
    /// When the rest of the run queue last went before a handler, or bytes were last read.
    looked: Instant,
    /// Whether room counts.
    mode: Mode,
    /// Listeners whose grant came, to be woken without the lock. As many as there are sessions.
    heard: Vec<Waker>,
    /// The call whose turn came, to be woken without the lock.
    called: Option<Waker>,
}

/// What a call in line shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Wait: its waker is called. If it waits for room, which may never come, it is [`Gate::expire`]d after this instant.
    Wait(Option<Instant>),
    /// Let the rest of the run queue go first, then ask again.
    Yield,
    /// Start.
    Start,
}

/// What a listener hears.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// A grant.
    Grant(Grant),
    /// Nothing yet; its waker is called, and until then it shall ask again after this span if there is one.
    Nothing(Option<Duration>),
}

#[derive(Default)]
struct Counts {
    served: u64,
    in_time: u64,
    cancelled: u64,
    exempt: u64,
    in_flight: u64,
    shed: Sheds,
    would_have_shed: Sheds,
}

impl<S: Server> Gate<S> {
    pub(super) fn new(machine: S, config: ServerConfig) -> Arc<Self> {
        let seed = (config.clock)().as_nanos();
        let state = State {
            machine,
            shadow: Shadow::new(config.cores(), config.waiting, seed),
            line: Line::new(config.threads),
            sessions: Sessions::new(config.sessions, config.lease),
            methods: Methods::default(),
            counts: Counts::default(),
            rng: Rng::new(seed),
            looked: Instant::ZERO,
            mode: config.mode,
            heard: Vec::new(),
            called: None,
        };
        Arc::new(Self { state: BriefLock::new(state), config })
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Instant {
        (self.config.clock)()
    }

    /// A request was read.
    pub(super) fn arrive(&self, arrival: &Arrival<'_>) -> Result<Call, Refused> {
        self.tell(|state, now| state.arrive(arrival, &self.config, now))
    }

    /// Runs `tell` under the lock, then wakes whoever hears of a grant by it or has his turn.
    fn tell<R>(&self, tell: impl FnOnce(&mut State<S>, Instant) -> R) -> R {
        let (result, heard, called) = {
            let mut state = self.lock();
            // Read under the lock, so that the machine's time never steps back.
            let now = self.now();
            let result = tell(&mut state, now);
            (result, core::mem::take(&mut state.heard), state.called.take())
        };
        heard.into_iter().for_each(Waker::wake);
        wake(called);
        result
    }

    /// A client told its demand without a call. Its session; `None` if the table is full, or in a dry run.
    pub(super) fn demand(&self, arrival: &Arrival<'_>) -> Option<Key> {
        self.tell(|state, now| {
            if state.mode == Mode::DryRun {
                return None;
            }
            state.open_first(arrival, now);
            let (key, session) = state.sessions.enter(arrival.keys, arrival.ask.tenant, &mut state.machine, now)?;
            session.demand = arrival.ask.demand;
            session.pushed = None;
            let id = session.id;
            state.machine.on_demand(id, &arrival.ask, now);
            state.run_timers(now);
            Some(key)
        })
    }

    /// Whether a grant came for the session of `key`.
    pub(super) fn listen(&self, key: Key, waker: &Waker) -> Heard {
        self.tell(|state, now| {
            state.run_timers(now);
            let patience = state.machine.next_timeout().map(|timeout| timeout.since(now));
            let Some(session) = state.sessions.get_mut(key) else { return Heard::Nothing(None) };
            if let Some(grant) = session.pushed.take() {
                session.listener = None;
                return Heard::Grant(grant);
            }
            session.listener = Some(waker.clone());
            Heard::Nothing(patience)
        })
    }

    /// Asks what `call` shall do, which has let the run queue go first `yielded` times.
    pub(super) fn turn(&self, call: &Call, yielded: u8, waker: &Waker) -> Step {
        let mut state = self.lock();
        if state.line.turn(call.place, waker) == Turn::Later {
            let Course::Told(ticket) = call.course else { return Step::Wait(None) };
            let until = Some(ticket.start_by).filter(|until| *until < Instant::MAX);
            return Step::Wait(until.filter(|_| state.room() < u32::MAX));
        }
        let now = self.now();
        state.look(yielded, &self.config, now)
    }

    /// The turn of `call` came: it leaves the line. On `Ok` its handler may run and [`Self::hand_back`] is owed.
    pub(super) fn start(&self, call: &mut Call) -> Result<(), Refused> {
        let (refused, woken) = {
            let mut state = self.lock();
            let now = self.now();
            state.line.start(call.place);
            match state.start(call, &self.config, now) {
                Ok(()) => return Ok(()),
                Err(refused) => (refused, state.hand_back()),
            }
        };
        wake(woken);
        Err(refused)
    }

    /// A call in line has waited for room for as long as it may. On `Ok` the machine lets it start all the same, and nothing
    /// is owed.
    pub(super) fn expire(&self, call: &mut Call) -> Result<(), Refused> {
        let (result, woken) = {
            let mut state = self.lock();
            let now = self.now();
            let result = state.start(call, &self.config, now);
            let room = state.room();
            (result, state.line.cancel(call.place, room).or_else(|| state.line.call_next(room)))
        };
        wake(woken);
        result
    }

    /// The first poll of a call that started is over.
    pub(super) fn hand_back(&self) {
        let woken = self.lock().hand_back();
        wake(woken);
    }

    /// The handler of `call` waits, and does nothing until [`Self::go_on`].
    pub(super) fn pause(&self, call: &mut Call, pause: Pause) {
        self.tell(|state, now| {
            call.paused = Some((now, pause));
            call.course.map(|ticket| match pause {
                Pause::Client => state.machine.on_pause(ticket, now),
                Pause::Else => state.machine.on_wait(ticket, now),
            });
            state.call_next();
        });
    }

    /// Asks what `call` shall do, whose task was woken while its handler waited, and which has let the run queue go first
    /// `yielded` times since. After [`Step::Start`] its handler may be polled and [`Self::hand_back`] is owed.
    pub(super) fn go_on(&self, call: &mut Call, yielded: u8, waker: &Waker) -> Step {
        self.tell(|state, now| {
            let room = state.room();
            let place = call.again.get_or_insert_with(|| {
                let (place, called) = state.line.join_again(now, room);
                state.called = called;
                place
            });
            if state.line.turn_again(*place, waker) == Turn::Later {
                return Step::Wait(None);
            }
            let step = state.look(yielded, &self.config, now);
            if step == Step::Start {
                state.line.go_on(*place);
                call.again = None;
                state.resume(call, now);
            }
            step
        })
    }

    /// A call that started ended; what its answer shall carry.
    pub(super) fn finish(&self, call: &Call, done: Done) -> Option<GrantHeader> {
        let header = self.tell(|state, now| {
            let grant = state.finish(call, done, now);
            let room = state.room();
            state.called = call.again.and_then(|place| state.line.cancel_again(place, room));
            if state.called.is_none() {
                state.call_next();
            }
            state.run_timers(now);
            grant
        });
        header.map(|header| GrantHeader { instance: self.config.instance, ..header })
    }

    /// A call that was in line went away.
    pub(super) fn cancel_waiting(&self, call: &Call) {
        let woken = {
            let mut state = self.lock();
            let now = self.now();
            state.finish(call, Done::Cancelled, now);
            let room = state.room();
            state.line.cancel(call.place, room).or_else(|| state.line.call_next(room))
        };
        wake(woken);
    }

    pub(super) fn count_exempt(&self) {
        self.lock().counts.exempt += 1;
    }

    /// The state now, with the `busiest` sessions of the greatest demand. O(sessions) under the lock.
    pub(super) fn snapshot(&self, busiest: usize) -> ServerSnapshot {
        let state = self.lock();
        state.snapshot(busiest, self.now())
    }

    /// From now on verdicts are carried out, or are not.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.tell(|state, now| {
            state.run_timers(now);
            if state.mode == Mode::DryRun && mode == Mode::Enforce {
                state.shadow.end(&mut state.machine, now);
            }
            state.mode = mode;
            state.call_next();
        });
    }

    pub(super) fn with_machine<R>(&self, look: impl FnOnce(&mut S, Instant) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        look(&mut state.machine, now)
    }
}

impl<S: Server> State<S> {
    /// How long the oldest call in line has waited. A request that is just being looked at is not among them: its own
    /// arrival is told beside the signal, and some microseconds always lie between its bytes and its first poll.
    fn signal(&self, now: Instant) -> Signal {
        Signal { queueing_delay: self.line.oldest().map_or(Duration::ZERO, |oldest| now.since(oldest)) }
    }

    fn arrive(&mut self, arrival: &Arrival<'_>, config: &ServerConfig, now: Instant) -> Result<Call, Refused> {
        self.run_timers(now);
        self.sessions.expire(&mut self.machine, now);
        let mut ask = Ask { group: self.methods.number(arrival.method), ..arrival.ask };
        let arrived = arrival.arrived.map_or(now, |arrived| arrived.min(now));
        if arrival.arrived.is_some() {
            // Its bytes were read then: the sockets were looked at.
            self.looked = self.looked.max(arrived);
        }
        let signal = self.signal(now);
        let room = self.line.len() < config.waiting;
        self.open_first(arrival, now);
        let entered = self.sessions.enter(arrival.keys, ask.tenant, &mut self.machine, now);
        let [name, _] = arrival.keys;
        let new = entered.as_ref().filter(|(key, _)| *key != name).map(|_| (name, ask.tenant));
        if new.is_some() {
            // Many may share that session: nobody of them was told what it is told.
            (ask.aware, ask.credited, ask.demand) = (false, false, 0);
        }
        if self.mode == Mode::DryRun {
            let entered = entered.map(|(key, session)| {
                (session.demand, session.in_flight) = (ask.demand, session.in_flight + 1);
                (key, session.id)
            });
            return Ok(Call { new, ..self.arrive_on_paper(entered, &ask, arrived, now) });
        }
        let Some((key, session)) = entered.filter(|_| room) else {
            return Err(self.refuse(ask.priority, ShedReason::ServerFull, None, config));
        };
        session.demand = ask.demand;
        match self.machine.on_request(session.id, &ask, signal, arrived, now) {
            Verdict::Admit(ticket) => {
                session.in_flight += 1;
                Ok(Call { new, ..self.admit(key, Course::Told(ticket), &ask, arrived) })
            }
            Verdict::Shed(ticket, reason) => {
                let grant = self.machine.on_done(ticket, Done::Shed, now);
                session.grant = grant;
                let header = GrantHeader { grant, server_time: now.since(arrived), instance: config.instance };
                // Whatever the machine learnt, it may have room for another.
                self.call_next();
                Err(self.refuse(ask.priority, reason, Some(header), config))
            }
        }
    }

    /// Opens the session of a request that cannot be served before it has one.
    fn open_first(&mut self, arrival: &Arrival<'_>, now: Instant) {
        if self.machine.grants_before_calls() {
            let [name, _] = arrival.keys;
            self.sessions.admit(name, arrival.ask.tenant, &mut self.machine, now);
        }
    }

    /// A call runs whatever the machine says of it on paper; `entered` is its session, unless the table is full.
    fn arrive_on_paper(
        &mut self,
        entered: Option<(Key, SessionId)>,
        ask: &Ask,
        arrived: Instant,
        now: Instant,
    ) -> Call {
        let would = &mut self.counts.would_have_shed;
        match entered {
            Some((_, id)) => {
                let mut count = |reason, priority| would.count(reason, priority);
                self.shadow.arrive(&mut self.machine, id, ask, now, &mut count);
            }
            None => would.count(ShedReason::ServerFull, ask.priority),
        }
        let key = entered.map_or(Key::Nobody, |(key, _)| key);
        let measured = Measured { group: ask.group, started: arrived, waited: Duration::ZERO };
        self.admit(key, Course::Measured(measured), ask, arrived)
    }

    fn admit(&mut self, key: Key, course: Course, ask: &Ask, arrived: Instant) -> Call {
        self.counts.in_flight += 1;
        let place = self.join(arrived);
        Call {
            key,
            new: None,
            place,
            course,
            arrived,
            priority: ask.priority,
            budget: ask.budget,
            paused: None,
            again: None,
        }
    }

    /// What a call shall do whose turn it is.
    fn look(&mut self, yielded: u8, config: &ServerConfig, now: Instant) -> Step {
        if yielded >= config.yields {
            self.looked = now;
        } else if yielded > 0 || now.since(self.looked) >= config.look_every {
            return Step::Yield;
        }
        Step::Start
    }

    /// The handler of a call is about to be polled again.
    fn resume(&mut self, call: &mut Call, now: Instant) {
        let Some((since, pause)) = call.paused.take() else { return };
        match (&mut call.course, pause) {
            (Course::Told(ticket), Pause::Client) => *ticket = self.machine.on_resume(*ticket, since, now),
            (Course::Told(ticket), Pause::Else) => *ticket = self.machine.on_wake(*ticket, since, now),
            (Course::Measured(measured), Pause::Client) => measured.started += now.since(since),
            (Course::Measured(measured), Pause::Else) => measured.waited += now.since(since),
        }
    }

    fn join(&mut self, arrived: Instant) -> Place {
        let (place, called) = self.line.join(arrived, self.room());
        self.called = self.called.take().or(called);
        place
    }

    /// A call that started was polled, or will not be. Whom to wake.
    fn hand_back(&mut self) -> Option<Waker> {
        let room = self.room();
        self.line.hand_back(room)
    }

    /// A call ended or waits for its client: the next one may have room.
    fn call_next(&mut self) {
        self.called = self.line.call_next(self.room());
    }

    /// How many calls may start. A dry run holds none back.
    fn room(&self) -> u32 {
        if self.mode == Mode::DryRun { u32::MAX } else { self.machine.room() }
    }

    fn start(&mut self, call: &mut Call, config: &ServerConfig, now: Instant) -> Result<(), Refused> {
        let ticket = match &mut call.course {
            Course::Told(ticket) => ticket,
            Course::Measured(measured) => {
                measured.started = now;
                return Ok(());
            }
        };
        match self.machine.on_start(*ticket, now) {
            Verdict::Admit(started) => {
                *ticket = started;
                Ok(())
            }
            Verdict::Shed(ticket, reason) => {
                let grant = self.machine.on_done(ticket, Done::Shed, now);
                self.leave(call, Some(grant));
                let header = GrantHeader { grant, server_time: now.since(call.arrived), instance: config.instance };
                Err(self.refuse(call.priority, reason, Some(header), config))
            }
        }
    }

    /// Counts a refusal.
    fn refuse(
        &mut self,
        priority: Priority,
        reason: ShedReason,
        grant: Option<GrantHeader>,
        config: &ServerConfig,
    ) -> Refused {
        self.counts.shed.count(reason, priority);
        // Half to one and a half of it: those who were refused together shall not come back together.
        let pushback = config.pushback.mul_f64(0.5 + self.rng.f64());
        // In a dry run nobody may obey.
        Refused { reason, grant: grant.filter(|_| self.mode == Mode::Enforce), pushback }
    }

    fn finish(&mut self, call: &Call, done: Done, now: Instant) -> Option<GrantHeader> {
        let server_time = now.since(call.arrived);
        let call = &mut call.clone();
        self.resume(call, now);
        match done {
            Done::Served => {
                if let Some((name, tenant)) = call.new {
                    self.sessions.admit(name, tenant, &mut self.machine, now);
                }
                self.counts.served += 1;
                self.counts.in_time += u64::from(call.budget.is_none_or(|budget| server_time <= budget));
            }
            Done::Cancelled => self.counts.cancelled += 1,
            Done::Shed => {}
        }
        let grant = match call.course {
            Course::Told(ticket) => Some(self.machine.on_done(ticket, done, now)),
            Course::Measured(Measured { group, started, waited }) => {
                if done == Done::Served {
                    let computed = now.since(started).saturating_sub(waited);
                    self.shadow.measured(group, shadow::Course { computed, waited });
                }
                None
            }
        };
        self.leave(call, grant);
        // A dry run must not move clients: they would obey.
        grant.filter(|_| self.mode == Mode::Enforce).map(|grant| GrantHeader { grant, server_time, instance: 0 })
    }

    /// A call left the tables.
    fn leave(&mut self, call: &Call, grant: Option<Grant>) {
        self.counts.in_flight = self.counts.in_flight.saturating_sub(1);
        if let Some(session) = self.sessions.get_mut(call.key) {
            session.in_flight = session.in_flight.saturating_sub(1);
            session.grant = grant.unwrap_or(session.grant);
        }
    }

    /// Whatever the machine wanted to do by now. It is asked whenever a call comes or ends: while neither happens,
    /// nobody can hear what it decides.
    fn run_timers(&mut self, now: Instant) {
        let on_paper = self.mode == Mode::DryRun;
        if on_paper {
            let would = &mut self.counts.would_have_shed;
            self.shadow.advance(&mut self.machine, now, &mut |reason, priority| would.count(reason, priority));
        }
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= now) {
            let signal = if on_paper { self.shadow.signal(now) } else { self.signal(now) };
            self.machine.on_timeout(signal, now);
        }
        while let Some((id, grant)) = self.machine.poll_output() {
            // A grant that no answer carries waits for a listener of its session; the last word counts.
            if let Some(session) = self.sessions.named(id) {
                session.grant = grant;
                session.pushed = Some(grant);
                self.heard.extend(session.listener.take());
            }
        }
    }

    fn snapshot(&self, busiest: usize, now: Instant) -> ServerSnapshot {
        let mut sessions: Vec<SessionSnapshot> = self
            .sessions
            .iter()
            .map(|session| SessionSnapshot {
                session: session.id.0,
                in_flight: session.in_flight,
                demand: session.demand,
                window: session.grant.window,
                level: session.grant.level,
            })
            .collect();
        let sum = |of: fn(&SessionSnapshot) -> u32| sessions.iter().map(|session| u64::from(of(session))).sum();
        let (demand, credits) = (sum(|session| session.demand), sum(|session| session.window));
        sessions.sort_unstable_by_key(|session| (core::cmp::Reverse(session.demand), session.session));
        sessions.truncate(busiest);
        let counts = &self.counts;
        ServerSnapshot {
            mode: self.mode,
            served: counts.served,
            in_time: counts.in_time,
            cancelled: counts.cancelled,
            exempt: counts.exempt,
            shed: counts.shed.list(),
            would_have_shed: counts.would_have_shed.list(),
            in_flight: counts.in_flight,
            waiting: self.line.len() as u64,
            queueing_delay_ns: tidegate_core::time::nanos(self.signal(now).queueing_delay),
            sessions: self.sessions.len() as u64,
            demand,
            credits,
            busiest: sessions,
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
