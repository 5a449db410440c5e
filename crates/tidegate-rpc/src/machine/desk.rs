//! The protocol around a server's machine, so that every driver follows the same: the line of admitted calls, whose turn
//! it is, the signal, the timers, and that each call is told once and to its end.
//!
//! A call's way: [`Desk::on_request`] admits it into the line as a [`Waiting`], or refuses it. When
//! [`Desk::poll_call`] names it, [`Desk::start`] makes it a [`Running`], or refuses it. While its handler waits it is a
//! [`Paused`]; when it could go on, [`Desk::wake`] puts it into the line again as a [`Woken`], and when it is named
//! [`Desk::go_on`] makes it run again. [`Desk::end`] or [`Desk::cancel`] ends it. Each step takes the call's handle and
//! returns the next one; handles can be neither copied nor made elsewhere, so nothing is told twice or out of order.
//! A handle must not be dropped while its desk lives: its call would be in the accounts for ever.
//!
//! After every step the driver calls [`Desk::poll_call`] until `None` for as long as it has threads, and
//! [`Desk::poll_grant`] until `None`; after [`Desk::on_timeout`] also [`Desk::poll_expired`].
//!
//! The desk has no bound of its own: the driver looks at [`Desk::waiting`] before it asks, or takes an admitted call back
//! with [`Desk::refuse`].

use core::time::Duration;

use tidegate_core::Instant;

pub use super::line::{Called, Turn};
use super::line::{Line, Place};
use super::shadow::Course;
use super::shape::{Ask, Done, Grant, Server, SessionId, ShedReason, Signal, Ticket, Verdict};

/// A request, as it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Where it came from.
    pub session: SessionId,
    /// What it carries.
    pub ask: &'a Ask,
    /// When its bytes were read.
    pub arrived: Instant,
    /// From when on its wait counts in the signal: its arrival, unless `unread` has what it waited before.
    pub counted_from: Instant,
    /// How long the oldest of the requests has waited that have arrived and have not been looked at, where the driver
    /// can see those.
    pub unread: Duration,
}

impl<'a> Arrival<'a> {
    /// A request whose bytes were read at `arrived`, by a driver that looks at each as soon as it sees it.
    #[must_use]
    #[inline]
    pub fn new(session: SessionId, ask: &'a Ask, arrived: Instant) -> Self {
        Self { session, ask, arrived, counted_from: arrived, unread: Duration::ZERO }
    }
}

/// A refusal: the call has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Why.
    pub reason: ShedReason,
    /// What its answer carries.
    pub grant: Grant,
    /// When its bytes were read.
    pub arrived: Instant,
}

/// What a handler that is not ready waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Bytes that its client has not sent.
    Client,
    /// Anything else.
    Else,
}

/// What is known of an admitted call.
#[derive(Debug)]
struct Call {
    ticket: Ticket,
    /// Whether the machine knows of it.
    is_told: bool,
}

/// An admitted call that has not started.
#[derive(Debug)]
#[must_use = "its call has to be started or ended"]
pub struct Waiting {
    call: Call,
    place: Place,
}

/// A call whose handler occupies a thread.
#[derive(Debug)]
#[must_use = "its call has to be ended"]
pub struct Running {
    call: Call,
    has_turn: bool,
}

/// A call whose handler waits for something.
#[derive(Debug)]
#[must_use = "its call has to be ended"]
pub struct Paused {
    call: Call,
    since: Instant,
    pause: Pause,
}

/// A call whose handler could go on.
#[derive(Debug)]
#[must_use = "its call has to be ended"]
pub struct Woken {
    paused: Paused,
    place: Place,
}

/// A call that has started, wherever it is.
#[derive(Debug)]
#[must_use = "its call has to be ended"]
pub enum Started {
    /// Its handler occupies a thread.
    Running(Running),
    /// Its handler waits.
    Paused(Paused),
    /// Its handler could go on.
    Woken(Woken),
}

impl From<Running> for Started {
    fn from(running: Running) -> Self {
        Self::Running(running)
    }
}

impl From<Paused> for Started {
    fn from(paused: Paused) -> Self {
        Self::Paused(paused)
    }
}

impl From<Woken> for Started {
    fn from(woken: Woken) -> Self {
        Self::Woken(woken)
    }
}

impl Waiting {
    /// When its bytes were read.
    #[must_use]
    #[inline]
    pub fn arrived(&self) -> Instant {
        self.call.ticket.arrived
    }
}

impl Running {
    /// When its bytes were read; later by what it has waited for its client.
    #[must_use]
    #[inline]
    pub fn arrived(&self) -> Instant {
        self.call.ticket.arrived
    }

    /// See [`Ticket::chance`].
    #[must_use]
    #[inline]
    pub fn chance(&self) -> u32 {
        self.call.ticket.chance
    }
}

/// How a started call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The machine was told; what the answer shall carry.
    Told(Grant),
    /// The machine knew nothing of it: its group, and what it took.
    Untold(u8, Course),
}

/// A server's machine `S` and its calls; with each that waits, a `V` that tells the driver which it is.
#[derive(Clone, Debug)]
pub struct Desk<S, V> {
    machine: S,
    line: Line<V>,
    is_unbounded: bool,
}

impl<S: Server, V: Default> Desk<S, V> {
    /// A desk before `threads` threads that run handlers, at least 1, with nobody in line.
    #[must_use]
    pub fn new(machine: S, threads: u32) -> Self {
        Self { machine, line: Line::new(threads), is_unbounded: false }
    }

    /// The machine.
    #[must_use]
    #[inline]
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// The machine, for sessions, demands and settings. Calls are told by the desk alone.
    #[inline]
    pub fn machine_mut(&mut self) -> &mut S {
        &mut self.machine
    }

    /// From now on no call waits for room, whatever the machine says, or does again. For drivers that carry no verdicts
    /// out.
    pub fn ignore_room(&mut self, is_ignored: bool) {
        self.is_unbounded = is_ignored;
    }

    /// How long the oldest call in line has waited, to start or to go on. A request that is just being looked at is not among
    /// them.
    #[must_use]
    #[inline]
    pub fn signal(&self, now: Instant) -> Signal {
        Signal { queueing_delay: self.line.oldest().map_or(Duration::ZERO, |oldest| now.since(oldest)) }
    }

    /// Calls that wait to start.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// A request was looked at; `value` stands for its call while that waits.
    ///
    /// # Errors
    /// [`Refused`] if the machine sheds it.
    #[inline]
    pub fn on_request(&mut self, arrival: &Arrival<'_>, value: V, now: Instant) -> Result<Waiting, Refused> {
        let Arrival { session, ask, arrived, counted_from, unread } = *arrival;
        let signal = Signal { queueing_delay: unread + self.signal(now).queueing_delay };
        match self.machine.on_request(session, ask, signal, arrived, now) {
            Verdict::Admit(ticket) => {
                let place = self.line.join(counted_from, ticket.start_by, value);
                Ok(Waiting { call: Call { ticket, is_told: true }, place })
            }
            Verdict::Shed(ticket, reason) => Err(self.shed(ticket, reason, now)),
        }
    }

    /// A call stands in line of which the machine is not told.
    pub fn join_untold(&mut self, ask: &Ask, arrived: Instant, value: V) -> Waiting {
        let ticket = Ticket::new(SessionId(0), ask, arrived);
        let place = self.line.join(arrived, ticket.start_by, value);
        Waiting { call: Call { ticket, is_told: false }, place }
    }

    /// The next call whose turn it is, for a driver that has a thread for it. Call until `None`.
    #[inline]
    pub fn poll_call(&mut self, now: Instant) -> Option<Called<V>> {
        let room = self.room();
        self.line.call(room, now)
    }

    /// The next call that has waited for room for as long as it may: [`Self::start`] is due, which mostly refuses it. Call
    /// until `None`.
    #[inline]
    pub fn poll_expired(&mut self, now: Instant) -> Option<V> {
        let room = self.room();
        self.line.expire(room, now)
    }

    /// The next grant to send outside an answer; call until `None`.
    #[inline]
    pub fn poll_grant(&mut self) -> Option<(SessionId, Grant)> {
        self.machine.poll_output()
    }

    /// Whether the call may start.
    #[inline]
    pub fn turn(&mut self, waiting: &Waiting) -> Turn<'_, V> {
        self.line.turn(waiting.place)
    }

    /// Whether the call may go on.
    #[inline]
    pub fn turn_again(&mut self, woken: &Woken) -> Turn<'_, V> {
        self.line.turn_again(woken.place)
    }

    /// The call leaves the line to start, on its turn or, if it was not its turn, beside the others.
    ///
    /// # Errors
    /// [`Refused`] if the machine sheds it.
    #[inline]
    pub fn start(&mut self, waiting: Waiting, now: Instant) -> Result<Running, Refused> {
        let Waiting { mut call, place } = waiting;
        let has_turn = self.line.start(place);
        call.ticket.started = now;
        if call.is_told {
            match self.machine.on_start(call.ticket, now) {
                Verdict::Admit(ticket) => call.ticket = ticket,
                Verdict::Shed(ticket, reason) => {
                    let refused = self.shed(ticket, reason, now);
                    self.hand_back(has_turn);
                    return Err(refused);
                }
            }
        }
        Ok(Running { call, has_turn })
    }

    /// The driver has no room for a call that was admitted.
    #[expect(clippy::needless_pass_by_value, reason = "its call ends here")]
    pub fn refuse(&mut self, waiting: Waiting, reason: ShedReason, now: Instant) -> Refused {
        let Waiting { call: Call { ticket, is_told }, place } = waiting;
        let has_turn = self.line.start(place);
        let grant = if is_told { self.machine.on_done(ticket, Done::Shed, now) } else { Grant::default() };
        self.hand_back(has_turn);
        Refused { reason, grant, arrived: ticket.arrived }
    }

    /// The caller of a call that has not started went away.
    #[expect(clippy::needless_pass_by_value, reason = "its call ends here")]
    pub fn cancel(&mut self, waiting: Waiting, now: Instant) -> Option<Grant> {
        let Waiting { call: Call { ticket, is_told }, place } = waiting;
        let has_turn = self.line.start(place);
        let grant = is_told.then(|| self.machine.on_done(ticket, Done::Cancelled, now));
        self.hand_back(has_turn);
        grant
    }

    /// The handler waits; its thread is free.
    #[inline]
    pub fn pause(&mut self, running: Running, pause: Pause, now: Instant) -> Paused {
        let Running { mut call, has_turn } = running;
        if call.is_told {
            call.ticket = match pause {
                Pause::Client => self.machine.on_pause(call.ticket, now),
                Pause::Else => self.machine.on_wait(call.ticket, now),
            };
        }
        self.hand_back(has_turn);
        Paused { call, since: now, pause }
    }

    /// What the handler waited for may have come: it stands in line to go on.
    #[inline]
    pub fn wake(&mut self, paused: Paused, value: V, now: Instant) -> Woken {
        let place = self.line.join_again(now, value);
        Woken { paused, place }
    }

    /// The handler goes on, on its turn or, if it was not its turn, beside the others.
    #[inline]
    pub fn go_on(&mut self, woken: Woken, now: Instant) -> Running {
        let has_turn = self.line.go_on(woken.place);
        Running { call: self.resume(woken.paused, now), has_turn }
    }

    /// A started call ended.
    #[inline]
    pub fn end(&mut self, call: impl Into<Started>, done: Done, now: Instant) -> Ended {
        let (Call { ticket, is_told }, has_turn) = match call.into() {
            Started::Running(Running { call, has_turn }) => (call, has_turn),
            Started::Paused(paused) => (self.resume(paused, now), false),
            Started::Woken(Woken { paused, place }) => (self.resume(paused, now), self.line.go_on(place)),
        };
        let ended = if is_told {
            Ended::Told(self.machine.on_done(ticket, done, now))
        } else {
            let computed = now.since(ticket.started).saturating_sub(ticket.waited);
            Ended::Untold(ticket.group, Course { computed, waited: ticket.waited })
        };
        self.hand_back(has_turn);
        ended
    }

    /// When [`Self::on_timeout`] shall be called if nothing else happens.
    #[must_use]
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        match (self.machine.next_timeout(), self.line.next_timeout(self.room())) {
            (Some(machine), Some(line)) => Some(machine.min(line)),
            (machine, line) => machine.or(line),
        }
    }

    /// That moment came, perhaps late. `unread` is as in [`Arrival`].
    #[inline]
    pub fn on_timeout(&mut self, unread: Duration, now: Instant) {
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= now) {
            let signal = Signal { queueing_delay: unread + self.signal(now).queueing_delay };
            self.machine.on_timeout(signal, now);
        }
        self.line.take_back(now);
    }

    #[inline]
    fn room(&self) -> u32 {
        if self.is_unbounded { u32::MAX } else { self.machine.room() }
    }

    #[inline]
    fn shed(&mut self, ticket: Ticket, reason: ShedReason, now: Instant) -> Refused {
        let grant = self.machine.on_done(ticket, Done::Shed, now);
        Refused { reason, grant, arrived: ticket.arrived }
    }

    #[inline]
    fn resume(&mut self, paused: Paused, now: Instant) -> Call {
        let Paused { mut call, since, pause } = paused;
        match (call.is_told, pause) {
            (true, Pause::Client) => call.ticket = self.machine.on_resume(call.ticket, since, now),
            (true, Pause::Else) => call.ticket = self.machine.on_wake(call.ticket, since, now),
            (false, Pause::Client) => call.ticket.started += now.since(since),
            (false, Pause::Else) => call.ticket.waited += now.since(since),
        }
        call
    }

    #[inline]
    fn hand_back(&mut self, has_turn: bool) {
        if has_turn {
            self.line.hand_back();
        }
    }
}

#[cfg(test)]
mod tests;
