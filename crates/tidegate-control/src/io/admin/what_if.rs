//! `/api/v1/topics/{topic}/k`: what if the topic were on k brokers, with a burst of b?

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use tidegate_core::limit::Limit;
use tidegate_runtime::http::Problem;

use super::{Asked, busy};
use crate::config::{NODES_MAX, Unit};
use crate::io::Shared;
use crate::io::predict::{WhatIf, WhatIfAnswer};
use crate::machine::rehearsal::service_of;

/// The part of a message's way that is no queue.
pub(super) const WAY: Duration = Duration::from_micros(100);
/// Largest burst that is asked about.
const BURST_MAX: u64 = 1_000_000_000;

/// The question.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    k: u32,
    b: Option<u64>,
}

pub(super) async fn get(
    State(shared): Asked,
    Path(topic): Path<String>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Json<WhatIfAnswer>, Problem> {
    let Query(question) =
        question.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameters are k and b")))?;
    answer(&shared, &topic, question).await
}

pub(super) async fn post(
    State(shared): Asked,
    Path(topic): Path<String>,
    question: Result<Json<Question>, JsonRejection>,
) -> Result<Json<WhatIfAnswer>, Problem> {
    let Json(question) = question.map_err(|rejection| {
        Problem::bad_request(format!("{rejection}; send {{\"k\": 2}} or {{\"k\": 2, \"b\": 26}}"))
    })?;
    answer(&shared, &topic, question).await
}

async fn answer(shared: &Arc<Shared>, topic: &str, question: Question) -> Result<Json<WhatIfAnswer>, Problem> {
    let claim = shared.claim(topic)?;
    if claim.topic.unit == Unit::Bytes {
        return Err(Problem::bad_request(format!(
            "the limit of `{topic}` counts bytes; the question is about messages"
        )));
    }
    let state = claim.state.borrow().clone();
    let burst = question.b.unwrap_or(state.view.limit.burst);
    if !(1..=u32::try_from(NODES_MAX).unwrap_or(u32::MAX)).contains(&question.k) {
        return Err(Problem::bad_request(format!("`k` is {}; give 1 to {NODES_MAX}", question.k)));
    }
    if burst < u64::from(question.k) || burst > BURST_MAX {
        let detail = format!("`b` is {burst}; give {} to {BURST_MAX}: each broker needs a whole token", question.k);
        return Err(Problem::bad_request(detail));
    }
    if state.offered.rate_per_s <= 0.0 {
        return Err(Problem::not_ready(format!("nobody publishes to `{topic}`, so there is nothing to ask about")));
    }
    let Ok(turn) = shared.computing.clone().try_acquire_owned() else {
        return Err(busy("other questions are being computed"));
    };
    // The least of the nodes says what a broker takes.
    let nodes = shared.nodes.borrow().clone();
    let least = nodes.values().min_by(|a, b| a.mcap_per_s.total_cmp(&b.mcap_per_s));
    let (mcap_per_s, cores) =
        least.map_or((crate::io::nodes::MCAP_PER_SHARD, 1), |node| (node.mcap_per_s, node.shards));
    let slo = claim.topic.slo.0;
    let what_if = WhatIf {
        nodes: question.k,
        limit: Limit::new(state.view.limit.rate, burst),
        slo,
        offered: state.offered,
        service: service_of(mcap_per_s, cores, slo, WAY),
    };
    let computed = tokio::task::spawn_blocking(move || {
        let answer = what_if.answer();
        drop(turn);
        answer
    });
    let answer = computed.await.expect("it only computes");
    answer.map(Json).ok_or_else(|| Problem::bad_request("the burst has no whole token for each broker"))
}
