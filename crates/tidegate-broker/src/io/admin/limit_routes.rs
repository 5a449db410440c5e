//! `/api/v1/limits`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::USER_AGENT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use tidegate_runtime::http::Problem;
use tidegate_runtime::store::StoreError;

use super::actions::{channel_name, topic_name};
use super::contract::{self, ContractJson};
use super::limits::{Applied, LimitError, Target};
use super::outcome::exiting;
use super::part_routes::PartJson;
use super::store::{Action, Cause, Change, LimitStoreError};
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
    /// The node's part of the limit, which goes on to rule the bucket until it is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<PartJson>,
    /// After an undo: the change that was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    undone: Option<ChangeJson>,
    /// After a redo: the change that was made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    redone: Option<ChangeJson>,
}

#[derive(Serialize)]
struct ChangeJson {
    revision: u64,
    at_ms: i64,
    by: String,
    target: String,
    before: Option<ContractJson>,
    after: Option<ContractJson>,
    /// `set`, `undo` or `redo`.
    cause: &'static str,
    /// The revision that was taken back or made again.
    of: Option<u64>,
    /// The revision of the undo that took it back, until a redo.
    undone_by: Option<u64>,
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
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Changed {
    let target = Target { topic: topic_name(&topic)?, channel: None };
    shared.set(target, contract_of(body)?, client_of(&headers)).await
}

/// `PUT /api/v1/limits/{topic}/{channel}`.
pub(super) async fn set_channel(
    State(shared): State<Shared>,
    Path((topic, channel)): Path<(String, String)>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Changed {
    let target = Target { topic: topic_name(&topic)?, channel: Some(channel_name(&channel)?) };
    let contract = contract_of(body)?;
    if contract.discipline == Discipline::Refuse {
        let detail = "`discipline` is \"refuse\", but a channel has nobody to refuse: its messages wait; give \"wait\"";
        return Err(Problem::bad_request(detail));
    }
    shared.set(target, contract, client_of(&headers)).await
}

/// `DELETE /api/v1/limits/{topic}`.
pub(super) async fn remove_topic(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    headers: HeaderMap,
) -> Changed {
    shared.remove(Target { topic: topic_name(&topic)?, channel: None }, client_of(&headers)).await
}

/// `DELETE /api/v1/limits/{topic}/{channel}`.
pub(super) async fn remove_channel(
    State(shared): State<Shared>,
    Path((topic, channel)): Path<(String, String)>,
    headers: HeaderMap,
) -> Changed {
    let target = Target { topic: topic_name(&topic)?, channel: Some(channel_name(&channel)?) };
    shared.remove(target, client_of(&headers)).await
}

/// What an undo or redo is about.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Only {
    target: Option<String>,
}

/// `POST /api/v1/limits/undo[?target=..]` and `POST /api/v1/limits/redo[?target=..]`.
pub(super) async fn undo_or_redo(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    only: Result<Query<Only>, QueryRejection>,
    headers: HeaderMap,
) -> Changed {
    let Query(only) = only
        .map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is target=TOPIC[/CHANNEL]")))?;
    let target = only.target.map(|target| {
        target.parse().map_err(|error| {
            Problem::bad_request(format!("`{target}` is neither a topic nor a topic and channel with a slash: {error}"))
        })
    });
    let target = target.transpose()?;
    match name.as_str() {
        "undo" => shared.undo(target, client_of(&headers)).await,
        "redo" => shared.redo(target, client_of(&headers)).await,
        _ => Err(Problem::not_found(format!("`{name}` cannot be posted to; PUT sets a limit"))),
    }
}

/// Longest name of a client that is kept with a change.
const CLIENT_CHARS: usize = 100;

/// The client as it names itself in `User-Agent`. It proves nothing, but tells colleagues and scripts apart.
fn client_of(headers: &HeaderMap) -> String {
    let name = headers.get(USER_AGENT).and_then(|name| name.to_str().ok()).unwrap_or_default();
    name.chars().take(CLIENT_CHARS).collect()
}

impl Shared {
    async fn set(&self, target: Target, contract: Contract, by: String) -> Changed {
        let applied = self.admin.limits.change(Action::Set(target, Some(contract)), by.clone()).await?;
        tracing::info!(
            target_name = %applied.target,
            from = show(applied.before),
            to = show(applied.after),
            revision = applied.revision,
            by,
            "limit set"
        );
        Ok(Json(applied.into()))
    }

    async fn remove(&self, target: Target, by: String) -> Changed {
        let name = target.to_string();
        let removed = self.admin.limits.change(Action::Set(target, None), by.clone()).await;
        let applied = removed.map_err(|error| match error {
            LimitError::Nothing => Problem::not_found(format!("`{name}` has no limit; /api/v1/limits lists what has")),
            other => other.into(),
        })?;
        tracing::info!(
            target_name = name,
            from = show(applied.before),
            to = show(applied.after),
            revision = applied.revision,
            by,
            "limit removed"
        );
        Ok(Json(applied.into()))
    }

    async fn undo(&self, target: Option<Target>, by: String) -> Changed {
        let undone = self.admin.limits.change(Action::Undo(target), by.clone()).await;
        let applied = undone.map_err(|error| match error {
            LimitError::Nothing => {
                Problem::not_found("no change of a limit is left to undo; /api/v1/limits/history lists them")
            }
            other => other.into(),
        })?;
        let of = applied.earlier.as_ref().map(|change| change.revision);
        tracing::info!(
            target_name = %applied.target,
            from = show(applied.before),
            to = show(applied.after),
            revision = applied.revision,
            of,
            by,
            "change of a limit taken back"
        );
        let undone = applied.earlier.clone().map(|change| self.change_json(change));
        Ok(Json(AppliedJson { undone, ..applied.into() }))
    }

    async fn redo(&self, target: Option<Target>, by: String) -> Changed {
        let redone = self.admin.limits.change(Action::Redo(target), by.clone()).await;
        let applied = redone.map_err(|error| match error {
            LimitError::Nothing => {
                Problem::not_found("nothing to redo: no change was taken back, or another limit was set since")
            }
            other => other.into(),
        })?;
        let of = applied.earlier.as_ref().map(|change| change.revision);
        tracing::info!(
            target_name = %applied.target,
            from = show(applied.before),
            to = show(applied.after),
            revision = applied.revision,
            of,
            by,
            "change of a limit made again"
        );
        let redone = applied.earlier.clone().map(|change| self.change_json(change));
        Ok(Json(AppliedJson { redone, ..applied.into() }))
    }

    fn one(&self, target: &Target) -> Result<Response, Problem> {
        let limit = self.admin.limits.in_force().get(target).copied();
        let none = || Problem::not_found(format!("`{target}` has no limit; /api/v1/limits lists what has"));
        limit.map(|limit| Json(TargetJson::new(target, limit)).into_response()).ok_or_else(none)
    }

    async fn history(&self) -> Result<Response, Problem> {
        let changes = self.admin.limits.history().await.map_err(LimitError::from)?;
        let changes: Vec<_> = changes.into_iter().map(|change| self.change_json(change)).collect();
        Ok(Json(changes).into_response())
    }

    fn change_json(&self, change: Change) -> ChangeJson {
        let limits = &self.admin.limits;
        let show = |stored| limits.resolve(&change.target, stored).map(ContractJson::from);
        let (cause, of) = match change.cause {
            Cause::Set => ("set", None),
            Cause::Undo(of) => ("undo", Some(of)),
            Cause::Redo(of) => ("redo", Some(of)),
        };
        ChangeJson {
            revision: change.revision,
            at_ms: change.at_ms,
            before: show(change.before),
            after: show(change.after),
            by: change.by,
            target: change.target.to_string(),
            cause,
            of,
            undone_by: change.undone_by,
        }
    }
}

/// A limit as the log shows it.
fn show(limit: Option<(Contract, Source)>) -> String {
    contract::in_words(limit.map(|(contract, _)| contract))
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
            part: applied.part.as_ref().map(PartJson::from),
            undone: None,
            redone: None,
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
                "remove it from the file and send SIGHUP, or PUT another limit, which outranks the file's",
            ),
            LimitError::Store(LimitStoreError::Contended) => Self::new(
                StatusCode::CONFLICT,
                "contended",
                "Others change this limit",
                "nothing has changed; try again",
            ),
            LimitError::Store(LimitStoreError::Store(error @ StoreError::OutcomeUnknown { .. })) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome-unknown",
                "Whether the change is stored is not known",
                format!("{error}; if it was, it is in /api/v1/limits/history, and in force within a second"),
            ),
            LimitError::Store(LimitStoreError::Store(error @ StoreError::Unavailable { .. })) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "The control store cannot be reached",
                format!("{error}; nothing has changed, and the limits that are in force stay; try again"),
            ),
            LimitError::Store(error) => {
                tracing::error!(%error, "a limit cannot be stored");
                let detail = format!("{error}; nothing has changed: check the store's folder and try again");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", "The change cannot be stored", detail)
            }
        }
    }
}
