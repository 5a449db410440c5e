//! Requests of a thread that wait until their tenants may have more, as [`admission`](crate::machine::admission) decides.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::{Notify, oneshot};

use super::account::Account;
use super::limiter::{Lane, Limiter, Neighbours, Refusal, Tenant};
use super::meter;
use crate::io::listen::cpu::CpuBudget;
use crate::machine::Kind;
use crate::machine::admission::{self, Admission, Arrival, Costs, Output, Ticket, Tuning};

thread_local! {
    /// The thread's own, for whoever looks when it is about to wait.
    static IDLE: RefCell<Option<Rc<Waits>>> = const { RefCell::new(None) };
}

/// The waiting requests of one thread, and the tasks to wake when they are admitted or refused.
#[derive(Debug)]
pub(crate) struct Waits {
    limiter: Arc<Limiter>,
    /// What is left of the core's part of a quota.
    budget: Rc<CpuBudget>,
    machine: RefCell<Admission>,
    wakers: RefCell<HashMap<Ticket, oneshot::Sender<Told>, RandomState>>,
    /// Whether the driver sleeps until somebody waits.
    rests: Cell<bool>,
    somebody: Notify,
}

type Told = Result<Lane, Refusal>;

/// What becomes of a request that comes.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It was charged; do it.
    Admit(Lane),
    /// It waits.
    Wait(Wait),
    /// Say no.
    Refuse(Refusal),
}

/// What becomes of a body that asks for its next part.
#[derive(Debug)]
pub(crate) enum Onward {
    /// It was charged; go on.
    Go,
    /// It waits.
    Wait(Wait),
    /// Ask again later.
    Later,
}

/// One that waits; it leaves when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    waits: Rc<Waits>,
    ticket: Ticket,
    told: oneshot::Receiver<Told>,
    tenant: Tenant,
    costs: Costs,
}

impl Waits {
    /// Nobody waits.
    pub(crate) fn new(limiter: Arc<Limiter>, patience: Duration, budget: Rc<CpuBudget>) -> Rc<Self> {
        let machine = Admission::new(Tuning::default(), patience, meter::now());
        let made = Rc::new(Self {
            limiter,
            budget,
            machine: RefCell::new(machine),
            wakers: RefCell::default(),
            rests: Cell::new(false),
            somebody: Notify::new(),
        });
        IDLE.set(Some(Rc::clone(&made)));
        made
    }

    /// Another patience.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.machine.borrow_mut().set_patience(patience);
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.machine.borrow().is_empty()
    }

    /// A request of `tenant` comes.
    pub(crate) fn ask(self: &Rc<Self>, limiter: &mut Neighbours, tenant: Tenant, costs: &Costs) -> Asked {
        match self.machine.borrow_mut().arrive(limiter, tenant, costs, meter::now()) {
            Arrival::Admit(lane) => Asked::Admit(lane),
            Arrival::Refuse(refusal) => Asked::Refuse(refusal),
            Arrival::Wait(ticket) => Asked::Wait(self.wait(ticket, tenant, costs)),
        }
    }

    fn wait(self: &Rc<Self>, ticket: Ticket, tenant: Tenant, costs: &Costs) -> Wait {
        let (sender, told) = oneshot::channel();
        self.wakers.borrow_mut().insert(ticket, sender);
        if self.rests.take() {
            self.somebody.notify_one();
        }
        Wait { waits: Rc::clone(self), ticket, told, tenant, costs: *costs }
    }

    fn turn(&self) {
        self.limiter.with(|limiter| self.machine.borrow_mut().turn(limiter, meter::now()));
        self.deliver();
    }

    fn deliver(&self) {
        loop {
            let Some(output) = self.machine.borrow_mut().poll_output() else { return };
            let (ticket, told) = match output {
                Output::Go(ticket, lane) => (ticket, Ok(lane)),
                Output::Refuse(ticket, refusal) => (ticket, Err(refusal)),
            };
            if let Some(waker) = self.wakers.borrow_mut().remove(&ticket) {
                // It waits: whoever goes takes its sender along.
                let _ = waker.send(told);
            }
        }
    }

    /// Lets go on those whose time has come. Never ends.
    pub(crate) async fn drive(self: Rc<Self>) {
        loop {
            let next = self.machine.borrow().next_timeout(meter::now());
            if let Some(next) = next {
                tokio::time::sleep(next - meter::now()).await;
                meter::stamp();
                self.turn();
            } else {
                self.rests.set(true);
                self.somebody.notified().await;
            }
        }
    }
}

/// A body of `tenant` that is under way on this thread asks for its next part.
pub(crate) fn go_on(tenant: Tenant, costs: &Costs) -> Onward {
    IDLE.with_borrow(|waits| {
        // Threads without these have no limits either.
        let Some(waits) = waits else { return Onward::Go };
        let ask = |limiter: &mut Neighbours| waits.machine.borrow_mut().go_on(limiter, tenant, costs, meter::now());
        match waits.limiter.with(ask) {
            admission::Onward::Go => Onward::Go,
            admission::Onward::Wait(ticket) => Onward::Wait(waits.wait(ticket, tenant, costs)),
            admission::Onward::Later => Onward::Later,
        }
    })
}

/// Whether what `account` pays for may go on at once. If so, its next part is charged.
pub(crate) fn goes_on_at_once(account: &Account) -> bool {
    if !account.needs_part() {
        return true;
    }
    let costs = account.next_part();
    let goes_on = matches!(go_on(account.tenant(), &costs), Onward::Go);
    if goes_on {
        account.begin_part(&costs);
    }
    goes_on
}

/// To be called when the thread is about to wait for its sockets: who waits for the core alone need not any more, unless the
/// rest of a quota is for others.
pub(crate) fn on_park() {
    IDLE.with_borrow(|waits| {
        let has_spare = |waits: &&Rc<Waits>| !waits.is_empty() && waits.budget.may_begin(0).is_ok();
        if let Some(waits) = waits.as_ref().filter(has_spare) {
            waits.limiter.with(|limiter| waits.machine.borrow_mut().spare(limiter, meter::now()));
            waits.deliver();
        }
    });
}

impl Wait {
    /// What it is charged with when it goes on.
    pub(crate) const fn costs(&self) -> &Costs {
        &self.costs
    }
}

impl Future for Wait {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        let told = Pin::new(&mut self.told).poll(context);
        told.map(|told| told.expect("a sender is dropped when it has told, or with who waits"))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.machine.borrow_mut().leave(self.ticket);
        self.waits.wakers.borrow_mut().remove(&self.ticket);
        // Its client went when it could have gone on: what it would have held is held by nobody. Time that it was charged
        // with was its own to lose.
        if let Ok(Ok(_)) = self.told.try_recv() {
            let held = self.costs.as_slice().iter().filter(|(resource, _)| resource.kind() == Kind::Gauge);
            self.waits.limiter.with(|limiter| {
                held.for_each(|&(resource, amount)| limiter.release(self.tenant, resource, amount, meter::now()));
            });
        }
    }
}
