//! A call that is told to the machine exactly once, however it ends.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use super::config::Until;
use super::current::{CallContext, Entered};
use super::gate::{Begun, Gate, InLine, Refused, Step};
use super::headers::GrantHeader;
use crate::machine::desk::Pause;
use crate::machine::{Done, Server};

/// A call in line. Dropping it cancels it.
pub(super) struct Waiting<S: Server> {
    gate: Arc<Gate<S>>,
    call: Option<InLine>,
    context: CallContext,
}

impl<S: Server> Waiting<S> {
    pub(super) fn new(gate: Arc<Gate<S>>, call: InLine, context: CallContext) -> Self {
        Self { gate, call: Some(call), context }
    }

    /// What it shall do, having yielded so many times.
    pub(super) fn turn(&self, yielded: u8, waker: &Waker) -> Step {
        self.call.as_ref().map_or(Step::Start, |call| self.gate.turn(call, yielded, waker))
    }

    /// It leaves the line. If it may run, it has its turn until its handler waits or it ends.
    pub(super) fn start(mut self) -> Result<Running<S>, Refused> {
        let call = self.call.take().expect("taken here only, and `self` ends here");
        let call = self.gate.start(call)?;
        Ok(Running { gate: Arc::clone(&self.gate), call: Some(call), context: self.context.clone() })
    }
}

impl<S: Server> Drop for Waiting<S> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.gate.cancel(call);
        }
    }
}

thread_local! {
    /// The gate whose handler this thread is polling, by its address; 0 for none.
    static POLLED: Cell<usize> = const { Cell::new(0) };
}

/// A handler is being polled by this thread. A call that it makes to its own service, in the same task, would wait for the
/// turn that the handler needs itself; those that it makes to others are made for the call.
pub(super) struct Polling {
    before: usize,
    _current: Entered,
}

impl Polling {
    fn begin<S>(gate: &Arc<Gate<S>>, context: &CallContext) -> Self {
        let current = Entered::new(Some(context.clone()));
        Self { before: POLLED.replace(Arc::as_ptr(gate).addr()), _current: current }
    }

    /// Whether it is one behind this gate.
    pub(super) fn is_of<S>(gate: &Arc<Gate<S>>) -> bool {
        POLLED.get() == Arc::as_ptr(gate).addr()
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLED.set(self.before);
    }
}

/// A call whose handler runs. Dropping it cancels it.
pub(super) struct Running<S: Server> {
    gate: Arc<Gate<S>>,
    call: Option<Begun>,
    context: CallContext,
}

impl<S: Server> Running<S> {
    /// Until when it counts as running.
    pub(super) fn until(&self) -> Until {
        self.gate.config.until
    }

    /// Its handler waits.
    pub(super) fn pause(&mut self, pause: Pause) {
        self.call = self.call.take().map(|call| self.gate.pause(call, pause));
    }

    /// Whether its handler was polled and waits.
    pub(super) fn is_paused(&self) -> bool {
        self.call.as_ref().is_some_and(Begun::is_paused)
    }

    /// What it shall do now that its task was woken, having yielded so many times. After [`Step::Start`] it has its turn.
    pub(super) fn go_on(&mut self, yielded: u8, waker: &Waker) -> Step {
        let Some(call) = self.call.take() else { return Step::Start };
        let (call, step) = self.gate.go_on(call, yielded, waker);
        self.call = Some(call);
        step
    }

    /// There is a method of the name that it came with.
    pub(super) fn name_method(&self, name: &str) {
        self.gate.name_method(name);
    }

    /// To be held while its handler is polled.
    pub(super) fn polling(&self) -> Polling {
        Polling::begin(&self.gate, &self.context)
    }

    /// It ended; what its answer shall carry.
    pub(super) fn end(mut self, done: Done) -> Option<GrantHeader> {
        let call = self.call.take()?;
        self.gate.finish(call, done)
    }
}

impl<S: Server> Drop for Running<S> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.gate.finish(call, Done::Cancelled);
        }
    }
}
