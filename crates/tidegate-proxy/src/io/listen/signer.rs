//! The core's second thread, the third that stands in for it, and who waits for them: first flights of handshakes beyond
//! their tenants' shares, as [`signing`](crate::machine::signing) decides.
//!
//! They are given the bytes of a hello and give back a session. They have no socket, take no lock and share no key, so
//! nobody waits for them who has something better to do.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustls::ServerConfig;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::cpu::CpuBudget;
use super::starts::{Start, Starts, Turn};
use crate::io::conn::keys::{ThreadKind, set_thread_kind};
use crate::io::conn::limiter::Claimant;
use crate::io::conn::meter::{self, Common};
use crate::io::conn::transport::Begun;
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
    kind: ThreadKind,
    given: mpsc::Receiver<Job>,
    cpu_ns: Arc<AtomicU64>,
}

/// The way to a core's second and third thread.
#[derive(Debug)]
pub(crate) struct Desk {
    second: mpsc::SyncSender<Job>,
    third: mpsc::SyncSender<Job>,
    /// Processor time that they have used.
    cpu_ns: Arc<AtomicU64>,
}

/// The first thread's end, that of the second thread and that of the third.
pub(crate) fn desk() -> (Desk, [Jobs; 2]) {
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let [(second, of_second), (third, of_third)] = [(); 2].map(|()| mpsc::sync_channel(GIVEN));
    let jobs = [(ThreadKind::Second, of_second), (ThreadKind::Third, of_third)].map(|(kind, given)| Jobs {
        kind,
        given,
        cpu_ns: Arc::clone(&cpu_ns),
    });
    (Desk { second, third, cpu_ns }, jobs)
}

impl Desk {
    /// Processor time that the other threads have used, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cpu_ns)
    }
}

impl Jobs {
    /// Computes what comes until nobody is left who could send something.
    pub(crate) fn run(self) {
        set_thread_kind(self.kind);
        let mut before = clock::thread_cpu_ns();
        while let Ok(Job { config, hello, done }) = self.given.recv() {
            let begun = Begun::new(config, &hello);
            let now = clock::thread_cpu_ns();
            let ns = now.saturating_sub(std::mem::replace(&mut before, now));
            // A sum that nothing else depends on.
            self.cpu_ns.fetch_add(ns, Ordering::Relaxed);
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
    /// What is left of the core's part of a quota.
    budget: Rc<CpuBudget>,
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
    pub(crate) fn new(desk: Desk, budget: Rc<CpuBudget>) -> Rc<Self> {
        let machine = RefCell::new(Signing::new(Tuning::default()));
        let made = Rc::new(Self { desk, starts: Starts::new(GIVEN), machine, budget });
        IDLE.set(Some(Rc::clone(&made)));
        made
    }

    /// A place for a flight that is expected to take `ns`; if there is none, how long what waits will take.
    pub(crate) fn wait(self: &Rc<Self>, ns: u64) -> Result<Wait, Duration> {
        self.machine.borrow_mut().wait(ns)?;
        Ok(Wait { signer: Rc::clone(self), ns })
    }

    /// Whether the second thread may soon have nothing to do.
    pub(crate) fn has_spare(&self) -> bool {
        self.machine.borrow().has_spare()
    }

    /// Whether nobody waits for a flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    fn may_begin(&self) -> Result<(), Instant> {
        self.budget.may_begin(self.machine.borrow().given_ns())
    }

    /// Waits until the quota has something left for a flight.
    async fn afford(&self) {
        while let Err(at) = self.may_begin() {
            tokio::time::sleep(at.since(clock::now())).await;
        }
    }

    /// Has a first flight computed in the tenant's turn. `gone` says whether its client has closed meanwhile; then nothing
    /// is. Also returns what it took of the processor's time elsewhere, in nanoseconds.
    pub(crate) async fn begin(
        self: &Rc<Self>,
        tenant: Claimant,
        wait: Wait,
        (config, hello): (Arc<ServerConfig>, &[u8]),
        gone: impl FnOnce() -> bool,
    ) -> Option<(Begun, u64)> {
        let start = Turn::ask(&self.starts, tenant).await;
        drop(wait);
        if !start.is_extra() {
            self.afford().await;
        }
        if gone() {
            return None;
        }
        let Done { begun, ns } = self.give(start, config, hello)?.await.ok()?;
        Some((begun.ok()?, ns))
    }

    /// Gives the second thread a flight, or the third if it is one more than begin; `None` if that thread has ended. Whether or
    /// not anybody waits for it, the next one is given when it is done: so neither ever has more than two.
    fn give(self: &Rc<Self>, start: Start, config: Arc<ServerConfig>, hello: &[u8]) -> Option<oneshot::Receiver<Done>> {
        let (done, told) = oneshot::channel();
        let is_extra = start.is_extra();
        let to = if is_extra { &self.desk.third } else { &self.desk.second };
        to.try_send(Job { config, hello: hello.into(), done }).ok()?;
        if is_extra {
            self.machine.borrow_mut().stand_in();
        } else {
            self.machine.borrow_mut().give(meter::idle_ns());
        }
        let (tell, answer) = oneshot::channel();
        let signer = Rc::clone(self);
        spawn_local(Common::new(async move {
            let done = told.await;
            let ns = done.as_ref().ok().map(|done| done.ns);
            if is_extra {
                signer.machine.borrow_mut().stand_in_ends(ns, meter::idle_ns());
            } else {
                signer.machine.borrow_mut().take_back(ns, meter::idle_ns());
            }
            drop(start);
            if let Ok(done) = done {
                // Its client may have gone.
                let _ = tell.send(done);
            }
        }));
        Some(answer)
    }
}

/// To be called when the first thread is about to wait for its sockets: if the second one gets nothing done, the third is
/// given a flight.
pub(crate) fn on_park() {
    IDLE.with_borrow(|signer| {
        let Some(signer) = signer else { return };
        let (is_given, wants_stand_in) = {
            let machine = signer.machine.borrow();
            (machine.is_given(), machine.wants_stand_in(meter::idle_ns()))
        };
        meter::leave_to_second(is_given);
        if wants_stand_in && signer.may_begin().is_ok() {
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
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::yield_now;

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};
    use crate::machine::budget::Terms;

    #[derive(Debug)]
    struct NoCertificate;

    impl ResolvesServerCert for NoCertificate {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    fn config() -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate)))
    }

    fn flight(signer: &Rc<Signer>, tenant: Claimant, done: &Rc<Cell<usize>>) -> tokio::task::JoinHandle<()> {
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
    fn a_second_thread_that_does_not_run_is_stood_in_for_by_a_third_whenever_the_first_has_nothing_to_do() {
        meter::begin();
        let (desk, [second, third]) = desk();
        let limiter = Limiter::new(NeighboursConfig::default(), Instant::ZERO);
        let tenant = Claimant::Tenant(limiter.with(|limiter| limiter.tenant("noisy", Instant::ZERO)));
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(async {
            let cpu_ns = desk.cpu_ns();
            let (signer, done) = (Signer::new(desk, CpuBudget::new(Arc::clone(&cpu_ns))), Rc::default());
            let third = std::thread::spawn(move || third.run());
            let flights: Vec<_> = (0..5).map(|_| flight(&signer, tenant, &done)).collect();
            rounds().await;
            on_park();
            rounds().await;
            assert_eq!(done.get(), 0, "it has had no time yet");
            std::thread::park_timeout(Duration::from_millis(20));
            meter::on_unpark();
            for stood_in in 1..=2 {
                on_park();
                while done.get() < stood_in {
                    yield_now().await;
                }
                rounds().await;
                assert_eq!(done.get(), stood_in, "one for each time");
            }
            // A client that leaves lets nobody begin out of turn: what was given is still with that thread.
            flights[0].abort();
            rounds().await;
            assert_eq!(done.get(), 2);
            let second = std::thread::spawn(move || second.run());
            while done.get() < 4 {
                yield_now().await;
            }
            while !signer.is_empty() {
                yield_now().await;
            }
            assert!(cpu_ns.load(Ordering::Relaxed) > 0 && !signer.machine.borrow().wants_stand_in(meter::idle_ns()));
            IDLE.take();
            drop(signer);
            second.join().unwrap();
            third.join().unwrap();
        });
    }

    #[test]
    fn a_quota_that_is_used_up_holds_flights_back_until_it_has_something_left() {
        meter::begin();
        let (desk, [jobs, _third]) = desk();
        let limiter = Limiter::new(NeighboursConfig::default(), Instant::ZERO);
        let tenant = Claimant::Tenant(limiter.with(|limiter| limiter.tenant("noisy", Instant::ZERO)));
        Builder::new_current_thread().enable_time().build_local(LocalOptions::default()).unwrap().block_on(async {
            let (cpu_ns, budget) = (desk.cpu_ns(), CpuBudget::new(desk.cpu_ns()));
            let (signer, done) = (Signer::new(desk, Rc::clone(&budget)), Rc::default());
            let second = std::thread::spawn(move || jobs.run());
            // No time in an hour.
            let none = Terms { time: Duration::from_nanos(1), period: Duration::from_hours(1) };
            budget.set_for_test(Some(none));
            let flights: Vec<_> = (0..3).map(|_| flight(&signer, tenant, &done)).collect();
            rounds().await;
            on_park();
            rounds().await;
            assert_eq!((done.get(), cpu_ns.load(Ordering::Relaxed)), (0, 0));
            assert!(!signer.machine.borrow().is_given(), "the second thread's rest is not taken for starvation");
            budget.set_for_test(None);
            for flight in flights {
                // Their next look is an hour away; a client that leaves frees its place.
                flight.abort();
            }
            rounds().await;
            let last = flight(&signer, tenant, &done);
            last.await.unwrap();
            assert_eq!(done.get(), 1);
            IDLE.take();
            drop(signer);
            second.join().unwrap();
        });
    }
}
