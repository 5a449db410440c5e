//! The demo's control: what the page reads, its slider and its button.
//!
//! Only the console speaks to it, on behalf of a page whose token it has checked. A browser that found the port by
//! itself sends an `Origin` with its write and is refused; so is one that needs no leave to send one, as it cannot say
//! that its content is JSON.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use tidegate_runtime::clock;

use super::stage::{self, Stage};

/// The control of `stage`.
pub(crate) fn router(stage: Arc<Stage>) -> Router {
    Router::new().route("/state", get(state)).route("/load", post(load)).route("/spike", post(spike)).with_state(stage)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    pub(super) load: f64,
}

async fn state(State(stage): State<Arc<Stage>>) -> Json<stage::State> {
    Json(stage.state())
}

async fn load(State(stage): State<Arc<Stage>>, headers: HeaderMap, Json(wanted): Json<Load>) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    match stage.set_load(wanted.load) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => problem(StatusCode::BAD_REQUEST, "No such load", &error.to_string()),
    }
}

async fn spike(State(stage): State<Arc<Stage>>, headers: HeaderMap) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    stage.spike(clock::now());
    StatusCode::NO_CONTENT.into_response()
}

pub(super) fn refuse_browsers(headers: &HeaderMap) -> Option<Response> {
    let foreign = headers.contains_key(header::ORIGIN);
    foreign.then(|| problem(StatusCode::FORBIDDEN, "Foreign origin", "use the page that the demo printed at start"))
}

pub(super) fn problem(status: StatusCode, title: &str, detail: &str) -> Response {
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
