//! A client's requests on one connection: each one's head, and its body as it comes.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Request, Uri, Version};
use tidegate_wire::http1::{Guard, Limits, Phase, Violation};

use super::ahead::Ahead;
use super::decode::{Decoded, Framing};
use crate::config::Http;
use crate::io::conn::account::Account;
use crate::io::conn::meter;
use crate::io::conn::timers::Timer;
use crate::io::conn::transport::Transport;
use crate::io::request::bounds::Received;
use crate::io::request::error::BodyError;
use crate::machine::patience::Patience;

/// Most bytes that are read ahead of the request that is worked on; less if its tenant may not have the memory.
const AHEAD_MAX: usize = 64 * 1024;
/// Bytes of a body after which nothing is read ahead of its reader: many requests may wait, and a client that goes away
/// behind so many is found when its body is read.
const BODY_AHEAD: usize = 16 * 1024;

/// A client's connection as the requests on it share it: the server's loop, and the body of the request under way.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) transport: RefCell<Transport>,
    inner: RefCell<Inner>,
    /// Stalls of the client: between requests, within heads and bodies, and while it is written to.
    pub(crate) timer: Timer,
    /// With the body of the request under way; and with each at its beginning.
    patience: Cell<Patience>,
    whole_patience: Patience,
    /// The client waits for leave to send its body.
    expects: Cell<bool>,
}

#[derive(Debug)]
struct Inner {
    /// Follows what comes; nothing gets past it that readers could understand differently.
    guard: Guard,
    /// Came, but the guard has not let it pass.
    held: BytesMut,
    /// Passed, and not consumed.
    passed: BytesMut,
    /// Both of them, as their tenant's.
    ahead: Ahead,
    /// Heads that were taken off `passed`.
    heads: u64,
    /// What is left of the body of the request under way.
    framing: Framing,
    /// Whose it is: another number than a [`ClientBody`] has, and that one reads no further.
    body: u64,
    /// Who waits for more of that body, and is the one whom the socket wakes.
    reader: Option<Waker>,
    ended: bool,
}

/// What stands next on a connection.
#[derive(Debug)]
pub(crate) enum Next {
    /// The head of a request, as it came and understood.
    Head(Box<Head>),
    /// The client ended the connection between two requests.
    End,
    /// The client broke the rules.
    Violation(Violation),
    /// The head did not come in time; `true` if some of it had come.
    TimedOut(bool),
}

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Head {
    /// Understood, without a body.
    pub(crate) parts: Parts,
    /// Whether the client wants the connection to stay open.
    pub(crate) keep_alive: bool,
}

impl Wire {
    /// A connection of which `early` has been read, behind any TLS. What is in memory of it is held on `account`.
    pub(crate) fn new(
        transport: Transport,
        early: BytesMut,
        account: &Rc<Account>,
        limits: Limits,
        timer: Timer,
        patience: Patience,
    ) -> Self {
        let inner = Inner {
            guard: Guard::new(limits),
            held: early,
            passed: BytesMut::new(),
            ahead: Ahead::new(account),
            heads: 0,
            framing: Framing::Done,
            body: 0,
            reader: None,
            ended: false,
        };
        let wire = Self {
            transport: RefCell::new(transport),
            inner: RefCell::new(inner),
            timer,
            patience: Cell::new(patience),
            whole_patience: patience,
            expects: Cell::new(false),
        };
        wire.inner.borrow_mut().admit();
        wire
    }

    /// Waits for the head of the next request. The timer is the caller's to set; it is set anew when a head begins.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>, header: Duration) -> Poll<Next> {
        loop {
            let mut inner = self.inner.borrow_mut();
            inner.count();
            if inner.guard.heads() > inner.heads {
                return Poll::Ready(match inner.take_head() {
                    Ok(head) => {
                        self.expects.set(expects_leave(&head.parts) && !inner.framing.is_done());
                        Next::Head(Box::new(head))
                    }
                    Err(violation) => Next::Violation(violation),
                });
            }
            if let Some(violation) = inner.guard.violation() {
                return Poll::Ready(Next::Violation(violation));
            }
            let phase = inner.guard.phase();
            debug_assert_ne!(phase, Phase::Answer, "nothing passes, so nothing would bound what is read");
            match inner.poll_fill(&self.transport, context) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Next::End),
                Poll::Ready(Ok(_)) => {
                    if phase == Phase::Idle {
                        self.timer.set(meter::now() + header);
                    }
                }
                Poll::Pending => {
                    ready!(self.timer.poll(context));
                    return Poll::Ready(Next::TimedOut(phase == Phase::Head));
                }
            }
        }
    }

    /// While a request is worked on: ready when the client went away. Reads ahead, up to a bound.
    pub(crate) fn poll_gone(&self, context: &mut Context<'_>) -> Poll<()> {
        let Ok(mut inner) = self.inner.try_borrow_mut() else { return Poll::Pending };
        if inner.reader.is_some() {
            return Poll::Pending; // Whoever reads the body finds out, and is to get what comes.
        }
        let most = if inner.framing.is_done() { AHEAD_MAX } else { BODY_AHEAD };
        loop {
            if inner.ended {
                return Poll::Ready(());
            }
            let length = inner.len();
            if length >= most || inner.guard.violation().is_some() {
                return Poll::Pending;
            }
            // Whose client sends more than it may have in memory is found gone when that is worked on.
            let room = inner.ahead.room(length);
            if room == 0 {
                return Poll::Pending;
            }
            if ready!(inner.poll_read(room, &self.transport, context)).is_err() {
                return Poll::Ready(());
            }
        }
    }

    /// Reads and drops what is left of a body that nobody wanted; false if it is not worth waiting for.
    pub(crate) fn drain(&self) -> bool {
        self.end_body();
        let mut inner = self.inner.borrow_mut();
        loop {
            match inner.decode() {
                Ok(Decoded::Piece(_)) => {}
                Ok(Decoded::End) => return true,
                Ok(Decoded::Short) | Err(_) => return false,
            }
        }
    }

    /// The request is answered: from here on nobody reads its body. An upstream's connection that many share may still
    /// have a hand on it.
    pub(crate) fn end_body(&self) {
        self.expects.set(false);
        let mut inner = self.inner.borrow_mut();
        inner.body += 1;
        let reader = inner.reader.take();
        drop(inner);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// True if the body of the request under way has come to its end.
    pub(crate) fn is_body_done(&self) -> bool {
        self.inner.borrow().framing.is_done()
    }

    /// The answer switched protocols: everything read that is not consumed, as it came.
    pub(crate) fn upgraded(&self) -> BytesMut {
        let mut inner = self.inner.borrow_mut();
        inner.guard.upgraded();
        inner.admit();
        std::mem::take(&mut inner.passed)
    }

    /// The answer did not switch protocols.
    pub(crate) fn declined(&self) {
        let mut inner = self.inner.borrow_mut();
        if inner.guard.phase() == Phase::Answer {
            inner.guard.declined();
            inner.admit();
        }
    }

    /// True if no byte of another request has come.
    pub(crate) fn is_quiet(&self) -> bool {
        let inner = self.inner.borrow();
        inner.passed.is_empty() && inner.held.is_empty()
    }
}

impl Inner {
    /// Bytes that came and are not consumed.
    fn len(&self) -> usize {
        self.held.len() + self.passed.len()
    }

    /// Tells how much is in memory. After much of it, what it was in is let go.
    fn count(&mut self) {
        let length = self.len();
        if self.ahead.set(length) && length == 0 {
            (self.held, self.passed) = (BytesMut::new(), BytesMut::new());
        }
    }

    /// One read. What it brings is shown to the guard.
    fn poll_fill(&mut self, transport: &RefCell<Transport>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_read(usize::MAX, transport, context)
    }

    /// One read of at most so many bytes.
    fn poll_read(
        &mut self,
        most: usize,
        transport: &RefCell<Transport>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let read = ready!(transport.borrow_mut().poll_fill_up_to(context, &mut self.held, most))?;
        self.ended |= read == 0;
        self.admit();
        Poll::Ready(Ok(read))
    }

    /// Lets pass what the guard finds sound. A violation shows in the guard.
    fn admit(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let Ok(sound) = self.guard.feed(&self.held) else { return };
        if self.passed.is_empty() && sound == self.held.len() {
            std::mem::swap(&mut self.passed, &mut self.held);
        } else {
            self.passed.extend_from_slice(&self.held[..sound]);
            self.held.advance(sound);
        }
    }

    fn decode(&mut self) -> Result<Decoded, BodyError> {
        let decoded = self.framing.decode(&mut self.passed)?;
        if matches!(decoded, Decoded::Short)
            && let Some(violation) = self.guard.violation()
        {
            return Err(BodyError::Violation(violation));
        }
        Ok(decoded)
    }

    /// Takes the head off the front of what passed; the guard saw all of it.
    fn take_head(&mut self) -> Result<Head, Violation> {
        self.heads += 1;
        // One empty line before a request is tolerated (RFC 9112, section 2.2).
        while self.passed.first().is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
            self.passed.advance(1);
        }
        // The guard lets no more pass than are configured, and no more can be than these.
        let mut fields = [httparse::EMPTY_HEADER; Http::HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        let Ok(httparse::Status::Complete(length)) = parsed.parse(&self.passed) else { return Err(unlike()) };
        let whole = Bytes::copy_from_slice(&self.passed[..length]);
        let (parts, framing) = understand(&parsed, &whole, self.passed.as_ptr().addr()).ok_or_else(unlike)?;
        self.passed.advance(length);
        self.framing = framing;
        let keep_alive = keeps(&parts);
        Ok(Head { parts, keep_alive })
    }
}

/// The guard passed something that is no request to the parser: one of the two is wrong, and the client bears it.
fn unlike() -> Violation {
    Violation { status: 400, reason: "the head of the request is malformed", offset: 0 }
}

/// From the parser's view of the head, whose bytes begin at the address `start`, to a request's parts.
fn understand(parsed: &httparse::Request<'_, '_>, whole: &Bytes, start: usize) -> Option<(Parts, Framing)> {
    let part = |text: &[u8]| {
        let at = text.as_ptr().addr().checked_sub(start)?;
        if text.is_empty() { Some(Bytes::new()) } else { Some(whole.slice(at..at + text.len())) }
    };
    let method = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
    let uri = Uri::from_maybe_shared(part(parsed.path?.as_bytes())?).ok()?;
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + 8);
    let mut framing = Framing::Done;
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        if name == CONTENT_LENGTH {
            framing = Framing::Length(str::from_utf8(field.value).ok()?.parse().ok()?);
        } else if name == TRANSFER_ENCODING {
            framing = Framing::CHUNKED; // The guard knows no other.
        }
        headers.append(name, HeaderValue::from_maybe_shared(part(field.value)?).ok()?);
    }
    // HTTP/1.0 may name the host in the target alone; the guard has seen that the two do not differ.
    if let Some(authority) = uri.authority().filter(|_| method != Method::CONNECT && !headers.contains_key(HOST)) {
        headers.insert(HOST, HeaderValue::from_str(authority.as_str()).ok()?);
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = method;
    parts.uri = uri;
    parts.version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    parts.headers = headers;
    let framing = if framing == Framing::Length(0) { Framing::Done } else { framing };
    Some((parts, framing))
}

/// Whether the client wants to be told to go on. One of HTTP/1.0 does not know that answer (RFC 9110, section 10.1.1).
fn expects_leave(parts: &Parts) -> bool {
    let expects = || Some(parts.headers.get(EXPECT)?.as_bytes());
    parts.version == Version::HTTP_11 && expects().is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

fn keeps(parts: &Parts) -> bool {
    let mut options = parts.headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|&b| b == b','));
    if parts.version == Version::HTTP_11 {
        !options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
    } else {
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"keep-alive"))
    }
}

/// The body of the request that is worked on.
#[derive(Debug)]
pub(crate) struct ClientBody {
    wire: Rc<Wire>,
    number: u64,
    /// If somebody wants to know how much came.
    received: Option<Received>,
}

impl ClientBody {
    /// The body of the request whose head `wire` gave last; `None` if it has none.
    pub(crate) fn of(wire: &Rc<Wire>, received: Option<Received>) -> Option<Self> {
        let inner = wire.inner.borrow();
        let number = inner.body;
        wire.patience.set(wire.whole_patience);
        (!inner.framing.is_done()).then(|| Self { wire: Rc::clone(wire), number, received })
    }

    /// True if nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        let inner = self.wire.inner.borrow();
        inner.body == self.number && inner.framing.is_done()
    }

    /// Bytes that are still to come, if known.
    pub(crate) fn left(&self) -> Option<u64> {
        let inner = self.wire.inner.borrow();
        if inner.body != self.number {
            return None; // They do not come.
        }
        match inner.framing {
            Framing::Done => Some(0),
            Framing::Length(left) => Some(left),
            Framing::Chunked(_) | Framing::UntilClose => None,
        }
    }

    /// The next piece.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let wire = &*self.wire;
        let mut inner = wire.inner.borrow_mut();
        if inner.body != self.number {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        inner.reader = None;
        loop {
            match inner.decode() {
                Err(error) => return Poll::Ready(Some(Err(error))),
                Ok(Decoded::Piece(piece)) => {
                    wire.timer.clear();
                    if let Some(received) = &self.received {
                        received.set(received.get() + piece.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(piece)));
                }
                Ok(Decoded::End) => {
                    wire.timer.clear();
                    return Poll::Ready(None);
                }
                Ok(Decoded::Short) => {}
            }
            if wire.expects.get() {
                // A few bytes into an empty socket buffer: it takes all of them or is broken.
                let leave = b"HTTP/1.1 100 Continue\r\n\r\n";
                let sent = wire.transport.borrow_mut().poll_push(context, &[IoSlice::new(leave)]);
                if ready!(sent)? < leave.len() {
                    return Poll::Ready(Some(Err(BodyError::Cut)));
                }
                wire.expects.set(false);
            }
            match inner.poll_fill(&wire.transport, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Some(Err(BodyError::Cut))),
                Poll::Ready(Ok(read)) => {
                    wire.timer.clear();
                    let mut patience = wire.patience.get();
                    patience.moved(read as u64, meter::now());
                    wire.patience.set(patience);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Pending => {
                    if !wire.timer.is_set() {
                        let mut patience = wire.patience.get();
                        wire.timer.set(patience.wait(meter::now()));
                        wire.patience.set(patience);
                    }
                    inner.reader = Some(context.waker().clone());
                    ready!(wire.timer.poll(context));
                    return Poll::Ready(Some(Err(BodyError::Stalled)));
                }
            }
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Ok(mut inner) = self.wire.inner.try_borrow_mut()
            && inner.body == self.number
        {
            inner.reader = None;
        }
    }
}
