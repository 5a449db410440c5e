//! The receiving side: takes in bulk and datagrams, answers requests.
//!
//! Bulk is discarded in the kernel (`MSG_TRUNC`), without a copy. Requests have a thread of their own that goes first, so
//! that the probe feels the network and not this process.

use nix::sys::socket::SetSockOpt as _;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use slab::Slab;
use tidegate_runtime::{clock, slice};

use super::{REQUEST_BYTES, choose_congestion, flood, prepare_measuring_thread, requests_at};
use crate::error::LoadError;
use crate::load_thread::{LoadThread, StopSign};
use crate::poll::{Poller, allow_open_files, prepare_thread};

/// The listener's token; connections have those below.
const LISTENER: u64 = 1 << 32;
/// What is discarded at once.
const READ_BYTES: usize = 1 << 20;
/// How often a thread looks whether it is to end.
const LOOK_NS: u64 = 50_000_000;
/// Datagrams taken in before other sockets have a turn.
const DATAGRAMS_MAX: usize = 64;

/// What to listen on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiveConfig {
    /// For bulk, and for datagrams.
    pub address: SocketAddr,
    /// For requests; the next port if it is not given.
    pub requests: Option<SocketAddr>,
    /// Congestion control of what is sent; the kernel's own if empty.
    pub congestion: String,
    /// Connections at once, of each kind.
    pub connections: usize,
    /// Ends after this; without it, when standard input does.
    pub duration_ms: Option<u64>,
}

impl Default for ReceiveConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 5201)),
            requests: None,
            congestion: String::new(),
            connections: 8_192,
            duration_ms: None,
        }
    }
}

/// What came in.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReceiveReport {
    /// Connections of bulk.
    pub connections: u64,
    /// Payload on them.
    pub bytes: u64,
    /// How often it was taken in.
    pub reads: u64,
    /// Requests answered.
    pub answers: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// CPU time of this process.
    pub cpu_s: f64,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    bytes: AtomicU64,
    reads: AtomicU64,
    answers: AtomicU64,
    datagrams: AtomicU64,
}

// Relaxed: each count stands for itself, and is read for good once the threads have been joined.
fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Relaxed);
}

/// Receives until standard input or the time given ends.
///
/// # Errors
/// [`LoadError`] if the addresses cannot be bound or epoll fails.
pub fn run(config: &ReceiveConfig) -> Result<ReceiveReport, LoadError> {
    let receiver = Receiver::start(config)?;
    match config.duration_ms {
        Some(ms) => Poller::new()?.sleep(clock::now().plus_nanos(ms.saturating_mul(1_000_000)))?,
        None => io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(LoadError::os("read standard input"))?,
    }
    receiver.stop()
}

/// A receiver at work.
#[derive(Debug)]
pub struct Receiver {
    bulk: SocketAddr,
    requests: SocketAddr,
    counts: Arc<Counts>,
    threads: [LoadThread; 3],
}

impl Receiver {
    /// Listens and starts the threads.
    ///
    /// # Errors
    /// [`LoadError`] if the addresses cannot be bound.
    pub fn start(config: &ReceiveConfig) -> Result<Self, LoadError> {
        let connections = config.connections;
        allow_open_files(connections.saturating_mul(2))?;
        let bulk = listen(config.address, &config.congestion)?;
        let address = bulk.local_addr().map_err(LoadError::os("listen"))?;
        let requests = config.requests.unwrap_or_else(|| requests_at(config.address));
        let requests = listen(requests, &config.congestion)?;
        let requests_address = requests.local_addr().map_err(LoadError::os("listen"))?;
        let datagrams = UdpSocket::bind(address).map_err(LoadError::os("bind a UDP socket"))?;
        datagrams.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
        let counts = Arc::new(Counts::default());
        let (of_bulk, of_requests, of_datagrams) = (counts.clone(), counts.clone(), counts.clone());
        let threads = [
            LoadThread::start("bulk", move |stop| {
                slice::run_when_woken();
                prepare_thread(None)?;
                let mut discard = vec![0; READ_BYTES];
                let prepare = |stream: &TcpStream| LowWater.set(stream, &LOW_WATER_BYTES).is_ok();
                serve(&bulk, connections, &stop, prepare, |stream| take_in(stream, &mut discard, &of_bulk))
            })?,
            LoadThread::start("answers", move |stop| {
                prepare_measuring_thread()?;
                serve(&requests, connections, &stop, |_| true, |stream| answer(stream, &of_requests))
            })?,
            LoadThread::start("datagrams", move |stop| {
                prepare_measuring_thread()?;
                take_datagrams(&datagrams, &stop, &of_datagrams)
            })?,
        ];
        Ok(Self { bulk: address, requests: requests_address, counts, threads })
    }

    /// Where bulk and datagrams go.
    #[must_use]
    pub fn bulk_address(&self) -> SocketAddr {
        self.bulk
    }

    /// Where requests go.
    #[must_use]
    pub fn requests_address(&self) -> SocketAddr {
        self.requests
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`LoadError`] if one of its threads had to give up before.
    pub fn stop(self) -> Result<ReceiveReport, LoadError> {
        self.threads.iter().for_each(LoadThread::tell_to_stop);
        for thread in self.threads {
            thread.stop()?;
        }
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(ReceiveReport {
            connections: of(&self.counts.connections),
            bytes: of(&self.counts.bytes),
            reads: of(&self.counts.reads),
            answers: of(&self.counts.answers),
            datagrams: of(&self.counts.datagrams),
            cpu_s: Duration::from_nanos(clock::process_cpu_ns()).as_secs_f64(),
        })
    }
}

/// Bytes that a bulk connection waits for: the receiver is on the sender's processors here, and its reads are not what is
/// measured. The kernel acknowledges all the same, and the end of a stream is told at once.
const LOW_WATER_BYTES: i32 = 64 << 10;

/// `SO_RCVLOWAT`.
#[derive(Clone, Copy, Debug)]
struct LowWater;

nix::setsockopt_impl!(LowWater, libc::SOL_SOCKET, libc::SO_RCVLOWAT, i32, nix::sys::socket::sockopt::SetStruct<i32>);

fn listen(address: SocketAddr, congestion: &str) -> Result<TcpListener, LoadError> {
    let listener = TcpListener::bind(address).map_err(LoadError::os("listen"))?;
    choose_congestion(&listener, congestion)?;
    // std asks for a backlog of 128, too few for a thousand connections a second on a busy CPU.
    rustix::net::listen(&listener, 4_096).map_err(|error| LoadError::os("listen")(error.into()))?;
    listener.set_nonblocking(true).map_err(LoadError::os("configure a socket"))?;
    Ok(listener)
}

/// Accepts, and lets `one` do its work whenever there is something to read; a connection is over when it says false, or is
/// not taken if `prepare` does.
fn serve(
    listener: &TcpListener,
    connections: usize,
    stop: &StopSign,
    prepare: impl Fn(&TcpStream) -> bool,
    mut one: impl FnMut(&mut TcpStream) -> bool,
) -> Result<(), LoadError> {
    let mut poller = Poller::new()?;
    poller.add(listener, LISTENER).map_err(LoadError::os("watch a socket"))?;
    let mut peers: Slab<TcpStream> = Slab::new();
    while !stop.is_up() {
        poller.wait(clock::now().plus_nanos(LOOK_NS), 0)?;
        for index in 0.. {
            let Some(ready) = poller.ready(index) else { break };
            if ready.token == LISTENER {
                accept(listener, connections, &poller, &mut peers, &prepare)?;
                continue;
            }
            let key = usize::try_from(ready.token).expect("a token of ours");
            if peers.get_mut(key).is_some_and(|peer| !one(peer)) {
                // Closing a socket takes it out of the set.
                peers.remove(key);
            }
        }
    }
    Ok(())
}

fn accept(
    listener: &TcpListener,
    connections: usize,
    poller: &Poller,
    peers: &mut Slab<TcpStream>,
    prepare: impl Fn(&TcpStream) -> bool,
) -> Result<(), LoadError> {
    while let Ok((stream, _)) = listener.accept() {
        let is_ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok();
        if peers.len() < connections && is_ready && prepare(&stream) {
            let slot = peers.vacant_entry();
            poller.add(&stream, slot.key() as u64).map_err(LoadError::os("watch a socket"))?;
            slot.insert(stream);
        }
    }
    Ok(())
}

fn take_in(stream: &mut TcpStream, discard: &mut [u8], counts: &Counts) -> bool {
    match rustix::net::recv(&*stream, discard, RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => {
            add(&counts.connections, 1);
            false
        }
        Ok((_, bytes)) => {
            add(&counts.bytes, bytes);
            add(&counts.reads, 1);
            true
        }
        Err(error) => error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR,
    }
}

/// Sends back what came, whole requests or not.
fn answer(stream: &mut TcpStream, counts: &Counts) -> bool {
    let mut requests = [0; REQUEST_BYTES * REQUEST_BYTES];
    match stream.read(&mut requests) {
        Ok(0) => false,
        Ok(bytes) => {
            add(&counts.answers, bytes / REQUEST_BYTES);
            // Who does not read its answers is not served.
            stream.write_all(&requests[..bytes]).is_ok()
        }
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// Counts them, and answers those that ask.
fn take_datagrams(socket: &UdpSocket, stop: &StopSign, counts: &Counts) -> Result<(), LoadError> {
    let mut poller = Poller::new()?;
    poller.add(socket, 0).map_err(LoadError::os("watch a socket"))?;
    while !stop.is_up() {
        poller.wait(clock::now().plus_nanos(LOOK_NS), 0)?;
        let mut datagram = [0; flood::STAMP_BYTES];
        let mut take = || {
            let (bytes, peer) = socket.recv_from(&mut datagram).ok()?;
            if flood::asks(&datagram[..bytes]) {
                // An answer that finds no room is lost, as any datagram may be.
                let _ = socket.send_to(&datagram[..bytes], peer);
            }
            Some(())
        };
        let taken = (0..DATAGRAMS_MAX).map_while(|_| take()).count();
        add(&counts.datagrams, taken);
    }
    Ok(())
}
