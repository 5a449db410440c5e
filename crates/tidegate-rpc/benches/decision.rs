//! What control costs a call: `cargo bench -p tidegate-rpc --bench decision`.
//!
//! The machine stands behind a lock, as in the layers, and its timers run as they do there. `rpc_decision` is the question
//! of a call that was read: may it run. `rpc_call` is all that the machine is told of a call, under one lock each: read,
//! started, done. Virtual time advances by the gap of a load below the capacity, so that calls are admitted.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Barrier;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::Instant;
use tidegate_rpc::io::layer::BriefLock;
use tidegate_rpc::machine::credits::{Config, CreditServer};
use tidegate_rpc::machine::{Ask, Done, Server, SessionId, Signal, Tenant, Ticket, Verdict};
use tidegate_runtime::clock;

/// Calls that are asked about in a row before they end: with so many, reading the clock does not count.
const CALLS: u32 = 16;
/// From call to call: half of what the cores could take.
const GAP_NS: u64 = 1_000;
/// Time that each call runs.
const SERVICE_NS: u64 = CALLS as u64 * GAP_NS / 2;
const CLIENTS: u32 = 1_000;

/// A server with its own time, which never steps back since it is behind the lock as well.
struct Served {
    machine: CreditServer,
    now: Instant,
    next: u32,
}

impl Served {
    fn new() -> BriefLock<Self> {
        let now = Instant::from_nanos(1_000_000_000);
        let mut machine = CreditServer::new(Config::default(), 4 * CALLS, now);
        for _ in 0..CLIENTS {
            machine.open(Tenant(0), now).expect("the table has room");
        }
        BriefLock::new(Self { machine, now, next: 0 })
    }

    fn request(&mut self) -> Verdict {
        self.now = self.now.plus_nanos(GAP_NS);
        self.next = (self.next + 1) % CLIENTS;
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= self.now) {
            self.machine.on_timeout(Signal::default(), self.now);
        }
        while self.machine.poll_output().is_some() {}
        let ask = Ask { aware: true, ..Ask::default() };
        self.machine.on_request(SessionId(self.next), black_box(&ask), Signal::default(), self.now, self.now)
    }

    fn start(&mut self, ticket: Ticket) -> Verdict {
        self.machine.on_start(ticket, self.now)
    }

    fn done(&mut self, ticket: Ticket, done: Done) {
        self.now = self.now.plus_nanos(SERVICE_NS / u64::from(CALLS));
        black_box(self.machine.on_done(ticket, done, self.now));
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

/// Runs `work` beside a thread that makes calls without end.
fn beside_another(served: &BriefLock<Served>, work: impl FnOnce()) {
    let (running, ready) = (AtomicBool::new(true), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut verdicts = Vec::with_capacity(CALLS as usize);
            ready.wait();
            // Relaxed: it only ends the noise.
            while running.load(Ordering::Relaxed) {
                ask(served, &mut verdicts, CALLS as usize);
            }
        });
        ready.wait();
        work();
        running.store(false, Ordering::Relaxed);
    });
}

fn decision(c: &mut Criterion) {
    let served = Served::new();
    questions(c, "rpc_decision/uncontended", &served);
    calls(c, "rpc_call/uncontended", &served);
    beside_another(&served, || {
        questions(c, "rpc_decision/two_threads", &served);
        calls(c, "rpc_call/two_threads", &served);
    });
}

criterion_group!(benches, decision);
criterion_main!(benches);
