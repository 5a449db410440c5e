//! Whose tasks run next on a thread that several tenants share.
//!
//! A thread runs its tasks in the order in which they became ready, and a tenant within its share can have hundreds that
//! are, each for a moment: together they are milliseconds for which every other tenant waits. So who has had his part of
//! the last moment takes turns with each further task, with a look at the sockets before it; others run as they come.
//!
//! Source: Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin" (1995), §3. Departure: what a task
//! takes is known afterwards, so a tenant's queue begins when its quantum is used up.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use pin_project_lite::pin_project;
use tidegate_core::Instant;
use tokio::task::spawn_local;

use super::account::{Account, Work};
use super::limiter::Tenant;
use super::meter::{self, Metered};
use super::starts::{Starts, Turn};

/// In a moment of this length a tenant's tasks run as they come
const MOMENT: Duration = Duration::from_millis(1);
/// until they have taken so many nanoseconds.
const FREE_NS: u64 = 100_000;
/// After that, so many run between two looks at the sockets, of all who take turns.
const AT_ONCE: usize = 1;
/// Who has had a thread to himself for so long waits for nobody: turns cost a little.
const ALONE: Duration = Duration::from_millis(100);

thread_local! {
    static FAIR: RefCell<Option<Fair>> = const { RefCell::new(None) };
}

/// Who used how much of a thread.
#[derive(Debug)]
struct Fair {
    turns: Rc<Starts>,
    /// When the moment began.
    began: Instant,
    /// Nanoseconds in this moment.
    used: HashMap<Tenant, u64, RandomState>,
    /// Whose task ran last, and when he followed on another.
    last: (Tenant, Instant),
}

impl Fair {
    fn new() -> Self {
        let used = HashMap::default();
        Self { turns: Starts::new(AT_ONCE), began: Instant::ZERO, used, last: (Tenant::OTHER, Instant::ZERO) }
    }

    fn is_over(&self, tenant: Tenant, now: Instant) -> bool {
        now < self.began + MOMENT && self.used.get(&tenant).is_some_and(|used| *used >= FREE_NS)
    }

    fn ran(&mut self, tenant: Tenant, ns: u64, now: Instant) {
        if tenant != self.last.0 {
            self.last = (tenant, now);
        } else if now >= self.last.1 + ALONE {
            return;
        }
        if now >= self.began + MOMENT {
            self.used.clear();
            self.began = now;
        }
        *self.used.entry(tenant).or_insert(0) += ns;
    }
}

/// Tenants of this thread take turns from now on.
pub(crate) fn begin() {
    FAIR.set(Some(Fair::new()));
}

/// The turn for which a task of the tenant has to wait, if it has to.
#[inline]
fn turn(tenant: Tenant, now: Instant) -> Option<Turn> {
    FAIR.with_borrow(|fair| {
        let fair = fair.as_ref().filter(|fair| fair.is_over(tenant, now))?;
        Some(Turn::ask(&fair.turns, tenant))
    })
}

/// A task of the tenant ran for so many nanoseconds, until `now`.
#[inline]
pub(crate) fn ran(tenant: Tenant, ns: u64, now: Instant) {
    FAIR.with_borrow_mut(|fair| {
        if let Some(fair) = fair {
            fair.ran(tenant, ns, now);
        }
    });
}

pin_project! {
    /// A connection's task, which takes turns with others. Its streams do not: those that wait hold what they came with.
    struct TakesTurns<F> {
        #[pin]
        task: F,
        account: Rc<Account>,
        turn: Option<Turn>,
    }
}

/// Runs a connection's `task`, whose time is put on `account`.
pub(crate) fn spawn(account: Rc<Account>, task: impl Future<Output = ()> + 'static) {
    let metered = Metered::new(Rc::clone(&account), task);
    spawn_local(TakesTurns { task: metered, account, turn: None });
}

impl<F: Future> Future for TakesTurns<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Handshakes have turns of their own, and others wait for the one whose turn it is.
        if this.turn.is_none() && this.account.work() != Work::Handshake {
            *this.turn = turn(this.account.tenant(), meter::now());
        }
        let start = match this.turn {
            Some(turn) => Some(ready!(Pin::new(turn).poll(context))),
            None => None,
        };
        *this.turn = None;
        let output = this.task.poll(context);
        drop(start);
        output
    }
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, ready};
    use std::pin::pin;
    use std::sync::Arc;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::io::limiter::{Limiter, NeighboursConfig};

    fn at(us: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + us * 1_000)
    }

    fn tenants() -> [Tenant; 2] {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        ["noisy", "quiet"].map(|name| limiter.with(|limiter| limiter.tenant(name, Instant::ZERO)))
    }

    #[test]
    fn who_has_had_his_part_of_a_moment_takes_turns_until_the_next() {
        let ([noisy, quiet], mut fair) = (tenants(), Fair::new());
        fair.ran(quiet, 10_000, at(0));
        fair.ran(noisy, FREE_NS - 1, at(99));
        assert!(!fair.is_over(noisy, at(99)));
        fair.ran(noisy, 1, at(100));
        assert!(fair.is_over(noisy, at(100)) && !fair.is_over(quiet, at(100)));
        assert!(fair.is_over(noisy, at(999)) && !fair.is_over(noisy, at(1_000)));
        fair.ran(noisy, 10_000, at(1_010));
        assert!(!fair.is_over(noisy, at(1_010)), "it is another moment");
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let ([noisy, quiet], mut fair) = (tenants(), Fair::new());
        fair.ran(quiet, 10_000, at(0));
        fair.ran(noisy, 10_000, at(10));
        fair.ran(noisy, 2 * FREE_NS, at(100_010));
        assert!(!fair.is_over(noisy, at(100_010)));
        fair.ran(quiet, 10_000, at(100_020));
        fair.ran(noisy, 2 * FREE_NS, at(100_220));
        assert!(fair.is_over(noisy, at(100_220)), "somebody came");
    }

    #[test]
    fn who_has_had_his_part_takes_turns_but_for_handshakes() {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        let [noisy, quiet] = ["noisy", "quiet"].map(|name| limiter.with(|limiter| limiter.tenant(name, Instant::ZERO)));
        let account = Account::open(Arc::clone(&limiter), noisy);
        let runtime = Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(poll_fn(|context| {
            // The thread has not looked at its clock.
            let at = meter::now();
            let mut is_ready = |work| {
                begin();
                ran(quiet, 1, at);
                ran(noisy, 1_000_000_000, at);
                account.begin(work);
                pin!(TakesTurns { task: ready(()), account: Rc::clone(&account), turn: None }).poll(context).is_ready()
            };
            assert!(is_ready(Work::Handshake));
            assert!(!is_ready(Work::Serving), "its turn comes after a look at the sockets");
            Poll::Ready(())
        }));
    }
}
