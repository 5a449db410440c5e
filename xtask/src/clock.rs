//! The one place here that reads the clock: steps are timed, servers get time to start.

use std::time::Duration;

/// Runs from its creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    start: std::time::Instant,
}

impl Stopwatch {
    /// Starts at zero.
    pub(crate) fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the only clock of the tooling; tidegate-runtime would be a heavy dependency"
        )]
        let start = std::time::Instant::now();
        Self { start }
    }

    /// Time since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.start.elapsed()
    }
}

/// Nanoseconds of the monotonic clock, which a broker and a load generator on this machine read too.
pub(crate) fn monotonic_ns() -> i128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Lets `span` go by: an operator rests between two actions.
pub(crate) fn rest(span: Duration) {
    let watch = Stopwatch::start();
    // A parked thread may be woken for nothing.
    while let Some(left) = span.checked_sub(watch.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Asks `ready` every 20 ms until it answers, at most for `limit`.
pub(crate) fn poll<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = ready() {
            return Some(found);
        }
        if watch.elapsed() >= limit {
            return None;
        }
        // A foreign server tells nobody when it listens, so there is nothing to wait on but time.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
