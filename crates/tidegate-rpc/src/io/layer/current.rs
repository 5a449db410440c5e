//! The call that a handler works for: what it hands down to the calls that the handler makes.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::cell::Cell;

use pin_project_lite::pin_project;
use tidegate_core::Instant;

use super::gate::Arrival;
use crate::machine::{Priority, Tenant};

/// What a call hands down to the calls that its handler makes: its deadline, its priority and its tenant.
///
/// The server's layer attaches it to each request as an extension, and it is [`CallContext::current`] wherever the task of
/// the handler is polled. The client's layer reads it there, unless the request that it sends carries one of its own: so a
/// handler that calls another service has nothing to do. A task that a handler spawns is no part of the handler's, and
/// inherits nothing but by [`inherit`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallContext {
    /// When an answer of the handler would come too late for its caller, by the clock of the layers; `None` if never.
    pub deadline: Option<Instant>,
    /// How much the call matters.
    pub priority: Priority,
    /// Its tenant.
    pub tenant: Tenant,
}

thread_local! {
    /// That of the handler, or of the [`Inherit`], which this thread is polling.
    static CURRENT: Cell<Option<CallContext>> = const { Cell::new(None) };
}

impl CallContext {
    /// That of a call which arrived at a server. Of the time that its caller leaves, the shortest way there and back is gone.
    pub(super) fn of(arrival: &Arrival<'_>, now: Instant) -> Self {
        let ask = &arrival.ask;
        let arrived = arrival.arrived.map_or(now, |arrived| arrived.min(now));
        let deadline = ask.budget.map(|budget| arrived + budget.saturating_sub(ask.round_trip));
        Self { deadline, priority: ask.priority, tenant: ask.tenant }
    }

    /// That of the handler which runs here; `None` outside of handlers, and in tasks that inherited none.
    #[must_use]
    pub fn current() -> Option<Self> {
        let current = CURRENT.take();
        CURRENT.set(current.clone());
        current
    }

    /// Polls `future` for this call, in whatever task it runs.
    pub fn scope<F>(self, future: F) -> Inherit<F> {
        Inherit { context: Some(self), future }
    }

    /// Runs `work` for this call: what a thread of `spawn_blocking` does, for example.
    pub fn within<R>(self, work: impl FnOnce() -> R) -> R {
        let _entered = Entered::new(Some(self));
        work()
    }
}

/// Polls `future` for the call that is current now: `tokio::spawn(inherit(work))`.
pub fn inherit<F>(future: F) -> Inherit<F> {
    Inherit { context: CallContext::current(), future }
}

/// Polls `future` for no call: what it sends may outlive the call that it is made in, with a priority of its own.
pub fn detached<F>(future: F) -> Inherit<F> {
    Inherit { context: None, future }
}

/// A call is current as long as this lives, and then that which was before.
pub(super) struct Entered {
    before: Option<CallContext>,
}

impl Entered {
    pub(super) fn new(context: Option<CallContext>) -> Self {
        Self { before: CURRENT.replace(context) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

pin_project! {
    /// A future that is polled for a certain call, or for none. Made by [`inherit`], [`detached`] and
    /// [`CallContext::scope`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Inherit<F> {
        context: Option<CallContext>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Inherit<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = Entered::new(this.context.clone());
        this.future.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(priority: u8) -> CallContext {
        CallContext { priority: Priority(priority), ..CallContext::default() }
    }

    fn current() -> Option<u8> {
        CallContext::current().map(|context| context.priority.0)
    }

    #[tokio::test]
    async fn a_spawned_task_inherits_by_the_wrapper_only() {
        with(3)
            .scope(async {
                assert_eq!(current(), Some(3));
                assert_eq!(tokio::spawn(async { current() }).await.unwrap(), None);
                assert_eq!(tokio::spawn(inherit(async { current() })).await.unwrap(), Some(3));
                assert_eq!(tokio::spawn(detached(async { current() })).await.unwrap(), None);
                assert_eq!((detached(async { current() }).await, current()), (None, Some(3)));
                let context = CallContext::current().unwrap();
                assert_eq!(tokio::task::spawn_blocking(|| context.within(current)).await.unwrap(), Some(3));
            })
            .await;
        assert_eq!(current(), None);
    }

    #[test]
    fn a_panic_leaves_no_call_behind() {
        let panicked = std::panic::catch_unwind(|| with(1).within(|| with(2).within(|| panic!("on purpose"))));
        assert!(panicked.is_err());
        assert_eq!(current(), None);
    }
}
