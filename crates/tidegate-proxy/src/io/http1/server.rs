//! Serves a client's connection: one request after another.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Response, StatusCode, Version};
use http_body::Body;
use tokio::io::AsyncWrite;

use super::request::{ClientBody, Head, Next, Wire};
use super::write::{self, Outgoing};
use crate::io::conn::pace::Pace;
use crate::io::conn::timers::Timer;
use crate::io::conn::transport::Transport;
use crate::io::conn::websocket::Far;
use crate::io::conn::{meter, waits, websocket};
use crate::io::listen::thread::{Connection, Total};
use crate::io::request::body::RequestBody;
use crate::io::request::error::BodyError;
use crate::io::request::forward::{self, Answer};
use crate::io::request::log::Record;
use crate::io::request::measured::Measured;
use crate::io::request::refuse;
use crate::io::request::response::ResponseBody;
use crate::io::request::service::{self, Charged, Judged};
use crate::machine::Resource;
use crate::machine::patience::Patience;
use crate::machine::rest::Rest;

/// Pieces of at least so many bytes are written from where they are; smaller ones are put together.
const APART_MIN: usize = 4 * 1024;
/// Bytes that are put together before they are written.
const TOGETHER_MAX: usize = 32 * 1024;

/// How long a last answer may take to go out.
const LINGER: Duration = Duration::from_secs(2);
/// How long a connection that was taken while the proxy stops waits for its first request: some round trips behind a
/// handshake.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Serves requests until one side ends the connection. `early` was read already.
pub(crate) async fn serve(connection: &Rc<Connection>, transport: Transport, early: BytesMut) {
    let thread = &connection.thread;
    let settings = thread.settings();
    let timeouts = &settings.config.timeouts;
    let (account, timer) = (&connection.account, thread.timers.timer());
    let wire = Rc::new(Wire::new(transport, early, account, settings.http, timer, timeouts.body_patience()));
    let total = timeouts.total.map(|total| (thread.timers.timer(), total));
    let mut out = Vec::new();
    // A connection may be opened ahead of its first request, as pools do: a head is timed from its first byte. Where the
    // proxy stops, the client of a connection that waited to be taken is still asked for a request.
    let is_last = thread.draining.get();
    let first = if wire.is_quiet() { timeouts.keep_alive } else { timeouts.header };
    let mut patience = if is_last { first.min(LAST_REQUEST) } else { first };
    loop {
        wire.timer.set(meter::now() + patience);
        patience = timeouts.keep_alive;
        let on_drain = if is_last && connection.requests.get() == 0 { OnDrain::Waits } else { OnDrain::Ends };
        let head = match poll_fn(|context| wait(connection, &wire, context, timeouts.header, on_drain)).await {
            Next::Head(head) => head,
            Next::End if thread.draining.get() => return Box::pin(end(connection, &wire)).await,
            Next::End => return,
            Next::Violation(violation) => {
                thread.count(Total::Malformed);
                if !service::may_answer(connection) {
                    return;
                }
                let status = StatusCode::from_u16(violation.status).unwrap_or(StatusCode::BAD_REQUEST);
                let answer = refuse::plain(status, "http_request_error", violation.reason);
                return Box::pin(farewell(connection, &wire, answer)).await;
            }
            Next::TimedOut(begun) => {
                if begun {
                    thread.count(Total::TimedOut);
                    if !service::may_answer(connection) {
                        return;
                    }
                    let detail = "The request did not come in time.";
                    let answer = refuse::plain(StatusCode::REQUEST_TIMEOUT, "http_request_error", detail);
                    return Box::pin(farewell(connection, &wire, answer)).await;
                }
                return Box::pin(end(connection, &wire)).await;
            }
        };
        wire.timer.clear();
        if let Some((timer, span)) = &total {
            timer.set(meter::now() + *span);
        }
        connection.requests.set(connection.requests.get() + 1);
        let one = One { connection, wire: &wire, total: total.as_ref().map(|(timer, _)| timer), out: &mut out };
        // In a box: its state is some kilobytes, which a connection that waits for a request need not have.
        match Box::pin(one.serve(*head)).await {
            Then::Next => {
                // The truth about this request, before the next one is asked about.
                connection.account.add_time(meter::stamp());
                connection.account.settle();
            }
            Then::Close => return,
            Then::End => return Box::pin(end(connection, &wire)).await,
            Then::Linger => {
                let rest = Rest::of_upload(meter::now());
                return Box::pin(linger(connection, &wire, rest)).await;
            }
        }
        if let Some((timer, _)) = &total {
            timer.clear();
        }
    }
}

/// What a connection without a request does when the proxy stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDrain {
    Ends,
    Waits,
}

/// The next head; or the end, if the proxy stops and none has begun.
fn wait(
    connection: &Connection,
    wire: &Wire,
    context: &mut Context<'_>,
    header: Duration,
    on_drain: OnDrain,
) -> Poll<Next> {
    let next = wire.poll_next(context, header);
    match &next {
        Poll::Ready(_) => connection.seat.works(),
        // Who has asked for nothing yet waits on where he did when he came.
        Poll::Pending if connection.requests.get() > 0 => connection.seat.awaits_next(connection.account.claimant()),
        Poll::Pending => {}
    }
    match next {
        Poll::Pending if connection.thread.draining.get() && on_drain == OnDrain::Ends && wire.is_quiet() => {
            Poll::Ready(Next::End)
        }
        next => next,
    }
}

/// What follows a request.
enum Then {
    Next,
    Close,
    /// Close, and tell the client so: it has its answer.
    End,
    /// Close, but only after the client had a chance to read the answer.
    Linger,
}

/// One request.
struct One<'a> {
    connection: &'a Rc<Connection>,
    wire: &'a Rc<Wire>,
    total: Option<&'a Timer>,
    out: &'a mut Vec<u8>,
}

impl One<'_> {
    async fn serve(self, head: Head) -> Then {
        let Head { mut parts, keep_alive } = head;
        let began = meter::now();
        let mut judged = service::judge(self.connection, &self.connection.account, &parts, None);
        if let Judged::Wait(waiting) = judged {
            judged = match self.wait(waiting).await {
                Some(Ok(charged)) => {
                    let account = &self.connection.account;
                    service::judge(self.connection, account, &parts, Some(charged))
                }
                Some(Err(no)) => no,
                None => {
                    if let Some(record) = Record::begin(self.connection, &parts, began) {
                        record.write(0);
                    }
                    return Then::Close;
                }
            };
        }
        let admission = match judged {
            Judged::Serve(admission) => admission,
            Judged::Wait(_) => unreachable!("what was charged waits for nothing"),
            Judged::Answer(response, refusal) => {
                let record = Record::begin(self.connection, &parts, began);
                let status = response.status();
                let answer = Answer { response: *response, pass: None, story: forward::Story::default() };
                let pace = Pace::default();
                // A connection too many does not stay.
                let one_too_many = refusal.is_some_and(|refusal| refusal.resource == Resource::Connections);
                let keep_alive = keep_alive && !one_too_many;
                let then = self.respond(&parts.method, parts.version, keep_alive, answer, pace).await;
                if let Some(record) = record {
                    record.refused(status, refusal).write(then.1);
                }
                return then.0;
            }
        };
        let record = Record::admitted(self.connection, &parts, began, &admission);
        let mut measured = Measured::new(self.connection, &admission, began);
        let received = record.as_ref().map(|record| record.received());
        let body = ClientBody::of(self.wire, received)
            .map_or(RequestBody::Empty, |body| admission.paced(RequestBody::Http1(body)));
        let answer = self.work(&admission, &mut parts, body).await.filter(|answer| !answer.story.gone);
        let Some(answer) = answer else {
            // The client left: there is a line all the same, without a status.
            if let Some(record) = record {
                record.write(0);
            }
            return Then::Close;
        };
        measured.answered(&answer.story);
        let record = record.map(|record| record.answered(&answer));
        if answer.response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // How long a tunnel is open says nothing about how fast it was there.
            measured.end();
            Box::pin(self.upgrade(answer, &admission)).await;
            if let Some(record) = record {
                record.write(0);
            }
            return Then::Close;
        }
        let (then, bytes) = self.respond(&parts.method, parts.version, keep_alive, answer, admission.pace()).await;
        if let Some(record) = record {
            record.write(bytes);
        }
        then
    }

    /// Waits until the request may go on, or is refused; `None` if the client goes away meanwhile. Its place may be given to
    /// somebody else: nothing is under way yet.
    async fn wait(&self, mut waiting: service::Waiting) -> Option<Result<Charged, Judged>> {
        self.connection.seat.awaits_next(self.connection.account.claimant());
        let told = poll_fn(|context| {
            if let Poll::Ready(told) = waiting.poll(self.connection, &self.connection.account, context) {
                return Poll::Ready(Some(told.map_err(|refusal| service::refused(self.connection, refusal))));
            }
            if self.total.is_some_and(|timer| timer.poll(context).is_ready()) {
                let answer = forward::out_of_time(self.connection).response;
                return Poll::Ready(Some(Err(Judged::Answer(Box::new(answer), None))));
            }
            self.wire.poll_gone(context).map(|()| None)
        });
        let told = told.await;
        self.connection.seat.works();
        told
    }

    /// Sends the request and waits for the answer; `None` if the client goes away or time is up meanwhile.
    async fn work(&self, admission: &service::Admission, parts: &mut Parts, body: RequestBody) -> Option<Answer> {
        let mut work = pin!(forward::forward(self.connection, admission, parts, body));
        poll_fn(|context| {
            if let Poll::Ready(answer) = work.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            if self.total.is_some_and(|timer| timer.poll(context).is_ready()) {
                return Poll::Ready(Some(forward::out_of_time(self.connection)));
            }
            self.wire.poll_gone(context).map(|()| None)
        })
        .await
    }

    /// Writes the answer. Says what follows, and how many bytes its body had.
    async fn respond(
        self,
        method: &Method,
        version: Version,
        keep_alive: bool,
        answer: Answer,
        pace: Pace,
    ) -> (Then, u64) {
        let Answer { response, pass, .. } = answer;
        // Whoever asked for another protocol is answered in this one, by the upstream or by the proxy; so what comes
        // next is a request.
        self.wire.declined();
        self.connection.thread.count_response(response.status());
        // A body that nobody wants is drained if it is there already; else the connection cannot go on. An upstream that
        // answers early may still be sent the rest.
        let wanted = matches!(
            response.body(),
            ResponseBody::Upstream(_) | ResponseBody::Upstream2(_) | ResponseBody::Spooling(_)
        );
        let drained = if wanted { self.wire.is_body_done() } else { self.wire.drain() };
        let keep = keep_alive && drained && !self.connection.is_last();
        let (head, body) = response.into_parts();
        let outgoing = outgoing(method, version, &head, &body);
        let keep = keep && outgoing != Outgoing::UntilClose;
        let word = match (keep, version) {
            (false, _) => Some("close"),
            (true, Version::HTTP_10) => Some("keep-alive"),
            (true, _) => None,
        };
        self.out.clear();
        let date = (!head.headers.contains_key(http::header::DATE)).then(crate::io::request::date::now);
        let announced = match outgoing {
            // The length of what a GET would bring, as the upstream says.
            Outgoing::None => announced_length(method, &head.headers).map_or(Outgoing::None, Outgoing::Length),
            other => other,
        };
        let date = date.as_ref().map(|date| &date[..]);
        write::response_head(self.out, head.status, &head.headers, announced, word, date);
        let patience = self.connection.thread.settings().config.timeouts.write_patience();
        let mut writing = Writing {
            wire: self.wire,
            connection: self.connection,
            is_stalled: false,
            total: self.total,
            patience,
            out: std::mem::take(self.out),
            sent: 0,
            piece: Bytes::new(),
            framing: outgoing,
            body: (outgoing != Outgoing::None).then_some(body),
            bytes: 0,
            behind_piece: false,
            pace,
        };
        let written = poll_fn(|context| writing.poll(context)).await;
        let bytes = writing.bytes;
        *self.out = std::mem::take(&mut writing.out);
        drop(writing);
        drop(pass);
        self.wire.end_body();
        match written {
            Ok(()) if keep => (Then::Next, bytes),
            Ok(()) if drained => (Then::End, bytes),
            Ok(()) => (Then::Linger, bytes),
            Err(_) => (Then::Close, bytes),
        }
    }

    /// The answer switched protocols: from here on, bytes go both ways.
    async fn upgrade(&self, answer: Answer, admission: &service::Admission) {
        let (head, body) = answer.response.into_parts();
        let mut out = Vec::new();
        let mut headers = head.headers;
        headers.remove(http::header::CONNECTION);
        write::response_head(&mut out, head.status, &headers, Outgoing::None, Some("upgrade"), None);
        let Some((mut server, behind_head)) = Far::of(body, &self.connection.account) else { return };
        let early = self.wire.upgraded();
        out.extend_from_slice(&behind_head);
        let idle = self.connection.thread.settings().config.timeouts.upgraded_idle;
        let paces = [admission.pace(), admission.pace()];
        let (mut client, account) = (&self.wire.transport, &self.connection.account);
        let (to, from) = ((&mut client, BytesMut::from(&out[..])), (&mut server, early));
        // However it ends, both sides are closed; there is nobody to tell why.
        let _ = websocket::tunnel(self.connection, account, to, from, paces, idle).await;
        drop((server, answer.pass));
    }
}

/// How an answer's body is framed.
fn outgoing(method: &Method, version: Version, head: &http::response::Parts, body: &ResponseBody) -> Outgoing {
    if !write::has_body(method, head.status) {
        return Outgoing::None;
    }
    match body.size_hint().exact() {
        Some(length) => Outgoing::Length(length),
        None if write::knows_chunks(version) => Outgoing::Chunked,
        None => Outgoing::UntilClose,
    }
}

fn announced_length(method: &Method, headers: &http::HeaderMap) -> Option<u64> {
    if method != Method::HEAD {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// An answer while it is written.
struct Writing<'a> {
    wire: &'a Wire,
    connection: &'a Connection,
    /// The socket was full when it was last written to.
    is_stalled: bool,
    total: Option<&'a Timer>,
    patience: Patience,
    /// Small things, put together.
    out: Vec<u8>,
    /// How much of it is written.
    sent: usize,
    /// Behind `out`: a piece that is large enough to be written from where it is.
    piece: Bytes,
    /// A line end is due behind `piece`.
    behind_piece: bool,
    framing: Outgoing,
    /// `None` once it ended.
    body: Option<ResponseBody>,
    bytes: u64,
    pace: Pace,
}

impl Writing<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        loop {
            let more = self.gather(context)?;
            if self.sent < self.out.len() || !self.piece.is_empty() {
                if !self.write(context)? {
                    return self.stalled(context);
                }
                continue;
            }
            match self.wire.transport.borrow_mut().poll_flushed(context) {
                Poll::Ready(result) => result?,
                Poll::Pending => return self.stalled(context),
            }
            if self.body.is_none() {
                self.wire.timer.clear();
                return Poll::Ready(Ok(()));
            }
            if !more {
                // Nothing of the body is there; the upstream's own time-out watches over that.
                self.wire.timer.clear();
                if self.total.is_some_and(|timer| timer.poll(context).is_ready()) {
                    return Poll::Ready(Err(BodyError::Stalled));
                }
                return self.wire.poll_gone(context).map(|()| Err(BodyError::Cut));
            }
        }
    }

    /// Takes pieces of the body while they are there. False if it waits for more.
    fn gather(&mut self, context: &mut Context<'_>) -> Result<bool, BodyError> {
        while self.piece.is_empty() && self.out.len() < TOGETHER_MAX {
            let Some(body) = self.body.as_mut() else { return Ok(true) };
            let account = &self.connection.account;
            let frame = match self.pace.poll_frame(account, context, |context| Pin::new(body).poll_frame(context)) {
                Poll::Ready(Some(frame)) => frame?,
                Poll::Ready(None) => {
                    write::end(&mut self.out, self.framing);
                    self.body = None;
                    return Ok(true);
                }
                Poll::Pending => return Ok(false),
            };
            let Ok(data) = frame.into_data() else { continue };
            self.bytes += data.len() as u64;
            if data.len() < APART_MIN {
                write::piece(&mut self.out, self.framing, &data);
            } else {
                self.behind_piece = write::before_piece(&mut self.out, self.framing, &data);
                self.piece = data;
            }
            if self.body.as_ref().is_some_and(Body::is_end_stream) && self.piece.is_empty() {
                write::end(&mut self.out, self.framing);
                self.body = None;
            }
        }
        Ok(true)
    }

    /// Writes what there is; false if the socket is full before.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut transport = self.wire.transport.borrow_mut();
        loop {
            let rest = &self.out[self.sent..];
            let slices = [IoSlice::new(rest), IoSlice::new(&self.piece)];
            let slices = match (rest.is_empty(), self.piece.is_empty()) {
                (true, true) => break,
                (false, true) => &slices[..1],
                (true, false) => &slices[1..],
                (false, false) => &slices[..],
            };
            let Poll::Ready(written) = transport.poll_push(context, slices) else { return Ok(false) };
            let written = written?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if std::mem::take(&mut self.is_stalled) {
                self.connection.seat.works();
            }
            let of_out = written.min(self.out.len() - self.sent);
            self.sent += of_out;
            drop(self.piece.split_to(written - of_out));
            self.patience.moved(written as u64, meter::now());
            self.wire.timer.clear();
        }
        self.out.clear();
        self.sent = 0;
        if std::mem::take(&mut self.behind_piece) {
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(true)
    }

    /// The client takes no more for now.
    fn stalled(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        // What may not go on faster waits for no slow client either.
        if let Some(body) = self.body.as_mut().filter(|_| self.pace.is_free()) {
            body.poll_ahead(context);
        }
        self.is_stalled = true;
        self.connection.seat.awaits_reading(self.connection.account.claimant());
        if !self.wire.timer.is_set() {
            self.wire.timer.set(self.patience.wait(meter::now()));
        }
        if self.total.is_some_and(|timer| timer.poll(context).is_ready()) {
            return Poll::Ready(Err(BodyError::Stalled));
        }
        self.wire.timer.poll(context).map(|()| Err(BodyError::Stalled))
    }
}

/// Writes a last answer and closes.
async fn farewell(connection: &Connection, wire: &Rc<Wire>, response: Response<ResponseBody>) {
    let (head, body) = response.into_parts();
    let mut out = Vec::new();
    let length = body.size_hint().exact().unwrap_or(0);
    let date = crate::io::request::date::now();
    write::response_head(&mut out, head.status, &head.headers, Outgoing::Length(length), Some("close"), Some(&date));
    if let ResponseBody::Full(bytes) = body {
        out.extend_from_slice(&bytes);
    }
    let mut sent = 0;
    wire.timer.set(meter::now() + LINGER);
    let written = poll_fn(|context| -> Poll<io::Result<()>> {
        let mut transport = wire.transport.borrow_mut();
        while sent < out.len() {
            match transport.poll_push(context, &[IoSlice::new(&out[sent..])]) {
                Poll::Ready(written) => sent += written?,
                Poll::Pending => return wire.timer.poll(context).map(|()| Err(io::ErrorKind::TimedOut.into())),
            }
        }
        Poll::Ready(Ok(()))
    });
    if let Ok(()) = written.await {
        let rest = if head.status == StatusCode::PAYLOAD_TOO_LARGE { Rest::of_upload } else { Rest::of_offender };
        linger(connection, wire, rest(meter::now())).await;
    }
}

/// Closes behind a last answer, or for want of a request. In TLS that is said, else the client could not tell an end from
/// a cut; and if the client has sent more, it gets time to read the answer.
async fn end(connection: &Connection, wire: &Rc<Wire>) {
    wire.timer.set(meter::now() + LINGER);
    let more = poll_fn(|context| {
        let mut transport = wire.transport.borrow_mut();
        if transport.session().is_some() {
            match Pin::new(&mut *transport).poll_shutdown(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => return wire.timer.poll(context).map(|()| false),
            }
        }
        let came = transport.has_unread()
            || matches!(transport.poll_fill(context, &mut BytesMut::new()), Poll::Ready(Ok(1..)));
        Poll::Ready(came || !wire.is_quiet())
    });
    if more.await {
        linger(connection, wire, Rest::of_offender(meter::now())).await;
    }
}

/// Closes so that the client can read the answer: a socket with unread bytes would be reset.
async fn linger(connection: &Connection, wire: &Rc<Wire>, mut rest: Rest) {
    connection.seat.awaits_reading(connection.account.claimant());
    wire.timer.clear();
    let mut pace = service::pace_of(connection);
    let mut dropped = BytesMut::new();
    let shut = poll_fn(|context| Pin::new(&mut *wire.transport.borrow_mut()).poll_shutdown(context));
    let mut shut = pin!(shut);
    let mut is_shut = false;
    poll_fn(|context| {
        loop {
            if !wire.timer.is_set() {
                wire.timer.set(rest.wait(meter::now()));
            }
            if wire.timer.poll(context).is_ready() {
                return Poll::Ready(());
            }
            if !is_shut {
                match shut.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => is_shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            ready!(pace.poll(&connection.account, context));
            let read = match ready!(wire.transport.borrow_mut().poll_fill(context, &mut dropped)) {
                Ok(read) if read > 0 => read,
                _ => return Poll::Ready(()),
            };
            dropped.clear();
            wire.timer.clear();
            if !rest.came(read as u64, meter::now(), || waits::goes_on_at_once(&connection.account)) {
                return Poll::Ready(());
            }
            if !connection.account.needs_part() {
                pace.pass(read, &connection.account);
            }
        }
    })
    .await;
}
