//! What runs beside the requests of a connection of HTTP/2 to a server, and who pays for it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::task::spawn_local;

use crate::io::conn::account::Account;
use crate::io::conn::fair;
use crate::io::conn::meter::Common;

/// Runs the tasks of one connection on the thread that has it.
///
/// The connection's own tasks read and write its socket, and their time is its tenant's. A request has tasks too, which
/// send its body and await its answer; their time is put on the request's account. The protocol starts these while it
/// polls the request, and does not say for which one; so the request's body [says so](Payer::announce) when it is asked
/// for the first time. All of them take turns with other tenants' work.
#[derive(Clone, Debug)]
pub(super) struct Tasks(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    /// `None` if requests of several tenants share the connection: then its own tasks are nobody's.
    owner: Option<Rc<Account>>,
    /// The account of the request that is worked on in this poll; what is started belongs to it.
    present: RefCell<Option<Rc<Account>>>,
}

impl Tasks {
    /// Those of a connection for which `owner` pays, if it is one tenant's.
    pub(super) fn new(owner: Option<Rc<Account>>) -> Self {
        Self(Rc::new(Shared { owner, present: RefCell::default() }))
    }

    /// For a request for which `account` pays.
    pub(super) fn payer(&self, account: &Rc<Account>) -> Payer {
        Payer { tasks: self.clone(), account: Rc::clone(account) }
    }
}

/// Who pays for the tasks of one request.
#[derive(Debug)]
pub(super) struct Payer {
    tasks: Tasks,
    account: Rc<Account>,
}

impl Payer {
    /// What the connection starts next in this poll is for this request.
    pub(super) fn announce(&self) {
        self.tasks.0.present.replace(Some(Rc::clone(&self.account)));
    }
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let present = self.0.present.borrow().clone();
        let payer = present.as_ref().or(self.0.owner.as_ref()).map(Rc::clone);
        // It ends with its connection.
        let task = Task { work: task, tasks: self.clone(), account: present };
        match payer {
            Some(account) => fair::spawn(account, task),
            None => drop(spawn_local(Common::new(task))),
        }
    }
}

pin_project! {
    /// One task. What it starts in turn belongs to the same request, or to the connection.
    struct Task<F> {
        #[pin]
        work: F,
        tasks: Tasks,
        account: Option<Rc<Account>>,
    }
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.tasks.0.present.replace(this.account.clone());
        let polled = this.work.poll(context);
        this.tasks.0.present.take();
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Instant;
    use tidegate_runtime::clock;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::yield_now;

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};
    use crate::io::conn::meter;

    const WORK_NS: u64 = 1_000_000;

    fn account(name: &str) -> Rc<Account> {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        let tenant = limiter.with(|limiter| limiter.tenant(name, Instant::ZERO));
        Account::open(limiter, tenant)
    }

    fn work() {
        let begun = clock::thread_cpu_ns();
        while clock::thread_cpu_ns() < begun + WORK_NS {}
    }

    /// Which of the accounts has the time of one piece of work each.
    fn worked(accounts: [&Account; 3]) -> [u64; 3] {
        accounts.map(|account| account.used_ns() / WORK_NS)
    }

    async fn all_run() {
        for _ in 0..4 {
            yield_now().await;
        }
    }

    /// What a connection does that begins two requests in one poll of its task, one of which begins a task later.
    fn connection(tasks: &Tasks, [first, second]: [&Rc<Account>; 2]) {
        let [first, second] = [first, second].map(|account| tasks.payer(account));
        let begins = tasks.clone();
        tasks.execute(async move {
            work();
            first.announce();
            let later = begins.clone();
            begins.execute(async move {
                yield_now().await;
                later.execute(async { work() });
            });
            second.announce();
            (0..3).for_each(|_| begins.execute(async { work() }));
        });
    }

    #[test]
    fn what_a_connection_does_is_its_tenants_and_what_a_request_begins_is_that_requests() {
        let (owner, first, second) = (account("owner"), account("first"), account("second"));
        meter::begin();
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(async {
            connection(&Tasks::new(Some(Rc::clone(&owner))), [&first, &second]);
            all_run().await;
            assert_eq!(worked([&owner, &first, &second]), [1, 1, 3]);
            connection(&Tasks::new(None), [&first, &second]);
            all_run().await;
            assert_eq!(worked([&owner, &first, &second]), [1, 2, 6], "a connection of several tenants is nobody's");
        });
    }
}
