//! Calls of a gRPC method over HTTP/2, with the client layer behind them or without.
//!
//! Messages are their bytes: a gRPC call is a POST whose body is a message behind five bytes, and what came of it stands in
//! `grpc-status`, in the head of an answer without a message, else in the trailers.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::{Instant, Rng};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::error::{CallError, ShedBy};
use tidegate_rpc::io::layer::headers::{SHED_AT, shed_reason};
use tidegate_rpc::io::layer::{CallPriority, ClientConfig, ClientLayer, ClientService};
use tidegate_rpc::io::tcp::Address;
use tidegate_rpc::machine::any::AnyClient;
use tidegate_runtime::clock;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{sleep, timeout};
use tower_layer::Layer as _;
use tower_service::Service;

use super::LEAD;
use super::config::{RpcBenchConfig, RpcPace};
use super::tally::{RpcBenchReport, Tag, Tally};
use super::window::Window;
use crate::arrivals::{Arrivals, Process, Shape};
use crate::error::LoadError;

/// What tokio's timers may be late by: closer to an intended time the generator spins.
const COARSE: Duration = Duration::from_millis(2);
/// Calls in a row that a late generator makes before it looks after its connections.
const CALLS_IN_A_ROW: u32 = 8;
/// Tasks between two looks at the sockets.
const TASKS_BETWEEN_LOOKS: u32 = 8;
/// The largest number of a `grpc-timeout`.
const TIMEOUT_MOST: u128 = 99_999_999;
/// The status of calls that were not served for want of resources.
const RESOURCE_EXHAUSTED: &[u8] = b"8";
const UNAVAILABLE: &[u8] = b"14";
const DEADLINE_EXCEEDED: &[u8] = b"4";
const GRPC_STATUS: &str = "grpc-status";

/// A connection.
#[derive(Clone)]
struct Connection(SendRequest<Full<Bytes>>);

impl Service<Request<Full<Bytes>>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Who calls on a connection.
#[derive(Clone)]
enum Caller {
    Bare(Connection),
    Layered(ClientService<AnyClient, Connection>),
}

/// How a call ended.
enum End {
    Ended(Result<(), CallError>),
    /// A server refused it that is not one of ours.
    Refused,
}

struct Run {
    config: RpcBenchConfig,
    callers: Vec<Caller>,
    /// The connections under the callers, in the same order.
    connections: Vec<Connection>,
    uri: Uri,
    body: Bytes,
    tally: RefCell<Tally>,
    window: RefCell<Window>,
}

/// Runs `config`, which names a method.
pub(super) fn run(config: &RpcBenchConfig) -> Result<RpcBenchReport, LoadError> {
    let body = frame(&message(config)?);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().event_interval(TASKS_BETWEEN_LOOKS).build();
    let runtime = runtime.map_err(|source| LoadError::Os { step: "start a runtime", source })?;
    LocalSet::new().block_on(&runtime, async {
        let (callers, connections) = connect(config).await?;
        let start = clock::now() + LEAD;
        let authority = config.address.tcp().map_or_else(|| "localhost".into(), |address| address.to_string());
        let uri = format!("http://{authority}{}", config.grpc).parse::<Uri>().map_err(|_| LoadError::Config {
            key: "grpc",
            value: config.grpc.clone(),
            expected: "/package.Service/Method",
        })?;
        let run = Rc::new(Run {
            config: config.clone(),
            callers,
            connections,
            uri,
            body,
            tally: RefCell::new(Tally::new(Duration::from_micros(config.slo_us))),
            window: RefCell::new(Window::new(config, start)),
        });
        match config.pace {
            RpcPace::Open { rate_per_s } => open(&run, rate_per_s, start).await?,
            RpcPace::Closed { calls } => closed(&run, calls).await?,
        }
        run.drain().await?;
        let open = run.connections.iter().filter(|connection| !connection.0.is_closed()).count() as u64;
        run.window.borrow().report(&run.tally.borrow(), config, open)
    })
}

/// The message that each request carries.
fn message(config: &RpcBenchConfig) -> Result<Vec<u8>, LoadError> {
    let Some(path) = &config.message else { return Ok(Vec::new()) };
    fs::read(path).map_err(|error| LoadError::Config {
        key: "message",
        value: format!("{} ({error})", path.display()),
        expected: "a file that can be read",
    })
}

/// A message as a body carries it, uncompressed.
fn frame(message: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(5 + message.len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put_slice(message);
    body.freeze()
}

async fn connect(config: &RpcBenchConfig) -> Result<(Vec<Caller>, Vec<Connection>), LoadError> {
    let mut rng = Rng::stream(config.seed, 1);
    let (mut callers, mut connections) = (Vec::new(), Vec::new());
    for _ in 0..config.connections {
        let connection = dial(&config.address).await.map_err(|source| match config.address.tcp() {
            Some(address) => LoadError::Connect { address, source },
            None => LoadError::Os { step: "connect to the socket of `address`", source },
        })?;
        connections.push(connection.clone());
        callers.push(if let Scheme::None(_) = config.scheme {
            Caller::Bare(connection)
        } else {
            let machine = config.scheme.client(config.tenant, clock::now(), &mut rng);
            let mut settings = ClientConfig::default();
            settings.tenant = config.tenant;
            Caller::Layered(ClientLayer::new(machine, settings).layer(connection))
        });
    }
    Ok((callers, connections))
}

async fn dial(address: &Address) -> io::Result<Connection> {
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            shake_hands(TokioIo::new(stream)).await
        }
        Address::Unix(path) => shake_hands(TokioIo::new(UnixStream::connect(path).await?)).await,
    }
}

async fn shake_hands<T: Read + Write + Unpin + Send + 'static>(stream: T) -> io::Result<Connection> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    let (requests, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
    // Its end is seen by its calls.
    tokio::spawn(async move { _ = connection.await });
    Ok(Connection(requests))
}

/// Calls at their intended times, whether or not earlier ones were answered.
async fn open(run: &Rc<Run>, rate_per_s: f64, start: Instant) -> Result<(), LoadError> {
    let shape = Shape { process: Process::Poisson, rate_per_s, batch: 1, publishers: run.config.connections };
    let to = run.window.borrow().to;
    let mut in_a_row = 0;
    for arrival in Arrivals::new(shape, start, run.config.seed).take_while(|arrival| arrival.at < to) {
        while clock::now() < arrival.at || in_a_row >= CALLS_IN_A_ROW {
            in_a_row = 0;
            run.rest(arrival.at).await?;
        }
        in_a_row += 1;
        spawn_local(Rc::clone(run).call(arrival.publisher as usize, arrival.at));
    }
    Ok(())
}

/// So many calls in flight, each followed by the next at its end.
async fn closed(run: &Rc<Run>, calls: u32) -> Result<(), LoadError> {
    let to = run.window.borrow().to;
    for call in 0..calls as usize {
        let run = Rc::clone(run);
        spawn_local(async move {
            while clock::now() < to {
                Rc::clone(&run).call(call % run.callers.len(), clock::now()).await;
                // A call that is refused on the spot does not keep the others from theirs.
                yield_now().await;
            }
        });
    }
    while clock::now() < to {
        run.rest(to).await?;
    }
    Ok(())
}

impl Run {
    /// Lets everything else run, for as long as there is time before `until`.
    async fn rest(&self, until: Instant) -> Result<(), LoadError> {
        let served = self.tally.borrow().served;
        self.window.borrow_mut().read_when_due(served)?;
        match until.since(clock::now()).checked_sub(COARSE) {
            Some(left) if !left.is_zero() => sleep(left.min(COARSE)).await,
            _ => yield_now().await,
        }
        Ok(())
    }

    async fn drain(&self) -> Result<(), LoadError> {
        let to = self.window.borrow().to;
        let end = to + Duration::from_millis(self.config.drain_ms);
        while !self.window.borrow().is_read() || (!self.tally.borrow().is_complete() && clock::now() < end) {
            // What comes late is looked for as eagerly as before, or it would seem later than it is.
            self.rest(clock::now()).await?;
        }
        Ok(())
    }

    async fn call(self: Rc<Self>, line: usize, intended: Instant) {
        let called = clock::now();
        let tag = Tag { line, intended, called, is_measured: self.window.borrow().contains(intended) };
        self.tally.borrow_mut().on_call(&tag);
        let deadline = (self.config.deadline_us > 0).then(|| intended + Duration::from_micros(self.config.deadline_us));
        let left = deadline.map(|deadline| deadline.since(called));
        let patience = left.unwrap_or(Duration::from_millis(self.config.timeout_ms));
        let request = self.request(left);
        let answer = async {
            match self.callers[line].clone() {
                Caller::Bare(connection) => ask(connection, request).await,
                Caller::Layered(connection) => ask(connection, request).await,
            }
        };
        let end = timeout(patience, answer).await.unwrap_or(End::Ended(Err(CallError::TimedOut)));
        let (mut tally, now) = (self.tally.borrow_mut(), clock::now());
        match end {
            End::Ended(ending) => tally.on_end(&tag, ending, now),
            End::Refused => tally.on_refused(&tag, now),
        }
        // Nobody asks who is free.
        tally.freed.clear();
    }

    fn request(&self, left: Option<Duration>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if let Some(left) = left {
            let us = left.as_micros().min(TIMEOUT_MOST);
            headers.insert("grpc-timeout", HeaderValue::try_from(format!("{us}u")).expect("digits and a letter"));
        }
        request.extensions_mut().insert(CallPriority(self.config.priority));
        request
    }
}

/// One call on a connection, to the end of its answer.
async fn ask<S, R>(mut service: S, request: Request<Full<Bytes>>) -> End
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>>,
    R: Body,
{
    let Ok(()) = std::future::poll_fn(|cx| service.poll_ready(cx)).await else {
        return End::Ended(Err(CallError::Lost));
    };
    let Ok(answer) = service.call(request).await else { return End::Ended(Err(CallError::Lost)) };
    let (head, body) = answer.into_parts();
    let mut body = std::pin::pin!(body);
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return End::Ended(Err(CallError::Lost)) };
        trailers = frame.into_trailers().ok().or(trailers);
    }
    if !head.status.is_success() {
        return if head.status == http::StatusCode::SERVICE_UNAVAILABLE { End::Refused } else { failed() };
    }
    end_of(&head.headers, trailers.as_ref())
}

fn failed() -> End {
    End::Ended(Err(CallError::Failed))
}

/// What the head or the trailers of an answer say.
fn end_of(head: &HeaderMap, trailers: Option<&HeaderMap>) -> End {
    if let Some(reason) = shed_reason(head) {
        let by = if head.get(SHED_AT).is_some_and(|at| at == "client") { ShedBy::Client } else { ShedBy::Server };
        return End::Ended(Err(CallError::Shed { reason, by }));
    }
    let status = trailers.and_then(|trailers| trailers.get(GRPC_STATUS)).or_else(|| head.get(GRPC_STATUS));
    match status.map(HeaderValue::as_bytes) {
        Some(b"0") => End::Ended(Ok(())),
        Some(RESOURCE_EXHAUSTED | UNAVAILABLE) => End::Refused,
        Some(DEADLINE_EXCEEDED) => End::Ended(Err(CallError::TimedOut)),
        _ => failed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_message_stands_behind_its_length() {
        assert_eq!(&frame(b"abc")[..], b"\0\0\0\0\x03abc");
    }

    #[test]
    fn what_came_of_a_call_stands_in_the_head_or_in_the_trailers() {
        let of = |head: &[_], trailers: &[_]| match end_of(&headers(head), Some(&headers(trailers))) {
            End::Ended(ending) => Some(ending),
            End::Refused => None,
        };
        assert_eq!(of(&[], &[(GRPC_STATUS, "0")]), Some(Ok(())));
        assert_eq!(of(&[(GRPC_STATUS, "8")], &[]), None);
        assert_eq!(of(&[], &[(GRPC_STATUS, "14")]), None);
        assert_eq!(of(&[], &[(GRPC_STATUS, "4")]), Some(Err(CallError::TimedOut)));
        assert_eq!(of(&[], &[(GRPC_STATUS, "13")]), Some(Err(CallError::Failed)));
        assert_eq!(of(&[], &[]), Some(Err(CallError::Failed)), "an answer without a status is none");
        for (at, by) in [("client", ShedBy::Client), ("server", ShedBy::Server)] {
            let head = [("tidegate-shed", "share"), ("tidegate-shed-at", at), (GRPC_STATUS, "8")];
            let reason = tidegate_rpc::machine::ShedReason::Share;
            assert_eq!(of(&head, &[]), Some(Err(CallError::Shed { reason, by })));
        }
    }
}
