//! Calls that wait for far longer than others of the service do not keep those from cores that have nothing to do.

use super::*;
use crate::machine::desk::{Arrival, Desk, Pause, Running};

const MS: Duration = Duration::from_millis(1);

/// A server of one core, and the time there.
struct One {
    desk: Desk<CreditServer, ()>,
    session: SessionId,
    now: Instant,
}

impl One {
    fn new() -> Self {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut desk = Desk::new(CreditServer::new(Config::default(), 1, now), 1);
        let session = desk.machine_mut().open(Tenant(0), now).unwrap();
        Self { desk, session, now }
    }

    /// A call that comes now, and starts when it may; `None` if it is refused.
    fn start(&mut self) -> Option<Running> {
        let ask = Ask::default();
        let arrival = Arrival::new(self.session, &ask, self.now);
        let waiting = self.desk.on_request(&arrival, (), self.now).ok()?;
        while self.desk.poll_call(self.now).is_none() && self.desk.poll_expired(self.now).is_none() {
            self.now += MS / 10;
            self.desk.on_timeout(Duration::ZERO, self.now);
        }
        self.desk.start(waiting, self.now).ok()
    }

    /// Of so many calls of 1 ms, each 1 ms after the one before, those that are served.
    fn serve(&mut self, calls: u32) -> u32 {
        let mut served = 0;
        for _ in 0..calls {
            if let Some(running) = self.start() {
                self.now += MS;
                self.desk.end(running, Done::Served, self.now);
                served += 1;
            }
            self.now += MS;
        }
        served
    }
}

#[test]
fn calls_that_hang_leave_others_the_idle_cores() {
    let mut one = One::new();
    assert_eq!(one.serve(5_000), 5_000);
    let limit = one.desk.machine().core_limit;
    assert!((5..50).contains(&limit), "as many as are enough for one core: {limit}");
    let hanging: Vec<_> = (0..limit)
        .filter_map(|_| {
            let running = one.start()?;
            Some(one.desk.pause(running, Pause::Else, one.now))
        })
        .collect();
    assert!(hanging.len() + 2 > limit as usize, "{} of {limit}", hanging.len());
    assert!(one.serve(2_000) >= 1_950, "they take places, and no core");
}
