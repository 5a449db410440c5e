//! `GET /api/v1/publishers/{topic}`: the publishers of a topic, its seconds and delays.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tidegate_runtime::http::Problem;

use super::Shared;
use super::actions::topic_name;
use super::outcome::{exiting, outcome};
use super::state::patiently;
use crate::machine::admin::{AdminReply, AdminRequest, PublishersScope};
use crate::machine::seconds::SECONDS_MAX;

/// Longest objective, us: nothing is deferred for longer than an hour.
const SLO_US_MAX: u64 = 3_600_000_000;

/// What is asked for.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    seconds: u64,
    slo_us: Option<u64>,
}

impl Default for Wanted {
    /// Ten seconds are the window of the paper's TB Adaptor.
    fn default() -> Self {
        Self { seconds: 10, slo_us: None }
    }
}

/// `GET /api/v1/publishers/{topic}`.
pub(super) async fn list(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Wanted { seconds, slo_us }) = wanted
        .map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameters are seconds and slo_us")))?;
    if !(1..=SECONDS_MAX).contains(&seconds) {
        let detail = format!("`seconds` is {seconds}; the last 1 to {SECONDS_MAX} whole seconds can be had");
        return Err(Problem::bad_request(detail));
    }
    if let Some(slo_us) = slo_us.filter(|slo_us| !(1..=SLO_US_MAX).contains(slo_us)) {
        return Err(Problem::bad_request(format!("`slo_us` is {slo_us}; give 1 to {SLO_US_MAX} microseconds")));
    }
    let topic = topic_name(&name)?;
    let scope = PublishersScope { topic: topic.clone(), seconds, slo_ns: slo_us.map(|us| us * 1_000) };
    let asked = shared.admin.broker.ask_topic(&topic, AdminRequest::Publishers(scope));
    match patiently(asked).await? {
        Some(AdminReply::Publishers(report)) => Ok(Json(report).into_response()),
        other => Err(outcome(other, &name).err().unwrap_or_else(exiting)),
    }
}
