//! `POST /api/v1/place/{topic}`: a new plan, or what it would be.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tidegate_core::Rng;
use tidegate_core::number::float;
use tidegate_core::replay::ServiceModel;
use tidegate_runtime::http::Problem;
use tokio::sync::oneshot;

use super::what_if::WAY;
use super::{Asked, busy};
use crate::config::{Planner as Chosen, Topic};
use crate::io::claim::{Command, Publishers};
use crate::io::dry_run::{DryPart, DryRun};
use crate::io::nodes::Nodes;
use crate::io::view::placed_words;
use crate::io::{ClaimHandle, Shared};
use crate::machine::distributor::Distributor;
use crate::machine::modelled::{ModelConfig, Modelled};
use crate::machine::name::Name;
use crate::machine::rehearsal::{Rehearsal, Rehearsed, poisson, service_of};
use crate::machine::roster::NodeState;
use crate::machine::types::{Demand, FitConfig, NodeLoad, NodeNo, PUBLISHERS_MAX, Plan, PublisherNo};

/// Arrivals of a rehearsal: some hundred milliseconds for each round.
const ARRIVALS_MAX: u32 = 150_000;
/// Their longest span.
const SPAN: Duration = Duration::from_mins(1);
/// What the model tries of each placement, in virtual time.
const MODEL_HORIZON: Duration = Duration::from_secs(20);
const SEED: u64 = 1;

/// How it is asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct How {
    dry_run: bool,
}

pub(super) async fn post(
    State(shared): Asked,
    Path(topic): Path<String>,
    how: Result<Query<How>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(How { dry_run }) =
        how.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is dry_run=true")))?;
    let claim = shared.claim(&topic)?;
    shared.must_lead()?;
    if dry_run {
        return rehearse(&shared, &claim).await.map(|answer| Json(answer).into_response());
    }
    claim.command(Command::Replan)?;
    tracing::info!(topic, "a person asked for a new plan");
    Ok((StatusCode::ACCEPTED, Json(json!({ "topic": topic, "dry_run": false, "planning": true }))).into_response())
}

impl ClaimHandle {
    fn command(&self, command: Command) -> Result<(), Problem> {
        self.commands.try_send(command).map_err(|_| busy("the topic has other things to do"))
    }
}

async fn rehearse(shared: &Shared, claim: &ClaimHandle) -> Result<DryRun, Problem> {
    let (reply, answer) = oneshot::channel();
    claim.command(Command::Publishers(reply))?;
    let publishers = answer.await.map_err(|_| Problem::not_ready("control is ending"))?;
    if publishers.names.is_empty() {
        return Err(Problem::not_ready(format!(
            "nobody publishes to `{}`, so there is nothing to place",
            claim.topic.name
        )));
    }
    if publishers.names.len() > PUBLISHERS_MAX {
        return Err(Problem::bad_request(format!("more than {PUBLISHERS_MAX} publish to `{}`", claim.topic.name)));
    }
    let Ok(turn) = shared.computing.clone().try_acquire_owned() else {
        return Err(busy("other questions are being computed"));
    };
    let (topic, nodes) = (claim.topic.clone(), shared.nodes.borrow().clone());
    let limit = claim.state.borrow().view.limit;
    let others: Vec<f64> = nodes.keys().map(|node| shared.loads.of_others(&topic.name, node.as_str())).collect();
    let computed = tokio::task::spawn_blocking(move || {
        let told = play(&topic, limit, publishers, &nodes, &others);
        drop(turn);
        told
    });
    Ok(computed.await.expect("it only computes"))
}

/// The planner against arrivals at random at the publishers' rates, and nodes of which only the capacity is known.
fn play(topic: &Topic, limit: tidegate_core::limit::Limit, all: Publishers, nodes: &Nodes, others: &[f64]) -> DryRun {
    let ready = |node: &crate::io::nodes::NodeNow| node.state == NodeState::Ready;
    let usable: Vec<(&Name, &crate::io::nodes::NodeNow, f64)> = nodes
        .iter()
        .zip(others)
        .filter(|((_, node), _)| ready(node))
        .map(|((name, node), allocated)| (name, node, *allocated))
        .collect();
    let Publishers { names, known: publishers, offered } = all;
    let slo = topic.slo.0;
    let batch = u32::try_from(tidegate_core::number::whole(offered.batch.round())).unwrap_or(1).clamp(1, 1_000);
    let demand = Demand {
        limit,
        slo,
        publishers: publishers.clone(),
        principles: topic.policy.into(),
        fit: FitConfig { round: topic.round, ..FitConfig::default() },
        force_nodes: None,
        seed: SEED,
    };
    let services: Vec<ServiceModel> =
        usable.iter().map(|(_, node, _)| service_of(node.mcap_per_s, node.shards, slo, WAY)).collect();
    // What the model believes of nodes is what is played for them: there is nothing else to compare it with.
    let slowest = services.iter().copied().min_by(|a, b| a.capacity_per_s(1).total_cmp(&b.capacity_per_s(1)));
    let rehearsal = Rehearsal {
        slo,
        arrivals: poisson(&publishers, batch, SPAN, ARRIVALS_MAX, &mut Rng::new(SEED)),
        publishers,
        nodes: usable
            .iter()
            .map(|(_, node, allocated_per_s)| NodeLoad {
                mcap_per_s: node.mcap_per_s,
                allocated_per_s: *allocated_per_s,
            })
            .collect(),
        services,
        seed: SEED,
    };
    let ended = match topic.planner {
        Chosen::Paper => rehearsal.run(&mut Distributor::new(demand)),
        Chosen::Model => {
            let default = ModelConfig::default();
            let service = slowest.unwrap_or(default.service);
            let config = ModelConfig { service, horizon: MODEL_HORIZON, messages_max: ARRIVALS_MAX, ..default };
            rehearsal.run(&mut Modelled::new(demand, config))
        }
    };
    let (plan, cause, missing_per_s) = match ended {
        Rehearsed::Done(plan) => (*plan, None, 0.0),
        Rehearsed::OutOfNodes(shortfall) => {
            let who =
                |publisher: PublisherNo| names.get(publisher.0 as usize).map_or_else(String::new, Name::to_string);
            (shortfall.best, Some(shortfall.cause.in_words_of("broker", who)), shortfall.missing_per_s)
        }
        Rehearsed::Unfinished => (Plan::default(), Some("the planner did not end".to_owned()), 0.0),
    };
    let name = |node: NodeNo| usable.get(node.0 as usize).map_or_else(String::new, |(name, ..)| name.to_string());
    let count = rehearsal.publishers.len();
    let part = |part: &crate::machine::types::Part| {
        let seen = plan.measured.iter().find(|seen| seen.node == part.node);
        DryPart {
            node: name(part.node),
            publishers: part.publishers.len(),
            share: float(part.publishers.len() as u64) / float(count.max(1) as u64),
            limit_rate_per_s: part.limit.rate.as_per_s(),
            limit_burst: part.limit.burst,
            delay_us_p99: seen.map(|seen| seen.delay_us_p99),
            access_us_p99: seen.map(|seen| seen.access_us_p99),
            share_over: seen.map(|seen| float(seen.over_slo) / float(seen.messages.max(1))),
        }
    };
    let headline = match &cause {
        None => placed_words(&plan),
        Some(cause) => format!("brokers are missing for {missing_per_s:.0} messages/s, because {cause}"),
    };
    let mut words: Vec<String> = cause.clone().into_iter().collect();
    words.extend(plan.why.iter().map(|reason| reason.in_words("broker", name)));
    DryRun {
        topic: topic.name.clone(),
        is_dry: true,
        placed: cause.is_none(),
        publishers: count,
        rate_per_s: rehearsal.publishers.iter().map(|publisher| publisher.rate_per_s).sum(),
        headline,
        words,
        missing_per_s,
        parts: plan.parts.iter().map(part).collect(),
        rounds: plan.rounds.clone(),
        planned_in_s: plan.elapsed.as_secs_f64(),
    }
}
