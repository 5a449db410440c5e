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

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
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
        let stream = socket_for(address, congestion, SocketFlags::empty())?;
        let patience = Some(Duration::from_nanos(CONNECT_NS));
        // It bounds the connecting too.
        set_socket_timeout(&stream, Timeout::Send, patience)
            .map_err(|error| LoadError::os("configure a socket")(error.into()))?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => break stream,
            Err(rustix::io::Errno::CONNREFUSED) if clock::now() < give_up => {
                Poller::new()?.sleep(clock::now().plus_nanos(50_000_000))?;
            }
            Err(error) => return Err(LoadError::Connect { address, source: error.into() }),
        }
    };
    stream.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
    Ok(stream)
}

/// A socket that is still to be connected. Its congestion control is chosen before: BBR, if it is the kernel's own, starts with
/// the connection, and its pacing goes on under any other.
fn socket_for(address: SocketAddr, congestion: &str, flags: SocketFlags) -> Result<TcpStream, LoadError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)
        .map_err(|error| LoadError::os("make a socket")(error.into()))?;
    let stream = TcpStream::from(socket);
    choose_congestion(&stream, congestion)?;
    Ok(stream)
}

/// An empty name leaves the kernel's own.
fn choose_congestion(socket: impl AsFd, congestion: &str) -> Result<(), LoadError> {
    if congestion.is_empty() {
        return Ok(());
    }
    set_tcp_congestion(socket, congestion)
        .map_err(|error| LoadError::os("choose the congestion control (is its module there?)")(error.into()))
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<JoinHandle<Result<T, LoadError>>, LoadError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadError::os("start a thread"))
}

fn join<T>(thread: JoinHandle<Result<T, LoadError>>) -> Result<T, LoadError> {
    thread.join().expect("a thread of load panicked")
}
