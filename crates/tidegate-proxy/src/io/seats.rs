//! A thread's places for connections, and who gives up his when there is none left.
//!
//! Everybody who comes is let in while somebody else's client is awaited: the proxy may be full of connections that say
//! nothing, and still serves those that do. Places are as many as the limit of open files permits; when even fewer can be
//! had, there are fewer for a while.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use slab::Slab;

use super::limiter::Tenant;
use crate::machine::places::Waiting;

/// A thread has so many places at least.
const LEAST: usize = 16;
/// One place in so many may be given to somebody new before who had it is gone: that happens when its task runs next.
const LEAVING_PART: usize = 8;
/// When files run out, one place in so many is given up.
const SHRINK_PART: usize = 8;
/// Each time that files may have become free, one in so many is added.
const GROW_PART: usize = 64;

/// For what a connection's client is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    /// Its first request.
    First,
    /// Another request.
    Next,
    /// That it reads its answer.
    Reading,
}

impl For {
    const COUNT: usize = 3;
}

/// Who answers for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Group {
    /// The address it comes from; of IPv6 the network, since a host has as many addresses there as it likes.
    Source(u64),
    Tenant(Tenant),
}

impl Group {
    fn of(source: IpAddr) -> Self {
        Self::Source(match source.to_canonical() {
            // No network of IPv6 begins with 32 zeros and is routed.
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }
}

/// The places of one thread.
#[derive(Debug)]
pub(crate) struct Seats {
    most: Cell<usize>,
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    taken: Slab<Taken>,
    /// Those that lost their places and are not gone yet.
    leaving: usize,
    waiting: [Waiting<Group>; For::COUNT],
}

#[derive(Debug)]
struct Taken {
    group: Group,
    waits: Option<For>,
    loses: bool,
    /// Of the task that serves the connection.
    waker: Option<Waker>,
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
        Rc::new(Self { most: Cell::new(most.max(LEAST)), inner: RefCell::default() })
    }

    /// A place for a connection from `source`, whose first request is awaited. If all are taken, that of one of whom
    /// something is awaited; `None` if there is work under way on all of them.
    pub(crate) fn take(self: &Rc<Self>, source: IpAddr) -> Option<Rc<Seat>> {
        if !self.has_room() && !self.end_one() {
            return None;
        }
        let inner = &mut *self.inner.borrow_mut();
        let group = Group::of(source);
        let number = inner.taken.insert(Taken { group, waits: Some(For::First), loses: false, waker: None });
        inner.waiting[For::First as usize].push(number, group);
        Some(Rc::new(Seat { seats: Rc::clone(self), number }))
    }

    /// How many connections may be there: of those that are refused too some may be open for a moment.
    pub(crate) fn most(&self) -> usize {
        self.most.get()
    }

    fn has_room(&self) -> bool {
        let inner = self.inner.borrow();
        inner.taken.len() - inner.leaving < self.most.get()
    }

    /// True if those who lost their places should be gone before more come.
    pub(crate) fn is_crowded(&self) -> bool {
        let inner = self.inner.borrow();
        inner.leaving > 0 && inner.taken.len() >= self.most.get() + self.most.get() / LEAVING_PART
    }

    /// Files ran out: there are fewer places for now, unless some of them are about to be free. False if nobody gives up his.
    pub(crate) fn shrink(&self) -> bool {
        let (taken, leaving) = {
            let inner = self.inner.borrow();
            (inner.taken.len(), inner.leaving)
        };
        if leaving > 0 {
            return true;
        }
        let most = self.most.get().min(taken);
        self.most.set((most - most / SHRINK_PART).max(LEAST));
        self.shed()
    }

    /// Some time passed, and the limit of files permits `most` places.
    pub(crate) fn adjust(&self, most: usize) {
        let now = self.most.get();
        self.most.set((now + now / GROW_PART + 1).min(most.max(LEAST)));
        self.shed();
    }

    /// Ends up to `most` connections that wait for another request, the oldest of whichever tenant has the most of them, while
    /// that one `has_too_many`; says how many.
    pub(crate) fn give_back(&self, most: usize, has_too_many: impl Fn(Tenant) -> bool) -> usize {
        let next_of_most = || {
            let inner = self.inner.borrow();
            let number = inner.waiting[For::Next as usize].next()?;
            match inner.taken[number].group {
                Group::Tenant(tenant) if has_too_many(tenant) => Some(number),
                _ => None,
            }
        };
        (0..most).take_while(|_| next_of_most().is_some_and(|number| self.end(number, For::Next))).count()
    }

    /// Ends connections until no more stay than there are places; false if none was ended.
    fn shed(&self) -> bool {
        let over = |inner: &Inner| (inner.taken.len() - inner.leaving).saturating_sub(self.most.get());
        let over = over(&self.inner.borrow());
        (0..over).take_while(|_| self.end_one()).count() > 0
    }

    /// Ends a connection of whose client something is awaited: of what most are awaited for.
    fn end_one(&self) -> bool {
        let found = {
            let inner = self.inner.borrow();
            let fullest = [For::First, For::Next, For::Reading]
                .into_iter()
                .max_by_key(|&what| inner.waiting[what as usize].len());
            fullest.and_then(|what| Some((inner.waiting[what as usize].next()?, what)))
        };
        found.is_some_and(|(number, what)| self.end(number, what))
    }

    /// Ends the connection in place `number`, which waits for `what`.
    fn end(&self, number: usize, what: For) -> bool {
        let waker = {
            let inner = &mut *self.inner.borrow_mut();
            inner.waiting[what as usize].remove(number);
            inner.leaving += 1;
            let taken = &mut inner.taken[number];
            (taken.waits, taken.loses) = (None, true);
            taken.waker.take()
        };
        // Wakers run in here only as far as the runtime's queue; still, nothing is borrowed meanwhile.
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

impl Seat {
    /// It turned out that the connection comes from `source`.
    pub(crate) fn comes_from(&self, source: IpAddr) {
        self.awaits(For::First, Group::of(source));
    }

    /// Something is under way.
    pub(crate) fn works(&self) {
        let inner = &mut *self.seats.inner.borrow_mut();
        let taken = &mut inner.taken[self.number];
        if let Some(waits) = taken.waits.take() {
            inner.waiting[waits as usize].remove(self.number);
        }
    }

    /// The next request is awaited, of a connection that `tenant` pays for.
    pub(crate) fn awaits_next(&self, tenant: Tenant) {
        self.awaits(For::Next, Group::Tenant(tenant));
    }

    /// The client takes nothing of its answer for now.
    pub(crate) fn awaits_reading(&self, tenant: Tenant) {
        self.awaits(For::Reading, Group::Tenant(tenant));
    }

    fn awaits(&self, what: For, group: Group) {
        let inner = &mut *self.seats.inner.borrow_mut();
        let taken = &mut inner.taken[self.number];
        // Who waits on keeps its age.
        if taken.loses || (taken.waits == Some(what) && taken.group == group) {
            return;
        }
        if let Some(waits) = taken.waits {
            inner.waiting[waits as usize].remove(self.number);
        }
        (taken.waits, taken.group) = (Some(what), group);
        inner.waiting[what as usize].push(self.number, group);
    }

    fn is_lost(&self) -> bool {
        self.seats.inner.borrow().taken[self.number].loses
    }

    fn wakes(&self, waker: &Waker) {
        self.seats.inner.borrow_mut().taken[self.number].waker = Some(waker.clone());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let inner = &mut *self.seats.inner.borrow_mut();
        let taken = inner.taken.remove(self.number);
        inner.leaving -= usize::from(taken.loses);
        if let Some(waits) = taken.waits {
            inner.waiting[waits as usize].remove(self.number);
        }
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

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn take(seats: &Rc<Seats>, sources: &[u8]) -> Vec<Rc<Seat>> {
        sources.iter().map(|&last| seats.take(source(last)).unwrap()).collect()
    }

    fn lost(seats: &[Rc<Seat>]) -> Vec<usize> {
        (0..seats.len()).filter(|&number| seats[number].is_lost()).collect()
    }

    #[test]
    fn who_says_nothing_makes_room_first_from_the_address_that_has_the_most() {
        let seats = Seats::new(LEAST);
        let mut sources = [1; LEAST];
        sources[..3].copy_from_slice(&[2, 2, 3]);
        let crowd = take(&seats, &sources);
        assert_eq!(lost(&crowd), [0; 0]);
        let newcomer = seats.take(source(4)).unwrap();
        let _second = seats.take(source(4)).unwrap();
        assert_eq!(lost(&crowd), [3, 4], "the oldest two of the address with the most");
        assert!(!newcomer.is_lost());
    }

    #[test]
    fn hosts_of_one_network_of_ipv6_are_one_source() {
        let group = |text: &str| Group::of(text.parse().unwrap());
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:2"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:192.0.2.1"), group("192.0.2.1"));
        assert_ne!(group("192.0.2.1"), group("192.0.2.2"));
    }

    #[test]
    fn work_under_way_is_never_ended_for_a_newcomer() {
        let seats = Seats::new(LEAST);
        let crowd = take(&seats, &[1; LEAST]);
        for seat in &crowd {
            seat.works();
        }
        assert!(seats.take(source(2)).is_none());
        crowd[5].awaits_next(Tenant::OTHER);
        assert!(seats.take(source(2)).is_some());
        assert_eq!(lost(&crowd), [5]);
    }

    #[test]
    fn of_what_most_are_awaited_for_one_is_ended() {
        let seats = Seats::new(LEAST);
        let crowd = take(&seats, &[1; LEAST]);
        for (number, seat) in crowd.iter().enumerate() {
            match number {
                0..4 => seat.awaits_next(Tenant::OTHER),
                4..12 => seat.awaits_reading(Tenant::OTHER),
                _ => {}
            }
        }
        crowd[4].works();
        crowd[4].awaits_reading(Tenant::OTHER);
        crowd[5].awaits_reading(Tenant::OTHER);
        let _newcomers = take(&seats, &[2, 2]);
        assert_eq!(lost(&crowd), [5, 6], "who took something in between is not the one that waits longest");
    }

    #[test]
    fn who_has_too_many_that_wait_gives_some_back_and_nobody_else() {
        let seats = Seats::new(64);
        let crowd = take(&seats, &[1; 20]);
        let tenants = {
            let mut neighbours = super::super::limiter::Neighbours::new(
                super::super::limiter::NeighboursConfig::default(),
                tidegate_core::Instant::ZERO,
            );
            ["a", "b"].map(|name| neighbours.tenant(name, tidegate_core::Instant::ZERO))
        };
        for (number, seat) in crowd.iter().enumerate() {
            match number {
                0..4 => seat.awaits_next(tenants[0]),
                4..16 => seat.awaits_next(tenants[1]),
                _ => seat.works(),
            }
        }
        assert_eq!(seats.give_back(5, |tenant| tenant == tenants[0]), 0, "another has more");
        assert_eq!(seats.give_back(5, |tenant| tenant == tenants[1]), 5);
        assert_eq!(lost(&crowd), [4, 5, 6, 7, 8]);
        assert_eq!(seats.give_back(64, |tenant| tenant == tenants[1]), 3, "until others have as many");
    }

    #[test]
    fn newcomers_wait_while_those_who_lost_their_places_are_not_gone() {
        let seats = Seats::new(LEAST);
        let mut crowd = take(&seats, &[1; LEAST]);
        for number in 0..LEAST / LEAVING_PART {
            assert!(!seats.is_crowded(), "{number}");
            crowd.push(seats.take(source(2)).unwrap());
        }
        assert!(seats.is_crowded());
        crowd.retain(|seat| !seat.is_lost());
        assert!(!seats.is_crowded() && crowd.len() == LEAST);
    }

    #[test]
    fn without_files_there_are_fewer_places_and_more_again_later() {
        let seats = Seats::new(64);
        let crowd = take(&seats, &[1; 64]);
        assert!(seats.shrink());
        assert_eq!(lost(&crowd), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(seats.shrink(), "these are to be gone first");
        assert_eq!(lost(&crowd).len(), 8);
        drop(crowd);
        for _ in 0..10 {
            seats.adjust(64);
        }
        let crowd = take(&seats, &[1; 64]);
        assert!(lost(&crowd).is_empty());
        seats.adjust(20);
        assert_eq!(lost(&crowd).len(), 44, "the limit was lowered from outside");
    }

    #[test]
    fn nobody_ends_for_lack_of_files_while_all_work() {
        let seats = Seats::new(LEAST);
        let crowd = take(&seats, &[1; LEAST]);
        for seat in &crowd {
            seat.works();
        }
        assert!(!seats.shrink());
        assert!(lost(&crowd).is_empty());
    }

    #[test]
    fn a_task_ends_with_its_place() {
        let seats = Seats::new(LEAST);
        let crowd = take(&seats, &[1; LEAST]);
        let mut task = pin!(Seated::new(Rc::clone(&crowd[0]), std::future::pending()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut context).is_pending());
        let _newcomer = seats.take(source(2)).unwrap();
        assert!(task.as_mut().poll(&mut context).is_ready());
    }
}
