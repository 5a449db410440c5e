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
use tokio::task::spawn_local;

use super::limiter::Tenant;
use super::meter::{self, Common};
use super::starts::{Start, Starts, Turn};
use super::transport::Begun;
use crate::machine::signing::{Signing, Tuning};

/// Flights that the thread is given: one that it computes and one behind it.
const GIVEN: usize = 2;

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
    let (sender, jobs) = mpsc::sync_channel(GIVEN);
    let cpu_ns = Arc::new(AtomicU64::new(0));
    (Desk { jobs: sender, cpu_ns: Arc::clone(&cpu_ns) }, Jobs { jobs, cpu_ns })
}

impl Jobs {
    /// Computes what comes until nobody is left who could send something.
    pub(crate) fn run(self) {
        let mut before = clock::thread_cpu_ns();
        while let Ok(Job { config, hello, done }) = self.jobs.recv() {
            let begun = Begun::new(config, &hello);
            let now = clock::thread_cpu_ns();
            let ns = now.saturating_sub(std::mem::replace(&mut before, now));
            // A number to subtract, for whoever asks how idle the core was.
            self.cpu_ns.store(now, Ordering::Relaxed);
            // The first thread may be about to end.
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
        self: &Rc<Self>,
        tenant: Tenant,
        wait: Wait,
        (config, hello): (Arc<ServerConfig>, &[u8]),
        gone: impl FnOnce() -> bool,
    ) -> Option<(Begun, u64)> {
        let start = Turn::ask(&self.starts, tenant).await;
        drop(wait);
        if gone() {
            return None;
        }
        if start.is_extra() {
            return Some((Begun::new(config, hello).ok()?, 0));
        }
        let Done { begun, ns } = self.give(start, config, hello)?.await.ok()?;
        Some((begun.ok()?, ns))
    }

    /// Gives the second thread a flight; `None` if that thread has ended. Whether or not anybody waits for it, the next one is
    /// given when it is done: so the thread never has more than begin at once, and none is computed here out of turn.
    fn give(self: &Rc<Self>, start: Start, config: Arc<ServerConfig>, hello: &[u8]) -> Option<oneshot::Receiver<Done>> {
        let (done, told) = oneshot::channel();
        self.desk.jobs.try_send(Job { config, hello: hello.into(), done }).ok()?;
        self.machine.borrow_mut().give(meter::idle_ns());
        let (tell, answer) = oneshot::channel();
        let signer = Rc::clone(self);
        spawn_local(Common::new(async move {
            let done = told.await;
            let ns = done.as_ref().ok().map(|done| done.ns);
            signer.machine.borrow_mut().take_back(ns, meter::idle_ns());
            drop(start);
            if let Ok(done) = done {
                // Its client may have gone.
                let _ = tell.send(done);
            }
        }));
        Some(answer)
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use tidegate_core::Instant;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::yield_now;

    use super::*;
    use crate::io::limiter::{Limiter, NeighboursConfig};

    #[derive(Debug)]
    struct NoCertificate;

    impl ResolvesServerCert for NoCertificate {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    fn config() -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate)))
    }

    fn flight(signer: &Rc<Signer>, tenant: Tenant, done: &Rc<Cell<usize>>) -> tokio::task::JoinHandle<()> {
        let (signer, done) = (Rc::clone(signer), Rc::clone(done));
        spawn_local(async move {
            let wait = signer.wait(1_000).unwrap();
            // An alert is a first flight too.
            assert!(signer.begin(tenant, wait, (config(), b"no hello at all"), || false).await.is_some());
            done.set(done.get() + 1);
        })
    }

    async fn rounds() {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    #[test]
    fn a_second_thread_that_does_not_run_is_stood_in_for_once_each_time_the_first_has_nothing_to_do() {
        meter::begin();
        let (desk, jobs) = desk();
        let limiter = Limiter::new(NeighboursConfig::default(), Instant::ZERO);
        let tenant = limiter.with(|limiter| limiter.tenant("noisy", Instant::ZERO));
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(async {
            let (signer, done) = (Signer::new(desk), Rc::default());
            let flights: Vec<_> = (0..5).map(|_| flight(&signer, tenant, &done)).collect();
            rounds().await;
            on_park();
            rounds().await;
            assert_eq!(done.get(), 0, "it has had no time yet");
            std::thread::park_timeout(Duration::from_millis(20));
            meter::on_unpark();
            for stood_in in 1..=2 {
                on_park();
                rounds().await;
                assert_eq!(done.get(), stood_in);
            }
            // A client that leaves lets nobody begin out of turn: what was given is still with that thread.
            flights[0].abort();
            rounds().await;
            assert_eq!(done.get(), 2);
            let second = std::thread::spawn(move || jobs.run());
            while done.get() < 4 {
                yield_now().await;
            }
            while !signer.is_empty() {
                yield_now().await;
            }
            assert!(signer.cpu_ns() > 0 && !signer.is_starved());
            IDLE.take();
            drop(signer);
            second.join().unwrap();
        });
    }
}
