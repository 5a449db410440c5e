//! Requests to a node's admin API, bounded in time, in size and in number.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::broker_api::{
    ClockAnswer, DisconnectBody, LendingAnswer, NodeAnswer, PartsBody, PrepareAnswer, PrepareBody, PublishersAnswer,
    PutAnswer,
};
use crate::error::NodeError;

/// A node answers from memory; one that takes longer is not there for the moment.
const WITHIN: Duration = Duration::from_millis(1_500);
/// A trace comes from a disk.
const TRACE_WITHIN: Duration = Duration::from_secs(20);
/// 65,536 publishers take about 16 MiB.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Four million batches.
const TRACE_BYTES_MAX: usize = 256 << 20;
/// Requests of one node under way at a time, each on a connection of its own, which is kept for the next. Further ones wait
/// for their turn within their time.
const REQUESTS_MAX: usize = 8;

/// One node's admin API.
#[derive(Clone, Debug)]
pub struct NodeClient {
    /// `host:port`.
    address: Arc<str>,
    authorization: Option<HeaderValue>,
    http: Client<HttpConnector, Full<Bytes>>,
    turns: Arc<Semaphore>,
}

impl NodeClient {
    /// A client of the API at `address`, `host:port`, that shows `token` with each request.
    #[must_use]
    pub fn new(address: &str, token: Option<&str>) -> Self {
        let authorization = token.and_then(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(WITHIN));
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(REQUESTS_MAX).build(connector);
        Self { address: address.into(), authorization, http, turns: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Who the node is, and whether it takes publishers.
    pub async fn node(&self) -> Result<NodeAnswer, NodeError> {
        self.read(Method::GET, "/api/v1/node", None::<&()>).await
    }

    /// The sensors of a topic over the last `seconds` whole seconds.
    pub async fn publishers(&self, topic: &str, seconds: u32, slo: Duration) -> Result<PublishersAnswer, NodeError> {
        let path = format!("/api/v1/publishers/{}?seconds={seconds}&slo_us={}", escaped(topic), slo.as_micros());
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// The node's monotonic clock, microseconds.
    pub async fn clock_us(&self) -> Result<u64, NodeError> {
        self.read::<ClockAnswer>(Method::GET, "/api/v1/parts", None::<&()>).await.map(|answer| answer.now_us)
    }

    /// What the node lends and borrows.
    pub async fn lending(&self) -> Result<LendingAnswer, NodeError> {
        self.read(Method::GET, "/api/v1/lending", None::<&()>).await
    }

    /// Puts parts in force, or renews their lease.
    pub async fn put_parts(&self, body: &PartsBody<impl Serialize>) -> Result<PutAnswer, NodeError> {
        self.read(Method::PUT, "/api/v1/parts", Some(body)).await
    }

    /// Takes a topic's part back.
    pub async fn delete_part(&self, topic: &str, revision: u64) -> Result<(), NodeError> {
        let path = format!("/api/v1/parts/{}?revision={revision}", escaped(topic));
        self.send(Method::DELETE, &path, None::<&()>, WITHIN, ANSWER_BYTES_MAX).await.map(drop)
    }

    /// Creates topic and channels, and says which of these have no consumer.
    pub async fn prepare(&self, topic: &str, channels: &[String]) -> Result<PrepareAnswer, NodeError> {
        let path = format!("/api/v1/topics/{}/prepare", escaped(topic));
        self.read(Method::POST, &path, Some(&PrepareBody { channels })).await
    }

    /// Begins a trace of the topic, which ends after `seconds`.
    pub async fn record(&self, topic: &str, seconds: u64) -> Result<(), NodeError> {
        let path = format!("/api/v1/record/{}?seconds={seconds}", escaped(topic));
        self.send(Method::POST, &path, None::<&()>, WITHIN, ANSWER_BYTES_MAX).await.map(drop)
    }

    /// The topic's last trace.
    pub async fn trace(&self, topic: &str) -> Result<Bytes, NodeError> {
        let path = format!("/api/v1/record/{}", escaped(topic));
        self.send(Method::GET, &path, None::<&()>, TRACE_WITHIN, TRACE_BYTES_MAX).await
    }

    /// Closes these publishers' connections after their last whole command.
    pub async fn disconnect(&self, topic: &str, identities: Vec<String>) -> Result<(), NodeError> {
        let path = format!("/api/v1/publishers/{}/disconnect", escaped(topic));
        let body = DisconnectBody { identities };
        self.send(Method::POST, &path, Some(&body), WITHIN, ANSWER_BYTES_MAX).await.map(drop)
    }

    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, NodeError> {
        let request = format!("{method} {path}");
        let answer = self.send(method, path, body, WITHIN, ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&answer).map_err(|source| NodeError::Json {
            address: self.address.to_string(),
            request,
            source,
        })
    }

    /// Sends a request and reads the whole answer, which is a success.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        within: Duration,
        limit: usize,
    ) -> Result<Bytes, NodeError> {
        let address = || self.address.to_string();
        let name = format!("{method} {path}");
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        // A broker's history and log tell by what it was changed.
        request = request.header(header::USER_AGENT, "tidegate control");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(serde_json::to_vec(body).expect("keys are texts and numbers are finite"))
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes)).map_err(|source| NodeError::Path {
            address: address(),
            path: path.to_owned(),
            source,
        })?;
        let exchange = async {
            let _turn = self.turns.acquire().await.expect("it is never closed");
            let answer = self.http.request(request).await;
            let answer = answer.map_err(|source| NodeError::Unreachable { address: address(), source })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, limit).collect().await;
            let body = body.map_err(|source| NodeError::Body { address: address(), limit, source })?.to_bytes();
            if head.status.is_success() {
                return Ok(body);
            }
            Err(refused(address(), name, head.status, &body))
        };
        let answer = timeout(within, exchange).await;
        answer.unwrap_or_else(|_| Err(NodeError::TimedOut { address: address(), within }))
    }
}

/// Longest explanation of a node that is passed on.
const DETAIL_CHARS: usize = 400;

fn refused(address: String, request: String, status: StatusCode, body: &[u8]) -> NodeError {
    let problem: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let detail = problem["detail"].as_str().or_else(|| problem["title"].as_str()).unwrap_or_default();
    // What a node holds of an order's own revision, and with other content, is another's as well: of a store that was lost.
    let is_held = |kind: &str| [":stale-revision", ":other-content"].iter().any(|held| kind.ends_with(held));
    let holds = problem["type"].as_str().is_some_and(is_held).then(|| revision_in(detail));
    let detail = detail.chars().take(DETAIL_CHARS).collect();
    NodeError::Status { address, request, status, detail, holds }
}

/// The revision that a node holds, from its words: `.. is of revision 7, which is newer ..` or `revision 7 gives ..`; 0 if
/// they are others.
fn revision_in(detail: &str) -> u64 {
    let number = |(at, word): (usize, &str)| {
        let rest = &detail[at + word.len()..];
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    detail.match_indices("revision ").find_map(number).unwrap_or(0)
}

/// A name in a path. Of a topic's the `#` of `#ephemeral` alone means something else there.
pub(super) fn escaped(name: &str) -> String {
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let hex = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
            path.extend(['%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::{delete, get, put};

    use super::*;

    /// A node that answers with `router`.
    async fn node(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    #[tokio::test]
    async fn a_request_shows_its_token_and_what_is_left_out_is_empty() {
        let answer = |headers: HeaderMap| async move {
            let shown = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
            format!("{{\"name\": \"{shown}\", \"more\": 1}}")
        };
        let address = node(Router::new().route("/api/v1/node", get(answer))).await;
        let node = NodeClient::new(&address, Some("s3cret")).node().await.unwrap();
        assert_eq!(node, NodeAnswer { name: "Bearer s3cret".to_owned(), ..NodeAnswer::default() });
    }

    #[tokio::test]
    async fn a_newer_revision_is_told_apart_from_other_refusals() {
        let conflict = || async {
            let newer = r#"{"type": "urn:tidegate:problem:stale-revision", "title": "t",
                "detail": "the part of `orders` is of revision 9, which is newer; ask who leads now"}"#;
            (StatusCode::CONFLICT, newer)
        };
        let late = || async { (StatusCode::CONFLICT, r#"{"type": "urn:tidegate:problem:late", "detail": "d"}"#) };
        let other = || async {
            let other =
                r#"{"type": "urn:tidegate:problem:other-content", "detail": "revision 3 gives `u` another part"}"#;
            (StatusCode::CONFLICT, other)
        };
        let parts = Router::new().route("/api/v1/parts", put(conflict)).route("/api/v1/parts/t", delete(late));
        let router = parts.route("/api/v1/parts/u", delete(other));
        let address = node(router).await;
        let client = NodeClient::new(&address, None);
        let body = PartsBody { revision: 3, lease_ms: 1, until_us: 0, on_lapse: "local", parts: Vec::<()>::new() };
        let error = client.put_parts(&body).await.unwrap_err();
        assert_eq!((error.fenced_by(), error.is_not_found()), (Some(9), false));
        let error = client.delete_part("t", 3).await.unwrap_err();
        assert_eq!((error.fenced_by(), error.is_not_found()), (None, false));
        assert_eq!(client.delete_part("u", 3).await.unwrap_err().fenced_by(), Some(3), "of a store that was lost");
        assert_eq!(
            error.to_string(),
            format!("{address} answered 409 Conflict to DELETE /api/v1/parts/t?revision=3: d")
        );
        let error = client.publishers("a#ephemeral", 10, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!((error.fenced_by(), error.is_not_found()), (None, true));
        assert!(error.to_string().contains("/publishers/a%23ephemeral?seconds=10&slo_us=1000"), "{error}");
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_given_up() {
        let silent = || async { std::future::pending::<()>().await };
        let address = node(Router::new().route("/api/v1/node", get(silent))).await;
        let began = tidegate_runtime::clock::now();
        let error = NodeClient::new(&address, None).node().await.unwrap_err();
        assert!(matches!(error, NodeError::TimedOut { .. }), "{error}");
        assert!(tidegate_runtime::clock::now().since(began) < 4 * WITHIN);
        let nobody = NodeClient::new("127.0.0.1:1", None).node().await.unwrap_err();
        assert!(matches!(nobody, NodeError::Unreachable { .. }), "{nobody}");
    }
}
