//! What a hop shows of itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tidegate_runtime::access::Guard;
use tidegate_runtime::http::{self, Problem};

use super::book::TopicRow;
use super::config::Source;
use super::figures::Totals;
use super::steer::Shared;

/// Publishers that are listed; the others are counted.
const PUBLISHERS_SHOWN: usize = 1_000;
/// The text format that Prometheus reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /api/v1/steer`.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// `serving` or `draining`.
    phase: &'static str,
    /// `nodes`, `file` or `control`.
    placements_from: &'static str,
    /// The file, or the address of the control plane.
    source: Option<String>,
    totals: Totals,
    topics: Vec<TopicRow>,
    publishers: Vec<PublisherRow>,
    /// Publishers that are not listed.
    others: usize,
}

#[derive(Serialize)]
struct PublisherRow {
    identity: String,
    remote: String,
    topics: Vec<PlaceRow>,
}

#[derive(Serialize)]
struct PlaceRow {
    topic: String,
    /// Absent before its first command.
    node: Option<String>,
}

pub(super) fn router(shared: Arc<Shared>, guard: Guard) -> Router {
    Router::new()
        .route("/api/v1/steer", get(report))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .layer(from_fn_with_state(Arc::new(guard), http::guard))
        .with_state(shared)
}

async fn report(State(shared): State<Arc<Shared>>) -> Json<Report> {
    let (placements_from, source) = match &shared.config.source {
        Source::Nodes => ("nodes", None),
        Source::File(file) => ("file", Some(file.display().to_string())),
        Source::Control(base) => ("control", Some(base.clone())),
    };
    // Copied first: names are looked up under another lock.
    let rows = shared.rows();
    let others = rows.len().saturating_sub(PUBLISHERS_SHOWN);
    let shown: Vec<_> = rows.values().take(PUBLISHERS_SHOWN).cloned().collect();
    drop(rows);
    let name = |node| shared.book.name(node).map(|name| name.to_string());
    let publishers = shown.into_iter().map(|row| PublisherRow {
        identity: row.identity,
        remote: row.remote,
        topics: row
            .places
            .into_iter()
            .map(|(topic, node)| PlaceRow { topic: topic.to_string(), node: node.and_then(name) })
            .collect(),
    });
    Json(Report {
        version: env!("CARGO_PKG_VERSION"),
        phase: if *shared.draining.borrow() { "draining" } else { "serving" },
        placements_from,
        source,
        totals: shared.figures.totals(),
        topics: shared.book.rows(),
        publishers: publishers.collect(),
        others,
    })
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, PROMETHEUS)], shared.figures.totals().page()).into_response()
}

/// It lives, and takes producers.
async fn health(State(shared): State<Arc<Shared>>) -> Result<&'static str, Problem> {
    if *shared.draining.borrow() {
        return Err(Problem::not_ready("the hop is being drained"));
    }
    Ok("OK")
}
