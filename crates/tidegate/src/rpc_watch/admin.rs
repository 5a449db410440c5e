//! The admin API of an RPC server: two reads, on loopback.
//!
//! It changes nothing, so it wants no token. A page that was lured to resolve its own name to this machine sends that name
//! and is refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tidegate_core::Instant;
use tidegate_runtime::clock;

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
    Router::new()
        .route("/api/v1/rpc", get(snapshot))
        .route("/metrics", get(page))
        .layer(from_fn(known_host))
        .with_state(Arc::new(source))
}

async fn snapshot(State(source): State<Arc<Source>>) -> Json<Snapshot> {
    Json(source.snapshot())
}

async fn page(State(source): State<Arc<Source>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::page(&source.snapshot()))
        .into_response()
}

async fn known_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_address(host) { next.run(request).await } else { StatusCode::MISDIRECTED_REQUEST.into_response() }
}

/// Whether `host` is `localhost` or a number: no name that somebody else resolves.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_and_localhost_are_served() {
        for host in ["127.0.0.1:4161", "127.0.0.1", "[::1]:4161", "localhost:4161", "LOCALHOST"] {
            assert!(is_address(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:4161", "[", "localhost.evil.example"] {
            assert!(!is_address(host), "{host}");
        }
    }
}
