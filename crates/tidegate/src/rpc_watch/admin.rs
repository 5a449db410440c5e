//! The admin API of an RPC server: two reads, on loopback.
//!
//! It changes nothing, so it wants no token. A page that was lured to resolve its own name to this machine sends that name
//! and is refused.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tidegate_core::Instant;
use tidegate_runtime::access::{Guard, Reach};
use tidegate_runtime::{clock, http};

use super::metrics;
use super::snapshot::Snapshot;
use super::watched::Watch;

/// What is shown.
pub(crate) struct Source {
    pub(crate) scheme: &'static str,
    pub(crate) since: Instant,
    /// One for each shard.
    pub(crate) watches: Vec<Watch>,
}

impl Source {
    fn snapshot(&self) -> Snapshot {
        let seen: Vec<_> = self.watches.iter().map(Watch::look).collect();
        Snapshot::of(self.scheme, self.since, &seen, clock::now())
    }
}

/// `GET /api/v1/rpc` and `GET /metrics`.
pub(super) fn router(source: Source) -> Router {
    let guard = Guard { token: None, reach: Reach::Loopback };
    Router::new()
        .route("/api/v1/rpc", get(snapshot))
        .route("/metrics", get(page))
        .layer(from_fn_with_state(Arc::new(guard), http::guard))
        .with_state(Arc::new(source))
}

async fn snapshot(State(source): State<Arc<Source>>) -> Json<Snapshot> {
    Json(source.snapshot())
}

async fn page(State(source): State<Arc<Source>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::page(&source.snapshot()))
        .into_response()
}
