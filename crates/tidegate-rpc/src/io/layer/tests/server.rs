use core::pin::pin;
use core::time::Duration;

use http_body_util::BodyExt as _;
use tower_layer::Layer as _;

use super::super::fixture::Recorder;
use super::super::headers::{self, GRANT, SHED, SHED_AT};
use super::super::{Arrived, Claims, Mode, RequestBody, ServerConfig, ServerLayer, Until};
use super::*;
use crate::machine::{Ask, Done, Grant, Priority, ShedReason, Tenant};

fn config() -> ServerConfig {
    let mut config = ServerConfig::default().clock(clock);
    config.yields = 0;
    config.threads = 1;
    config.instance = 5;
    config
}

#[test]
fn each_server_has_a_number_of_its_own() {
    let numbers = [ServerConfig::default().instance, ServerConfig::default().instance];
    assert!(numbers[0] != numbers[1] && numbers.iter().all(|number| (1..1 << 53).contains(number)), "{numbers:?}");
}

fn layer(machine: Recorder) -> ServerLayer<Recorder> {
    ServerLayer::new(machine, config())
}

fn shedding(reason: ShedReason) -> Recorder {
    Recorder { verdicts: [Some(reason)].into(), ..Recorder::default() }
}

/// How calls ended, as the machine was told.
fn told(layer: &ServerLayer<Recorder>) -> Vec<Done> {
    layer.with_machine(|machine, _| machine.done.clone())
}

#[tokio::test]
async fn an_answer_carries_the_grant_and_the_time_at_the_server() {
    let grant = Grant { window: 3, level: 9, lease: Duration::from_millis(20) };
    let layer = layer(Recorder { grant, ..Recorder::default() });
    let mut service = layer.layer(Handler::new(|_| async {
        pass_us(812);
        Ok(Response::new(Full::<Bytes>::from("done")))
    }));
    let answer = service.call(request("/")).await.unwrap();
    assert_eq!(answer.headers()[GRANT], "w=3,l=9,t=20000,s=812,i=5");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
    assert_eq!(told(&layer), [Done::Served]);
    let snapshot = layer.snapshot(1);
    assert_eq!((snapshot.served, snapshot.in_flight, snapshot.credits), (1, 0, 3));
}

#[tokio::test]
async fn a_shed_call_says_so_and_its_handler_never_runs() {
    let layer = layer(shedding(ShedReason::Delay));
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    let answer = service.call(grpc_request()).await.unwrap();
    let headers = answer.headers();
    assert_eq!(
        (&headers[SHED], &headers[SHED_AT], &headers["grpc-status"]),
        (&"delay".parse().unwrap(), &"server".parse().unwrap(), &"8".parse().unwrap())
    );
    let pushback: u64 = headers["grpc-retry-pushback-ms"].to_str().unwrap().parse().unwrap();
    assert!((500..=1_500).contains(&pushback), "{pushback}");
    assert!(headers.contains_key(GRANT), "a refusal carries a grant too");
    assert!(answer.body().is_end_stream());
    assert_eq!((handler.ran(), told(&layer)), (0, vec![Done::Shed]));
    assert_eq!(layer.snapshot(0).shed[0].calls, 1);
}

#[tokio::test]
async fn a_call_shed_when_it_would_start_hands_its_turn_on() {
    let layer = layer(Recorder { starts: [Some(ShedReason::Deadline)].into(), ..Recorder::default() });
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    let (first, second) = (service.call(request("/")), service.call(request("/")));
    assert_eq!(first.await.unwrap().status(), 503);
    assert_eq!(handler.ran(), 0);
    assert_eq!(second.await.unwrap().status(), 200);
    assert_eq!(told(&layer), [Done::Shed, Done::Served]);
}

/// A body whose only frame comes when the test says so.
struct Sent(Arc<AtomicU64>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.0.load(Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(None),
        }
    }
}

#[test]
fn a_wait_for_the_client_is_told_apart_from_one_for_anything_else() {
    let layer = layer(Recorder::default());
    let ready = Arc::<AtomicU64>::default();
    let handler = tower::service_fn({
        let ready = Arc::clone(&ready);
        move |request: Request<RequestBody<Sent>>| {
            let ready = Arc::clone(&ready);
            async move {
                let mut body = request.into_body();
                assert!(body.frame().await.is_none());
                std::future::poll_fn(
                    |_| if ready.load(Ordering::Relaxed) < 2 { Poll::Pending } else { Poll::Ready(()) },
                )
                .await;
                Ok::<_, Broken>(Response::new(Full::<Bytes>::default()))
            }
        }
    });
    let mut service = layer.layer(handler);
    let mut call = pin!(service.call(request("/").map(|_| Sent(Arc::clone(&ready)))));
    let waited = |layer: &ServerLayer<Recorder>| layer.with_machine(|machine, _| machine.pauses.clone());
    assert!(poll(call.as_mut()).is_pending());
    pass_us(70);
    ready.store(1, Ordering::Relaxed);
    assert!(poll(call.as_mut()).is_pending(), "it waits for something else now");
    assert_eq!(waited(&layer), [70_000]);
    pass_us(30);
    ready.store(2, Ordering::Relaxed);
    assert!(poll(call.as_mut()).is_ready());
    assert_eq!((waited(&layer), told(&layer)), (vec![70_000], vec![Done::Served]));
    assert_eq!(layer.with_machine(|machine, _| machine.waits.clone()), [30_000]);
}

#[test]
fn calls_start_one_by_one_and_the_wait_of_the_oldest_is_the_signal() {
    let layer = layer(Recorder::default());
    let handler = never();
    let mut service = layer.layer(handler.clone());
    let mut first = Box::pin(service.call(request("/")));
    pass_us(5);
    let mut second = Box::pin(service.call(request("/")));
    pass_us(10);
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(handler.ran(), 0, "the first has the turn");
    drop(service.call(request("/")));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!(handler.ran(), 2, "a handler that waits for something else has given its turn away");
    drop(service.call(request("/")));
    let delays = layer.with_machine(|machine, _| {
        machine.signals.iter().map(|signal| signal.queueing_delay.as_micros()).collect::<Vec<_>>()
    });
    assert_eq!(delays, [0, 5, 15, 0], "of those before it");
}

#[test]
fn a_call_that_finds_no_room_starts_when_another_has_ended() {
    let layer = layer(Recorder::default());
    let handler = never();
    let mut service = layer.layer(handler.clone());
    let mut first = Box::pin(service.call(request("/")));
    assert!(poll(first.as_mut()).is_pending());
    layer.with_machine(|machine, _| machine.is_full = true);
    let mut second = Box::pin(service.call(request("/")));
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!((handler.ran(), layer.snapshot(0).waiting), (1, 1));
    layer.with_machine(|machine, _| machine.is_full = false);
    drop(first);
    assert!(poll(second.as_mut()).is_pending());
    assert_eq!((handler.ran(), layer.snapshot(0).waiting), (2, 0));
}

#[test]
fn a_call_that_a_handler_makes_to_its_own_service_is_part_of_it() {
    let layer = layer(Recorder::default());
    let inner = layer.layer(at_once());
    let mut outer = layer.layer(tower::service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let mut inner = inner.clone();
        async move {
            inner.call(request.map(RequestBody::into_inner)).await.map(|_| Response::new(Full::<Bytes>::default()))
        }
    }));
    assert!(poll(pin!(outer.call(request("/")))).is_ready());
    assert_eq!((layer.snapshot(0).served, layer.snapshot(0).exempt), (1, 1));
}

#[test]
fn a_turn_that_nobody_comes_for_is_taken_back() {
    let layer = layer(Recorder::default());
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    let held = service.call(request("/"));
    pass_us(60_000);
    assert!(poll(pin!(service.call(request("/")))).is_ready(), "the first has the turn and is not polled");
    drop(held);
    assert!(poll(pin!(service.call(request("/")))).is_ready());
    assert_eq!(handler.ran(), 2);
}

#[test]
fn bytes_read_earlier_count_from_then() {
    let layer = layer(Recorder::default());
    let mut service = layer.layer(at_once());
    let mut early = request("/");
    early.extensions_mut().insert(Arrived(clock()));
    pass_us(40);
    let in_line = service.call(early);
    drop(service.call(request("/")));
    drop(in_line);
    let delays = layer.with_machine(|machine, _| {
        machine.signals.iter().map(|signal| signal.queueing_delay.as_micros()).collect::<Vec<_>>()
    });
    assert_eq!(delays, [0, 40], "nobody was in line before the first");
}

#[test]
fn a_dropped_call_is_cancelled_once_in_line_and_once_while_it_runs() {
    let layer = layer(Recorder::default());
    let mut service = layer.layer(never());
    drop(service.call(request("/")));
    assert_eq!(told(&layer), [Done::Cancelled]);
    let mut running = Box::pin(service.call(request("/")));
    assert!(poll(running.as_mut()).is_pending());
    drop(running);
    assert_eq!(told(&layer), [Done::Cancelled, Done::Cancelled]);
    let snapshot = layer.snapshot(0);
    assert_eq!((snapshot.cancelled, snapshot.in_flight, snapshot.waiting), (2, 0, 0));
}

#[test]
fn a_handler_that_panics_gives_its_turn_back() {
    let layer = layer(Recorder::default());
    let handler = Handler::new(|request: Request<Full<Bytes>>| {
        assert!(request.uri().path() != "/panic", "as the test wants it");
        ready(Ok(Response::new(Full::<Bytes>::from("done"))))
    });
    let mut service = layer.layer(handler);
    let mut panics = Box::pin(service.call(request("/panic")));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(panics.as_mut()).is_ready()));
    assert!(caught.is_err());
    drop(panics);
    assert!(poll(pin!(service.call(request("/")))).is_ready());
    assert_eq!(told(&layer), [Done::Cancelled, Done::Served]);
}

#[tokio::test]
async fn a_dry_run_admits_and_counts_what_it_would_have_shed() {
    let mut config = config();
    config.mode = Mode::DryRun;
    let machine = Recorder { starts: [Some(ShedReason::Deadline)].into(), ..shedding(ShedReason::Delay) };
    let layer = ServerLayer::new(machine, config);
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    for _ in 0..3 {
        let answer = service.call(request("/")).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().get(GRANT)), (200, None));
    }
    let snapshot = layer.snapshot(0);
    assert_eq!((handler.ran(), snapshot.served, snapshot.in_flight), (3, 3, 0));
    assert!(snapshot.shed.is_empty());
    let would: Vec<_> = snapshot.would_have_shed.iter().map(|count| (count.reason, count.calls)).collect();
    assert_eq!(would, [(ShedReason::Delay, 1), (ShedReason::Deadline, 1)]);
    assert_eq!(told(&layer)[..2], [Done::Shed, Done::Shed]);
    layer.with_machine(|machine, _| assert!(machine.asks.iter().all(|ask| !ask.aware), "nobody is told anything"));
}

#[tokio::test]
async fn a_dry_run_ends_and_begins_while_calls_run() {
    let mut config = config();
    config.mode = Mode::DryRun;
    let layer = ServerLayer::new(Recorder { is_full: true, ..Recorder::default() }, config);
    let mut service = layer.layer(at_once());
    let before = service.call(request("/"));
    layer.set_mode(Mode::Enforce);
    assert_eq!(told(&layer), [Done::Cancelled], "what waits on paper ends");
    layer.with_machine(|machine, _| machine.is_full = false);
    assert_eq!(before.await.unwrap().headers().get(GRANT), None, "a call of the dry run carries none");
    let told_of = service.call(request("/"));
    layer.set_mode(Mode::DryRun);
    assert_eq!(told_of.await.unwrap().headers().get(GRANT), None, "in a dry run nobody shall obey");
    layer.with_machine(|machine, _| machine.verdicts = [Some(ShedReason::Delay)].into());
    layer.set_mode(Mode::Enforce);
    assert_eq!(service.call(request("/")).await.unwrap().status(), 503);
    assert_eq!((layer.snapshot(0).mode, layer.snapshot(0).in_flight), (Mode::Enforce, 0));
    assert_eq!(told(&layer), [Done::Cancelled, Done::Served, Done::Shed]);
}

#[tokio::test]
async fn a_line_that_is_full_sheds_without_asking_the_machine() {
    let mut config = config();
    config.waiting = 1;
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(at_once());
    let waits = service.call(request("/"));
    let answer = service.call(request("/")).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()[SHED]), (503, &"server_full".parse().unwrap()));
    assert_eq!(waits.await.unwrap().status(), 200);
    assert_eq!(told(&layer), [Done::Served]);
}

#[tokio::test]
async fn health_checks_pass_whatever_the_machine_says() {
    let layer = layer(Recorder { verdicts: [Some(ShedReason::Delay); 5].into(), ..Recorder::default() });
    let mut service = layer.layer(at_once());
    for path in ["/healthz", "/readyz", "/livez", "/grpc.health.v1.Health/Check"] {
        assert_eq!(service.call(request(path)).await.unwrap().status(), 200, "{path}");
    }
    assert_eq!(service.call(request("/healthz/more")).await.unwrap().status(), 503);
    assert_eq!((layer.snapshot(0).exempt, told(&layer).len()), (4, 1));
}

#[tokio::test]
async fn callers_without_the_layer_are_told_apart_by_their_address() {
    let layer = layer(Recorder::default());
    let mut service = layer.layer(at_once());
    for address in ["10.0.0.1:5", "10.0.0.2:5", "10.0.0.1:6"] {
        let mut request = grpc_request();
        request.extensions_mut().insert(address.parse::<core::net::SocketAddr>().unwrap());
        request.headers_mut().insert("grpc-timeout", "20m".parse().unwrap());
        service.call(request).await.unwrap();
    }
    layer.with_machine(|machine, _| {
        assert_eq!(machine.sessions[0], machine.sessions[2]);
        assert_ne!(machine.sessions[0], machine.sessions[1]);
        assert!(machine.asks.iter().all(|ask| !ask.aware && ask.budget == Some(Duration::from_millis(20))));
    });
}

#[tokio::test]
async fn a_client_is_known_by_its_number_and_its_tenant_by_the_servers_rule() {
    let config = config().tenant(|seen| Tenant(if seen.headers.contains_key("authorization") { 7 } else { 8 }));
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(at_once());
    for address in ["10.0.0.1:5", "10.0.0.2:5"] {
        let mut request = request("/");
        request.extensions_mut().insert(address.parse::<core::net::SocketAddr>().unwrap());
        let headers = request.headers_mut();
        headers.insert(headers::CLIENT, headers::write_client(99));
        headers.insert(headers::ASK, "d=4,p=0,t=1000".parse().unwrap());
        headers.insert("authorization", "somebody".parse().unwrap());
        service.call(request).await.unwrap();
    }
    layer.with_machine(|machine, _| {
        assert_eq!(machine.opened, 2, "its first address until it was served, and itself wherever it calls from");
        let told = |ask: Ask| (ask.demand, ask.priority.0, ask.tenant, ask.aware);
        assert_eq!(told(machine.asks[0]), (0, 128, Tenant(7), false), "others may have that address");
        assert_eq!(told(machine.asks[1]), (4, 128, Tenant(7), true), "it matters no more than others");
    });
    assert_eq!(layer.snapshot(1).demand, 4);
}

/// The asks of calls whose headers claim this, and the sessions that were opened for them.
async fn judged(config: ServerConfig, claims: &[String]) -> (Vec<Ask>, u32) {
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(at_once());
    for claim in claims {
        let mut request = request("/reports");
        request.headers_mut().insert(headers::ASK, claim.parse().unwrap());
        service.call(request).await.unwrap();
    }
    layer.with_machine(|machine, _| (machine.asks.clone(), machine.opened))
}

#[tokio::test]
async fn invented_tenants_and_priorities_change_nothing_unless_the_server_trusts() {
    let invented: Vec<_> = (1..=255).map(|tenant| format!("d=0,p=0,t={tenant}")).collect();
    let (asks, sessions) = judged(config(), &invented).await;
    assert!(asks.iter().all(|ask| (ask.tenant, ask.priority) == (Tenant(0), Priority::DEFAULT)));
    assert_eq!(sessions, 1);
    let mut trusting = config();
    trusting.claims = Claims::Trusted;
    let (asks, sessions) = judged(trusting, &invented).await;
    assert!(asks.iter().zip(1..).all(|(ask, tenant)| (ask.tenant, ask.priority.0) == (Tenant(tenant), 0)));
    assert_eq!(sessions, 255, "a session for each tenant");
}

#[tokio::test]
async fn a_caller_may_say_that_its_call_matters_less() {
    let (asks, _) = judged(config(), &["p=255".to_owned()]).await;
    assert_eq!(asks[0].priority, Priority::BATCH);
}

#[tokio::test]
async fn the_server_sets_priorities_by_method_and_believes_whom_it_knows() {
    let config = config()
        .priority(|seen| if seen.uri.path() == "/reports" { Some(Priority(200)) } else { seen.claimed_priority() })
        .tenant(|seen| seen.peer().and(seen.claimed_tenant()).unwrap_or(Tenant(1)));
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(at_once());
    for (path, claim, peer) in
        [("/reports", Some("p=0,t=9"), None), ("/", Some("p=0,t=9"), Some("10.0.0.1:5")), ("/reports", None, None)]
    {
        let mut request = request(path);
        request.headers_mut().extend(claim.map(|claim| (headers::ASK, claim.parse().unwrap())));
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer.parse::<core::net::SocketAddr>().unwrap());
        }
        service.call(request).await.unwrap();
    }
    let told = |ask: &Ask| (ask.priority.0, ask.tenant.0);
    let asks: Vec<_> = layer.with_machine(|machine, _| machine.asks.iter().map(told).collect());
    assert_eq!(asks, [(200, 1), (0, 9), (200, 1)]);
}

#[tokio::test]
async fn a_call_may_run_until_its_body_ends_and_the_trailers_carry_the_grant() {
    let mut config = config();
    config.until = Until::Body;
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(Handler::new(|_| ready(Ok(Response::new(WithTrailers::default())))));
    let answer = service.call(request("/")).await.unwrap();
    assert!(!answer.headers().contains_key(GRANT));
    assert_eq!(layer.snapshot(0).in_flight, 1);
    pass_us(70);
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()[GRANT], "w=0,l=0,s=70,i=5");
    assert_eq!((layer.snapshot(0).in_flight, told(&layer)), (0, vec![Done::Served]));
    let answer = service.call(request("/")).await.unwrap();
    drop(answer);
    assert_eq!(told(&layer), [Done::Served, Done::Cancelled], "its reader went away");
}

#[tokio::test]
async fn a_stream_counts_until_its_head_by_default() {
    let layer = layer(Recorder::default());
    let mut service = layer.layer(Handler::new(|_| ready(Ok(Response::new(WithTrailers::default())))));
    let answer = service.call(request("/")).await.unwrap();
    assert!(answer.headers().contains_key(GRANT));
    assert_eq!((layer.snapshot(0).in_flight, told(&layer)), (0, vec![Done::Served]));
}

#[test]
fn a_call_whose_turn_came_lets_the_run_queue_go_first() {
    let mut config = config();
    config.yields = 2;
    let layer = ServerLayer::new(Recorder::default(), config);
    let handler = at_once();
    let mut service = layer.layer(handler.clone());
    let mut call = Box::pin(service.call(request("/")));
    assert!(poll(call.as_mut()).is_pending() && poll(call.as_mut()).is_pending());
    assert_eq!(handler.ran(), 0);
    assert!(poll(call.as_mut()).is_ready());
    assert!(poll(pin!(service.call(request("/")))).is_ready(), "the run queue has just gone first");
    pass_us(200);
    assert!(poll(pin!(service.call(request("/")))).is_pending());
}

#[test]
fn a_call_whose_bytes_were_just_read_starts_at_once() {
    let mut config = config();
    config.yields = 2;
    let layer = ServerLayer::new(Recorder::default(), config);
    let mut service = layer.layer(at_once());
    pass_us(300);
    let mut call = |read| {
        let mut request = request("/");
        request.extensions_mut().insert(Arrived(read));
        poll(pin!(service.call(request))).is_ready()
    };
    let read = clock();
    assert!(call(read));
    pass_us(200);
    assert!(!call(read), "the sockets were not looked at since");
}

/// A layer on one thread, after a while without handlers, and the second of its calls is refused.
fn on_one_thread() -> ServerLayer<Recorder> {
    let mut config = config();
    (config.yields, config.threads) = (2, 1);
    pass_us(300);
    ServerLayer::new(Recorder { verdicts: [None, Some(ShedReason::Share)].into(), ..Recorder::default() }, config)
}

#[test]
fn what_is_read_while_others_go_first_is_answered_before_a_handler_starts() {
    let layer = on_one_thread();
    let mut service = layer.layer(at_once());
    let mut call = Box::pin(service.call(request("/")));
    assert!(poll(call.as_mut()).is_pending());
    pass_us(1);
    assert!(poll(pin!(service.call(request("/")))).is_ready(), "it is refused");
    for pass in 1..=3 {
        assert!(poll(call.as_mut()).is_pending(), "pass {pass}");
    }
    assert!(poll(call.as_mut()).is_ready(), "in the second round nothing came");
}

#[test]
fn one_connection_that_was_read_while_calls_wait_says_nothing_of_the_others() {
    let layer = on_one_thread();
    let mut service = layer.layer(at_once());
    let mut call = Box::pin(service.call(request("/")));
    assert!(poll(call.as_mut()).is_pending());
    pass_us(1);
    let mut refused = request("/");
    refused.extensions_mut().insert(Arrived(clock()));
    assert!(poll(pin!(service.call(refused))).is_ready());
    drop(call);
    assert!(poll(pin!(service.call(request("/")))).is_pending(), "it lets the rest of what was read go first");
}

#[tokio::test]
async fn what_another_server_said_does_not_travel_on_with_a_handlers_answer() {
    let relayed = Handler::new(|_| {
        let answer = Response::builder().header("tidegate-shed", "delay").header("tidegate-shed-at", "server");
        let answer =
            answer.header("grpc-retry-pushback-ms", "5").header("tidegate-grant", "x=1").header("of-its-own", "1");
        ready(Ok(answer.body(Full::<Bytes>::default()).unwrap()))
    });
    let mut config = config();
    config.mode = Mode::DryRun;
    let answer = ServerLayer::new(Recorder::default(), config).layer(relayed).call(request("/")).await.unwrap();
    let names: Vec<&str> = answer.headers().keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["of-its-own"]);
}

#[tokio::test]
async fn a_method_has_an_estimate_of_its_own_once_there_is_such_a_method() {
    let there_is = Handler::new(|request: Request<Full<Bytes>>| {
        let unknown = request.uri().path() == "/some.Service/Unknown";
        let status = if unknown { "12" } else { "0" };
        ready(Ok(Response::builder().header("grpc-status", status).body(Full::<Bytes>::default()).unwrap()))
    });
    let layer = layer(Recorder::default());
    let mut service = layer.layer(there_is);
    for path in ["Unknown", "Method", "Unknown", "Method"] {
        let mut request = grpc_request();
        *request.uri_mut() = format!("/some.Service/{path}").parse().unwrap();
        service.call(request).await.unwrap();
    }
    let groups = layer.with_machine(|machine, _| machine.asks.iter().map(|ask| ask.group).collect::<Vec<_>>());
    assert_eq!(groups, [0, 0, 0, 1]);
}

#[test]
fn a_dry_run_holds_nobody_up() {
    let mut config = ServerConfig::default();
    (config.mode, config.threads) = (Mode::DryRun, 1);
    let mut service = ServerLayer::new(Recorder::default(), config).layer(at_once());
    let _held: Vec<_> = (0..3).map(|_| Box::pin(service.call(request("/")))).collect();
    assert!(poll(pin!(service.call(request("/")))).is_ready(), "whoever is polled runs");
}

fn demand(client: u64) -> Request<Full<Bytes>> {
    let mut request = request(headers::DEMAND_PATH);
    request.headers_mut().insert(headers::CLIENT, headers::write_client(client));
    request.headers_mut().insert(headers::ASK, "d=6,x".parse().unwrap());
    request
}

#[tokio::test]
async fn a_demand_without_a_call_hears_of_the_grant_that_is_meant_for_it() {
    let layer = layer(Recorder { grants_first: true, ..Recorder::default() });
    let mut service = layer.layer(at_once());
    let (mut one, mut two) = (Box::pin(service.call(demand(1))), Box::pin(service.call(demand(2))));
    assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
    let grant = Grant { window: 2, ..Grant::default() };
    layer.with_machine(|machine, _| {
        let (session, ask) = machine.demands[1];
        assert_eq!((ask.demand, ask.exact), (6, true));
        machine.outputs.push_back((session, grant));
    });
    assert!(poll(one.as_mut()).is_pending());
    let Poll::Ready(Ok(answer)) = poll(two.as_mut()) else { panic!("its grant is there") };
    assert_eq!((answer.status().as_u16(), &answer.headers()[GRANT]), (204, &"w=2,l=0,s=0,i=5".parse().unwrap()));
    assert_eq!(layer.snapshot(0).in_flight, 0, "it is no call");
}

#[tokio::test(start_paused = true)]
async fn a_demand_that_nothing_comes_of_is_answered_after_its_patience() {
    let none = layer(Recorder::default()).layer(at_once()).call(demand(1)).await.unwrap();
    assert_eq!(none.status().as_u16(), 204, "this machine grants by answers alone");
    let layer = layer(Recorder { grants_first: true, ..Recorder::default() });
    let mut call = Box::pin(layer.layer(at_once()).call(demand(1)));
    assert!(poll(call.as_mut()).is_pending());
    pass_us(u64::try_from(headers::DEMAND_PATIENCE.as_micros()).unwrap());
    let answer = call.await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get(GRANT)), (204, None));
}
