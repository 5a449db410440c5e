//! The service behind a proxy: what it can answer is stated, and takes no processor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::plan::Plan;

/// One request after the other, each for the same time; pure.
#[derive(Debug)]
struct Line {
    each: Duration,
    waiting_max: u32,
    /// When all that wait are done.
    free_at: Instant,
}

impl Line {
    fn new(plan: &Plan) -> Self {
        let each = Duration::from_secs_f64(1.0 / plan.capacity_per_s);
        Self { each, waiting_max: plan.waiting_max, free_at: Instant::ZERO }
    }

    /// When the work on a request that came now is done; `None` if too many wait already.
    fn enter(&mut self, now: Instant) -> Option<Instant> {
        if self.free_at.since(now) >= self.each * self.waiting_max {
            return None;
        }
        self.free_at = self.free_at.max(now) + self.each;
        Some(self.free_at)
    }
}

/// A service as `plan` has it.
pub(super) fn router(plan: &Plan) -> Router {
    Router::new().fallback(answer).with_state(Arc::new(Mutex::new(Line::new(plan))))
}

/// Work that was begun is done, whether or not somebody still waits for it: so is that of most services.
async fn answer(State(line): State<Arc<Mutex<Line>>>) -> (StatusCode, &'static str) {
    let now = clock::now();
    // Bound here, so that the lock is gone before the work begins.
    let done = line.lock().unwrap_or_else(PoisonError::into_inner).enter(now);
    match done {
        Some(done) => {
            tokio::time::sleep(done.since(now)).await;
            (StatusCode::OK, "answered\n")
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, "too many wait\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn requests_are_done_one_after_the_other_and_only_so_many_wait() {
        let mut line = Line::new(&Plan { waiting_max: 3, ..Plan::default() });
        let done: Vec<_> = (0..4).map(|_| line.enter(ms(10))).collect();
        assert_eq!(done, [Some(ms(11)), Some(ms(12)), Some(ms(13)), None]);
        assert_eq!(line.enter(ms(11)), Some(ms(14)), "one is done, so there is room for one");
        assert_eq!(line.enter(ms(100)), Some(ms(101)), "rest is not saved up");
    }
}
