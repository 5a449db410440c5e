//! The layer that sends a refused call again, when its server said so and as far as the budget goes.

use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::sync::Arc;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tidegate_core::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Dialect, GRPC_PUSHBACK};
use super::caller::Caller;
use super::client_config::{CallBudget, Wishes};
use super::clocked::{Sleep, sleep};
use super::current::CallContext;
use super::headers::{
    GRPC_TIMEOUT, PREVIOUS_ATTEMPTS, SHED_AT, read_pushback, read_retry_after, shed_reason, write_grpc_timeout,
};
use super::repeat_body::{Cloned, Keep, Recorded};
use crate::machine::{Client, ShedReason};

/// Sends calls again that a server refused. Made by [`ClientLayer::retries`](super::ClientLayer::retries), before whose
/// services it belongs.
///
/// A call is sent again if all of this is true, and else its answer is handed on as it is:
/// - the answer has `tidegate-shed`: no handler ran, so that repeating it is safe whatever it does;
/// - a server shed it and not this client, for what is not sent for lack of credit shall not be sent a little later;
/// - not for its deadline, which only comes nearer, nor for its client's share, of which a repeat is part;
/// - the answer says when to come back (`grpc-retry-pushback-ms`, `Retry-After`), and then there is time left;
/// - it was not sent [`RetryConfig::attempts`](super::RetryConfig::attempts) times;
/// - the budget lets it.
///
/// Errors and answers of handlers are never repeated. The body must be cheap to clone, or else be [`recorded`](Self::recorded).
pub struct RetryLayer<C, K = Cloned> {
    caller: Arc<Caller<C>>,
    keeps: PhantomData<fn() -> K>,
}

impl<C> RetryLayer<C> {
    pub(super) fn new(caller: Arc<Caller<C>>) -> Self {
        Self { caller, keeps: PhantomData }
    }

    /// For bodies that cannot be cloned, such as tonic's and axum's: up to 64 KiB of them are recorded while they are sent, and
    /// a call with a longer one is sent once.
    #[must_use]
    pub fn recorded(self) -> RetryLayer<C, Recorded> {
        RetryLayer { caller: self.caller, keeps: PhantomData }
    }
}

impl<C, K> Clone for RetryLayer<C, K> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller), keeps: PhantomData }
    }
}

impl<C: Client, H, K> Layer<H> for RetryLayer<C, K> {
    type Service = RetryService<C, H, K>;

    fn layer(&self, inner: H) -> Self::Service {
        RetryService { caller: Arc::clone(&self.caller), inner, keeps: PhantomData }
    }
}

/// A client that sends refused calls again, see [`RetryLayer`].
pub struct RetryService<C, H, K = Cloned> {
    caller: Arc<Caller<C>>,
    inner: H,
    keeps: PhantomData<fn() -> K>,
}

impl<C, H: Clone, K> Clone for RetryService<C, H, K> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller), inner: self.inner.clone(), keeps: PhantomData }
    }
}

/// An extension of a request that is sent again: the budget was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paid;

impl<C, H, B, R, K> Service<Request<B>> for RetryService<C, H, K>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    K: Keep<B>,
{
    type Response = H::Response;
    type Error = H::Error;
    type Future = RetryFuture<C, H, B, K>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let now = self.caller.now();
        let wishes = Wishes::of(&request, &self.caller.config, now);
        let (head, body) = request.into_parts();
        let (body, kept) = K::keep(body);
        let request = Request::from_parts(head.clone(), body);
        let mut kept = Request::from_parts(head, kept);
        if kept.extensions().get::<CallContext>().is_none()
            && let Some(context) = CallContext::current()
        {
            // A later attempt may be polled outside of the handler, and inherits from the same call.
            kept.extensions_mut().insert(context);
        }
        let again = Again {
            caller: Arc::clone(&self.caller),
            // The clone may not be ready, and is asked before it is used.
            inner: self.inner.clone(),
            request: kept,
            deadline: wishes.budget.map(|budget| now + budget),
            attempts: 1,
        };
        RetryFuture { stage: Stage::Away { future: self.inner.call(request), again: Some(again) } }
    }
}

/// What it takes to send a call once more.
struct Again<C, H, T> {
    caller: Arc<Caller<C>>,
    inner: H,
    /// Its head, and what is kept of its body.
    request: Request<T>,
    deadline: Option<Instant>,
    /// How often it was sent.
    attempts: u32,
}

impl<C: Client, H, T> Again<C, H, T> {
    /// When to send the call again that was answered with `headers`; `None` if never.
    fn after<K: Keep<B, Kept = T>, B>(&self, headers: &HeaderMap) -> Option<Duration> {
        let pushback = pushback(headers).filter(|_| K::is_whole(self.request.body()))?;
        let in_time = self.deadline.is_none_or(|deadline| self.caller.now() + pushback < deadline);
        let may = in_time && self.attempts < self.caller.config.retries.attempts;
        (may && self.caller.try_retry()).then_some(pushback)
    }

    /// The request of the next attempt: it says how many there were, and has the time that is left.
    fn next_request<K: Keep<B, Kept = T>, B>(&mut self) -> Request<B> {
        let kept = &self.request;
        let mut request = Request::new(K::again(kept.body()));
        *request.method_mut() = kept.method().clone();
        *request.uri_mut() = kept.uri().clone();
        *request.version_mut() = kept.version();
        kept.headers().clone_into(request.headers_mut());
        kept.extensions().clone_into(request.extensions_mut());
        request.extensions_mut().insert(Paid);
        let dialect = Dialect::of(request.headers());
        if dialect == Dialect::Grpc {
            request.headers_mut().insert(PREVIOUS_ATTEMPTS, HeaderValue::from(self.attempts));
        }
        if let Some(deadline) = self.deadline {
            let left = deadline.since(self.caller.now());
            request.extensions_mut().insert(CallBudget(left));
            if dialect == Dialect::Grpc {
                request.headers_mut().insert(GRPC_TIMEOUT, write_grpc_timeout(left));
            }
        }
        self.attempts += 1;
        request
    }
}

/// When a server that shed a call wants it back; `None` if it shall not be sent again.
fn pushback(headers: &HeaderMap) -> Option<Duration> {
    let reason = shed_reason(headers)?;
    let at_server = headers.get(SHED_AT).is_some_and(|at| at == "server");
    if !at_server || matches!(reason, ShedReason::Deadline | ShedReason::Share) {
        return None;
    }
    let of_grpc = headers.get(GRPC_PUSHBACK).map(read_pushback);
    of_grpc.or_else(|| headers.get(RETRY_AFTER).map(read_retry_after))?
}

pin_project! {
    /// The answer to come: the first that is not sent again.
    pub struct RetryFuture<C, H: Service<Request<B>>, B, K: Keep<B> = Cloned> {
        #[pin]
        stage: Stage<C, H, B, K>,
    }
}

pin_project! {
    #[project = StageNow]
    #[project_replace = StageBefore]
    enum Stage<C, H: Service<Request<B>>, B, K: Keep<B>> {
        // It was sent.
        Away { #[pin] future: H::Future, again: Option<Again<C, H, K::Kept>> },
        // Its server said when to come back.
        Waits { timer: Pin<Box<Sleep>>, again: Again<C, H, K::Kept> },
        // It is time, and the connection is asked.
        Ready { again: Again<C, H, K::Kept> },
        // The answer was given.
        Over,
    }
}

impl<C, H, B, R, K> Future for RetryFuture<C, H, B, K>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    K: Keep<B>,
{
    type Output = Result<H::Response, H::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageNow::Away { future, again } => {
                    let answer = ready!(future.poll(cx));
                    let pause = match (&answer, &*again) {
                        (Ok(answer), Some(again)) => again.after::<K, B>(answer.headers()),
                        _ => None,
                    };
                    let again = again.take().filter(|_| pause.is_some());
                    let (Some(again), Some(pause)) = (again, pause) else {
                        this.stage.set(Stage::Over);
                        return Poll::Ready(answer);
                    };
                    this.stage.set(Stage::Waits { timer: Box::pin(sleep(pause)), again });
                }
                StageNow::Waits { timer, .. } => {
                    ready!(timer.as_mut().poll(cx));
                    let StageBefore::Waits { again, .. } = this.stage.as_mut().project_replace(Stage::Over) else {
                        unreachable!("the stage was looked at above")
                    };
                    this.stage.set(Stage::Ready { again });
                }
                StageNow::Ready { again } => {
                    ready!(again.inner.poll_ready(cx))?;
                    let StageBefore::Ready { mut again } = this.stage.as_mut().project_replace(Stage::Over) else {
                        unreachable!("the stage was looked at above")
                    };
                    let request = again.next_request::<K, B>();
                    let future = again.inner.call(request);
                    this.stage.set(Stage::Away { future, again: Some(again) });
                }
                StageNow::Over => panic!("polled after its answer"),
            }
        }
    }
}
