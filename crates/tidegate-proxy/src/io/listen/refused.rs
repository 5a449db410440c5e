//! Connections that are refused and not ended yet.
//!
//! To end one is half of what refusing it costs, and nobody waits for it: those who wait to be taken come first. But it ends
//! soon in any case, and few wait for that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tidegate_core::Instant;

/// As long as nobody waits to be taken, so many are ended before other work has its turn.
const ENDS: usize = 16;
/// How long one waits for its end. Then it is ended whoever waits to be taken.
const LONGEST: Duration = Duration::from_millis(100);
/// Of those that waited so long, so many are ended before other work has its turn: as many as are taken meanwhile.
const LATE_MAX: usize = crate::io::listen::tuning::BATCH;
/// How many wait at most; of the places of a thread one in so many. Each has a file, and those are for who is served.
const MOST: usize = 1024;
const PART: usize = 32;

/// A connection that is refused, and not ended yet.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) socket: OwnedFd,
    /// Its first bytes are still the socket's.
    pub(crate) unread: bool,
    /// When it was refused.
    pub(crate) since: Instant,
}

/// A thread's, of each port in the order in which they were refused.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    ports: RefCell<Vec<VecDeque<Refused>>>,
    all: Cell<usize>,
}

impl Waiting {
    /// Adds one. Who adds some ends those that are [due](Self::due) next.
    pub(crate) fn push(&self, port: usize, refused: Refused) {
        let mut ports = self.ports.borrow_mut();
        if port >= ports.len() {
            ports.resize_with(port + 1, VecDeque::new);
        }
        ports[port].push_back(refused);
        self.all.set(self.all.get() + 1);
    }

    /// Takes the one of `port` that waits longest.
    pub(crate) fn pop(&self, port: usize) -> Option<Refused> {
        let refused = self.ports.borrow_mut().get_mut(port)?.pop_front()?;
        self.all.set(self.all.get() - 1);
        Some(refused)
    }

    /// Takes one of any port.
    pub(crate) fn pop_any(&self) -> Option<Refused> {
        let port = self.ports.borrow().iter().position(|queue| !queue.is_empty())?;
        self.pop(port)
    }

    /// Whether none wait, of any port.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.get() == 0
    }

    /// Whether none of `port` wait.
    pub(crate) fn is_empty_at(&self, port: usize) -> bool {
        self.ports.borrow().get(port).is_none_or(VecDeque::is_empty)
    }

    /// How many of `port` are to be ended now. `is_idle` says that no others are taken there for now; the
    /// thread has `places`.
    pub(crate) fn due(&self, port: usize, is_idle: bool, places: usize, now: Instant) -> usize {
        let over = self.all.get().saturating_sub(MOST.min(places / PART));
        let ports = self.ports.borrow();
        let Some(queue) = ports.get(port) else { return 0 };
        let late = queue.iter().take(LATE_MAX).take_while(|refused| now.since(refused.since) >= LONGEST).count();
        let spare = if is_idle { ENDS } else { 0 };
        over.max(late).max(spare).min(queue.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn waiting(ports: &[(usize, usize)]) -> Waiting {
        let waiting = Waiting::default();
        for &(port, many) in ports {
            for _ in 0..many {
                let socket = std::fs::File::open("/dev/null").unwrap().into();
                waiting.push(port, Refused { socket, unread: true, since: at(1_000) });
            }
        }
        waiting
    }

    #[test]
    fn while_others_wait_to_be_taken_a_refused_one_waits_but_not_for_long() {
        let waiting = waiting(&[(0, 40)]);
        assert_eq!(waiting.due(0, false, 100_000, at(1_099)), 0);
        assert_eq!(waiting.due(0, true, 100_000, at(1_099)), ENDS);
        assert_eq!(waiting.due(0, false, 100_000, at(1_100)), LATE_MAX);
        assert_eq!(waiting.due(1, true, 100_000, at(1_100)), 0, "there is none of that port");
    }

    #[test]
    fn an_idle_port_does_not_end_what_a_busy_one_refused() {
        let waiting = waiting(&[(1, 40)]);
        assert!(waiting.is_empty_at(0) && !waiting.is_empty_at(1));
        assert_eq!(waiting.due(0, true, 100_000, at(1_000)), 0);
        assert!(waiting.pop(0).is_none() && waiting.pop(1).is_some());
    }

    #[test]
    fn few_wait_at_all_ports_together() {
        let waiting = waiting(&[(0, 60), (1, 5)]);
        let places = 60 * PART;
        assert_eq!(waiting.due(1, false, places, at(1_000)), 5);
        (0..5).for_each(|_| drop(waiting.pop(1)));
        assert_eq!(waiting.due(0, false, places, at(1_000)), 0);
        assert_eq!(waiting.due(0, false, 0, at(1_000)), 60, "where there are no places none waits");
        (0..60).for_each(|_| assert!(waiting.pop_any().is_some()));
        assert!(waiting.is_empty() && waiting.pop_any().is_none());
    }
}
