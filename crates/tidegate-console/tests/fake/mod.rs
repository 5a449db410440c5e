//! A broker that the test plays, a console in front of it, and a browser's half of HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as Incoming;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate_console::{BrokerSource, ConsoleConfig, ProxySource, router};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// A request as the broker saw it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// With its query.
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) body: String,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn ok(body: impl Into<String>) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: body.into() }
    }
}

#[derive(Default)]
struct Log {
    requests: u64,
    polls: u64,
    last: Seen,
}

/// An admin API on a port of the system's choosing.
pub(crate) struct Broker {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

impl Broker {
    /// Answers with `play(request, polls so far)`; a poll is a read of the whole snapshot.
    pub(crate) fn start(play: impl Fn(&Seen, u64) -> Answer + Clone + Send + Sync + 'static) -> Self {
        let log = Arc::new(Mutex::new(Log::default()));
        let noted = log.clone();
        let service = Router::new().fallback(move |request: Incoming| {
            let (play, log) = (play.clone(), noted.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let authorization = head.headers.get(header::AUTHORIZATION);
                let seen = Seen {
                    method: head.method.to_string(),
                    path: head.uri.to_string(),
                    authorization: authorization.map_or("", |value| value.to_str().expect("text")).to_owned(),
                    body: String::from_utf8(body.to_vec()).expect("text"),
                };
                let polls = {
                    let mut log = log.lock().expect("no panic");
                    log.requests += 1;
                    log.polls += u64::from(seen.path == "/api/v1/snapshot");
                    log.last = seen.clone();
                    log.polls
                };
                let answer = play(&seen, polls);
                (answer.status, [(header::CONTENT_TYPE, answer.content_type)], answer.body).into_response()
            }
        });
        let address = serve(service);
        Self { address, log }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn source(&self, name: &str) -> BrokerSource {
        BrokerSource { name: name.to_owned(), admin_url: self.url(), token: Some("broker-token".to_owned()) }
    }

    pub(crate) fn proxy(&self, name: &str) -> ProxySource {
        ProxySource { name: name.to_owned(), admin_url: self.url(), token: Some("proxy-token".to_owned()) }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.log.lock().expect("no panic").requests
    }

    pub(crate) fn polls(&self) -> u64 {
        self.log.lock().expect("no panic").polls
    }

    pub(crate) fn last(&self) -> Seen {
        self.log.lock().expect("no panic").last.clone()
    }
}

/// A broker that does not answer: its port was free a moment ago.
pub(crate) fn nobody(name: &str) -> BrokerSource {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    BrokerSource { name: name.to_owned(), admin_url: format!("http://{address}"), token: None }
}

/// A proxy that does not answer.
pub(crate) fn no_proxy(name: &str) -> ProxySource {
    let BrokerSource { name, admin_url, token } = nobody(name);
    ProxySource { name, admin_url, token }
}

/// Quick, since tests wait for frames.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn serve(service: Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    let listener = TcpListener::from_std(listener).expect("a runtime");
    // Ends with the test's runtime.
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

pub(crate) struct Console {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl Console {
    /// A console in front of these brokers, called b0, b1 and so on.
    pub(crate) fn before(brokers: &[&Broker]) -> Self {
        let sources = brokers.iter().enumerate().map(|(i, broker)| broker.source(&format!("b{i}"))).collect();
        Self::with(|config| config.brokers = sources)
    }

    pub(crate) fn with(change: impl FnOnce(&mut ConsoleConfig)) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut config = ConsoleConfig {
            write_token: "page-token".to_owned(),
            poll_interval: POLL_INTERVAL,
            stop: Some(stopped),
            ..ConsoleConfig::default()
        };
        change(&mut config);
        config.check().expect("a good configuration");
        let http = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { address: serve(router(config)), stop, http }
    }

    pub(crate) fn stop(&mut self) {
        self.stop.send_replace(true);
    }

    async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        self.http.request(request).await.expect("an answer").map(Body::new)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Page {
        let (head, body) = self.raw(method, path, headers, body).await.into_parts();
        Page { status: head.status, headers: head.headers, body: body.collect().await.expect("a body").to_bytes() }
    }

    /// Asks for a stream and hangs up at once.
    pub(crate) async fn send_and_drop(&self, path: &str) -> StatusCode {
        self.raw(Method::GET, path, &[], "").await.status()
    }

    pub(crate) async fn watch(&self, last_event_id: Option<&str>) -> Events {
        let headers = last_event_id.map(|id| ("last-event-id", id));
        let response = self.raw(Method::GET, "/api/v1/events", headers.as_slice(), "").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        Events { body: response.into_body(), unread: String::new() }
    }
}

pub(crate) struct Page {
    pub(crate) status: StatusCode,
    headers: axum::http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Page {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: serde_json::Value,
}

impl Event {
    pub(crate) fn sequence(&self) -> u64 {
        self.id.rsplit('-').next().expect("a part").parse().expect("a number")
    }
}

/// An event stream as a browser reads it.
pub(crate) struct Events {
    body: Body,
    unread: String,
}

impl Events {
    async fn read(&mut self) -> Option<Event> {
        // Events can be large: what was searched is not searched again.
        let mut searched = 0;
        loop {
            if let Some(end) = self.unread[searched..].find("\n\n") {
                let event: String = self.unread.drain(..searched + end + 2).collect();
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                let text = |name: &str| field(name).unwrap_or_default().to_owned();
                return Some(Event { id: text("id"), name: text("event"), data: json(field("data").expect("data")) });
            }
            searched = self.unread.len().saturating_sub(1);
            let frame = self.body.frame().await?.expect("a frame");
            self.unread.push_str(std::str::from_utf8(frame.data_ref()?).expect("UTF-8"));
        }
    }

    pub(crate) async fn next(&mut self) -> Event {
        self.read().await.expect("the stream goes on")
    }

    /// The first event with this sequence number or a later one.
    pub(crate) async fn after(&mut self, sequence: u64) -> Event {
        loop {
            let event = self.next().await;
            if event.sequence() >= sequence {
                return event;
            }
        }
    }

    /// Reads to the end.
    pub(crate) async fn ends(&mut self) -> bool {
        while self.read().await.is_some() {}
        true
    }
}
