//! The layers in one process: what the machines are told, and what callers are answered.

mod alarm;
mod client;
mod context;
mod replicas;
mod retry;
mod server;

use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll};
use std::cell::Cell;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use tidegate_core::Instant;
use tower_service::Service;

use super::RequestBody;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000) };
}

/// The tests' clock: each test has a thread of its own.
fn clock() -> Instant {
    Instant::from_nanos(NOW.get())
}

fn pass_us(us: u64) {
    NOW.set(NOW.get() + us * 1_000);
}

/// A service of a closure, which counts its calls and is cloned with its counter.
#[derive(Clone)]
struct Handler<F> {
    calls: Arc<AtomicU64>,
    run: F,
}

impl<F> Handler<F> {
    fn new(run: F) -> Self {
        Self { calls: Arc::default(), run }
    }

    fn ran(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl<F, Fut, R> Service<Request<Full<Bytes>>> for Handler<F>
where
    F: FnMut(Request<Full<Bytes>>) -> Fut,
    Fut: Future<Output = Result<Response<R>, Broken>>,
{
    type Response = Response<R>;
    type Error = Broken;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Fut {
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.run)(request)
    }
}

/// Behind the server's layer.
impl<F, Fut, R> Service<Request<RequestBody<Full<Bytes>>>> for Handler<F>
where
    F: FnMut(Request<Full<Bytes>>) -> Fut,
    Fut: Future<Output = Result<Response<R>, Broken>>,
{
    type Response = Response<R>;
    type Error = Broken;
    type Future = Fut;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Full<Bytes>>>) -> Fut {
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.run)(request.map(RequestBody::into_inner))
    }
}

/// The way to the server is broken.
#[derive(Debug, PartialEq, Eq)]
struct Broken;

type Answered = Result<Response<Full<Bytes>>, Broken>;

/// A handler that answers at once.
fn at_once() -> Handler<impl FnMut(Request<Full<Bytes>>) -> std::future::Ready<Answered> + Clone> {
    Handler::new(|_| ready(Ok(Response::new(Full::from("done")))))
}

/// A handler that never answers.
fn never() -> Handler<impl FnMut(Request<Full<Bytes>>) -> std::future::Pending<Answered> + Clone> {
    Handler::new(|_| std::future::pending())
}

fn request(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(path).body(Full::default()).unwrap()
}

fn grpc_request() -> Request<Full<Bytes>> {
    let builder = Request::builder().uri("/some.Service/Method").header("content-type", "application/grpc");
    builder.body(Full::default()).unwrap()
}

/// Polls once, with a waker that does nothing.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(core::task::Waker::noop()))
}

/// A body of one frame of data and trailers.
#[derive(Default)]
struct WithTrailers(u8);

impl Body for WithTrailers {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0 += 1;
        Poll::Ready(match self.0 {
            1 => Some(Ok(Frame::data(Bytes::from_static(b"data")))),
            2 => Some(Ok(Frame::trailers(HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static("0"),
            )])))),
            _ => None,
        })
    }
}
