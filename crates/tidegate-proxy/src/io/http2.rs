//! Serves a client's connection by HTTP/2; hyper does the protocol.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::task::spawn_local;

use super::account::{Account, Bill};
use super::body::{Limited, RequestBody, ResponseBody, Timed};
use super::forward;
use super::gate::Pass;
use super::headers;
use super::log::Record;
use super::meter::{self, Metered};
use super::refuse;
use super::service::{self, Judged};
use super::thread::{Connection, Total};
use super::transport::Transport;

/// Bytes of answers that wait in one stream for the client to make room.
const SEND_BUFFER: usize = 64 * 1024;

/// Runs the streams of a connection as tasks, the time of each being its own tenant's.
#[derive(Clone)]
struct Streams {
    connection: Rc<Account>,
    /// Of the stream that was just begun: its task is started in the same step.
    begun: Rc<Cell<Option<Rc<Account>>>>,
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let account = self.begun.take().unwrap_or_else(|| Rc::clone(&self.connection));
        spawn_local(Metered::new(account, stream));
    }
}

/// Serves requests until one side ends the connection, or none comes for too long.
pub(crate) async fn serve(connection: &Rc<Connection>, transport: Transport) {
    let settings = connection.thread.settings();
    let http = &settings.config.http;
    let begun = Rc::new(Cell::new(None));
    let streams = Streams { connection: Rc::clone(&connection.account), begun: Rc::clone(&begun) };
    let mut builder = hyper::server::conn::http2::Builder::new(streams);
    builder
        .max_concurrent_streams(http.h2_max_concurrent_streams)
        .max_header_list_size(http.h2_max_header_list)
        .max_pending_accept_reset_streams(http.h2_max_resets)
        .max_local_error_reset_streams(http.h2_max_resets)
        .initial_stream_window_size(http.h2_stream_window)
        .initial_connection_window_size(http.h2_connection_window)
        .max_send_buf_size(SEND_BUFFER)
        .auto_date_header(true);
    let active = Rc::new(Cell::new(0_usize));
    let service = {
        let (connection, active) = (Rc::clone(connection), Rc::clone(&active));
        service_fn(move |request| {
            let running = Running::new(&active);
            let connection = Rc::clone(&connection);
            let bill = Bill::open(&connection.account);
            begun.set(Some(Rc::clone(bill.stream())));
            async move { Ok::<_, Infallible>(answer(&connection, bill, request, running).await) }
        })
    };
    let mut served = pin!(builder.serve_connection(TokioIo::new(transport), service));
    let timer = connection.thread.timers.timer();
    let idle = settings.config.timeouts.keep_alive;
    timer.set(meter::now() + idle);
    let mut ending = false;
    poll_fn(|context| {
        if let Poll::Ready(_ended) = served.as_mut().poll(context) {
            return Poll::Ready(()); // How a client ends a connection is his affair.
        }
        if active.get() > 0 {
            connection.seat.works();
        } else if connection.requests.get() > 0 {
            connection.seat.awaits_next(connection.account.tenant());
        }
        let due = timer.poll(context).is_ready();
        if active.get() > 0 {
            timer.set(meter::now() + idle);
        } else if due && ending {
            return Poll::Ready(());
        }
        if !ending && (connection.thread.draining.get() || connection.ends.get() || (due && active.get() == 0)) {
            ending = true;
            served.as_mut().graceful_shutdown();
            timer.set(meter::now() + Duration::from_secs(5));
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

/// Counts the requests under way on one connection.
struct Running(Rc<Cell<usize>>);

impl Running {
    fn new(active: &Rc<Cell<usize>>) -> Self {
        active.set(active.get() + 1);
        Self(Rc::clone(active))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One request.
async fn answer(
    connection: &Rc<Connection>,
    bill: Bill,
    request: Request<Incoming>,
    running: Running,
) -> Response<Stream> {
    let (mut parts, body) = request.into_parts();
    let began = meter::now();
    connection.requests.set(connection.requests.get() + 1);
    let thread = &connection.thread;
    let mut line = Line::default();
    let judged = if headers::from_http2(&mut parts) {
        service::judge(connection, bill.stream(), &parts, None, false)
    } else {
        thread.count(Total::Malformed);
        let detail = "The request does not name one sound host.";
        Judged::Answer(Box::new(refuse::plain(StatusCode::BAD_REQUEST, "http_request_error", detail)), None)
    };
    let (response, pass) = match judged {
        Judged::Serve(admission) => {
            if connection.should_end(admission.lane, began) {
                connection.ends.set(true);
            }
            line.0 = Record::begin(connection, &parts, began).map(|record| record.admitted(&admission));
            let received = line.0.as_ref().map(|record| record.received());
            let http = &admission.settings.config.http;
            let body = if body.is_end_stream() {
                RequestBody::Empty
            } else {
                let timer = thread.timers.timer();
                let idle = admission.settings.config.timeouts.body_idle;
                let limited = Limited::new(body, http.max_body.unwrap_or(u64::MAX), bill.clone(), received);
                RequestBody::Http2(Timed::new(limited, timer, idle))
            };
            let answer = forward::forward(connection, &admission, parts, body).await;
            line.0 = line.0.take().map(|record| record.answered(&answer));
            (answer.response, answer.pass)
        }
        Judged::Answer(response, refusal) => {
            let record = Record::begin(connection, &parts, began);
            line.0 = record.map(|record| record.refused(response.status(), refusal));
            (*response, None)
        }
        Judged::Elsewhere(_) => unreachable!("a connection of HTTP/2 is not movable"),
    };
    thread.count_response(response.status());
    let (mut head, body) = response.into_parts();
    head.version = Version::HTTP_2;
    Response::from_parts(head, Stream { body, _running: running, _pass: pass, line, bill })
}

/// An answer's body; what the request held is held until its last byte.
struct Stream {
    body: ResponseBody,
    _running: Running,
    _pass: Option<Pass>,
    line: Line,
    /// Closed with the stream: then what it used is charged.
    bill: Bill,
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
    type Error = super::body::BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.line.1 += data.len() as u64;
            this.bill.add_written(data.len() as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
