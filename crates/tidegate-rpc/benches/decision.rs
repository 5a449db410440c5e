//! What control costs a call: `cargo bench -p tidegate-rpc --bench decision`.
//!
//! The machine stands behind a lock, as in the layers, and its timers run as they do there. `rpc_decision` is the question
//! of a call that was read: may it run. `rpc_call` is all that the machine is told of a call, under one lock each: read,
//! started, done. In virtual time calls come in small bursts to many cores, each runs as long as every other, and clients
//! send what the levels that they were told let through: of half of what the cores can take, or, where it says throttled,
//! of five times that. Each bench asserts that somebody was held back in the end, or nobody.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Barrier;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::Instant;
use tidegate_rpc::io::layer::BriefLock;
use tidegate_rpc::machine::credits::{Config, CreditServer, Level};
use tidegate_rpc::machine::{Ask, Done, Priority, Server, SessionId, Signal, Tenant, Ticket, Verdict};
use tidegate_runtime::clock;

/// Calls of a burst, asked about in a row: with so many, reading the clock does not count.
const BURST: usize = 16;
/// Cores: a burst is a small part of what they can take at a time.
const CORES: u32 = 128;
/// Time that each call runs.
const SERVICE_NS: u64 = 64_000;
const CLIENTS: u32 = 1_000;

/// A server with its own time, which never steps back since it is behind the lock as well.
struct Served {
    machine: CreditServer,
    now: Instant,
    next: u32,
    /// Between two calls that clients want to make.
    wanted_gap_ns: u64,
    /// What each client was told, and what earlier chances left over.
    told: Vec<(Level, u32)>,
    waiting: VecDeque<(u32, Ticket)>,
    /// Calls that run, in the order in which they end, with when they do.
    running: VecDeque<(Instant, u32, Ticket)>,
}

impl Served {
    /// One whose clients want `load` times what the cores can take.
    fn new(load: f64) -> BriefLock<Self> {
        let now = Instant::from_nanos(1_000_000_000);
        let mut machine = CreditServer::new(Config::default(), CORES, now);
        for _ in 0..CLIENTS {
            machine.open(Tenant(0), now).expect("the table has room");
        }
        let wanted_gap_ns = Duration::from_nanos(SERVICE_NS / u64::from(CORES)).div_f64(load).subsec_nanos().into();
        let told = vec![(Level::OPEN, 0); CLIENTS as usize];
        let (waiting, running) = (VecDeque::new(), VecDeque::new());
        BriefLock::new(Self { machine, now, next: 0, wanted_gap_ns, told, waiting, running })
    }

    /// The client of the next call that a level lets through, and how long after the one before it comes.
    fn next_passing(&mut self) -> (u32, u64) {
        let mut later_ns = 0;
        loop {
            later_ns += self.wanted_gap_ns;
            self.next = (self.next + 1) % CLIENTS;
            let (level, left) = &mut self.told[self.next as usize];
            *left += level.parts(Priority::default());
            if *left >= 1 << 16 {
                *left -= 1 << 16;
                return (self.next, later_ns);
            }
        }
    }

    #[inline]
    fn ask(&mut self, client: u32) -> Verdict {
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= self.now) {
            self.machine.on_timeout(Signal::default(), self.now);
        }
        while self.machine.poll_output().is_some() {}
        let ask = Ask { aware: true, ..Ask::default() };
        self.machine.on_request(SessionId(client), black_box(&ask), Signal::default(), self.now, self.now)
    }

    fn done(&mut self, client: u32, ticket: Ticket, done: Done) {
        let grant = self.machine.on_done(ticket, done, self.now);
        self.told[client as usize].0 = Level::from_wire(grant.level);
    }

    fn start_now(&mut self, ticket: Ticket) -> Verdict {
        self.machine.on_start(ticket, self.now)
    }

    /// Starts or refuses the first call that waits, if a core is free.
    fn start(&mut self) -> bool {
        if self.running.len() >= CORES as usize {
            return false;
        }
        let Some((client, ticket)) = self.waiting.pop_front() else { return false };
        match self.start_now(ticket) {
            Verdict::Admit(ticket) => self.running.push_back((self.now.plus_nanos(SERVICE_NS), client, ticket)),
            Verdict::Shed(ticket, _) => self.done(client, ticket, Done::Shed),
        }
        true
    }

    /// Ends the call that ends next, if it does before the next burst comes.
    fn end(&mut self, burst: Instant) -> bool {
        let Some(&(end, client, ticket)) = self.running.front().filter(|(end, ..)| *end <= burst) else {
            self.now = self.now.max(burst);
            return false;
        };
        self.running.pop_front();
        self.now = self.now.max(end);
        self.done(client, ticket, Done::Served);
        true
    }
}

/// A thread that reads calls.
#[derive(Default)]
struct Reader {
    clients: Vec<u32>,
    verdicts: Vec<(u32, Verdict)>,
}

impl Reader {
    /// A burst of calls: all that happens before it, and then it is read. The span of the questions alone; whoever else
    /// takes the lock does so for one of them at a time, too.
    fn burst(&mut self, served: &BriefLock<Served>) -> Duration {
        let mut burst = served.lock().now;
        for _ in 0..BURST {
            let (client, later_ns) = served.lock().next_passing();
            burst = burst.plus_nanos(later_ns);
            self.clients.push(client);
        }
        while served.lock().end(burst) {
            served.lock().start();
        }
        let start = clock::now();
        for &client in &self.clients {
            let verdict = served.lock().ask(client);
            self.verdicts.push((client, verdict));
        }
        let span = clock::now().since(start);
        self.clients.clear();
        for (client, verdict) in self.verdicts.drain(..) {
            match verdict {
                Verdict::Admit(ticket) => served.lock().waiting.push_back((client, ticket)),
                Verdict::Shed(ticket, _) => served.lock().done(client, ticket, Done::Shed),
            }
            served.lock().start();
        }
        span
    }
}

/// Questions, in bursts.
fn questions(c: &mut Criterion, name: &str, served: &BriefLock<Served>, are_held_back: bool) {
    let mut reader = Reader::default();
    // What the machine has to learn first.
    (0..10_000).for_each(|_| _ = reader.burst(served));
    c.bench_function(name, |b| {
        b.iter_custom(|times| {
            let bursts = times.div_ceil(BURST as u64);
            let span: Duration = (0..bursts).map(|_| reader.burst(served)).sum();
            let asked = u128::from(bursts) * BURST as u128;
            let ns = span.as_nanos() * u128::from(times) / asked;
            Duration::from_nanos(u64::try_from(ns).expect("it does not take centuries"))
        });
    });
    let supply_per_s = served.lock().machine.gauges().supply_per_s;
    assert_eq!(supply_per_s > 0.0, are_held_back, "calls a second that were let through: {supply_per_s}");
}

/// All of a call, of a server that runs one at a time.
fn calls(c: &mut Criterion, name: &str) {
    let served = Served::new(0.5);
    c.bench_function(name, |b| {
        b.iter(|| {
            let (client, verdict) = {
                let mut served = served.lock();
                let (client, _) = served.next_passing();
                (client, served.ask(client))
            };
            let (ticket, done) = match verdict {
                Verdict::Admit(ticket) => match served.lock().start_now(ticket) {
                    Verdict::Admit(ticket) => (ticket, Done::Served),
                    Verdict::Shed(ticket, _) => (ticket, Done::Shed),
                },
                Verdict::Shed(ticket, _) => (ticket, Done::Shed),
            };
            let mut served = served.lock();
            served.now = served.now.plus_nanos(SERVICE_NS);
            served.done(client, ticket, done);
        });
    });
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
    for (name, load) in [("uncontended", 0.5), ("throttled", 5.0)] {
        questions(c, &format!("rpc_decision/{name}"), &Served::new(load), load > 1.0);
    }
    for (name, load) in [("two_threads", 0.5), ("throttled_two_threads", 5.0)] {
        let (served, mut other) = (Served::new(load), Reader::default());
        let noise = || _ = other.burst(&served);
        beside(noise, || questions(c, &format!("rpc_decision/{name}"), &served, load > 1.0));
    }
    calls(c, "rpc_call/uncontended");
}

criterion_group!(benches, decision);
criterion_main!(benches);
