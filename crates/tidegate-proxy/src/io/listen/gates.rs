//! Gates are turned when the time of somebody who waits has come.

use std::rc::Rc;
use std::time::Duration;

use tidegate_runtime::clock;

use crate::io::listen::thread::Thread;

/// Turns the gates of a thread's settings when the time of somebody who waits has come. Never ends; one in the whole
/// proxy is enough.
pub(crate) async fn drive(thread: Rc<Thread>) {
    // Nobody waits: until somebody does, there is nothing to look at.
    const NEVER: Duration = Duration::from_hours(1);
    loop {
        let settings = thread.settings();
        let next = settings.gates.iter().filter_map(|gate| gate.next_timeout()).min();
        tokio::select! {
            () = tokio::time::sleep(next.map_or(NEVER, |next| next - clock::now())) => {}
            () = settings.gates_queued.notified() => continue,
        }
        let now = clock::now();
        settings.gates.iter().for_each(|gate| gate.turn(now));
    }
}
