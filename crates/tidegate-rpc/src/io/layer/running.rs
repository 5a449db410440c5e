//! A call that is told to the machine exactly once, however it ends.

use std::sync::Arc;
use std::task::Waker;

use super::config::Until;
use super::gate::{Call, Gate, Refused, Step};
use super::headers::GrantHeader;
use crate::machine::{Done, Server};

/// A call in line. Dropping it cancels it.
pub(super) struct Waiting<S: Server> {
    gate: Arc<Gate<S>>,
    call: Option<Call>,
}

impl<S: Server> Waiting<S> {
    pub(super) fn new(gate: Arc<Gate<S>>, call: Call) -> Self {
        Self { gate, call: Some(call) }
    }

    /// What it shall do, having yielded so many times.
    pub(super) fn turn(&self, yielded: u8, waker: &Waker) -> Step {
        self.call.as_ref().map_or(Step::Start, |call| self.gate.turn(call, yielded, waker))
    }

    /// Its turn came. The second value hands the turn on when it is dropped, which is due after the first poll.
    pub(super) fn start(mut self) -> Result<(Running<S>, Starting<S>), Refused> {
        let mut call = self.call.take().expect("taken here only, and `self` ends here");
        self.gate.start(&mut call)?;
        let starting = Starting { gate: Arc::clone(&self.gate) };
        Ok((Running { gate: Arc::clone(&self.gate), call: Some(call) }, starting))
    }
}

impl<S: Server> Drop for Waiting<S> {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            self.gate.cancel_waiting(call);
        }
    }
}

/// The turn of a call whose handler is polled for the first time. Handed on when dropped, also if the handler panics.
pub(super) struct Starting<S: Server> {
    gate: Arc<Gate<S>>,
}

impl<S: Server> Drop for Starting<S> {
    fn drop(&mut self) {
        self.gate.hand_back();
    }
}

/// A call whose handler runs. Dropping it cancels it.
pub(super) struct Running<S: Server> {
    gate: Arc<Gate<S>>,
    call: Option<Call>,
}

impl<S: Server> Running<S> {
    /// Until when it counts as running.
    pub(super) fn until(&self) -> Until {
        self.gate.config.until
    }

    /// Its handler waits for its client.
    pub(super) fn pause(&mut self) {
        if let Some(call) = &mut self.call {
            self.gate.pause(call);
        }
    }

    /// Its handler is about to be polled.
    pub(super) fn resume(&mut self) {
        if let Some(call) = &mut self.call {
            self.gate.resume(call);
        }
    }

    /// It ended; what its answer shall carry.
    pub(super) fn end(mut self, done: Done) -> Option<GrantHeader> {
        let call = self.call.take()?;
        self.gate.finish(&call, done)
    }
}

impl<S: Server> Drop for Running<S> {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            self.gate.finish(call, Done::Cancelled);
        }
    }
}
