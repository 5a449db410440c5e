//! Placements, tried in virtual time.

use tidegate_core::Instant;
use tidegate_core::number::whole;
use tidegate_core::replay::ServiceModel;

use super::super::distributor::Distributor;
use super::super::model::replay::{Replayed, World, delay_us_p99, horizon, replay, share_over};
use super::super::model::traffic::TrafficModel;
use super::super::types::{
    Cause, Demand, Excess, FitConfig, Measured, NodeLoad, Part, PlanEvent, PlanOrder, Planner, Reason, Recorded, Slo,
};
use super::ModelConfig;

/// Numbers of nodes that are tried at most; beyond four of them the next number is a quarter larger.
const CANDIDATES_MAX: usize = 12;
/// A trial is made of so many traces, and the one that fares worst is left out: a bucket that runs dry for a second once in
/// several minutes does so in one of them by chance, and would decide.
const TRACES: u32 = 8;
/// Rounds of the paper's planner in the model at most.
const ROUNDS_MAX: u32 = 24;
/// Service times are fitted by a factor up to this, or down to one over it,
const FACTOR_MAX: f64 = 2.0;
/// in so many halvings: to 2 %.
const HALVINGS: u32 = 6;

/// A placement and what it showed in the model.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) parts: Vec<Part>,
    pub(super) replayed: Replayed,
}

/// One search. All its trials have the same arrivals and draws of service times.
pub(super) struct Search<'a> {
    demand: &'a Demand,
    config: ModelConfig,
    service: ServiceModel,
    nodes: &'a [NodeLoad],
    traces: Vec<Vec<Recorded>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        demand: &'a Demand,
        config: ModelConfig,
        service: ServiceModel,
        nodes: &'a [NodeLoad],
        traffic: &TrafficModel,
    ) -> Self {
        let rate_per_s = demand.publishers.iter().map(|publisher| publisher.rate_per_s).sum();
        let span = horizon(config.horizon, rate_per_s, config.messages_max.into()) / TRACES;
        let messages_max = u64::from(config.messages_max / TRACES);
        let trace = |number: u32| traffic.trace(span, messages_max, demand.seed.wrapping_add(number.into()));
        Self { demand, config, service, nodes, traces: (0..TRACES).map(trace).collect() }
    }

    /// The first number of nodes, from `least` to `most`, with which every node keeps the objective with something to spare;
    /// `divide` says who is where. If there is none: what the paper's rounds find in the model, or the best that just keeps it.
    /// If `least` is `most`, that number is taken in any case.
    pub(super) fn run(
        &self,
        least: usize,
        most: usize,
        usable: &[bool],
        divide: impl Fn(usize) -> Result<Vec<Part>, Cause>,
        now: Instant,
    ) -> Result<(Found, Vec<Reason>), Cause> {
        let allowed = 1.0 - self.demand.slo.quantile;
        let (mut why, mut best): (Vec<Reason>, Option<Found>) = (Vec::new(), None);
        let mut many = least.max(1);
        for tried in 1..=CANDIDATES_MAX {
            if many > most {
                break;
            }
            let parts = match divide(many) {
                Ok(parts) => parts,
                // More nodes have no more tokens.
                Err(_) if best.is_some() => break,
                Err(cause) => return Err(cause),
            };
            let found = Found { replayed: self.replay(&parts), parts };
            why.push(Self::predicted(&found));
            let worst = found.replayed.worst_over;
            if worst <= self.config.spare * allowed || least == most {
                return Ok((found, why));
            }
            if best.as_ref().is_none_or(|best| worst < best.replayed.worst_over) {
                best = Some(found);
            }
            many = if tried < 4 { many + 1 } else { (many + many.div_ceil(4)).min(most.max(many + 1)) };
        }
        if let Some(found) = self.by_rounds(usable, now) {
            why.push(Self::predicted(&found));
            return Ok((found, why));
        }
        let best = best.ok_or(Cause::NoNode)?;
        if best.replayed.worst_over <= allowed {
            why.push(Self::predicted(&best));
            return Ok((best, why));
        }
        let best_us_p99 = best.replayed.nodes.iter().map(|node| node.delay_us_p99).fold(0.0, f64::max);
        Err(Cause::SloUnmet { best_us_p99 })
    }

    /// Service times with which these parts would show this delay.
    pub(super) fn fitted(&self, parts: &[Part], measured_us_p99: f64) -> Option<ServiceModel> {
        let shown = |factor: f64| {
            let service = scaled(self.service, factor);
            delay_us_p99(&replay(&self.traces, parts, World { service, ..self.world() }).nodes)
        };
        let (mut low, mut high) = (1.0 / FACTOR_MAX, FACTOR_MAX);
        if !(shown(low)..=shown(high)).contains(&measured_us_p99) {
            return None;
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if shown(middle) < measured_us_p99 { low = middle } else { high = middle }
        }
        Some(scaled(self.service, (low * high).sqrt()))
    }

    fn world(&self) -> World<'_> {
        World {
            nodes: self.nodes,
            service: self.service,
            beside_batch: self.config.beside_batch,
            slo: self.demand.slo,
            seed: self.demand.seed,
        }
    }

    fn replay(&self, parts: &[Part]) -> Replayed {
        replay(&self.traces, parts, self.world())
    }

    fn predicted(found: &Found) -> Reason {
        let worst = |of: fn(&Measured) -> f64| found.replayed.nodes.iter().map(of).fold(0.0, f64::max);
        Reason::Predicted {
            nodes: u32::try_from(found.parts.len()).unwrap_or(u32::MAX),
            delay_us_p99: worst(|node| node.delay_us_p99),
            share_over: worst(share_over),
        }
    }

    /// What the paper's planner finds if the model answers for the nodes.
    fn by_rounds(&self, usable: &[bool], now: Instant) -> Option<Found> {
        let fit = FitConfig { excess: Excess::Held, rounds_max: ROUNDS_MAX, ..self.demand.fit };
        let mut planner = Distributor::new(Demand { fit, ..self.demand.clone() });
        let room =
            |(load, usable): (&NodeLoad, &bool)| if *usable { *load } else { NodeLoad { mcap_per_s: 0.0, ..*load } };
        let nodes = self.nodes.iter().zip(usable).map(room).collect();
        planner.on_event(PlanEvent::Begin { nodes }, now);
        // A node keeps the objective with something to spare if a later quantile does.
        let quantile = 1.0 - self.config.spare * (1.0 - self.demand.slo.quantile);
        let slo = Slo { quantile, ..self.demand.slo };
        let mut parts: Vec<Part> = Vec::new();
        loop {
            match planner.poll_output()? {
                PlanOrder::Assign { revision, parts: assigned } => {
                    parts = assigned;
                    planner.on_event(PlanEvent::Assigned { revision }, now);
                }
                PlanOrder::Measure { round, nodes, .. } => {
                    let results = replay(&self.traces, &parts, World { slo, ..self.world() }).nodes;
                    let results = results.into_iter().filter(|result| nodes.contains(&result.node)).collect();
                    planner.on_event(PlanEvent::Measured { round, results }, now);
                }
                PlanOrder::Done(plan) => {
                    let replayed = self.replay(&plan.parts);
                    return Some(Found { parts: plan.parts, replayed });
                }
                PlanOrder::OutOfNodes(_) | PlanOrder::Watch { .. } | PlanOrder::Record { .. } => return None,
            }
        }
    }
}

/// Cores that take so many times as long for a message; the rest of its way is the same.
fn scaled(service: ServiceModel, factor: f64) -> ServiceModel {
    let times = |ns: u32| u32::try_from(whole((f64::from(ns) * factor).round())).unwrap_or(u32::MAX);
    ServiceModel { batch_ns: times(service.batch_ns), message_ns: times(service.message_ns), ..service }
}
