//! Whose work holds this thread, and for how long.
//!
//! Every task is wrapped in [`Metered`], which reads the clock once, at the end of each poll: what passed since the last
//! reading is that task's. What serves nobody in particular is wrapped in [`Common`], so that it is not put on the account
//! of whoever comes next. The same reading serves as "now" for everything the next poll decides, so the way of a
//! request reads no other clock.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::account::Account;
use super::fair;

/// Work of at least so many nanoseconds may have been interrupted by another program. Below it, looking would cost more
/// than it tells.
const LONG_NS: u64 = 200_000;
/// How long a task may go on reading before others have their turn. A request takes some tens of microseconds; a client
/// that sends HTTP/2 frames without end would otherwise hold the thread for as long as it sends.
const SLICE_NS: u64 = 100_000;
/// Reads of a turn before the clock is looked at: most turns have no more.
const READS_FREE: u32 = 2;

/// A look at the sockets that took so long waited for something: one that finds something takes a few microseconds.
const WAITED_NS: u64 = 20_000;

thread_local! {
    /// Reads from sockets since the turn of the current task began.
    static READS: Cell<u32> = const { Cell::new(0) };
    /// The last reading of the monotonic clock.
    static STAMP: Cell<Instant> = const { Cell::new(Instant::ZERO) };
    /// The last reading of this thread's processor time.
    static CPU: Cell<u64> = const { Cell::new(0) };
    /// Nanoseconds of work since that reading, by the monotonic clock.
    static UNCHECKED: Cell<u64> = const { Cell::new(0) };
    /// Nanoseconds of work since the turn of the current task began.
    static TURN: Cell<u64> = const { Cell::new(0) };
    /// Nanoseconds for which this thread had nothing to do.
    static IDLE: Cell<u64> = const { Cell::new(0) };
    /// Of these, nanoseconds in which the second thread had something to do.
    static SECONDS: Cell<u64> = const { Cell::new(0) };
    /// Whether it had something to do when this thread began to wait.
    static HAS_SECOND: Cell<bool> = const { Cell::new(false) };
    /// When this thread last looked at its sockets; and a look that did not find what is worked on now.
    static LOOKS: Cell<(Instant, Instant)> = const { Cell::new((Instant::ZERO, Instant::ZERO)) };
}

/// The instant of the last stamp: at most one poll of one task ago.
pub(crate) fn now() -> Instant {
    STAMP.get()
}

/// Reads the clock; returns the nanoseconds of work since the last reading.
///
/// Time for which another program had the processor is nobody's work. It comes in pieces of milliseconds, so only long
/// work is looked at twice.
pub(crate) fn stamp() -> u64 {
    let wall = advance();
    let unchecked = UNCHECKED.get() + wall;
    let ns = if wall < LONG_NS {
        UNCHECKED.set(unchecked);
        wall
    } else {
        UNCHECKED.set(0);
        let cpu = clock::thread_cpu_ns();
        let used = cpu.saturating_sub(CPU.replace(cpu));
        wall.saturating_sub(unchecked.saturating_sub(used))
    };
    TURN.set(TURN.get().saturating_add(ns));
    ns
}

/// Reads the clock; returns the nanoseconds since the last reading.
fn advance() -> u64 {
    let now = clock::now();
    now.nanos_since(STAMP.replace(now))
}

/// The thread's first reading of its clocks.
pub(crate) fn begin() {
    advance();
    CPU.set(clock::thread_cpu_ns());
}

/// Nanoseconds for which this thread had nothing to do, since it began.
pub(crate) fn idle_ns() -> u64 {
    IDLE.get()
}

/// Of these, nanoseconds in which the core's second thread had something to do, whether or not it got to run.
pub(crate) fn second_ns() -> u64 {
    SECONDS.get()
}

/// This thread is about to wait; says whether the second one has something to do meanwhile.
pub(crate) fn leave_to_second(has_work: bool) {
    HAS_SECOND.set(has_work);
}

/// Whatever is found on a socket now was not there at this instant, or had only just come.
pub(crate) fn looked() -> Instant {
    LOOKS.get().1
}

/// The thread is about to wait.
pub(crate) fn on_park() {
    stamp();
}

/// The thread waited, and now has something to do.
pub(crate) fn on_unpark() {
    let waited = advance();
    IDLE.set(IDLE.get() + waited);
    if HAS_SECOND.get() {
        SECONDS.set(SECONDS.get() + waited);
    }
    let now = STAMP.get();
    // What it waited for came at the end; what was there already came after the look before.
    let found = if waited >= WAITED_NS { now } else { LOOKS.get().0 };
    LOOKS.set((now, found));
}

/// To be asked before each read from a socket: pending, and the task is woken later, when its turn has lasted too long.
pub(crate) fn poll_turn(context: &mut Context<'_>) -> Poll<()> {
    let reads = READS.replace(READS.get().saturating_add(1));
    if reads < READS_FREE || clock::now().nanos_since(STAMP.get()) < SLICE_NS {
        return Poll::Ready(());
    }
    // Woken at once it would be next in line again, before the runtime looks at the sockets of others. What yields is
    // woken after that look.
    pin!(tokio::task::yield_now()).poll(context)
}

pin_project! {
    /// A task whose time is put on somebody's account.
    pub(crate) struct Metered<F> {
        #[pin]
        task: F,
        account: Rc<Account>,
    }
}

impl<F> Metered<F> {
    /// Puts the time of `task` on `account`.
    pub(crate) fn new(account: Rc<Account>, task: F) -> Self {
        Self { task, account }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let claimant = this.account.claimant();
        READS.set(0);
        TURN.set(0);
        let output = this.task.poll(context);
        this.account.add_time(stamp());
        // The task may have put most of its time on its account already, where a request ended.
        fair::ran(claimant, TURN.get(), now());
        output
    }
}

pin_project! {
    /// A task that serves everybody: its time is nobody's.
    pub(crate) struct Common<F> {
        #[pin]
        task: F,
    }
}

impl<F> Common<F> {
    /// Puts the time of `task` on no account.
    pub(crate) fn new(task: F) -> Self {
        Self { task }
    }
}

impl<F: Future> Future for Common<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        READS.set(0);
        let output = self.project().task.poll(context);
        stamp();
        output
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[test]
    fn time_that_is_nobodys_is_not_the_next_tasks() {
        let mut context = Context::from_waker(std::task::Waker::noop());
        STAMP.set(Instant::ZERO);
        // All that passed since the clock's origin.
        assert!(pin!(Common::new(ready(()))).poll(&mut context).is_ready());
        assert!(now() > Instant::ZERO, "whoever is polled next begins here");
    }

    #[test]
    fn a_task_that_reads_on_and_on_makes_room_for_others() {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut reads = |count: usize| (0..count).all(|_| poll_turn(&mut context).is_ready());
        // The turn began at the clock's origin: long ago.
        STAMP.set(Instant::ZERO);
        READS.set(0);
        assert!(reads(2) && !reads(1) && !reads(1));
        // A turn that has only begun may go on.
        STAMP.set(Instant::MAX);
        assert!(reads(3));
    }

    #[test]
    fn time_that_another_program_had_is_nobodys_work() {
        begin();
        // So long ago by the clock, of which the thread had the processor for next to nothing.
        UNCHECKED.set(0);
        STAMP.set(Instant::ZERO);
        let wall = clock::now().nanos_since(Instant::ZERO);
        assert!(stamp() < wall / 2);
        assert_eq!(UNCHECKED.get(), 0);
    }
}
