//! The console's own HTTP API.
//!
//! | request | answer |
//! |---|---|
//! | `GET /`, `/demo`, `/rpc`, `/neighbours`, `/placement`, `/shaper`, `/assets/{name}` | the page |
//! | `GET /api/v1/events` | the live stream: events `full` and `delta` |
//! | `GET /api/v1/series` | the last minute of every row's rates |
//! | `GET /api/v1/series/{broker}/{topic}[/{channel}]` | one row's last five minutes |
//! | `GET /api/v1/brokers/{broker}/clients/{topic}[/{channel}]` | each client's figures, by channel |
//! | `GET /api/v1/brokers/{broker}/limits/history` | the newest changes of limits |
//! | `POST /api/v1/brokers/{broker}/limits/undo[?target=..]`, `.../redo` | takes the newest back; makes it again |
//! | `PUT`, `DELETE /api/v1/brokers/{broker}/limits/{topic}[/{channel}]` | sets or removes a limit |
//! | `POST /api/v1/brokers/{broker}/topics/{topic}[/channels/{channel}]/{action}` | `pause`, `unpause`, `empty` |
//! | `GET /api/v1/rpc` | the figures of an RPC server |
//! | `POST /api/v1/proxies/{proxy}/mode` | what a proxy does to noisy neighbours, such as `{"mode":"stats"}` |
//! | `GET /api/v1/placement` | where control has placed topics, and why |
//! | `GET /api/v1/placement/{topic}/k?k=2[&b=26]` | what if a topic were on k brokers |
//! | `POST /api/v1/placement/{topic}/place[?dry_run=true]` | a new plan, or what it would be |
//! | `GET /api/v1/lending` | what control's brokers lend each other, as each tells |
//! | `GET /api/v1/shaper` | a shaper's devices and classes |
//! | `PUT /api/v1/shaper/classes/{device}/{class}` | what a class may send, such as `{"rate":"1 Gbit/s"}` |
//! | `POST /api/v1/shaper/control` | whether queues are kept short, such as `{"control":"off"}` |
//! | `GET /api/v1/demo/state`, `POST /api/v1/demo/{load,spike}` | the demo's state and its two controls |
//!
//! What a broker or the demo answers to a write is passed on as it is. Errors are `application/problem+json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::http::Problem;

use crate::admin_client::{AdminClient, AdminError};
use crate::assets;
use crate::config::ConsoleConfig;
use crate::feed::{Feed, FeedConfig, Source};
use crate::frame::{Extras, FrameId};
use crate::guard::{Guard, guard};
use crate::lending::Lenders;
use crate::snapshot::BrokerSnapshot;
use crate::view::RowId;

/// When a page that finds no room may ask again.
const RETRY_AFTER_S: u32 = 2;
/// A limit is a hundred bytes.
const MAX_BODY_BYTES: usize = 4 << 10;

/// What the handlers share.
#[derive(Debug)]
struct Console {
    feed: Arc<Feed>,
    /// By the broker's name.
    brokers: BTreeMap<String, AdminClient>,
    /// By the proxy's name.
    proxies: BTreeMap<String, AdminClient>,
    demo: Option<AdminClient>,
    rpc: Option<AdminClient>,
    control: Option<AdminClient>,
    lenders: Option<Lenders>,
    shaper: Option<AdminClient>,
}

type Shared = State<Arc<Console>>;

/// The console as a service: its pages and its API. Polls nobody until somebody watches.
///
/// A `config` that [`check`](ConsoleConfig::check) refuses works as far as it can: the broker with the bad address is
/// shown as down.
pub fn router(config: ConsoleConfig) -> Router {
    let ConsoleConfig { brokers, proxies, write_token, demo, rpc, control, shaper, allowed_hosts, poll_interval, stop } =
        config;
    // Reads carry the token too: who listens on the network wants it for those as well.
    let client = |name: String, url: &str, token: Option<&str>| (name, AdminClient::new(url, token));
    let brokers: Vec<(String, AdminClient)> =
        brokers.into_iter().map(|each| client(each.name, &each.admin_url, each.token.as_deref())).collect();
    let proxies: Vec<(String, AdminClient)> =
        proxies.into_iter().map(|each| client(each.name, &each.admin_url, each.token.as_deref())).collect();
    let source = |(name, client): &(String, AdminClient)| Source { name: name.as_str().into(), client: client.clone() };
    let feed = FeedConfig {
        sources: brokers.iter().map(source).collect(),
        proxies: proxies.iter().map(source).collect(),
        extras: Extras {
            has_demo: demo.is_some(),
            has_rpc: rpc.is_some(),
            has_placement: control.is_some(),
            has_shaper: shaper.is_some(),
        },
        poll_interval,
        stop,
    };
    let lenders = control.as_ref().map(|control| Lenders::new(control.brokers.clone()));
    let console = Arc::new(Console {
        lenders,
        feed: Feed::new(feed),
        brokers: brokers.into_iter().collect(),
        proxies: proxies.into_iter().collect(),
        demo: demo.map(|url| AdminClient::new(&url, None)),
        rpc: rpc.map(|url| AdminClient::new(&url, None)),
        control: control.map(|control| AdminClient::new(&control.admin_url, control.token.as_deref())),
        shaper: shaper.map(|shaper| AdminClient::new(&shaper.admin_url, shaper.token.as_deref())),
    });
    routes(console).layer(from_fn_with_state(Arc::new(Guard { write_token, allowed_hosts }), guard))
}

fn routes(console: Arc<Console>) -> Router {
    let topic_limit = get(limit_history).post(undo_limit).put(write_limit).delete(write_limit);
    let channel_limit = put(write_limit).delete(write_limit);
    let broker = Router::new()
        .route("/clients/{topic}", get(clients))
        .route("/clients/{topic}/{channel}", get(clients))
        .route("/limits/{topic}", topic_limit)
        .route("/limits/{topic}/{channel}", channel_limit)
        .route("/topics/{topic}/{action}", post(act))
        .route("/topics/{topic}/channels/{channel}/{action}", post(act));
    Router::new()
        .route("/", get(assets::page))
        .route("/demo", get(assets::page))
        .route("/rpc", get(assets::page))
        .route("/neighbours", get(assets::page))
        .route("/placement", get(assets::page))
        .route("/shaper", get(assets::page))
        .route("/assets/{name}", get(assets::asset))
        .route("/api/v1/events", get(events))
        .route("/api/v1/series", get(overview))
        .route("/api/v1/series/{broker}/{topic}", get(series))
        .route("/api/v1/series/{broker}/{topic}/{channel}", get(series))
        .nest("/api/v1/brokers/{broker}", broker)
        .route("/api/v1/proxies/{proxy}/mode", post(write_mode))
        .route("/api/v1/rpc", get(rpc))
        .route("/api/v1/placement", get(placement))
        .route("/api/v1/placement/{topic}/k", get(what_if))
        .route("/api/v1/placement/{topic}/place", post(place))
        .route("/api/v1/lending", get(lending))
        .route("/api/v1/shaper", get(shaped))
        .route("/api/v1/shaper/classes/{device}/{class}", put(write_class))
        .route("/api/v1/shaper/control", post(write_control))
        .route("/api/v1/demo/state", get(demo_state))
        .route("/api/v1/demo/{control}", post(demo_control))
        .fallback(async || Problem::untyped(StatusCode::NOT_FOUND, "Not found", "the console's page is at /"))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(console)
}

/// The parts of an address; a route has those that it names.
#[derive(Debug, Deserialize)]
struct Target {
    broker: String,
    topic: String,
    channel: Option<String>,
    action: Option<String>,
}

impl Target {
    fn client<'a>(&self, console: &'a Console) -> Result<&'a AdminClient, Problem> {
        console.brokers.get(&self.broker).ok_or_else(|| unknown_broker(&self.broker))
    }

    /// `topic`, or `topic` and `channel` with `between` in between, as part of a path of the admin API.
    fn path(&self, between: &str) -> Result<String, Problem> {
        let topic = segment(&self.topic)?;
        match &self.channel {
            Some(channel) => Ok(format!("{topic}{between}{}", segment(channel)?)),
            None => Ok(topic),
        }
    }

    fn row_id(&self) -> RowId {
        RowId {
            broker: self.broker.as_str().into(),
            topic: self.topic.as_str().into(),
            channel: self.channel.as_deref().map(Into::into),
        }
    }
}

/// A topic's or channel's name as a path segment: NSQ's alphabet, of which only the `#` of `#ephemeral` needs escaping.
/// Names of dots only are NSQ's too, but a path with them means another path.
fn segment(name: &str) -> Result<String, Problem> {
    let base = name.strip_suffix("#ephemeral").unwrap_or(name);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let dots_only = base.bytes().all(|byte| byte == b'.');
    if dots_only || name.len() > 64 || !base.bytes().all(plain) {
        let detail = format!("`{name}` is no name of a topic or channel: 1 to 64 of letters, digits, `.`, `_` and `-`");
        return Err(Problem::untyped(StatusCode::BAD_REQUEST, "Bad name", detail));
    }
    Ok(name.replace('#', "%23"))
}

/// Any name as a path segment: a device's may hold that of a namespace's file.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn unknown_broker(name: &str) -> Problem {
    let detail = format!("no broker is called `{name}` here");
    Problem::untyped(StatusCode::NOT_FOUND, "Unknown broker", detail)
}

async fn events(State(console): Shared, headers: HeaderMap) -> Response {
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(FrameId::parse);
    let Some(stream) = console.feed.watch(seen) else {
        let detail = format!("{} pages are watching already; close one", crate::MAX_WATCHERS);
        let problem = Problem::untyped(StatusCode::SERVICE_UNAVAILABLE, "Too many watchers", detail);
        return problem.retry_after_s(RETRY_AFTER_S).into_response();
    };
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn json(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn overview(State(console): Shared) -> Response {
    json(console.feed.overview())
}

async fn series(State(console): Shared, Path(target): Path<Target>) -> Response {
    json(serde_json::to_string(&console.feed.columns(&target.row_id())).expect("numbers only"))
}

async fn clients(State(console): Shared, Path(target): Path<Target>) -> Result<Response, Problem> {
    let channel = match &target.channel {
        Some(channel) => format!("&channel={}", segment(channel)?),
        None => String::new(),
    };
    let path = format!("/api/v1/snapshot?clients=true&topic={}{channel}", segment(&target.topic)?);
    let snapshot: BrokerSnapshot = target.client(&console)?.read(&path).await.map_err(|error| bad_gateway(&error))?;
    // A broker that does not know the parameters sends everything.
    let topic = snapshot.topics.into_iter().find(|topic| topic.name == target.topic);
    let wanted = |name: &str| target.channel.as_deref().is_none_or(|wanted| wanted == name);
    let channels = topic.into_iter().flat_map(|topic| topic.channels).filter(|channel| wanted(&channel.name));
    let clients: Vec<_> =
        channels.map(|channel| serde_json::json!({"channel": channel.name, "clients": channel.clients})).collect();
    Ok(json(serde_json::Value::from(clients).to_string()))
}

/// `GET` of a limit is not offered, so that `history`, `undo` and `redo` may also be names of topics.
async fn limit_history(State(console): Shared, Path(target): Path<Target>) -> Result<Response, Problem> {
    if target.topic != "history" {
        return Err(Problem::untyped(StatusCode::NOT_FOUND, "Not found", "limits are part of the event stream"));
    }
    forward(target.client(&console)?, Method::GET, "/api/v1/limits/history", Bytes::new()).await
}

async fn undo_limit(
    State(console): Shared,
    Path(target): Path<Target>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    if !matches!(target.topic.as_str(), "undo" | "redo") {
        return Err(Problem::untyped(StatusCode::NOT_FOUND, "Not found", "limits are set with PUT"));
    }
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    let path = format!("/api/v1/limits/{}{query}", target.topic);
    forward(target.client(&console)?, Method::POST, &path, Bytes::new()).await
}

async fn write_limit(
    State(console): Shared,
    Path(target): Path<Target>,
    method: Method,
    body: Bytes,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/limits/{}", target.path("/")?);
    forward(target.client(&console)?, method, &path, body).await
}

async fn act(State(console): Shared, Path(target): Path<Target>) -> Result<Response, Problem> {
    let action = target.action.as_deref().unwrap_or_default();
    if !["pause", "unpause", "empty"].contains(&action) {
        let detail = format!("`{action}` is none of `pause`, `unpause` and `empty`");
        return Err(Problem::untyped(StatusCode::NOT_FOUND, "Unknown action", detail));
    }
    let path = format!("/api/v1/topics/{}/{action}", target.path("/channels/")?);
    forward(target.client(&console)?, Method::POST, &path, Bytes::new()).await
}

/// Whether the mode is one is for the proxy to say.
async fn write_mode(State(console): Shared, Path(proxy): Path<String>, body: Bytes) -> Result<Response, Problem> {
    let unknown = || {
        let detail = format!("no proxy is called `{proxy}` here");
        Problem::untyped(StatusCode::NOT_FOUND, "Unknown proxy", detail)
    };
    let client = console.proxies.get(&proxy).ok_or_else(unknown)?;
    forward(client, Method::POST, "/api/v1/neighbours/mode", body).await
}

async fn rpc(State(console): Shared) -> Result<Response, Problem> {
    let none =
        || Problem::untyped(StatusCode::NOT_FOUND, "No RPC server", "start one with `tidegate rpc serve --console`");
    forward(console.rpc.as_ref().ok_or_else(none)?, Method::GET, "/api/v1/rpc", Bytes::new()).await
}

async fn placement(State(console): Shared) -> Result<Response, Problem> {
    forward(control(&console)?, Method::GET, "/api/v1/control", Bytes::new()).await
}

async fn lending(State(console): Shared) -> Response {
    match &console.lenders {
        Some(lenders) => Json(lenders.ask().await).into_response(),
        None => json("[]"),
    }
}

async fn what_if(
    State(console): Shared,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/topics/{}/k?{}", segment(&topic)?, query.unwrap_or_default());
    forward(control(&console)?, Method::GET, &path, Bytes::new()).await
}

async fn place(
    State(console): Shared,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/place/{}?{}", segment(&topic)?, query.unwrap_or_default());
    forward(control(&console)?, Method::POST, &path, Bytes::new()).await
}

fn control(console: &Console) -> Result<&AdminClient, Problem> {
    let none =
        || Problem::untyped(StatusCode::NOT_FOUND, "No control", "start one with `tidegate control --console ADDRESS`");
    console.control.as_ref().ok_or_else(none)
}

async fn shaped(State(console): Shared) -> Result<Response, Problem> {
    forward(shaper(&console)?, Method::GET, "/api/v1/shaper", Bytes::new()).await
}

/// Whether there is such a device, and whether the rate is one, is for the shaper to say.
async fn write_class(
    State(console): Shared,
    Path((device, class)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Problem> {
    let path = format!("/api/v1/shaper/classes/{}/{}", escaped(&device), escaped(&class));
    forward(shaper(&console)?, Method::PUT, &path, body).await
}

async fn write_control(State(console): Shared, body: Bytes) -> Result<Response, Problem> {
    forward(shaper(&console)?, Method::POST, "/api/v1/shaper/control", body).await
}

fn shaper(console: &Console) -> Result<&AdminClient, Problem> {
    let none =
        || Problem::untyped(StatusCode::NOT_FOUND, "No shaper", "start one with `tidegate shaper --console ADDRESS`");
    console.shaper.as_ref().ok_or_else(none)
}

async fn demo_state(State(console): Shared) -> Result<Response, Problem> {
    forward(demo(&console)?, Method::GET, "/state", Bytes::new()).await
}

async fn demo_control(State(console): Shared, Path(control): Path<String>, body: Bytes) -> Result<Response, Problem> {
    if !["load", "spike"].contains(&control.as_str()) {
        return Err(Problem::untyped(StatusCode::NOT_FOUND, "Unknown control", "the demo has `load` and `spike`"));
    }
    forward(demo(&console)?, Method::POST, &format!("/{control}"), body).await
}

fn demo(console: &Console) -> Result<&AdminClient, Problem> {
    let none = || Problem::untyped(StatusCode::NOT_FOUND, "No demo", "start one with `tidegate demo`");
    console.demo.as_ref().ok_or_else(none)
}

/// Passes a request on and its answer back: status, type and body.
async fn forward(client: &AdminClient, method: Method, path: &str, body: Bytes) -> Result<Response, Problem> {
    let answer = client.send(method, path, body).await.map_err(|error| bad_gateway(&error))?;
    let (head, body) = answer.into_parts();
    // A broker that refuses *our* token must not look like the page's token being wrong.
    if matches!(head.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let detail = "the console's token is not the one that is wanted there; compare the two configurations";
        return Err(Problem::untyped(StatusCode::BAD_GATEWAY, "Console refused", detail));
    }
    let mut response = (head.status, body).into_response();
    if let Some(content_type) = head.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type.clone());
    }
    Ok(response)
}

fn bad_gateway(error: &AdminError) -> Problem {
    Problem::untyped(StatusCode::BAD_GATEWAY, "Unreachable", with_causes(error))
}
