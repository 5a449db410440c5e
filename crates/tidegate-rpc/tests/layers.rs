//! The layers over real connections: gRPC by tonic, HTTP/1 by axum.

#[path = "../examples/tonic_work/echo.rs"]
mod echo;
mod folder;
#[path = "../examples/tonic_work/work.rs"]
mod work;

use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use echo::{DO, Raw, Work};
use folder::Folder;
use http::uri::PathAndQuery;
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_core::{Instant, Rng};
use tidegate_rpc::io::layer::{
    CallPriority, ClientConfig, ClientLayer, ConnectionInfo, Replicas, ServerConfig, ServerLayer, stamped,
};
use tidegate_rpc::machine::credits::{Config, CreditClient, CreditServer};
use tidegate_rpc::machine::{
    Ask, Done, Full, Grant, Priority, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict,
};
use tidegate_runtime::clock;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceExt as _};

/// A server machine that sheds whatever is [`Priority::BATCH`] and tells how calls end.
struct NoBatch {
    ends: UnboundedSender<Done>,
    sessions: u32,
}

impl NoBatch {
    fn new() -> (Self, UnboundedReceiver<Done>) {
        let (ends, ended) = unbounded_channel();
        (Self { ends, sessions: 0 }, ended)
    }
}

impl Server for NoBatch {
    fn open(&mut self, _: Tenant, _: Instant) -> Result<SessionId, Full> {
        self.sessions += 1;
        Ok(SessionId(self.sessions))
    }

    fn close(&mut self, _: SessionId, _: Instant) {}

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, _: Instant) -> Verdict {
        let priority = ask.priority;
        let ticket = Ticket::new(session, ask, arrived);
        if priority == Priority::BATCH { Verdict::Shed(ticket, ShedReason::Priority) } else { Verdict::Admit(ticket) }
    }

    fn on_done(&mut self, _: Ticket, done: Done, _: Instant) -> Grant {
        // Nobody listens in the tests that do not care.
        let _ = self.ends.send(done);
        Grant { window: 1, ..Grant::default() }
    }
}

/// A server machine that sheds the first call.
#[derive(Default)]
struct NotAtOnce {
    sessions: u32,
    heard: bool,
}

impl Server for NotAtOnce {
    fn open(&mut self, _: Tenant, _: Instant) -> Result<SessionId, Full> {
        self.sessions += 1;
        Ok(SessionId(self.sessions))
    }

    fn close(&mut self, _: SessionId, _: Instant) {}

    fn on_request(&mut self, session: SessionId, ask: &Ask, _: Signal, arrived: Instant, _: Instant) -> Verdict {
        let ticket = Ticket::new(session, ask, arrived);
        let is_first = !std::mem::replace(&mut self.heard, true);
        if is_first { Verdict::Shed(ticket, ShedReason::Delay) } else { Verdict::Admit(ticket) }
    }

    fn on_done(&mut self, _: Ticket, _: Done, _: Instant) -> Grant {
        Grant { window: 1, ..Grant::default() }
    }
}

/// A gRPC service whose calls never end; tells when one began.
#[derive(Clone)]
struct Hangs(UnboundedSender<()>);

impl NamedService for Hangs {
    const NAME: &'static str = "tidegate.example.Hangs";
}

impl Service<Request<Body>> for Hangs {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.0.send(()).expect("the test listens");
        Box::pin(pending())
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// A tonic server behind `layer`, and a channel to it. The receiver hears of calls that hang.
async fn tonic_server<S>(layer: ServerLayer<S>) -> (Channel, UnboundedReceiver<()>)
where
    S: Server + Send + 'static,
{
    let (listener, address) = listener().await;
    let (begins, begun) = unbounded_channel();
    let router =
        tonic::transport::Server::builder().layer(layer).add_service(Work { rounds: 10, shape: work::Shape::Compute });
    tokio::spawn(router.add_service(Hangs(begins)).serve_with_incoming(stamped(listener)));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
    (endpoint.connect().await.expect("the server listens"), begun)
}

async fn call<T>(client: T, path: &'static str, priority: Priority) -> Result<Bytes, Status>
where
    T: tonic::client::GrpcService<Body>,
    T::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut request = tonic::Request::new(Bytes::from_static(b"hello"));
    request.extensions_mut().insert(CallPriority(priority));
    request.set_timeout(Duration::from_mins(1));
    let mut grpc = Grpc::new(client);
    grpc.ready().await.map_err(|_| Status::unknown("not ready"))?;
    grpc.unary(request, PathAndQuery::from_static(path), Raw).await.map(tonic::Response::into_inner)
}

fn credit_client() -> ClientLayer<CreditClient> {
    ClientLayer::new(CreditClient::new(Tenant(0), &mut Rng::new(1)), ClientConfig::default())
}

#[tokio::test]
async fn a_grpc_call_is_answered_and_a_shed_one_says_why() {
    let server = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let (channel, _begun) = tonic_server(server.clone()).await;
    let client_layer = credit_client();
    let client = client_layer.layer(channel);
    assert_eq!(call(client.clone(), DO, Priority::CRITICAL).await.unwrap(), "hello");
    let status = call(client, DO, Priority::BATCH).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let metadata = status.metadata();
    let word = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((word("tidegate-shed"), word("tidegate-shed-at")), (Some("priority"), Some("server")));
    assert!(metadata.contains_key("grpc-retry-pushback-ms"));
    let (server, client) = (server.snapshot(1), client_layer.snapshot());
    assert_eq!((server.served, server.in_time, server.shed[0].calls, server.sessions), (1, 1, 1, 2));
    assert_eq!((client.served, client.shed_there[0].calls), (1, 1));
    assert_eq!(client.grant.map(|grant| grant.window), Some(1));
}

#[tokio::test]
async fn a_refused_grpc_call_is_sent_again_with_its_message() {
    let mut config = ServerConfig::default();
    config.pushback = Duration::from_millis(1);
    let server = ServerLayer::new(NotAtOnce::default(), config);
    let (channel, _begun) = tonic_server(server.clone()).await;
    let client_layer = credit_client();
    let client = client_layer.retries().recorded().layer(client_layer.layer(channel));
    assert_eq!(call(client, DO, Priority::DEFAULT).await.unwrap(), "hello");
    assert_eq!(
        (server.snapshot(1).shed[0].calls, server.snapshot(1).served, client_layer.snapshot().retries),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn a_caller_without_the_layer_is_served() {
    let server = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let (channel, _begun) = tonic_server(server.clone()).await;
    assert_eq!(call(channel.clone(), DO, Priority::DEFAULT).await.unwrap(), "hello");
    let health = call(channel, "/grpc.health.v1.Health/Check", Priority::DEFAULT).await.unwrap_err();
    assert_eq!(health.code(), Code::Unimplemented, "exempt: the server's own answer");
    let snapshot = server.snapshot(1);
    assert_eq!((snapshot.served, snapshot.exempt), (1, 1));
}

#[tokio::test]
async fn a_call_whose_caller_goes_away_gives_its_credit_back() {
    let (machine, mut ended) = NoBatch::new();
    let server = ServerLayer::new(machine, ServerConfig::default());
    let (channel, mut begun) = tonic_server(server.clone()).await;
    let client_layer = credit_client();
    let client = client_layer.layer(channel.clone());
    let caller = tokio::spawn(call(client, "/tidegate.example.Hangs/Hang", Priority::DEFAULT));
    begun.recv().await.unwrap();
    assert_eq!(server.snapshot(1).in_flight, 1);
    caller.abort();
    assert_eq!(ended.recv().await, Some(Done::Cancelled));
    assert_eq!((server.snapshot(1).in_flight, client_layer.snapshot().cancelled), (0, 1));
    assert_eq!(call(channel, DO, Priority::DEFAULT).await.unwrap(), "hello");
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered_or_refused() {
    let machine = CreditServer::new(Config::default(), 1, clock::now());
    let server = ServerLayer::new(machine, ServerConfig::default());
    let (channel, _begun) = tonic_server(server.clone()).await;
    let client = credit_client().layer(channel);
    let calls: Vec<_> = (0..300).map(|_| tokio::spawn(call(client.clone(), DO, Priority::DEFAULT))).collect();
    let mut answered = 0;
    for each in calls {
        match each.await.unwrap() {
            Ok(_) => answered += 1,
            Err(status) => assert!(status.metadata().contains_key("tidegate-shed"), "{status:?}"),
        }
    }
    let snapshot = server.snapshot(1);
    assert!(answered > 0);
    assert_eq!((snapshot.served, snapshot.in_flight, snapshot.waiting), (answered, 0, 0));
}

#[tokio::test]
async fn http_calls_are_answered_and_shed_ones_get_a_503() {
    let server = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let router = Router::new().route("/", get(|| async { "hello" })).layer(server.clone());
    let (listener, address) = listener().await;
    tokio::spawn(axum::serve(listener, router).into_future());
    let http = HttpClient::builder(TokioExecutor::new()).build_http::<axum::body::Body>();
    let client = credit_client().layer(http);
    let request = |priority| {
        let mut request = Request::get(format!("http://{address}/")).body(axum::body::Body::empty()).unwrap();
        request.extensions_mut().insert(CallPriority(priority));
        request
    };
    let answer = client.clone().oneshot(request(Priority::DEFAULT)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.headers()["tidegate-grant"].to_str().unwrap().starts_with("w=1,l=0,s="));
    let answer = client.oneshot(request(Priority::BATCH)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["tidegate-shed"], "priority");
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!((server.snapshot(1).served, server.snapshot(1).sessions), (1, 2), "its address first, then its name");
}

/// Answers what it knows of its caller: tonic's handlers ask for it so.
async fn peer<B>(request: Request<B>) -> Result<http::Response<Body>, std::convert::Infallible> {
    let peer = tonic::Request::from_http(request).remote_addr();
    let mut answer = Status::ok("").into_http();
    answer.headers_mut().insert("peer", format!("{peer:?}").parse().expect("an address is a header's value"));
    Ok(answer)
}

#[tokio::test]
async fn a_handler_of_tonic_finds_the_address_of_its_caller() {
    let (listener, address) = listener().await;
    let layer = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let router = tonic::transport::Server::builder().layer(layer.clone());
    let connections = stamped(listener);
    tokio::spawn(router.serve_with_incoming(tower::service_fn(peer), connections));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
    let channel = endpoint.connect().await.expect("the server listens");
    let request = Request::post(format!("http://{address}{DO}")).body(Body::empty()).unwrap();
    let answer = channel.oneshot(request).await.unwrap();
    assert!(answer.headers()["peer"].to_str().unwrap().starts_with("Some(127.0.0.1:"), "{answer:?}");
    assert_eq!((layer.snapshot(1).served, layer.snapshot(1).sessions), (1, 1));
}

#[tokio::test]
async fn a_handler_of_axum_finds_the_address_of_its_caller_either_way() {
    let layer = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let handler = |plain: ConnectInfo<SocketAddr>, ConnectInfo(info): ConnectInfo<ConnectionInfo>| async move {
        assert_eq!(info.peer(), Some(plain.0));
        assert!(info.last_read().is_some());
        "hello"
    };
    let router = Router::new().route("/", get(handler)).layer(layer.clone());
    let (listener, address) = listener().await;
    let app = router.into_make_service_with_connect_info::<ConnectionInfo>();
    tokio::spawn(axum::serve(stamped(listener), app).into_future());
    let client = HttpClient::builder(TokioExecutor::new()).build_http::<axum::body::Body>();
    let answer = client.get(format!("http://{address}/").parse().unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

/// A channel over the Unix socket at `path`.
async fn unix_channel(path: std::path::PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://unix");
    endpoint.connect_with_connector(connector).await.expect("the server listens")
}

#[tokio::test]
async fn connections_of_a_unix_socket_are_told_apart() {
    let folder = Folder::new("layers-unix");
    let path = folder.path().join("work.sock");
    let layer = ServerLayer::new(NoBatch::new().0, ServerConfig::default());
    let mut server = tonic::transport::Server::builder().layer(layer.clone());
    let router = server.add_service(Work { rounds: 10, shape: work::Shape::Compute });
    tokio::spawn(router.serve_with_incoming(stamped(UnixListener::bind(&path).unwrap())));
    for sessions in 1..=3 {
        let channel = unix_channel(path.clone()).await;
        for _ in 0..2 {
            assert_eq!(call(channel.clone(), DO, Priority::DEFAULT).await.unwrap(), "hello");
        }
        assert_eq!(layer.snapshot(1).sessions, sessions);
    }
}

/// An axum server with the layer, whose handler says its number when it begins and ends when it may. Its address.
async fn held_server(number: usize, begins: UnboundedSender<usize>, may_end: Arc<Semaphore>) -> SocketAddr {
    let layer = ServerLayer::new(CreditServer::new(Config::default(), 1, clock::now()), ServerConfig::default());
    let handler = get(move || {
        let (begins, may_end) = (begins.clone(), Arc::clone(&may_end));
        async move {
            begins.send(number).expect("the test listens");
            drop(may_end.acquire().await.expect("it is never closed"));
        }
    });
    let (listener, address) = listener().await;
    tokio::spawn(axum::serve(listener, Router::new().route("/", handler).layer(layer)).into_future());
    address
}

#[tokio::test]
async fn of_three_servers_one_that_is_slow_is_left_alone() {
    let (begins, mut begun) = unbounded_channel();
    let (slow, quick) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(1_000)));
    let mut services = Vec::new();
    for (number, may_end) in [&slow, &quick, &quick].into_iter().enumerate() {
        let address = held_server(number, begins.clone(), Arc::clone(may_end)).await;
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        services.push(credit_client().layer(http.map_request(move |mut request: Request<axum::body::Body>| {
            *request.uri_mut() = format!("http://{address}/").parse().expect("a valid address");
            request
        })));
    }
    let client = Replicas::new(services);
    let (mut served, mut held) = ([0; 3], None);
    for _ in 0..60 {
        let call = tokio::spawn(client.clone().oneshot(Request::new(axum::body::Body::empty())));
        match begun.recv().await.expect("it reaches one of them") {
            0 => assert!(held.replace(call).is_none(), "one call is enough to know it"),
            number => {
                assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
                served[number] += 1;
            }
        }
    }
    assert!(served[1] >= 15 && served[2] >= 15 && served[1] + served[2] >= 59, "{served:?}");
    slow.add_permits(1);
    if let Some(call) = held {
        assert_eq!(call.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}
