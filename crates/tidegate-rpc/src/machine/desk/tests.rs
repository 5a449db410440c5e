use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::machine::{Full, Priority, Tenant};

const SHED: Option<ShedReason> = Some(ShedReason::Delay);

/// Where a call is, as the machine was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Line,
    Core,
    Client,
    Else,
}

/// A machine that panics if a call is told twice or out of order. Calls are known by their arrival.
#[derive(Default, Debug)]
struct Ledger {
    calls: BTreeMap<u64, At>,
    told: u64,
    ended: u64,
    shed_next: Option<ShedReason>,
    room: Option<u32>,
    signals: Vec<u64>,
    timeout: Option<Instant>,
}

impl Ledger {
    fn step(&mut self, ticket: Ticket, from: &[At], to: At) -> Ticket {
        let at = self.calls.get_mut(&ticket.arrived.as_nanos()).expect("it was told of");
        assert!(from.contains(at), "{at:?} to {to:?}");
        *at = to;
        ticket
    }

    fn in_flight(&self) -> u32 {
        let in_flight = self.calls.values().filter(|at| matches!(at, At::Core | At::Else)).count();
        u32::try_from(in_flight).unwrap()
    }

    fn verdict(&mut self, ticket: Ticket) -> Verdict {
        self.shed_next.take().map_or(Verdict::Admit(ticket), |reason| Verdict::Shed(ticket, reason))
    }
}

impl Server for Ledger {
    fn open(&mut self, _: Tenant, _: Instant) -> Result<SessionId, Full> {
        Ok(SessionId(0))
    }

    fn close(&mut self, _: SessionId, _: Instant) {}

    fn on_request(&mut self, id: SessionId, ask: &Ask, signal: Signal, arrived: Instant, _: Instant) -> Verdict {
        self.signals.push(tidegate_core::time::nanos(signal.queueing_delay));
        assert_eq!(self.calls.insert(arrived.as_nanos(), At::Line), None);
        self.told += 1;
        let start_by = ask.budget.map_or(Instant::MAX, |budget| arrived + budget);
        self.verdict(Ticket { start_by, ..Ticket::new(id, ask, arrived) })
    }

    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        assert_eq!(ticket.started, now);
        if now > ticket.start_by {
            return Verdict::Shed(ticket, ShedReason::Deadline);
        }
        match self.verdict(ticket) {
            Verdict::Admit(ticket) => Verdict::Admit(self.step(ticket, &[At::Line], At::Core)),
            shed @ Verdict::Shed(..) => shed,
        }
    }

    fn on_pause(&mut self, ticket: Ticket, _: Instant) -> Ticket {
        self.step(ticket, &[At::Core], At::Client)
    }

    fn on_resume(&mut self, ticket: Ticket, _: Instant, _: Instant) -> Ticket {
        self.step(ticket, &[At::Client], At::Core)
    }

    fn on_wait(&mut self, ticket: Ticket, _: Instant) -> Ticket {
        self.step(ticket, &[At::Core], At::Else)
    }

    fn on_wake(&mut self, ticket: Ticket, _: Instant, _: Instant) -> Ticket {
        self.step(ticket, &[At::Else], At::Core)
    }

    fn room(&self) -> u32 {
        self.room.map_or(u32::MAX, |room| room.saturating_sub(self.in_flight()))
    }

    fn on_done(&mut self, ticket: Ticket, done: Done, _: Instant) -> Grant {
        let at = self.calls.remove(&ticket.arrived.as_nanos()).expect("a call ends once");
        match done {
            Done::Served => assert_eq!(at, At::Core),
            Done::Shed => assert_eq!(at, At::Line),
            Done::Cancelled => assert!(matches!(at, At::Line | At::Core)),
        }
        self.ended += 1;
        Grant { window: 7, ..Grant::default() }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    fn on_timeout(&mut self, signal: Signal, _: Instant) {
        self.signals.push(tidegate_core::time::nanos(signal.queueing_delay));
        self.timeout = None;
    }
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn request(desk: &mut Desk<Ledger, u64>, now: u64, ask: &Ask) -> Result<Waiting, Refused> {
    desk.on_request(&Arrival::new(SessionId(0), ask, at(now)), now, at(now))
}

/// Starts the next call, which is the one that has waited longest.
fn start(desk: &mut Desk<Ledger, u64>, waiting: Waiting, now: u64) -> Running {
    assert_eq!(desk.poll_call(at(now)), Some(Called::Start(waiting.arrived().as_nanos())));
    desk.start(waiting, at(now)).unwrap()
}

#[test]
fn a_call_is_told_from_its_admission_to_its_end() {
    let mut desk = Desk::new(Ledger::default(), 1);
    let waiting = request(&mut desk, 1, &Ask::default()).unwrap();
    let running = start(&mut desk, waiting, 2);
    let paused = desk.pause(running, Pause::Else, at(3));
    let woken = desk.wake(paused, 1, at(4));
    assert_eq!(desk.poll_call(at(4)), Some(Called::GoOn(1)));
    assert_eq!(desk.turn_again(&woken), Turn::Mine);
    let running = desk.go_on(woken, at(5));
    let paused = desk.pause(running, Pause::Client, at(6));
    let Ended::Told(grant) = desk.end(paused, Done::Served, at(7)) else { panic!("it was told of") };
    assert_eq!((grant.window, desk.machine().ended, desk.machine().calls.len()), (7, 1, 0));
}

#[test]
fn a_refusal_at_arrival_and_one_at_the_start_end_the_call_and_free_the_turn() {
    let mut desk = Desk::new(Ledger { shed_next: SHED, ..Ledger::default() }, 1);
    let refused = request(&mut desk, 1, &Ask::default()).unwrap_err();
    assert_eq!((refused.reason, refused.grant.window, refused.arrived), (ShedReason::Delay, 7, at(1)));
    let [first, second] = [2, 3].map(|now| request(&mut desk, now, &Ask::default()).unwrap());
    desk.machine_mut().shed_next = SHED;
    assert_eq!(desk.poll_call(at(4)), Some(Called::Start(2)));
    assert_eq!(desk.start(first, at(4)).unwrap_err().arrived, at(2));
    let running = start(&mut desk, second, 5);
    desk.end(running, Done::Served, at(6));
    assert_eq!((desk.machine().told, desk.machine().ended), (3, 3));
}

#[test]
fn the_signal_is_the_age_of_the_oldest_in_line_and_what_the_driver_has_not_looked_at() {
    let mut desk = Desk::new(Ledger { timeout: Some(at(30)), ..Ledger::default() }, 1);
    let ask = Ask::default();
    let arrival = Arrival { counted_from: at(10), ..Arrival::new(SessionId(0), &ask, at(4)) };
    let first = desk.on_request(&arrival, 0, at(10)).unwrap();
    let arrival = Arrival { unread: Duration::from_nanos(5), ..Arrival::new(SessionId(0), &ask, at(12)) };
    let second = desk.on_request(&arrival, 0, at(20)).unwrap();
    desk.on_timeout(Duration::ZERO, at(29));
    desk.on_timeout(Duration::from_nanos(2), at(31));
    assert_eq!(desk.machine().signals, [0, 15, 23], "a timer that is not due is not told");
    desk.cancel(first, at(32));
    assert_eq!(desk.signal(at(32)).queueing_delay, Duration::from_nanos(20));
    let third = request(&mut desk, 32, &ask).unwrap();
    let refused = desk.refuse(second, ShedReason::ServerFull, at(33));
    assert_eq!(refused.reason, ShedReason::ServerFull);
    let running = start(&mut desk, third, 34);
    let paused = desk.pause(running, Pause::Else, at(35));
    assert_eq!(desk.signal(at(39)).queueing_delay, Duration::ZERO, "it waits for no core");
    let woken = desk.wake(paused, 0, at(40));
    assert_eq!(desk.signal(at(42)).queueing_delay, Duration::from_nanos(2), "one that could go on does");
    desk.end(woken, Done::Cancelled, at(43));
    assert_eq!((desk.waiting(), desk.machine().calls.len()), (0, 0));
}

#[test]
fn a_call_that_waits_for_room_for_too_long_is_refused_when_the_timer_says_so() {
    let mut desk = Desk::new(Ledger { room: Some(1), ..Ledger::default() }, 4);
    let ask = Ask { budget: Some(Duration::from_nanos(10)), priority: Priority::CRITICAL, ..Ask::default() };
    let [first, second] = [1, 2].map(|now| request(&mut desk, now, &ask).unwrap());
    let running = start(&mut desk, first, 3);
    assert_eq!((desk.poll_call(at(3)), desk.next_timeout()), (None, Some(at(13))));
    assert_eq!((desk.poll_expired(at(12)), desk.poll_expired(at(13))), (None, Some(2)));
    assert_eq!(desk.turn(&second), Turn::Expired);
    assert_eq!(desk.start(second, at(13)).unwrap_err().reason, ShedReason::Deadline);
    desk.end(running, Done::Cancelled, at(14));
    assert_eq!((desk.next_timeout(), desk.machine().ended), (None, 2));
}

#[test]
fn calls_of_which_the_machine_is_not_told_are_measured() {
    let mut desk = Desk::new(Ledger { room: Some(0), ..Ledger::default() }, 1);
    desk.ignore_room(true);
    let ask = Ask { group: 3, ..Ask::default() };
    let [first, second] = [1, 2].map(|now| desk.join_untold(&ask, at(now), now));
    let running = start(&mut desk, first, 10);
    let paused = desk.pause(running, Pause::Client, at(15));
    let woken = desk.wake(paused, 0, at(20));
    assert_eq!(desk.poll_call(at(20)), Some(Called::Start(2)), "older, and nothing bounds it");
    desk.cancel(second, at(21));
    assert_eq!(desk.poll_call(at(21)), Some(Called::GoOn(0)));
    let running = desk.go_on(woken, at(22));
    let paused = desk.pause(running, Pause::Else, at(30));
    let course = Course { computed: Duration::from_nanos(13), waited: Duration::from_nanos(10) };
    assert_eq!(desk.end(paused, Done::Served, at(40)), Ended::Untold(3, course));
    assert_eq!(desk.machine().told, 0);
}

/// A driver that does what the steps of a property say, with every call that it holds.
struct Driver {
    desk: Desk<Ledger, u64>,
    waiting: BTreeMap<u64, Waiting>,
    started: BTreeMap<u64, Started>,
    now: u64,
}

impl Driver {
    fn take(&mut self, which: prop::sample::Index) -> Option<(u64, Started)> {
        let names: Vec<u64> = self.started.keys().copied().collect();
        let name = *names.get(which.index(names.len().max(1)))?;
        Some((name, self.started.remove(&name)?))
    }

    fn run(&mut self) {
        while let Some(called) = self.desk.poll_call(at(self.now)) {
            match called {
                Called::Start(name) => {
                    let waiting = self.waiting.remove(&name).expect("it waits");
                    if let Ok(running) = self.desk.start(waiting, at(self.now)) {
                        self.started.insert(name, running.into());
                    }
                }
                Called::GoOn(name) => {
                    let Some(Started::Woken(woken)) = self.started.remove(&name) else { panic!("it was woken") };
                    let running = self.desk.go_on(woken, at(self.now));
                    self.started.insert(name, running.into());
                }
            }
        }
        while let Some(name) = self.desk.poll_expired(at(self.now)) {
            let waiting = self.waiting.remove(&name).expect("it waits");
            assert!(self.desk.start(waiting, at(self.now)).is_err(), "it is too late for it");
        }
    }

    fn step(&mut self, step: u8, which: prop::sample::Index) {
        self.now += 1;
        let now = at(self.now);
        match step {
            0 | 1 => {
                let ask = Ask { budget: (step == 0).then_some(Duration::from_nanos(20)), ..Ask::default() };
                if let Ok(waiting) = request(&mut self.desk, self.now, &ask) {
                    self.waiting.insert(self.now, waiting);
                }
            }
            2 => {
                let names: Vec<u64> = self.waiting.keys().copied().collect();
                let name = names.get(which.index(names.len().max(1)));
                if let Some(waiting) = name.and_then(|name| self.waiting.remove(name)) {
                    self.desk.cancel(waiting, now);
                }
            }
            3 => self.desk.machine_mut().shed_next = SHED,
            4 => self.desk.machine_mut().room = [None, Some(0), Some(2), Some(5)][which.index(4)],
            5 => {
                if let Some((_, call)) = self.take(which) {
                    self.desk.end(call, Done::Cancelled, now);
                }
            }
            _ => match self.take(which) {
                Some((name, Started::Running(running))) if step == 6 => {
                    self.started.insert(name, self.desk.pause(running, Pause::Else, now).into());
                }
                Some((name, Started::Running(running))) if step == 7 => {
                    self.started.insert(name, self.desk.pause(running, Pause::Client, now).into());
                }
                Some((_, Started::Running(running))) => {
                    self.desk.end(running, Done::Served, now);
                }
                Some((name, Started::Paused(paused))) => {
                    self.started.insert(name, self.desk.wake(paused, name, now).into());
                }
                Some((name, woken)) => {
                    self.started.insert(name, woken);
                }
                None => {}
            },
        }
    }
}

proptest! {
    #[test]
    fn every_call_is_told_once_and_no_thread_is_idle_while_a_call_could_run(
        threads in 1_u32..4,
        steps in prop::collection::vec((0_u8..10, any::<prop::sample::Index>()), 0..300),
    ) {
        let desk = Desk::new(Ledger::default(), threads);
        let mut driver = Driver { desk, waiting: BTreeMap::new(), started: BTreeMap::new(), now: 0 };
        for (step, which) in steps {
            driver.step(step, which);
            driver.run();
            let of = |is: fn(&Started) -> bool| driver.started.values().filter(|call| is(call)).count();
            let running = of(|call| matches!(call, Started::Running(_)));
            let woken = of(|call| matches!(call, Started::Woken(_)));
            let machine = driver.desk.machine();
            prop_assert!(running <= threads as usize);
            prop_assert_eq!(machine.calls.len(), driver.waiting.len() + driver.started.len());
            prop_assert_eq!(driver.desk.waiting(), driver.waiting.len());
            let could_run = woken > 0 || (!driver.waiting.is_empty() && machine.room() > 0);
            prop_assert!(running == threads as usize || !could_run);
        }
        let (mut desk, now) = (driver.desk, at(driver.now + 1));
        for waiting in driver.waiting.into_values() {
            desk.cancel(waiting, now);
        }
        for call in driver.started.into_values() {
            desk.end(call, Done::Cancelled, now);
        }
        prop_assert!(desk.machine().calls.is_empty() && desk.machine().told == desk.machine().ended);
    }
}
