//! A demo's control: what the page reads, its slider and its button.
//!
//! Only the console speaks to it, on behalf of a page whose token it has checked. A browser that found the port by
//! itself sends an `Origin` with its write and is refused; so is one that needs no leave to send one, as it cannot say
//! that its content is JSON.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_runtime::http::Problem;

/// What a page can do to a demo.
pub(crate) trait Controlled: Send + Sync + 'static {
    /// What the page is shown.
    type State: Serialize + Send;

    fn state(&self) -> Self::State;

    /// Offers `load` from now on, in the demo's own unit.
    fn set_load(&self, load: f64) -> Result<(), BadLoad>;

    /// Plays a spike; one that is under way begins anew.
    fn spike(&self, now: Instant);
}

/// A load that cannot be offered.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("load {found} is not between {from} and {to}")]
pub(crate) struct BadLoad {
    found: f64,
    from: f64,
    to: f64,
}

impl BadLoad {
    /// Whether the slider reaches `load`.
    pub(crate) fn check(load: f64, range: &RangeInclusive<f64>) -> Result<(), Self> {
        let (from, to) = (*range.start(), *range.end());
        if range.contains(&load) { Ok(()) } else { Err(Self { found: load, from, to }) }
    }
}

/// The control of `demo`.
pub(crate) fn router<D: Controlled>(demo: Arc<D>) -> Router {
    Router::new()
        .route("/state", get(state::<D>))
        .route("/load", post(load::<D>))
        .route("/spike", post(spike::<D>))
        .with_state(demo)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    load: f64,
}

async fn state<D: Controlled>(State(demo): State<Arc<D>>) -> Json<D::State> {
    Json(demo.state())
}

async fn load<D: Controlled>(State(demo): State<Arc<D>>, headers: HeaderMap, Json(wanted): Json<Load>) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    match demo.set_load(wanted.load) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::untyped(StatusCode::BAD_REQUEST, "No such load", error.to_string()).into_response(),
    }
}

async fn spike<D: Controlled>(State(demo): State<Arc<D>>, headers: HeaderMap) -> Response {
    if let Some(refusal) = refuse_browsers(&headers) {
        return refusal;
    }
    demo.spike(clock::now());
    StatusCode::NO_CONTENT.into_response()
}

fn refuse_browsers(headers: &HeaderMap) -> Option<Response> {
    let foreign = headers.contains_key(header::ORIGIN);
    let detail = "use the page that the demo printed at start";
    foreign.then(|| Problem::untyped(StatusCode::FORBIDDEN, "Foreign origin", detail).into_response())
}
