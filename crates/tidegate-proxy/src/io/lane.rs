//! From one lane of a core to the other.
//!
//! The foreground thread accepts, and serves tenants within their shares. The overflow thread is scheduled only when
//! the core has nothing else to do, and serves what was admitted beyond: so a neighbour's excess takes what is left of
//! the core and delays nobody. A connection changes its lane before its handshake, or between two requests.

use std::rc::Rc;

use bytes::BytesMut;
use tokio::sync::mpsc;

use super::gate::Pass;
use super::service::Charged;
use super::thread::{Origin, Thread, Total};
use super::transport::Dismantled;

/// Connections that may be on their way from one lane to the other; a full channel means that the other lane does not
/// get to run, and the connection stays or is refused.
pub(crate) const ON_THE_WAY_MAX: usize = 4096;

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
    pub(crate) pass: Option<Pass>,
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
}

/// Serves what comes from the other lane.
pub(crate) async fn receive(thread: Rc<Thread>, mut from: mpsc::Receiver<Handover>) {
    while let Some(handover) = from.recv().await {
        thread.count(Total::Moved);
        super::serve::take_up(&thread, handover);
    }
}
