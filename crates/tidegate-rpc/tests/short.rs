//! What a server says is short, in simulated time: its cores, or a pool behind its handlers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::credits::{Config, CreditServer};
use tidegate_rpc::machine::short::{Short, Shortage};
use tidegate_rpc::machine::{Ask, Done, Server, SessionId, Signal, Tenant, Ticket, Verdict};

/// Every handler computes, then waits for one of the places behind it, for so long.
#[derive(Clone, Copy)]
struct Handlers {
    computes: Duration,
    waits: Duration,
    places: usize,
}

enum Event {
    Arrives,
    Computed(Ticket),
    Waited(Ticket, Instant),
}

/// A server of one core.
struct World {
    machine: CreditServer,
    session: SessionId,
    handlers: Handlers,
    line: VecDeque<Ticket>,
    behind: VecDeque<(Ticket, Instant)>,
    taken: usize,
    is_busy: bool,
    /// By time, and by number among those of one time.
    events: BTreeMap<(Instant, u64), Event>,
    number: u64,
    now: Instant,
    rng: Rng,
}

impl World {
    fn new(handlers: Handlers) -> Self {
        let now = Instant::from_nanos(1);
        let mut machine = CreditServer::new(Config::default(), 1, now);
        let session = machine.open(Tenant::default(), now).expect("it has room");
        let (line, behind, events) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        let rng = Rng::new(7);
        Self { machine, session, handlers, line, behind, taken: 0, is_busy: false, events, number: 0, now, rng }
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + span, self.number), event);
    }

    fn signal(&self) -> Signal {
        let queueing_delay = self.line.front().map_or(Duration::ZERO, |oldest| self.now.since(oldest.arrived));
        Signal { queueing_delay }
    }

    /// Calls at random, `rate_per_s` of them a second, for so long. What is short at the end.
    fn run(&mut self, rate_per_s: f64, length: Duration) -> Short {
        let end = self.now + length;
        self.after(Duration::ZERO, Event::Arrives);
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            match event {
                Event::Arrives if at >= end => break,
                Event::Arrives => {
                    self.arrive();
                    let gap = -(1.0 - self.rng.f64()).ln() / rate_per_s;
                    self.after(Duration::from_secs_f64(gap), Event::Arrives);
                }
                Event::Computed(ticket) => {
                    self.is_busy = false;
                    let ticket = self.machine.on_wait(ticket, at);
                    self.behind.push_back((ticket, at));
                }
                Event::Waited(ticket, since) => {
                    self.taken -= 1;
                    let ticket = self.machine.on_wake(ticket, since, at);
                    self.machine.on_done(ticket, Done::Served, at);
                }
            }
            self.go_on();
        }
        self.short()
    }

    fn arrive(&mut self) {
        let (signal, now) = (self.signal(), self.now);
        match self.machine.on_request(self.session, &Ask::default(), signal, now, now) {
            Verdict::Admit(ticket) => self.line.push_back(ticket),
            Verdict::Shed(ticket, _) => drop(self.machine.on_done(ticket, Done::Shed, now)),
        }
    }

    fn go_on(&mut self) {
        while self.taken < self.handlers.places
            && let Some((ticket, since)) = self.behind.pop_front()
        {
            self.taken += 1;
            self.after(self.handlers.waits, Event::Waited(ticket, since));
        }
        while !self.is_busy && self.machine.room() > 0 {
            let Some(ticket) = self.line.pop_front() else { return };
            match self.machine.on_start(ticket, self.now) {
                Verdict::Admit(ticket) => {
                    self.is_busy = true;
                    self.after(self.handlers.computes, Event::Computed(ticket));
                }
                Verdict::Shed(ticket, _) => drop(self.machine.on_done(ticket, Done::Shed, self.now)),
            }
        }
    }

    fn short(&self) -> Short {
        self.machine.view(self.signal(), self.now).expect("it shows itself").short
    }
}

const TEN_S: Duration = Duration::from_secs(10);

#[test]
fn handlers_that_compute_run_out_of_cores_and_have_enough_again() {
    let handlers = Handlers { computes: Duration::from_millis(1), waits: Duration::ZERO, places: usize::MAX };
    let mut world = World::new(handlers);
    let calm = world.run(500.0, TEN_S);
    assert_eq!(calm.what, Shortage::Nothing, "{calm}");
    assert!((0.35..0.65).contains(&calm.idle_share), "{calm}");
    let began = world.now;
    let rush = world.run(2_000.0, TEN_S);
    assert_eq!((rush.what, rush.limit.is_some()), (Shortage::Cores, false), "{rush}");
    assert!(rush.idle_share < 0.1 && rush.queueing_delay > Duration::ZERO, "{rush}");
    assert!(rush.since >= began && rush.since.since(began) < Duration::from_secs(3), "{rush}");
    let after = world.run(500.0, TEN_S);
    assert_eq!(after.what, Shortage::Nothing, "{after}");
    world.now += Duration::from_mins(1);
    assert!((world.short().idle_share - 1.0).abs() < 1e-9, "without calls the cores idle");
}

#[test]
fn handlers_that_wait_for_a_pool_run_out_of_its_places() {
    let handlers = Handlers { computes: Duration::from_micros(100), waits: Duration::from_millis(20), places: 10 };
    let mut world = World::new(handlers);
    let calm = world.run(250.0, TEN_S);
    assert_eq!(calm.what, Shortage::Nothing, "{calm}");
    let rush = world.run(1_000.0, TEN_S);
    assert_eq!(rush.what, Shortage::Behind, "{rush}");
    assert!(rush.limit.is_some_and(|limit| limit < 40) && rush.held_share > 0.5, "{rush}");
    let after = world.run(100.0, TEN_S);
    assert_eq!(after.what, Shortage::Nothing, "{after}");
}
