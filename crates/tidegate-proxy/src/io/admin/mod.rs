//! The proxy's own API: who shares it, how it stands with routes and upstreams, what would happen to a request.
//!
//! | path | what |
//! |---|---|
//! | `GET /api/v1/neighbours` | tenants and resources now: shares, demand, use, refusals, who lends to whom |
//! | `POST /api/v1/neighbours/mode` | `{"mode":"restrict"}`, `stats` or `off`, until the next start |
//! | `GET /api/v1/proxy` | listeners, routes, upstreams and their health, rate limits |
//! | `GET /api/v1/explain?host=..&path=..` | which route and tenant a request has, and what would happen to it |
//! | `GET /api/v1/node` | that it is a proxy, whether it ends, and the limits that parts are granted of |
//! | `GET`, `PUT /api/v1/parts`, `DELETE /api/v1/parts/LIMIT?revision=N` | its parts of rates that several proxies divide |
//! | `GET /api/v1/demand/LIMIT?seconds=N` | requests, refusals and the largest backlog of each second |
//! | `GET /healthz`, `GET /readyz`, `GET /metrics` | for supervisors and Prometheus |
//!
//! Writes need the token. Errors are `application/problem+json`.

pub mod explain;
mod metrics;
pub mod parts;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tidegate_runtime::access::Guard;
use tidegate_runtime::http::{self, Problem};

use self::explain::{Question, explain};
use self::parts::Limits;
use self::status::{Live, Phase, Status};
use crate::config::{Config, Mode, Routes, Tenancy};
use crate::io::request::times::ResponseTimes;
use crate::machine::neighbours::Snapshot;

/// Largest body of a request. A mode takes twenty bytes.
const MOST_BODY_BYTES: usize = 4 << 10;

/// What the API stands on: a proxy that runs.
pub trait Source: Send + Sync + 'static {
    /// What it runs with.
    fn config(&self) -> Arc<Config>;
    /// How it tells tenants apart.
    fn tenancy(&self) -> Tenancy;
    /// Who shares it, over all its threads.
    fn neighbours(&self) -> Snapshot;
    /// What it counted.
    fn live(&self) -> Live;
    /// How long answers took, over all its threads.
    fn times(&self) -> ResponseTimes;
    /// Its limits by hand, as parts of them are granted.
    fn limits(&self) -> Limits;
    /// From now on the limits do this.
    fn set_mode(&self, mode: Mode);
}

type Shared = State<Arc<dyn Source>>;

/// The API.
pub fn router(source: Arc<dyn Source>, guard: Guard) -> Router {
    Router::new()
        .route("/api/v1/neighbours", get(neighbours))
        .route("/api/v1/neighbours/mode", post(set_mode))
        .route("/api/v1/proxy", get(proxy))
        .route("/api/v1/explain", get(explain_request))
        .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(page_of_metrics))
        .merge(parts::routes())
        .fallback(|| async { Problem::not_found("this path leads nowhere; see the book's page on the proxy") })
        .method_not_allowed_fallback(|| async {
            let detail = "the path exists, but not for this method; see the book's page on the proxy";
            Problem::method_not_allowed(detail)
        })
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .layer(from_fn_with_state(Arc::new(guard), http::guard))
        .with_state(source)
}

async fn neighbours(State(source): Shared) -> Json<Snapshot> {
    Json(source.neighbours())
}

async fn proxy(State(source): Shared) -> Json<Status> {
    Json(Status::of(&source.config(), &source.live()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeBody {
    mode: Mode,
}

async fn set_mode(State(source): Shared, body: Result<Json<ModeBody>, JsonRejection>) -> Result<Response, Problem> {
    let Json(ModeBody { mode }) = body.map_err(|rejection| {
        Problem::bad_request(format!("{rejection}; send {{\"mode\":\"restrict\"}}, \"stats\" or \"off\""))
    })?;
    source.set_mode(mode);
    tracing::info!(?mode, "the limits have another mode until the next start");
    Ok(Json(json!({ "mode": mode })).into_response())
}

async fn explain_request(
    State(source): Shared,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(question) = question.map_err(|rejection| {
        Problem::bad_request(format!(
            "{rejection}; the parameters are host, path, method, sni, header, tenant and client"
        ))
    })?;
    let config = source.config();
    let (routes, tenancy) = (Routes::new(&config), source.tenancy());
    let explained = explain(&config, &routes, &tenancy, &source.neighbours(), &source.live(), &question);
    Ok(Json(explained).into_response())
}

async fn ready(State(source): Shared) -> Result<Response, Problem> {
    if source.live().phase == Phase::Serving {
        return Ok(Json(json!({ "status": "ready" })).into_response());
    }
    let detail = "the proxy is ending: requests under way are finished, new ones belong elsewhere";
    Err(Problem::not_ready(detail))
}

async fn page_of_metrics(State(source): Shared) -> Response {
    let live = Live { times: source.times(), ..source.live() };
    let page = metrics::page(&source.config(), &source.neighbours(), &live);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}
