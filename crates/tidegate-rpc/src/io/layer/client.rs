//! The layer behind the callers.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Dialect, Place, refusal};
use super::caller::{Answer, Caller, Decision, Now, Sent, WithoutCredit};
use super::client_body::AnswerBody;
use super::client_config::ClientConfig;
use super::client_demand::Demand;
use super::clocked::{Sleep, sleep};
use super::config::Seen;
use super::counts::ClientSnapshot;
use super::headers::{ASK, CLIENT, GRPC_TIMEOUT, read_grant, shed_reason, write_ask, write_grpc_timeout};
use super::retry::{Paid, RetryLayer};
use crate::machine::{Ask, Client, ShedReason, Tenant};

/// Makes services that ask the machine `C` before they send a call. All services of a layer, and their clones, share the
/// machine: use one layer for each server.
pub struct ClientLayer<C> {
    caller: Arc<Caller<C>>,
}

impl<C> Clone for ClientLayer<C> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller) }
    }
}

impl<C: Client> ClientLayer<C> {
    /// A layer around `machine`.
    #[must_use]
    pub fn new(machine: C, config: ClientConfig) -> Self {
        Self { caller: Caller::new(machine, config) }
    }

    /// Counters and state now.
    #[must_use]
    pub fn snapshot(&self) -> ClientSnapshot {
        self.caller.snapshot()
    }

    /// A layer that sends refused calls again, within the budget of this one. It stands before this layer:
    /// `layer.retries().layer(layer.layer(channel))`.
    #[must_use]
    pub fn retries(&self) -> RetryLayer<C> {
        RetryLayer::new(Arc::clone(&self.caller))
    }

    /// The connection to the server is gone: what was granted is void. A layer cannot see that by itself; who does not
    /// tell it waits until the grant's lease is over.
    pub fn lost(&self) {
        self.caller.lost();
    }
}

impl<C: Client, H> Layer<H> for ClientLayer<C> {
    type Service = ClientService<C, H>;

    fn layer(&self, inner: H) -> Self::Service {
        ClientService { caller: Arc::clone(&self.caller), inner }
    }
}

/// A client that sends what the machine `C` lets it.
pub struct ClientService<C, H> {
    caller: Arc<Caller<C>>,
    inner: H,
}

impl<C, H: Clone> Clone for ClientService<C, H> {
    fn clone(&self) -> Self {
        Self { caller: Arc::clone(&self.caller), inner: self.inner.clone() }
    }
}

impl<C, H> ClientService<C, H> {
    pub(super) fn caller(&self) -> &Arc<Caller<C>> {
        &self.caller
    }

    /// Sends a call unless there is no credit for it, and then gives it back.
    #[expect(clippy::result_large_err, reason = "a request that goes to another server is moved once more")]
    pub(super) fn begin<B>(&mut self, request: Request<B>) -> Result<ClientFuture<C, H, B>, Request<B>>
    where
        C: Client,
        H: Service<Request<B>> + Clone,
    {
        self.send(request, WithoutCredit::GoesElsewhere)
    }

    #[expect(clippy::result_large_err, reason = "a request that goes to another server is moved once more")]
    fn send<B>(
        &mut self,
        mut request: Request<B>,
        without_credit: WithoutCredit,
    ) -> Result<ClientFuture<C, H, B>, Request<B>>
    where
        C: Client,
        H: Service<Request<B>> + Clone,
    {
        let dialect = Dialect::of(request.headers());
        let inner = self.inner.clone();
        if (self.caller.config.exempt)(Seen::of(&request)) {
            return Ok(ClientFuture { stage: Stage::Ready { inner, request, sent: None }, dialect });
        }
        let (sent, now) = self.caller.call(&request, without_credit);
        let stage = match now {
            Now::Decided(Decision::Send(ask)) => {
                sign(&mut request, &ask, &sent, dialect);
                Stage::Ready { inner, request, sent: Some(sent) }
            }
            Now::Decided(Decision::Fail(reason)) => {
                let is_paid = sent.is_paid_retry();
                sent.failed();
                if reason == ShedReason::NoCredit && without_credit == WithoutCredit::GoesElsewhere {
                    if is_paid {
                        request.extensions_mut().insert(Paid);
                    }
                    return Err(request);
                }
                Stage::Refused { reason }
            }
            Now::Wait(_) => Stage::Waits { inner, request, sent, timer: None, demand: None },
        };
        Ok(ClientFuture { stage, dialect })
    }
}

impl<C, H, B, R> Service<Request<B>> for ClientService<C, H>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Default,
{
    type Response = Response<AnswerBody<R, C>>;
    type Error = H::Error;
    type Future = ClientFuture<C, H, B>;

    /// Always ready: whether a call is sent is decided before anybody waits for the connection.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let sent = self.send(request, WithoutCredit::Fails);
        sent.unwrap_or_else(|_| unreachable!("calls are given back only if they may go elsewhere"))
    }
}

/// Adds what the server's layer reads, and the inherited deadline for servers that have no layer.
fn sign<B, C: Client>(request: &mut Request<B>, ask: &Ask, sent: &Sent<C>, dialect: Dialect) {
    let budget = sent.left();
    // Who made the machine for a tenant and told the layer none means that one.
    let tenant = if sent.wishes.tenant == Tenant::default() { ask.tenant } else { sent.wishes.tenant };
    let ask = Ask { tenant, budget, ..*ask };
    let headers = request.headers_mut();
    headers.insert(CLIENT, sent.caller().name.clone());
    headers.insert(ASK, write_ask(&ask));
    if let Some(budget) = budget.filter(|_| sent.wishes.is_inherited && dialect == Dialect::Grpc) {
        headers.insert(GRPC_TIMEOUT, write_grpc_timeout(budget));
    }
}

pin_project! {
    /// The answer to come: the server's, or a refusal.
    pub struct ClientFuture<C: Client, H: Service<Request<B>>, B> {
        #[pin]
        stage: Stage<C, H, B>,
        dialect: Dialect,
    }
}

pin_project! {
    #[project = StageNow]
    #[project_replace = StageBefore]
    enum Stage<C: Client, H: Service<Request<B>>, B> {
        // The machine has not decided.
        Waits {
            inner: H,
            request: Request<B>,
            sent: Sent<C>,
            timer: Option<Pin<Box<Sleep>>>,
            // The demand of all that wait, if this is the one that tells it.
            demand: Option<Demand<C, H, B>>,
        },
        // It may be sent, as soon as the connection takes it.
        Ready { inner: H, request: Request<B>, sent: Option<Sent<C>> },
        // It was sent.
        Away { #[pin] future: H::Future, sent: Option<Sent<C>> },
        // It failed here.
        Refused { reason: ShedReason },
        // The answer was given.
        Over,
    }
}

/// Asks the machine about a waiting call, and sets the timer after which to ask again.
fn decide<C: Client>(sent: &Sent<C>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Poll<Decision> {
    loop {
        match sent.ask_again(cx.waker()) {
            Now::Decided(decision) => return Poll::Ready(decision),
            Now::Wait(None) => {
                *timer = None;
                return Poll::Pending;
            }
            Now::Wait(Some(patience)) => {
                let timer = timer.insert(Box::pin(sleep(patience)));
                ready!(timer.as_mut().poll(cx));
            }
        }
    }
}

impl<C, H, B, R> Future for ClientFuture<C, H, B>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Default,
{
    type Output = Result<Response<AnswerBody<R, C>>, H::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageNow::Waits { inner, request, sent, timer, demand } => {
                    Demand::drive(demand, sent.caller(), inner, request.uri(), cx);
                    let decision = ready!(decide(sent, timer, cx));
                    let StageBefore::Waits { inner, mut request, sent, .. } =
                        this.stage.as_mut().project_replace(Stage::Over)
                    else {
                        unreachable!("the stage was looked at above")
                    };
                    this.stage.set(match decision {
                        Decision::Send(ask) => {
                            sign(&mut request, &ask, &sent, *this.dialect);
                            Stage::Ready { inner, request, sent: Some(sent) }
                        }
                        Decision::Fail(reason) => {
                            sent.failed();
                            Stage::Refused { reason }
                        }
                    });
                }
                StageNow::Ready { inner, .. } => {
                    ready!(inner.poll_ready(cx))?;
                    let StageBefore::Ready { mut inner, request, sent } =
                        this.stage.as_mut().project_replace(Stage::Over)
                    else {
                        unreachable!("the stage was looked at above")
                    };
                    let future = inner.call(request);
                    this.stage.set(Stage::Away { future, sent });
                }
                StageNow::Away { future, sent } => {
                    // An error leaves `sent` in its place: dropped, it cancels the call.
                    let answer = ready!(future.poll(cx))?;
                    let headers = answer.headers();
                    let grant = read_grant(headers);
                    let caller = sent.take().map(|sent| {
                        let caller = Arc::clone(sent.caller());
                        sent.answered(&Answer { shed: shed_reason(headers), grant });
                        caller
                    });
                    this.stage.set(Stage::Over);
                    // A grant that is not among the headers may be among the trailers.
                    let caller = caller.filter(|_| grant.is_none());
                    return Poll::Ready(Ok(answer.map(|body| AnswerBody::of(body, caller))));
                }
                StageNow::Refused { reason } => {
                    let reason = *reason;
                    this.stage.set(Stage::Over);
                    let answer = refusal(*this.dialect, reason, Place::Client, None, AnswerBody::empty());
                    return Poll::Ready(Ok(answer));
                }
                StageNow::Over => panic!("polled after its answer"),
            }
        }
    }
}
