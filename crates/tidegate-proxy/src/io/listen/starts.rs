//! Handshakes of a thread that wait for their turns, as [`starts`](crate::machine::starts) decides.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use pin_project_lite::pin_project;
use tokio::sync::oneshot;

use crate::io::conn::limiter::Claimant;
use crate::machine::starts::{Follow, Starts as Machine, Ticket};

/// A thread's turns, and who waits for one.
#[derive(Debug)]
pub(crate) struct Starts {
    machine: RefCell<Machine>,
    waiting: RefCell<HashMap<Ticket, oneshot::Sender<Start>, RandomState>>,
}

/// Leave to begin; when it is dropped, the next one may.
#[derive(Debug)]
pub(crate) struct Start {
    starts: Rc<Starts>,
    follow: Follow,
}

/// One that waits; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    starts: Rc<Starts>,
    ticket: Ticket,
    told: oneshot::Receiver<Start>,
}

impl Start {
    /// Whether it is one more than begin at once.
    pub(crate) fn is_extra(&self) -> bool {
        self.follow == Follow::Nobody
    }
}

impl Starts {
    /// Nobody waits; `at_once` may begin together.
    pub(crate) fn new(at_once: usize) -> Rc<Self> {
        Rc::new(Self { machine: RefCell::new(Machine::new(at_once)), waiting: RefCell::default() })
    }

    /// Whether nobody waits, and none begins.
    pub(crate) fn is_empty(&self) -> bool {
        self.machine.borrow().is_empty()
    }

    /// Lets the next one begin though as many do as may at once.
    pub(crate) fn one_more(self: &Rc<Self>) {
        let next = self.machine.borrow_mut().one_more();
        self.tell(next, Follow::Nobody);
    }

    fn ask(self: &Rc<Self>, tenant: Claimant) -> Result<Start, Place> {
        let starts = Rc::clone(self);
        let Some(ticket) = self.machine.borrow_mut().ask(tenant) else {
            return Ok(Start { starts, follow: Follow::Next });
        };
        let (sender, told) = oneshot::channel();
        self.waiting.borrow_mut().insert(ticket, sender);
        Err(Place { starts, ticket, told })
    }

    /// It is the turn of `next`, if there is one.
    fn tell(self: &Rc<Self>, next: Option<Ticket>, follow: Follow) {
        let sender = next.and_then(|next| self.waiting.borrow_mut().remove(&next));
        if let Some(sender) = sender {
            // It waits: whoever goes takes its sender along.
            let _ = sender.send(Start { starts: Rc::clone(self), follow });
        }
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let next = self.starts.machine.borrow_mut().end(self.follow);
        self.starts.tell(next, self.follow);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.starts.machine.borrow_mut().leave(self.ticket);
        self.starts.waiting.borrow_mut().remove(&self.ticket);
    }
}

pin_project! {
    /// Work that begins in its tenant's turn, behind a look at the sockets in any case. The turn ends when the work waits for
    /// something.
    pub(crate) struct InTurn<W> {
        turn: Option<Turn>,
        #[pin]
        work: W,
    }
}

/// The way to a turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Others' come first.
    Waits(Place),
    /// It is its turn, after a look at the sockets.
    Granted(Option<Start>),
    Looked(Option<Start>),
}

impl Turn {
    /// The tenant's next one.
    pub(crate) fn ask(starts: &Rc<Starts>, tenant: Claimant) -> Self {
        match starts.ask(tenant) {
            Ok(start) => Self::Granted(Some(start)),
            Err(place) => Self::Waits(place),
        }
    }
}

impl Future for Turn {
    type Output = Start;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Start> {
        let start = match &mut *self {
            Self::Looked(start) => return Poll::Ready(start.take().expect("nobody asks a turn that has begun")),
            Self::Granted(start) => start.take(),
            Self::Waits(place) => Some(
                ready!(Pin::new(&mut place.told).poll(context))
                    .expect("a place that is awaited has its sender, which is dropped when it has told"),
            ),
        };
        *self = Self::Looked(start);
        ready!(pin!(tokio::task::yield_now()).poll(context));
        self.poll(context)
    }
}

impl<W> InTurn<W> {
    /// `work` of the tenant, whose turn is one of `starts`.
    pub(crate) fn new(starts: &Rc<Starts>, tenant: Claimant, work: W) -> Self {
        Self { turn: Some(Turn::ask(starts, tenant)), work }
    }

    /// The same if it need not wait for a turn.
    pub(crate) fn at_once(work: W) -> Self {
        Self { turn: None, work }
    }
}

impl<W: Future> Future for InTurn<W> {
    type Output = W::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        let this = self.project();
        let Some(turn) = this.turn else { return this.work.poll(context) };
        let start = ready!(Pin::new(turn).poll(context));
        *this.turn = None;
        let polled = this.work.poll(context);
        drop(start);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Instant;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{spawn_local, yield_now};

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};

    fn tenants() -> [Claimant; 2] {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        ["noisy", "quiet"].map(|name| Claimant::Tenant(limiter.with(|limiter| limiter.tenant(name, Instant::ZERO))))
    }

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(test);
    }

    #[test]
    fn a_tenant_that_asks_for_one_waits_for_one_of_each_other() {
        let (starts, begun) = (Starts::new(1), Rc::new(RefCell::new(Vec::new())));
        let [noisy, quiet] = tenants();
        run(async {
            for tenant in [noisy, noisy, noisy, noisy, quiet] {
                let (starts, begun) = (Rc::clone(&starts), Rc::clone(&begun));
                spawn_local(async move {
                    let begins = async { begun.borrow_mut().push(tenant) };
                    InTurn::new(&starts, tenant, begins).await;
                });
            }
            while begun.borrow().len() < 5 {
                yield_now().await;
            }
        });
        assert_eq!(*begun.borrow(), [noisy, noisy, quiet, noisy, noisy]);
        assert!(starts.is_empty() && starts.waiting.borrow().is_empty());
    }

    #[test]
    fn one_that_goes_before_its_turn_or_in_it_holds_nobody_up() {
        let starts = Starts::new(1);
        let [noisy, quiet] = tenants();
        let first = starts.ask(noisy).unwrap();
        let gone = starts.ask(noisy).unwrap_err();
        let goes = starts.ask(quiet).unwrap_err();
        let mut last = starts.ask(quiet).unwrap_err();
        drop(gone);
        drop(first);
        assert!(last.told.try_recv().is_err(), "another one's turn comes first");
        drop(goes);
        drop(last.told.try_recv().unwrap());
        assert!(starts.is_empty() && starts.ask(noisy).is_ok());
    }

    #[test]
    fn a_turn_lasts_until_its_work_waits() {
        let (starts, begun) = (Starts::new(1), Rc::new(RefCell::new(Vec::new())));
        let [noisy, quiet] = tenants();
        run(async {
            let works = [noisy, quiet].map(|tenant| {
                let (starts, begun) = (Rc::clone(&starts), Rc::clone(&begun));
                spawn_local(async move {
                    let work = async {
                        begun.borrow_mut().push((tenant, starts.machine.borrow().begin()));
                        yield_now().await;
                        yield_now().await;
                        begun.borrow_mut().push((tenant, starts.machine.borrow().begin()));
                    };
                    InTurn::new(&starts, tenant, work).await;
                })
            });
            for work in works {
                work.await.unwrap();
            }
        });
        let begun = begun.borrow();
        assert_eq!(begun[..2], [(noisy, 1), (quiet, 1)], "the second began before the first was done");
        assert_eq!(begun[3].1, 0);
        assert!(starts.is_empty());
    }

    #[test]
    fn one_more_than_begin_at_once_is_followed_by_nobody() {
        let starts = Starts::new(1);
        let [noisy, quiet] = tenants();
        starts.one_more();
        assert!(starts.is_empty(), "nobody waits");
        let first = starts.ask(noisy).unwrap();
        let mut waits = [noisy, quiet].map(|tenant| starts.ask(tenant).unwrap_err());
        starts.one_more();
        let extra = waits[0].told.try_recv().unwrap();
        assert!(extra.is_extra());
        drop(extra);
        assert!(waits[1].told.try_recv().is_err(), "as many as may begin do");
        drop(first);
        assert!(!waits[1].told.try_recv().unwrap().is_extra());
        assert!(starts.is_empty());
    }

    #[test]
    fn so_many_begin_at_once_and_each_end_lets_one_more() {
        let starts = Starts::new(2);
        let [noisy, quiet] = tenants();
        let begun: Vec<_> = (0..2).map(|_| starts.ask(noisy).unwrap()).collect();
        let mut waits = [noisy, quiet].map(|tenant| starts.ask(tenant).unwrap_err());
        let came = |waits: &mut [Place; 2]| waits.each_mut().map(|wait| wait.told.try_recv().ok());
        assert!(came(&mut waits).iter().all(Option::is_none));
        drop(begun);
        let starts_now = came(&mut waits);
        assert!(starts_now.iter().all(Option::is_some) && starts.ask(quiet).is_err());
        drop(starts_now);
        assert!(starts.is_empty());
    }
}
