//! From one lane of a core to the other.
//!
//! The foreground thread accepts, and serves tenants within their shares. The overflow thread is scheduled only when
//! the core has nothing else to do, and serves what was admitted beyond: so a neighbour's excess takes what is left of
//! the core and delays nobody. A connection changes its lane before its handshake or first request, or between two requests.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::mpsc;

use super::gate::Pass;
use super::service::Charged;
use super::thread::{Origin, Thread, Total};
use super::transport::Dismantled;

/// Connections that may be on their way from one lane to the other; a full channel means that the other lane does not
/// get to run, and the connection stays or is refused.
pub(crate) const ON_THE_WAY_MAX: usize = 4096;

/// Handshakes that wait for the overflow lane may take so much of the core's time together; more are refused, but for
/// those that are owed. What waits longer is no use to its client, and its turn would come before that of who asks now.
pub(crate) const WAITING_MAX: Duration = Duration::from_millis(100);

/// The core's time that handshakes are expected to take which wait for its overflow lane, in nanoseconds.
pub(crate) type Waiting = Arc<AtomicU64>;

/// One handshake's part of what waits, until its turn comes.
#[derive(Debug)]
pub(crate) struct Turn {
    waiting: Waiting,
    ns: u64,
}

impl Turn {
    /// A place among those that wait; if there is none, how long what waits will take.
    pub(crate) fn take(waiting: &Waiting, ns: u64) -> Result<Self, Duration> {
        // A number to compare: nothing else depends on it. Only the foreground adds to it, so it stays below its bound.
        let before = Duration::from_nanos(waiting.load(Ordering::Relaxed));
        if before >= WAITING_MAX {
            return Err(before);
        }
        waiting.fetch_add(ns, Ordering::Relaxed);
        Ok(Self { waiting: Arc::clone(waiting), ns })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.ns, Ordering::Relaxed);
    }
}

/// A connection's way to the other lane, until its turn comes there.
#[derive(Debug)]
pub(crate) struct Passage {
    all: Arc<AtomicUsize>,
}

impl Passage {
    /// One of `all`.
    pub(crate) fn begin(all: &Arc<AtomicUsize>) -> Self {
        // A number to see that nobody is left.
        all.fetch_add(1, Ordering::Relaxed);
        Self { all: Arc::clone(all) }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on its way.
#[derive(Debug)]
pub(crate) enum Handover {
    /// Just accepted; its first bytes were read.
    Fresh(Box<Fresh>),
    /// Served until now on the other lane; its next request is there and paid for.
    Served(Box<Moved>),
}

/// A connection before its first request.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) socket: std::net::TcpStream,
    pub(crate) origin: Origin,
    /// Read behind any PROXY header.
    pub(crate) early: Vec<u8>,
    /// Whom it is charged to, as the limiter calls him.
    pub(crate) tenant: super::limiter::Tenant,
    /// Nanoseconds that were charged for its handshake.
    pub(crate) handshake_ns: u64,
    /// Nanoseconds that it took to take it, which nobody was charged for.
    pub(crate) taken_ns: u64,
    pub(crate) pass: Option<Pass>,
    /// Of one that goes to the overflow lane before its handshake.
    pub(crate) turn: Option<Turn>,
    /// Of one that changes its lane.
    pub(crate) passage: Option<Passage>,
}

/// A connection between two requests.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) parts: Dismantled,
    pub(crate) origin: Origin,
    pub(crate) early: BytesMut,
    pub(crate) tenant: super::limiter::Tenant,
    pub(crate) charged: Charged,
    pub(crate) pass: Option<Pass>,
    /// Leave of the routes' gates that count connections.
    pub(crate) tracked: Vec<Pass>,
    pub(crate) passage: Passage,
}

/// Serves what comes from the other lane.
pub(crate) async fn receive(thread: Rc<Thread>, mut from: mpsc::Receiver<Handover>) {
    while let Some(handover) = from.recv().await {
        thread.count(Total::Moved);
        super::serve::take_up(&thread, handover);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_wait_until_they_would_take_too_long_together_and_leave_when_their_turn_comes() {
        let waiting = Waiting::default();
        let mut turns: Vec<_> = (0..5).map(|_| Turn::take(&waiting, 20_000_000).unwrap()).collect();
        assert_eq!(Turn::take(&waiting, 1).unwrap_err(), Duration::from_millis(100));
        turns.pop();
        assert!(Turn::take(&waiting, 1).is_ok());
        drop(turns);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }
}
