//! What control costs a call: `cargo bench -p tidegate-rpc --bench decision`.
//!
//! The machine stands behind a lock, as in the layers, and its timers run as they do there. `rpc_decision` is the question
//! of a call that was read: may it run. `rpc_call` is all that the machine is told of a call, under one lock each: read,
//! started, done. Virtual time advances by the gap of a load below the capacity, so that calls are admitted; where it says
//! throttled, by that of five times the capacity, and clients send what the levels that they were told let through.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Barrier;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::Instant;
use tidegate_rpc::io::layer::BriefLock;
use tidegate_rpc::machine::credits::{Config, CreditServer, Level};
use tidegate_rpc::machine::{Ask, Done, Priority, Server, SessionId, Signal, Tenant, Ticket, Verdict};
use tidegate_runtime::clock;

/// Calls that are asked about in a row before they end: with so many, reading the clock does not count.
const CALLS: u32 = 16;
/// From call to call: half of what the cores could take.
const GAP_NS: u64 = 1_000;
/// Time that each call runs.
const SERVICE_NS: u64 = CALLS as u64 * GAP_NS / 2;
const CLIENTS: u32 = 1_000;
/// Times the capacity that the clients of a throttled server want.
const OVERLOAD: u64 = 5;

/// A server with its own time, which never steps back since it is behind the lock as well.
struct Served {
    machine: CreditServer,
    now: Instant,
    next: u32,
    /// Between two wanted calls of a throttled server.
    wanted_gap_ns: u64,
    /// What each client was told, and what earlier chances left over.
    told: Vec<(Level, u32)>,
}

impl Served {
    fn new(cores: u32) -> BriefLock<Self> {
        let now = Instant::from_nanos(1_000_000_000);
        let mut machine = CreditServer::new(Config::default(), cores, now);
        for _ in 0..CLIENTS {
            machine.open(Tenant(0), now).expect("the table has room");
        }
        // Calls of a whole batch run at a time on cores of their own, for as long as it takes to ask about the next.
        let wanted_gap_ns = SERVICE_NS / (OVERLOAD * u64::from(cores));
        let told = vec![(Level::OPEN, 0); CLIENTS as usize];
        BriefLock::new(Self { machine, now, next: 0, wanted_gap_ns, told })
    }

    /// The next call that a client's level lets through, and how long after the one before.
    fn next_passing(&mut self) -> Passing {
        let mut later_ns = 0;
        loop {
            later_ns += self.wanted_gap_ns;
            self.next = (self.next + 1) % CLIENTS;
            let (level, left) = &mut self.told[self.next as usize];
            *left += level.parts(Priority::default());
            if *left >= 1 << 16 {
                *left -= 1 << 16;
                return Passing { client: self.next, later_ns };
            }
        }
    }

    fn request(&mut self) -> Verdict {
        self.next = (self.next + 1) % CLIENTS;
        self.ask(Passing { client: self.next, later_ns: GAP_NS })
    }

    fn ask(&mut self, call: Passing) -> Verdict {
        self.now = self.now.plus_nanos(call.later_ns);
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= self.now) {
            self.machine.on_timeout(Signal::default(), self.now);
        }
        while self.machine.poll_output().is_some() {}
        let ask = Ask { aware: true, ..Ask::default() };
        self.machine.on_request(SessionId(call.client), black_box(&ask), Signal::default(), self.now, self.now)
    }

    fn start(&mut self, ticket: Ticket) -> Verdict {
        self.machine.on_start(ticket, self.now)
    }

    fn tell(&mut self, client: u32, ticket: Ticket, done: Done) {
        let grant = self.machine.on_done(ticket, done, self.now);
        self.told[client as usize].0 = Level::from_wire(grant.level);
    }

    fn done(&mut self, ticket: Ticket, done: Done) {
        self.now = self.now.plus_nanos(SERVICE_NS / u64::from(CALLS));
        black_box(self.machine.on_done(ticket, done, self.now));
    }
}

/// A call that its client sends.
#[derive(Clone, Copy)]
struct Passing {
    client: u32,
    later_ns: u64,
}

/// A thread that asks a throttled server.
#[derive(Default)]
struct Asker {
    calls: Vec<Passing>,
    verdicts: Vec<(u32, Verdict)>,
    running: Vec<(u32, Ticket)>,
}

impl Asker {
    /// Asks about a batch of calls while the one before runs; the span of the questions alone.
    fn ask(&mut self, served: &BriefLock<Served>, count: usize) -> Duration {
        self.calls.extend((0..count).map(|_| served.lock().next_passing()));
        let start = clock::now();
        for &call in &self.calls {
            let verdict = served.lock().ask(call);
            self.verdicts.push((call.client, verdict));
        }
        let span = clock::now().since(start);
        self.calls.clear();
        let mut served = served.lock();
        for (client, ticket) in self.running.drain(..) {
            served.tell(client, ticket, Done::Served);
        }
        for (client, verdict) in self.verdicts.drain(..) {
            let started = match verdict {
                Verdict::Admit(ticket) => served.start(ticket),
                shed @ Verdict::Shed(..) => shed,
            };
            match started {
                Verdict::Admit(ticket) => self.running.push((client, ticket)),
                Verdict::Shed(ticket, _) => served.tell(client, ticket, Done::Shed),
            }
        }
        span
    }
}

/// Everything after the verdict.
fn finish(served: &BriefLock<Served>, verdict: Verdict) {
    let ended = match verdict {
        Verdict::Admit(ticket) => match served.lock().start(ticket) {
            Verdict::Admit(ticket) => (ticket, Done::Served),
            Verdict::Shed(ticket, _) => (ticket, Done::Shed),
        },
        Verdict::Shed(ticket, _) => (ticket, Done::Shed),
    };
    served.lock().done(ended.0, ended.1);
}

/// As many questions as calls may run, then their ends; the span of the questions alone.
fn ask(served: &BriefLock<Served>, verdicts: &mut Vec<Verdict>, count: usize) -> Duration {
    let start = clock::now();
    for _ in 0..count {
        let verdict = served.lock().request();
        verdicts.push(verdict);
    }
    let span = clock::now().since(start);
    verdicts.drain(..).for_each(|verdict| finish(served, verdict));
    span
}

fn questions(c: &mut Criterion, name: &str, served: &BriefLock<Served>) {
    let mut verdicts = Vec::with_capacity(CALLS as usize);
    c.bench_function(name, |b| {
        b.iter_custom(|times| {
            let (mut left, mut span) = (times, Duration::ZERO);
            while left > 0 {
                let count = left.min(u64::from(CALLS));
                span += ask(served, &mut verdicts, usize::try_from(count).expect("at most CALLS"));
                left -= count;
            }
            span
        });
    });
}

fn calls(c: &mut Criterion, name: &str, served: &BriefLock<Served>) {
    c.bench_function(name, |b| {
        b.iter(|| {
            let verdict = served.lock().request();
            finish(served, verdict);
        });
    });
}

/// Questions about calls of clients that are held back.
fn throttled(c: &mut Criterion, name: &str, served: &BriefLock<Served>) {
    let mut asker = Asker::default();
    c.bench_function(name, |b| {
        b.iter_custom(|times| {
            let (mut left, mut span) = (times, Duration::ZERO);
            while left > 0 {
                let count = left.min(u64::from(CALLS));
                span += asker.ask(served, usize::try_from(count).expect("at most CALLS"));
                left -= count;
            }
            span
        });
    });
    assert!(served.lock().machine.gauges().supply_per_s > 0.0, "nobody was held back");
}

/// Runs `work` beside a thread that does `other` without end.
fn beside(mut other: impl FnMut() + Send, work: impl FnOnce()) {
    let (running, ready) = (AtomicBool::new(true), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ready.wait();
            // Relaxed: it only ends the noise.
            while running.load(Ordering::Relaxed) {
                other();
            }
        });
        ready.wait();
        work();
        running.store(false, Ordering::Relaxed);
    });
}

fn decision(c: &mut Criterion) {
    let served = Served::new(4 * CALLS);
    questions(c, "rpc_decision/uncontended", &served);
    calls(c, "rpc_call/uncontended", &served);
    let mut verdicts = Vec::with_capacity(CALLS as usize);
    let other = || {
        ask(&served, &mut verdicts, CALLS as usize);
    };
    beside(other, || {
        questions(c, "rpc_decision/two_threads", &served);
        calls(c, "rpc_call/two_threads", &served);
    });
    throttled(c, "rpc_decision/throttled", &Served::new(CALLS));
    let (served, mut asker) = (Served::new(2 * CALLS), Asker::default());
    let other = || {
        asker.ask(&served, CALLS as usize);
    };
    beside(other, || throttled(c, "rpc_decision/throttled_two_threads", &served));
}

criterion_group!(benches, decision);
criterion_main!(benches);
