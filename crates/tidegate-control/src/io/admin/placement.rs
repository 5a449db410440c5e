//! `GET /api/v1/placement/{topic}`: where a topic's publishers belong, and a wait for the next change.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use tidegate_runtime::http::Problem;
use tokio::time::timeout;

use super::{Asked, busy};
use crate::io::WAITERS_MAX;
use crate::io::lead::stopped;
use crate::io::nodes::Members;
use crate::machine::director::Placement;

/// Longest wait.
const WAIT_MS_MAX: u64 = 60_000;
const WAIT_MS: u64 = 30_000;

/// What is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct After {
    after: Option<u64>,
    wait_ms: Option<u64>,
}

/// A node that publishers go to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct NodeAddress {
    name: String,
    nsq: String,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct PlacementAnswer {
    topic: String,
    revision: u64,
    nodes: Vec<NodeAddress>,
    /// By identity: a place in `nodes`.
    publishers: BTreeMap<String, u32>,
    /// Weights of `nodes` for publishers that are not named.
    default: Vec<f64>,
}

impl PlacementAnswer {
    fn of(topic: &str, placement: &Placement, members: &Members) -> Self {
        let address = |name: &crate::machine::name::Name| NodeAddress {
            name: name.to_string(),
            nsq: members.get(name.as_str()).map(|member| member.node.nsq.clone()).unwrap_or_default(),
        };
        Self {
            topic: topic.to_owned(),
            revision: placement.revision,
            nodes: placement.nodes.iter().map(address).collect(),
            publishers: placement.publishers.iter().map(|(name, at)| (name.to_string(), *at)).collect(),
            default: placement.default.clone(),
        }
    }
}

/// Answers at once if the placement is newer than `after`, else when it is or when the wait is over.
pub(super) async fn get(
    State(shared): Asked,
    Path(topic): Path<String>,
    asked: Result<Query<After>, QueryRejection>,
) -> Result<Json<PlacementAnswer>, Problem> {
    let Query(After { after, wait_ms }) = asked
        .map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameters are after and wait_ms")))?;
    let wait_ms = wait_ms.unwrap_or(if after.is_some() { WAIT_MS } else { 0 });
    if wait_ms > WAIT_MS_MAX {
        return Err(Problem::bad_request(format!("`wait_ms` is {wait_ms}; give at most {WAIT_MS_MAX}")));
    }
    let mut placement = shared.claim(&topic)?.placement;
    let is_newer = |placement: &std::sync::Arc<Placement>| after.is_none_or(|after| placement.revision != after);
    if wait_ms > 0 && !is_newer(&placement.borrow()) {
        let Ok(_place) = shared.waiters.clone().try_acquire_owned() else {
            return Err(busy(&format!("{WAITERS_MAX} wait for placements already")));
        };
        let mut stop = shared.stop.clone();
        let wait = timeout(Duration::from_millis(wait_ms), placement.wait_for(is_newer));
        tokio::select! {
            // Whatever ends the wait, what holds now is the answer.
            waited = wait => drop(waited),
            () = stopped(&mut stop) => {}
        }
    }
    let placement = shared.claim(&topic)?.placement.borrow().clone();
    Ok(Json(PlacementAnswer::of(&topic, &placement, &shared.declared().members)))
}
