//! `/api/v1/lending`: what the node's parts lend to those of other nodes, and the split that an order for parts tells.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidegate_runtime::clock;
use tidegate_runtime::http::Problem;
use tidegate_wire::nsq::TopicName;

use super::Shared;
use super::outcome::exiting;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::lending::split::SplitNode;
use crate::machine::lending::{CircleSnapshot, LendSnapshot, Split};

/// How the burst of a topic is split, in an order for parts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SplitBody {
    generation: u64,
    own: u16,
    nodes: Vec<SplitNodeBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitNodeBody {
    number: u16,
    name: String,
    burst: u64,
    addresses: Vec<SocketAddr>,
}

impl SplitBody {
    /// The split of `topic`.
    pub(super) fn read(&self, topic: &TopicName) -> Result<Split, Problem> {
        let node = |node: &SplitNodeBody| SplitNode {
            number: node.number,
            name: node.name.clone(),
            burst: node.burst,
            addresses: node.addresses.clone(),
        };
        let split = Split { generation: self.generation, own: self.own, nodes: self.nodes.iter().map(node).collect() };
        split.checked().map_err(|why| Problem::bad_request(format!("`lend` of `{topic}`: {why}")))
    }
}

/// All of lending.
#[derive(Serialize)]
pub(super) struct LendingJson {
    now_us: u64,
    lends: bool,
    addresses: Vec<String>,
    frames_sent: u64,
    frames_received: u64,
    frames_refused: u64,
    topics: Vec<TopicJson>,
}

#[derive(Serialize)]
struct TopicJson {
    topic: String,
    state: &'static str,
    why: Option<&'static str>,
    circle: Option<String>,
    revision: u64,
    base: u64,
    lent: u64,
    borrowed: u64,
    withheld: u64,
    members: Vec<MemberJson>,
}

#[derive(Serialize)]
struct MemberJson {
    node: String,
    address: String,
    gave: u64,
    got: u64,
}

/// `GET /api/v1/lending`.
pub(super) async fn all(State(shared): State<Shared>) -> Result<Json<LendingJson>, Problem> {
    let all = shared.lending().await?;
    let addresses = shared.admin.broker.lend_addresses();
    Ok(Json(LendingJson {
        now_us: clock::now().as_nanos() / 1_000,
        lends: !addresses.is_empty(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        frames_sent: all.sent,
        frames_received: all.received,
        frames_refused: all.refused,
        topics: all.circles.iter().map(TopicJson::from).collect(),
    }))
}

impl Shared {
    /// Lending of all shards, by topic.
    pub(super) async fn lending(&self) -> Result<LendSnapshot, Problem> {
        let replies = self.admin.broker.ask_all(&AdminRequest::Lending).await;
        if replies.is_empty() {
            return Err(exiting());
        }
        let mut all = LendSnapshot::default();
        for reply in replies {
            let AdminReply::Lending(shard) = reply else { return Err(exiting()) };
            all.circles.extend(shard.circles);
            all.sent += shard.sent;
            all.received += shard.received;
            all.refused += shard.refused;
        }
        all.circles.sort_by(|a, b| a.topic.cmp(&b.topic));
        Ok(all)
    }
}

impl From<&CircleSnapshot> for TopicJson {
    fn from(circle: &CircleSnapshot) -> Self {
        let position = circle.position;
        let member = |flow: &crate::machine::lending::FlowSnapshot| MemberJson {
            node: flow.node.clone(),
            address: flow.address.to_string(),
            gave: flow.gave,
            got: flow.got,
        };
        Self {
            topic: circle.topic.to_string(),
            state: circle.state.name(),
            why: circle.state.why(),
            circle: circle.circle.map(|circle| format!("{circle:016x}")),
            revision: circle.generation,
            base: position.base,
            lent: position.lent,
            borrowed: position.borrowed,
            withheld: position.withheld,
            members: circle.flows.iter().map(member).collect(),
        }
    }
}
