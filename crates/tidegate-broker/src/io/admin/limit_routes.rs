//! `/api/v1/limits`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use tidegate_runtime::http::Problem;

use super::actions::{channel_name, topic_name};
use super::contract::{self, ContractJson};
use super::limits::{Applied, LimitError, Target};
use super::outcome::exiting;
use super::store::LimitStoreError;
use super::{MOST_BODY_BYTES, Shared};
use crate::machine::limiter::{Contract, Discipline, Source};

#[derive(Serialize)]
struct TargetJson {
    target: String,
    topic: String,
    channel: Option<String>,
    #[serde(flatten)]
    limit: ContractJson,
}

#[derive(Serialize)]
pub(super) struct AppliedJson {
    target: String,
    limit: Option<ContractJson>,
    previous: Option<ContractJson>,
    revision: u64,
}

#[derive(Serialize)]
struct ChangeJson {
    revision: u64,
    at_ms: i64,
    target: String,
    before: Option<ContractJson>,
    after: Option<ContractJson>,
}

/// `GET /api/v1/limits`.
pub(super) async fn all(State(shared): State<Shared>) -> Response {
    let in_force = shared.admin.limits.in_force();
    let limits: Vec<_> = in_force.iter().map(|(target, limit)| TargetJson::new(target, *limit)).collect();
    Json(serde_json::json!({ "limits": limits })).into_response()
}

/// `GET /api/v1/limits/history`, or the limit of a topic. What hides the limit of a topic that is called history also
/// stands in the list of all.
pub(super) async fn one_or_history(
    State(shared): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    if name == "history" {
        return shared.history().await;
    }
    shared.one(&Target { topic: topic_name(&name)?, channel: None })
}

/// `GET /api/v1/limits/{topic}/{channel}`.
pub(super) async fn one_of_channel(
    State(shared): State<Shared>,
    Path((topic, channel)): Path<(String, String)>,
) -> Result<Response, Problem> {
    shared.one(&Target { topic: topic_name(&topic)?, channel: Some(channel_name(&channel)?) })
}

type Changed = Result<Json<AppliedJson>, Problem>;

/// `PUT /api/v1/limits/{topic}`.
pub(super) async fn set_topic(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Changed {
    let target = Target { topic: topic_name(&topic)?, channel: None };
    shared.set(target, contract_of(body)?).await
}

/// `PUT /api/v1/limits/{topic}/{channel}`.
pub(super) async fn set_channel(
    State(shared): State<Shared>,
    Path((topic, channel)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Changed {
    let target = Target { topic: topic_name(&topic)?, channel: Some(channel_name(&channel)?) };
    let contract = contract_of(body)?;
    if contract.discipline == Discipline::Refuse {
        let detail = "`discipline` is \"refuse\", but a channel has nobody to refuse: its messages wait; give \"wait\"";
        return Err(Problem::bad_request(detail));
    }
    shared.set(target, contract).await
}

/// `DELETE /api/v1/limits/{topic}`.
pub(super) async fn remove_topic(State(shared): State<Shared>, Path(topic): Path<String>) -> Changed {
    shared.remove(Target { topic: topic_name(&topic)?, channel: None }).await
}

/// `DELETE /api/v1/limits/{topic}/{channel}`.
pub(super) async fn remove_channel(
    State(shared): State<Shared>,
    Path((topic, channel)): Path<(String, String)>,
) -> Changed {
    shared.remove(Target { topic: topic_name(&topic)?, channel: Some(channel_name(&channel)?) }).await
}

/// `POST /api/v1/limits/undo`.
pub(super) async fn undo(State(shared): State<Shared>, Path(name): Path<String>) -> Changed {
    if name != "undo" {
        return Err(Problem::not_found(format!("`{name}` cannot be posted to; PUT sets a limit")));
    }
    let undone = shared.admin.limits.undo().await;
    undone.map(|applied| Json(applied.into())).map_err(|error| match error {
        LimitError::Nothing => Problem::not_found("no change of a limit is on record, so there is none to undo"),
        other => other.into(),
    })
}

impl Shared {
    async fn set(&self, target: Target, contract: Contract) -> Changed {
        let applied = self.admin.limits.set(target, contract).await?;
        tracing::info!(target_name = %applied.target, limit = ?contract, revision = applied.revision, "limit set");
        Ok(Json(applied.into()))
    }

    async fn remove(&self, target: Target) -> Changed {
        let name = target.to_string();
        let applied = self.admin.limits.remove(target).await.map_err(|error| match error {
            LimitError::Nothing => Problem::not_found(format!("`{name}` has no limit; /api/v1/limits lists what has")),
            other => other.into(),
        })?;
        tracing::info!(target_name = name, revision = applied.revision, "limit removed");
        Ok(Json(applied.into()))
    }

    fn one(&self, target: &Target) -> Result<Response, Problem> {
        let limit = self.admin.limits.in_force().get(target).copied();
        let none = || Problem::not_found(format!("`{target}` has no limit; /api/v1/limits lists what has"));
        limit.map(|limit| Json(TargetJson::new(target, limit)).into_response()).ok_or_else(none)
    }

    async fn history(&self) -> Result<Response, Problem> {
        let limits = &self.admin.limits;
        let changes = limits.history().await.map_err(LimitError::from)?;
        let show = |target: &Target, stored| limits.resolve(target, stored).map(ContractJson::from);
        let changes: Vec<_> = changes
            .into_iter()
            .map(|change| ChangeJson {
                revision: change.revision,
                at_ms: change.at_ms,
                target: change.target.to_string(),
                before: show(&change.target, change.before),
                after: show(&change.target, change.after),
            })
            .collect();
        Ok(Json(changes).into_response())
    }
}

fn contract_of(body: Result<Bytes, BytesRejection>) -> Result<Contract, Problem> {
    let body = body.map_err(|rejection| {
        let detail = format!("the body could not be read ({rejection}); a limit takes at most {MOST_BODY_BYTES} bytes");
        Problem::new(rejection.status(), "body", "The body cannot be read", detail)
    })?;
    contract::parse(&body)
}

impl TargetJson {
    fn new(target: &Target, limit: (Contract, Source)) -> Self {
        Self {
            target: target.to_string(),
            topic: target.topic.to_string(),
            channel: target.channel.as_ref().map(ToString::to_string),
            limit: limit.into(),
        }
    }
}

impl From<Applied> for AppliedJson {
    fn from(applied: Applied) -> Self {
        Self {
            target: applied.target.to_string(),
            limit: applied.after.map(Into::into),
            previous: applied.before.map(Into::into),
            revision: applied.revision,
        }
    }
}

impl From<LimitError> for Problem {
    fn from(error: LimitError) -> Self {
        match error {
            LimitError::Exiting => exiting(),
            LimitError::Nothing => Self::not_found("there is nothing to take away"),
            LimitError::FromFile => Self::new(
                StatusCode::CONFLICT,
                "from-file",
                "The limit stands in the configuration file",
                "remove it from the file and start again, or PUT another limit, which outranks the file's",
            ),
            LimitError::Store(LimitStoreError::Contended) => Self::new(
                StatusCode::CONFLICT,
                "contended",
                "Others change this limit",
                "nothing has changed; try again",
            ),
            LimitError::Store(error) => {
                tracing::error!(%error, "a limit cannot be stored");
                let detail = format!("{error}; nothing has changed: check the store's folder and try again");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", "The change cannot be stored", detail)
            }
        }
    }
}
