//! The server's machine behind its lock, with the line and the sessions: each event of a call, told once.

use core::time::Duration;
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::MutexGuard;
use tidegate_core::{Instant, Rng};

use super::alarm::{Alarm, Timed};
use super::config::{Mode, ServerConfig};
use super::counts::{ServerSnapshot, SessionSnapshot, Sheds};
use super::headers::GrantHeader;
use super::lock::BriefLock;
use super::methods::Methods;
use super::sessions::{Key, Sessions};
use super::stamp::last_read_here;
use crate::machine::desk::{self, Called, Desk, Ended, Pause, Started, Turn, Waiting};
use crate::machine::shadow::Shadow;
use crate::machine::{Ask, Done, Grant, Server, SessionId, ShedReason, Signal};
use crate::telemetry::{Book, CallOf, Change, Reporter, Serving};

/// Times in a row that the sockets are looked at before a handler at most, while requests are read each time.
const ROUNDS: u8 = 4;
/// Served calls after which the objective that calls are counted by is looked up again.
const OBJECTIVE_EVERY: u64 = 64;

/// What the gate keeps of an admitted call until it ends.
#[derive(Clone, Copy, Debug)]
struct Call {
    key: Key,
    /// The name that it came with and that has no session yet.
    new: Option<Key>,
    arrived: Instant,
    of: CallOf,
    /// When its handler was started; its arrival until then.
    started: Instant,
    budget: Option<Duration>,
}

/// A call in line.
#[derive(Debug)]
pub(super) struct InLine {
    call: Call,
    waiting: Waiting,
    /// Whether [`Gate::name_method`] is due once it was answered.
    pub(super) is_unnamed: bool,
}

/// A call that has started.
#[derive(Debug)]
pub(super) struct Begun {
    call: Call,
    started: Started,
}

impl Begun {
    pub(super) fn is_paused(&self) -> bool {
        !matches!(self.started, Started::Running(_))
    }
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

pub(super) struct State<S> {
    pub(super) desk: Desk<S, Option<Waker>>,
    /// What the machine is told of in a dry run.
    shadow: Shadow,
    pub(super) sessions: Sessions,
    methods: Methods,
    pub(super) counts: Counts,
    /// What is counted beside, once somebody asked for telemetry.
    pub(super) book: Option<Box<Book>>,
    reporter: Reporter,
    rng: Rng,
    /// When the rest of the run queue last went before a handler, or bytes were last read.
    looked: Instant,
    /// When a call whose turn has come last began to let the others go first, and when one last arrived.
    round: Instant,
    arrived: Instant,
    pub(super) mode: Mode,
    /// Listeners whose grant came and calls that waited for too long, to be woken without the lock. At most as many as there
    /// are sessions and waiting calls.
    heard: Vec<Waker>,
    alarm: Alarm,
}

/// Calls whose turn has come, to be woken without the lock: seldom more than one.
#[derive(Default)]
struct Wakes {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakes {
    fn push(&mut self, waker: Waker) {
        if self.first.is_none() {
            self.first = Some(waker);
        } else {
            self.more.push(waker);
        }
    }

    fn wake(self) {
        self.first.into_iter().chain(self.more).for_each(Waker::wake);
    }
}

/// What a call in line shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Wait: its waker is called.
    Wait,
    /// Let the executor look at its sockets and the rest of the run queue go first, then ask again.
    Look,
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
    /// Nothing yet; its waker is called.
    Nothing,
}

#[derive(Default)]
pub(super) struct Counts {
    served: u64,
    in_time: u64,
    cancelled: u64,
    pub(super) exempt: u64,
    pub(super) in_flight: u64,
    shed: Sheds,
    pub(super) would_have_shed: Sheds,
}

impl<S: Server + Send + 'static> Gate<S> {
    pub(super) fn new(machine: S, config: ServerConfig) -> Arc<Self> {
        let seed = (config.clock)().as_nanos();
        let mut desk = Desk::new(machine, u32::try_from(config.threads).unwrap_or(u32::MAX));
        if config.mode == Mode::DryRun {
            desk.machine_mut().on_paper(true, (config.clock)());
        }
        desk.ignore_room(config.mode == Mode::DryRun);
        let state = |alarm, config: &ServerConfig| State {
            desk,
            shadow: Shadow::new(config.cores(), config.waiting, seed),
            sessions: Sessions::new(config.sessions, config.lease),
            methods: Methods::default(),
            counts: Counts::default(),
            book: None,
            reporter: Reporter::new(),
            rng: Rng::new(seed),
            looked: Instant::ZERO,
            round: Instant::ZERO,
            arrived: Instant::ZERO,
            mode: config.mode,
            heard: Vec::new(),
            alarm,
        };
        Arc::new_cyclic(|gate: &Weak<Self>| {
            let alarm = Alarm::new(Weak::<Self>::clone(gate));
            Self { state: BriefLock::new(state(alarm, &config)), config }
        })
    }
}

impl<S: Server + Send> Timed for Gate<S> {
    fn run_timers(&self) -> Option<Duration> {
        self.tell(|state, now| {
            state.run_timers(now);
            let next = state.desk.next_timeout();
            state.alarm.woke(next);
            next.map(|next| next.since(now))
        })
    }
}

impl<S: Server> Gate<S> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Instant {
        (self.config.clock)()
    }

    /// A call of the method was answered as if there were such a method: from now on its calls are told apart from others.
    pub(super) fn name_method(&self, name: &str) {
        self.lock().methods.name(name);
    }

    /// A request was read.
    pub(super) fn arrive(&self, arrival: &Arrival<'_>) -> Result<InLine, Refused> {
        self.tell(|state, now| state.arrive(arrival, &self.config, now))
    }

    /// Runs `tell` under the lock, then wakes whoever hears of a grant by it or has his turn.
    fn tell<R>(&self, tell: impl FnOnce(&mut State<S>, Instant) -> R) -> R {
        let (result, heard, wakes, change) = {
            let mut state = self.lock();
            // Read under the lock, so that the machine's time never steps back.
            let now = self.now();
            let result = tell(&mut state, now);
            let wakes = state.call(now);
            let next = state.desk.next_timeout();
            state.alarm.set(next, now);
            let change = if state.reporter.is_due(now) { state.report(now) } else { None };
            (result, core::mem::take(&mut state.heard), wakes, change)
        };
        heard.into_iter().for_each(Waker::wake);
        wakes.wake();
        if let Some(change) = change {
            change.tell();
        }
        result
    }

    /// A client told its demand without a call. Its session; `None` if the table is full, or in a dry run.
    pub(super) fn demand(&self, arrival: &Arrival<'_>) -> Option<Key> {
        self.tell(|state, now| {
            if state.mode == Mode::DryRun || !state.desk.machine().grants_before_calls() {
                // Nothing would be granted but by answers.
                return None;
            }
            state.open_first(arrival, now);
            let machine = state.desk.machine_mut();
            let (key, session) = state.sessions.enter(arrival.keys, machine, now)?;
            session.demand = arrival.ask.demand;
            session.pushed = None;
            machine.on_demand(session.id, &arrival.ask, now);
            state.run_timers(now);
            Some(key)
        })
    }

    /// Whether a grant came for the session of `key`.
    pub(super) fn listen(&self, key: Key, waker: &Waker) -> Heard {
        self.tell(|state, now| {
            state.run_timers(now);
            let Some(session) = state.sessions.get_mut(key) else { return Heard::Nothing };
            if let Some(grant) = session.pushed.take() {
                session.listener = None;
                return Heard::Grant(grant);
            }
            session.listener = Some(waker.clone());
            Heard::Nothing
        })
    }

    /// Asks what a call in line shall do, which has let the run queue go first `yielded` times. [`Self::start`] is due after
    /// [`Step::Start`].
    pub(super) fn turn(&self, in_line: &InLine, yielded: u8, waker: &Waker) -> Step {
        let mut state = self.lock();
        if state.mode == Mode::DryRun {
            // Nothing is held up: a handler that blocks its thread would hold up all others.
            return Step::Start;
        }
        match state.desk.turn(&in_line.waiting) {
            Turn::Later(known) => wait(known, waker),
            Turn::Expired => Step::Start,
            Turn::Mine => {
                let now = self.now();
                state.look(yielded, &self.config, now)
            }
        }
    }

    /// A call leaves the line, since its turn came or it has waited for too long. On `Ok` its handler may be polled, and after that
    /// [`Self::pause`] or [`Self::finish`] is due.
    pub(super) fn start(&self, in_line: InLine) -> Result<Begun, Refused> {
        let InLine { call, waiting, .. } = in_line;
        self.tell(|state, now| match state.desk.start(waiting, now) {
            Ok(running) => {
                state.count_start(call, now);
                Ok(Begun { call: Call { started: now, ..call }, started: running.into() })
            }
            Err(refused) => {
                state.leave(&call, Done::Shed, Some(refused.grant));
                Err(state.refuse(call.of, &refused, &self.config, now))
            }
        })
    }

    /// The handler of a call waits, and does nothing until [`Self::go_on`].
    pub(super) fn pause(&self, begun: Begun, pause: Pause) -> Begun {
        let Begun { call, started } = begun;
        self.tell(|state, now| {
            let started = match started {
                Started::Running(running) => state.desk.pause(running, pause, now).into(),
                paused => paused,
            };
            Begun { call, started }
        })
    }

    /// Asks what a call shall do whose task was woken while its handler waited, and which has let the run queue go first
    /// `yielded` times since. After [`Step::Start`] its handler may be polled.
    pub(super) fn go_on(&self, begun: Begun, yielded: u8, waker: &Waker) -> (Begun, Step) {
        let Begun { call, started } = begun;
        let mut woken_here = Wakes::default();
        let result = self.tell(|state, now| {
            let woken = match started {
                Started::Paused(paused) => {
                    let woken = state.desk.wake(paused, None, now);
                    // If it is its own turn, it finds it below.
                    woken_here = state.call(now);
                    woken
                }
                Started::Woken(woken) => woken,
                Started::Running(running) => return (Begun { call, started: running.into() }, Step::Start),
            };
            let step = match state.desk.turn_again(&woken) {
                _ if state.mode == Mode::DryRun => Step::Start,
                Turn::Later(known) => wait(known, waker),
                Turn::Mine | Turn::Expired => state.look(yielded, &self.config, now),
            };
            let started = if step == Step::Start { state.desk.go_on(woken, now).into() } else { Started::Woken(woken) };
            (Begun { call, started }, step)
        });
        woken_here.wake();
        result
    }

    /// A call that started ended; what its answer shall carry.
    pub(super) fn finish(&self, begun: Begun, done: Done) -> Option<GrantHeader> {
        let Begun { call, started } = begun;
        let header = self.tell(|state, now| {
            let grant = state.finish(&call, started, done, now);
            state.run_timers(now);
            grant
        });
        header.map(|header| GrantHeader { instance: self.config.instance, ..header })
    }

    /// A call that was in line went away.
    pub(super) fn cancel(&self, in_line: InLine) {
        let InLine { call, waiting, .. } = in_line;
        self.tell(|state, now| {
            let grant = state.desk.cancel(waiting, now);
            state.count_cancelled();
            state.leave(&call, Done::Cancelled, grant);
        });
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
        let before = self.tell(|state, now| {
            state.run_timers(now);
            if state.mode == Mode::DryRun && mode == Mode::Enforce {
                state.shadow.end(state.desk.machine_mut(), now);
            } else if state.mode == Mode::Enforce && mode == Mode::DryRun {
                state.desk.machine_mut().on_paper(true, now);
            }
            state.desk.ignore_room(mode == Mode::DryRun);
            core::mem::replace(&mut state.mode, mode)
        });
        if before != mode {
            Change::Mode(mode).tell();
        }
    }

    pub(super) fn with_machine<R>(&self, look: impl FnOnce(&mut S, Instant) -> R) -> R {
        self.tell(|state, now| look(state.desk.machine_mut(), now))
    }
}

impl<S: Server> State<S> {
    /// The calls whose turn has come.
    fn call(&mut self, now: Instant) -> Wakes {
        let mut wakes = Wakes::default();
        while let Some(Called::Start(waker) | Called::GoOn(waker)) = self.desk.poll_call(now) {
            // A call without a waker is about to be polled.
            if let Some(waker) = waker {
                wakes.push(waker);
            }
        }
        wakes
    }

    /// What has changed that somebody should hear of.
    #[cold]
    fn report(&mut self, now: Instant) -> Option<Change> {
        let view = self.desk.machine().view(self.desk.signal(now), now);
        self.reporter.look(view, self.mode, now)
    }

    fn arrive(&mut self, arrival: &Arrival<'_>, config: &ServerConfig, now: Instant) -> Result<InLine, Refused> {
        self.run_timers(now);
        self.sessions.expire(self.desk.machine_mut(), now);
        let number = self.methods.number(arrival.method);
        let mut ask = Ask { group: number.unwrap_or_default(), ..arrival.ask };
        let arrived = arrival.arrived.map_or(now, |arrived| arrived.min(now));
        self.arrived = now;
        if arrival.arrived.is_some() && self.desk.signal(now).queueing_delay.is_zero() {
            // Its bytes were read then: the sockets were looked at. While others wait, more that was read may be in the run
            // queue, behind a call that had its turn by this one's arrival.
            self.looked = self.looked.max(arrived);
        }
        let room = self.desk.waiting() < config.waiting;
        self.open_first(arrival, now);
        let entered = self.sessions.enter(arrival.keys, self.desk.machine_mut(), now);
        let [name, _] = arrival.keys;
        let new = entered.as_ref().filter(|(key, _)| *key != name).map(|_| name);
        if new.is_some() {
            // Many may share that session: nobody of them was told what it is told.
            (ask.aware, ask.credited, ask.demand) = (false, false, 0);
        }
        let of = CallOf { tenant: ask.tenant, priority: ask.priority };
        if let Some(book) = &mut self.book {
            book.offered(of);
        }
        if self.mode == Mode::DryRun {
            let entered = entered.map(|(key, session)| {
                (session.demand, session.in_flight) = (ask.demand, session.in_flight + 1);
                session.calls.offered += 1;
                (key, session.id)
            });
            let in_line = self.arrive_on_paper(entered, new, &ask, arrived, now);
            return Ok(InLine { is_unnamed: number.is_none(), ..in_line });
        }
        let Some((key, session)) = entered.filter(|_| room) else {
            return Err(self.turn_away(of, ShedReason::ServerFull, None, config));
        };
        session.demand = ask.demand;
        session.calls.offered += 1;
        match self.desk.on_request(&desk::Arrival::new(session.id, &ask, arrived), None, now) {
            Ok(waiting) => {
                session.in_flight += 1;
                Ok(self.admit(key, new, waiting, &ask, number.is_none()))
            }
            Err(refused) => {
                session.grant = refused.grant;
                session.calls.shed += 1;
                Err(self.refuse(of, &refused, config, now))
            }
        }
    }

    /// Opens the session of a request that cannot be served before it has one.
    fn open_first(&mut self, arrival: &Arrival<'_>, now: Instant) {
        let machine = self.desk.machine_mut();
        if machine.grants_before_calls() {
            let [name, _] = arrival.keys;
            self.sessions.admit(name, machine, now);
        }
    }

    /// A call runs whatever the machine says of it on paper; `entered` is its session, unless the table is full.
    fn arrive_on_paper(
        &mut self,
        entered: Option<(Key, SessionId)>,
        new: Option<Key>,
        ask: &Ask,
        arrived: Instant,
        now: Instant,
    ) -> InLine {
        let would = &mut self.counts.would_have_shed;
        match entered {
            Some((_, id)) => {
                let mut count = |reason, priority| would.count(reason, priority);
                self.shadow.arrive(self.desk.machine_mut(), id, ask, now, &mut count);
            }
            None => would.count(ShedReason::ServerFull, ask.priority),
        }
        let key = entered.map_or(Key::NOBODY, |(key, _)| key);
        let waiting = self.desk.join_untold(ask, arrived, None);
        self.admit(key, new, waiting, ask, false)
    }

    fn admit(&mut self, key: Key, new: Option<Key>, waiting: Waiting, ask: &Ask, is_unnamed: bool) -> InLine {
        self.counts.in_flight += 1;
        let of = CallOf { tenant: ask.tenant, priority: ask.priority };
        let arrived = waiting.arrived();
        let call = Call { key, new, arrived, of, started: arrived, budget: ask.budget };
        InLine { call, waiting, is_unnamed }
    }

    /// What a call shall do whose turn it is.
    fn look(&mut self, yielded: u8, config: &ServerConfig, now: Instant) -> Step {
        let goes = match yielded.checked_rem(config.yields) {
            None => true,
            Some(_) if yielded == 0 => now.since(self.looked) < config.look_every,
            Some(0) => {
                // What came meanwhile was not seen by the look before it, unless the executor looked again by itself: it
                // shall not wait for a handler. Where several threads run handlers, another one looks.
                let is_quiet = config.threads > 1 || last_read_here().max(self.arrived) <= self.round;
                is_quiet || yielded >= config.yields.saturating_mul(ROUNDS)
            }
            Some(_) => return Step::Yield,
        };
        if goes {
            self.looked = if yielded > 0 { now } else { self.looked };
            return Step::Start;
        }
        self.round = now;
        // With several threads one that defers the task keeps it, however long it is at something else.
        if config.threads == 1 { Step::Look } else { Step::Yield }
    }

    /// The machine refused a call.
    fn refuse(&mut self, of: CallOf, refused: &desk::Refused, config: &ServerConfig, now: Instant) -> Refused {
        let desk::Refused { reason, grant, arrived } = *refused;
        let header = GrantHeader { grant, server_time: now.since(arrived), instance: config.instance };
        self.turn_away(of, reason, Some(header), config)
    }

    /// Counts a refusal.
    fn turn_away(
        &mut self,
        of: CallOf,
        reason: ShedReason,
        grant: Option<GrantHeader>,
        config: &ServerConfig,
    ) -> Refused {
        self.counts.shed.count(reason, of.priority);
        if let Some(book) = &mut self.book {
            book.shed(of, reason);
        }
        // Half to one and a half of it: those who were refused together shall not come back together.
        let pushback = config.pushback.mul_f64(0.5 + self.rng.f64());
        // In a dry run nobody may obey.
        Refused { reason, grant: grant.filter(|_| self.mode == Mode::Enforce), pushback }
    }

    fn finish(&mut self, call: &Call, started: Started, done: Done, now: Instant) -> Option<GrantHeader> {
        let server_time = now.since(call.arrived);
        match done {
            Done::Served => {
                if let Some(name) = call.new {
                    self.sessions.admit(name, self.desk.machine_mut(), now);
                }
                let in_time = call.budget.is_none_or(|budget| server_time <= budget);
                self.counts.served += 1;
                self.counts.in_time += u64::from(in_time);
                self.count_served(call, in_time, now);
            }
            Done::Cancelled => self.count_cancelled(),
            Done::Shed => {}
        }
        let grant = match self.desk.end(started, done, now) {
            Ended::Told(grant) => Some(grant),
            Ended::Untold(group, course) => {
                if done == Done::Served {
                    self.shadow.measured(group, course);
                }
                None
            }
        };
        self.leave(call, done, grant);
        // A dry run must not move clients: they would obey.
        grant.filter(|_| self.mode == Mode::Enforce).map(|grant| GrantHeader { grant, server_time, instance: 0 })
    }

    /// A call left the tables.
    fn leave(&mut self, call: &Call, done: Done, grant: Option<Grant>) {
        self.counts.in_flight = self.counts.in_flight.saturating_sub(1);
        if let Some(session) = self.sessions.get_mut(call.key) {
            session.in_flight = session.in_flight.saturating_sub(1);
            session.grant = grant.unwrap_or(session.grant);
            session.calls.served += u64::from(done == Done::Served);
            session.calls.shed += u64::from(done == Done::Shed);
        }
    }

    /// The handler of a call is about to be polled first.
    fn count_start(&mut self, call: Call, now: Instant) {
        if let Some(book) = &mut self.book {
            book.started(call.of, now.since(call.arrived), now);
        }
    }

    fn count_cancelled(&mut self) {
        self.counts.cancelled += 1;
        if let Some(book) = &mut self.book {
            book.cancelled();
        }
    }

    fn count_served(&mut self, call: &Call, in_time: bool, now: Instant) {
        let Some(book) = &mut self.book else { return };
        let serving = Serving { in_all: now.since(call.arrived), service: now.since(call.started), in_time };
        book.served(call.of, serving, now);
        // A few divisions, and it moves slowly.
        if book.calls().served.is_multiple_of(OBJECTIVE_EVERY)
            && let Some(view) = self.desk.machine().view(Signal::default(), now)
        {
            book.set_objective(view.gauges.objective);
        }
    }

    /// Whatever the machine and the line wanted to do by now. They are asked whenever a call comes or ends, and else by the
    /// alarm.
    fn run_timers(&mut self, now: Instant) {
        if self.mode == Mode::DryRun {
            let machine = self.desk.machine_mut();
            let would = &mut self.counts.would_have_shed;
            self.shadow.advance(machine, now, &mut |reason, priority| would.count(reason, priority));
            if machine.next_timeout().is_some_and(|timeout| timeout <= now) {
                machine.on_timeout(self.shadow.signal(now), now);
            }
        }
        self.desk.on_timeout(Duration::ZERO, now);
        while let Some(waker) = self.desk.poll_expired(now) {
            self.heard.extend(waker);
        }
        while let Some((id, grant)) = self.desk.poll_grant() {
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
            waiting: self.desk.waiting() as u64,
            queueing_delay_ns: tidegate_core::time::nanos(self.desk.signal(now).queueing_delay),
            sessions: self.sessions.len() as u64,
            demand,
            credits,
            busiest: sessions,
        }
    }
}

/// The call that is known by `known` is woken by `waker` from now on.
fn wait(known: &mut Option<Waker>, waker: &Waker) -> Step {
    match known {
        Some(known) => known.clone_from(waker),
        None => *known = Some(waker.clone()),
    }
    Step::Wait
}
