//! Serves a client's connection by HTTP/2; hyper does the protocol.

mod queue;
pub(crate) mod rest;
mod tunnel;

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Method, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate_core::Instant;

use self::queue::{Owner, Queue, Streams};
use self::tunnel::Asked;
use crate::config::Http;
use crate::io::conn::account::Bill;
use crate::io::conn::meter;
use crate::io::conn::pace::Pace;
use crate::io::conn::timers::Timer;
use crate::io::conn::transport::Transport;
use crate::io::listen::thread::{Connection, Thread, Total};
use crate::io::request::body::RequestBody;
use crate::io::request::bounds::{Limited, Received, Timed};
use crate::io::request::error::BodyError;
use crate::io::request::forward::{self, Answer};
use crate::io::request::gate::Pass;
use crate::io::request::headers::Unsound;
use crate::io::request::log::Record;
use crate::io::request::measured::Measured;
use crate::io::request::response::ResponseBody;
use crate::io::request::service::{self, Admission, Judged};
use crate::io::request::{grpc, headers};
use crate::machine::patience::Patience;

/// Bytes of answers that wait in one stream for the client to make room.
const SEND_BUFFER: usize = 64 * 1024;

/// Serves requests until one side ends the connection, or none comes for too long.
pub(crate) async fn serve(connection: &Rc<Connection>, transport: Transport) {
    let settings = connection.thread.settings();
    let http = &settings.config.http;
    let queue = Owner::new(&connection.account);
    let timeouts = &settings.config.timeouts;
    let under_way = Rc::new(UnderWay::new(timeouts.write_patience()));
    let service = {
        let (connection, under_way, queue) = (Rc::clone(connection), Rc::clone(&under_way), Rc::clone(&queue));
        service_fn(move |request: http::Request<Incoming>| {
            let running = Running::new(&under_way);
            let connection = Rc::clone(&connection);
            let bill = Bill::open(&connection.account);
            queue.open(bill.stream());
            let queue = Rc::clone(&queue);
            let (parts, body) = request.into_parts();
            // What takes arguments by value has room for each of them twice.
            let parts = Box::new(parts);
            // In a box, made when it begins and gone with the answer's head: many streams wait before and behind that.
            async move { Ok::<_, Infallible>(Box::pin(answer(&connection, &queue, bill, parts, body, running)).await) }
        })
    };
    let mut served = pin!(builder(http, &queue).serve_connection(TokioIo::new(transport), service));
    let timer = connection.thread.timers.timer();
    let idle = timeouts.keep_alive;
    let waiting_max = http.h2_max_concurrent_streams as usize;
    timer.set(meter::now() + idle);
    let (mut ending, mut is_idle) = (false, true);
    poll_fn(|context| {
        queue.turn();
        // While enough wait, nothing is read: who opens streams and takes them back at once would add to them without end.
        if queue.waiting() < waiting_max
            && let Poll::Ready(_ended) = served.as_mut().poll(context)
        {
            return Poll::Ready(()); // How a client ends a connection is his affair.
        }
        if queue.waiting() > 0 {
            let _woken_later = pin!(tokio::task::yield_now()).poll(context);
        }
        under_way.tell(connection);
        let now = meter::now();
        let active = under_way.active.get();
        if !std::mem::replace(&mut is_idle, active == 0) && active == 0 {
            timer.set(now + idle);
        }
        let due = timer.poll(context).is_ready();
        if under_way.unread.get() > 0 {
            let given_up = under_way.wait();
            if now >= given_up {
                connection.thread.count(Total::TimedOut);
                return Poll::Ready(());
            }
            timer.set(given_up);
        } else if active > 0 {
            timer.set(now + idle);
        } else if due && ending {
            return Poll::Ready(());
        }
        if !ending && (connection.is_last() || connection.ends.get() || (due && active == 0)) {
            ending = true;
            served.as_mut().graceful_shutdown();
            timer.set(now + Duration::from_secs(5));
            context.waker().wake_by_ref();
        }
        // One that was set anew has nobody to wake.
        let _not_yet = timer.poll(context);
        Poll::Pending
    })
    .await;
}

/// The protocol, as the configuration has it.
fn builder(http: &Http, queue: &Rc<Queue>) -> hyper::server::conn::http2::Builder<Streams> {
    let mut builder = hyper::server::conn::http2::Builder::new(Streams(Rc::clone(queue)));
    builder
        .max_concurrent_streams(http.h2_max_concurrent_streams)
        .max_header_list_size(http.h2_max_header_list)
        .max_pending_accept_reset_streams(http.h2_max_resets)
        .max_local_error_reset_streams(http.h2_max_resets)
        .initial_stream_window_size(http.h2_stream_window)
        .initial_connection_window_size(http.h2_connection_window)
        .max_send_buf_size(SEND_BUFFER)
        .auto_date_header(true);
    if http.h2_websocket {
        builder.enable_connect_protocol();
    }
    builder
}

/// The requests of one connection.
struct UnderWay {
    active: Cell<usize>,
    /// Answers of which the client has to take what is there.
    unread: Cell<usize>,
    /// When it last took something, or there was something new to take.
    moved: Cell<Instant>,
    patience: Cell<Patience>,
    /// What of that the connection's seat knows.
    told: Cell<Instant>,
}

impl UnderWay {
    fn new(patience: Patience) -> Self {
        let (moved, told) = (Cell::new(meter::now()), Cell::new(Instant::ZERO));
        Self { active: Cell::new(0), unread: Cell::new(0), moved, patience: Cell::new(patience), told }
    }

    /// The client took so many bytes, or there are so many more to take.
    fn moved(&self, bytes: u64) {
        let now = meter::now();
        self.moved.set(now);
        let mut patience = self.patience.get();
        patience.moved(bytes, now);
        self.patience.set(patience);
    }

    /// The client has something to take: when it is given up if it takes nothing until then.
    fn wait(&self) -> Instant {
        let mut patience = self.patience.get();
        let given_up = patience.wait(self.moved.get());
        self.patience.set(patience);
        given_up
    }

    /// Whether the client or the proxy is to do something.
    fn tell(&self, connection: &Connection) {
        let seat = &connection.seat;
        match self.active.get() {
            0 if connection.requests.get() > 0 => seat.awaits_next(connection.account.claimant()),
            0 => {}
            active if active == self.unread.get() => {
                if self.told.replace(self.moved.get()) != self.moved.get() {
                    seat.works();
                }
                seat.awaits_reading(connection.account.claimant());
            }
            _ => seat.works(),
        }
    }
}

/// Counts the requests under way on one connection.
struct Running {
    under_way: Rc<UnderWay>,
    is_unread: bool,
}

impl Running {
    fn new(under_way: &Rc<UnderWay>) -> Self {
        under_way.active.set(under_way.active.get() + 1);
        Self { under_way: Rc::clone(under_way), is_unread: false }
    }

    /// There is something of the answer that the client has not taken, or not.
    fn set_unread(&mut self, is_unread: bool) {
        let unread = &self.under_way.unread;
        match (std::mem::replace(&mut self.is_unread, is_unread), is_unread) {
            (false, true) => unread.set(unread.get() + 1),
            (true, false) => unread.set(unread.get() - 1),
            _ => {}
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.set_unread(false);
        self.under_way.moved(0);
        self.under_way.active.set(self.under_way.active.get() - 1);
    }
}

/// One request.
async fn answer(
    connection: &Rc<Connection>,
    queue: &Queue,
    bill: Bill,
    mut parts: Box<Parts>,
    body: Incoming,
    running: Running,
) -> Response<Stream> {
    let began = meter::now();
    connection.requests.set(connection.requests.get() + 1);
    let thread = &connection.thread;
    let mut line = Line::default();
    let mut total = None;
    let mut pace = Pace::default();
    let mut measured = None;
    let sound = soundness(thread, &mut parts);
    let judge = |parts: &Parts, charged| match &sound {
        Ok(_) => service::judge(connection, bill.stream(), parts, charged),
        Err(unsound) => service::judge_unsound(connection, bill.stream(), parts, unsound, charged),
    };
    let mut judged = judge(&parts, None);
    if let Judged::Wait(mut waiting) = judged {
        judged = match poll_fn(|context| waiting.poll(connection, bill.stream(), context)).await {
            Ok(charged) => judge(&parts, Some(charged)),
            Err(refusal) => service::refused(connection, refusal),
        };
    }
    let (response, pass) = match judged {
        Judged::Serve(admission) => {
            line.0 = Record::admitted(connection, &parts, began, &admission);
            let received = line.0.as_ref().map(|record| record.received());
            let (body, home) = content(thread, &admission, body, &bill, received);
            total = admission.settings.config.timeouts.total.map(|span| {
                let timer = thread.timers.timer();
                timer.set(began + span);
                timer
            });
            let measured = measured.insert(Measured::new(connection, &admission, began));
            let answer = work(connection, &admission, &mut parts, body, total.as_ref()).await;
            if let Some(home) = home {
                home.take(&bill, &thread.timers);
            }
            measured.answered(&answer.story);
            pace = admission.pace();
            let (answer, open) = match sound {
                Ok(Some(asked)) => asked.answered(answer, bill.stream()),
                _ => (answer, None),
            };
            line.0 = line.0.take().map(|record| record.answered(&answer));
            if let Some(open) = open {
                // How long a tunnel is open says nothing about how fast it was there.
                measured.end();
                let stream = Stream::bare(&running, &bill);
                let held = (running, answer.pass, line);
                tunnel::carry(connection, queue, &bill, open, [pace, admission.pace()], held);
                return answer.response.map(|_none| stream);
            }
            (answer.response, answer.pass)
        }
        Judged::Answer(mut response, refusal) => {
            tunnel::tell_version(sound.err(), response.headers_mut());
            rest::take(body, &bill, &thread.timers);
            let record = Record::begin(connection, &parts, began);
            line.0 = record.map(|record| record.refused(response.status(), refusal));
            (*response, None)
        }
        Judged::Wait(_) => unreachable!("what was charged waits for nothing"),
    };
    thread.count_response(response.status());
    let (mut head, body) = grpc::understood(response, &parts.headers).into_parts();
    head.version = Version::HTTP_2;
    Response::from_parts(head, Stream { body, pace, running, total, _pass: pass, _measured: measured, line, bill })
}

/// Whether a head can be sent on, and the WebSocket that it asks for: then it is as HTTP/1 has it.
fn soundness(thread: &Thread, parts: &mut Parts) -> Result<Option<Asked>, Unsound> {
    let asked = (parts.method == Method::CONNECT).then(|| tunnel::ask(parts)).transpose();
    let sound = headers::from_http2(parts, thread.settings().config.http.max_headers);
    let sound = asked.and_then(|asked| sound.map(|()| asked));
    match &sound {
        Ok(Some(asked)) => asked.add_fields(parts),
        Ok(None) => {}
        Err(_) => thread.count(Total::Malformed),
    }
    sound
}

/// A request's body within its bounds, at its pace; and where what is not read of it goes.
fn content(
    thread: &Thread,
    admission: &Admission,
    body: Incoming,
    bill: &Bill,
    received: Option<Received>,
) -> (RequestBody, Option<rest::Home>) {
    if body.is_end_stream() {
        return (RequestBody::Empty, None);
    }
    let (body, home) = rest::lend(body);
    let config = &admission.settings.config;
    let limited = Limited::new(body, config.http.max_body.unwrap_or(u64::MAX), bill.clone(), received);
    let timed = Timed::new(limited, thread.timers.timer(), config.timeouts.body_patience());
    (admission.paced(RequestBody::Http2(Box::new(timed))), Some(home))
}

/// Sends the request and waits for the answer, until time is up.
async fn work(
    connection: &Connection,
    admission: &Admission,
    parts: &mut Parts,
    body: RequestBody,
    total: Option<&Timer>,
) -> Answer {
    let mut work = forward::boxed(connection, admission, parts, body);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Pending if is_over(total, context) => Poll::Ready(forward::out_of_time(connection)),
        answer => answer,
    })
    .await
}

/// Whether time is up for a request.
fn is_over(total: Option<&Timer>, context: &Context<'_>) -> bool {
    total.is_some_and(|timer| timer.poll(context).is_ready())
}

/// An answer's body; what the request held is held until its last byte.
struct Stream {
    body: ResponseBody,
    pace: Pace,
    running: Running,
    total: Option<Timer>,
    _pass: Option<Pass>,
    /// Counted when the stream ends, if it was admitted.
    _measured: Option<Measured>,
    line: Line,
    /// Closed with the stream: then what it used is charged.
    bill: Bill,
}

impl Stream {
    /// The body that an answer has which opens a tunnel: none.
    fn bare(running: &Running, bill: &Bill) -> Self {
        let (body, pace, running) = (ResponseBody::Empty, Pace::default(), Running::new(&running.under_way));
        Self {
            body,
            pace,
            running,
            total: None,
            _pass: None,
            _measured: None,
            line: Line::default(),
            bill: bill.clone(),
        }
    }
}

/// The line about a request in the access log, and the bytes of its answer that were taken so far. Written when the answer
/// ends, however it does.
#[derive(Default)]
struct Line(Option<Box<Record>>, u64);

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(record) = self.0.take() {
            record.write(self.1);
        }
    }
}

impl Body for Stream {
    type Data = bytes::Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let account = this.bill.stream();
        let frame = this.pace.poll_frame(account, context, |context| Pin::new(&mut this.body).poll_frame(context));
        // Asked for more, so the piece before has left for the connection's buffers.
        this.running.set_unread(frame.is_ready());
        let data = match &frame {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref(),
            _ => None,
        };
        this.running.under_way.moved(data.map_or(0, |data| data.len() as u64));
        if frame.is_pending() && is_over(this.total.as_ref(), context) {
            return Poll::Ready(Some(Err(BodyError::Stalled)));
        }
        if let Some(data) = data {
            this.line.1 += data.len() as u64;
            this.bill.add_written(data.len() as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        !self.pace.is_waiting() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_unread_from_its_first_piece_until_more_is_asked_for() {
        let under_way = Rc::new(UnderWay::new(Patience::new(Duration::from_secs(30), None)));
        let (mut one, two) = (Running::new(&under_way), Running::new(&under_way));
        one.set_unread(true);
        one.set_unread(true);
        assert_eq!((under_way.active.get(), under_way.unread.get()), (2, 1));
        one.set_unread(false);
        assert_eq!(under_way.unread.get(), 0);
        one.set_unread(true);
        drop((one, two));
        assert_eq!((under_way.active.get(), under_way.unread.get()), (0, 0));
    }
}
