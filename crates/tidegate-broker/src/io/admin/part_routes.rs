//! `/api/v1/parts`: the node's parts of topics' limits.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tidegate_core::Rate;
use tidegate_runtime::clock;
use tidegate_runtime::http::Problem;
use tidegate_runtime::http::parts::{
    self, AllAnswer, PartState, PartTerms, PutAnswer, Refusal, Removal, RemovedAnswer,
};

use super::Shared;
use super::actions::topic_name;
use super::lending::SplitBody;
use super::outcome::exiting;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::lending::LendState;
use crate::machine::limiter::Unit;
use crate::machine::parts::{PartGrant, PartOrder, PartRefused, PartStatus, PartStep};

/// A part, for complaints.
const EXAMPLE: &str = r#"{"topic": "orders", "rate_per_s": "3k/s", "burst": 8}"#;
/// What is lent comes back within this: the lease of a loan, and what clocks may differ by.
const LOANS_RETURN: Duration = Duration::from_millis(1_200);
/// Between two looks whether it has.
const LOANS_PAUSE: Duration = Duration::from_millis(5);

/// The routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/parts", get(all).put(put).layer(parts::body_limit()))
        .route("/api/v1/parts/{topic}", delete(remove))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantBody {
    topic: String,
    /// A number, or a text, which is exact.
    rate_per_s: Rate,
    burst: u64,
    #[serde(default)]
    unit: Unit,
    /// How the burst is split among brokers that lend each other tokens.
    #[serde(default)]
    lend: Option<SplitBody>,
}

/// A part as it is shown.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct PartJson {
    topic: String,
    unit: Unit,
    #[serde(flatten)]
    state: PartState,
    /// How it lends, if an order asks for that: `lends`, `leaves`, or why its part is a static one.
    #[serde(skip_serializing_if = "Option::is_none")]
    lends: Option<&'static str>,
}

/// `GET /api/v1/parts`.
async fn all(State(shared): State<Shared>) -> Result<Json<AllAnswer<PartJson>>, Problem> {
    let parts = shared.ask_parts(&AdminRequest::Parts).await?;
    Ok(Json(AllAnswer::new(shown(&parts))))
}

/// `PUT /api/v1/parts`.
async fn put(
    State(shared): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PutAnswer<PartJson>>, Problem> {
    let order = order_of(parts::order_of(body, EXAMPLE)?)?;
    let step = async |step| shared.put_step(&PartOrder { step, ..order.clone() }).await;
    // Each step is acknowledged by all shards before the next one: what grows does so when everything has shrunk, and when
    // a crash would not bring back more than what is answered.
    step(PartStep::Check).await?;
    step(PartStep::Shrink).await?;
    if let Some(keeper) = shared.admin.broker.parts() {
        keeper.put(order.kept(clock::now())).await;
    }
    let in_force = step(PartStep::All).await?;
    tracing::debug!(revision = order.revision, parts = order.parts.len(), "parts put in force");
    Ok(Json(PutAnswer::new(order.revision, shown(&in_force))))
}

/// `DELETE /api/v1/parts/{topic}?revision=..`.
async fn remove(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Result<Json<RemovedAnswer<PartJson>>, Problem> {
    let revision = parts::revision_of(removal)?;
    let topic = topic_name(&topic)?;
    let request = AdminRequest::RemovePart { topic: topic.clone(), revision };
    let removed = parts_in(shared.admin.broker.ask_topic(&topic, request).await.ok_or_else(exiting)?)?;
    if let Some(keeper) = shared.admin.broker.parts() {
        keeper.remove(&topic, revision).await;
    }
    tracing::debug!(%topic, revision, "part removed");
    Ok(Json(RemovedAnswer { revision, removed: removed.first().map(PartJson::from) }))
}

impl Shared {
    /// Takes a step of `order`. One that waits for what is lent is taken again and again while that may help: loans come
    /// back at once, or end with their lease where the other broker is not there.
    async fn put_step(&self, order: &PartOrder) -> Result<Vec<PartStatus>, Problem> {
        let until = clock::now() + LOANS_RETURN;
        loop {
            let replies = self.admin.broker.ask_all(&AdminRequest::PutParts(order.clone())).await;
            let is_lent = |reply: &AdminReply| matches!(reply, AdminReply::PartsRefused(PartRefused::Lent { .. }));
            if !replies.iter().any(is_lent) || clock::now() >= until {
                return parts_of(replies);
            }
            tokio::time::sleep(LOANS_PAUSE).await;
        }
    }

    /// The parts that all shards answer with.
    async fn ask_parts(&self, request: &AdminRequest) -> Result<Vec<PartStatus>, Problem> {
        parts_of(self.admin.broker.ask_all(request).await)
    }
}

/// The parts that all shards answered with, by topic.
fn parts_of(replies: Vec<AdminReply>) -> Result<Vec<PartStatus>, Problem> {
    if replies.is_empty() {
        return Err(exiting());
    }
    let mut parts = Vec::new();
    for reply in replies {
        parts.extend(parts_in(reply)?);
    }
    parts.sort_by(|a, b| a.topic.cmp(&b.topic));
    Ok(parts)
}

fn parts_in(reply: AdminReply) -> Result<Vec<PartStatus>, Problem> {
    match reply {
        AdminReply::Parts(parts) => Ok(parts),
        AdminReply::PartsRefused(why) => Err(why.into()),
        _ => Err(exiting()),
    }
}

fn shown(parts: &[PartStatus]) -> Vec<PartJson> {
    parts.iter().map(PartJson::from).collect()
}

/// The order of these terms and parts.
fn order_of((terms, parts): (PartTerms, Vec<GrantBody>)) -> Result<PartOrder, Problem> {
    let parts = parts.iter().map(grant).collect::<Result<Arc<[_]>, _>>()?;
    parts::once_each(parts.iter().map(|part| &part.topic))?;
    let PartTerms { revision, lease, until, on_lapse } = terms;
    Ok(PartOrder { revision, lease, until, on_lapse, parts, step: PartStep::Check })
}

fn grant(body: &GrantBody) -> Result<PartGrant, Problem> {
    let topic = topic_name(&body.topic)?;
    let limit = parts::limit_of(&topic, body.rate_per_s, body.burst)?;
    let split = body.lend.as_ref().map(|lend| lend.read(&topic)).transpose()?.map(Arc::new);
    Ok(PartGrant { topic, limit, unit: body.unit, split })
}

impl From<&PartStatus> for PartJson {
    fn from(part: &PartStatus) -> Self {
        let PartStatus { topic, in_force, limit, unit, revision, on_lapse, .. } = part;
        let lapses_in_ms = part.lapses_in_ms();
        let state = PartState::new((*in_force, *limit), *revision, lapses_in_ms, *on_lapse);
        Self { topic: topic.to_string(), unit: *unit, state, lends: part.lends.map(LendState::word) }
    }
}

impl From<PartRefused> for Problem {
    fn from(why: PartRefused) -> Self {
        let refusal = match &why {
            PartRefused::Nothing { .. } => {
                return Self::not_found(format!("{why}; /api/v1/parts lists what has one"));
            }
            PartRefused::Stale { .. } => Refusal::Stale,
            PartRefused::OtherContent { .. } => Refusal::OtherContent,
            PartRefused::OtherUnit { .. } => Refusal::OtherUnit,
            PartRefused::Late => Refusal::Late,
            PartRefused::OtherClock => Refusal::OtherClock,
            PartRefused::Full { .. } => Refusal::Full,
            PartRefused::Lent { .. } => Refusal::Lent,
        };
        refusal.problem(&why)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;
    use tidegate_core::limit::Limit;

    use super::*;
    use crate::machine::parts::OnLapse;

    fn parse(body: &[u8]) -> Result<PartOrder, Problem> {
        order_of(parts::parse(body, EXAMPLE)?)
    }

    #[test]
    fn complaints_name_key_value_and_remedy() {
        let part = r#"{"topic": "t", "rate_per_s": 3, "burst": 1}"#;
        for (parts, said) in [
            (format!("{part}, {part}"), "`t` stands twice"),
            (part.replace("\"t\"", "\"t t\""), "`t t` is no topic's name"),
            (part.replace("\"burst\": 1", "\"burst\": 0"), "`burst` of `t` is 0"),
            (part.replace('3', "\"fast\""), "is no decimal number"),
            (part.replace("burst", "bursts"), "unknown field `bursts`"),
        ] {
            let body = format!(r#"{{"revision": 7, "lease_ms": 1000, "until_us": 9, "parts": [{parts}]}}"#);
            let detail = parse(body.as_bytes()).unwrap_err().detail;
            assert!(detail.contains(said), "{body}: {detail}");
        }
    }

    #[test]
    fn a_rate_is_exact_as_a_text() {
        let body = r#"{"revision": 7, "lease_ms": 1000, "until_us": 5, "on_lapse": "closed",
            "parts": [{"topic": "t", "rate_per_s": "11/7s", "burst": 3, "unit": "bytes"},
                {"topic": "u", "rate_per_s": 0, "burst": 0}]}"#;
        let order = parse(body.as_bytes()).unwrap();
        let limit = Limit::new(Rate::from_fraction(11, 7_000_000_000).unwrap(), 3);
        assert_eq!((order.parts[0].limit, order.parts[0].unit), (limit, Unit::Bytes));
        assert_eq!((order.parts[1].limit, order.parts[1].unit), (Limit::new(Rate::ZERO, 0), Unit::Messages));
        assert_eq!((order.until, order.on_lapse), (Instant::from_nanos(5_000), OnLapse::Closed));
    }
}
