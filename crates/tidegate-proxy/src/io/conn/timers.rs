//! Time-outs of one thread: coarse, lazy, and free of allocation once warm.
//!
//! Every stage of every request has a time-out and nearly none fires. So setting one writes a number; the wheel is
//! touched only when a timer's entry comes due, finds that its deadline moved, and is put back.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tidegate_core::Instant;
use tidegate_core::timer_wheel::{TimerKey, TimerWheel};

/// Fineness of time-outs. They are there for stalled peers, not for pacing.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// All timers of one thread.
#[derive(Debug)]
pub(crate) struct Timers {
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    wheel: TimerWheel<usize>,
    slots: Slab<Slot>,
}

#[derive(Debug)]
struct Slot {
    /// When it fires; [`Instant::MAX`] if it does not.
    at: Instant,
    /// The wheel's entry, which comes due at or before `at`.
    entry: Option<(TimerKey, Instant)>,
    fired: bool,
    waker: Option<Waker>,
}

/// One time-out that can be set again and again. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Timer {
    timers: Rc<Timers>,
    slot: usize,
}

impl Timers {
    /// No timers.
    pub(crate) fn new(now: Instant) -> Rc<Self> {
        Self::of_tick(TICK, now)
    }

    /// No timers; they fire up to `tick` late.
    pub(crate) fn of_tick(tick: Duration, now: Instant) -> Rc<Self> {
        let inner = Inner { wheel: TimerWheel::new(tick, now), slots: Slab::new() };
        Rc::new(Self { inner: RefCell::new(inner) })
    }

    /// When to [`turn`](Self::turn) next; `None` if nothing is set.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.inner.borrow().wheel.next_timeout()
    }

    /// A timer that is not set.
    pub(crate) fn timer(self: &Rc<Self>) -> Timer {
        let slot = Slot { at: Instant::MAX, entry: None, fired: false, waker: None };
        let slot = self.inner.borrow_mut().slots.insert(slot);
        Timer { timers: Rc::clone(self), slot }
    }

    /// Wakes everybody who waits for a timer: something else changed that all of them look at.
    pub(crate) fn wake_all(&self) {
        let wakers = |inner: &mut Inner| inner.slots.iter_mut().filter_map(|(_, slot)| slot.waker.take()).collect();
        let all: Vec<Waker> = wakers(&mut self.inner.borrow_mut());
        all.into_iter().for_each(Waker::wake);
    }

    /// Fires what has come due.
    pub(crate) fn turn(&self, now: Instant) {
        // Wakers may drop or set timers, so none is called while the table is borrowed.
        while let Some(waker) = self.inner.borrow_mut().next(now) {
            waker.wake();
        }
    }
}

impl Inner {
    /// The next timer that fired and somebody waits for.
    fn next(&mut self, now: Instant) -> Option<Waker> {
        while let Some((_, _, index)) = self.wheel.pop(now) {
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.entry = None;
            if slot.at == Instant::MAX {
                continue;
            }
            if slot.at > now {
                slot.entry = Some((self.wheel.insert(slot.at, index), slot.at));
                continue;
            }
            slot.fired = true;
            slot.at = Instant::MAX;
            if let Some(waker) = slot.waker.take() {
                return Some(waker);
            }
        }
        None
    }
}

impl Timer {
    /// Lets it fire at `at` and at no other time.
    pub(crate) fn set(&self, at: Instant) {
        let inner = &mut *self.timers.inner.borrow_mut();
        let slot = &mut inner.slots[self.slot];
        slot.at = at;
        slot.fired = false;
        if slot.entry.is_some_and(|(_, due)| due <= at) || at == Instant::MAX {
            return;
        }
        if let Some((key, _)) = slot.entry.take() {
            inner.wheel.cancel(key);
        }
        slot.entry = Some((inner.wheel.insert(at, self.slot), at));
    }

    /// Stops it.
    pub(crate) fn clear(&self) {
        let slot = &mut self.timers.inner.borrow_mut().slots[self.slot];
        slot.at = Instant::MAX;
        slot.fired = false;
    }

    /// True if it will fire, or fired.
    pub(crate) fn is_set(&self) -> bool {
        let slot = &self.timers.inner.borrow().slots[self.slot];
        slot.fired || slot.at != Instant::MAX
    }

    /// Ready once it fired.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let slot = &mut self.timers.inner.borrow_mut().slots[self.slot];
        if slot.fired {
            return Poll::Ready(());
        }
        if slot.at != Instant::MAX && slot.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            slot.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let inner = &mut *self.timers.inner.borrow_mut();
        let slot = inner.slots.remove(self.slot);
        if let Some((key, _)) = slot.entry {
            inner.wheel.cancel(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn fired(timer: &Timer) -> bool {
        timer.poll(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_timer_fires_at_its_last_deadline_only() {
        let start = Instant::from_nanos(5_000_000_000);
        let timers = Timers::new(start);
        let timer = timers.timer();
        timer.set(start + Duration::from_secs(1));
        timer.set(start + Duration::from_secs(9));
        timers.turn(start + Duration::from_secs(2));
        assert!(!fired(&timer), "the deadline moved");
        timers.turn(start + Duration::from_secs(10));
        assert!(fired(&timer));
        timer.set(start + Duration::from_secs(20));
        timer.set(start + Duration::from_secs(11));
        assert!(!fired(&timer), "set anew");
        timers.turn(start + Duration::from_secs(12));
        assert!(fired(&timer), "a nearer deadline replaces a farther one");
    }

    #[test]
    fn a_stopped_or_dropped_timer_never_fires() {
        let start = Instant::from_nanos(1);
        let timers = Timers::new(start);
        let (stopped, dropped) = (timers.timer(), timers.timer());
        stopped.set(start + TICK);
        dropped.set(start + TICK);
        stopped.clear();
        drop(dropped);
        timers.turn(start + Duration::from_secs(1));
        assert!(!fired(&stopped));
    }
}
