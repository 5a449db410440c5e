//! A connection from its first byte to its last: TLS, then HTTP/1 or HTTP/2.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::TcpStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use rustls::HandshakeKind;

use super::account::{Account, Unbegun, Work};
use super::limiter::Tenant;
use super::transport::{Begun, Transport};
use super::{fair, meter};
use crate::io::conn::held::{HELD_PLAIN, HELD_TLS};
use crate::io::http1::server;
use crate::io::http2;
use crate::io::listen::seats::{Seat, Seated};
use crate::io::listen::signer::Wait;
use crate::io::listen::starts::InTurn;
use crate::io::listen::thread::{Connection, Origin, Thread, Total};
use crate::io::request::gate::Pass;
use crate::machine::Resource;

/// What a connection of HTTP/2 without TLS begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection before its first request.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) socket: TcpStream,
    pub(crate) origin: Origin,
    /// Read behind any PROXY header.
    pub(crate) early: Vec<u8>,
    /// Whom it is charged to, as the limiter calls him.
    pub(crate) tenant: Tenant,
    /// Nanoseconds that were charged for its handshake.
    pub(crate) handshake_ns: u64,
    /// Nanoseconds that it took to take it, which nobody was charged for.
    pub(crate) taken_ns: u64,
    pub(crate) pass: Option<Pass>,
    /// If its handshake is beyond its tenant's share: its place in the queue.
    pub(crate) beyond: Option<Wait>,
}

/// Serves a connection that was just accepted; `seat` if it has one already.
pub(crate) fn begin(thread: &Rc<Thread>, fresh: Fresh, seat: Option<Rc<Seat>>) {
    let Fresh { socket, origin, early, tenant, handshake_ns, taken_ns, pass, beyond } = fresh;
    let account = Account::open(Arc::clone(&thread.limiter), tenant);
    account.add_time(taken_ns);
    // In a flood connections wait long to be taken, and clients give up meanwhile: to serve them makes the others wait longer.
    if !origin.tls && has_gone(&socket) {
        return;
    }
    if origin.tls {
        account.holds(1, HELD_TLS);
        account.estimated(Resource::HandshakeTime, handshake_ns);
        account.begin(Work::Handshake);
    }
    let unbegun = origin.tls.then(|| Unbegun::new(&account));
    let source = origin.client.ip();
    // It is told by the end of its connection; the account gives back what was charged.
    let Some(seat) = seat.or_else(|| thread.seats.take(source)) else { return thread.count(Total::OutOfFiles) };
    seat.comes_from(source);
    let (handshakes, is_here) = (Rc::clone(&thread.starts), origin.tls && beyond.is_none());
    let beginning = Rc::clone(&thread.beginning);
    let thread = Rc::clone(thread);
    let (metered, seated) = (Rc::clone(&account), Rc::clone(&seat));
    let serving = async move {
        if origin.tls && has_gone(&socket) {
            return;
        }
        if let Some(unbegun) = unbegun {
            unbegun.begin();
        }
        let connection = Connection::new(thread, seat, Rc::clone(&account), origin, pass);
        // From here on it is counted as a connection.
        drop(beginning);
        if connection.origin.tls {
            // What lasts a moment, or concerns few, is in a box: a task has room for the largest thing it may come to,
            // for as long as its connection is open.
            let Some(transport) = Box::pin(secure(&connection, socket, &early, beyond)).await else { return };
            drop(early);
            speak(&connection, transport).await;
        } else {
            let transport = Transport::plain(socket, BytesMut::new(), Rc::clone(&account));
            account.add_read(early.len() as u64);
            let early = BytesMut::from(&early[..]);
            detect(&connection, transport, early).await;
        }
    };
    let serving =
        if is_here { InTurn::new(&handshakes, metered.claimant(), serving) } else { InTurn::at_once(serving) };
    fair::spawn(metered, Seated::new(seated, serving));
}

/// Whether the client closed while it waited.
fn has_gone(socket: &TcpStream) -> bool {
    match socket.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// The TLS handshake; `None` if it fails.
async fn secure(
    connection: &Rc<Connection>,
    socket: TcpStream,
    hello: &[u8],
    beyond: Option<Wait>,
) -> Option<Transport> {
    let thread = &connection.thread;
    let settings = thread.settings();
    let config = connection.origin.door.tls.clone()?;
    let account = Rc::clone(&connection.account);
    let timer = thread.timers.timer();
    timer.set(meter::now() + settings.config.timeouts.handshake);
    // The first flight is nearly all of the cryptography, and all that its turn is for.
    let begun = match (&thread.signer, beyond) {
        (Some(signer), Some(wait)) => {
            thread.count(Total::Beyond);
            let mut flight = pin!(signer.begin(account.claimant(), wait, (config, hello), || has_gone(&socket)));
            let flight = poll_fn(|context| match flight.as_mut().poll(context) {
                Poll::Pending => timer.poll(context).map(|()| None),
                ready @ Poll::Ready(_) => ready,
            });
            let Some((begun, ns)) = flight.await else {
                thread.count(Total::HandshakesFailed);
                return None;
            };
            account.add_time(ns);
            begun
        }
        _ => Begun::new(config, hello).ok()?,
    };
    // The limiter knows it before the client answers, which may take long.
    account.add_time(meter::stamp());
    account.charge(false);
    let Ok(mut transport) = Transport::tls(socket, begun, account) else {
        thread.count(Total::HandshakesFailed);
        return None;
    };
    let done = poll_fn(|context| match transport.poll_handshake(context) {
        Poll::Pending => timer.poll(context).map(|()| Err(io::ErrorKind::TimedOut.into())),
        ready @ Poll::Ready(_) => ready,
    });
    let done = done.await;
    connection.account.add_time(meter::stamp());
    connection.account.begin(Work::Serving);
    if done.is_err() {
        thread.count(Total::HandshakesFailed);
        return None;
    }
    thread.count(Total::Handshakes);
    if transport.session().and_then(|session| session.handshake_kind()) == Some(HandshakeKind::Resumed) {
        thread.count(Total::Resumed);
    }
    connection.account.settle();
    Some(transport)
}

/// What was agreed on in the handshake. A client that named nothing speaks HTTP/1; where that is not spoken, it is closed.
async fn speak(connection: &Rc<Connection>, transport: Transport) {
    let http2 = transport.session().and_then(|session| session.alpn_protocol()) == Some(b"h2");
    if http2 {
        Box::pin(http2::serve(connection, transport)).await;
    } else if connection.origin.door.listener.http1 {
        server::serve(connection, transport, BytesMut::new()).await;
    }
}

/// Without TLS the first bytes tell what is spoken.
async fn detect(connection: &Rc<Connection>, mut transport: Transport, mut early: BytesMut) {
    // Its tenant is known with the first request, which asks for the connection too.
    connection.account.hold(0, HELD_PLAIN);
    let listener = &connection.origin.door.listener;
    if listener.http2 {
        let timer = connection.thread.timers.timer();
        let settings = connection.thread.settings();
        let timeouts = &settings.config.timeouts;
        timer.set(meter::now() + if early.is_empty() { timeouts.keep_alive } else { timeouts.header });
        while early.len() < PREFACE.len() && PREFACE.starts_with(&early) {
            let is_first = early.is_empty();
            let read = poll_fn(|context| match transport.poll_fill(context, &mut early) {
                Poll::Pending => timer.poll(context).map(|()| Ok(0)),
                ready @ Poll::Ready(_) => ready,
            });
            if !matches!(read.await, Ok(1..)) {
                return;
            }
            if is_first {
                timer.set(meter::now() + timeouts.header);
            }
        }
        if early.starts_with(PREFACE) {
            transport.unread(early);
            return Box::pin(http2::serve(connection, transport)).await;
        }
    }
    if listener.http1 {
        server::serve(connection, transport, early).await;
    }
}
