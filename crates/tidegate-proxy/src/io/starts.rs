//! Whose handshake begins next on a thread.
//!
//! A handshake is the longest task there is, and those that a tenant may begin at once, its share saved up for some ticks,
//! take tens of milliseconds together. So they begin one at a time, with a look at the sockets before each, and tenants
//! take turns: a tenant's next one waits for the one that is being made and for one of each other tenant, however many
//! those ask for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use pin_project_lite::pin_project;
use tokio::sync::oneshot;

use super::limiter::Tenant;

/// A thread's handshakes that have not begun. Each waits on a connection's place, so there are no more than these, and those
/// that have gone since the last turn.
#[derive(Debug)]
pub(crate) struct Starts {
    /// So many begin at once.
    at_once: usize,
    waiting: RefCell<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// So many begin now.
    begin: usize,
    /// Tenants for whom somebody waits, in the order of their turns.
    order: VecDeque<Tenant>,
    /// Of those, who waits; nobody's queue is empty.
    tenants: HashMap<Tenant, VecDeque<oneshot::Sender<Start>>, RandomState>,
}

/// Leave to begin; when it is dropped, the next one may.
#[derive(Debug)]
pub(crate) struct Start {
    starts: Rc<Starts>,
    /// It is one more than begin at once: nobody follows on it.
    is_extra: bool,
}

impl Start {
    /// Whether it is one more than begin at once.
    pub(crate) fn is_extra(&self) -> bool {
        self.is_extra
    }
}

impl Starts {
    /// Nobody waits; `at_once` may begin together.
    pub(crate) fn new(at_once: usize) -> Rc<Self> {
        Rc::new(Self { at_once, waiting: RefCell::default() })
    }

    /// Whether nobody waits, and none begins.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().begin == 0
    }

    /// Lets the next one begin though as many do as may at once.
    pub(crate) fn one_more(self: &Rc<Self>) {
        let next = {
            let waiting = &mut *self.waiting.borrow_mut();
            let next = waiting.next();
            waiting.begin += usize::from(next.is_some());
            next
        };
        if let Some(next) = next {
            // It waits: it was not closed a moment ago, and only this thread closes it.
            let _ = next.send(Start { starts: Rc::clone(self), is_extra: true });
        }
    }

    fn ask(self: &Rc<Self>, tenant: Tenant) -> Result<Start, oneshot::Receiver<Start>> {
        let waiting = &mut *self.waiting.borrow_mut();
        if waiting.begin < self.at_once {
            waiting.begin += 1;
            return Ok(Start { starts: Rc::clone(self), is_extra: false });
        }
        let (sender, receiver) = oneshot::channel();
        let queue = waiting.tenants.entry(tenant).or_default();
        if queue.is_empty() {
            waiting.order.push_back(tenant);
        }
        queue.push_back(sender);
        Err(receiver)
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
    Waits(oneshot::Receiver<Start>),
    /// It is its turn, after a look at the sockets.
    Granted(Option<Start>),
    Looked(Option<Start>),
}

impl Turn {
    /// The tenant's next one.
    pub(crate) fn ask(starts: &Rc<Starts>, tenant: Tenant) -> Self {
        match starts.ask(tenant) {
            Ok(start) => Self::Granted(Some(start)),
            Err(turn) => Self::Waits(turn),
        }
    }
}

impl Future for Turn {
    type Output = Start;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Start> {
        let start = match &mut *self {
            Self::Looked(start) => return Poll::Ready(start.take().expect("nobody asks a turn that has begun")),
            Self::Granted(start) => start.take(),
            Self::Waits(turn) => Some(
                ready!(Pin::new(turn).poll(context))
                    .expect("a queue that is awaited is there, and nobody leaves it without a start"),
            ),
        };
        *self = Self::Looked(start);
        ready!(pin!(tokio::task::yield_now()).poll(context));
        self.poll(context)
    }
}

impl<W> InTurn<W> {
    /// `work` of the tenant, whose turn is one of `starts`.
    pub(crate) fn new(starts: &Rc<Starts>, tenant: Tenant, work: W) -> Self {
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

impl Waiting {
    /// Takes the next one in turn off its queue. Who has gone takes no turn, and costs its tenant none.
    fn next(&mut self) -> Option<oneshot::Sender<Start>> {
        loop {
            let tenant = self.order.pop_front()?;
            let queue = self.tenants.get_mut(&tenant)?;
            let next = std::iter::from_fn(|| queue.pop_front()).find(|next| !next.is_closed());
            if queue.is_empty() {
                self.tenants.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let next = {
            let waiting = &mut *self.starts.waiting.borrow_mut();
            let next = if self.is_extra { None } else { waiting.next() };
            waiting.begin -= usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            // It waits: it was not closed a moment ago, and only this thread closes it.
            let _ = next.send(Self { starts: Rc::clone(&self.starts), is_extra: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Instant;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{spawn_local, yield_now};

    use super::*;
    use crate::io::limiter::{Limiter, NeighboursConfig};

    fn tenants() -> [Tenant; 2] {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        ["noisy", "quiet"].map(|name| limiter.with(|limiter| limiter.tenant(name, Instant::ZERO)))
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
        assert!(starts.is_empty() && starts.waiting.borrow().tenants.is_empty());
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
        assert!(last.try_recv().is_err(), "another one's turn comes first");
        drop(goes);
        drop(last.try_recv().unwrap());
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
                        begun.borrow_mut().push((tenant, starts.waiting.borrow().begin));
                        yield_now().await;
                        yield_now().await;
                        begun.borrow_mut().push((tenant, starts.waiting.borrow().begin));
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
        let extra = waits[0].try_recv().unwrap();
        assert!(extra.is_extra());
        drop(extra);
        assert!(waits[1].try_recv().is_err(), "as many as may begin do");
        drop(first);
        assert!(!waits[1].try_recv().unwrap().is_extra());
        assert!(starts.is_empty());
    }

    #[test]
    fn so_many_begin_at_once_and_each_end_lets_one_more() {
        let starts = Starts::new(2);
        let [noisy, quiet] = tenants();
        let begun: Vec<_> = (0..2).map(|_| starts.ask(noisy).unwrap()).collect();
        let mut waits = [noisy, quiet].map(|tenant| starts.ask(tenant).unwrap_err());
        let came = |waits: &mut [oneshot::Receiver<Start>; 2]| waits.each_mut().map(|wait| wait.try_recv().ok());
        assert!(came(&mut waits).iter().all(Option::is_none));
        drop(begun);
        let starts_now = came(&mut waits);
        assert!(starts_now.iter().all(Option::is_some) && starts.ask(quiet).is_err());
        drop(starts_now);
        assert!(starts.is_empty());
    }
}
