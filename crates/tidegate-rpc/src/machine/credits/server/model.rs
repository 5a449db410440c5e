//! Every interleaving, up to a bound, of two clients that share three credits: the machines themselves, cloned in each
//! state, between a network that loses, delays and reorders, callers that cancel, handlers that wait, and connections that
//! end. Beside them calls come from two strangers: one without the layer, and one who heeds no level and has used up what a
//! session may have in a stretch of calls.
//!
//! The server begins held back by a crowd that has left, so that it grants credits, so many calls before its next tick. Time
//! moves by half leases. A call that is started is done at once, or when it has waited. Two states are one if they agree in
//! all that credits and calls depend on; what the server averages of its own times is left out, since its limits are far from
//! every wait that can come up here.

use core::fmt::{self, Write};
use core::hash::{Hash, Hasher};
use std::collections::{BTreeSet, VecDeque};
use std::hash::DefaultHasher;

use tidegate_core::Rng;

use super::*;
use crate::machine::credits::demand::TICK;
use crate::machine::credits::{CreditClient, Objective};
use crate::machine::{CallId, Client, Outcome, Reply, Request, Step};

const POOL: u32 = 3;
const SERVICE: Duration = Duration::from_micros(10);
const OBJECTIVE: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(8);
/// So many shares of its own leave the first client its calls.
const SHARES: f64 = 6.0;
/// The strangers.
const UNAWARE: usize = 0;
const HEEDLESS: usize = 1;
/// As the server begins: stretches of calls that it has counted sessions in, and calls of the present one.
const STRETCHES: u16 = 5;
const STRETCH_CALLS: u32 = 900;

/// What may happen in one history.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Calls of each client.
    calls: [usize; 2],
    /// Messages lost, calls cancelled and connections ended.
    faults: u8,
    /// Steps of half a lease.
    half_leases: u8,
    /// Calls of strangers.
    strangers: u8,
    /// Handlers that wait.
    waits: u8,
    /// Calls until the next tick, as it begins.
    until_tick: u32,
}

/// None of what only some histories have.
const PLAIN: Bounds = Bounds { calls: [0; 2], faults: 0, half_leases: 2, strangers: 0, waits: 0, until_tick: TICK };

/// A call: whose, and the number.
type Name = (usize, u8);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum End {
    Served,
    Shed,
    Lost,
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum State {
    /// Under way since then; if under a credit, until when the lease of that was to hold.
    Sent(Instant, Option<Instant>),
    Ended(End),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Request(Name, Ask),
    Answer(Name, Outcome, Grant),
}

#[derive(Clone)]
struct Caller {
    machine: CreditClient,
    priority: Priority,
    session: SessionId,
    /// The server's end of its connection is open.
    connected: bool,
    /// Until when its present grant holds.
    lease_until: Instant,
    calls: Vec<State>,
}

/// Everything at one moment of a history.
#[derive(Clone)]
struct World {
    now: Instant,
    server: CreditServer,
    callers: Vec<Caller>,
    wire: Vec<Message>,
    /// Calls in the server, whose answers still have a way back unless the name is gone.
    waiting: VecDeque<(Option<Name>, Ticket)>,
    /// Calls whose handlers wait, and since when.
    paused: Vec<(Option<Name>, Ticket, Instant)>,
    /// Sessions whose clients have left without the server's knowledge.
    orphans: Vec<SessionId>,
    strangers: [SessionId; 2],
    bounds: Bounds,
    seen: Seen,
}

/// What came up in a history.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Seen {
    /// A call of either stranger was held back for its session's sake.
    held: [bool; 2],
    ticked: bool,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Call(usize),
    Deliver(usize),
    Lose(usize),
    /// The next call that waits is started and, as far as anybody can tell, done at once.
    Serve,
    /// The next call that waits is started, and its handler waits.
    ServeLater,
    /// The handler in this place has waited, and its call is done.
    Wake(usize),
    /// A stranger calls.
    Stranger(usize),
    Cancel(Name),
    /// The server hears that the call that waits in this place is cancelled, or the one whose handler waits.
    HearCancelled(usize),
    HearPausedCancelled(usize),
    /// A caller's connection ends, and it opens another; the server may not know yet.
    Reset(usize),
    /// The server closes a connection of which the caller does not know yet.
    CloseFirst(usize),
    /// The server notices that an old connection is gone.
    CloseOrphan(usize),
    HalfLease,
}

struct Digest(DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl World {
    /// A server that is held back, with two clients that call often and hold no credits.
    fn new(bounds: Bounds) -> Self {
        let mut rng = Rng::new(1);
        let mut now = Instant::from_nanos(1);
        // Where there are none, nobody is held to a share: that has fewer states.
        let has_strangers = bounds.strangers > 0;
        let config = Config {
            objective: Objective::Fixed(OBJECTIVE),
            pool: Some(POOL),
            session_shares: if has_strangers { SHARES } else { f64::MAX },
            ..Config::default()
        };
        let mut server = CreditServer::new(config, 1, now);
        let mut clients = Vec::new();
        for priority in [Priority::CRITICAL, Priority::DEFAULT, Priority::DEFAULT] {
            let session = server.open(Tenant(0), now).unwrap();
            clients.push((priority, session, CreditClient::new(Tenant(0), &mut rng)));
        }
        let strangers = [server.open(Tenant(0), now).unwrap(), server.open(Tenant(0), now).unwrap()];
        let mut leases = [Instant::ZERO; 3];
        let mut queue: VecDeque<(usize, Ticket, Instant)> = VecDeque::new();
        let mut running: Option<(usize, Ticket, Instant)> = None;
        let (mut step, mut done) = (0_u32, false);
        while !(done && queue.is_empty() && running.is_none()) {
            now += Duration::from_micros(2);
            step += 1;
            if let Some((client, ticket, sent)) = running.filter(|(_, ticket, _)| now >= ticket.started + SERVICE) {
                let grant = server.on_done(ticket, Done::Served, now);
                if let Some((.., machine)) = clients.get_mut(client) {
                    leases[client] = sent + grant.lease;
                    reply(machine, (client, 0), Outcome::Served, grant, sent, now);
                }
                running = None;
            }
            if running.is_none()
                && let Some((client, ticket, sent)) = queue.pop_front()
            {
                let Verdict::Admit(ticket) = server.on_start(ticket, now) else { panic!("nothing waits that long") };
                running = Some((client, ticket, sent));
            }
            let who = match step % 20 {
                // The first client has so much in the server that it gets all credits.
                1..=3 => 0,
                11 => 1,
                part if part % 4 == 0 => 2,
                15 => 3 + UNAWARE,
                13 | 14 | 17..=19 => 3 + HEEDLESS,
                _ => continue,
            };
            if done || (who >= 3 && !has_strangers) {
                continue;
            }
            if let Some(stranger) = who.checked_sub(3) {
                match server.on_request(strangers[stranger], &strange(stranger), Signal::default(), now, now) {
                    Verdict::Admit(ticket) => queue.push_back((who, ticket, now)),
                    Verdict::Shed(ticket, _) => _ = server.on_done(ticket, Done::Shed, now),
                }
                continue;
            }
            let (priority, session, client) = &mut clients[who];
            let request = Request { id: CallId(0), priority: *priority, deadline: None };
            let Step::Send(ask) = client.on_call(&request, now, &mut rng) else { continue };
            match server.on_request(*session, &ask, Signal::default(), now, now) {
                Verdict::Admit(ticket) => queue.push_back((who, ticket, now)),
                Verdict::Shed(ticket, _) => {
                    let grant = server.on_done(ticket, Done::Shed, now);
                    leases[who] = now + grant.lease;
                    reply(client, (who, 0), Outcome::Shed, grant, now, now);
                }
            }
            let is_counted = server.stretch > STRETCHES && server.stretch_calls >= STRETCH_CALLS;
            let is_ready = server.demand.throttled() && (is_counted || !has_strangers);
            done = is_ready && server.demand.calls_left() == bounds.until_tick;
            if done {
                server.close(clients[2].1, now);
            }
        }
        assert!(server.demand.throttled(), "{:?}", server.gauges());
        clients.truncate(2);
        let caller = |(priority, session, machine)| Caller {
            machine,
            priority,
            session,
            connected: true,
            lease_until: leases[usize::from(priority != Priority::CRITICAL)],
            calls: Vec::new(),
        };
        Self {
            now,
            server,
            callers: clients.into_iter().map(caller).collect(),
            wire: Vec::new(),
            waiting: VecDeque::new(),
            paused: Vec::new(),
            orphans: Vec::new(),
            strangers,
            bounds,
            seen: Seen::default(),
        }
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (who, caller) in self.callers.iter().enumerate() {
            if caller.calls.len() < self.bounds.calls[who] {
                actions.push(Action::Call(who));
            }
            if !caller.connected {
                actions.push(Action::Reset(who));
            } else if self.bounds.faults > 0 {
                actions.extend([Action::Reset(who), Action::CloseFirst(who)]);
            }
            for (number, state) in (0_u8..).zip(&caller.calls) {
                if self.bounds.faults > 0 && matches!(state, State::Sent(..)) {
                    actions.push(Action::Cancel((who, number)));
                }
            }
        }
        actions.extend((0..self.wire.len()).map(Action::Deliver));
        if self.bounds.faults > 0 {
            actions.extend((0..self.wire.len()).map(Action::Lose));
        }
        if !self.waiting.is_empty() {
            actions.push(Action::Serve);
            actions.extend((self.bounds.waits > 0).then_some(Action::ServeLater));
        }
        actions.extend((0..self.paused.len()).map(Action::Wake));
        if self.bounds.strangers > 0 {
            actions.extend([UNAWARE, HEEDLESS].map(Action::Stranger));
        }
        let cancelled = |name: Option<Name>| name.is_some_and(|name| self.state(name) == State::Ended(End::Cancelled));
        actions.extend((0..self.waiting.len()).filter(|&at| cancelled(self.waiting[at].0)).map(Action::HearCancelled));
        actions
            .extend((0..self.paused.len()).filter(|&at| cancelled(self.paused[at].0)).map(Action::HearPausedCancelled));
        actions.extend((0..self.orphans.len()).map(Action::CloseOrphan));
        if self.bounds.half_leases > 0 {
            actions.push(Action::HalfLease);
        }
        actions
    }

    fn state(&self, (who, number): Name) -> State {
        self.callers[who].calls[usize::from(number)]
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Call(who) => self.call(who),
            Action::Deliver(at) => self.deliver(at),
            Action::Lose(at) => {
                self.bounds.faults -= 1;
                self.wire.remove(at);
            }
            Action::Serve => self.serve(),
            Action::ServeLater => {
                self.bounds.waits -= 1;
                self.serve_later();
            }
            Action::Wake(at) => self.wake(at),
            Action::Stranger(which) => {
                self.bounds.strangers -= 1;
                self.stranger(which);
            }
            Action::Cancel(name) => {
                self.bounds.faults -= 1;
                self.cancel(name);
            }
            Action::HearCancelled(at) => {
                let (_, ticket) = self.waiting.remove(at).expect("it waits");
                self.server.on_done(ticket, Done::Cancelled, self.now);
            }
            Action::HearPausedCancelled(at) => {
                let (_, ticket, _) = self.paused.remove(at);
                self.server.on_done(ticket, Done::Cancelled, self.now);
            }
            Action::Reset(who) => self.reset(who),
            Action::CloseFirst(who) => {
                self.bounds.faults -= 1;
                self.callers[who].connected = false;
                self.server.close(self.callers[who].session, self.now);
                // What it sends to the server from now on, and what the server would answer, goes nowhere.
                self.wire.retain(|message| !matches!(message, Message::Request((of, _), _) if *of == who));
                self.forget_answers(who);
            }
            Action::CloseOrphan(at) => {
                let session = self.orphans.remove(at);
                self.server.close(session, self.now);
            }
            Action::HalfLease => {
                self.bounds.half_leases -= 1;
                self.now += LEASE / 2;
                self.server.on_timeout(Signal::default(), self.now);
            }
        }
    }

    fn call(&mut self, who: usize) {
        let most = self.bounds.calls[who];
        let caller = &mut self.callers[who];
        let number = u8::try_from(caller.calls.len()).unwrap();
        // The last one has no time left when it arrives.
        let deadline = (usize::from(number) + 1 == most).then_some(self.now + SERVICE / 2);
        let request = Request { id: CallId(number.into()), priority: caller.priority, deadline };
        match caller.machine.on_call(&request, self.now, &mut Rng::new(1)) {
            Step::Send(ask) => {
                caller.calls.push(State::Sent(self.now, ask.credited.then_some(caller.lease_until)));
                if caller.connected {
                    self.wire.push(Message::Request((who, number), ask));
                }
            }
            Step::Fail(_) => caller.calls.push(State::Ended(End::Shed)),
            Step::Wait => panic!("nothing waits at a client"),
        }
    }

    fn end(&mut self, (who, number): Name, end: End) {
        let state = &mut self.callers[who].calls[usize::from(number)];
        assert!(matches!(state, State::Sent(..)), "a call ends once");
        *state = State::Ended(end);
    }

    fn deliver(&mut self, at: usize) {
        match self.wire.remove(at) {
            Message::Request(name, ask) => {
                let session = self.callers[name.0].session;
                match self.ask(session, &ask) {
                    Verdict::Admit(ticket) => self.waiting.push_back((Some(name), ticket)),
                    Verdict::Shed(ticket, _) => self.answer(Some(name), ticket, Done::Shed),
                }
            }
            Message::Answer(name, outcome, grant) => {
                let State::Sent(sent, _) = self.state(name) else { return };
                self.end(name, if outcome == Outcome::Served { End::Served } else { End::Shed });
                self.callers[name.0].lease_until = sent + grant.lease;
                reply(&mut self.callers[name.0].machine, name, outcome, grant, sent, self.now);
            }
        }
    }

    fn ask(&mut self, session: SessionId, ask: &Ask) -> Verdict {
        let left = self.server.demand.calls_left();
        let verdict = self.server.on_request(session, ask, Signal::default(), self.now, self.now);
        self.seen.ticked |= self.server.demand.calls_left() > left;
        verdict
    }

    fn stranger(&mut self, which: usize) {
        match self.ask(self.strangers[which], &strange(which)) {
            Verdict::Admit(ticket) => self.waiting.push_back((None, ticket)),
            Verdict::Shed(ticket, reason) => {
                self.seen.held[which] |= reason == ShedReason::Share;
                self.answer(None, ticket, Done::Shed);
            }
        }
    }

    fn answer(&mut self, name: Option<Name>, ticket: Ticket, done: Done) {
        let grant = self.server.on_done(ticket, done, self.now);
        let outcome = if done == Done::Served { Outcome::Served } else { Outcome::Shed };
        if let Some(name) = name.filter(|name| matches!(self.state(*name), State::Sent(..))) {
            self.wire.push(Message::Answer(name, outcome, grant));
        }
    }

    fn serve(&mut self) {
        let (name, ticket) = self.waiting.pop_front().expect("one waits");
        match self.server.on_start(ticket, self.now) {
            Verdict::Admit(ticket) => self.answer(name, ticket, Done::Served),
            Verdict::Shed(ticket, _) => self.answer(name, ticket, Done::Shed),
        }
    }

    fn serve_later(&mut self) {
        let (name, ticket) = self.waiting.pop_front().expect("one waits");
        match self.server.on_start(ticket, self.now) {
            Verdict::Admit(ticket) => self.paused.push((name, self.server.on_wait(ticket, self.now), self.now)),
            Verdict::Shed(ticket, _) => self.answer(name, ticket, Done::Shed),
        }
    }

    fn wake(&mut self, at: usize) {
        let (name, ticket, since) = self.paused.remove(at);
        let ticket = self.server.on_wake(ticket, since, self.now);
        self.answer(name, ticket, Done::Served);
    }

    fn cancel(&mut self, name: Name) {
        self.end(name, End::Cancelled);
        self.callers[name.0].machine.on_cancel(CallId(name.1.into()), self.now);
    }

    fn reset(&mut self, who: usize) {
        self.wire.retain(|message| {
            let (Message::Request((of, _), _) | Message::Answer((of, _), ..)) = message;
            *of != who
        });
        self.forget_answers(who);
        let caller = &mut self.callers[who];
        for state in &mut caller.calls {
            if matches!(state, State::Sent(..)) {
                *state = State::Ended(End::Lost);
            }
        }
        caller.machine.on_lost(self.now);
        if caller.connected {
            self.bounds.faults -= 1;
            self.orphans.push(caller.session);
        }
        caller.session = self.server.open(Tenant(0), self.now).unwrap();
        caller.connected = true;
    }

    /// Calls of a connection that is gone run on, for nobody.
    fn forget_answers(&mut self, who: usize) {
        let inside = self.waiting.iter_mut().map(|(name, _)| name).chain(self.paused.iter_mut().map(|(name, ..)| name));
        for name in inside {
            *name = name.filter(|(of, _)| *of != who);
        }
    }

    fn check(&mut self) {
        let gauges = self.server.gauges();
        assert!(gauges.credits <= POOL, "{gauges:?}");
        assert_eq!(*self.server.demand.credits(0), gauges.credits);
        assert_eq!(gauges.waiting as usize, self.waiting.len());
        assert_eq!((gauges.in_service, gauges.in_flight as usize), (0, self.paused.len()));
        let mut used = 0;
        for caller in &self.callers {
            let under_way = caller.calls.iter().filter(|state| matches!(state, State::Sent(..))).count();
            assert_eq!(caller.machine.in_flight() as usize, under_way);
            if !caller.connected {
                continue;
            }
            let credited = |state: &&State| matches!(state, State::Sent(_, Some(until)) if self.now < *until);
            let believed =
                caller.machine.credits(self.now) + u32::try_from(caller.calls.iter().filter(credited).count()).unwrap();
            let charged = u32::from(self.server.sessions.credits(caller.session, self.now));
            assert!(believed <= charged, "a client believes in {believed} credits, the ledger in {charged}");
            used += believed;
        }
        assert!(used <= POOL);
    }

    /// Nothing more happens but what must: everything ends, and all credits come back within a lease.
    fn wind_down(mut self) {
        while let Some(last) = self.wire.len().checked_sub(1) {
            self.deliver(last);
        }
        while !self.waiting.is_empty() {
            self.serve();
        }
        while let Some(last) = self.paused.len().checked_sub(1) {
            self.wake(last);
        }
        while let Some(last) = self.wire.len().checked_sub(1) {
            self.deliver(last);
        }
        for who in 0..self.callers.len() {
            for number in 0..u8::try_from(self.callers[who].calls.len()).unwrap() {
                // What was lost on the way, its caller gives up at its own time.
                if matches!(self.state((who, number)), State::Sent(..)) {
                    self.cancel((who, number));
                }
            }
        }
        self.check();
        // A lease, and as much more as the ledger rounds it up.
        let last = self.now + LEASE + Duration::from_nanos(1024);
        while let Some(due) = self.server.next_timeout() {
            assert!(due <= last, "a dead client's credits come back within one lease");
            self.now = due;
            self.server.on_timeout(Signal::default(), due);
            self.check();
        }
        let gauges = self.server.gauges();
        assert_eq!((gauges.credits, gauges.waiting, gauges.in_service), (0, 0, 0));
    }

    /// Names a state. Calls of one client are alike but for what is kept here of each.
    fn key(&self) -> u64 {
        let mut digest = Digest(DefaultHasher::new());
        write!(digest, "{:?}", self.server.sessions).expect("a hasher takes everything");
        let alike = |name: Name| (name.0, self.state(name));
        for caller in &self.callers {
            write!(digest, "{:?}", caller.machine).expect("a hasher takes everything");
            let mut under_way: Vec<_> = caller.calls.iter().filter(|call| matches!(call, State::Sent(..))).collect();
            under_way.sort_unstable();
            (caller.session, caller.connected, caller.lease_until, caller.calls.len(), under_way).hash(&mut digest.0);
        }
        let message = |message: &Message| match message {
            Message::Request(name, ask) => {
                (alike(*name), ask.credited, u32::from(ask.budget.is_some()), Duration::ZERO)
            }
            Message::Answer(name, _, grant) => (alike(*name), true, grant.window + 2, grant.lease),
        };
        let mut wire: Vec<_> = self.wire.iter().map(message).collect();
        wire.sort_unstable();
        let inside = |(name, ticket): &(Option<Name>, Ticket)| {
            (
                name.map(alike),
                ticket.session,
                ticket.arrived,
                ticket.start_by,
                (Mark::of(ticket).generation(), Mark::of(ticket).stage()),
            )
        };
        let waiting: Vec<_> = self.waiting.iter().map(inside).collect();
        let paused = self.paused.iter().map(|(name, ticket, since)| (inside(&(*name, *ticket)), *since));
        let mut paused: Vec<_> = paused.collect();
        paused.sort_unstable();
        (self.now, wire, waiting, paused, &self.orphans).hash(&mut digest.0);
        let Bounds { calls: _, faults, half_leases, strangers, waits, until_tick: _ } = self.bounds;
        (faults, half_leases, strangers, waits).hash(&mut digest.0);
        // Far from a tick, how many calls are left until then makes no difference within these bounds.
        let calls_left = self.server.demand.calls_left().min(u32::from(strangers) + 4);
        (calls_left, self.server.level(Tenant(0)).to_wire()).hash(&mut digest.0);
        digest.0.finish()
    }
}

fn reply(client: &mut CreditClient, name: Name, outcome: Outcome, grant: Grant, sent: Instant, now: Instant) {
    let (id, response_time) = (CallId(name.1.into()), now.since(sent));
    client.on_reply(&Reply { id, outcome, grant: Some(grant), response_time, server_time: response_time }, now);
}

/// What a stranger says with a call.
fn strange(which: usize) -> Ask {
    Ask { aware: which == HEEDLESS, ..Ask::default() }
}

/// Goes through every history within `bounds`, and returns the number of different states.
fn explore(bounds: Bounds) -> usize {
    let mut seen = BTreeSet::new();
    let mut open = vec![(World::new(bounds), Vec::new())];
    let (mut most, mut came_up) = (0, Seen::default());
    while let Some((world, history)) = open.pop() {
        for action in world.actions() {
            let mut next = world.clone();
            let mut history: Vec<Action> = history.clone();
            history.push(action);
            let mut attempt = || {
                next.act(action);
                next.check();
                if !seen.insert(next.key()) {
                    return false;
                }
                next.clone().wind_down();
                true
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut attempt));
            let Ok(is_new) = outcome else { panic!("the history was {history:?}") };
            most = most.max(next.server.gauges().credits);
            came_up.ticked |= next.seen.ticked;
            (0..2).for_each(|which| came_up.held[which] |= next.seen.held[which]);
            if is_new {
                open.push((next, history));
            }
        }
    }
    println!("{bounds:?}: {} states", seen.len());
    assert_eq!(most, POOL, "all credits are out at some time");
    let calls = bounds.calls.iter().sum::<usize>() + usize::from(bounds.strangers);
    assert_eq!(came_up.held, [bounds.strangers > 0; 2], "both strangers are held back");
    // One that is overdue comes with the first call after a while, whatever is left until then.
    assert!(came_up.ticked || calls < bounds.until_tick as usize, "ticks come in the midst of calls");
    seen.len()
}

#[test]
fn no_order_of_calls_answers_and_leases_breaks_the_ledger() {
    assert!(explore(Bounds { calls: [3, 1], ..PLAIN }) > 1_000);
}

#[test]
fn no_single_fault_breaks_the_ledger() {
    assert!(explore(Bounds { calls: [2, 1], faults: 1, ..PLAIN }) > 1_000);
}

#[test]
fn no_two_faults_break_the_ledger() {
    assert!(explore(Bounds { calls: [1, 1], faults: 2, ..PLAIN }) > 1_000);
}

#[test]
fn no_stranger_and_no_tick_breaks_the_ledger() {
    assert!(explore(Bounds { calls: [1, 1], half_leases: 1, strangers: 2, until_tick: 2, ..PLAIN }) > 1_000);
}

#[test]
fn no_handler_that_waits_breaks_the_ledger() {
    assert!(explore(Bounds { calls: [2, 1], faults: 1, half_leases: 1, waits: 2, ..PLAIN }) > 1_000);
}

#[test]
fn no_fault_beside_a_stranger_and_a_handler_that_waits_breaks_the_ledger() {
    let bounds = Bounds { calls: [1, 1], faults: 1, half_leases: 1, strangers: 1, waits: 1, until_tick: 1 };
    assert!(explore(bounds) > 1_000);
}
