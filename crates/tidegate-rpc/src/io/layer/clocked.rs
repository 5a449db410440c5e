//! Sleeping as tokio does it: in whole milliseconds.

use core::time::Duration;

pub(super) use tokio::time::Sleep;

/// tokio's timers tick in milliseconds. A machine whose timer is due but does nothing must not make a loop without end
/// of those who wait for it, so one tick passes at least.
const TICK: Duration = Duration::from_millis(1);

/// Sleeps for `span`, a tick at least.
pub(super) fn sleep(span: Duration) -> Sleep {
    tokio::time::sleep(span.max(TICK))
}
