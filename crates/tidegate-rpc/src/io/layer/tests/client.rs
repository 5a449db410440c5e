use core::pin::pin;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Mutex;

use http_body_util::BodyExt as _;
use tidegate_core::Rng;
use tower_layer::Layer as _;

use super::super::headers::{ASK, CLIENT, GRANT, SHED, SHED_AT};
use super::super::{CallBudget, CallPriority, ClientConfig, ClientLayer};
use super::*;
use crate::machine::{
    Ask, CallId, Client, ClientOutput, Grant, Outcome, Priority, Reply, Request as Call, ShedReason, Step,
};

/// What the machine was told.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Call(Call),
    Reply(Reply),
    Grant(Grant),
    Cancel(CallId),
    Lost,
}

/// A machine that does as it is told, seen from outside through the `Arc`.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    steps: VecDeque<Step>,
    outputs: VecDeque<ClientOutput>,
    /// Outputs that become due at a time.
    later: Option<(Instant, ClientOutput)>,
    told: Vec<Told>,
}

impl Script {
    fn step(self, step: Step) -> Self {
        self.0.lock().unwrap().steps.push_back(step);
        self
    }

    fn output(&self, output: ClientOutput) {
        self.0.lock().unwrap().outputs.push_back(output);
    }

    fn told(&self) -> Vec<Told> {
        self.0.lock().unwrap().told.clone()
    }

    fn tell(&self, told: Told) {
        self.0.lock().unwrap().told.push(told);
    }
}

impl Client for Script {
    fn on_call(&mut self, request: &Call, _: Instant, _: &mut Rng) -> Step {
        self.tell(Told::Call(*request));
        self.0.lock().unwrap().steps.pop_front().unwrap_or(Step::Send(Ask::default()))
    }

    fn on_reply(&mut self, reply: &Reply, _: Instant) {
        self.tell(Told::Reply(*reply));
    }

    fn on_grant(&mut self, grant: &Grant, _: Instant) {
        self.tell(Told::Grant(*grant));
    }

    fn on_cancel(&mut self, id: CallId, _: Instant) {
        self.tell(Told::Cancel(id));
    }

    fn on_lost(&mut self, _: Instant) {
        self.tell(Told::Lost);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.0.lock().unwrap().later.map(|(at, _)| at)
    }

    fn on_timeout(&mut self, now: Instant) {
        let mut lines = self.0.lock().unwrap();
        if let Some((_, output)) = lines.later.take_if(|(at, _)| *at <= now) {
            lines.outputs.push_back(output);
        }
    }

    fn poll_output(&mut self) -> Option<ClientOutput> {
        self.0.lock().unwrap().outputs.pop_front()
    }
}

fn layer(script: &Script) -> ClientLayer<Script> {
    ClientLayer::new(script.clone(), ClientConfig::default().clock(clock))
}

#[tokio::test]
async fn a_sent_call_carries_the_ask_and_its_answer_reaches_the_machine() {
    let ask = Ask { demand: 2, credited: true, priority: Priority(7), ..Ask::default() };
    let script = Script::default().step(Step::Send(ask));
    let mut service = layer(&script).layer(Handler::new(|request: Request<Full<Bytes>>| {
        assert_eq!(request.headers()[ASK], "d=2,c,p=7,b=5000");
        assert_eq!(request.headers()[CLIENT].len(), 16);
        pass_us(900);
        ready(Ok(Response::builder().header(GRANT, "w=4,l=1,s=600").body(Full::<Bytes>::from("done")).unwrap()))
    }));
    let mut request = request("/");
    request.extensions_mut().insert(CallPriority(Priority(7)));
    request.extensions_mut().insert(CallBudget(Duration::from_millis(5)));
    let deadline = clock() + Duration::from_millis(5);
    let answer = service.call(request).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
    let reply = Reply {
        id: CallId(0),
        outcome: Outcome::Served,
        grant: Some(Grant { window: 4, level: 1, lease: Duration::ZERO }),
        response_time: Duration::from_micros(900),
        server_time: Duration::from_micros(600),
    };
    let call = Call { id: CallId(0), priority: Priority(7), deadline: Some(deadline) };
    assert_eq!(script.told(), [Told::Call(call), Told::Reply(reply)]);
}

#[tokio::test]
async fn a_call_without_credit_fails_at_once_and_nothing_is_sent() {
    let script = Script::default().step(Step::Fail(ShedReason::NoCredit)).step(Step::Fail(ShedReason::NoCredit));
    let handler = at_once();
    let layer = layer(&script);
    let mut service = layer.layer(handler.clone());
    let answer = service.call(request("/")).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()[SHED_AT]), (503, &"client".parse().unwrap()));
    let answer = service.call(grpc_request()).await.unwrap();
    let headers = answer.headers();
    assert_eq!((&headers["grpc-status"], &headers[SHED]), (&"8".parse().unwrap(), &"no_credit".parse().unwrap()));
    let snapshot = layer.snapshot();
    assert_eq!((handler.ran(), snapshot.sent, snapshot.shed_here[0].calls), (0, 0, 2));
    assert_eq!(script.told().len(), 2, "no cancellation of what has failed");
}

#[tokio::test]
async fn a_waiting_call_goes_when_the_machine_lets_it() {
    let script = Script::default().step(Step::Wait).step(Step::Wait);
    let layer = layer(&script);
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    let mut first = task(service.call(request("/")));
    let mut second = task(service.call(request("/")));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    assert_eq!(layer.snapshot().waiting, 2);
    script.output(ClientOutput::Send(CallId(1), Ask::default()));
    script.output(ClientOutput::Fail(CallId(0), ShedReason::Expired));
    // Any event carries the outputs out.
    layer.lost();
    assert!(first.woken() && second.woken());
    let Poll::Ready(Ok(failed)) = first.poll() else { panic!("it was told") };
    assert_eq!(failed.headers()[SHED], "expired");
    assert!(second.poll().is_ready());
    assert_eq!((handler.ran(), layer.snapshot().waiting), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_runs_the_machines_timer() {
    let script = Script::default().step(Step::Wait);
    let due = clock() + Duration::from_millis(3);
    script.0.lock().unwrap().later = Some((due, ClientOutput::Fail(CallId(0), ShedReason::Expired)));
    let mut service = layer(&script).layer(at_once());
    let call = service.call(request("/"));
    let passing = async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        pass_us(3_000);
    };
    let (answer, ()) = tokio::join!(call, passing);
    assert_eq!(answer.unwrap().headers()[SHED], "expired");
}

#[test]
fn a_dropped_call_is_cancelled_whether_it_waits_or_was_sent() {
    let script = Script::default().step(Step::Wait);
    let layer = layer(&script);
    let mut service = layer.layer(never());
    drop(service.call(request("/")));
    let mut sent = Box::pin(service.call(request("/")));
    assert!(poll(sent.as_mut()).is_pending());
    drop(sent);
    let cancels: Vec<Told> = script.told().into_iter().filter(|told| matches!(told, Told::Cancel(_))).collect();
    assert_eq!(cancels, [Told::Cancel(CallId(0)), Told::Cancel(CallId(1))]);
    assert_eq!((layer.snapshot().waiting, layer.snapshot().cancelled), (0, 2));
}

#[tokio::test]
async fn a_broken_connection_cancels_the_call() {
    let script = Script::default();
    let mut service = layer(&script).layer(Handler::new(|_| ready(Answered::Err(Broken))));
    assert_eq!(service.call(request("/")).await.err(), Some(Broken));
    assert!(script.told().contains(&Told::Cancel(CallId(0))));
}

#[tokio::test]
async fn a_refusal_of_the_server_and_a_server_without_the_layer_are_told_apart() {
    let script = Script::default();
    let layer = layer(&script);
    let mut service = layer.layer(Handler::new(|request: Request<Full<Bytes>>| {
        let builder = Response::builder();
        let builder = if request.uri() == "/shed" { builder.header(SHED, "delay") } else { builder };
        ready(Ok(builder.body(Full::<Bytes>::default()).unwrap()))
    }));
    service.call(request("/shed")).await.unwrap();
    service.call(request("/")).await.unwrap();
    let replies: Vec<_> = script
        .told()
        .into_iter()
        .filter_map(|told| if let Told::Reply(reply) = told { Some((reply.outcome, reply.grant)) } else { None })
        .collect();
    assert_eq!(replies, [(Outcome::Shed, None), (Outcome::Served, None)]);
    assert_eq!(layer.snapshot().shed_there[0].reason, ShedReason::Delay);
}

#[tokio::test]
async fn a_grant_in_the_trailers_reaches_the_machine() {
    let script = Script::default();
    let server = super::super::ServerLayer::new(
        super::super::fixture::Recorder { grant: Grant { window: 5, ..Grant::default() }, ..Default::default() },
        super::super::ServerConfig { until: super::super::Until::Body, ..Default::default() },
    );
    let handler = Handler::new(|_| ready(Ok(Response::new(WithTrailers::default()))));
    let mut service = layer(&script).layer(server.layer(handler));
    let answer = service.call(request("/")).await.unwrap();
    answer.into_body().collect().await.unwrap();
    assert_eq!(script.told().last(), Some(&Told::Grant(Grant { window: 5, ..Grant::default() })));
}

#[test]
fn health_checks_are_not_calls() {
    let script = Script::default();
    let mut service = layer(&script).layer(at_once());
    assert!(poll(pin!(service.call(request("/healthz")))).is_ready());
    assert_eq!(script.told(), []);
}

#[tokio::test]
async fn a_demand_is_told_by_a_call_that_waits_and_its_grant_reaches_the_machine() {
    let script = Script::default().step(Step::Wait);
    script.output(ClientOutput::Demand(Ask { demand: 1, exact: true, ..Ask::default() }));
    let told = Arc::new(Mutex::new(Vec::new()));
    let (targets, notes) = (Arc::clone(&told), script.clone());
    let handler = Handler::new(move |request: Request<Full<Bytes>>| {
        targets.lock().unwrap().push((request.uri().to_string(), request.headers()[ASK].clone()));
        // What the machine will want once it has the grant.
        notes.output(ClientOutput::Send(CallId(0), Ask::default()));
        ready(Ok(Response::builder().header(GRANT, "w=1").body(Full::<Bytes>::default()).unwrap()))
    });
    let mut service = layer(&script).layer(handler.clone());
    let answer = service.call(request("http://server:80/some/call")).await.unwrap();
    assert!(!answer.headers().contains_key(SHED));
    let told = told.lock().unwrap();
    assert_eq!(told[0], (format!("http://server:80{}", super::super::headers::DEMAND_PATH), "d=1,x".parse().unwrap()));
    assert_eq!((told.len(), handler.ran()), (2, 2), "the demand, then the call");
    assert!(script.told().contains(&Told::Grant(Grant { window: 1, ..Grant::default() })));
}

#[test]
fn a_demand_that_was_not_told_is_taken_over_by_another_call_that_waits() {
    let script = Script::default().step(Step::Wait).step(Step::Wait);
    let handler = never();
    let mut service = layer(&script).layer(handler.clone());
    let (mut first, mut second) = (task(service.call(request("/"))), task(service.call(request("/"))));
    script.output(ClientOutput::Demand(Ask::default()));
    assert!(first.poll().is_pending() && first.poll().is_pending());
    assert_eq!(handler.ran(), 1, "the first tells it");
    assert!(second.poll().is_pending());
    assert_eq!(handler.ran(), 1, "and nobody else");
    drop(first);
    assert!(second.woken() && second.poll().is_pending());
    assert_eq!(handler.ran(), 2);
}

/// A future with a waker that counts.
struct Task<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn task<F: Future>(future: F) -> Task<F> {
    Task { future: Box::pin(future), wakes: Arc::default() }
}

impl<F: Future> Task<F> {
    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Arc::clone(&self.wakes).into();
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn woken(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > 0
    }
}
