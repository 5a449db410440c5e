//! `/api/v1/parts` and `/api/v1/demand`: this proxy's parts of rates that several proxies divide.
//!
//! A limit is called `route NAME` or `sni NAME`, as what it stands before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tidegate_core::lease::{Grant, OnLapse, Refused};
use tidegate_core::lend::{Circle, Member, PEERS_MAX};
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate};
use tidegate_runtime::clock;
use tidegate_runtime::http::Problem;
use tidegate_runtime::http::parts::{
    self, AllAnswer, PartState, PartTerms, PutAnswer, Refusal, Removal, RemovedAnswer, now_us,
};
use tidegate_wire::lend::Key;

use super::Source;
use super::status::Phase;
use crate::io::lend::Peers;
use crate::io::request::gate::Gate;
use crate::machine::rate_limit::{DemandSecond, LendTerms, NotGranted, PartStatus};

/// A part, for complaints.
const EXAMPLE: &str = r#"{"limit": "route shop", "rate_per_s": "3k/s", "burst": 8}"#;
/// Seconds that are told if nobody says how many.
const SECONDS: u64 = 10;

/// The limits of a proxy that runs, as parts of them are granted.
#[derive(Clone, Debug, Default)]
pub struct Limits(Vec<Arc<Gate>>);

impl Limits {
    pub(crate) fn new(gates: Vec<Arc<Gate>>) -> Self {
        Self(gates)
    }

    fn find(&self, limit: &str) -> Result<&Arc<Gate>, Problem> {
        self.0.iter().find(|gate| gate.name == limit).ok_or_else(|| {
            Problem::not_found(format!(
                "this proxy has no limit `{limit}`; it is called `route NAME` or `sni NAME`, and has a rate_limit"
            ))
        })
    }

    fn put(&self, terms: &PartTerms, grants: &[Ordered]) -> Result<Vec<PartJson>, Problem> {
        let now = clock::now();
        if terms.is_of_another_clock(now) {
            let said = "the order ends later than its lease: it knows another clock than this one";
            return Err(Refusal::OtherClock.problem(said));
        }
        let gates = grants.iter().map(|grant| self.find(&grant.limit)).collect::<Result<Vec<_>, _>>()?;
        for (gate, Ordered { limit, value, lends }) in gates.iter().zip(grants) {
            let lends = lends.as_ref().map(|lends| lends.checked(gate)).transpose()?;
            let grant =
                Grant { value: *value, revision: terms.revision, until: terms.ends(now), on_lapse: terms.on_lapse };
            gate.grant_part(grant, lends).map_err(|why| not_granted(limit, terms.revision, why))?;
        }
        Ok(gates.iter().filter_map(|gate| PartJson::of(gate, now)).collect())
    }
}

/// The routes.
pub(super) fn routes() -> Router<Arc<dyn Source>> {
    Router::new()
        .route("/api/v1/node", get(node))
        .route("/api/v1/parts", get(all).put(put).layer(parts::body_limit()))
        .route("/api/v1/parts/{limit}", delete(remove))
        .route("/api/v1/demand/{limit}", get(demand))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantBody {
    limit: String,
    /// A number, or a text, which is exact.
    rate_per_s: Rate,
    burst: u64,
    #[serde(default)]
    lend: Option<LendBody>,
}

/// With whom tokens of a limit are lent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LendBody {
    /// The same for all proxies of the limit.
    circle: u64,
    /// Which of the members this proxy is.
    own: u16,
    /// 32 hexadecimal digits.
    key: String,
    members: Vec<MemberBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberBody {
    member: u16,
    /// Where it takes datagrams.
    address: SocketAddr,
}

/// A part that is ordered.
struct Ordered {
    limit: String,
    value: Limit,
    lends: Option<LendBody>,
}

impl LendBody {
    /// What `gate` is to do; without the other proxies if it knows them.
    fn checked(&self, gate: &Gate) -> Result<(LendTerms, Option<Peers>), Problem> {
        let limit = &gate.name;
        let wrong = |what: &str| Problem::bad_request(format!("`lend` of `{limit}`: {what}"));
        let key = (self.key.len() == 32).then(|| u128::from_str_radix(&self.key, 16).ok()).flatten();
        let key = key.ok_or_else(|| wrong("`key` has 32 hexadecimal digits"))?;
        let key = Key::new(key.to_be_bytes());
        let addresses: BTreeMap<Member, SocketAddr> =
            self.members.iter().map(|one| (Member(one.member), one.address)).collect();
        if addresses.len() != self.members.len() || !(2..=PEERS_MAX + 1).contains(&addresses.len()) {
            return Err(wrong(&format!("`members` has 2 to {} proxies, each with its own number", PEERS_MAX + 1)));
        }
        if !addresses.contains_key(&Member(self.own)) {
            return Err(wrong("`own` is none of `members`"));
        }
        let members = addresses.keys().copied().collect();
        let terms = LendTerms { circle: Circle(self.circle), own: Member(self.own), members };
        if gate.knows(key, &addresses) {
            return Ok((terms, None));
        }
        let peers = Peers::new(key, addresses).map_err(|error| {
            let detail = format!("no socket for datagrams: {error}; free some files or ports");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "socket", "No socket", detail)
        })?;
        Ok((terms, Some(peers)))
    }
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct PartJson {
    limit: String,
    #[serde(flatten)]
    state: PartState,
}

impl PartJson {
    fn of(gate: &Gate, now: Instant) -> Option<Self> {
        let PartStatus { in_force, revision, limit, lapses_in, on_lapse } = gate.part(now)?;
        let lapses_in_ms = lapses_in.map(|span| nanos(span) / 1_000_000);
        let state = PartState::new((in_force, limit), revision, lapses_in_ms, on_lapse);
        Some(Self { limit: gate.name.clone(), state })
    }
}

#[derive(Serialize)]
struct NodeJson {
    role: &'static str,
    draining: bool,
    /// Where it takes datagrams of proxies that lend; `null` if it takes none.
    lend_address: Option<SocketAddr>,
    /// What may have parts here.
    limits: Vec<String>,
}

#[derive(Serialize)]
struct DemandJson {
    now_us: u64,
    draining: bool,
    /// The part that is granted, exact; `null` without one, or after it lapsed into something else.
    part: Option<HeldJson>,
    /// Whole seconds, the newest last.
    seconds: Vec<SecondJson>,
}

#[derive(Serialize)]
struct HeldJson {
    rate: Rate,
    burst: u64,
}

#[derive(Serialize)]
struct SecondJson {
    start_us: u64,
    requests: u64,
    refused: u64,
    backlog_max: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    seconds: Option<u64>,
}

async fn node(State(source): State<Arc<dyn Source>>) -> Json<NodeJson> {
    let draining = source.live().phase == Phase::Draining;
    let limits = source.limits().0.iter().map(|gate| gate.name.clone()).collect();
    let lend_address = source.live().lend_address;
    Json(NodeJson { role: "proxy", draining, lend_address, limits })
}

async fn all(State(source): State<Arc<dyn Source>>) -> Json<AllAnswer<PartJson>> {
    let now = clock::now();
    let parts = source.limits().0.iter().filter_map(|gate| PartJson::of(gate, now)).collect();
    Json(AllAnswer::new(parts))
}

async fn put(
    State(source): State<Arc<dyn Source>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PutAnswer<PartJson>>, Problem> {
    let (terms, bodies) = parts::order_of::<GrantBody>(body, EXAMPLE)?;
    let grants = grants_of(bodies)?;
    let in_force = source.limits().put(&terms, &grants)?;
    tracing::debug!(revision = terms.revision, parts = grants.len(), "parts put in force");
    Ok(Json(PutAnswer::new(terms.revision, in_force)))
}

async fn remove(
    State(source): State<Arc<dyn Source>>,
    Path(limit): Path<String>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Result<Json<RemovedAnswer<PartJson>>, Problem> {
    let revision = parts::revision_of(removal)?;
    let (limits, now) = (source.limits(), clock::now());
    let gate = limits.find(&limit)?;
    let removed = PartJson::of(gate, now);
    gate.remove_part(revision, now).map_err(|why| refusal(&limit, revision, why))?;
    tracing::debug!(limit, revision, "part removed");
    Ok(Json(RemovedAnswer { revision, removed }))
}

async fn demand(
    State(source): State<Arc<dyn Source>>,
    Path(limit): Path<String>,
    since: Result<Query<Since>, QueryRejection>,
) -> Result<Json<DemandJson>, Problem> {
    let Query(Since { seconds }) =
        since.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is seconds=NUMBER")))?;
    let (limits, now) = (source.limits(), clock::now());
    let gate = limits.find(&limit)?;
    let told = gate.demand(seconds.unwrap_or(SECONDS), now);
    let holds = |part: &PartStatus| part.lapses_in.is_some() || part.on_lapse == OnLapse::Local;
    let part =
        gate.part(now).filter(holds).map(|PartStatus { limit: Limit { rate, burst }, .. }| HeldJson { rate, burst });
    let draining = source.live().phase == Phase::Draining;
    let one = |second: DemandSecond| SecondJson {
        start_us: second.second.saturating_mul(1_000_000),
        requests: second.arrived,
        refused: second.refused,
        backlog_max: second.backlog_max,
    };
    Ok(Json(DemandJson { now_us: now_us(), draining, part, seconds: told.into_iter().map(one).collect() }))
}

fn grants_of(bodies: Vec<GrantBody>) -> Result<Vec<Ordered>, Problem> {
    parts::once_each(bodies.iter().map(|body| &body.limit))?;
    let grant = |GrantBody { limit, rate_per_s, burst, lend }| {
        let value = parts::limit_of(&limit, rate_per_s, burst)?;
        Ok(Ordered { limit, value, lends: lend })
    };
    bodies.into_iter().map(grant).collect()
}

fn not_granted(limit: &str, revision: u64, why: NotGranted) -> Problem {
    match why {
        NotGranted::Refused(why) => refusal(limit, revision, why),
        NotGranted::Lent { tokens } => {
            let said = format_args!("{tokens} tokens of `{limit}` are lent, and come back within a second");
            Refusal::Lent.problem(said)
        }
    }
}

fn refusal(limit: &str, revision: u64, why: Refused) -> Problem {
    match why {
        Refused::Fenced { known } => {
            Refusal::Stale.problem(format_args!("the part of `{limit}` is of revision {known}, which is newer"))
        }
        Refused::Differs => Refusal::OtherContent
            .problem(format_args!("revision {revision} gives `{limit}` another part; a change takes a new revision")),
        Refused::Over => Refusal::Late.problem("the order came after the end of its lease"),
        Refused::Full { capacity } => Refusal::Full.problem(format_args!("a limit has {capacity} part")),
        _ => Problem::not_found(format!("`{limit}` has no part; /api/v1/parts lists what has one")),
    }
}
