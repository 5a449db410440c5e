//! The threads of the proxy: one for each core, and beside it two that compute handshakes beyond their tenants' shares.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tidegate_core::Instant;
use tidegate_runtime::slice;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, spawn_local};

use super::cpu::CpuBudget;
use super::ports::{Entrance, Port};
use super::seats::Seats;
use super::settings::Settings;
use super::signer::{self, Desk, Jobs, Signer};
use super::starts::Starts;
use super::thread::{Counts, Shared, Thread};
use super::{accept, hello, refused};
use crate::io::conn::limiter::Limiter;
use crate::io::conn::meter::Common;
use crate::io::conn::processor::{stand_back, stay_on};
use crate::io::conn::timers::{TICK, Timers};
use crate::io::conn::waits::{self, Waits};
use crate::io::conn::{fair, meter, pace};
use crate::io::listen::gates;
use crate::io::listen::settings::InForce;
use crate::io::request::access_log::Way;
use crate::io::request::times::Times;
use crate::io::request::trace;
use crate::io::spool::folder::Spool;
use crate::io::upstream::{self, Known, Part, Upstreams, Verdicts};

/// Tasks that run before the sockets are looked at again: some ten microseconds each, and one at most is a handshake.
const EVENT_INTERVAL: u32 = 31;
/// Between two rounds of counting and learning: long enough that what is under way at either end is little of it.
pub(crate) const ROUND: Duration = Duration::from_millis(60);

/// Niceness of the thread that stands in: four fifths of the part of the first one, and of another program. Together they
/// have more of a core than one thread would.
const STAND_IN_NICE: i32 = 1;
/// Idle connections that are ended in one round for others to come: ending one takes some 20 us.
const GIVEN_BACK_MAX: usize = 256;

/// What the threads are told while they run.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) settings: Arc<Settings>,
    /// Of its listeners, in their order; none once the proxy drains.
    pub(crate) ports: Arc<[Arc<Port>]>,
    /// Connections are taken from them.
    pub(crate) accepting: bool,
    /// To the access log, if there is one.
    pub(crate) log: Option<Way>,
    /// Where large bodies wait, if they do.
    pub(crate) spool: Option<Arc<Spool>>,
    pub(crate) draining: bool,
    /// Time is up: end even what is under way.
    pub(crate) stop: bool,
}

/// All that a thread begins with.
pub(crate) struct Start {
    /// From 0.
    pub(crate) index: usize,
    pub(crate) part: Part,
    pub(crate) shared: Arc<Shared>,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) control: watch::Receiver<Control>,
    pub(crate) verdicts: watch::Receiver<Verdicts>,
    pub(crate) known: Known,
    /// The way to the core's second thread, if there is one.
    pub(crate) desk: Option<Desk>,
    pub(crate) seed: u64,
    /// The processor to stay on, if there is one for each core's threads.
    pub(crate) processor: Option<usize>,
}

/// Runs the thread until it is told to stop, or nothing is left after it was told to drain. Whoever started it is told
/// that it runs, or why not.
pub(crate) fn run(start: Start, tell: &mpsc::SyncSender<io::Result<()>>) -> io::Result<()> {
    stay_on(start.processor);
    // What it does takes microseconds; beside other programs it would wait for milliseconds before each piece.
    slice::run_when_woken();
    fair::begin();
    pace::begin();
    meter::begin();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .on_thread_park(|| {
            meter::on_park();
            waits::on_park();
            signer::on_park();
        })
        .on_thread_unpark(meter::on_unpark)
        .build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell.send(Err(error));
            return Ok(());
        }
    };
    let _ = tell.send(Ok(()));
    run_to_end(runtime, serve(start))
}

/// Runs `future` to its end, and waits for nothing else: the system's lookup of a name may take half a minute where no name
/// server answers, and it cannot be stopped.
pub(crate) fn run_to_end<T>(runtime: LocalRuntime, future: impl Future<Output = T>) -> T {
    let ended = runtime.block_on(future);
    runtime.shutdown_background();
    ended
}

/// When the system runs a thread that only computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// When nobody else wants the processor.
    Idle,
    /// In its turn, as other programs' threads.
    Normal,
}

/// Runs a core's second or third thread until its first one has ended.
pub(crate) fn run_other(jobs: Jobs, class: Class, processor: Option<usize>) {
    stay_on(processor);
    match class {
        Class::Idle => stand_back(),
        // Linux keeps niceness for each thread, and takes a thread's id here. Without it the thread works all the same.
        Class::Normal => drop(setpriority_process(Some(gettid()), STAND_IN_NICE)),
    }
    jobs.run();
}

async fn serve(start: Start) -> io::Result<()> {
    let first = start.control.borrow().clone();
    let settings = Arc::clone(&first.settings);
    let configured = upstream::Settings::of(&settings.config, &settings.upstream_tls, start.part);
    let upstreams = Upstreams::new(configured, start.verdicts, start.known, start.seed);
    let (counts, times) = (Counts::new(&settings), Times::new(&settings));
    let seats = Seats::new(connections_max(start.part, &settings));
    let budget = CpuBudget::new(start.desk.as_ref().map(Desk::cpu_ns).unwrap_or_default());
    let waits = Waits::new(Arc::clone(&start.limiter), settings.config.limits.patience, Rc::clone(&budget));
    let thread = Rc::new(Thread {
        shared: Arc::clone(&start.shared),
        settings: RefCell::new(Rc::new(InForce(settings))),
        limiter: start.limiter,
        timers: Timers::new(meter::now()),
        upstreams: Rc::clone(&upstreams),
        signer: start.desk.map(|desk| Signer::new(desk, Rc::clone(&budget))),
        budget,
        spool: RefCell::new(first.spool.clone()),
        lines: RefCell::new(first.log.as_ref().map(Way::lines)),
        connections: Cell::new(0),
        beginning: Rc::default(),
        seats,
        starts: Starts::new(1),
        waits: Rc::clone(&waits),
        refusal_ns: Cell::new(0),
        taking_ns: Cell::new(0),
        refused: refused::Waiting::default(),
        changed: Rc::new(Notify::new()),
        draining: Cell::new(false),
        counts: RefCell::new(counts),
        times: RefCell::new(times),
        rng: RefCell::new(trace::rng(start.seed)),
    });
    spawn_local(Common::new(upstreams.drive()));
    spawn_local(Common::new(waits.drive()));
    spawn_local(Common::new(fair::drive()));
    spawn_local(Common::new(pace::drive()));
    if start.index == 0 {
        spawn_local(Common::new(gates::drive(Rc::clone(&thread))));
    }
    let mut log = first.log.clone();
    let mut entrances = Entrances { core: start.index, open: Vec::new(), accepting: Vec::new() };
    entrances.set(&thread, &first);
    // Whoever holds it keeps ports open.
    drop(first);
    let ticker = Ticker { thread: Rc::clone(&thread), index: start.index, part: start.part };
    let ticking = spawn_local(ticker.run());
    let mut control = start.control;
    obey(&thread, &mut control, (&mut entrances, &mut log), (start.part, start.seed)).await;
    for mut task in entrances.accepting {
        tokio::select! {
            // It ends when it has taken what waited; an error of a port has been told.
            _ended = &mut task => {}
            () = stopped(&mut control) => task.abort(),
        }
    }
    hello::end_refused(&thread, usize::MAX);
    finish(&thread, &mut control).await;
    ticking.abort();
    Ok(())
}

/// A thread's part of what the limit of open files permits, but no more than its core has memory for. Each connection may
/// need another one to an upstream.
fn connections_max(part: Part, settings: &Settings) -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    part_of_files(files, part).min(settings.memory_places)
}

fn part_of_files(files: usize, part: Part) -> usize {
    // 64: ports, logs, files of the runtimes.
    (files.saturating_sub(64) / 2 / part.of.max(1) as usize).max(16)
}

/// Takes new settings until the thread is told to drain.
async fn obey(
    thread: &Rc<Thread>,
    control: &mut watch::Receiver<Control>,
    (entrances, log): (&mut Entrances, &mut Option<Way>),
    (part, seed): (Part, u64),
) {
    // The sender is gone when the proxy is dropped; that too means to stop.
    while control.changed().await.is_ok() {
        let told = control.borrow_and_update().clone();
        if told.draining || told.stop {
            break;
        }
        if !Way::is_same(log.as_ref(), told.log.as_ref()) {
            *thread.lines.borrow_mut() = told.log.as_ref().map(Way::lines);
            log.clone_from(&told.log);
        }
        thread.spool.borrow_mut().clone_from(&told.spool);
        if Arc::ptr_eq(&told.settings, &thread.settings().0) {
            entrances.set(thread, &told);
            continue;
        }
        let upstreams = upstream::Settings::of(&told.settings.config, &told.settings.upstream_tls, part);
        thread.upstreams.reload(upstreams, seed);
        let neighbours = told.settings.neighbours();
        thread.limiter.with(|limiter| limiter.reconfigure(neighbours, meter::now()));
        thread.waits.set_patience(told.settings.config.limits.patience);
        thread.put_in_force(Arc::clone(&told.settings));
        entrances.set(thread, &told);
        // The gates' driver may have looked at those of before.
        thread.settings().gates_queued.notify_one();
    }
    thread.draining.set(true);
    thread.changed.notify_waiters();
    // Idle connections wait for their clients or their time-outs, and end when they look at it.
    thread.timers.wake_all();
}

/// A thread's ports.
struct Entrances {
    core: usize,
    open: Vec<Rc<Entrance>>,
    /// Those too that are closed, until they have taken what waited there.
    accepting: Vec<JoinHandle<()>>,
}

impl Entrances {
    /// Opens and closes what is to be opened and closed, and changes what holds for those who come.
    fn set(&mut self, thread: &Rc<Thread>, told: &Control) {
        self.accepting.retain(|task| !task.is_finished());
        let before = std::mem::take(&mut self.open);
        for (place, port) in told.ports.iter().enumerate().filter(|_| told.accepting) {
            let entrance = match before.iter().find(|entrance| entrance.is_of(port)) {
                Some(entrance) => {
                    entrance.change(&told.settings, place);
                    Rc::clone(entrance)
                }
                None => self.enter(thread, port, Entrance::new(port, &told.settings, place)),
            };
            self.open.push(entrance);
        }
        let mut closed = before.iter().filter(|old| !self.open.iter().any(|open| Rc::ptr_eq(open, old))).peekable();
        if closed.peek().is_some() {
            closed.for_each(|entrance| entrance.close());
            thread.changed.notify_waiters();
            // Connections that came by these look at it.
            thread.timers.wake_all();
        }
    }

    fn enter(&mut self, thread: &Rc<Thread>, port: &Port, entrance: Rc<Entrance>) -> Rc<Entrance> {
        let address = port.address;
        for socket in port.of_core(self.core) {
            let accepting = accept::accept(Rc::clone(thread), Arc::clone(socket), Rc::clone(&entrance));
            self.accepting.push(spawn_local(async move {
                if let Err(error) = accepting.await {
                    tracing::error!(%error, %address, "a port takes no more connections on this thread");
                }
            }));
        }
        entrance
    }
}

/// Waits until time is up.
async fn stopped(control: &mut watch::Receiver<Control>) {
    while !control.borrow_and_update().stop && control.changed().await.is_ok() {}
}

/// Waits until nothing is left, or time is up.
async fn finish(thread: &Thread, control: &mut watch::Receiver<Control>) {
    loop {
        // Those that wait for their first turn are counted when it comes.
        let is_empty = thread.connections.get() == 0
            && thread.starts.is_empty()
            && Rc::strong_count(&thread.beginning) == 1
            && thread.signer.as_ref().is_none_or(|signer| signer.is_empty());
        if is_empty || control.borrow_and_update().stop {
            return;
        }
        tokio::select! {
            changed = control.changed() => if changed.is_err() { return },
            () = thread.changed.notified() => {}
            () = tokio::time::sleep(ROUND) => {}
        }
    }
}

/// What a thread does whether or not there are requests.
struct Ticker {
    thread: Rc<Thread>,
    index: usize,
    part: Part,
}

impl Ticker {
    async fn run(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut round = Round { at: meter::now(), idle_ns: meter::idle_ns(), second_ns: meter::second_ns() };
        self.look_at_quota();
        loop {
            ticks.tick().await;
            meter::stamp();
            let now = meter::now();
            self.thread.timers.turn(now);
            self.limits(now, &mut round).await;
            meter::stamp();
        }
    }

    /// Turns the limiter, in slices between which requests run, and the gates.
    async fn limits(&self, now: Instant, round: &mut Round) {
        if now >= round.at + ROUND {
            // The driver does it in time; but its thread may end before the others when the proxy drains.
            for gate in &self.thread.settings().gates {
                gate.turn(now);
            }
            let (idle_ns, second_ns) = (meter::idle_ns(), meter::second_ns());
            let slept = idle_ns.saturating_sub(round.idle_ns);
            // With something to do for the second thread the core is not idle: what it does not get, other programs have.
            let second = second_ns.saturating_sub(round.second_ns);
            let idle = Duration::from_nanos(slept.saturating_sub(second));
            self.thread.limiter.with(|limiter| limiter.on_idle(idle, now.since(round.at), now));
            *round = Round { at: now, idle_ns, second_ns };
            self.look_at_quota();
            self.publish();
        }
        self.set_shares(now + TICK).await;
    }

    /// Goes on with the setting of shares until the next tick is due at `until`, in slices between which requests run.
    async fn set_shares(&self, until: Instant) {
        let limiter = &self.thread.limiter;
        meter::stamp();
        while limiter.turn(meter::now()) {
            let took = Duration::from_nanos(meter::stamp());
            let next = limiter.with(|limiter| limiter.on_slice(took, meter::now()));
            let Some(next) = next.filter(|next| *next < until) else { return };
            tokio::time::sleep(next - meter::now()).await;
            meter::stamp();
        }
    }

    /// Puts in force what was last seen of a quota.
    fn look_at_quota(&self) {
        let Thread { budget, shared, limiter, .. } = &*self.thread;
        if let Some(ns_per_s) = budget.take_note(&shared.cpu, self.part.of) {
            limiter.with(|limiter| limiter.set_core(ns_per_s, meter::now()));
        }
    }

    /// Ends idle connections of claimants that hold more than their share when others need some: they were lent.
    fn give_back(&self) {
        let Thread { limiter, seats, .. } = &*self.thread;
        let excess = limiter.with(|limiter| limiter.excess_connections());
        if excess > 0 {
            let most = usize::try_from(excess).unwrap_or(usize::MAX).min(GIVEN_BACK_MAX);
            seats.give_back(most, |claimant| limiter.with(|limiter| limiter.excess_connections_of(claimant)));
        }
    }

    fn publish(&self) {
        let thread = &self.thread;
        // The limits can be changed while it runs, and files become free.
        thread.seats.adjust(connections_max(self.part, &thread.settings()));
        self.give_back();
        let mut counts = thread.counts.borrow_mut();
        counts.connections = thread.connections.get() as u64;
        counts.upstreams = thread.upstreams.states();
        if let Some(shared) = thread.shared.counts.get(self.index) {
            shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&counts);
        }
        if let Some(shared) = thread.shared.times.get(self.index) {
            let shared = &mut *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            thread.times.borrow_mut().publish(shared);
        }
    }
}

/// Where the last round ended.
struct Round {
    at: Instant,
    idle_ns: u64,
    second_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_ends_though_the_system_still_looks_for_a_name() {
        let (found, answer) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let lookup = move || ended.send(answer.recv().is_ok());
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        run_to_end(runtime, async { drop(tokio::task::spawn_blocking(lookup)) });
        found.send(()).unwrap();
        assert_eq!(end.recv(), Ok(true), "it was not waited for");
    }

    #[test]
    fn a_tenant_meets_its_share_of_the_connections_before_a_thread_is_full() {
        let part = Part { index: 3, of: 4 };
        for files in [1_024, 65_536, 1 << 20] {
            let admitted = usize::try_from(super::super::settings::connections(files)).unwrap() / 4;
            assert!(part_of_files(usize::try_from(files).unwrap(), part) > admitted, "{files}");
        }
    }
}
