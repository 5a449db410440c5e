//! What the broker is and does: the snapshot, health, metrics.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tidegate_runtime::http::Problem;
use tidegate_runtime::{clock, process};
use tidegate_wire::nsq::TopicName;

use super::actions::{channel_name, topic_name};
use super::metrics::Metrics;
use super::outcome::exiting;
use super::{Phase, Shared};
use crate::machine::admin::{AdminReply, AdminRequest, Delays, SnapshotScope};
use crate::machine::snapshot::{ShardSnapshot, TopicSnapshot};

/// How long the shards may take to answer. They answer between two batches of messages.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to put into a snapshot.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Scope {
    clients: bool,
    topic: Option<String>,
    channel: Option<String>,
}

#[derive(Serialize)]
struct Snapshot<'a> {
    version: &'static str,
    phase: &'static str,
    node: &'a str,
    start_time_s: i64,
    now_ms: i64,
    uptime_s: f64,
    durability: &'static str,
    memory_bytes: u64,
    connections: u64,
    topics: Vec<TopicSnapshot>,
    shards: Vec<ShardJson>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ShardJson {
    shard: usize,
    connections: u64,
    log_error: Option<String>,
}

/// `GET /api/v1/snapshot`.
pub(super) async fn snapshot(
    State(shared): State<Shared>,
    scope: Result<Query<Scope>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(scope) = scope.map_err(|rejection| {
        Problem::bad_request(format!("{rejection}; the parameters are clients=true, topic and channel"))
    })?;
    let scope = SnapshotScope {
        topic: scope.topic.as_deref().map(topic_name).transpose()?,
        channel: scope.channel.as_deref().map(channel_name).transpose()?,
        clients: scope.clients,
        delays: Delays::With,
    };
    let only = scope.topic.clone();
    let mut shards = shared.ask(scope).await?;
    let mut topics: Vec<_> = shards.iter_mut().flat_map(|shard| std::mem::take(&mut shard.topics)).collect();
    topics.retain(|topic| only.as_ref().is_none_or(|only| only.as_str() == topic.name));
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    let admin = &shared.admin;
    let snapshot = Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        phase: match *admin.phase.borrow() {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Draining => "draining",
        },
        node: &admin.node.hostname,
        start_time_s: admin.node.start_time_s,
        now_ms: clock::realtime_ns() / 1_000_000,
        uptime_s: shared.uptime_s(),
        durability: admin.config.durability.as_str(),
        memory_bytes: process::resident_bytes().unwrap_or(0),
        connections: shards.iter().map(|shard| shard.connections).sum(),
        topics,
        warnings: shared.warnings(&shards),
        shards: shards.into_iter().map(ShardJson::from).collect(),
    };
    Ok(Json(snapshot).into_response())
}

/// `GET /healthz`: 503 while a shard does not answer or cannot write its log; 200 while the broker saves its messages to end.
pub(super) async fn health(State(shared): State<Shared>) -> Result<Response, Problem> {
    if *shared.admin.phase.borrow() == Phase::Draining {
        // Its messages are being saved: nobody should kill it for a shard that has ended already.
        return Ok(Json(serde_json::json!({ "status": "draining" })).into_response());
    }
    let shards = shared.ask(SnapshotScope { topic: TopicName::new("-").ok(), ..SnapshotScope::default() }).await?;
    if let Some((shard, error)) = shards.iter().find_map(|shard| Some((shard.shard, shard.log_error.as_ref()?))) {
        let detail = format!("shard {shard} cannot write its message log: {error}; free space or mend the disk");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "log", "The message log fails", detail));
    }
    Ok(Json(serde_json::json!({ "status": "ok" })).into_response())
}

/// `GET /readyz`: 200 while the broker wants connections.
pub(super) async fn ready(State(shared): State<Shared>) -> Result<Response, Problem> {
    let drained = *shared.admin.live.draining.borrow();
    let detail = match *shared.admin.phase.borrow() {
        Phase::Serving if drained => "draining: this node takes no new publishers, as POST /api/v1/drain asked",
        Phase::Serving => return Ok(Json(serde_json::json!({ "status": "ready" })).into_response()),
        Phase::Starting => "the broker is still reading its data folder",
        Phase::Draining => "draining: the broker is shutting down, and its messages are being saved",
    };
    Err(Problem::not_ready(detail))
}

/// `GET /metrics`.
pub(super) async fn metrics(State(shared): State<Shared>) -> Result<Response, Problem> {
    let mut shards = shared.ask(SnapshotScope::default()).await?;
    let mut topics: Vec<_> = shards.iter_mut().flat_map(|shard| std::mem::take(&mut shard.topics)).collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    // Beside what the broker is for: a page without it is better than none.
    let lending = shared.lending().await.unwrap_or_default();
    let metrics = Metrics {
        topics: &topics,
        connections: shards.iter().map(|shard| shard.connections).sum(),
        broken_logs: shards.iter().filter(|shard| shard.log_error.is_some()).count() as u64,
        resident_bytes: process::resident_bytes().unwrap_or(0),
        uptime_s: shared.uptime_s(),
        // A counter of its own; nothing else is ordered by it.
        dropped_before: shared.series_dropped.load(Ordering::Relaxed),
        draining: *shared.admin.live.draining.borrow(),
        lending: &lending,
    };
    let (page, dropped) = metrics.page();
    shared.series_dropped.fetch_add(dropped, Ordering::Relaxed);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}

/// What shards answer, if they do so in time.
pub(super) async fn patiently<T>(answer: impl Future<Output = T>) -> Result<T, Problem> {
    tokio::time::timeout(PATIENCE, answer).await.map_err(|_| {
        let detail = format!("no answer from every shard within {PATIENCE:?}; the broker is stuck or overloaded");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stuck", "The broker does not answer", detail)
    })
}

impl Shared {
    /// Every shard's snapshot, in their order.
    async fn ask(&self, scope: SnapshotScope) -> Result<Vec<ShardSnapshot>, Problem> {
        let request = AdminRequest::Snapshot(scope);
        let replies = patiently(self.admin.broker.ask_all(&request)).await?;
        let snapshot = |reply| if let AdminReply::Snapshot(snapshot) = reply { Some(*snapshot) } else { None };
        let snapshots: Vec<_> = replies.into_iter().filter_map(snapshot).collect();
        if snapshots.is_empty() { Err(exiting()) } else { Ok(snapshots) }
    }

    fn uptime_s(&self) -> f64 {
        (clock::now() - self.admin.node.started).as_secs_f64()
    }

    fn warnings(&self, shards: &[ShardSnapshot]) -> Vec<String> {
        let admin = &self.admin;
        let mut warnings: Vec<_> = admin.config.warnings.iter().map(ToString::to_string).collect();
        let lookupds = !admin.live.lookupd_addresses.borrow().is_empty();
        if lookupds && !admin.limits.in_force().is_empty() {
            warnings.push(
                "Limits hold for this broker alone. Publishers find others through nsqlookupd: the same limit on n brokers \
                 admits n times its rate."
                    .to_owned(),
            );
        }
        if *admin.live.draining.borrow() {
            warnings.push("The node is draining: it takes no new publishers.".to_owned());
        }
        if *admin.phase.borrow() == Phase::Draining {
            warnings.push("The broker is shutting down: its messages are being saved.".to_owned());
        }
        for shard in shards {
            if let Some(error) = &shard.log_error {
                warnings.push(format!("Shard {} cannot write its message log: {error}.", shard.shard));
            }
        }
        warnings
    }
}

impl From<ShardSnapshot> for ShardJson {
    fn from(shard: ShardSnapshot) -> Self {
        Self { shard: shard.shard, connections: shard.connections, log_error: shard.log_error }
    }
}
