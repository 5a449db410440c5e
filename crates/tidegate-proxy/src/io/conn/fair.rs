//! Tasks of a thread that wait for their tenants' turns, as [`turns`](crate::machine::turns) decides.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use pin_project_lite::pin_project;
use tidegate_core::Instant;
use tokio::sync::Notify;
use tokio::task::{spawn_local, yield_now};

use super::account::{Account, Work};
use super::limiter::Claimant;
use super::meter::{self, Metered};
use crate::machine::turns::{Ticket, Tuning, Turns};

thread_local! {
    static FAIR: RefCell<Option<Rc<Fair>>> = const { RefCell::new(None) };
}

/// A thread's turns, and who waits for one.
#[derive(Debug)]
struct Fair {
    turns: RefCell<Turns>,
    /// `None` of one whose turn has come.
    waiting: RefCell<HashMap<Ticket, Option<Waker>, RandomState>>,
    somebody: Notify,
}

/// A task's place in a line; it leaves when this is dropped.
#[derive(Debug)]
struct Place {
    fair: Rc<Fair>,
    ticket: Ticket,
}

impl Fair {
    fn new() -> Rc<Self> {
        let turns = RefCell::new(Turns::new(Tuning::default()));
        Rc::new(Self { turns, waiting: RefCell::default(), somebody: Notify::new() })
    }

    /// A place for a task of the tenant, if it has to wait.
    fn place(self: &Rc<Self>, tenant: Claimant, now: Instant, waker: &Waker) -> Option<Place> {
        let mut turns = self.turns.borrow_mut();
        if !turns.is_over(tenant, now) {
            return None;
        }
        if turns.is_empty() {
            self.somebody.notify_one();
        }
        let ticket = turns.wait(tenant);
        self.waiting.borrow_mut().insert(ticket, Some(waker.clone()));
        Some(Place { fair: Rc::clone(self), ticket })
    }

    /// Wakes those whose turn has come, which are appended to `go` for a moment.
    fn turn(&self, go: &mut Vec<Ticket>) {
        self.turns.borrow_mut().turn(go, meter::now());
        for ticket in go.drain(..) {
            let waker = self.waiting.borrow_mut().get_mut(&ticket).and_then(Option::take);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Place {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        match self.fair.waiting.borrow_mut().get_mut(&self.ticket) {
            Some(Some(waker)) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.fair.waiting.borrow_mut().remove(&self.ticket).is_some_and(|waker| waker.is_some()) {
            self.fair.turns.borrow_mut().leave(self.ticket);
        }
    }
}

/// Tenants of this thread take turns from now on.
pub(crate) fn begin() {
    FAIR.set(Some(Fair::new()));
}

/// Gives turns, after each look at the sockets as long as somebody waits. Never ends; nothing to do on a thread without turns.
pub(crate) async fn drive() {
    let Some(fair) = FAIR.with_borrow(Clone::clone) else { return };
    let mut go = Vec::new();
    loop {
        if fair.turns.borrow().is_empty() {
            fair.somebody.notified().await;
        }
        // What yields is woken after the next look.
        yield_now().await;
        fair.turn(&mut go);
    }
}

/// A task of the tenant ran for so many nanoseconds, until `now`.
#[inline]
pub(crate) fn ran(tenant: Claimant, ns: u64, now: Instant) {
    FAIR.with_borrow(|fair| {
        if let Some(fair) = fair {
            fair.turns.borrow_mut().ran(tenant, ns, now);
        }
    });
}

pin_project! {
    /// A connection's task, which takes turns with others. Its streams do not: those that wait hold what they came with.
    struct TakesTurns<F> {
        #[pin]
        task: F,
        account: Rc<Account>,
        place: Option<Place>,
    }
}

/// Runs a connection's `task`, whose time is put on `account`.
pub(crate) fn spawn(account: Rc<Account>, task: impl Future<Output = ()> + 'static) {
    let metered = Metered::new(Rc::clone(&account), task);
    spawn_local(TakesTurns { task: metered, account, place: None });
}

impl<F: Future> Future for TakesTurns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.place {
            Some(place) => {
                if place.poll(context).is_pending() {
                    return Poll::Pending;
                }
                *this.place = None;
            }
            // Handshakes have turns of their own, and others wait for the one whose turn it is.
            None if this.account.work() != Work::Handshake => {
                let (tenant, now) = (this.account.claimant(), meter::now());
                let place = |fair: &Option<Rc<Fair>>| fair.as_ref()?.place(tenant, now, context.waker());
                *this.place = FAIR.with_borrow(place);
                if this.place.is_some() {
                    return Poll::Pending;
                }
            }
            None => {}
        }
        this.task.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, ready};
    use std::pin::pin;
    use std::sync::Arc;

    use tidegate_runtime::clock;
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(test);
    }

    fn account() -> (Rc<Account>, Claimant) {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        let [noisy, quiet] = ["noisy", "quiet"].map(|name| limiter.with(|limiter| limiter.tenant(name, Instant::ZERO)));
        (Account::open(limiter, noisy), Claimant::Tenant(quiet))
    }

    /// The account's tenant has had its part.
    fn exhaust(account: &Account, quiet: Claimant) {
        begin();
        ran(quiet, 1, meter::now());
        ran(account.claimant(), 1_000_000_000, meter::now());
    }

    #[test]
    fn who_has_had_his_part_waits_but_for_handshakes() {
        let (account, quiet) = account();
        run(poll_fn(|context| {
            let mut is_ready = |work| {
                exhaust(&account, quiet);
                account.begin(work);
                let account = Rc::clone(&account);
                pin!(TakesTurns { task: ready(()), account, place: None }).poll(context).is_ready()
            };
            assert!(is_ready(Work::Handshake));
            assert!(!is_ready(Work::Serving), "its turn comes after a look at the sockets");
            Poll::Ready(())
        }));
    }

    #[test]
    fn time_that_a_task_has_put_on_its_account_is_of_its_turn_too() {
        let (account, quiet) = account();
        begin();
        ran(quiet, 1, meter::now());
        run(poll_fn(|context| {
            let works = async {
                let begun = clock::thread_cpu_ns();
                while clock::thread_cpu_ns() < begun + 1_000_000 {}
                // As behind each answer.
                account.add_time(meter::stamp());
            };
            assert!(pin!(Metered::new(Rc::clone(&account), works)).poll(context).is_ready());
            let is_over = |fair: &Option<Rc<Fair>>| {
                let turns = fair.as_ref().unwrap().turns.borrow();
                turns.is_over(account.claimant(), meter::now())
            };
            assert!(FAIR.with_borrow(is_over), "a millisecond is more than its part of a moment");
            Poll::Ready(())
        }));
    }

    #[test]
    fn who_waits_goes_on_when_its_turn_comes_and_who_has_gone_leaves_nothing_behind() {
        let (account, quiet) = account();
        exhaust(&account, quiet);
        let fair = FAIR.with_borrow(|fair| Rc::clone(fair.as_ref().unwrap()));
        run(async {
            let task = |task| TakesTurns { task, account: Rc::clone(&account), place: None };
            let goes = spawn_local(task(ready(())));
            let leaves = spawn_local(task(ready(())));
            yield_now().await;
            assert_eq!(fair.waiting.borrow().len(), 2);
            leaves.abort();
            spawn_local(drive());
            goes.await.unwrap();
            assert!(leaves.await.is_err());
        });
        assert!(fair.waiting.borrow().is_empty() && fair.turns.borrow().is_empty());
    }
}
