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

use bytes::{Bytes, BytesMut};
use http::header::HeaderMap;
use http::{Method, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::answer::{self, AnswerHead, Asked};
use super::decode::{Decoded, Framing};
use super::write::{self, Outgoing};
use crate::io::conn::account::Account;
use crate::io::conn::meter;
use crate::io::conn::server_stream::ServerStream;
use crate::io::conn::timers::Timer;
use crate::io::request::body::RequestBody;
use crate::io::request::error::BodyError;

/// Most bytes that one read takes; of an answer that its HTTP/1 client does not read, as many are held.
const READ_MAX: usize = 16 * 1024;
/// Most bytes that each of the first reads of an answer takes. Nearly all answers are shorter; and of one that its client
/// does not read, no more is held.
const READ_FIRST: usize = 4 * 1024;
/// How many reads are the first: as many pieces wait for an HTTP/2 client that takes none.
const READS_FIRST: u32 = 2;
/// How long a server that takes no more of a request is listened to: what it said before is on its way.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Reads of a head before others have their turn.
const HEAD_READS_MAX: usize = 8;

thread_local! {
    /// All connections to upstreams of a thread read into this buffer, so that an idle one owns none.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_MAX].into_boxed_slice());
}

/// An open connection on which no exchange is under way.
#[derive(Debug)]
pub(crate) struct Link {
    stream: ServerStream,
    buffer: BytesMut,
    out: Vec<u8>,
    sent: usize,
    timer: Timer,
    /// Of the present answer.
    reads: u32,
    /// Interim answers to the present request.
    interim: u8,
    /// Exchanges that ended on it.
    exchanges: u64,
    /// How long the server keeps it behind the last answer, as far as it said so.
    kept_for: Duration,
    /// The last answer had no content whatever its head says, and a server that sends some all the same is not found out
    /// before it comes.
    is_doubtful: bool,
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

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("ticket", &self.ticket).finish_non_exhaustive()
    }
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
    /// Why no more of the request can be sent, until the head of the answer is there.
    broken: Option<io::Error>,
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
    pub(crate) fn new(stream: impl Into<ServerStream>, timer: Timer) -> Self {
        Self {
            stream: stream.into(),
            buffer: BytesMut::new(),
            out: Vec::new(),
            sent: 0,
            timer,
            reads: 0,
            interim: 0,
            exchanges: 0,
            kept_for: Duration::MAX,
            is_doubtful: false,
        }
    }

    /// True if the server closed it or said something unasked, when the thread last looked at its sockets. Costs a system
    /// call only if something came.
    pub(crate) fn is_stale(&mut self) -> bool {
        self.stream.is_stale()
    }

    /// The same as of now: one system call, and with TLS one more for what came.
    pub(crate) fn is_stale_now(&mut self) -> bool {
        self.stream.is_stale_now()
    }

    /// How long the server keeps it while nothing is sent, as far as it said so.
    pub(crate) fn kept_for(&self) -> Duration {
        self.kept_for
    }

    /// True if more may come behind the last answer.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.is_doubtful
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
            broken: None,
            idle: patience.idle,
            account: Rc::clone(account),
            slot: Some(Slot { home, ticket, link: None }),
        };
        if let Some(link) = answer.link.as_mut() {
            (link.reads, link.interim) = (0, 0);
            write::request_head(&mut link.out, request.method, request.target, request.headers, framing);
        }
        let head = poll_fn(|context| answer.poll_head(context, &request, patience)).await?;
        answer.framing = head.framing;
        answer.reusable = head.reusable && answer.broken.is_none();
        if let Some(link) = answer.link.as_mut() {
            (link.kept_for, link.is_doubtful) = (head.kept_for, head.is_bare);
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

    /// Gives all of `out` to the socket.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            self.sent += ready!(Pin::new(&mut self.stream).poll_write(context, &self.out[self.sent..]))?;
            self.timer.clear();
        }
        // TLS may hold some of it.
        Pin::new(&mut self.stream).poll_flush(context)
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
            let Poll::Ready(written) = self.poll_out(context) else {
                if !self.timer.is_set() {
                    self.timer.set(meter::now() + idle);
                }
                return Poll::Pending;
            };
            written.map_err(SendError::Upstream)?;
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

impl AnswerBody {
    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        request: &Outward<'_>,
        patience: Patience,
    ) -> Poll<Result<AnswerHead, ExchangeError>> {
        let Some(link) = self.link.as_mut() else { return Poll::Ready(Err(ExchangeError::Closed)) };
        if let Some(sending) = self.sending.as_mut().filter(|_| self.broken.is_none()) {
            match link.poll_send(context, sending, self.idle) {
                Poll::Ready(Ok(())) => {
                    self.sending = None;
                    link.timer.set(meter::now() + patience.first_byte);
                }
                Poll::Ready(Err(SendError::Client(error))) => return Poll::Ready(Err(ExchangeError::Request(error))),
                // The server may have answered before it stopped to read. The runtime may know that, and the end, a round
                // later only.
                Poll::Ready(Err(SendError::Upstream(error))) => {
                    self.broken = Some(error);
                    link.timer.set(meter::now() + LAST_WORD);
                }
                Poll::Pending => {}
            }
        }
        let asked = Asked { method: request.method, upgrade: request.upgrade };
        for _ in 0..HEAD_READS_MAX {
            match answer::take_head(&mut link.buffer, asked, &mut link.interim) {
                Ok(Some(head)) => return Poll::Ready(Ok(head)),
                Ok(None) => match link.poll_fill(context) {
                    Poll::Ready(Ok(0)) if link.buffer.is_empty() => {
                        return Poll::Ready(Err(self.broken.take().map_or(ExchangeError::Closed, ExchangeError::Io)));
                    }
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(ExchangeError::Malformed("its head is cut"))),
                    Poll::Ready(Ok(read)) => self.account.add_bytes(read as u64),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(ExchangeError::Io(error))),
                    Poll::Pending => {
                        ready!(link.timer.poll(context));
                        return Poll::Ready(Err(self.broken.take().map_or(ExchangeError::TimedOut, ExchangeError::Io)));
                    }
                },
                Err(malformed) => return Poll::Ready(Err(ExchangeError::Malformed(malformed))),
            }
        }
        // Let others run.
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
    pub(crate) fn into_socket(mut self) -> Option<(ServerStream, BytesMut, Option<Slot>)> {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::event::{PollFd, PollFlags, poll};
    use tokio::net::TcpStream;

    use super::*;
    use crate::io::conn::timers::Timers;

    #[test]
    fn what_came_since_the_thread_looked_at_its_sockets_is_seen_on_the_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timers = Timers::new(tidegate_core::Instant::ZERO);
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            for late in [&b""[..], b"HTTP/1.1 200 OK\r\n\r\n"] {
                let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                let (mut server, _) = listener.accept().unwrap();
                let mut link = Link::new(stream, timers.timer());
                assert!(!link.is_stale() && !link.is_stale_now());
                server.write_all(late).unwrap();
                server.shutdown(std::net::Shutdown::Write).unwrap();
                // The kernel has it; the runtime, which is not asked meanwhile, does not know.
                poll(&mut [PollFd::new(link.stream.socket(), PollFlags::IN)], None).unwrap();
                assert!(!link.is_stale() && link.is_stale_now());
                tokio::task::yield_now().await;
                link.stream.socket().readable().await.unwrap();
                assert!(link.is_stale());
            }
        });
    }
}
