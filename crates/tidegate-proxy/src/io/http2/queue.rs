//! Which of a connection's streams run, and which wait for its next turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use tokio::task::spawn_local;

use crate::io::conn::account::Account;
use crate::io::conn::meter::Metered;
use crate::io::conn::websocket::Sending;

/// Streams of one connection that begin in one turn of it. A client opens a hundred with one packet, and some hundred
/// clients fill the thread's queue with seconds of work; so others have their turns in between.
const BEGIN_MAX: usize = 4;

/// Runs the streams of a connection as tasks, the time of each being its own tenant's.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Rc<Queue>);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let queue = &self.0;
        // No turn of the connection follows on what a stream itself begins.
        let Some(account) = queue.opened.take() else {
            return match queue.expected.take().upgrade() {
                Some(sending) => sending.begin(stream),
                None => queue.begin(Metered::new(Rc::clone(&queue.connection), stream)),
            };
        };
        if queue.begun.get() < BEGIN_MAX && queue.waiting.borrow().is_empty() {
            queue.begin(Metered::new(account, stream));
        } else {
            let stream: Waiting = Box::pin(stream);
            queue.waiting.borrow_mut().push_back(Metered::new(account, stream));
        }
    }
}

type Waiting = Pin<Box<dyn Future<Output = ()>>>;

/// Streams that were opened and have not begun.
pub(super) struct Queue {
    connection: Rc<Account>,
    /// Of the stream that was just opened: it is given over in the same step.
    opened: Cell<Option<Rc<Account>>>,
    /// Of the stream that has just become a tunnel: its half that sends is given over in the same step.
    expected: Cell<Weak<Sending>>,
    /// In the present turn.
    begun: Cell<usize>,
    waiting: RefCell<VecDeque<Metered<Waiting>>>,
}

impl Queue {
    fn new(connection: Rc<Account>) -> Rc<Self> {
        let (opened, expected) = (Cell::default(), Cell::default());
        Rc::new(Self { connection, opened, expected, begun: Cell::new(0), waiting: RefCell::default() })
    }

    /// The stream that is given over next is on `account`.
    pub(super) fn open(&self, account: &Rc<Account>) {
        self.opened.set(Some(Rc::clone(account)));
    }

    /// What a stream itself begins next is `sending`.
    pub(super) fn expect(&self, sending: &Rc<Sending>) {
        self.expected.set(Rc::downgrade(sending));
    }

    fn begin(&self, stream: Metered<impl Future<Output = ()> + 'static>) {
        self.begun.set(self.begun.get() + 1);
        spawn_local(stream);
    }

    /// A turn of the connection: some of those who wait begin.
    pub(super) fn turn(&self) {
        self.begun.set(0);
        while self.begun.get() < BEGIN_MAX {
            let Some(stream) = self.waiting.borrow_mut().pop_front() else { return };
            self.begin(stream);
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }
}

/// The connection's hand on its queue. When it is gone, so are those who wait: each of them has a hand on the queue too, and
/// they would keep each other for ever.
pub(super) struct Owner(Rc<Queue>);

impl Owner {
    /// A queue of the streams of the connection with this account.
    pub(super) fn new(connection: &Rc<Account>) -> Self {
        Self(Queue::new(Rc::clone(connection)))
    }
}

impl std::ops::Deref for Owner {
    type Target = Rc<Queue>;

    fn deref(&self) -> &Rc<Queue> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.waiting.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::rt::Executor as _;
    use tidegate_core::Instant;
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig, Tenant};

    fn owner() -> Owner {
        let limiter = Arc::new(Limiter::new(NeighboursConfig::default(), Instant::ZERO));
        Owner::new(&Account::open(limiter, Tenant::OTHER))
    }

    /// What the protocol does when a client opens a stream.
    fn open(queue: &Rc<Queue>, stream: impl Future<Output = ()> + 'static) {
        queue.open(&queue.connection);
        Streams(Rc::clone(queue)).execute(stream);
    }

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().build_local(LocalOptions::default()).unwrap().block_on(test);
    }

    #[test]
    fn streams_begin_a_few_in_each_turn_and_in_their_order() {
        let (queue, begun) = (owner(), Rc::new(RefCell::new(Vec::new())));
        run(async {
            for number in 0..=2 * BEGIN_MAX {
                let begun = Rc::clone(&begun);
                open(&queue, async move { begun.borrow_mut().push(number) });
            }
            for turn in 1..=3 {
                while begun.borrow().len() < (turn * BEGIN_MAX).min(2 * BEGIN_MAX + 1) {
                    tokio::task::yield_now().await;
                }
                tokio::task::yield_now().await;
                assert_eq!(begun.borrow().len(), (turn * BEGIN_MAX).min(2 * BEGIN_MAX + 1));
                queue.turn();
            }
        });
        assert_eq!(*begun.borrow(), (0..=2 * BEGIN_MAX).collect::<Vec<_>>());
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn streams_that_wait_end_with_their_connection() {
        let (owner, held) = (owner(), Rc::new(()));
        let queue = Rc::clone(&owner);
        run(async {
            for _ in 0..2 * BEGIN_MAX {
                // As the protocol's own: a stream has what starts streams.
                let hands = (Streams(Rc::clone(&queue)), Rc::clone(&held));
                open(&queue, async move { drop(hands) });
            }
            drop(owner);
            assert_eq!((queue.waiting(), Rc::strong_count(&held)), (0, 1 + BEGIN_MAX));
        });
        assert_eq!((Rc::strong_count(&queue), Rc::strong_count(&held)), (1, 1));
    }

    #[test]
    fn what_a_stream_itself_begins_waits_for_no_turn() {
        let (queue, begun) = (owner(), Rc::new(Cell::new(false)));
        run(async {
            for _ in 0..=BEGIN_MAX {
                open(&queue, async {});
            }
            let behind = Rc::clone(&begun);
            Streams(Rc::clone(&queue)).execute(async move { behind.set(true) });
            while !begun.get() {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(queue.waiting(), 1);
    }
}
