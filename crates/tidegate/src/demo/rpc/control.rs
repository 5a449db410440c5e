//! The control of the demo of RPC: what the page reads, its slider and its button.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::desk::{self, Desk};
use crate::demo::control::{Load, problem, refuse_browsers};

/// The control of `desk`.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    Router::new().route("/state", get(state)).route("/load", post(load)).route("/spike", post(spike)).with_state(desk)
}

async fn state(State(desk): State<Arc<Desk>>) -> Json<desk::State> {
    Json(desk.state())
}

async fn load(State(desk): State<Arc<Desk>>, headers: HeaderMap, Json(wanted): Json<Load>) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    match desk.set_load(wanted.load) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => problem(StatusCode::BAD_REQUEST, "No such load", &error.to_string()),
    }
}

async fn spike(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    desk.spike();
    StatusCode::NO_CONTENT.into_response()
}
