//! Credits in a world where messages are late or lost, callers cancel, connections end and clients die.
//!
//! In a half of the worlds a session may have but twice its fair share, in a half some callers know nothing of the scheme,
//! and in a half handlers wait for something before they compute.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::credits::{Config, CreditClient, CreditServer};
use tidegate_rpc::machine::desk::{Arrival, Called, Desk, Ended, Pause, Paused, Running, Started, Waiting, Woken};
use tidegate_rpc::machine::{
    Ask, CallId, Client, Done, Grant, Outcome, Priority, Reply, Request, Server, SessionId, Step, Tenant,
};

/// Fewer where each costs ten times as much.
const SEEDS: u64 = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
/// For this long there are faults and too much load, and then neither. The server hears
/// of the latter by 64 calls or the end of leases.
const BAD: Duration = Duration::from_millis(2);
const RECOVERY: Duration = Duration::from_millis(16);
const GOOD: Duration = Duration::from_millis(2);
const SERVICE: Duration = Duration::from_micros(20);
/// After this long a caller gives up.
const PATIENCE: Duration = Duration::from_millis(1);
const POOL: u32 = 6;

#[derive(Clone, Copy)]
enum Event {
    Call(usize),
    /// Its name, and the number of the connection.
    Request(u64, u64, Ask),
    Answer(u64, Outcome, Grant),
    GiveUp(u64),
    /// The handler of the call has what it waited for.
    Wake(u64),
    Finish,
    Reset(usize),
    Close(SessionId),
}

struct Caller {
    /// `None` if it knows nothing of the scheme.
    machine: Option<CreditClient>,
    session: SessionId,
    /// Sessions are numbered anew when they end, connections are not.
    connection: u64,
    /// The server's end of it is open.
    connected: bool,
    lease_until: Instant,
    dead: bool,
}

/// A call under way: whose, since when, and under which lease if it has a credit.
struct Call {
    who: usize,
    sent: Instant,
    lease_until: Option<Instant>,
}

/// A call at the server that no core has.
enum AtServer {
    Waiting(Waiting),
    Paused(Paused),
    Woken(Woken),
}

#[derive(Default, Debug)]
struct Ends {
    made: u64,
    served: u64,
    refused: u64,
    given_up: u64,
    lost: u64,
}

struct World {
    now: Instant,
    rng: Rng,
    desk: Desk<CreditServer, u64>,
    /// How long handlers wait on average, if they do.
    behind: Option<Duration>,
    callers: Vec<Caller>,
    events: BTreeMap<(Instant, u64), Event>,
    number: u64,
    calls: BTreeMap<u64, Call>,
    /// By name, with the number of the connection.
    inside: BTreeMap<u64, (u64, AtServer)>,
    running: Option<(u64, u64, Running)>,
    bad_until: Instant,
    gap: Duration,
    ends: Ends,
    most_credits: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let now = Instant::from_nanos(1);
        let session_shares = if rng.chance(0.5) { Config::default().session_shares } else { 1e6 };
        let config = Config { pool: Some(POOL), session_shares, ..Config::default() };
        let unaware = if rng.chance(0.5) { 0.2 } else { 0.0 };
        let behind = rng.chance(0.5).then_some(2 * SERVICE);
        let mut server = CreditServer::new(config, 1, now);
        let clients = 2 + usize::try_from(rng.below(19)).unwrap();
        let mut caller = || Caller {
            session: server.open(Tenant(0), now).unwrap(),
            connection: 0,
            machine: (!rng.chance(unaware)).then(|| CreditClient::new(Tenant(0), &mut rng)),
            connected: true,
            lease_until: Instant::ZERO,
            dead: false,
        };
        let callers: Vec<_> = (0..clients).map(|_| caller()).collect();
        let gap = SERVICE.mul_f64(f64::from(u32::try_from(clients).unwrap()) / (2.0 + 2.0 * rng.f64()));
        let mut world = Self {
            now,
            rng,
            desk: Desk::new(server, 1),
            behind,
            callers,
            events: BTreeMap::new(),
            number: 0,
            calls: BTreeMap::new(),
            inside: BTreeMap::new(),
            running: None,
            bad_until: now + BAD,
            gap,
            ends: Ends::default(),
            most_credits: 0,
        };
        for who in 0..clients {
            world.callers[who].connection = u64::MAX - u64::try_from(who).unwrap();
            world.call_later(who);
        }
        world
    }

    fn bad(&self) -> bool {
        self.now < self.bad_until
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + span, self.number), event);
    }

    fn call_later(&mut self, who: usize) {
        // Half of the capacity once all is well again.
        let clients = f64::from(u32::try_from(self.callers.len()).unwrap());
        let mean = if self.bad() { self.gap } else { SERVICE.mul_f64(2.0 * clients) };
        let gap = mean.mul_f64(self.rng.exponential());
        self.after(gap, Event::Call(who));
    }

    /// Half a trip: mostly short, at bad times sometimes long; `None` if the message is lost.
    fn trip(&mut self) -> Option<Duration> {
        let short = Duration::from_nanos(2_000 + self.rng.below(6_000));
        if self.bad() && self.rng.chance(0.02) {
            return None;
        }
        Some(if self.bad() && self.rng.chance(0.05) { short * 100 } else { short })
    }

    fn run(&mut self, end: Instant) {
        while let Some((&(at, _), _)) = self.events.first_key_value() {
            let due = self.desk.next_timeout().unwrap_or(Instant::MAX);
            if at.min(due) > end {
                break;
            }
            if due < at {
                self.now = self.now.max(due);
                self.timeout();
            } else {
                let (_, event) = self.events.pop_first().unwrap();
                self.now = at;
                self.handle(event);
            }
            self.check();
        }
        self.now = self.now.max(end);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call(who) => self.call(who),
            Event::Request(name, connection, ask) => self.request(name, connection, &ask),
            Event::Answer(name, outcome, grant) => self.answered(name, outcome, grant),
            Event::GiveUp(name) => self.give_up(name),
            Event::Wake(name) => self.wake(name),
            Event::Finish => {
                let (name, connection, running) = self.running.take().expect("one runs");
                let Ended::Told(grant) = self.desk.end(running, Done::Served, self.now) else {
                    unreachable!("the machine is told of every call")
                };
                self.answer(name, connection, Outcome::Served, grant);
                self.employ();
            }
            Event::Reset(who) => self.reset(who),
            Event::Close(session) => self.desk.machine_mut().close(session, self.now),
        }
    }

    fn call(&mut self, who: usize) {
        if self.callers[who].dead {
            return;
        }
        self.misfortune(who);
        if self.callers[who].dead {
            return;
        }
        self.number += 1;
        self.ends.made += 1;
        let name = self.number;
        let priority = if self.rng.chance(0.3) { Priority::CRITICAL } else { Priority::DEFAULT };
        let deadline = self.rng.chance(0.5).then(|| self.now + PATIENCE);
        let caller = &mut self.callers[who];
        let request = Request { id: CallId(name), priority, deadline };
        let step = match &mut caller.machine {
            Some(machine) => machine.on_call(&request, self.now, &mut self.rng),
            None => Step::Send(Ask { priority, budget: deadline.map(|at| at.since(self.now)), ..Ask::default() }),
        };
        match step {
            Step::Send(ask) => {
                let lease_until = ask.credited.then_some(caller.lease_until);
                self.calls.insert(name, Call { who, sent: self.now, lease_until });
                let (connection, connected) = (caller.connection, caller.connected);
                if let Some(trip) = self.trip().filter(|_| connected) {
                    self.after(trip, Event::Request(name, connection, ask));
                }
                let hasty = self.bad() && self.rng.chance(0.03);
                let patience = if hasty { PATIENCE.mul_f64(0.1 * self.rng.f64()) } else { PATIENCE };
                self.after(patience, Event::GiveUp(name));
            }
            Step::Fail(_) => self.ends.refused += 1,
            Step::Wait => panic!("nothing waits at a client"),
        }
        self.call_later(who);
    }

    /// At bad times, connections end from either side, and clients die.
    fn misfortune(&mut self, who: usize) {
        if !self.bad() {
            return;
        }
        if self.rng.chance(0.005) {
            let known = self.rng.chance(0.5);
            self.lose(who, known);
        } else if self.rng.chance(0.005) && self.callers[who].connected {
            // The server closes first; the client hears of it later.
            self.callers[who].connected = false;
            self.desk.machine_mut().close(self.callers[who].session, self.now);
            let notice = Duration::from_nanos(self.rng.below(200_000));
            self.after(notice, Event::Reset(who));
        } else if self.rng.chance(0.002) && who > 0 {
            self.lose(who, false);
            self.callers[who].dead = true;
        }
    }

    fn reset(&mut self, who: usize) {
        if !self.callers[who].dead {
            self.lose(who, true);
        }
    }

    /// A client's connection ends, and it opens another one; `known` if the server notices before long.
    fn lose(&mut self, who: usize, known: bool) {
        let before = self.calls.len();
        self.calls.retain(|_, call| call.who != who);
        self.ends.lost += u64::try_from(before - self.calls.len()).unwrap();
        let caller = &mut self.callers[who];
        if let Some(machine) = &mut caller.machine {
            machine.on_lost(self.now);
        }
        let (old, connected) = (caller.session, caller.connected);
        caller.session = self.desk.machine_mut().open(Tenant(0), self.now).unwrap();
        self.number += 1;
        caller.connection = self.number;
        caller.connected = true;
        if connected {
            let latest = if known { 100_000 } else { 3_000_000 };
            let notice = Duration::from_nanos(self.rng.below(latest));
            self.after(notice, Event::Close(old));
        }
    }

    /// Of an open connection.
    fn session(&self, connection: u64) -> Option<SessionId> {
        let mut open = self.callers.iter().filter(|caller| caller.connected);
        open.find(|caller| caller.connection == connection).map(|caller| caller.session)
    }

    fn request(&mut self, name: u64, connection: u64, ask: &Ask) {
        let Some(session) = self.session(connection) else { return };
        match self.desk.on_request(&Arrival::new(session, ask, self.now), name, self.now) {
            Ok(waiting) => drop(self.inside.insert(name, (connection, AtServer::Waiting(waiting)))),
            Err(refused) => self.answer(name, connection, Outcome::Shed, refused.grant),
        }
        self.employ();
    }

    fn employ(&mut self) {
        while let Some(Called::Start(name) | Called::GoOn(name)) = self.desk.poll_call(self.now) {
            let (connection, call) = self.inside.remove(&name).expect("it waits for its turn");
            let running = match call {
                AtServer::Waiting(waiting) => {
                    let Some(running) = self.start(name, connection, waiting) else { continue };
                    if let Some(behind) = self.behind {
                        let paused = self.desk.pause(running, Pause::Else, self.now);
                        self.inside.insert(name, (connection, AtServer::Paused(paused)));
                        let span = behind.mul_f64(self.rng.exponential());
                        self.after(span, Event::Wake(name));
                        continue;
                    }
                    running
                }
                AtServer::Woken(woken) => self.desk.go_on(woken, self.now),
                AtServer::Paused(_) => unreachable!("it waits for something else"),
            };
            assert!(self.running.is_none(), "there is one core");
            self.running = Some((name, connection, running));
            let service = SERVICE.mul_f64(self.rng.exponential());
            self.after(service, Event::Finish);
        }
    }

    fn start(&mut self, name: u64, connection: u64, waiting: Waiting) -> Option<Running> {
        match self.desk.start(waiting, self.now) {
            Ok(running) => Some(running),
            Err(refused) => {
                self.answer(name, connection, Outcome::Shed, refused.grant);
                None
            }
        }
    }

    fn timeout(&mut self) {
        self.desk.on_timeout(Duration::ZERO, self.now);
        while let Some(name) = self.desk.poll_expired(self.now) {
            let Some((connection, AtServer::Waiting(waiting))) = self.inside.remove(&name) else {
                unreachable!("it waits for room")
            };
            assert!(self.start(name, connection, waiting).is_none(), "what is too late is refused");
        }
        self.employ();
    }

    fn wake(&mut self, name: u64) {
        let Some((connection, call)) = self.inside.remove(&name) else { return };
        let AtServer::Paused(paused) = call else { unreachable!("a handler is woken once") };
        let woken = self.desk.wake(paused, name, self.now);
        self.inside.insert(name, (connection, AtServer::Woken(woken)));
        self.employ();
    }

    fn answer(&mut self, name: u64, connection: u64, outcome: Outcome, grant: Grant) {
        let alive = self.session(connection).is_some();
        if let Some(trip) = self.trip().filter(|_| alive) {
            self.after(trip, Event::Answer(name, outcome, grant));
        }
    }

    fn answered(&mut self, name: u64, outcome: Outcome, grant: Grant) {
        let Some(call) = self.calls.remove(&name) else { return };
        let response_time = self.now.since(call.sent);
        let reply = Reply { id: CallId(name), outcome, grant: Some(grant), response_time, server_time: Duration::ZERO };
        let caller = &mut self.callers[call.who];
        if let Some(machine) = &mut caller.machine {
            machine.on_reply(&reply, self.now);
        }
        caller.lease_until = call.sent + grant.lease;
        match outcome {
            Outcome::Served => self.ends.served += 1,
            Outcome::Shed => self.ends.refused += 1,
        }
    }

    fn give_up(&mut self, name: u64) {
        let Some(call) = self.calls.remove(&name) else { return };
        self.ends.given_up += 1;
        if let Some(machine) = &mut self.callers[call.who].machine {
            machine.on_cancel(CallId(name), self.now);
        }
        // The server hears of it at once or, if a core has the call, never.
        let Some((_, call)) = self.inside.remove(&name) else { return };
        match call {
            AtServer::Waiting(waiting) => drop(self.desk.cancel(waiting, self.now)),
            AtServer::Paused(paused) => self.drop_started(paused.into()),
            AtServer::Woken(woken) => self.drop_started(woken.into()),
        }
        self.employ();
    }

    fn drop_started(&mut self, started: Started) {
        self.desk.end(started, Done::Cancelled, self.now);
    }

    fn check(&mut self) {
        let gauges = self.desk.machine().gauges();
        assert!(gauges.credits <= POOL, "{gauges:?}");
        self.most_credits = self.most_credits.max(gauges.credits);
        let waiting = self.inside.values().filter(|(_, call)| matches!(call, AtServer::Waiting(_))).count();
        let running = u32::from(self.running.is_some());
        assert_eq!((gauges.waiting as usize, self.desk.waiting()), (waiting, waiting));
        assert_eq!(gauges.in_service, running);
        assert_eq!(gauges.in_flight as usize, self.inside.len() - waiting + running as usize);
        let connected = self.callers.iter().filter(|caller| caller.connected);
        let aware = connected.filter_map(|caller| caller.machine.as_ref());
        let free: u32 = aware.map(|machine| machine.credits(self.now)).sum();
        let credited =
            |call: &&Call| self.callers[call.who].connected && call.lease_until.is_some_and(|until| self.now < until);
        let used = free + u32::try_from(self.calls.values().filter(credited).count()).unwrap();
        assert!(used <= gauges.credits, "{used} credits in use, {} in the ledger", gauges.credits);
    }

    fn finish(&mut self) {
        let calm = self.now + PATIENCE;
        self.run(calm);
        let before = self.ends.served + self.ends.refused + self.ends.given_up + self.ends.lost;
        assert_eq!(before + u64::try_from(self.calls.len()).unwrap(), self.ends.made, "every call ends once");
    }
}

#[test]
fn no_bad_world_breaks_the_ledger_or_leaves_a_call_hanging() {
    let (mut with_credits, mut all_served) = (0, 0);
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            let end = world.bad_until + RECOVERY;
            world.run(end);
            world.ends = Ends::default();
            world.ends.made = u64::try_from(world.calls.len()).unwrap();
            world.run(end + GOOD);
            world.finish();
            // All is well: nobody gives up. A server that has heard little may still hold some back.
            let Ends { made, served, given_up, lost, .. } = world.ends;
            assert_eq!((given_up, lost), (0, 0), "{:?}", world.ends);
            let recovered = made < 8 || served * 10 >= made * 9;
            for call in world.calls.values() {
                assert!(world.now.since(call.sent) <= PATIENCE, "no call hangs");
            }
            // All leave: nothing remains.
            world.callers.iter_mut().for_each(|caller| caller.dead = true);
            world.run(world.now + Duration::from_mins(1));
            while let Some(due) = world.desk.next_timeout() {
                world.now = due;
                world.timeout();
            }
            let gauges = world.desk.machine().gauges();
            assert_eq!((gauges.credits, gauges.waiting, gauges.in_service, world.calls.len()), (0, 0, 0, 0));
            (world.most_credits, recovered)
        });
        let (most, recovered) = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
        with_credits += u64::from(most > 0);
        all_served += u64::from(recovered);
    }
    println!("{with_credits} had credits, {all_served} served all in the end");
    assert!(all_served * 100 > SEEDS * 95, "{all_served} worlds of {SEEDS} served all in the end");
    assert!(with_credits * 10 > SEEDS * 9, "{with_credits} worlds of {SEEDS} had credits");
}
