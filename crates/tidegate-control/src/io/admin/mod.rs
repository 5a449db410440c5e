//! Control's own API.
//!
//! | path | what |
//! |---|---|
//! | `GET /api/v1/control` | everything: nodes, topics, parts, reasons in words, measured and predicted, the store's health |
//! | `GET /api/v1/placement/{topic}[?after=REV&wait_ms=30000]` | where publishers belong; waits for a change after REV |
//! | `POST /api/v1/place/{topic}[?dry_run=true]` | a new plan; or what it would be, without touching anything |
//! | `GET /api/v1/topics/{topic}/k?k=2[&b=26]`, `POST` with `{"k": 2, "b": 26}` | what if it were on k brokers |
//! | `GET /healthz`, `GET /readyz`, `GET /metrics` | for supervisors and Prometheus |
//!
//! Writes need the token. Errors are `application/problem+json`.

mod metrics;
mod place;
mod placement;
mod what_if;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tidegate_runtime::access::Guard;
use tidegate_runtime::http::{Problem, guard};

use super::view::ControlView;
use super::{ClaimHandle, Shared};

/// Largest body of a request. A question takes thirty bytes.
const BODY_BYTES_MAX: usize = 4 << 10;
/// When one that found no room may ask again.
const RETRY_AFTER_S: u32 = 1;

type Asked = State<Arc<Shared>>;

/// The API.
pub fn router(shared: Arc<Shared>, access: Guard) -> Router {
    Router::new()
        .route("/api/v1/control", get(control))
        .route("/api/v1/placement/{topic}", get(placement::get))
        .route("/api/v1/place/{topic}", post(place::post))
        .route("/api/v1/topics/{topic}/k", get(what_if::get).post(what_if::post))
        .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(page_of_metrics))
        .fallback(|| async { Problem::not_found("this path leads nowhere; see the book's page on control") })
        .method_not_allowed_fallback(|| async {
            Problem::method_not_allowed("the path exists, but not for this method; see the book's page on control")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::new(access), guard))
        .with_state(shared)
}

async fn control(State(shared): Asked) -> Json<ControlView> {
    Json(ControlView::of(&shared))
}

/// Ready is who has read the store: it leads, or knows who does.
async fn ready(State(shared): Asked) -> Result<Response, Problem> {
    let health = shared.kept.health();
    match (health.answered, health.error) {
        (Some(_), None) => Ok(Json(json!({ "status": "ready" })).into_response()),
        (_, Some(error)) => Err(Problem::not_ready(format!("the store does not answer: {error}"))),
        (None, None) => Err(Problem::not_ready("the store was not read yet")),
    }
}

async fn page_of_metrics(State(shared): Asked) -> Response {
    let page = metrics::page(&ControlView::of(&shared));
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

impl Shared {
    fn claim(&self, topic: &str) -> Result<ClaimHandle, Problem> {
        self.declared().claims.get(topic).cloned().ok_or_else(|| {
            let shown: String = topic.chars().take(80).collect();
            Problem::not_found(format!("`{shown}` is not declared; add a [[control.topic]] of that name to the file"))
        })
    }

    /// Only the leader plans; who it is stands in the answer.
    fn must_lead(&self) -> Result<(), Problem> {
        let leader = match &*self.standing.borrow() {
            super::lead::Standing::Leads { .. } => return Ok(()),
            super::lead::Standing::Follows { leader } => leader.clone(),
        };
        let who = leader.map_or_else(
            || "nobody does for the moment: try again in a few seconds".to_owned(),
            |leader| format!("ask {}, which does, at {}", leader.name, leader.admin),
        );
        let detail = format!("this process does not lead; {who}");
        Err(Problem::new(StatusCode::CONFLICT, "follows", "Another process leads", detail))
    }
}

/// All places are taken.
fn busy(what: &str) -> Problem {
    let detail = format!("{what}; try again in a second");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "Too many requests at a time", detail)
        .retry_after_s(RETRY_AFTER_S)
}
