//! The API, driven in process against shards that only answer.

mod shapes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tidegate_core::Instant;
use tokio::sync::oneshot;

use super::*;
use crate::config::{Host, Options};
use crate::io::handle::Mailbox;
use crate::machine::admin::PublishRefused;

type Respond = dyn Fn(&AdminRequest) -> Option<AdminReply> + Send + Sync;

/// A shard that remembers what it was asked and answers as it is told.
pub(crate) struct FakeShard {
    asked: Mutex<Vec<AdminRequest>>,
    respond: Box<Respond>,
}

impl FakeShard {
    pub(crate) fn new(respond: impl Fn(&AdminRequest) -> Option<AdminReply> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { asked: Mutex::default(), respond: Box::new(respond) })
    }

    /// Says yes to everything and has nothing.
    pub(crate) fn agreeable() -> Arc<Self> {
        Self::new(|request| {
            Some(match request {
                AdminRequest::Snapshot(_) => AdminReply::Snapshot(Box::default()),
                _ => AdminReply::Done,
            })
        })
    }

    /// What it was asked since the last call, as text.
    pub(crate) fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.iter().map(|request| format!("{request:?}")).collect()
    }

    pub(crate) fn handle(self: &Arc<Self>) -> BrokerHandle {
        let shard: Arc<dyn Mailbox> = self.clone();
        BrokerHandle::new(vec![shard])
    }
}

impl Mailbox for FakeShard {
    fn ask(&self, request: AdminRequest, answer: oneshot::Sender<AdminReply>) {
        if let Some(reply) = (self.respond)(&request) {
            answer.send(reply).ok();
        }
        self.asked.lock().unwrap().push(request);
    }
}

pub(crate) fn config(options: &str) -> Arc<Config> {
    let options: Options = toml::from_str(options).unwrap();
    let host = Host { name: "box".to_owned(), cpus: 2 };
    Arc::new(Config::from_options(options, &host).unwrap())
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> (Response<()>, String) {
    let response = TowerToHyperService::new(router.clone()).call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), String::from_utf8(body.to_vec()).unwrap())
}

fn state(shard: &Arc<FakeShard>, config: Arc<Config>) -> ApiState {
    let node = Node {
        hostname: "box".to_owned(),
        tcp: Listening::Port(4150),
        http: Listening::Unix,
        started: Instant::ZERO,
        start_time_s: 1_795_220_015,
    };
    let live = Live::new(&config);
    ApiState::new(shard.handle(), config, node, live)
}

fn api(shard: &Arc<FakeShard>, options: &str) -> Router {
    router(state(shard, config(options)))
}

/// Status and body of `METHOD /path`, with `body`.
async fn call(router: &Router, line: &str, body: impl Into<Body>) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    let (head, body) = send(router, request).await;
    (head.status().as_u16(), body)
}

/// What a shard is asked for a publish to `t`.
fn published(bodies_and_defer: &str) -> String {
    let by = "HttpPublisher { address: None, correlation: None }";
    format!(r#"Publish {{ topic: "t", bodies: {bodies_and_defer}, by: {by} }}"#)
}

#[tokio::test]
async fn a_publish_says_who_publishes() {
    let shard = FakeShard::agreeable();
    let api = api(&shard, "");
    let publish = async |path: &str, header: Option<&str>| {
        let mut request = Request::builder().method("POST").uri(path);
        if let Some(key) = header {
            request = request.header("Tidegate-Correlation", key);
        }
        let mut request = request.body(Body::from("x")).unwrap();
        request.extensions_mut().insert(serve::ClientAddress("10.0.0.7".parse().ok()));
        let (head, body) = send(&api, request).await;
        let by = shard.asked().first().map(|asked| asked.split_once("by: ").unwrap().1.to_owned());
        (head.status().as_u16(), body, by)
    };
    let by = |key: &str| Some(format!("HttpPublisher {{ address: Some(10.0.0.7), correlation: {key} }} }}"));
    for (path, header, key) in [
        ("/pub?topic=t", None, "None"),
        ("/pub?topic=t&correlation=", None, "None"),
        ("/pub?topic=t&correlation=a%20b", None, r#"Some(Label("a b"))"#),
        ("/mpub?topic=t&correlation=a", Some("h"), r#"Some(Label("h"))"#),
    ] {
        assert_eq!(publish(path, header).await, (200, "OK".to_owned(), by(key)), "{path}");
    }
    for (path, header) in [("/pub?topic=t&correlation=%0A", None), ("/mpub?topic=t", Some("x".repeat(129)))] {
        let (status, body, asked) = publish(path, header.as_deref()).await;
        assert_eq!((status, body.contains("INVALID_CORRELATION"), asked), (400, true, None), "{path}");
    }
}

#[tokio::test]
async fn a_publish_reaches_the_shard_whole() {
    let shard = FakeShard::agreeable();
    let api = api(&shard, "");
    assert_eq!(call(&api, "POST /pub?topic=t&defer=1500", "abc").await, (200, "OK".to_owned()));
    assert_eq!(shard.asked(), [published("[[97, 98, 99]], defer: Some(1.5s)")]);
    assert_eq!(call(&api, "POST /mpub?topic=t", "a\n\nb\r\nc").await.0, 200);
    assert_eq!(shard.asked(), [published("[[97], [98, 13], [99]], defer: None")]);
    let binary = b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc".to_vec();
    for word in ["true", "1", "yes", ""] {
        assert_eq!(call(&api, &format!("POST /mpub?topic=t&binary={word}"), binary.clone()).await.0, 200, "{word}");
        assert_eq!(shard.asked(), [published("[[97], [98, 99]], defer: None")]);
    }
    assert_eq!(call(&api, "POST /mpub?topic=t&binary=0", "\n\n").await.0, 200);
    assert_eq!(shard.asked(), [r#"CreateTopic("t")"#]);
}

#[tokio::test]
async fn errors_have_nsqds_status_and_word() {
    let shard = FakeShard::agreeable();
    let api = api(&shard, "max_msg_size = 4\nmax_body_size = 24\nmax_req_timeout = '1s'");
    for (line, body, status, word) in [
        ("POST /pub?topic=t", "", 400, "MSG_EMPTY"),
        ("POST /pub?topic=t", "12345", 413, "MSG_TOO_BIG"),
        ("POST /pub", "x", 400, "MISSING_ARG_TOPIC"),
        ("POST /pub?topic=", "x", 400, "INVALID_TOPIC"),
        ("POST /pub?topic=a%20b", "x", 400, "INVALID_TOPIC"),
        ("POST /pub?topic=%zz", "x", 400, "INVALID_REQUEST"),
        ("POST /pub?topic=a;b", "x", 400, "INVALID_REQUEST"),
        ("POST /pub?topic=t&defer=x", "x", 400, "INVALID_DEFER"),
        ("POST /pub?topic=t&defer=-1", "x", 400, "INVALID_DEFER"),
        ("POST /pub?topic=t&defer=1001", "x", 400, "INVALID_DEFER"),
        ("POST /mpub?topic=t", "1\n2345\n67890", 413, "MSG_TOO_BIG"),
        ("POST /mpub?topic=t", "1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n1\n2\n3", 413, "BODY_TOO_BIG"),
        ("POST /mpub?topic=t&binary=true", "\0\0", 413, "BAD_BODY"),
        ("POST /mpub?topic=t&binary=true", "\0\0\0\0", 413, "BAD_BODY"),
        ("POST /mpub?topic=t&binary=true", "\0\0\0\x05", 413, "BAD_BODY"),
        ("POST /mpub?topic=t&binary=true", "\0\0\0\x01\0\0\0\0", 413, "BAD_MESSAGE"),
        ("POST /mpub?topic=t&binary=true", "\0\0\0\x01\0\0\0\x05abcde", 413, "BAD_MESSAGE"),
        ("POST /mpub?topic=t&binary=true", "\0\0\0\x02\0\0\0\x01a", 413, "BAD_MESSAGE"),
        ("POST /topic/create", "", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/empty?topic=!", "", 400, "INVALID_TOPIC"),
        ("POST /topic/delete?topic=!", "", 404, "TOPIC_NOT_FOUND"),
        ("POST /topic/pause?topic=!", "", 404, "TOPIC_NOT_FOUND"),
        ("POST /topic/unpause", "", 400, "MISSING_ARG_TOPIC"),
        ("POST /channel/create?topic=!", "", 400, "INVALID_ARG_TOPIC"),
        ("POST /channel/create?topic=t", "", 400, "MISSING_ARG_CHANNEL"),
        ("POST /channel/create?topic=t&channel=!", "", 400, "INVALID_ARG_CHANNEL"),
        ("GET /config/nothing", "", 400, "INVALID_OPTION"),
        ("PUT /config/log_level", "", 413, "INVALID_VALUE"),
        ("PUT /config/log_level", "louder", 413, "INVALID_VALUE"),
        ("PUT /config/log_level", "mad", 400, "INVALID_VALUE"),
        ("PUT /config/nsqlookupd_tcp_addresses", "[1]", 400, "INVALID_VALUE"),
        ("PUT /config/tcp_address", "x", 400, "INVALID_OPTION"),
        ("GET /nope", "", 404, "NOT_FOUND"),
        ("GET /config/", "", 404, "NOT_FOUND"),
        ("GET /topic/rename", "", 404, "NOT_FOUND"),
        ("GET /pub", "", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE /topic/delete?topic=t", "", 405, "METHOD_NOT_ALLOWED"),
        ("GET /debug/pprof/heap", "", 501, "NO_GO_RUNTIME"),
    ] {
        let expected = (status, format!(r#"{{"message":"{word}"}}"#));
        assert_eq!(call(&api, line, body).await, expected, "{line} {body:?}");
    }
    assert_eq!(shard.asked(), Vec::<String>::new(), "a bad request costs a shard nothing");
}

#[tokio::test]
async fn verbs_become_requests() {
    let shard = FakeShard::agreeable();
    let api = api(&shard, "");
    for (line, asked) in [
        ("topic/create?topic=t", r#"CreateTopic("t")"#),
        ("topic/delete?topic=t", r#"DeleteTopic("t")"#),
        ("topic/empty?topic=t", r#"EmptyTopic("t")"#),
        ("topic/pause?topic=t", r#"PauseTopic("t", Paused)"#),
        ("topic/unpause?topic=t", r#"PauseTopic("t", Flowing)"#),
        ("channel/create?topic=t&channel=c%23ephemeral", r#"CreateChannel("t", "c#ephemeral")"#),
        ("channel/delete?topic=t&channel=c", r#"DeleteChannel("t", "c")"#),
        ("channel/empty?topic=t&channel=c", r#"EmptyChannel("t", "c")"#),
        ("channel/pause?topic=t&channel=c", r#"PauseChannel("t", "c", Paused)"#),
        ("channel/unpause?topic=t&channel=c", r#"PauseChannel("t", "c", Flowing)"#),
    ] {
        assert_eq!(call(&api, &format!("POST /{line}"), "").await, (200, String::new()), "{line}");
        assert_eq!(shard.asked(), [asked]);
    }
}

#[tokio::test]
async fn what_the_shard_says_becomes_a_status() {
    let replies: [fn() -> Option<AdminReply>; 6] = [
        || Some(AdminReply::TopicNotFound),
        || Some(AdminReply::ChannelNotFound),
        || None,
        || Some(AdminReply::Refused(PublishRefused::Exiting)),
        || Some(AdminReply::Refused(PublishRefused::QueueFull)),
        || Some(AdminReply::Refused(PublishRefused::Throttled { retry_after: Duration::from_micros(1_200_500) })),
    ];
    let expected = [
        (404, "TOPIC_NOT_FOUND"),
        (404, "CHANNEL_NOT_FOUND"),
        (503, "EXITING"),
        (503, "EXITING"),
        (503, "queue is full"),
        (429, "rate limit of topic exceeded, retry in 1200.500 ms"),
    ];
    for (reply, (status, word)) in replies.into_iter().zip(expected) {
        let api = api(&FakeShard::new(move |_| reply()), "");
        let answer = call(&api, "POST /pub?topic=t", "x").await;
        assert_eq!(answer, (status, format!(r#"{{"message":"{word}"}}"#)));
        let request = Request::post("/pub?topic=t").body("x".into()).unwrap();
        let retry_after = send(&api, request).await.0.headers().get("retry-after").cloned();
        assert_eq!(retry_after.is_some_and(|seconds| seconds == "2"), status == 429);
    }
}

#[tokio::test]
async fn bodies_are_bounded_while_they_arrive() {
    let state = state(&FakeShard::agreeable(), config(""));
    let endless = || Body::from_stream(Endless);
    let api = router(state.clone());
    assert_eq!(call(&api, "POST /pub?topic=t", endless()).await.1, r#"{"message":"MSG_TOO_BIG"}"#);
    assert_eq!(call(&api, "POST /mpub?topic=t&binary=1", endless()).await.1, r#"{"message":"BODY_TOO_BIG"}"#);
    // Other requests hold nearly all room.
    let held = Body::from(vec![0; (64 << 20) - 10]);
    let held = state.bodies.read(&axum::http::HeaderMap::new(), held, u32::MAX, &Refusal::EXITING).await.unwrap();
    let busy = (503, r#"{"message":"BUSY"}"#.to_owned());
    assert_eq!(call(&api, "POST /pub?topic=t", "twelve bytes").await, busy);
    drop(held);
    assert_eq!(call(&api, "POST /pub?topic=t", "twelve bytes").await.0, 200);
}

/// A body that never ends.
struct Endless;

impl futures_core::Stream for Endless {
    type Item = Result<Vec<u8>, std::convert::Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(Some(Ok(vec![b'x'; 1_000])))
    }
}

#[tokio::test]
async fn settings_are_shown_as_nsqd_shows_them_and_two_can_change() {
    let config = config("nsqlookupd_tcp_addresses = ['a:1']\nlog_level = 'warn'");
    let state = state(&FakeShard::agreeable(), config);
    let (live, api) = (state.live.clone(), router(state));
    let get = async |option: &str| call(&api, &format!("GET /config/{option}"), "").await.1;
    assert_eq!(get("tcp_address").await, "0.0.0.0:4150");
    assert_eq!(get("http_client_connect_timeout").await, "2000000000");
    assert_eq!(get("log_level").await, "3");
    assert_eq!(get("nsqlookupd_tcp_addresses").await, r#"["a:1"]"#);
    let put = async |option: &str, value: &'static str| call(&api, &format!("PUT /config/{option}"), value).await;
    assert_eq!(put("log_level", "DEBUG").await, (200, "1".to_owned()));
    assert_eq!(*live.log_level.borrow(), LogLevel::Debug);
    assert_eq!(put("nsqlookupd_tcp_addresses", r#"["b:2", "c:3"]"#).await.1, r#"["b:2","c:3"]"#);
    assert_eq!(*live.lookupd_addresses.borrow(), ["b:2", "c:3"]);
    assert_eq!(put("nsqlookupd_tcp_addresses", "null").await.1, "[]");
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_bad_health() {
    let shard = FakeShard::new(|_| {
        let broken = ShardSnapshot { log_error: Some("disk full".to_owned()), ..ShardSnapshot::default() };
        Some(AdminReply::Snapshot(Box::new(broken)))
    });
    let api = api(&shard, "");
    assert_eq!(call(&api, "GET /ping", "").await, (500, "NOK - disk full".to_owned()));
    assert!(call(&api, "GET /stats?format=json", "").await.1.contains(r#""health":"NOK - disk full""#));
    let well = self::api(&FakeShard::agreeable(), "");
    assert_eq!(call(&well, "GET /ping", "").await, (200, "OK".to_owned()));
}

#[tokio::test]
async fn headers_are_nsqds() {
    let api = api(&FakeShard::agreeable(), "");
    let headers = async |line: &str| {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let head = send(&api, request).await.0;
        let text = |name: &str| head.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        [text("x-nsq-content-type"), text("content-type"), text("allow")]
    };
    let (nsq, json, text) = ("nsq; version=1.0", "application/json; charset=utf-8", "text/plain; charset=utf-8");
    assert_eq!(headers("GET /ping").await, ["", text, ""]);
    assert_eq!(headers("GET /info").await, [nsq, json, ""]);
    assert_eq!(headers("POST /topic/create?topic=t").await, [nsq, "", ""]);
    assert_eq!(headers("GET /pub").await, [nsq, json, "OPTIONS, POST"]);
    assert_eq!(headers("HEAD /ping").await, [nsq, json, "GET, OPTIONS"]);
    assert_eq!(headers("OPTIONS /config/id").await, ["", "", "GET, OPTIONS, PUT"]);
    assert_eq!(headers("GET /config/tcp_address").await, [nsq, text, ""]);
}

#[tokio::test]
async fn a_plain_listener_points_to_the_one_with_tls() {
    let answer = call(&tls_required_router(4152), "POST /pub?topic=t", "x").await;
    assert_eq!(answer, (403, r#"{"message": "TLS_REQUIRED", "https_port": 4152}"#.to_owned()));
}
