//! The shaper's own API.
//!
//! | path | what |
//! |---|---|
//! | `GET /api/v1/shaper` | devices and classes: rates, throughput, queues, windows, flows, round trips, drops |
//! | `PUT /api/v1/shaper/classes/{device}/{class}` with `{"rate": "1 Gbit/s", "ceil": "2 Gbit/s"}` | other rates, live |
//! | `POST /api/v1/shaper/control` with `{"control": "off"}` or `"on"` | whether queues are kept short |
//! | `GET /healthz`, `GET /readyz`, `GET /metrics` | for supervisors and Prometheus |
//!
//! Writes need the token. Errors are `application/problem+json`.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_runtime::access::Guard;
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::http::{Problem, guard};

use super::agent::{AgentHandle, Change, ChangeError, Switch};
use super::view::{DeviceView, State as DeviceState};
use crate::machine::device::Unchangeable;
use crate::machine::line_rate::LineRate;

mod metrics;

/// Largest body of a request. A change takes sixty bytes.
const BODY_BYTES_MAX: usize = 4 << 10;
/// When a change that found no room may be asked for again.
const RETRY_AFTER_S: u32 = 1;

/// The API.
pub fn router(agent: AgentHandle, access: Guard) -> Router {
    Router::new()
        .route("/api/v1/shaper", get(shaper))
        .route("/api/v1/shaper/classes/{device}/{class}", put(set_class))
        .route("/api/v1/shaper/control", post(switch))
        .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(page_of_metrics))
        .fallback(|| async { Problem::not_found("this path leads nowhere; see the book's page on the shaper") })
        .method_not_allowed_fallback(|| async {
            Problem::method_not_allowed("the path exists, but not for this method; see the book's page on the shaper")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::new(access), guard))
        .with_state(agent)
}

async fn shaper(State(agent): State<AgentHandle>) -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "devices": agent.view().devices }))
}

/// It is ready if each device that is there has its tree.
async fn ready(State(agent): State<AgentHandle>) -> Result<Json<Value>, Problem> {
    let view = agent.view();
    let failed = |device: &&DeviceView| device.state == DeviceState::Failed;
    match view.devices.iter().find(failed) {
        Some(device) => {
            let problem = device.problem.as_deref().unwrap_or_default();
            Err(Problem::not_ready(format!("{} is not shaped: {problem}", device.id)))
        }
        None => Ok(Json(json!({ "status": "ready" }))),
    }
}

async fn page_of_metrics(State(agent): State<AgentHandle>) -> Response {
    let page = metrics::page(&agent.view());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rates {
    rate: LineRate,
    ceil: Option<LineRate>,
}

async fn set_class(
    State(agent): State<AgentHandle>,
    Path((device, class)): Path<(String, String)>,
    rates: Result<Json<Rates>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(Rates { rate, ceil }) = rates.map_err(|rejection| {
        let remedy = "send {\"rate\": \"1 Gbit/s\"} or {\"rate\": \"1 Gbit/s\", \"ceil\": \"2 Gbit/s\"}";
        Problem::bad_request(format!("{}; {remedy}", rejection.body_text()))
    })?;
    let change = Change { device: device.clone(), class: class.clone(), rate, ceil };
    agent.set_class(change).await.map_err(|error| problem(&error))?;
    let view = agent.view();
    let shown = view.devices.iter().find(|shown| shown.id == device);
    let class = shown.and_then(|shown| shown.classes.iter().find(|shown| shown.name == class));
    Ok(Json(json!({ "device": device, "class": class })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchBody {
    control: SwitchWord,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum SwitchWord {
    On,
    Off,
}

async fn switch(
    State(agent): State<AgentHandle>,
    body: Result<Json<SwitchBody>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(SwitchBody { control }) = body.map_err(|rejection| {
        Problem::bad_request(format!("{}; send {{\"control\": \"on\"}} or \"off\"", rejection.body_text()))
    })?;
    let (control, word) = match control {
        SwitchWord::On => (Switch::On, "on"),
        SwitchWord::Off => (Switch::Off, "off"),
    };
    agent.switch(control).await.map_err(|error| problem(&error))?;
    Ok(Json(json!({ "control": word })))
}

fn problem(error: &ChangeError) -> Problem {
    match error {
        ChangeError::NoDevice { .. } | ChangeError::Refused(Unchangeable::NoClass { .. }) => {
            Problem::not_found(format!("{error}; GET /api/v1/shaper lists what there is"))
        }
        ChangeError::Refused(_) => Problem::bad_request(error.to_string()),
        ChangeError::Kernel(cause) => {
            let detail = format!("{}; {}", with_causes(error), cause.remedy());
            Problem::new(StatusCode::CONFLICT, "kernel", "The kernel did not take it", detail)
        }
        ChangeError::Busy => {
            let detail = format!("{error}; try again in a second");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "Too many requests at a time", detail)
                .retry_after_s(RETRY_AFTER_S)
        }
    }
}
