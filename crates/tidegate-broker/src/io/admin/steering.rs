//! What moves publishers from node to node: readiness of topics, letting publishers go, draining, and who the node is.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_runtime::http::Problem;
use tidegate_wire::nsq::ChannelName;

use super::actions::{channel_name, topic_name};
use super::outcome::{exiting, outcome};
use super::{Phase, Shared};
use crate::io::http::Listening;
use crate::machine::admin::{AdminReply, AdminRequest, Creation, Newcomers, Readiness};

/// Most publishers of one request.
const IDENTITIES_MAX: usize = 1_000;
/// Bytes of a body: the most identities, of 128 bytes each, with every byte escaped.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/topics/{topic}/prepare", get(look).post(prepare))
        .route("/api/v1/publishers/{topic}/disconnect", post(disconnect).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)))
        .route("/api/v1/drain", post(drain))
        .route("/api/v1/node", get(node))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Channels {
    channels: Vec<String>,
}

/// The same in a query: names with commas between.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ChannelsQuery {
    channels: Option<String>,
}

#[derive(Serialize)]
struct ReadyJson {
    ready: bool,
    missing: Vec<String>,
    started: bool,
    draining: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identities {
    identities: Vec<String>,
}

#[derive(Serialize)]
struct DisconnectedJson {
    /// Publishers whose connections are being closed.
    disconnected: Vec<String>,
    /// Identities of the request that have no connection to this broker.
    unknown: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    draining: bool,
}

#[derive(Serialize)]
struct NodeJson {
    name: String,
    draining: bool,
    phase: &'static str,
    nsq_address: Option<String>,
    shards: usize,
    mcap_per_s: Option<f64>,
    /// Where its shards take the datagrams of lending, by their numbers; empty if they take none.
    lend_addresses: Vec<String>,
}

/// `GET /api/v1/topics/{topic}/prepare[?channels=a,b]`.
async fn look(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    query: Result<Query<ChannelsQuery>, QueryRejection>,
) -> Result<Json<ReadyJson>, Problem> {
    let Query(query) =
        query.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is channels=A,B")))?;
    let names = query.channels.as_deref().unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let channels = names.map(channel_name).collect::<Result<Vec<_>, _>>()?;
    shared.ask_readiness(&topic, channels, Creation::Never).await
}

/// `POST /api/v1/topics/{topic}/prepare`.
async fn prepare(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ReadyJson>, Problem> {
    let Channels { channels } = parse(body, r#"{"channels": ["a", "b"]}"#)?;
    let channels = channels.iter().map(|name| channel_name(name)).collect::<Result<Vec<_>, _>>()?;
    shared.ask_readiness(&topic, channels, Creation::IfMissing).await
}

/// `POST /api/v1/publishers/{topic}/disconnect`.
async fn disconnect(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DisconnectedJson>, Problem> {
    let topic = topic_name(&topic)?;
    let Identities { identities } = parse(body, r#"{"identities": ["sensor-7@box"]}"#)?;
    if !(1..=IDENTITIES_MAX).contains(&identities.len()) {
        let detail = format!("`identities` has {} names; give 1 to {IDENTITIES_MAX}", identities.len());
        return Err(Problem::bad_request(detail));
    }
    let identities: Arc<[String]> = identities.into();
    let request = AdminRequest::Disconnect { topic: topic.clone(), identities: Arc::clone(&identities) };
    let replies = shared.admin.broker.ask_all(&request).await;
    if replies.is_empty() {
        return Err(exiting());
    }
    let mut found = BTreeSet::new();
    for reply in replies {
        let AdminReply::Disconnected(names) = reply else { return Err(exiting()) };
        found.extend(names);
    }
    let asked: BTreeSet<String> = identities.iter().cloned().collect();
    let unknown = asked.difference(&found).cloned().collect();
    tracing::info!(%topic, publishers = found.len(), "publishers are let go");
    Ok(Json(DisconnectedJson { disconnected: found.into_iter().collect(), unknown }))
}

/// `POST /api/v1/drain`.
async fn drain(State(shared): State<Shared>, body: Result<Bytes, BytesRejection>) -> Result<Json<NodeJson>, Problem> {
    let Drain { draining } = parse(body, r#"{"draining": true}"#)?;
    let newcomers = if draining { Newcomers::Refused } else { Newcomers::Welcome };
    let replies = shared.admin.broker.ask_all(&AdminRequest::SetNewcomers(newcomers)).await;
    if replies.is_empty() {
        return Err(exiting());
    }
    for reply in replies {
        outcome(Some(reply), "drain")?;
    }
    if shared.admin.live.draining.send_replace(draining) != draining {
        tracing::info!(draining, "whether this node refuses new publishers has changed");
    }
    Ok(Json(shared.node_json()))
}

/// `GET /api/v1/node`.
async fn node(State(shared): State<Shared>) -> Json<NodeJson> {
    Json(shared.node_json())
}

impl Shared {
    async fn ask_readiness(
        &self,
        name: &str,
        channels: Vec<ChannelName>,
        creation: Creation,
    ) -> Result<Json<ReadyJson>, Problem> {
        let topic = topic_name(name)?;
        let request = AdminRequest::Prepare { topic: topic.clone(), channels, creation };
        let Readiness { started, missing } = match self.admin.broker.ask_topic(&topic, request).await {
            Some(AdminReply::Readiness(readiness)) => readiness,
            other => {
                outcome(other, name)?;
                return Err(exiting());
            }
        };
        let draining = *self.admin.live.draining.borrow();
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        Ok(Json(ReadyJson { ready: started && missing.is_empty() && !draining, missing, started, draining }))
    }

    fn node_json(&self) -> NodeJson {
        let admin = &self.admin;
        let port = match admin.node.tcp {
            Listening::Port(port) => admin.config.broadcast_tcp_port.or(Some(port)),
            Listening::Unix | Listening::Nowhere => admin.config.broadcast_tcp_port,
        };
        let address = &admin.config.broadcast_address;
        let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        NodeJson {
            name: admin.node.hostname.clone(),
            draining: *admin.live.draining.borrow(),
            phase: match *admin.phase.borrow() {
                Phase::Starting => "starting",
                Phase::Serving => "serving",
                Phase::Draining => "draining",
            },
            nsq_address: port.map(|port| format!("{host}:{port}")),
            shards: admin.config.shards,
            // A broker does not measure its own capacity; who places topics has benchmarked it.
            mcap_per_s: None,
            lend_addresses: admin.broker.lend_addresses().iter().map(ToString::to_string).collect(),
        }
    }
}

fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>, example: &str) -> Result<T, Problem> {
    let body = body.map_err(|rejection| {
        Problem::new(
            rejection.status(),
            "body",
            "The body cannot be read",
            format!("the body cannot be read ({rejection})"),
        )
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("the body cannot be understood ({error}); send {example}")))
}
