//! The first bytes of a connection: whose it is, before any cryptography.
//!
//! What is read here is kept and given to whoever goes on; a client notices nothing. A tenant that is refused costs an
//! accept, a read, a decision and a close.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::SetSockOpt as _;
use nix::sys::socket::sockopt::SetUsize;
use rustix::net::RecvFlags;
use tidegate_wire::{http1, proxy_protocol, tls_hello};
use tokio::net::TcpStream;

use super::ports::Door;
use super::refused::Refused;
use super::seats::{Seat, Seated};
use super::signer::Wait;
use super::thread::{Origin, Thread, Total};
use crate::config::{ProxyProtocolIn, RefuseHello};
use crate::io::conn::account::{Account, Work};
use crate::io::conn::limiter::{Cause, Lane, Refusal, Source, Stage, Tenant, Verdict};
use crate::io::conn::serve::Fresh;
use crate::io::conn::{fair, held, meter, serve};
use crate::io::request::gate::{Gate, Pass};
use crate::io::request::host::bare;
use crate::io::request::{log, whose};
use crate::machine::Resource;
use crate::machine::rate_limit::Rejection;

/// A fatal alert, `internal_error`: what clients and other proxies know for "not now".
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];
/// Another, `unrecognized_name` (RFC 6066, section 3): no certificate is for this name.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Most bytes that are looked at: a PROXY header and a hello.
pub(crate) const FIRST_BYTES_MAX: usize = proxy_protocol::HEADER_BYTES_MAX + tls_hello::HELLO_BYTES_MAX;

/// Bytes of a usual hello, with post-quantum keys.
const HELLO_ROOM: usize = 2048;

/// A connection that was just accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) place: Place,
}

/// Where a connection was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) door: Rc<Door>,
}

/// What the first bytes say.
enum Look {
    /// It cannot be known before there are so many bytes; always more than there are.
    More(usize),
    /// Close it without a word.
    Bad,
    /// Enough. The PROXY header, if there is one, has so many bytes.
    Known(Known),
}

struct Known {
    origin: Origin,
    header: usize,
}

/// The first bytes of a connection.
struct First<'a> {
    room: &'a mut [u8],
    read: usize,
    /// They are still the socket's too.
    left: bool,
}

impl First<'_> {
    fn bytes(&self) -> &[u8] {
        &self.room[..self.read]
    }

    /// Takes them off the socket, for whoever goes on with it; perhaps more have come.
    fn take(&mut self, socket: &OwnedFd) {
        if !mem::take(&mut self.left) {
            return;
        }
        // If it has failed in the meantime, what was seen is still here, and who goes on notices.
        if let Ok((read @ 1.., _)) = rustix::net::recv(socket, &mut *self.room, RecvFlags::DONTWAIT) {
            self.read = read;
        }
    }
}

/// Looks at what came with the connection, and goes on with it, refuses it, or waits for more. `scratch` is for reading.
pub(crate) fn meet(thread: &Rc<Thread>, accepted: Accepted, scratch: &mut [u8]) {
    let left = may_stay_unread(thread, &accepted.place.door);
    let flags = if left { RecvFlags::DONTWAIT | RecvFlags::PEEK } else { RecvFlags::DONTWAIT };
    let read = match rustix::net::recv(accepted.socket.as_fd(), &mut *scratch, flags) {
        Ok((0, _)) => return,
        Ok((read, _)) => read,
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(_) => return,
    };
    let mut first = First { room: scratch, read, left };
    match look(thread, &accepted.place, first.bytes()) {
        Look::Bad => {
            first.take(&accepted.socket);
            thread.count(Total::Malformed);
        }
        Look::Known(known) if gate_of(thread, &known.origin).is_none() => {
            decide(thread, accepted.socket, known, first, Way::default());
        }
        _ => {
            first.take(&accepted.socket);
            let bytes = first.bytes().to_vec();
            wait(thread, accepted, bytes);
        }
    }
}

/// Whether the first bytes may be left unread until it is known who goes on: closing a socket that has some resets it, and
/// so a connection that is refused costs neither taking them nor asking for a reset.
fn may_stay_unread(thread: &Thread, door: &Door) -> bool {
    door.listener.tls && thread.settings().config.limits.refuse_hello == RefuseHello::Reset
}

/// The gate before connections like this one, if there is one. Without TLS there is no name to have a rule for.
fn gate_of(thread: &Thread, origin: &Origin) -> Option<std::sync::Arc<Gate>> {
    origin.tls.then(|| thread.settings().sni_gate(origin.sni.as_deref()).cloned()).flatten()
}

/// Waits for the rest of the first bytes, and then at the gate for that name if there is one.
fn wait(thread: &Rc<Thread>, accepted: Accepted, bytes: Vec<u8>) {
    let Some(seat) = thread.seats.take(accepted.place.peer.ip()) else { return thread.count(Total::OutOfFiles) };
    // Nobody knows yet whose it is, but in a flood of those who name nobody a hello that came in two segments, as
    // those with post-quantum keys do, is looked at as soon as one that came in a single one. What comes in more waits
    // for its turn.
    let account = Account::open(std::sync::Arc::clone(&thread.limiter), Tenant::OTHER);
    account.begin(Work::Handshake);
    let thread = Rc::clone(thread);
    let who = Rc::clone(&account);
    let seated = Rc::clone(&seat);
    let waiting = async move {
        let Accepted { socket, place } = accepted;
        let Ok(stream) = TcpStream::from_std(socket.into()) else { return };
        let mut bytes = bytes;
        let known = rest(&thread, &stream, &place, &mut bytes, &who).await;
        who.begin(Work::Serving);
        let Some(known) = known else { return };
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
                    reject(&thread, &known.origin, &rejection);
                    return close(&thread, stream.as_fd());
                }
            }
        }
        let Ok(socket) = stream.into_std() else { return };
        let read = bytes.len();
        let first = First { room: &mut bytes, read, left: false };
        decide(&thread, socket.into(), known, first, Way { pass, seat: Some(seat), waited: Some(who) });
    };
    fair::spawn(account, Seated::new(seated, waiting));
}

/// Reads until the first bytes are whole; `None` if they are bad, or do not come in time. Those that come one by one are
/// looked at no more often than [`tls_hello::peek`] needs, and wake the thread no more often than that.
async fn rest(
    thread: &Rc<Thread>,
    stream: &TcpStream,
    place: &Place,
    bytes: &mut Vec<u8>,
    account: &Account,
) -> Option<Known> {
    let timer = thread.timers.timer();
    timer.set(meter::now() + thread.settings().config.timeouts.client_hello);
    let (mut needed, mut wakes, mut low_water) = (0, 0_u32, 1);
    loop {
        if bytes.len() >= needed {
            needed = match look(thread, place, bytes) {
                Look::Known(known) if low_water == 1 => return Some(known),
                Look::Known(known) => return set_low_water(stream, 1).then_some(known),
                Look::More(needed) if bytes.len() < FIRST_BYTES_MAX => needed.min(FIRST_BYTES_MAX),
                Look::More(_) | Look::Bad => {
                    thread.count(Total::Malformed);
                    return None;
                }
            };
        }
        let missing = needed.saturating_sub(bytes.len()).max(1);
        if wakes > 0 {
            account.begin(Work::Serving);
            // Twice is no accident of segments: from here on the kernel wakes nobody in vain.
            if missing != low_water {
                if !set_low_water(stream, missing) {
                    return None;
                }
                low_water = missing;
            }
        }
        // What a length announces may never come, so no more room is made than for what came, or a usual hello.
        bytes.reserve(missing.min(HELLO_ROOM));
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
            Ok(_) => wakes += 1,
            Err(_) => {}
        }
    }
}

/// From how many bytes on the kernel says that a socket can be read; its end it always says. False if it does not do so.
fn set_low_water(stream: &TcpStream, bytes: usize) -> bool {
    LowWater.set(stream, &bytes).is_ok()
}

/// `SO_RCVLOWAT` of socket(7), in bytes.
#[derive(Clone, Copy, Debug)]
struct LowWater;

nix::setsockopt_impl!(LowWater, libc::SOL_SOCKET, libc::SO_RCVLOWAT, usize, SetUsize);

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
fn look(thread: &Thread, place: &Place, bytes: &[u8]) -> Look {
    let listener = &place.door.listener;
    let (mut client, mut local, mut header) = (place.peer, place.local, 0);
    if listener.proxy_protocol != ProxyProtocolIn::Off {
        let trusted = thread.settings().trusts(place.peer.ip());
        let required = listener.proxy_protocol == ProxyProtocolIn::Require;
        match proxy_protocol::peek(bytes) {
            // Who need not announce anybody may have sent nothing yet, or bytes that only begin like a header.
            proxy_protocol::Peek::Incomplete { needed } if trusted || !required => return Look::More(needed),
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
    let mut origin = Origin { client, local, door: Rc::clone(&place.door), sni: None, tls: listener.tls };
    if listener.tls {
        match tls_hello::peek(&bytes[header..]) {
            tls_hello::Peek::Hello(hello) => origin.sni = hello.server_name,
            tls_hello::Peek::Incomplete { needed } => return Look::More(header + needed),
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
    /// Who pays for that wait.
    waited: Option<Rc<Account>>,
}

/// Leave for a connection to go on.
struct Leave {
    tenant: Tenant,
    /// Nanoseconds that were charged for its handshake.
    handshake_ns: u64,
    /// If its handshake is beyond its tenant's share: its place in the queue.
    beyond: Option<Wait>,
}

/// Asks whether the connection may go on, and sends it on its way.
fn decide(thread: &Rc<Thread>, socket: OwnedFd, known: Known, mut first: First<'_>, way: Way) {
    let Known { origin, header } = known;
    let waited = way.seat.is_some();
    if origin.tls && thread.settings().is_strange(origin.sni.as_deref()) {
        first.take(&socket);
        return turn_stranger_away(thread, &socket, &origin);
    }
    let leave = if origin.tls {
        ask(thread, &origin, way.waited.as_deref())
    } else {
        Some(Leave { tenant: whose(thread, &first.bytes()[header..]), handshake_ns: 0, beyond: None })
    };
    let Some(leave) = leave else {
        let refused = Refused { socket, unread: first.left, since: meter::now() };
        return dismiss(thread, origin.door.slot, refused, waited);
    };
    first.take(&socket);
    let early = first.bytes()[header..].to_vec();
    let Leave { tenant, handshake_ns, beyond } = leave;
    let taken_ns = if origin.tls { 0 } else { thread.taking_ns.get() };
    let socket = socket.into();
    let fresh = Fresh { socket, origin, early, tenant, handshake_ns, taken_ns, pass: way.pass, beyond };
    serve::begin(thread, fresh, way.seat);
}

/// Without TLS nothing is asked for before there is a request. But the host is glanced at: who has had more than his part of
/// the thread waits before anything else is done for him.
fn whose(thread: &Thread, bytes: &[u8]) -> Tenant {
    let settings = thread.settings();
    let host = http1::glance_host(bytes).and_then(|host| std::str::from_utf8(host).ok()).map(bare);
    let name = host.as_ref().and_then(|host| settings.tenancy.of_host(host));
    let known = name.and_then(|name| thread.limiter.with(|limiter| limiter.find(name)));
    known.unwrap_or(Tenant::OTHER)
}

/// Asks for a handshake, and for a place among those that wait if it is beyond its tenant's share; `None` if it is refused.
fn ask(thread: &Thread, origin: &Origin, waited: Option<&Account>) -> Option<Leave> {
    let settings = thread.settings();
    let now = meter::now();
    let claimant = settings.tenancy.of_hello(origin.sni.as_deref());
    let spare = thread.signer.as_ref().is_some_and(|signer| signer.has_spare());
    let (tenant, handshake_ns, verdict) = thread.limiter.with(|limiter| {
        let tenant = whose::resolve(limiter, claimant, Source::of(origin.client.ip()), now);
        let expected = limiter.expected_cost(tenant, Resource::HandshakeTime);
        let verdict = limiter.try_take_or_spare(tenant, Stage::Hello, &costs(expected), spare, now);
        if matches!(&verdict, Verdict::Refuse(refusal) if refusal.cause == Cause::OverShare) {
            limiter.charge_refusal(tenant, thread.refusal_ns.get(), now);
        }
        (tenant, expected, verdict)
    });
    if let Some(account) = waited {
        account.become_of(tenant);
    }
    let (lane, owed) = match verdict {
        Verdict::Admit { lane, owed } => (lane, owed),
        Verdict::Refuse(refusal) => {
            report(thread, origin, claimant.name, &refusal);
            return None;
        }
    };
    let beyond = match thread.signer.as_ref().filter(|_| lane == Lane::Overflow).map(|signer| signer.wait(handshake_ns))
    {
        Some(Err(retry_after)) if !owed => {
            turn_away(thread, origin, (tenant, handshake_ns), retry_after);
            return None;
        }
        // What is guaranteed and finds no place is computed here: others' excess must not take its place.
        wait => wait.and_then(Result::ok),
    };
    Some(Leave { tenant, handshake_ns, beyond })
}

/// Ends a connection for a name that no certificate is for, of which all was read: else its end would overtake the alert.
/// Those without a tenant of their own pay for it.
fn turn_stranger_away(thread: &Thread, socket: &OwnedFd, origin: &Origin) {
    thread.count(Total::RefusedAtHello);
    let ns = thread.refusal_ns.get();
    thread.limiter.with(|limiter| limiter.charge_refusal(Tenant::OTHER, ns, meter::now()));
    // It cannot fail in a way that matters: the connection ends here.
    let _ = rustix::net::send(socket, &UNRECOGNIZED_NAME, rustix::net::SendFlags::DONTWAIT);
    log::unknown_name(thread, origin.client.ip(), origin.sni.as_deref().unwrap_or("-"));
}

/// Takes back what was admitted, since too many wait: the core has nothing left for it.
fn turn_away(thread: &Thread, origin: &Origin, (tenant, handshake_ns): (Tenant, u64), retry_after: Duration) {
    let costs = costs(handshake_ns);
    let refusal = thread.limiter.with(|limiter| {
        let (resource, now) = (Resource::HandshakeTime, meter::now());
        let refusal = limiter.turn_away(tenant, Stage::Hello, resource, &costs, retry_after, now);
        limiter.charge_refusal(tenant, thread.refusal_ns.get(), now);
        refusal
    });
    report(thread, origin, origin.sni.as_deref().unwrap_or("-"), &refusal);
}

/// What is asked for a handshake that is expected to take `ns`.
fn costs(ns: u64) -> [(Resource, u64); 4] {
    [
        (Resource::Handshakes, 1),
        (Resource::HandshakeTime, ns),
        (Resource::Connections, 1),
        (Resource::Memory, held::HELD_TLS),
    ]
}

fn report(thread: &Thread, origin: &Origin, name: &str, refusal: &Refusal) {
    thread.count(Total::RefusedAtHello);
    log::refused_hello(thread, origin.client.ip(), name, refusal);
}

/// Tells of a connection that the rule for its name refuses.
fn reject(thread: &Thread, origin: &Origin, rejection: &Rejection) {
    thread.count(Total::RefusedAtHello);
    if rejection.is_of_a_limit() {
        let settings = thread.settings();
        let claimant = settings.tenancy.of_hello(origin.sni.as_deref());
        thread.limiter.with(|limiter| {
            let tenant = whose::resolve(limiter, claimant, Source::of(origin.client.ip()), meter::now());
            limiter.refused_elsewhere(tenant, Stage::Hello);
        });
    }
    log::rejected_hello(thread, origin.client.ip(), origin.sni.as_deref().unwrap_or("-"), rejection);
}

/// Has a connection that came by `port` ended by whoever takes the next ones off it; of one that waited on its own, nobody
/// may come.
fn dismiss(thread: &Thread, port: usize, refused: Refused, waited: bool) {
    if waited {
        end(thread, &refused);
    } else {
        thread.refused.push(port, refused);
    }
}

/// Ends up to `most` connections of `port` that were refused.
pub(crate) fn end_refused_at(thread: &Thread, port: usize, most: usize) {
    std::iter::from_fn(|| thread.refused.pop(port)).take(most).for_each(|refused| end(thread, &refused));
}

/// Ends up to `most` connections that were refused, of any port.
pub(crate) fn end_refused(thread: &Thread, most: usize) {
    std::iter::from_fn(|| thread.refused.pop_any()).take(most).for_each(|refused| end(thread, &refused));
}

/// What is to be said before the socket is dropped.
fn end(thread: &Thread, refused: &Refused) {
    if !refused.unread {
        close(thread, refused.socket.as_fd());
    }
}

/// Ends a connection that is refused, of which all was read; the socket is dropped by the caller.
fn close(thread: &Thread, socket: std::os::fd::BorrowedFd<'_>) {
    match thread.settings().config.limits.refuse_hello {
        // Neither can fail in a way that matters: the connection ends here.
        RefuseHello::Reset => rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).unwrap_or(()),
        RefuseHello::Alert => rustix::net::send(socket, &ALERT, rustix::net::SendFlags::DONTWAIT).map_or((), |_| ()),
    }
}
