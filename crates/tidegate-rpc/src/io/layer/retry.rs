//! The layer that sends a refused call again, when its server said so and as far as the budget goes.

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
/// Errors and answers of handlers are never repeated. The body must be cheap to clone.
pub struct RetryLayer<C> {
    caller: Arc<Caller<C>>,
}

impl<C> RetryLayer<C> {
    pub(super) fn new(caller: Arc<Caller<C>>) -> Self {
        Self { caller }
    }
}

impl<C> Clone for RetryLayer<C> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller) }
    }
}

impl<C: Client, H> Layer<H> for RetryLayer<C> {
    type Service = RetryService<C, H>;

    fn layer(&self, inner: H) -> Self::Service {
        RetryService { caller: Arc::clone(&self.caller), inner }
    }
}

/// A client that sends refused calls again, see [`RetryLayer`].
pub struct RetryService<C, H> {
    caller: Arc<Caller<C>>,
    inner: H,
}

impl<C, H: Clone> Clone for RetryService<C, H> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller), inner: self.inner.clone() }
    }
}

/// An extension of a request that is sent again: the budget was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paid;

impl<C, H, B, R> Service<Request<B>> for RetryService<C, H>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Clone,
{
    type Response = H::Response;
    type Error = H::Error;
    type Future = RetryFuture<C, H, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let now = self.caller.now();
        let wishes = Wishes::of(&request, &self.caller.config, now);
        let mut kept = request.clone();
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
struct Again<C, H, B> {
    caller: Arc<Caller<C>>,
    inner: H,
    request: Request<B>,
    deadline: Option<Instant>,
    /// How often it was sent.
    attempts: u32,
}

impl<C: Client, H, B: Clone> Again<C, H, B> {
    /// When to send the call again that was answered with `headers`; `None` if never.
    fn after(&self, headers: &HeaderMap) -> Option<Duration> {
        let pushback = pushback(headers)?;
        let in_time = self.deadline.is_none_or(|deadline| self.caller.now() + pushback < deadline);
        let may = in_time && self.attempts < self.caller.config.retries.attempts;
        (may && self.caller.try_retry()).then_some(pushback)
    }

    /// The request of the next attempt: it says how many there were, and has the time that is left.
    fn next_request(&mut self) -> Request<B> {
        let mut request = self.request.clone();
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
    pub struct RetryFuture<C, H: Service<Request<B>>, B> {
        #[pin]
        stage: Stage<C, H, B>,
    }
}

pin_project! {
    #[project = StageNow]
    #[project_replace = StageBefore]
    enum Stage<C, H: Service<Request<B>>, B> {
        // It was sent.
        Away { #[pin] future: H::Future, again: Option<Again<C, H, B>> },
        // Its server said when to come back.
        Waits { timer: Pin<Box<Sleep>>, again: Again<C, H, B> },
        // It is time, and the connection is asked.
        Ready { again: Again<C, H, B> },
        // The answer was given.
        Over,
    }
}

impl<C, H, B, R> Future for RetryFuture<C, H, B>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Clone,
{
    type Output = Result<H::Response, H::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageNow::Away { future, again } => {
                    let answer = ready!(future.poll(cx));
                    let pause = match (&answer, &*again) {
                        (Ok(answer), Some(again)) => again.after(answer.headers()),
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
                    let request = again.next_request();
                    let future = again.inner.call(request);
                    this.stage.set(Stage::Away { future, again: Some(again) });
                }
                StageNow::Over => panic!("polled after its answer"),
            }
        }
    }
}
