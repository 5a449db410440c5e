//! Load of TCP between two hosts: bulk flows, and a probe that feels what they do to others.
//!
//! | module | its one job |
//! |---|---|
//! | [`receive`](mod@receive) | takes in bulk, answers requests, counts datagrams |
//! | [`send`](mod@send) | one measured run: bulk, the probe, and short flows or datagrams beside them |
//! | [`burst`](mod@burst) | many flows that write at once |
//! | [`report`] | what it found |
//!
//! One process on each side with few threads, cheap enough that both and the kernel between them fit on two CPUs. What
//! TCP itself knows is asked of it each millisecond (`TCP_INFO`). Times in which the machine ran nothing of ours
//! ([`crate::gaps`]) are known, and each figure is given with and without them.
//!
//! Bulk goes to the port of the receiver's address, requests to the next one, datagrams to that of bulk over UDP.

mod bulk;
pub mod burst;
pub mod churn;
pub mod flood;
mod info;
mod probe;
mod quiet;
pub mod receive;
pub mod report;
mod sample;
pub mod send;
mod short;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_runtime::{clock, slice};

use crate::error::LoadError;
use crate::poll::{Poller, prepare_thread, put_first};

/// A request and its answer.
pub(crate) const REQUEST_BYTES: usize = 64;
/// A receiver that was started beside the sender needs as long to listen, at most.
const CONNECT_NS: u64 = 3_000_000_000;

/// Where requests go.
fn requests_at(mut address: SocketAddr) -> SocketAddr {
    address.set_port(address.port().saturating_add(1));
    address
}

/// A thread that measures: it goes first where that is allowed, else as soon as it wakes.
fn prepare_measuring_thread() -> Result<(), LoadError> {
    prepare_thread(None)?;
    if put_first().is_err() {
        slice::run_when_woken();
    }
    Ok(())
}

/// Connects, with `congestion` for what is sent; waits for a receiver that does not listen yet.
fn connect(address: SocketAddr, congestion: &str) -> Result<TcpStream, LoadError> {
    let give_up = clock::now().plus_nanos(CONNECT_NS);
    let stream = loop {
        match TcpStream::connect_timeout(&address, Duration::from_nanos(CONNECT_NS)) {
            Ok(stream) => break stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && clock::now() < give_up => {
                Poller::new()?.sleep(clock::now().plus_nanos(50_000_000))?;
            }
            Err(source) => return Err(LoadError::Connect { address, source }),
        }
    };
    stream.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
    choose_congestion(&stream, congestion)?;
    Ok(stream)
}

/// An empty name leaves the kernel's own.
fn choose_congestion(stream: &TcpStream, congestion: &str) -> Result<(), LoadError> {
    if congestion.is_empty() {
        return Ok(());
    }
    rustix::net::sockopt::set_tcp_congestion(stream, congestion)
        .map_err(|error| LoadError::os("choose the congestion control (is its module there?)")(error.into()))
}
