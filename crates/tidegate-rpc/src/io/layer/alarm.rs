//! Runs the machine's timers when no call comes or ends, which would run them otherwise.
//!
//! A task of the runtime around sleeps until the next timer is due. It is spawned when the first one is set, so a layer can
//! be made anywhere; calls that are polled outside of a runtime run timers only by what they do themselves. While no
//! timer is set the task waits and wakes nobody.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Weak};

use tidegate_core::Instant;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::clocked::sleep;

/// When an alarm is this late, its task may have ended with its runtime.
const LATE: Duration = Duration::from_secs(1);

/// What has timers.
pub(super) trait Timed: Send + Sync {
    /// Runs those that are due. In how long the next one is.
    fn run_timers(&self) -> Option<Duration>;
}

/// The task and what it was told. Dropping it ends the task.
pub(super) struct Alarm {
    timed: Weak<dyn Timed>,
    /// Until when the task sleeps; [`Instant::MAX`] for ever.
    set_to: Instant,
    earlier: Arc<Notify>,
    task: Option<JoinHandle<()>>,
    /// The task panicked, most likely since the runtime has no timers: it would again.
    is_broken: bool,
}

impl Alarm {
    /// An alarm that is not set.
    pub(super) fn new(timed: Weak<dyn Timed>) -> Self {
        Self { timed, set_to: Instant::MAX, earlier: Arc::default(), task: None, is_broken: false }
    }

    /// The next timer is due at `next`. Costs nothing if the task will be awake by then.
    #[inline]
    pub(super) fn set(&mut self, next: Option<Instant>, now: Instant) {
        if let Some(next) = next
            && (next < self.set_to || now > self.set_to + LATE)
        {
            self.set_earlier(next);
        }
    }

    /// The task is awake, and will sleep until then.
    pub(super) fn woke(&mut self, next: Option<Instant>) {
        self.set_to = next.unwrap_or(Instant::MAX);
    }

    #[cold]
    fn set_earlier(&mut self, next: Instant) {
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            self.is_broken |= self.task.take().is_some_and(panicked);
        }
        if self.task.is_some() {
            self.earlier.notify_one();
        } else if let Ok(runtime) = Handle::try_current()
            && !self.is_broken
        {
            self.task = Some(runtime.spawn(run(Weak::clone(&self.timed), Arc::clone(&self.earlier))));
        } else {
            return;
        }
        self.set_to = next;
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Whether a task that has ended panicked.
fn panicked(mut task: JoinHandle<()>) -> bool {
    let outcome = Pin::new(&mut task).poll(&mut Context::from_waker(Waker::noop()));
    matches!(outcome, Poll::Ready(Err(error)) if error.is_panic())
}

async fn run(timed: Weak<dyn Timed>, earlier: Arc<Notify>) {
    loop {
        // Not held while it sleeps: it would keep alive what owns this task.
        let Some(next) = timed.upgrade().map(|timed| timed.run_timers()) else { return };
        let earlier = earlier.notified();
        match next {
            Some(span) => {
                tokio::select! {
                    () = sleep(span) => {}
                    () = earlier => {}
                }
            }
            None => earlier.await,
        }
    }
}
