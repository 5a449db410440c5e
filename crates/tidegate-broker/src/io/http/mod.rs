//! nsqd's HTTP API, as of nsqd 1.3.0: paths, parameters, status codes, words for errors, and the shapes of its JSON.
//!
//! | module | its one job |
//! |---|---|
//! | [`serve`] | a listener, plain or with TLS, in front of a router |
//! | [`access`] | who may write |
//! | [`client`] | GET, for nsqlookupd and AUTH servers |
//! | `query`, `body`, `answer` | a request's parts within bounds, and answers in nsqd's form |
//! | `publish`, `settings`, `stats`, `stats_text`, `debug` | the endpoints |
//!
//! A refusal that nsqd does not know has a status of its own: 429 for a topic out of tokens, 503 for a queue at its
//! bound.

pub mod access;
mod answer;
mod body;
pub mod client;
mod debug;
mod publish;
pub(crate) mod query;
pub mod serve;
mod settings;
mod stats;
mod stats_text;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::ALLOW;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tidegate_core::Instant;
use tidegate_runtime::{clock, process};
use tidegate_wire::nsq::{ChannelName, TopicName};
use tokio::sync::watch;

use self::answer::{Answer, Refusal, outcome, plain, tls_required};
use self::body::Bodies;
use self::debug::Debug;
use self::query::Query;
use self::stats::Stats;
pub(super) use self::stats::{accepted, accepted_bytes, depth};
use self::stats_text::StatsText;
use super::handle::BrokerHandle;
use crate::config::{Config, LogLevel};
use crate::machine::admin::{AdminReply, AdminRequest, Delays, Pause, SnapshotScope};
use crate::machine::snapshot::ShardSnapshot;

/// The version of nsqd whose behaviour this is. nsqadmin and nsqlookupd read it as a semantic version and warn about
/// brokers that are behind.
pub const NSQD_VERSION: &str = "1.3.0";

/// Where something listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listening {
    /// On this TCP port.
    Port(u16),
    /// On a unix socket.
    Unix,
    /// Nowhere.
    Nowhere,
}

impl Listening {
    /// The port as `/info` shows it.
    fn info(self) -> i32 {
        match self {
            Self::Port(port) => port.into(),
            Self::Unix => -1,
            Self::Nowhere => 0,
        }
    }
}

/// Who this broker is.
#[derive(Clone, Debug)]
pub struct Node {
    /// The host's name.
    pub hostname: String,
    /// The NSQ protocol.
    pub tcp: Listening,
    /// This API, plain.
    pub http: Listening,
    /// When the broker started.
    pub started: Instant,
    /// The same as Unix time, s.
    pub start_time_s: i64,
}

/// What `PUT /config/{option}` and the admin API change; whoever follows a value holds a receiver of it.
#[derive(Clone, Debug)]
pub struct Live {
    /// `host:port` of each nsqlookupd.
    pub lookupd_addresses: watch::Sender<Vec<String>>,
    /// Least severity that is logged.
    pub log_level: watch::Sender<LogLevel>,
    /// Whether new publishers are refused, as the admin API says.
    pub draining: watch::Sender<bool>,
}

impl Live {
    /// What the configuration starts with.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            lookupd_addresses: watch::Sender::new(config.lookupd_tcp_addresses.clone()),
            log_level: watch::Sender::new(config.log_level),
            draining: watch::Sender::new(false),
        }
    }
}

/// What the API stands on.
#[derive(Clone)]
pub struct ApiState {
    broker: BrokerHandle,
    config: Arc<Config>,
    node: Arc<Node>,
    live: Live,
    bodies: Bodies,
}

impl ApiState {
    /// The API of `broker`, which runs with `config`.
    #[must_use]
    pub fn new(broker: BrokerHandle, config: Arc<Config>, node: Node, live: Live) -> Self {
        Self { broker, config, node: Arc::new(node), live, bodies: Bodies::new() }
    }
}

/// The API. It is the same on the plain and on the TLS listener.
pub fn router(state: ApiState) -> Router {
    Router::new().fallback(dispatch).with_state(state)
}

/// What the plain listener serves when TLS is required: where to find the other one.
pub fn tls_required_router(https_port: u16) -> Router {
    Router::new().fallback(move || async move { tls_required(https_port) })
}

/// A path of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Endpoint {
    Ping,
    Info,
    Stats,
    Publish,
    PublishMany,
    Topic(Verb),
    Channel(Verb),
    Setting(String),
    Debug(Debug),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Create,
    Delete,
    Empty,
    Pause(Pause),
}

impl Verb {
    fn at(path: &str) -> Option<Self> {
        Some(match path {
            "create" => Self::Create,
            "delete" => Self::Delete,
            "empty" => Self::Empty,
            "pause" => Self::Pause(Pause::Paused),
            "unpause" => Self::Pause(Pause::Flowing),
            _ => return None,
        })
    }
}

impl Endpoint {
    fn at(path: &str) -> Option<Self> {
        let (first, rest) = path.strip_prefix('/')?.split_once('/').map_or((&path[1..], None), |(a, b)| (a, Some(b)));
        match (first, rest) {
            ("ping", None) => Some(Self::Ping),
            ("info", None) => Some(Self::Info),
            ("stats", None) => Some(Self::Stats),
            ("pub", None) => Some(Self::Publish),
            ("mpub", None) => Some(Self::PublishMany),
            ("topic", Some(verb)) => Verb::at(verb).map(Self::Topic),
            ("channel", Some(verb)) => Verb::at(verb).map(Self::Channel),
            ("config", Some(option)) if !option.is_empty() && !option.contains('/') => {
                Some(Self::Setting(option.to_owned()))
            }
            ("debug", Some(path)) => Debug::at(path).map(Self::Debug),
            _ => None,
        }
    }

    /// The methods as the header `Allow` lists them. OPTIONS is answered everywhere, HEAD nowhere.
    fn allowed(&self) -> &'static str {
        match self {
            Self::Setting(_) => "GET, OPTIONS, PUT",
            Self::Debug(Debug::SetBlockRate) => "OPTIONS, PUT",
            Self::Debug(Debug::Symbol) => "GET, OPTIONS, POST",
            Self::Debug(Debug::FreeMemory) | Self::Publish | Self::PublishMany | Self::Topic(_) | Self::Channel(_) => {
                "OPTIONS, POST"
            }
            Self::Ping | Self::Info | Self::Stats | Self::Debug(_) => "GET, OPTIONS",
        }
    }
}

async fn dispatch(State(api): State<ApiState>, request: Request) -> Response {
    let Some(endpoint) = Endpoint::at(request.uri().path()) else {
        return Refusal::NOT_FOUND.into_response();
    };
    let allowed = endpoint.allowed();
    if !allowed.split(", ").any(|method| method == request.method().as_str()) {
        return Refusal::method_not_allowed(allowed);
    }
    if request.method() == Method::OPTIONS {
        return [(ALLOW, allowed)].into_response();
    }
    let answer = match endpoint {
        Endpoint::Ping => return api.ping().await,
        Endpoint::Debug(debug) => return debug.answer(),
        Endpoint::Info => Ok(api.info()),
        Endpoint::Stats => api.stats(request.uri()).await,
        Endpoint::Publish => api.publish(request).await,
        Endpoint::PublishMany => api.publish_many(request).await,
        Endpoint::Topic(verb) => api.topic(verb, request.uri()).await,
        Endpoint::Channel(verb) => api.channel(verb, request.uri()).await,
        Endpoint::Setting(option) => api.setting(&option, request).await,
    };
    answer.into_response()
}

impl ApiState {
    async fn ping(&self) -> Response {
        // A topic of a name that none has: the health of every shard without its topics.
        let nothing = SnapshotScope { topic: TopicName::new("-").ok(), ..SnapshotScope::default() };
        match stats::health(&self.snapshots(nothing).await) {
            Ok(health) => plain(StatusCode::OK, health),
            Err(health) => plain(StatusCode::INTERNAL_SERVER_ERROR, health),
        }
    }

    async fn snapshots(&self, scope: SnapshotScope) -> Vec<ShardSnapshot> {
        let replies = self.broker.ask_all(&AdminRequest::Snapshot(scope)).await;
        let snapshot = |reply| if let AdminReply::Snapshot(snapshot) = reply { Some(*snapshot) } else { None };
        replies.into_iter().filter_map(snapshot).collect()
    }

    /// `GET /stats[?format=json][&topic=..][&channel=..][&include_clients=..][&include_mem=..]`.
    async fn stats(&self, uri: &Uri) -> Result<Answer, Refusal> {
        let query = Query::of(uri)?;
        let named = |key| query.first(key).filter(|name| !name.is_empty());
        let (topic, channel) = (named("topic"), named("channel"));
        let clients = query.switch("include_clients").unwrap_or(true);
        let scope = SnapshotScope {
            topic: topic.and_then(|name| TopicName::new(name).ok()),
            channel: channel.and_then(|name| ChannelName::new(name).ok()),
            clients,
            delays: Delays::Without,
        };
        let shards = self.snapshots(scope).await;
        let (Ok(health) | Err(health)) = stats::health(&shards);
        let (mut topics, producers) = stats::merge(shards);
        if let Some(name) = topic {
            topics.retain(|topic| topic.name == name);
        }
        let unknown = topic.is_some() && topics.is_empty();
        if let Some(name) = channel {
            for topic in &mut topics {
                topic.channels.retain(|channel| channel.name == name);
            }
            topics.retain(|topic| !topic.channels.is_empty());
        }
        let stats = Stats {
            topics: (!unknown).then_some(topics),
            producers: if unknown { Vec::new() } else { producers },
            health,
            start_time: self.node.start_time_s,
            resident_bytes: query.switch("include_mem").unwrap_or(true).then(process::resident_bytes).flatten(),
            quantiles: self.config.e2e_percentiles.clone(),
            clients,
        };
        if query.first("format") == Some("json") {
            return Ok(Answer::Json(stats.to_json()));
        }
        let now_s = clock::realtime_ns().div_euclid(1_000_000_000);
        let uptime = clock::now() - self.node.started;
        Ok(Answer::Text(StatsText { stats: &stats, now_s, uptime }.to_string().into()))
    }

    /// `POST /topic/{verb}?topic=..`.
    async fn topic(&self, verb: Verb, uri: &Uri) -> Result<Answer, Refusal> {
        let invalid = match verb {
            Verb::Create | Verb::Empty => Refusal::bad("INVALID_TOPIC"),
            // These do not look at the name, and a topic of such a name does not exist.
            Verb::Delete | Verb::Pause(_) => Refusal::TOPIC_NOT_FOUND,
        };
        let topic = Query::of(uri)?.topic(invalid)?;
        let request = match verb {
            Verb::Create => AdminRequest::CreateTopic(topic.clone()),
            Verb::Delete => AdminRequest::DeleteTopic(topic.clone()),
            Verb::Empty => AdminRequest::EmptyTopic(topic.clone()),
            Verb::Pause(pause) => AdminRequest::PauseTopic(topic.clone(), pause),
        };
        outcome(self.broker.ask_topic(&topic, request).await).map(|()| Answer::Done)
    }

    /// `POST /channel/{verb}?topic=..&channel=..`.
    async fn channel(&self, verb: Verb, uri: &Uri) -> Result<Answer, Refusal> {
        let (topic, channel) = Query::of(uri)?.topic_and_channel()?;
        let request = match verb {
            Verb::Create => AdminRequest::CreateChannel(topic.clone(), channel),
            Verb::Delete => AdminRequest::DeleteChannel(topic.clone(), channel),
            Verb::Empty => AdminRequest::EmptyChannel(topic.clone(), channel),
            Verb::Pause(pause) => AdminRequest::PauseChannel(topic.clone(), channel, pause),
        };
        outcome(self.broker.ask_topic(&topic, request).await).map(|()| Answer::Done)
    }
}
