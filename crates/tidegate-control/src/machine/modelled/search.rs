//! Placements, tried in virtual time, a trace at a time.

use core::mem;

use tidegate_core::Instant;
use tidegate_core::number::whole;
use tidegate_core::replay::ServiceModel;

use super::super::distributor::Distributor;
use super::super::model::replay::{Replayed, Trial, World, delay_us_p99, horizon, share_over};
use super::super::types::{
    Cause, Demand, Excess, FitConfig, Measured, NodeLoad, NodeNo, Part, PlanEvent, PlanOrder, Planner, Reason,
    Recorded, Slo,
};
use super::Modelled;

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

/// What a search came to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A placement, and why it.
    Found(Found, Vec<Reason>),
    /// There is none.
    Nothing(Cause),
    /// No service times show what was measured.
    Unfit,
}

/// One search. All its trials have the same arrivals and draws of service times.
#[derive(Debug)]
pub(super) struct Search {
    service: ServiceModel,
    nodes: Vec<NodeLoad>,
    /// The largest number of nodes that is tried. If it is the least, it is taken in any case.
    most: usize,
    least: usize,
    traces: Vec<Vec<Recorded>>,
    trial: Option<Trial>,
    stage: Stage,
    why: Vec<Reason>,
    best: Option<Found>,
}

#[derive(Debug)]
enum Stage {
    /// Service times are fitted to a measurement.
    Fit(Fit),
    /// The publishers are divided among so many nodes.
    Even { many: usize, tried: usize },
    /// The paper's rounds.
    Rounds(Box<Rounds>),
    /// What the rounds found is tried once more, by the objective itself.
    Last,
}

#[derive(Debug)]
struct Fit {
    parts: Vec<Part>,
    measured_us_p99: f64,
    low: f64,
    high: f64,
    tried: u32,
}

#[derive(Debug)]
struct Rounds {
    planner: Distributor,
    parts: Vec<Part>,
    round: u64,
    nodes: Vec<NodeNo>,
}

impl Search {
    /// Of divisions among `least` to `most` nodes. With a measurement of some parts, service times are fitted to its p99
    /// first.
    pub(super) fn new(of: &Modelled, least: usize, most: usize, measured: Option<(Vec<Part>, f64)>) -> Self {
        let fit = |(parts, measured_us_p99)| {
            Stage::Fit(Fit { parts, measured_us_p99, low: 1.0 / FACTOR_MAX, high: FACTOR_MAX, tried: 0 })
        };
        let least = least.max(1);
        Self {
            service: of.service,
            nodes: of.nodes.iter().map(|node| node.load).collect(),
            most,
            least,
            traces: Vec::new(),
            trial: None,
            stage: measured.map_or(Stage::Even { many: least, tried: 1 }, fit),
            why: Vec::new(),
            best: None,
        }
    }

    /// Service times, fitted if that was asked for.
    pub(super) fn service(&self) -> ServiceModel {
        self.service
    }

    /// The measurement that service times are fitted to.
    pub(super) fn measured(self) -> Option<(Vec<Part>, f64)> {
        if let Stage::Fit(Fit { parts, measured_us_p99, .. }) = self.stage {
            Some((parts, measured_us_p99))
        } else {
            None
        }
    }

    /// Another piece of the search, which is that of one trace: some tens of milliseconds with a million messages in all.
    ///
    /// The first number of nodes is taken with which every node keeps the objective with something to spare. If there is
    /// none: what the paper's rounds find in the model, or the best that just keeps it.
    pub(super) fn step(&mut self, of: &Modelled, now: Instant) -> Option<Outcome> {
        let next = u32::try_from(self.traces.len()).unwrap_or(TRACES);
        if next < TRACES {
            self.traces.push(trace(of, next));
            return None;
        }
        let Some(mut trial) = self.trial.take() else { return self.begin_trial(of, now) };
        let world = self.world(of);
        if !trial.play_next(&self.traces, world) {
            self.trial = Some(trial);
            return None;
        }
        let (parts, replayed) = trial.end(world);
        self.on_trial(Found { parts, replayed }, of, now)
    }

    /// What is tried next.
    fn begin_trial(&mut self, of: &Modelled, now: Instant) -> Option<Outcome> {
        let parts = match &mut self.stage {
            Stage::Fit(fit) => fit.parts.clone(),
            &mut Stage::Even { many, tried } => {
                if many > self.most || tried > CANDIDATES_MAX {
                    self.begin_rounds(of, now);
                    return None;
                }
                match of.divided(many) {
                    Ok(parts) => parts,
                    // More nodes have no more tokens.
                    Err(_) if self.best.is_some() => {
                        self.begin_rounds(of, now);
                        return None;
                    }
                    Err(cause) => return Some(Outcome::Nothing(cause)),
                }
            }
            Stage::Rounds(rounds) => match rounds.next_parts(now) {
                Some((parts, goes_on)) => {
                    if !goes_on {
                        self.stage = Stage::Last;
                    }
                    parts
                }
                None => return Some(self.take_best(of)),
            },
            // A trial of it is begun with the stage.
            Stage::Last => return Some(self.take_best(of)),
        };
        self.trial = Some(Trial::new(parts));
        None
    }

    fn on_trial(&mut self, found: Found, of: &Modelled, now: Instant) -> Option<Outcome> {
        match &mut self.stage {
            Stage::Fit(fit) => {
                let factor = fit.factor();
                if !fit.on_shown(factor, delay_us_p99(&found.replayed.nodes)) {
                    return Some(Outcome::Unfit);
                }
                if fit.tried == HALVINGS + 2 {
                    self.service = scaled(self.service, fit.factor());
                    self.stage = Stage::Even { many: self.least, tried: 1 };
                }
                None
            }
            &mut Stage::Even { many, tried } => {
                self.why.push(predicted(&found));
                let worst = found.replayed.worst_over;
                if worst <= of.config.spare * allowed(&of.demand) || self.least == self.most {
                    return Some(Outcome::Found(found, mem::take(&mut self.why)));
                }
                if self.best.as_ref().is_none_or(|best| worst < best.replayed.worst_over) {
                    self.best = Some(found);
                }
                let next = if tried < 4 { many + 1 } else { (many + many.div_ceil(4)).min(self.most.max(many + 1)) };
                self.stage = Stage::Even { many: next, tried: tried + 1 };
                None
            }
            Stage::Rounds(rounds) => {
                rounds.on_results(found.replayed.nodes, now);
                None
            }
            Stage::Last => {
                self.why.push(predicted(&found));
                Some(Outcome::Found(found, mem::take(&mut self.why)))
            }
        }
    }

    /// No even division will do.
    fn begin_rounds(&mut self, of: &Modelled, now: Instant) {
        self.stage = Stage::Rounds(Box::new(Rounds::new(of, now)));
    }

    fn take_best(&mut self, of: &Modelled) -> Outcome {
        let Some(best) = self.best.take() else { return Outcome::Nothing(Cause::NoNode) };
        if best.replayed.worst_over <= allowed(&of.demand) {
            self.why.push(predicted(&best));
            return Outcome::Found(best, mem::take(&mut self.why));
        }
        let best_us_p99 = best.replayed.nodes.iter().map(|node| node.delay_us_p99).fold(0.0, f64::max);
        Outcome::Nothing(Cause::SloUnmet { best_us_p99 })
    }

    fn world<'a>(&'a self, of: &Modelled) -> World<'a> {
        let mut world = World {
            nodes: &self.nodes,
            service: self.service,
            beside_batch: of.config.beside_batch,
            slo: of.demand.slo,
            seed: of.demand.seed,
        };
        match &self.stage {
            Stage::Fit(fit) => world.service = scaled(self.service, fit.factor()),
            // A node keeps the objective with something to spare if a later quantile does.
            Stage::Rounds(_) => world.slo = Slo { quantile: 1.0 - of.config.spare * allowed(&of.demand), ..world.slo },
            Stage::Even { .. } | Stage::Last => {}
        }
        world
    }
}

impl Fit {
    /// Service times of the next trial over those that are believed: the least, the most, and then in the middle.
    fn factor(&self) -> f64 {
        match self.tried {
            0 => self.low,
            1 => self.high,
            _ => (self.low * self.high).sqrt(),
        }
    }

    /// With this factor the model shows this p99; false if the measured one is out of reach.
    fn on_shown(&mut self, factor: f64, us_p99: f64) -> bool {
        let is_short = us_p99 < self.measured_us_p99;
        let within = match self.tried {
            0 => us_p99 <= self.measured_us_p99,
            1 => us_p99 >= self.measured_us_p99,
            _ if is_short => {
                self.low = factor;
                true
            }
            _ => {
                self.high = factor;
                true
            }
        };
        self.tried += 1;
        within
    }
}

impl Rounds {
    /// The paper's planner, for which the model answers.
    fn new(of: &Modelled, now: Instant) -> Self {
        let fit = FitConfig { excess: Excess::Held, rounds_max: ROUNDS_MAX, ..of.demand.fit };
        let mut planner = Distributor::new(Demand { fit, ..of.demand.clone() });
        let room = |node: &super::Node| {
            if node.usable { node.load } else { NodeLoad { mcap_per_s: 0.0, ..node.load } }
        };
        planner.on_event(PlanEvent::Begin { nodes: of.nodes.iter().map(room).collect() }, now);
        Self { planner, parts: Vec::new(), round: 0, nodes: Vec::new() }
    }

    /// What is to be tried, and whether it is a round; `None` if there is no plan.
    fn next_parts(&mut self, now: Instant) -> Option<(Vec<Part>, bool)> {
        loop {
            match self.planner.poll_output()? {
                PlanOrder::Assign { revision, parts } => {
                    self.parts = parts;
                    self.planner.on_event(PlanEvent::Assigned { revision }, now);
                }
                PlanOrder::Measure { round, nodes, .. } => {
                    (self.round, self.nodes) = (round, nodes);
                    return Some((self.parts.clone(), true));
                }
                PlanOrder::Done(plan) => return Some((plan.parts, false)),
                PlanOrder::OutOfNodes(_) | PlanOrder::Watch { .. } | PlanOrder::Record { .. } => return None,
            }
        }
    }

    fn on_results(&mut self, mut results: Vec<Measured>, now: Instant) {
        results.retain(|result| self.nodes.contains(&result.node));
        self.planner.on_event(PlanEvent::Measured { round: self.round, results }, now);
    }
}

/// One of the traces that all trials have in common.
fn trace(of: &Modelled, number: u32) -> Vec<Recorded> {
    let span = horizon(of.config.horizon, of.rate_per_s(), of.config.messages_max.into()) / TRACES;
    let messages_max = u64::from(of.config.messages_max / TRACES);
    let traffic = of.traffic.as_ref();
    traffic
        .map_or_else(Vec::new, |traffic| traffic.trace(span, messages_max, of.demand.seed.wrapping_add(number.into())))
}

/// The share of messages that may be beyond the objective.
fn allowed(demand: &Demand) -> f64 {
    1.0 - demand.slo.quantile
}

fn predicted(found: &Found) -> Reason {
    let worst = |of: fn(&Measured) -> f64| found.replayed.nodes.iter().map(of).fold(0.0, f64::max);
    Reason::Predicted {
        nodes: u32::try_from(found.parts.len()).unwrap_or(u32::MAX),
        delay_us_p99: worst(|node| node.delay_us_p99),
        share_over: worst(share_over),
    }
}

/// Cores that take so many times as long for a message; the rest of its way is the same.
fn scaled(service: ServiceModel, factor: f64) -> ServiceModel {
    let times = |ns: u32| u32::try_from(whole((f64::from(ns) * factor).round())).unwrap_or(u32::MAX);
    ServiceModel { batch_ns: times(service.batch_ns), message_ns: times(service.message_ns), ..service }
}
