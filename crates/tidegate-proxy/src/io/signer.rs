//! The core's second thread, and who waits for it: first flights of handshakes beyond their tenants' shares, as
//! [`signing`](crate::machine::signing) decides.
//!
//! It is given the bytes of a hello and gives back a session. It has no socket and takes no lock, so nobody waits for it who
//! has something better to do.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustls::ServerConfig;
use tidegate_runtime::clock;
use tokio::sync::oneshot;

use super::limiter::Tenant;
use super::meter;
use super::starts::{Start, Starts, Turn};
use super::transport::Begun;
use crate::machine::signing::{Signing, Tuning};

/// Flights that the thread is given: one that it computes and one behind it.
const GIVEN: usize = 2;
/// Of clients that have gone since, it may have so many more.
const QUEUE: usize = 64;

thread_local! {
    /// The first thread's own, for whoever looks when it is about to wait.
    static IDLE: RefCell<Option<Rc<Signer>>> = const { RefCell::new(None) };
}

/// A first flight to compute.
struct Job {
    config: Arc<ServerConfig>,
    hello: Box<[u8]>,
    done: oneshot::Sender<Done>,
}

struct Done {
    begun: Result<Begun, rustls::Error>,
    /// What it took of the processor's time.
    ns: u64,
}

/// The thread's side that jobs come from.
pub(crate) struct Jobs {
    jobs: mpsc::Receiver<Job>,
    cpu_ns: Arc<AtomicU64>,
}

/// The way to a core's second thread.
#[derive(Debug)]
pub(crate) struct Desk {
    jobs: mpsc::SyncSender<Job>,
    /// Processor time that it has used.
    cpu_ns: Arc<AtomicU64>,
}

/// A second thread's two ends.
pub(crate) fn desk() -> (Desk, Jobs) {
    let (sender, jobs) = mpsc::sync_channel(QUEUE);
    let cpu_ns = Arc::new(AtomicU64::new(0));
    (Desk { jobs: sender, cpu_ns: Arc::clone(&cpu_ns) }, Jobs { jobs, cpu_ns })
}

impl Jobs {
    /// Computes what comes until nobody is left who could send something.
    pub(crate) fn run(self) {
        let mut before = clock::thread_cpu_ns();
        while let Ok(Job { config, hello, done }) = self.jobs.recv() {
            if done.is_closed() {
                continue;
            }
            let begun = Begun::new(config, &hello);
            let now = clock::thread_cpu_ns();
            let ns = now.saturating_sub(std::mem::replace(&mut before, now));
            // A number to subtract, for whoever asks how idle the core was.
            self.cpu_ns.store(now, Ordering::Relaxed);
            // If its client has gone meanwhile, nobody wants it.
            let _ = done.send(Done { begun, ns });
        }
    }
}

/// The first thread's side.
#[derive(Debug)]
pub(crate) struct Signer {
    desk: Desk,
    /// Flights begin in turns of tenants.
    starts: Rc<Starts>,
    machine: RefCell<Signing>,
}

/// A flight's place among those that wait.
#[derive(Debug)]
pub(crate) struct Wait {
    signer: Rc<Signer>,
    ns: u64,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.signer.machine.borrow_mut().wait_ends(self.ns);
    }
}

/// A flight that the second thread has.
struct Given<'a> {
    signer: &'a Signer,
    took_ns: Option<u64>,
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.signer.machine.borrow_mut().take_back(self.took_ns, meter::idle_ns());
    }
}

impl Signer {
    /// For the thread that calls it.
    pub(crate) fn new(desk: Desk) -> Rc<Self> {
        let machine = RefCell::new(Signing::new(Tuning::default()));
        let made = Rc::new(Self { desk, starts: Starts::new(GIVEN), machine });
        IDLE.set(Some(Rc::clone(&made)));
        made
    }

    /// A place for a flight that is expected to take `ns`; if there is none, how long what waits will take.
    pub(crate) fn wait(self: &Rc<Self>, ns: u64) -> Result<Wait, Duration> {
        self.machine.borrow_mut().wait(ns)?;
        Ok(Wait { signer: Rc::clone(self), ns })
    }

    /// Whether nobody waits for a flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Processor time that the second thread has used, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.desk.cpu_ns.load(Ordering::Relaxed)
    }

    fn is_starved(&self) -> bool {
        self.machine.borrow().is_starved(meter::idle_ns())
    }

    /// Has a first flight computed in the tenant's turn. `gone` says whether its client has closed meanwhile; then nothing
    /// is. Also returns what it took of the processor's time elsewhere, in nanoseconds.
    pub(crate) async fn begin(
        &self,
        tenant: Tenant,
        wait: Wait,
        (config, hello): (Arc<ServerConfig>, &[u8]),
        gone: impl FnOnce() -> bool,
    ) -> Option<(Begun, u64)> {
        let start: Start = Turn::ask(&self.starts, tenant).await;
        drop(wait);
        if gone() {
            return None;
        }
        if !self.is_starved() {
            let (done, told) = oneshot::channel();
            let job = Job { config: Arc::clone(&config), hello: hello.into(), done };
            if self.desk.jobs.try_send(job).is_ok() {
                self.machine.borrow_mut().give(meter::idle_ns());
                let mut given = Given { signer: self, took_ns: None };
                if let Ok(done) = told.await {
                    given.took_ns = Some(done.ns);
                    return Some((done.begun.ok()?, done.ns));
                }
            }
        }
        let begun = Begun::new(config, hello);
        drop(start);
        Some((begun.ok()?, 0))
    }
}

/// To be called when the first thread is about to wait for its sockets: if the second one gets nothing done, it computes one
/// flight itself.
pub(crate) fn on_park() {
    IDLE.with_borrow(|signer| {
        if let Some(signer) = signer.as_ref().filter(|signer| !signer.is_empty() && signer.is_starved()) {
            signer.starts.one_more();
        }
    });
}
