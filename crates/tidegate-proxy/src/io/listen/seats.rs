//! The tasks of a thread's connections, which end when their places are given to others, as
//! [`seats`](crate::machine::seats) decides.

use std::cell::RefCell;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

use crate::io::conn::limiter::Claimant;
use crate::machine::seats::{For, Group, Seats as Machine};

/// The places of one thread.
#[derive(Debug)]
pub(crate) struct Seats {
    machine: RefCell<Machine>,
    /// Of the tasks that serve the connections, by place.
    wakers: RefCell<Vec<Option<Waker>>>,
}

/// A connection's place. Dropping it makes room.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Rc<Seats>,
    number: usize,
}

impl Seats {
    /// `most` places.
    pub(crate) fn new(most: usize) -> Rc<Self> {
        Rc::new(Self { machine: RefCell::new(Machine::new(most)), wakers: RefCell::default() })
    }

    /// A place for a connection from `source`, whose first request is awaited. If all are taken, that of one of whom
    /// something is awaited; `None` if there is work under way on all of them.
    pub(crate) fn take(self: &Rc<Self>, source: IpAddr) -> Option<Rc<Seat>> {
        let number = self.tell(|machine| machine.take(source.into()))?;
        Some(Rc::new(Seat { seats: Rc::clone(self), number }))
    }

    /// How many connections may be there: of those that are refused too some may be open for a moment.
    pub(crate) fn most(&self) -> usize {
        self.machine.borrow().most()
    }

    /// True if those who lost their places should be gone before more come.
    pub(crate) fn is_crowded(&self) -> bool {
        self.machine.borrow().is_crowded()
    }

    /// Files ran out: there are fewer places for now, unless some of them are about to be free. False if nobody gives up his.
    pub(crate) fn shrink(&self) -> bool {
        self.tell(Machine::shrink)
    }

    /// Some time passed, and the limit of files permits `most` places.
    pub(crate) fn adjust(&self, most: usize) {
        self.tell(|machine| machine.adjust(most));
    }

    /// Ends up to `most` connections that wait for another request, of claimants that have `too_many`; says how many.
    pub(crate) fn give_back(&self, most: usize, too_many: impl Fn(Claimant) -> u64) -> usize {
        self.tell(|machine| machine.give_back(most, too_many))
    }

    /// Tells the machine something, and wakes those that are to end.
    fn tell<R>(&self, what: impl FnOnce(&mut Machine) -> R) -> R {
        let answer = what(&mut self.machine.borrow_mut());
        loop {
            let Some(number) = self.machine.borrow_mut().poll_ended() else { return answer };
            let waker = self.wakers.borrow_mut().get_mut(number).and_then(Option::take);
            // Wakers run in here only as far as the runtime's queue; still, nothing is borrowed meanwhile.
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Seat {
    /// It turned out that the connection comes from `source`.
    pub(crate) fn comes_from(&self, source: IpAddr) {
        self.awaits(For::First, source.into());
    }

    /// Something is under way.
    pub(crate) fn works(&self) {
        self.seats.machine.borrow_mut().works(self.number);
    }

    /// The next request is awaited, of a connection that `claimant` pays for.
    pub(crate) fn awaits_next(&self, claimant: Claimant) {
        self.awaits(For::Next, Group::Claimant(claimant));
    }

    /// The client takes nothing of its answer for now.
    pub(crate) fn awaits_reading(&self, claimant: Claimant) {
        self.awaits(For::Reading, Group::Claimant(claimant));
    }

    fn awaits(&self, what: For, group: Group) {
        self.seats.machine.borrow_mut().awaits(self.number, what, group);
    }

    fn is_lost(&self) -> bool {
        self.seats.machine.borrow().is_lost(self.number)
    }

    fn wakes(&self, waker: &Waker) {
        let mut wakers = self.seats.wakers.borrow_mut();
        if self.number >= wakers.len() {
            wakers.resize(self.number + 1, None);
        }
        wakers[self.number] = Some(waker.clone());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.machine.borrow_mut().leave(self.number);
        let waker = self.seats.wakers.borrow_mut().get_mut(self.number).and_then(Option::take);
        // It may be the last that holds its task; nothing is borrowed meanwhile.
        drop(waker);
    }
}

pin_project! {
    /// A connection's task, which ends when its place is given to somebody else.
    pub(crate) struct Seated<F> {
        #[pin]
        task: F,
        seat: Rc<Seat>,
        is_known: bool,
    }
}

impl<F> Seated<F> {
    /// `task` for as long as `seat` is its own.
    pub(crate) fn new(seat: Rc<Seat>, task: F) -> Self {
        Self { task, seat, is_known: false }
    }
}

impl<F: Future<Output = ()>> Future for Seated<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.seat.is_lost() {
            return Poll::Ready(());
        }
        if !std::mem::replace(this.is_known, true) {
            // A task has one waker for all its life.
            this.seat.wakes(context.waker());
        }
        this.task.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::machine::seats::LEAST;

    fn take(seats: &Rc<Seats>, last: u8) -> Rc<Seat> {
        seats.take([192, 0, 2, last].into()).unwrap()
    }

    #[test]
    fn a_task_ends_with_its_place() {
        let seats = Seats::new(LEAST);
        let crowd: Vec<_> = (0..LEAST).map(|_| take(&seats, 1)).collect();
        let mut task = pin!(Seated::new(Rc::clone(&crowd[0]), std::future::pending()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending());
        let _newcomer = take(&seats, 2);
        assert!(task.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_place_is_free_when_its_connection_is_gone_and_its_task_is_forgotten() {
        let seats = Seats::new(LEAST);
        let mut crowd: Vec<_> = (0..LEAST).map(|_| take(&seats, 1)).collect();
        for seat in &crowd {
            seat.works();
        }
        crowd[3].wakes(Waker::noop());
        assert!(seats.take([192, 0, 2, 2].into()).is_none());
        crowd.remove(3);
        let newcomer = take(&seats, 2);
        assert_eq!(newcomer.number, 3);
        assert!(seats.wakers.borrow()[3].is_none(), "the one before is not woken in its stead");
    }
}
