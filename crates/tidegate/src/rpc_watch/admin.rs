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
use tidegate_rpc::telemetry::{Figures, prometheus};
use tidegate_runtime::access::{Guard, Reach};
use tidegate_runtime::{clock, http};

use super::watched::Watch;

/// What is shown.
pub(crate) struct Source {
    pub(crate) scheme: &'static str,
    /// One for each shard.
    pub(crate) watches: Vec<Watch>,
}

impl Source {
    fn figures(&self) -> Figures {
        let now = clock::now();
        let looks: Vec<_> = self.watches.iter().map(|watch| watch.look(now)).collect();
        Figures::of(self.scheme, &looks, now)
    }
}

/// `GET /api/v1/rpc` and `GET /metrics`.
pub(super) fn router(source: Source) -> Router {
    let guard = Guard { token: None, reach: Reach::Loopback };
    Router::new()
        .route("/api/v1/rpc", get(figures))
        .route("/metrics", get(page))
        .layer(from_fn_with_state(Arc::new(guard), http::guard))
        .with_state(Arc::new(source))
}

async fn figures(State(source): State<Arc<Source>>) -> Json<Figures> {
    Json(source.figures())
}

async fn page(State(source): State<Arc<Source>>) -> Response {
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], prometheus::page(&source.figures())).into_response()
}
