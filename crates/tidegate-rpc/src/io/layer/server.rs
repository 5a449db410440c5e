//! The layer before the handlers.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Dialect, GRPC_STATUS, GRPC_UNIMPLEMENTED, Place, forget_others, refusal};
use super::body::CallBody;
use super::clocked::{Sleep, sleep};
use super::config::{Mode, Seen, ServerConfig, Until};
use super::counts::ServerSnapshot;
use super::current::CallContext;
use super::gate::{Arrival, Gate, Heard, Refused, Step};
use super::headers::{
    DEMAND_PATH, DEMAND_PATIENCE, GRANT, GrantHeader, read_ask, read_client, read_grpc_timeout, write_grant,
};
use super::request_body::{Hunger, RequestBody};
use super::running::{Polling, Running, Waiting};
use super::sessions::{Key, Who};
use super::stamp::{arrival_stamp, attach_peer, connection};
use crate::machine::credits::{Config, CreditServer};
use crate::machine::desk::Pause;
use crate::machine::{Done, Grant, Server};
use crate::telemetry::{Source, Telemetry};

/// Makes services that ask the machine `S` before they run a handler. Clones share the machine.
pub struct ServerLayer<S> {
    gate: Arc<Gate<S>>,
}

impl<S> Clone for ServerLayer<S> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl Default for ServerLayer<CreditServer> {
    /// Tidegate's credits, with nothing set, for handlers on the tokio runtime around.
    fn default() -> Self {
        let config = ServerConfig::default();
        Self::new(CreditServer::new(Config::default(), config.cores(), (config.clock)()), config)
    }
}

impl<S: Server + Send + 'static> ServerLayer<S> {
    /// A layer around `machine`.
    #[must_use]
    pub fn new(machine: S, config: ServerConfig) -> Self {
        Self { gate: Gate::new(machine, config) }
    }
}

impl<S: Server> ServerLayer<S> {
    /// Counters and state now, with the `busiest` sessions of the greatest demand. O(sessions) under the layer's lock:
    /// for once a second, not for every call.
    #[must_use]
    pub fn snapshot(&self, busiest: usize) -> ServerSnapshot {
        self.gate.snapshot(busiest)
    }

    /// Figures for metrics and the console. Calls are counted for them from the first time on that somebody asks: some 60 ns
    /// for each.
    #[must_use]
    pub fn telemetry(&self) -> Telemetry
    where
        S: Send + 'static,
    {
        self.gate.begin_to_count();
        Telemetry::new(Arc::clone(&self.gate) as Arc<dyn Source>)
    }

    /// Carries verdicts out from now on, or only counts them; calls that were admitted go on.
    pub fn set_mode(&self, mode: Mode) {
        self.gate.set_mode(mode);
    }

    /// Looks at the machine, or changes its settings, under the layer's lock.
    pub fn with_machine<R>(&self, look: impl FnOnce(&mut S, Instant) -> R) -> R {
        self.gate.with_machine(look)
    }
}

impl<S: Server, H> Layer<H> for ServerLayer<S> {
    type Service = ServerService<S, H>;

    fn layer(&self, handler: H) -> Self::Service {
        ServerService { gate: Arc::clone(&self.gate), handler }
    }
}

/// A handler that runs what the machine `S` admits.
pub struct ServerService<S, H> {
    gate: Arc<Gate<S>>,
    handler: H,
}

impl<S, H: Clone> Clone for ServerService<S, H> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate), handler: self.handler.clone() }
    }
}

impl<S, H, B, R> Service<Request<B>> for ServerService<S, H>
where
    S: Server,
    H: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    B: Body,
    R: Body,
{
    type Response = Response<CallBody<R, S>>;
    type Error = H::Error;
    type Future = ServerFuture<S, H, B>;

    /// Always ready: the handler's readiness is asked for when the call starts, so that a refusal never waits for it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let handler = self.handler.clone();
        let dialect = Dialect::of(request.headers());
        if request.uri().path() == DEMAND_PATH {
            let key = self.gate.demand(&arrival(&request, &self.gate.config));
            let until = self.gate.now() + DEMAND_PATIENCE;
            let stage = Stage::Listens { gate: Arc::clone(&self.gate), key, until, timer: None };
            return ServerFuture { stage, yielded: 0, dialect, unnamed: None };
        }
        let part_of_another = Polling::is_of(&self.gate);
        if part_of_another || (self.gate.config.exempt)(Seen::of(&request)) {
            self.gate.count_exempt();
            attach_peer(request.extensions_mut());
            return ServerFuture {
                stage: Stage::Ready { handler, request, running: None },
                yielded: 0,
                dialect,
                unnamed: None,
            };
        }
        let arrival = arrival(&request, &self.gate.config);
        let mut unnamed = None;
        let stage = match self.gate.arrive(&arrival) {
            Ok(call) => {
                unnamed = arrival.method.filter(|_| call.is_unnamed).map(Into::into);
                let context = CallContext::of(&arrival, self.gate.now());
                attach_peer(request.extensions_mut());
                request.extensions_mut().insert(context.clone());
                let waiting = Waiting::new(Arc::clone(&self.gate), call, context);
                Stage::InLine { handler, request, waiting }
            }
            Err(refused) => Stage::Refused { refused },
        };
        ServerFuture { stage, yielded: 0, dialect, unnamed }
    }
}

/// What the machine shall know of a request.
fn arrival<'a, B>(request: &'a Request<B>, config: &ServerConfig) -> Arrival<'a> {
    let seen = Seen::of(request);
    let mut ask = read_ask(seen.headers).unwrap_or_default();
    // Whoever stands between may have shortened the one or the other.
    ask.budget = [ask.budget, read_grpc_timeout(seen.headers)].into_iter().flatten().min();
    let ask = config.claims.judge(ask, config.known(seen));
    let peer = (config.peer)(seen).map(Who::at);
    let peer = peer.or_else(|| connection(seen.extensions).map(|connection| Who::Connection(connection.id())));
    let address = peer.unwrap_or(Who::Nobody);
    let name = read_client(seen.headers).map_or(address, Who::Client);
    let keys = [name, address].map(|who| Key { who, tenant: ask.tenant });
    Arrival { keys, ask, method: (config.method)(seen), arrived: arrival_stamp(seen.extensions) }
}

pin_project! {
    /// The answer to come: the handler's, or a refusal.
    pub struct ServerFuture<S: Server, H: Service<Request<RequestBody<B>>>, B> {
        #[pin]
        stage: Stage<S, H, B>,
        yielded: u8,
        dialect: Dialect,
        // The name of its method, if calls of that are not told apart yet.
        unnamed: Option<Box<str>>,
    }
}

pin_project! {
    #[project = StageNow]
    #[project_replace = StageBefore]
    enum Stage<S: Server, H: Service<Request<RequestBody<B>>>, B> {
        // It was admitted and no core has started it.
        InLine { handler: H, request: Request<B>, waiting: Waiting<S> },
        // It is exempt, or its turn has come; the handler is asked whether it is ready.
        Ready { handler: H, request: Request<B>, running: Option<Running<S>> },
        // The handler runs.
        Runs { #[pin] future: H::Future, running: Option<Running<S>>, hunger: Option<Hunger> },
        // It is no call: its client waits for a grant.
        Listens { gate: Arc<Gate<S>>, key: Option<Key>, until: Instant, timer: Option<Pin<Box<Sleep>>> },
        // It was refused.
        Refused { refused: Refused },
        // The answer was given.
        Over,
    }
}

impl<S, H, B, R> Future for ServerFuture<S, H, B>
where
    S: Server,
    H: Service<Request<RequestBody<B>>, Response = Response<R>>,
    B: Body,
    R: Body,
{
    type Output = Result<Response<CallBody<R, S>>, H::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageNow::InLine { waiting, .. } => {
                    match waiting.turn(*this.yielded, cx.waker()) {
                        Step::Start => {}
                        later => {
                            step_back(later, this.yielded, cx);
                            return Poll::Pending;
                        }
                    }
                    let StageBefore::InLine { handler, request, waiting } =
                        this.stage.as_mut().project_replace(Stage::Over)
                    else {
                        unreachable!("the stage was looked at above")
                    };
                    let next = match waiting.start() {
                        Ok(running) => Stage::Ready { handler, request, running: Some(running) },
                        Err(refused) => Stage::Refused { refused },
                    };
                    this.stage.set(next);
                }
                StageNow::Ready { handler, running, .. } => {
                    if let Some(running) = running.as_mut().filter(|running| running.is_paused()) {
                        ready!(take_turn(running, this.yielded, cx));
                    }
                    let Poll::Ready(is_ready) = behind(running.as_ref(), || handler.poll_ready(cx)) else {
                        if let Some(running) = running {
                            *this.yielded = 0;
                            running.pause(Pause::Else);
                        }
                        return Poll::Pending;
                    };
                    is_ready?;
                    let StageBefore::Ready { mut handler, request, running } =
                        this.stage.as_mut().project_replace(Stage::Over)
                    else {
                        unreachable!("the stage was looked at above")
                    };
                    let (parts, body) = request.into_parts();
                    let (body, hunger) = RequestBody::of(body);
                    let request = Request::from_parts(parts, body);
                    let future = behind(running.as_ref(), || handler.call(request));
                    this.stage.set(Stage::Runs { future, running, hunger });
                }
                StageNow::Runs { future, running, hunger } => {
                    if let Some(running) = running.as_mut().filter(|running| running.is_paused()) {
                        ready!(take_turn(running, this.yielded, cx));
                    }
                    let Poll::Ready(answer) = behind(running.as_ref(), || future.poll(cx)) else {
                        if let Some(running) = running {
                            *this.yielded = 0;
                            let client = hunger.as_ref().is_some_and(Hunger::is_felt);
                            running.pause(if client { Pause::Client } else { Pause::Else });
                        }
                        return Poll::Pending;
                    };
                    let running = running.take();
                    this.stage.set(Stage::Over);
                    if let (Some(name), Some(running), Ok(answer)) = (this.unnamed.take(), &running, &answer)
                        && is_of_a_method(answer)
                    {
                        running.name_method(&name);
                    }
                    return Poll::Ready(answer.map(|answer| deliver(answer, running)));
                }
                StageNow::Refused { refused } => {
                    let answer = refuse(*this.dialect, refused);
                    this.stage.set(Stage::Over);
                    return Poll::Ready(Ok(answer));
                }
                StageNow::Listens { gate, key, until, timer } => {
                    let grant = ready!(listen(gate, *key, *until, timer, cx));
                    let instance = gate.config.instance;
                    this.stage.set(Stage::Over);
                    return Poll::Ready(Ok(hear(grant, instance)));
                }
                StageNow::Over => panic!("polled after its answer"),
            }
        }
    }
}

/// Runs a part of the handler, whose calls to its own service are part of it.
fn behind<S: Server, R>(running: Option<&Running<S>>, part: impl FnOnce() -> R) -> R {
    let _polling = running.map(Running::polling);
    part()
}

/// Ready when the turn of a call that goes on has come.
fn take_turn<S: Server>(running: &mut Running<S>, yielded: &mut u8, cx: &mut Context<'_>) -> Poll<()> {
    match running.go_on(*yielded, cx.waker()) {
        Step::Start => Poll::Ready(()),
        later => {
            step_back(later, yielded, cx);
            Poll::Pending
        }
    }
}

/// Has the task of a call that does not start yet polled when it shall ask again.
fn step_back(step: Step, yielded: &mut u8, cx: &mut Context<'_>) {
    match step {
        Step::Wait | Step::Start => return,
        Step::Look => after_a_look(cx),
        Step::Yield => cx.waker().wake_by_ref(),
    }
    *yielded = yielded.saturating_add(1);
}

/// Has the task woken when the executor has looked at its sockets, which it does at the latest when nothing else is left
/// to run. A task that merely wakes itself may go on for 61 others before a stock runtime looks.
fn after_a_look(cx: &mut Context<'_>) {
    // It hands its waker to the executor when it is polled first, and is never polled again.
    let _ = core::pin::pin!(tokio::task::yield_now()).poll(cx);
}

/// Waits for a grant for the session of `key`, until `until`.
fn listen<S: Server>(
    gate: &Gate<S>,
    key: Option<Key>,
    until: Instant,
    timer: &mut Option<Pin<Box<Sleep>>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Grant>> {
    let Some(key) = key else { return Poll::Ready(None) };
    loop {
        let left = until.since(gate.now());
        match gate.listen(key, cx.waker()) {
            Heard::Grant(grant) => return Poll::Ready(Some(grant)),
            Heard::Nothing if left.is_zero() => return Poll::Ready(None),
            Heard::Nothing => {
                let timer = timer.get_or_insert_with(|| Box::pin(sleep(left)));
                ready!(timer.as_mut().poll(cx));
                *timer = Box::pin(sleep(left));
            }
        }
    }
}

/// The answer to a call that is refused.
fn refuse<R, S: Server>(dialect: Dialect, refused: &Refused) -> Response<CallBody<R, S>> {
    let mut answer = refusal(dialect, refused.reason, Place::Server, Some(refused.pushback), CallBody::empty());
    if let Some(grant) = &refused.grant {
        answer.headers_mut().insert(GRANT, write_grant(grant));
    }
    answer
}

/// The answer to one that listened for a grant.
fn hear<R, S: Server>(grant: Option<Grant>, instance: u64) -> Response<CallBody<R, S>> {
    let mut answer = Response::new(CallBody::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    if let Some(grant) = grant {
        let header = GrantHeader { grant, instance, ..GrantHeader::default() };
        answer.headers_mut().insert(GRANT, write_grant(&header));
    }
    answer
}

/// Whether there is such a method as was asked for, as far as its answer tells.
fn is_of_a_method<R>(answer: &Response<R>) -> bool {
    let status = answer.headers().get(GRPC_STATUS).map(HeaderValue::as_bytes);
    answer.status() != StatusCode::NOT_FOUND && status != Some(GRPC_UNIMPLEMENTED)
}

/// A handler answered: ends its call, or lets it run until its body ends.
fn deliver<R: Body, S: Server>(answer: Response<R>, running: Option<Running<S>>) -> Response<CallBody<R, S>> {
    let (mut parts, body) = answer.into_parts();
    forget_others(&mut parts.headers);
    let running = running.and_then(|mut running| {
        if running.until() == Until::Body && !body.is_end_stream() {
            // Its body is sent as fast as its client takes it: that takes no core for long.
            running.pause(Pause::Else);
            return Some(running);
        }
        if let Some(grant) = running.end(Done::Served) {
            parts.headers.insert(GRANT, write_grant(&grant));
        }
        None
    });
    Response::from_parts(parts, CallBody::of(body, running))
}
