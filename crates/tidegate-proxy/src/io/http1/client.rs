//! A connection to an upstream: one exchange after another.
//!
//! No task stands behind it. Whoever waits for the answer drives the connection, and afterwards whoever reads the
//! answer's body; so the time is the tenant's for whom the exchange is.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, Version};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::decode::{Decoded, Framing};
use super::write::{self, Outgoing};
use crate::io::account::Account;
use crate::io::body::{BodyError, RequestBody};
use crate::io::meter;
use crate::io::timers::Timer;

/// Most bytes that one read takes; of an answer that its HTTP/1 client does not read, as many are held.
const READ_MAX: usize = 16 * 1024;
/// Most bytes that each of the first reads of an answer takes. Nearly all answers are shorter; and of one that its client
/// does not read, no more is held.
const READ_FIRST: usize = 4 * 1024;
/// How many reads are the first: as many pieces wait for an HTTP/2 client that takes none.
const READS_FIRST: u32 = 2;
/// Most bytes of an answer's head.
const HEAD_MAX: usize = 64 * 1024;
/// Most fields of an answer.
const FIELDS_MAX: usize = 128;
/// Most interim answers (1xx) before the final one.
const INTERIM_MAX: usize = 8;

thread_local! {
    /// All connections to upstreams of a thread read into this buffer, so that an idle one owns none.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_MAX].into_boxed_slice());
}

/// An open connection on which no exchange is under way.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    buffer: BytesMut,
    out: Vec<u8>,
    sent: usize,
    timer: Timer,
    /// Of the present answer.
    reads: u32,
    /// Exchanges that ended on it.
    exchanges: u64,
}

/// Where connections come from and go back to.
pub(crate) trait Home {
    /// The exchange `ticket` ended. `link` is there if it can be used again.
    fn ended(&self, ticket: u64, link: Option<Link>);
}

/// A slot at a server, held to the last byte of an answer, or of what follows one that switched protocols.
pub(crate) struct Slot {
    home: Rc<dyn Home>,
    ticket: u64,
    link: Option<Link>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.home.ended(self.ticket, self.link.take());
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ExchangeError {
    /// The server closed before the first byte of an answer.
    #[error("the upstream closed the connection without an answer")]
    Closed,
    /// The socket failed before the first byte of an answer.
    #[error("the connection to the upstream failed: {0}")]
    Io(#[source] io::Error),
    /// The first byte of the answer did not come in time.
    #[error("the upstream did not answer in time")]
    TimedOut,
    /// The answer is not HTTP/1.
    #[error("the upstream's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The client's body broke off.
    #[error("the request's body broke off")]
    Request(#[source] BodyError),
}

/// How long the parts of an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the request's end to the first byte of the answer.
    pub(crate) first_byte: Duration,
    /// Between two reads of the answer, and between two writes of the request.
    pub(crate) idle: Duration,
}

/// What there is to send.
pub(crate) struct Outward<'a> {
    /// Its method.
    pub(crate) method: &'a Method,
    /// In origin form, or as the method wants.
    pub(crate) target: &'a str,
    /// Without what frames the body.
    pub(crate) headers: &'a HeaderMap,
    /// Asks for another protocol; then the connection may be the caller's own afterwards.
    pub(crate) upgrade: bool,
}

/// The request's body, while it is sent.
#[derive(Debug)]
struct Sending {
    body: RequestBody,
    framing: Outgoing,
    done: bool,
}

/// An answer's body as it comes. Dropped before its end, it closes the connection.
pub(crate) struct AnswerBody {
    link: Option<Link>,
    sending: Option<Sending>,
    framing: Framing,
    reusable: bool,
    idle: Duration,
    account: Rc<Account>,
    slot: Option<Slot>,
}

impl std::fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerBody").field("framing", &self.framing).finish_non_exhaustive()
    }
}

impl Link {
    /// A connection that was just opened.
    pub(crate) fn new(stream: TcpStream, timer: Timer) -> Self {
        Self { stream, buffer: BytesMut::new(), out: Vec::new(), sent: 0, timer, reads: 0, exchanges: 0 }
    }

    /// True if the server closed it or said something unasked. Costs a system call only if something came.
    pub(crate) fn is_stale(&self) -> bool {
        let mut byte = [0];
        !matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// True if it was used before: then the server may have closed it just now.
    pub(crate) fn is_used(&self) -> bool {
        self.exchanges > 0
    }

    /// Sends a request and waits for the head of its answer. However it ends, `home` is told once, now or when the
    /// answer's body ends.
    pub(crate) async fn exchange(
        self,
        request: Outward<'_>,
        body: RequestBody,
        patience: Patience,
        account: &Rc<Account>,
        (home, ticket): (Rc<dyn Home>, u64),
    ) -> Result<Response<AnswerBody>, ExchangeError> {
        let framing = outgoing(request.method, &body);
        let mut answer = AnswerBody {
            link: Some(self),
            sending: Some(Sending { done: body.is_end_stream(), body, framing }),
            framing: Framing::Done,
            reusable: false,
            idle: patience.idle,
            account: Rc::clone(account),
            slot: Some(Slot { home, ticket, link: None }),
        };
        if let Some(link) = answer.link.as_mut() {
            link.reads = 0;
            write::request_head(&mut link.out, request.method, request.target, request.headers, framing);
        }
        let head = poll_fn(|context| answer.poll_head(context, &request, patience)).await?;
        answer.framing = head.framing;
        answer.reusable = head.reusable;
        if let Some(link) = &answer.link {
            link.timer.clear();
        }
        let mut response = Response::new(answer);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        response.body_mut().finish_if_done();
        Ok(response)
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(meter::poll_turn(context));
        SCRATCH.with_borrow_mut(|scratch| {
            let most = if self.reads < READS_FIRST { READ_FIRST } else { READ_MAX };
            let mut buffer = ReadBuf::new(&mut scratch[..most]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            self.reads = self.reads.saturating_add(1);
            self.buffer.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Writes what waits; `Ready` once there is nothing more to send. A server that takes nothing has `idle` to change
    /// its mind; the timer is the caller's to look at.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        sending: &mut Sending,
        idle: Duration,
    ) -> Poll<Result<(), SendError>> {
        loop {
            while self.sent < self.out.len() {
                let rest = &self.out[self.sent..];
                let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, rest) else {
                    if !self.timer.is_set() {
                        self.timer.set(meter::now() + idle);
                    }
                    return Poll::Pending;
                };
                self.sent += written.map_err(SendError::Upstream)?;
                self.timer.clear();
            }
            self.out.clear();
            self.sent = 0;
            if sending.done {
                return Poll::Ready(Ok(()));
            }
            let Some(frame) = ready!(Pin::new(&mut sending.body).poll_frame(context)) else {
                write::end(&mut self.out, sending.framing);
                sending.done = true;
                continue;
            };
            if let Ok(data) = frame.map_err(SendError::Client)?.into_data() {
                write::piece(&mut self.out, sending.framing, &data);
            }
        }
    }
}

enum SendError {
    Upstream(io::Error),
    Client(BodyError),
}

/// How a request's body is framed. Methods that usually have a body say so even if it is empty (RFC 9110, 8.6).
fn outgoing(method: &Method, body: &RequestBody) -> Outgoing {
    match body.size_hint().exact() {
        Some(0) if matches!(*method, Method::POST | Method::PUT | Method::PATCH) => Outgoing::Length(0),
        Some(0) => Outgoing::None,
        Some(length) => Outgoing::Length(length),
        None => Outgoing::Chunked,
    }
}

struct AnswerHead {
    status: StatusCode,
    headers: HeaderMap,
    framing: Framing,
    reusable: bool,
}

impl AnswerBody {
    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        request: &Outward<'_>,
        patience: Patience,
    ) -> Poll<Result<AnswerHead, ExchangeError>> {
        let Some(link) = self.link.as_mut() else { return Poll::Ready(Err(ExchangeError::Closed)) };
        let mut send_error = None;
        if let Some(sending) = self.sending.as_mut() {
            match link.poll_send(context, sending, self.idle) {
                Poll::Ready(Ok(())) => {
                    self.sending = None;
                    link.timer.set(meter::now() + patience.first_byte);
                }
                Poll::Ready(Err(SendError::Client(error))) => return Poll::Ready(Err(ExchangeError::Request(error))),
                // The server may have answered before it stopped to read; so look.
                Poll::Ready(Err(SendError::Upstream(error))) => send_error = Some(error),
                Poll::Pending => {}
            }
        }
        for _ in 0..=INTERIM_MAX {
            match parse(&mut link.buffer, request) {
                Ok(Some(head)) if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS => {}
                Ok(Some(head)) => return Poll::Ready(Ok(head)),
                Ok(None) => match link.poll_fill(context) {
                    Poll::Ready(Ok(0)) if link.buffer.is_empty() => {
                        return Poll::Ready(Err(send_error.map_or(ExchangeError::Closed, ExchangeError::Io)));
                    }
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(ExchangeError::Malformed("its head is cut"))),
                    Poll::Ready(Ok(read)) => self.account.add_bytes(read as u64),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(ExchangeError::Io(error))),
                    Poll::Pending => {
                        if let Some(error) = send_error {
                            return Poll::Ready(Err(ExchangeError::Io(error)));
                        }
                        ready!(link.timer.poll(context));
                        return Poll::Ready(Err(ExchangeError::TimedOut));
                    }
                },
                Err(malformed) => return Poll::Ready(Err(ExchangeError::Malformed(malformed))),
            }
        }
        // More reads than interim answers: let others run.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// True if nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        self.framing.is_done()
    }

    /// Bytes that are still to come, if known.
    pub(crate) fn left(&self) -> Option<u64> {
        match self.framing {
            Framing::Done => Some(0),
            Framing::Length(left) => Some(left),
            Framing::Chunked(_) | Framing::UntilClose => None,
        }
    }

    /// After an answer of 101: the socket and what was read behind the head.
    pub(crate) fn into_socket(mut self) -> Option<(TcpStream, BytesMut, Option<Slot>)> {
        let link = self.link.take()?;
        Some((link.stream, link.buffer, self.slot.take()))
    }

    /// The next piece of the body.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Some(link) = self.link.as_mut() else { return Poll::Ready(None) };
        if let Some(sending) = self.sending.as_mut() {
            // The answer came before the request's end; both go on. A server that wants no more says so by closing.
            if let Poll::Ready(result) = link.poll_send(context, sending, self.idle) {
                self.reusable &= result.is_ok();
                self.sending = None;
            }
        }
        loop {
            match self.framing.decode(&mut link.buffer) {
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
                Ok(Decoded::Piece(piece)) => {
                    link.timer.clear();
                    self.finish_if_done();
                    return Poll::Ready(Some(Ok(piece)));
                }
                Ok(Decoded::End) => {
                    self.finish_if_done();
                    return Poll::Ready(None);
                }
                Ok(Decoded::Short) => match link.poll_fill(context) {
                    Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => {
                        self.framing = Framing::Done;
                        self.finish_if_done();
                        return Poll::Ready(None);
                    }
                    Poll::Ready(Ok(0)) => return Poll::Ready(Some(Err(BodyError::Cut))),
                    Poll::Ready(Ok(read)) => self.account.add_bytes(read as u64),
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                    Poll::Pending => {
                        if !link.timer.is_set() {
                            link.timer.set(meter::now() + self.idle);
                        }
                        ready!(link.timer.poll(context));
                        return Poll::Ready(Some(Err(BodyError::Stalled)));
                    }
                },
            }
        }
    }

    /// Gives the connection back as soon as the exchange is over.
    fn finish_if_done(&mut self) {
        if !self.framing.is_done() || !self.reusable || self.sending.is_some() {
            return;
        }
        if let Some(mut link) = self.link.take() {
            let clean = link.buffer.is_empty();
            link.exchanges += 1;
            link.timer.clear();
            if let Some(slot) = self.slot.as_mut().filter(|_| clean) {
                slot.link = Some(link);
            }
            self.slot = None;
        }
    }
}

/// Takes the head of an answer off the front of `buffer`; `None` if it is not all there.
fn parse(buffer: &mut BytesMut, request: &Outward<'_>) -> Result<Option<AnswerHead>, &'static str> {
    if buffer.is_empty() {
        return Ok(None);
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let length = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if buffer.len() >= HEAD_MAX => return Err("its head is too long"),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("it has too many fields"),
        Err(_) => return Err("its head is not HTTP/1"),
    };
    let status = StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| "its status")?;
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    // One copy holds all values; each of them is a part of it.
    let whole = Bytes::copy_from_slice(&buffer[..length]);
    let start = buffer.as_ptr().addr();
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + 4);
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "the name of a field")?;
        let at = field.value.as_ptr().addr() - start;
        let value = if field.value.is_empty() { Bytes::new() } else { whole.slice(at..at + field.value.len()) };
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| "the value of a field")?;
        headers.append(name, value);
    }
    buffer.advance(length);
    let (framing, sound) = framing(request, status, &headers)?;
    let reusable = sound && framing != Framing::UntilClose && keeps(version, &headers);
    Ok(Some(AnswerHead { status, headers, framing, reusable }))
}

/// How the body of an answer is framed (RFC 9112, section 6.3), and whether the connection may be used again.
fn framing(request: &Outward<'_>, status: StatusCode, headers: &HeaderMap) -> Result<(Framing, bool), &'static str> {
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return if request.upgrade { Ok((Framing::Done, false)) } else { Err("it changes the protocol unasked") };
    }
    if !write::has_body(request.method, status) {
        return Ok((Framing::Done, true));
    }
    let lengths = headers.contains_key(CONTENT_LENGTH);
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("its transfer coding");
        }
        // Both: the length means nothing, and who sends it may have been tricked.
        return Ok((Framing::CHUNKED, !lengths));
    }
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|text| text.parse::<u64>().ok()).ok_or("its length")?;
        if length.replace(number).is_some_and(|other| other != number) {
            return Err("its two lengths");
        }
    }
    Ok((length.map_or(Framing::UntilClose, Framing::Length), true))
}

/// Whether the server keeps the connection.
fn keeps(version: Version, headers: &HeaderMap) -> bool {
    let says = |word: &str| {
        let values = headers.get_all(CONNECTION).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case(word))
    };
    if version == Version::HTTP_11 { !says("close") } else { says("keep-alive") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_for(method: &Method, text: &str) -> Result<Option<(Framing, bool)>, &'static str> {
        let request = Outward { method, target: "/", headers: &HeaderMap::new(), upgrade: false };
        let head = parse(&mut BytesMut::from(text), &request)?;
        Ok(head.map(|head| (head.framing, head.reusable)))
    }

    #[test]
    fn an_answers_end_is_found_as_the_standard_says() {
        for (method, text, framing, reusable) in [
            (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Length(5), true),
            (Method::HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Done, true),
            (Method::GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Framing::Done, true),
            (Method::GET, "HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false),
            (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Framing::CHUNKED, true),
            (
                Method::GET,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                Framing::CHUNKED,
                false,
            ),
            (
                Method::GET,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close\r\n\r\n",
                Framing::Length(5),
                false,
            ),
            (Method::GET, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Length(5), false),
        ] {
            assert_eq!(parse_for(&method, text), Ok(Some((framing, reusable))), "{text}");
        }
    }

    #[test]
    fn ambiguous_answers_are_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
        ] {
            assert!(parse_for(&Method::GET, text).is_err(), "{text}");
        }
        assert_eq!(parse_for(&Method::GET, "HTTP/1.1 200 OK\r\nConte"), Ok(None));
    }
}
