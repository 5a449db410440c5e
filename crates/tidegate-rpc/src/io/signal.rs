//! A tokio runtime that reads requests when they arrive.
//!
//! tokio looks at its sockets after every 61 tasks. With handlers of 1 ms that is every 61 ms: requests wait in the
//! kernel, unseen by any signal, and refusals wait with them. [`runtime`] makes it look more often. Together with the
//! layer's line, which lets only as many handlers start at once as there are threads, a request's bytes are then read
//! within about one handler's time of their arrival, and its wait is measured from there: the run queue counts.
//!
//! Handlers that compute longer than the queueing delay that is wanted should yield, or run on `spawn_blocking`: no
//! executor can take a core back.

use tokio::runtime::Builder;

/// Tasks between two looks at the sockets. Between two handlers there are about four short tasks (a connection is read,
/// its requests are looked at, refusals are written, the next handler's turn comes), so this is one look for each
/// handler; a look costs one system call.
pub const TASKS_BETWEEN_LOOKS: u32 = 4;

/// A builder of a runtime of `threads` threads, all drivers enabled; tell the layer's configuration the same number.
///
/// One thread gives the single-threaded runtime: no lock in the run queue, and tasks run in the order in which they
/// were woken, so that arrival stamps are exact. To use several cores without their costs, run one such runtime for each
/// core and share the listening port by `SO_REUSEPORT`.
#[must_use]
pub fn runtime(threads: usize) -> Builder {
    let mut builder = if threads <= 1 {
        Builder::new_current_thread()
    } else {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads);
        builder
    };
    builder.enable_all().event_interval(TASKS_BETWEEN_LOOKS);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_one_and_of_two_threads_run() {
        for threads in [1, 2] {
            let runtime = runtime(threads).build().unwrap();
            assert_eq!(runtime.metrics().num_workers(), threads);
            assert_eq!(runtime.block_on(async { tokio::spawn(async { 7 }).await.unwrap() }), 7);
        }
    }
}
