//! Brokers' admin APIs as control uses them, in memory; and a plain HTTP client.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tidegate_core::Rate;
use tidegate_core::number::whole;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A part that a broker holds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Held {
    pub(crate) revision: u64,
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
}

#[derive(Default)]
pub(crate) struct Inside {
    /// Identities and their rates.
    pub(crate) publishers: Vec<(String, f64)>,
    pub(crate) parts: BTreeMap<String, Held>,
    /// No order of an older revision is taken.
    pub(crate) floor: u64,
    /// Channels without a consumer.
    pub(crate) missing: Vec<String>,
    /// Requests without the token.
    pub(crate) strangers: u64,
    pub(crate) draining: bool,
    /// The p99 from arrival to the end of processing, microseconds.
    pub(crate) delay_us: f64,
    /// Traces that were asked for.
    pub(crate) recorded: u64,
}

/// A broker.
#[derive(Clone)]
pub(crate) struct Broker {
    pub(crate) address: String,
    inside: Arc<Mutex<Inside>>,
}

type Shared = State<Arc<Mutex<Inside>>>;

fn now_us() -> u64 {
    tidegate_runtime::clock::now().as_nanos() / 1_000
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let inside = Arc::new(Mutex::new(Inside { delay_us: 400.0, ..Inside::default() }));
        let router = Router::new()
            .route("/api/v1/node", get(node))
            .route("/api/v1/publishers/{topic}", get(publishers))
            .route("/api/v1/parts", get(clock).put(put_parts))
            .route("/api/v1/parts/{topic}", delete(delete_part))
            .route("/api/v1/topics/{topic}/prepare", post(prepare))
            .route("/api/v1/record/{topic}", get(trace).post(record))
            .with_state(Arc::clone(&inside));
        Self { address: serve(router).await, inside }
    }

    /// With so many publishers of this rate.
    pub(crate) fn publish(&self, prefix: &str, many: u32, rate_per_s: f64) {
        let all = (0..many).map(|number| (format!("{prefix}{number}@h"), rate_per_s));
        self.with(|inside| inside.publishers = all.collect());
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        change(&mut self.inside.lock().unwrap())
    }

    pub(crate) fn part(&self, topic: &str) -> Option<Held> {
        self.with(|inside| inside.parts.get(topic).cloned())
    }
}

pub(crate) async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn node(State(inside): Shared, headers: HeaderMap) -> Json<Value> {
    let mut inside = inside.lock().unwrap();
    let token = headers.get("authorization").map(|value| value.to_str().unwrap_or_default());
    inside.strangers += u64::from(token != Some("Bearer broker-token"));
    Json(json!({ "name": "fake", "draining": inside.draining, "nsq_address": "h:1", "shards": 2, "mcap_per_s": null }))
}

async fn publishers(
    State(inside): Shared,
    Path(_): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Json<Value> {
    let inside = inside.lock().unwrap();
    let seconds: u64 = query["seconds"].parse().unwrap();
    let rate: f64 = inside.publishers.iter().map(|(_, rate)| rate).sum();
    let second = |back: u64| {
        let start_us = (now_us() / 1_000_000 - back) * 1_000_000;
        json!({ "start_us": start_us, "messages": whole(rate), "bytes": whole(10.0 * rate), "backlog_max": whole(rate / 100.0) })
    };
    let publisher = |(identity, rate): &(String, f64)| {
        json!({
            "identity": identity, "correlation": null, "remote": "r", "client_id": identity, "hostname": "h",
            "messages": 10, "batches": 10, "rate_per_s": rate, "connected_s": 9.0,
        })
    };
    Json(json!({
        "topic": "t", "now_us": now_us(),
        "seconds": (1..=seconds).rev().map(second).collect::<Vec<_>>(),
        "publishers": inside.publishers.iter().map(publisher).collect::<Vec<_>>(),
        "others": { "publishers": 0, "messages": 0 },
        "delay": {
            "count": whole(rate) * seconds, "over_slo": 0, "e2e_p99_us": inside.delay_us, "access_p99_us": 100.0,
        },
    }))
}

async fn record(State(inside): Shared) -> Json<Value> {
    inside.lock().unwrap().recorded += 1;
    Json(json!({ "recording": true }))
}

/// The last second, in which each publisher sent at its rate, one after the other.
async fn trace(State(inside): Shared) -> String {
    let inside = inside.lock().unwrap();
    let (mut text, from_us) =
        ("arrival_ns,read_ns,release_ns,passed_ns,publisher,bytes\n".to_owned(), now_us() - 1_000_000);
    for (number, (identity, rate)) in (1_u64..).zip(&inside.publishers) {
        let _ = writeln!(text, "@{{\"publisher\":{number},\"identity\":\"{identity}\"}}");
        for message in 0..whole(*rate) {
            let at_ns = 1_000 * (from_us + 7_919 * number % 100_000 + message * 1_000_000 / whole(*rate));
            let _ = writeln!(text, "{at_ns},{at_ns},{at_ns},{at_ns},{number},9");
        }
    }
    text
}

async fn clock() -> Json<Value> {
    Json(json!({ "now_us": now_us(), "parts": [] }))
}

async fn put_parts(State(inside): Shared, Json(order): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut inside = inside.lock().unwrap();
    let revision = order["revision"].as_u64().unwrap();
    for part in order["parts"].as_array().unwrap() {
        let topic = part["topic"].as_str().unwrap();
        let holds = inside.parts.get(topic).map_or(inside.floor, |held| held.revision.max(inside.floor));
        if revision < holds {
            let detail = format!("the part of `{topic}` is of revision {holds}, which is newer; ask who leads now");
            let problem = json!({ "type": "urn:tidegate:problem:stale-revision", "title": "t", "detail": detail });
            return (StatusCode::CONFLICT, Json(problem));
        }
        let rate: Rate = serde_json::from_value(part["rate_per_s"].clone()).unwrap();
        let burst = part["burst"].as_u64().unwrap();
        inside.parts.insert(topic.to_owned(), Held { revision, rate, burst });
    }
    (StatusCode::OK, Json(json!({ "revision": revision, "in_force": [] })))
}

async fn delete_part(State(inside): Shared, Path(topic): Path<String>) -> Json<Value> {
    inside.lock().unwrap().parts.remove(&topic);
    Json(json!({}))
}

async fn prepare(State(inside): Shared) -> Json<Value> {
    let inside = inside.lock().unwrap();
    Json(json!({ "ready": inside.missing.is_empty(), "missing": inside.missing, "started": true, "draining": false }))
}

/// The status and the body of the answer to one request.
pub(crate) async fn ask(address: &str, request: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let head =
        format!("{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}Content-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The answer to a GET as JSON.
pub(crate) async fn read(address: &str, path: &str) -> Value {
    let (status, body) = ask(address, &format!("GET {path}"), None).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}
