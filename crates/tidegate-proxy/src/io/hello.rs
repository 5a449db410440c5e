//! The first bytes of a connection: whose it is, before any cryptography.
//!
//! What is read here is kept and given to whoever goes on; a client notices nothing. A tenant that is refused costs an
//! accept, a read, a decision and a close.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::net::RecvFlags;
use tidegate_wire::{proxy_protocol, tls_hello};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::account::Account;
use super::gate::{Gate, Pass};
use super::lane::{self, Fresh, Handover, Turn};
use super::limiter::{Cause, Refusal, Stage, Tenant, Verdict};
use super::meter::{self, Metered};
use super::seats::{Seat, Seated};
use super::thread::{Origin, Thread, Total};
use super::{log, serve};
use crate::config::{ProxyProtocolIn, RefuseHello};
use crate::machine::Resource;

/// A fatal alert, `internal_error`: what clients and other proxies know for "not now".
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// Most bytes that are looked at: a PROXY header and a hello.
pub(crate) const FIRST_BYTES_MAX: usize = proxy_protocol::HEADER_BYTES_MAX + tls_hello::HELLO_BYTES_MAX;

/// A connection that was just accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) place: Place,
}

/// Where a connection was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) listener: usize,
}

/// What the first bytes say.
enum Look {
    /// More are needed.
    More,
    /// Close it without a word.
    Bad,
    /// Enough. The PROXY header, if there is one, has so many bytes.
    Known(Known),
}

struct Known {
    origin: Origin,
    header: usize,
}

/// Looks at what came with the connection, and goes on with it, refuses it, or waits for more. `scratch` is for reading.
/// True if a handshake begins on this thread.
pub(crate) fn meet(thread: &Rc<Thread>, accepted: Accepted, scratch: &mut [u8]) -> bool {
    let read = match rustix::net::recv(accepted.socket.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
        Ok((0, _)) => return false,
        Ok((read, _)) => read,
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(_) => return false,
    };
    let bytes = &scratch[..read];
    match look(thread, accepted.place, bytes) {
        Look::Bad => thread.count(Total::Malformed),
        Look::Known(known) if gate_of(thread, &known.origin).is_none() => {
            return decide(thread, accepted.socket, known, bytes, Way::default());
        }
        _ => wait(thread, accepted, bytes.to_vec()),
    }
    false
}

/// The gate before connections like this one, if there is one. Without TLS there is no name to have a rule for.
fn gate_of(thread: &Thread, origin: &Origin) -> Option<std::sync::Arc<Gate>> {
    origin.tls.then(|| thread.settings().sni_gate(origin.sni.as_deref()).cloned()).flatten()
}

/// Waits for the rest of the first bytes, and then at the gate for that name if there is one.
fn wait(thread: &Rc<Thread>, accepted: Accepted, bytes: Vec<u8>) {
    let Some(seat) = thread.seats.take(accepted.place.peer.ip()) else { return thread.count(Total::OutOfFiles) };
    let account = Account::open(std::sync::Arc::clone(&thread.limiter), Tenant::OTHER);
    let thread = Rc::clone(thread);
    let seated = Rc::clone(&seat);
    let waiting = async move {
        let Accepted { socket, place } = accepted;
        let Ok(stream) = TcpStream::from_std(socket.into()) else { return };
        let mut bytes = bytes;
        let Some(known) = rest(&thread, &stream, place, &mut bytes).await else { return };
        let mut pass = None;
        if let Some(gate) = gate_of(&thread, &known.origin) {
            seat.works();
            let entered = tokio::select! {
                entered = gate.enter(known.origin.client.ip()) => entered,
                () = gone(&stream, &mut bytes) => return,
            };
            match entered {
                Ok(entered) => pass = Some(entered),
                Err(rejection) => {
                    thread.count(Total::RefusedAtHello);
                    if let Some(lines) = thread.lines.borrow_mut().as_mut() {
                        let sni = known.origin.sni.as_deref().unwrap_or("-");
                        log::rejected_hello(lines, known.origin.client.ip(), sni, &rejection);
                    }
                    return close(&thread, stream.as_fd());
                }
            }
        }
        let Ok(socket) = stream.into_std() else { return };
        decide(&thread, socket.into(), known, &bytes, Way { pass, seat: Some(seat) });
    };
    spawn_local(Metered::new(account, Seated::new(seated, waiting)));
}

/// Reads until the first bytes are whole; `None` if they are bad, or do not come in time.
async fn rest(thread: &Rc<Thread>, stream: &TcpStream, place: Place, bytes: &mut Vec<u8>) -> Option<Known> {
    let timer = thread.timers.timer();
    timer.set(meter::now() + thread.settings().config.timeouts.client_hello);
    loop {
        match look(thread, place, bytes) {
            Look::Known(known) => return Some(known),
            Look::More if bytes.len() < FIRST_BYTES_MAX => {}
            Look::More | Look::Bad => {
                thread.count(Total::Malformed);
                return None;
            }
        }
        let readable = poll_fn(|context| match stream.poll_read_ready(context) {
            Poll::Pending => timer.poll(context).map(|()| None),
            Poll::Ready(ready) => Poll::Ready(Some(ready)),
        });
        match readable.await {
            Some(Ok(())) => {}
            Some(Err(_)) => return None,
            None => {
                thread.count(Total::TimedOut);
                return None;
            }
        }
        match stream.try_read_buf(bytes) {
            Ok(0) => return None,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return None,
            _ => {}
        }
    }
}

/// Ends when the client has closed: then it need not wait any longer.
async fn gone(stream: &TcpStream, bytes: &mut Vec<u8>) {
    while bytes.len() < FIRST_BYTES_MAX {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read_buf(bytes) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
    // It sends more than anybody does before he is answered; whether it closes will show later.
    std::future::pending::<()>().await;
}

/// What the first bytes at `place` say.
fn look(thread: &Thread, place: Place, bytes: &[u8]) -> Look {
    let settings = thread.settings();
    let Some(listener) = settings.config.listeners.get(place.listener) else { return Look::Bad };
    let (mut client, mut local, mut header) = (place.peer, place.local, 0);
    if listener.proxy_protocol != ProxyProtocolIn::Off {
        let trusted = settings.trusts(place.peer.ip());
        let required = listener.proxy_protocol == ProxyProtocolIn::Require;
        match proxy_protocol::peek(bytes) {
            // Who need not announce anybody may have sent nothing yet, or bytes that only begin like a header.
            proxy_protocol::Peek::Incomplete { .. } if trusted || !required => return Look::More,
            proxy_protocol::Peek::Header(found) if trusted => {
                header = found.bytes;
                if let proxy_protocol::Origin::Client { source, destination, .. } = found.origin {
                    (client, local) = (source, destination);
                }
            }
            proxy_protocol::Peek::Absent if !required => {}
            _ => return Look::Bad,
        }
    }
    let mut origin = Origin { client, local, listener: place.listener, sni: None, tls: listener.tls };
    if listener.tls {
        match tls_hello::peek(&bytes[header..]) {
            tls_hello::Peek::Hello(hello) => origin.sni = hello.server_name,
            tls_hello::Peek::Incomplete { .. } => return Look::More,
            tls_hello::Peek::NotTls | tls_hello::Peek::Malformed(_) => return Look::Bad,
        }
    }
    Look::Known(Known { origin, header })
}

/// What a connection has taken so far.
#[derive(Default)]
struct Way {
    /// Of the gate for its name.
    pass: Option<Pass>,
    /// If it had to wait.
    seat: Option<Rc<Seat>>,
}

/// Asks whether the connection may go on, and sends it on its way. True if a handshake begins on this thread.
fn decide(thread: &Rc<Thread>, socket: OwnedFd, known: Known, bytes: &[u8], way: Way) -> bool {
    let Known { origin, header } = known;
    let early = &bytes[header..];
    let now = meter::now();
    let mut fresh = Fresh {
        socket: socket.into(),
        origin,
        early: Vec::new(),
        tenant: Tenant::OTHER,
        handshake_ns: 0,
        pass: way.pass,
        turn: None,
    };
    let (mut lane, mut owed) = (thread.lane, true);
    if fresh.origin.tls {
        let settings = thread.settings();
        let name = settings.tenancy.of_hello(fresh.origin.sni.as_deref());
        let (tenant, handshake_ns, verdict) = thread.limiter.with(|limiter| {
            let tenant = limiter.tenant(&name, now);
            let expected = limiter.expected_cost(tenant, Resource::HandshakeTime);
            (tenant, expected, limiter.try_take(tenant, Stage::Hello, &costs(expected), now))
        });
        (fresh.tenant, fresh.handshake_ns) = (tenant, handshake_ns);
        match verdict {
            Verdict::Admit { lane: granted, owed: sure } => (lane, owed) = (granted, sure),
            Verdict::Refuse(refusal) => {
                refuse(thread, &fresh, &name, &refusal);
                return false;
            }
        }
    }
    fresh.early = early.to_vec();
    if let Some(other) = thread.other.as_ref().filter(|_| lane != thread.lane) {
        match hand_over(thread, other, fresh) {
            None => return false,
            Some((back, retry_after)) if !owed => {
                turn_away(thread, &back, retry_after);
                return false;
            }
            // It is guaranteed, so it goes on here: others' excess must not take its place.
            Some((back, _)) => fresh = back,
        }
    }
    let handshake = fresh.origin.tls;
    serve::begin(thread, fresh, way.seat);
    handshake
}

/// Sends a connection to the overflow lane; if too much waits there, it comes back with how long that will take.
fn hand_over(thread: &Thread, other: &mpsc::Sender<Handover>, mut fresh: Fresh) -> Option<(Fresh, Duration)> {
    if fresh.origin.tls {
        match Turn::take(&thread.waiting, fresh.handshake_ns) {
            Ok(turn) => fresh.turn = Some(turn),
            Err(after) => return Some((fresh, after)),
        }
    }
    match other.try_send(Handover::Fresh(Box::new(fresh))).map_err(mpsc::error::TrySendError::into_inner) {
        Err(Handover::Fresh(mut fresh)) => {
            fresh.turn = None;
            Some((*fresh, lane::WAITING_MAX))
        }
        Err(Handover::Served(_)) | Ok(()) => None,
    }
}

/// Refuses a connection for which the overflow lane has no room: the core has nothing left for it.
fn turn_away(thread: &Thread, fresh: &Fresh, retry_after: Duration) {
    let (resource, cause) = (Resource::HandshakeTime, Cause::OverShare);
    if fresh.origin.tls {
        let costs = costs(fresh.handshake_ns);
        thread.limiter.with(|limiter| limiter.turn_away(fresh.tenant, Stage::Hello, resource, &costs, meter::now()));
    }
    let name = fresh.origin.sni.as_deref().unwrap_or("-").to_owned();
    refuse(thread, fresh, &name, &Refusal { resource, cause, retry_after, share: 0, limit: 0 });
}

/// What is asked for a handshake that is expected to take `ns`.
fn costs(ns: u64) -> [(Resource, u64); 4] {
    [
        (Resource::Handshakes, 1),
        (Resource::HandshakeTime, ns),
        (Resource::Connections, 1),
        (Resource::Memory, serve::HELD_TLS),
    ]
}

fn refuse(thread: &Thread, fresh: &Fresh, name: &str, refusal: &Refusal) {
    thread.count(Total::RefusedAtHello);
    if let Some(lines) = thread.lines.borrow_mut().as_mut() {
        log::refused_hello(lines, fresh.origin.client.ip(), name, refusal);
    }
    close(thread, fresh.socket.as_fd());
}

/// Ends a connection that is refused; the socket is dropped by the caller.
fn close(thread: &Thread, socket: std::os::fd::BorrowedFd<'_>) {
    match thread.settings().config.limits.refuse_hello {
        // Neither can fail in a way that matters: the connection ends here.
        RefuseHello::Reset => rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).unwrap_or(()),
        RefuseHello::Alert => rustix::net::send(socket, &ALERT, rustix::net::SendFlags::DONTWAIT).map_or((), |_| ()),
    }
}
