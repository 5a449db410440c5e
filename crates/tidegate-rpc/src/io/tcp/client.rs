//! One connection for callers on tokio: shared by clones, opened again when it is lost.
//!
//! A call that the scheme refuses fails before its first suspension. Sent calls are written by one task, so that callers
//! that run in the same turn of the runtime share a write.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::address::Address;
use super::config::{CallOptions, ClientConfig};
use super::link::{Ending, Link};
use crate::error::{CallError, RpcError};
use crate::machine::{CallId, Client};

const READ_BYTES: usize = 64 * 1024;
/// No timer of the runtime is set further ahead.
const FAR: Duration = Duration::from_hours(1);

/// An answer, owned by its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The handler's answer.
    pub payload: Vec<u8>,
    /// From the call to its answer.
    pub response_time: Duration,
    /// From the reading of the request's bytes to the response, at the server.
    pub server_time: Duration,
}

type Told = oneshot::Sender<Result<Answer, CallError>>;

/// The least time that a connection is waited for, and that what was sent on it may stay without a word of the other kernel.
const PATIENCE_LEAST: Duration = Duration::from_secs(3);

/// A client of one server. Clones share its connection; it is closed when the last one is dropped.
#[derive(Debug)]
pub struct RpcClient<C>(Arc<Owner<C>>);

impl<C> Clone for RpcClient<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Owner<C> {
    shared: Arc<Shared<C>>,
    task: JoinHandle<()>,
}

impl<C> Drop for Owner<C> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Shared<C> {
    link: Mutex<Link<C, Told>>,
    /// There is something to write, or a nearer time-out.
    changed: Notify,
}

impl<C: Client> Shared<C> {
    /// A panic of another holder leaves calls that time out, at worst.
    fn link(&self) -> MutexGuard<'_, Link<C, Told>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever asked may have gone.
fn tell(told: Told, ending: Ending<'_>) {
    let _ = told.send(ending.map(|answer| Answer {
        payload: answer.payload.to_vec(),
        response_time: answer.response_time,
        server_time: answer.server_time,
    }));
}

impl<C: Client + Send + 'static> RpcClient<C> {
    /// Connects, and keeps the connection from then on.
    ///
    /// # Errors
    /// [`RpcError`] if the configuration is wrong or the server cannot be reached now.
    pub async fn connect(address: impl Into<Address>, machine: C, config: ClientConfig) -> Result<Self, RpcError> {
        config.check()?;
        let address = address.into();
        let patience = Duration::from_millis(config.timeout_ms);
        let socket = match open(&address, patience).await {
            Ok(socket) => socket,
            Err(error) => {
                let source = address.explain(error);
                return Err(RpcError::Connect { address, source });
            }
        };
        let pauses = Pauses::new(&config);
        let mut link = Link::new(config, machine, clock::now());
        link.on_connected();
        let shared = Arc::new(Shared { link: Mutex::new(link), changed: Notify::new() });
        let task = tokio::spawn(keep(address, socket, Arc::clone(&shared), pauses, patience));
        Ok(Self(Arc::new(Owner { shared, task })))
    }

    /// Calls, and waits for the answer: at most until the deadline, or for the configured time without one.
    ///
    /// Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`CallError`] says whether the call may be sent again.
    pub async fn call(&self, payload: &[u8], options: CallOptions) -> Result<Answer, CallError> {
        let (told, answer) = oneshot::channel();
        let shared = &self.0.shared;
        let id = shared.link().call(payload, &options, told, clock::now(), &mut tell);
        let _guard = id.map(|id| {
            shared.changed.notify_one();
            Cancel { shared, id }
        });
        // Every end is told; a sender that is gone belonged to a task that was aborted.
        answer.await.unwrap_or(Err(CallError::Lost))
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.0.shared.link().pending()
    }

    /// True while there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.shared.link().is_connected()
    }
}

/// Cancels a call whose future is dropped; harmless once the call has ended.
struct Cancel<'a, C: Client> {
    shared: &'a Shared<C>,
    id: CallId,
}

impl<C: Client> Drop for Cancel<'_, C> {
    fn drop(&mut self) {
        let mut link = self.shared.link();
        link.cancel(self.id, clock::now(), &mut tell);
        if !link.out().is_empty() {
            self.shared.changed.notify_one();
        }
    }
}

/// A connection of either kind.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects. Calls have an answer within `patience`: a server that has vanished without a word, or whose words are lost on
/// the way, is given up no later than a few of these, and not when the kernel does, after minutes.
async fn open(address: &Address, patience: Duration) -> io::Result<Socket> {
    let patience = patience.max(PATIENCE_LEAST);
    match address {
        Address::Tcp(address) => {
            let socket = tokio::time::timeout(patience, TcpStream::connect(address)).await??;
            socket.set_nodelay(true)?;
            let ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            rustix::net::sockopt::set_tcp_user_timeout(&socket, ms)?;
            Ok(Socket::Tcp(socket))
        }
        Address::Unix(path) => UnixStream::connect(path).await.map(Socket::Unix),
    }
}

impl Socket {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.readable().await,
            Self::Unix(socket) => socket.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.writable().await,
            Self::Unix(socket) => socket.writable().await,
        }
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_read(into),
            Self::Unix(socket) => socket.try_read(into),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
        }
    }
}

/// Serves connection after connection.
async fn keep<C: Client>(
    address: Address,
    mut socket: Socket,
    shared: Arc<Shared<C>>,
    mut pauses: Pauses,
    patience: Duration,
) {
    loop {
        if serve(&socket, &shared).await == Heard::Something {
            pauses.reset();
        }
        drop(socket);
        shared.link().on_lost(clock::now(), &mut tell);
        socket = loop {
            tokio::time::sleep(pauses.next()).await;
            if let Ok(socket) = open(&address, patience).await {
                break socket;
            }
        };
        shared.link().on_connected();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Nothing,
    Something,
}

/// Moves bytes until the connection is lost.
async fn serve<C: Client>(socket: &Socket, shared: &Shared<C>) -> Heard {
    let mut scratch = vec![0; READ_BYTES];
    let mut heard = Heard::Nothing;
    let timer = tokio::time::sleep(FAR);
    tokio::pin!(timer);
    loop {
        let Ok(is_stuck) = write(socket, shared) else { return heard };
        let due = shared.link().next_timeout();
        let at = due.map_or(FAR, |at| at.since(clock::now()).min(FAR));
        timer.set(tokio::time::sleep(at));
        tokio::select! {
            biased;
            ready = socket.readable() => {
                if ready.is_err() {
                    return heard;
                }
                match socket.try_read(&mut scratch) {
                    Ok(bytes @ 1..) => {
                        heard = Heard::Something;
                        if shared.link().on_bytes(&scratch[..bytes], clock::now(), &mut tell).is_err() {
                            return heard;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    _ => return heard,
                }
            }
            () = shared.changed.notified() => {}
            ready = socket.writable(), if is_stuck => {
                if ready.is_err() {
                    return heard;
                }
            }
            () = &mut timer => shared.link().on_timeout(clock::now(), &mut tell),
        }
    }
}

/// Writes what the socket takes; true if it did not take all.
fn write<C: Client>(socket: &Socket, shared: &Shared<C>) -> io::Result<bool> {
    let mut link = shared.link();
    let out = link.out();
    let mut written = 0;
    while written < out.len() {
        match socket.try_write(&out[written..]) {
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    out.drain(..written);
    Ok(!out.is_empty())
}

/// How long to wait before each attempt to connect again: doubling up to a bound, each drawn from the upper half so that
/// the clients of a server that came back do not all arrive at once.
#[derive(Debug)]
struct Pauses {
    min_ms: u64,
    max_ms: u64,
    next_ms: u64,
    rng: Rng,
}

impl Pauses {
    fn new(config: &ClientConfig) -> Self {
        let (min_ms, max_ms) = (config.reconnect_ms_min, config.reconnect_ms_max);
        // Clients that share a seed in their configuration differ in when they began.
        Self { min_ms, max_ms, next_ms: min_ms, rng: Rng::stream(config.seed, clock::now().as_nanos()) }
    }

    fn reset(&mut self) {
        self.next_ms = self.min_ms;
    }

    fn next(&mut self) -> Duration {
        let ms = self.next_ms;
        self.next_ms = ms.saturating_mul(2).min(self.max_ms);
        Duration::from_micros(self.rng.range(ms * 500..ms * 1_000))
    }
}

/// An instant on the clock that deadlines are on, `span` from now.
#[must_use]
pub fn deadline_in(span: Duration) -> Instant {
    clock::now() + span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_bound_and_begin_anew() {
        let config = ClientConfig { reconnect_ms_min: 10, reconnect_ms_max: 35, ..ClientConfig::default() };
        let mut pauses = Pauses::new(&config);
        for ms in [10, 20, 35, 35] {
            let pause = pauses.next();
            assert!((Duration::from_micros(ms * 500)..Duration::from_millis(ms)).contains(&pause), "{pause:?}");
        }
        pauses.reset();
        assert!(pauses.next() < Duration::from_millis(10));
    }
}
