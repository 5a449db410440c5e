//! `/api/v1/parts`: the node's parts of topics' limits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_runtime::clock;
use tidegate_runtime::http::Problem;

use super::Shared;
use super::actions::topic_name;
use super::lending::SplitBody;
use super::outcome::exiting;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::lending::LendState;
use crate::machine::limiter::Unit;
use crate::machine::parts::{OnLapse, PartGrant, PartOrder, PartRefused, PartStatus, PartStep};

/// Most parts of one order. Control sends those of a topic together, and may send those of many.
const PARTS_MAX: usize = 4_096;
/// An order of that many, each with a long name.
const BODY_BYTES_MAX: usize = 1 << 20;
/// What is lent comes back within this: the lease of a loan, and what clocks may differ by.
const LOANS_RETURN: Duration = Duration::from_millis(1_200);
/// Between two looks whether it has.
const LOANS_PAUSE: Duration = Duration::from_millis(5);
/// Shortest and longest lease, ms.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// The routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/parts", get(all).put(put).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)))
        .route("/api/v1/parts/{topic}", delete(remove))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    revision: u64,
    lease_ms: u64,
    /// On the clock that answers tell as `now_us`.
    #[serde(default)]
    until_us: Option<u64>,
    #[serde(default)]
    on_lapse: OnLapse,
    parts: Vec<GrantBody>,
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
    /// In force, exact. Absent, like the next two, if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// The same, rounded to the nearest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    unit: Unit,
    revision: u64,
    lapses_in_ms: Option<u64>,
    on_lapse: OnLapse,
    /// The part as it was ordered, where that is not what is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered: Option<LimitJson>,
    /// How it lends, if an order asks for that: `lends`, `leaves` or `split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lends: Option<&'static str>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct LimitJson {
    rate: String,
    burst: u64,
}

#[derive(Serialize)]
struct PutJson {
    revision: u64,
    now_us: u64,
    in_force: Vec<PartJson>,
}

#[derive(Serialize)]
struct AllJson {
    now_us: u64,
    parts: Vec<PartJson>,
}

#[derive(Serialize)]
struct RemovedJson {
    revision: u64,
    removed: Option<PartJson>,
}

/// What a removal is about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Removal {
    revision: u64,
}

/// `GET /api/v1/parts`.
async fn all(State(shared): State<Shared>) -> Result<Json<AllJson>, Problem> {
    let parts = shared.ask_parts(&AdminRequest::Parts).await?;
    Ok(Json(AllJson { now_us: now_us(), parts: shown(&parts) }))
}

/// `PUT /api/v1/parts`.
async fn put(State(shared): State<Shared>, body: Result<Bytes, BytesRejection>) -> Result<Json<PutJson>, Problem> {
    let body = body.map_err(|rejection| {
        let detail = format!("the body could not be read ({rejection}); it may have {BODY_BYTES_MAX} bytes");
        Problem::new(rejection.status(), "body", "The body cannot be read", detail)
    })?;
    let order = parse(&body)?;
    let mut in_force = Vec::new();
    // Each step is acknowledged by all shards before the next one: what grows does so when everything has shrunk.
    for step in [PartStep::Check, PartStep::Shrink, PartStep::All] {
        in_force = shared.put_step(&PartOrder { step, ..order.clone() }).await?;
    }
    tracing::debug!(revision = order.revision, parts = order.parts.len(), "parts put in force");
    Ok(Json(PutJson { revision: order.revision, now_us: now_us(), in_force: shown(&in_force) }))
}

/// `DELETE /api/v1/parts/{topic}?revision=..`.
async fn remove(
    State(shared): State<Shared>,
    Path(topic): Path<String>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Result<Json<RemovedJson>, Problem> {
    let Query(Removal { revision }) =
        removal.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is revision=NUMBER")))?;
    let topic = topic_name(&topic)?;
    let request = AdminRequest::RemovePart { topic: topic.clone(), revision };
    let removed = parts_in(shared.admin.broker.ask_topic(&topic, request).await.ok_or_else(exiting)?)?;
    tracing::debug!(%topic, revision, "part removed");
    Ok(Json(RemovedJson { revision, removed: removed.first().map(PartJson::from) }))
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

fn now_us() -> u64 {
    clock::now().as_nanos() / 1_000
}

/// The order that `body` gives.
fn parse(body: &[u8]) -> Result<PartOrder, Problem> {
    let order: OrderBody = serde_json::from_slice(body).map_err(|error| {
        Problem::bad_request(format!(
            "the body is no order for parts ({error}); send {{\"revision\": 7, \"lease_ms\": 10000, \"on_lapse\": \
             \"local\", \"parts\": [{{\"topic\": \"orders\", \"rate_per_s\": \"3k/s\", \"burst\": 8}}]}}"
        ))
    })?;
    if order.revision == 0 {
        return Err(Problem::bad_request("`revision` is 0; give a whole number from 1"));
    }
    if !LEASE_MS.contains(&order.lease_ms) {
        let (least, most) = (LEASE_MS.start(), LEASE_MS.end());
        let detail = format!("`lease_ms` is {}; a lease lasts {least} to {most} ms", order.lease_ms);
        return Err(Problem::bad_request(detail));
    }
    if !(1..=PARTS_MAX).contains(&order.parts.len()) {
        let detail = format!("`parts` has {} parts; an order has 1 to {PARTS_MAX}", order.parts.len());
        return Err(Problem::bad_request(detail));
    }
    let parts = order.parts.iter().map(grant).collect::<Result<Arc<[_]>, _>>()?;
    let mut topics = BTreeSet::new();
    if let Some(twice) = parts.iter().find(|part| !topics.insert(&part.topic)) {
        return Err(Problem::bad_request(format!("`{}` stands twice in `parts`", twice.topic)));
    }
    Ok(PartOrder {
        revision: order.revision,
        lease: Duration::from_millis(order.lease_ms),
        until: order.until_us.map(|us| Instant::from_nanos(us.saturating_mul(1_000))),
        on_lapse: order.on_lapse,
        parts,
        step: PartStep::Check,
    })
}

fn grant(body: &GrantBody) -> Result<PartGrant, Problem> {
    let topic = topic_name(&body.topic)?;
    if body.burst == 0 && !body.rate_per_s.is_zero() {
        let detail = format!("`burst` of `{topic}` is 0; give 1 or more, or a `rate_per_s` of 0 to hold everything");
        return Err(Problem::bad_request(detail));
    }
    let split = body.lend.as_ref().map(|lend| lend.read(&topic)).transpose()?.map(Arc::new);
    Ok(PartGrant { topic, limit: Limit::new(body.rate_per_s, body.burst), unit: body.unit, split })
}

impl From<&PartStatus> for PartJson {
    fn from(part: &PartStatus) -> Self {
        let ordered = LimitJson { rate: part.limit.rate.to_string(), burst: part.limit.burst };
        Self {
            topic: part.topic.to_string(),
            rate: part.in_force.map(|limit| limit.rate.to_string()),
            rate_per_s: part.in_force.map(|limit| limit.rate.as_per_s()),
            burst: part.in_force.map(|limit| limit.burst),
            unit: part.unit,
            revision: part.revision,
            lapses_in_ms: part.lapses_in_ms(),
            on_lapse: part.on_lapse,
            ordered: (part.in_force != Some(part.limit)).then_some(ordered),
            lends: part.lends.map(LendState::name),
        }
    }
}

impl From<PartRefused> for Problem {
    fn from(why: PartRefused) -> Self {
        let (kind, title, remedy) = match &why {
            PartRefused::Nothing { .. } => {
                return Self::not_found(format!("{why}; /api/v1/parts lists what has one"));
            }
            PartRefused::Stale { .. } => ("stale-revision", "A newer order holds", "ask who leads now"),
            PartRefused::OtherContent { .. } => {
                ("other-content", "The revision is taken", "send the change with a newer revision")
            }
            PartRefused::OtherUnit { .. } => {
                ("other-unit", "The limit counts something else", "/api/v1/limits says what the limit counts")
            }
            PartRefused::Lent { .. } => ("lent", "Tokens are lent", "a lease of a second brings all back"),
            PartRefused::Late => ("late", "The order is late", "send it with a later `until_us`"),
            PartRefused::Full { .. } => ("full", "No more parts fit", "remove parts that nobody needs"),
        };
        Self::new(StatusCode::CONFLICT, kind, title, format!("{why}; {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_key_value_and_remedy() {
        let part = r#"{"topic": "t", "rate_per_s": 3, "burst": 1}"#;
        let order = |fields: &str, parts: &str| format!(r#"{{{fields}, "parts": [{parts}]}}"#);
        let sound = r#""revision": 7, "lease_ms": 1000"#;
        for (body, said) in [
            ("[]".to_owned(), "the body is no order for parts"),
            (order(r#""lease_ms": 1000"#, part), "missing field `revision`"),
            (order(r#""revision": 0, "lease_ms": 1000"#, part), "`revision` is 0"),
            (order(r#""revision": 1, "lease_ms": 99"#, part), "`lease_ms` is 99; a lease lasts 100 to 3600000 ms"),
            (order(sound, ""), "`parts` has 0 parts; an order has 1 to 4096"),
            (order(sound, &format!("{part}, {part}")), "`t` stands twice"),
            (order(sound, &part.replace("\"t\"", "\"t t\"")), "`t t` is no topic's name"),
            (order(sound, &part.replace("\"burst\": 1", "\"burst\": 0")), "`burst` of `t` is 0"),
            (order(sound, &part.replace('3', "\"fast\"")), "is no decimal number"),
            (order(sound, &part.replace("burst", "bursts")), "unknown field `bursts`"),
            (order(&format!(r#"{sound}, "on_lapse": "shut""#), part), "unknown variant `shut`"),
        ] {
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
        assert_eq!((order.until, order.on_lapse), (Some(Instant::from_nanos(5_000)), OnLapse::Closed));
    }
}
