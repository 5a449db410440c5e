//! How often a foreground thread wakes while its core's overflow lane works.
//!
//! To be woken for each byte that comes takes the processor away from the other lane and gives it back: dearer than most of
//! what it is woken for. So beyond a burst, and as long as the other lane has work, it looks at its sockets at intervals, as
//! network cards moderate their interrupts. Who asks for little is served at once.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::Instant;

use super::meter;

/// A thread may wake once in so long, on average, as soon as there is something.
const EVERY: Duration = Duration::from_millis(1);
/// So many wakes may come together.
const BURST: u32 = 64;
/// Beyond these, how long it waits before it looks again.
const PAUSE: Duration = Duration::from_micros(100);

/// Whether a core's overflow lane has work: set by that lane, read by the other.
pub(crate) type Works = Arc<AtomicBool>;

thread_local! {
    static PACE: Pace = const { Pace::new() };
}

/// A token bucket of wakes.
///
/// Source: the generic cell rate algorithm (ITU-T I.371, annex A), as a virtual schedule.
#[derive(Debug)]
struct Pace {
    /// When all wakes so far are paid for.
    paid: Cell<Instant>,
}

impl Pace {
    const fn new() -> Self {
        Self { paid: Cell::new(Instant::ZERO) }
    }

    /// Whether the thread may wake for whatever comes first.
    fn may_wake(&self, now: Instant) -> bool {
        let paid = self.paid.get().max(now);
        let may = paid.since(now) < EVERY * BURST;
        if may {
            self.paid.set(paid + EVERY);
        }
        may
    }
}

/// To be called by a foreground thread that is about to wait.
#[expect(clippy::disallowed_methods, reason = "the whole thread is to wait, and whatever would wake its runtime too")]
pub(crate) fn moderate(works: &Works) {
    // What it is about to miss waits for a fraction of a millisecond, whichever it reads.
    if works.load(Ordering::Relaxed) && !PACE.with(|pace| pace.may_wake(meter::now())) {
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_a_millisecond_wake_at_once() {
        let (pace, at) = (Pace::new(), |ms: u64| Instant::from_nanos((1_000 + ms) * 1_000_000));
        assert!((0..BURST).all(|_| pace.may_wake(at(0))));
        assert!(!pace.may_wake(at(0)));
        for ms in 1..100 {
            assert!(pace.may_wake(at(ms)) && !pace.may_wake(at(ms)), "{ms}");
        }
        assert!((0..BURST).all(|_| pace.may_wake(at(1_000))));
        assert!(!pace.may_wake(at(1_000)));
    }
}
