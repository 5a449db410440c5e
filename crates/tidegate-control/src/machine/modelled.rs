//! Placement by a model: arrivals are recorded for a few seconds, placements are tried in virtual time, and one is put in
//! force and confirmed by one measurement.
//!
//! The trial runs the machines that nodes run, on the recorded bursts, continued as long as is wanted; see
//! [`model`](super::model). The least number of nodes with room is tried first, then more of them; the first with which every
//! node keeps the objective with something to spare is taken. If there is none, the paper's rounds are played in the model.
//! All this is computed in pieces, one at each time-out, so that what drives the planner is never away for long.
//! The measurement ends as early as a sequential test allows. If it disagrees with the model by more than a stated margin,
//! the model's service times are fitted to what was measured and the search begins anew, as often as is configured; then
//! the model is given up for the paper's rounds on the nodes themselves.

mod config;
mod fallback;
mod search;

use core::mem;

use tidegate_core::Instant;
use tidegate_core::replay::ServiceModel;

pub use self::config::ModelConfig;
use self::fallback::Fallback;
use self::search::{Found, Outcome, Search};
use super::capacity::{least_nodes, limits, quotas};
use super::confirm::{Confirm, Verdict};
use super::model::replay::delay_us_p99;
use super::model::traffic::TrafficModel;
use super::select::deal;
use super::types::{
    Cause, Demand, Measured, NODES_MAX, NodeLoad, NodeNo, PUBLISHERS_MAX, Part, Plan, PlanEvent, PlanOrder, Planner,
    PublisherNo, Reason, Recorded, Shortfall,
};

#[derive(Clone, Copy, Debug)]
struct Node {
    load: NodeLoad,
    usable: bool,
    /// It could not be made ready so many times.
    not_ready: u32,
}

/// What must happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Begin,
    /// Publishers are placed to be recorded.
    Placed,
    Recorded,
    /// Placements are tried, a piece at each time-out. What is in force was measured and keeps the objective, or not.
    Searched {
        keeps: bool,
    },
    /// The placement that the model found is put in force.
    Assigned,
    Watched,
    Fallback,
    Nothing,
}

/// The planner that asks a model.
#[derive(Debug)]
pub struct Modelled {
    demand: Demand,
    config: ModelConfig,
    nodes: Vec<Node>,
    waits: Waits,
    revision: u64,
    round: u64,
    began: Instant,
    traffic: Option<TrafficModel>,
    /// As it is believed now.
    service: ServiceModel,
    fits: u32,
    search: Option<Box<Search>>,
    /// When the last piece of it was done.
    searched: Instant,
    found: Option<Found>,
    confirm: Option<Confirm>,
    /// Measurements of this confirmation.
    spans: u32,
    /// What the running measurement showed by the last reading, of all nodes.
    read: (u64, u64),
    plan: Plan,
    order: Option<PlanOrder>,
    fallback: Option<Box<Fallback>>,
}

impl Modelled {
    /// Nothing is placed. The first event is [`PlanEvent::Begin`].
    #[must_use]
    pub fn new(demand: Demand, config: ModelConfig) -> Self {
        Self {
            demand,
            service: config.service,
            config,
            nodes: Vec::new(),
            waits: Waits::Begin,
            revision: 0,
            round: 0,
            began: Instant::ZERO,
            traffic: None,
            fits: 0,
            search: None,
            searched: Instant::ZERO,
            found: None,
            confirm: None,
            spans: 0,
            read: (0, 0),
            plan: Plan::default(),
            order: None,
            fallback: None,
        }
    }

    fn begin(&mut self, nodes: &[NodeLoad], now: Instant) {
        self.began = now;
        if nodes.len() > NODES_MAX || self.demand.publishers.len() > PUBLISHERS_MAX {
            return self.fail(Cause::TooMany, 0.0, now);
        }
        self.nodes = nodes.iter().map(|&load| Node { load, usable: true, not_ready: 0 }).collect();
        if let Some(cause) = self.impossible() {
            return self.fail(cause, self.rate_per_s(), now);
        }
        if self.config.place_first { self.place(now) } else { self.record() }
    }

    /// Publishers are placed on the fewest nodes with room, to be recorded.
    fn place(&mut self, now: Instant) {
        let rooms = self.rooms();
        let Some(many) = least_nodes(self.rate_per_s(), &rooms.iter().map(|room| room.1).collect::<Vec<_>>()) else {
            return self.fail(Cause::Capacity, self.missing_per_s(), now);
        };
        match self.divided(many) {
            Ok(parts) => self.assign(parts, Waits::Placed),
            Err(cause) => self.fail(cause, 0.0, now),
        }
    }

    /// Why no placement can be, by rates alone.
    fn impossible(&self) -> Option<Cause> {
        if !self.nodes.iter().any(|node| node.usable) {
            return Some(Cause::NoNode);
        }
        let largest_mcap_per_s = self.nodes.iter().map(|node| node.load.mcap_per_s).fold(0.0, f64::max);
        let rates = self.demand.publishers.iter().map(|publisher| publisher.rate_per_s);
        let (publisher, rate_per_s) = (0..).map(PublisherNo).zip(rates).max_by(|a, b| a.1.total_cmp(&b.1))?;
        let too_large = Cause::PublisherTooLarge { publisher, rate_per_s, largest_mcap_per_s };
        (rate_per_s > largest_mcap_per_s).then_some(too_large)
    }

    fn rate_per_s(&self) -> f64 {
        self.demand.publishers.iter().map(|publisher| publisher.rate_per_s).sum()
    }

    fn missing_per_s(&self) -> f64 {
        (self.rate_per_s() - self.rooms().iter().map(|room| room.1).sum::<f64>()).max(0.0)
    }

    /// The usable nodes with their rooms, most room first.
    fn rooms(&self) -> Vec<(usize, f64)> {
        let usable = self.nodes.iter().enumerate().filter(|(_, node)| node.usable);
        let mut rooms: Vec<(usize, f64)> = usable.map(|(at, node)| (at, node.load.rcap_per_s())).collect();
        rooms.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        rooms
    }

    /// All publishers on so many of the nodes with most room.
    fn divided(&self, many: usize) -> Result<Vec<Part>, Cause> {
        let mut on: Vec<usize> = self.rooms().into_iter().take(many).map(|room| room.0).collect();
        on.sort_unstable();
        let loads: Vec<NodeLoad> = on.iter().map(|&at| self.nodes[at].load).collect();
        let quotas = quotas(self.demand.principles.share, self.rate_per_s(), &loads);
        let all: Vec<PublisherNo> = (0..).map(PublisherNo).take(self.demand.publishers.len()).collect();
        let mut rng = tidegate_core::Rng::new(self.demand.seed);
        let dealt = deal(&self.demand.publishers, &all, &quotas, self.demand.principles.by_groups, &mut rng);
        let held: Vec<(usize, Vec<PublisherNo>)> =
            on.into_iter().zip(dealt).filter(|(_, list)| !list.is_empty()).collect();
        let rate = |publisher: &PublisherNo| self.demand.publishers[publisher.0 as usize].rate_per_s;
        let rates: Vec<f64> = held.iter().map(|(_, list)| list.iter().map(rate).sum()).collect();
        let limits = limits(self.demand.limit, &rates)?;
        let part = |((at, publishers), limit)| Part { node: number(at), limit, publishers };
        Ok(held.into_iter().zip(limits).map(part).collect())
    }

    fn record(&mut self) {
        self.order = Some(PlanOrder::Record { span: self.config.record });
        self.waits = Waits::Recorded;
    }

    fn assign(&mut self, parts: Vec<Part>, waits: Waits) {
        self.revision += 1;
        self.plan.parts.clone_from(&parts);
        self.order = Some(PlanOrder::Assign { revision: self.revision, parts });
        self.waits = waits;
    }

    /// Begins to look for a placement in the model. `keeps`: what is in force keeps the objective. `measured`: parts, and the
    /// p99 that they showed, to which the model's service times are fitted first.
    fn search(&mut self, keeps: bool, measured: Option<(Vec<Part>, f64)>, now: Instant) {
        if let Some(cause) = self.impossible() {
            return self.fail(cause, self.rate_per_s(), now);
        }
        if self.traffic.is_none() {
            return self.record();
        }
        let rooms = self.rooms();
        let least = if self.demand.principles.concentrate {
            match self.demand.force_nodes.map(|nodes| nodes as usize) {
                Some(many) => Some(many).filter(|&many| many <= rooms.len()),
                None => least_nodes(self.rate_per_s(), &rooms.iter().map(|room| room.1).collect::<Vec<_>>()),
            }
        } else {
            Some(rooms.len())
        };
        let Some(least) = least else { return self.fail(Cause::Capacity, self.missing_per_s(), now) };
        let only = self.demand.force_nodes.is_some() || !self.demand.principles.concentrate;
        let most = if only { least } else { rooms.len() };
        self.search = Some(Box::new(Search::new(self, least, most, measured)));
        (self.waits, self.searched) = (Waits::Searched { keeps }, now);
    }

    /// The search ended.
    fn on_outcome(&mut self, outcome: Outcome, keeps: bool, now: Instant) {
        match outcome {
            Outcome::Found(found, why) => {
                let nodes = found.parts.len();
                let rcap_per_s: f64 = self.rooms().iter().take(nodes).map(|room| room.1).sum();
                // The first that was tried is the least with room.
                if why.len() == 1 {
                    let (nodes, rate_per_s) = (u32::try_from(nodes).unwrap_or(u32::MAX), self.rate_per_s());
                    self.plan.why.push(Reason::LeastNodes { nodes, rate_per_s, rcap_per_s });
                }
                self.plan.why.extend(why);
                self.plan.predicted.clone_from(&found.replayed.nodes);
                let is_there = keeps && self.plan.parts == found.parts;
                let parts = found.parts.clone();
                self.found = Some(found);
                if is_there { self.settle(now) } else { self.assign(parts, Waits::Assigned) }
            }
            // What the model does not find, rounds may.
            Outcome::Nothing(Cause::SloUnmet { best_us_p99 }) => {
                self.plan.why.push(Reason::Predicted {
                    nodes: u32::try_from(self.rooms().len()).unwrap_or(u32::MAX),
                    delay_us_p99: best_us_p99,
                    share_over: 1.0 - self.demand.slo.quantile,
                });
                self.fall_back(now);
            }
            Outcome::Nothing(cause) => self.fail(cause, 0.0, now),
            Outcome::Unfit => {
                self.fits = self.fits.saturating_sub(1);
                self.unfitted(keeps, now);
            }
        }
    }

    fn watch(&mut self) {
        let Some(found) = &self.found else { return };
        if self.confirm.is_none() {
            let promised = 1.0 - self.demand.slo.quantile;
            self.confirm = Some(Confirm::new(self.config.confirm, promised, found.replayed.late_together));
            self.spans = 0;
            self.plan.rounds.push(0);
        }
        self.spans += 1;
        self.round += 1;
        if let Some(rounds) = self.plan.rounds.last_mut() {
            *rounds += 1;
        }
        self.read = (0, 0);
        let nodes = found.parts.iter().map(|part| part.node).collect();
        let (span, every) = (self.config.confirm.span, self.config.confirm.every);
        self.order = Some(PlanOrder::Watch { round: self.round, nodes, span, every });
        self.waits = Waits::Watched;
    }

    /// A reading of all that the running measurement saw.
    fn on_reading(&mut self, results: Vec<Measured>, is_last: bool, now: Instant) {
        let (Some(found), Some(confirm)) = (&self.found, &mut self.confirm) else { return };
        let sums = results.iter().fold((0, 0), |sum: (u64, u64), one| (sum.0 + one.messages, sum.1 + one.over_slo));
        confirm.on_reading(sums.0.saturating_sub(self.read.0), sums.1.saturating_sub(self.read.1));
        self.read = sums;
        let every = self.config.confirm.every;
        let watched = every * u32::try_from(confirm.readings()).unwrap_or(u32::MAX);
        let verdict = match confirm.verdict() {
            Verdict::Open if is_last && self.spans >= self.config.confirm.spans_max => confirm.likely(),
            Verdict::Open if is_last => return self.watch(),
            Verdict::Open => return,
            // The p99 of a few messages says little.
            verdict if watched < self.config.confirm.least && !is_last && verdict == Verdict::Meets => return,
            verdict => verdict,
        };
        let (predicted_us_p99, measured_us_p99) = (delay_us_p99(&found.replayed.nodes), delay_us_p99(&results));
        let agrees = self.agree(predicted_us_p99, measured_us_p99);
        self.plan.measured = results;
        if agrees && verdict == Verdict::Meets {
            return self.settle(now);
        }
        if !agrees {
            self.plan.why.push(Reason::Disagreed { predicted_us_p99, measured_us_p99 });
        }
        if self.demand.force_nodes.is_some() || !self.demand.principles.concentrate {
            return self.settle(now);
        }
        self.on_missed(measured_us_p99, verdict, now);
    }

    fn agree(&self, predicted_us_p99: f64, measured_us_p99: f64) -> bool {
        let beyond = |us_p99: f64| (us_p99 - f64::from(self.service.way_ns) / 1e3).max(0.0);
        let (predicted, measured) = (beyond(predicted_us_p99), beyond(measured_us_p99));
        let most = 1.0 + self.config.margin;
        measured <= predicted * most && predicted <= measured * most
    }

    /// Model and measurement disagree, or the objective was missed.
    fn on_missed(&mut self, measured_us_p99: f64, verdict: Verdict, now: Instant) {
        let keeps = verdict == Verdict::Meets;
        let Some(found) = self.found.as_ref().filter(|_| self.fits < self.config.fits) else {
            return self.unfitted(keeps, now);
        };
        let parts = found.parts.clone();
        self.fits += 1;
        self.confirm = None;
        self.search(keeps, Some((parts, measured_us_p99)), now);
    }

    /// The model cannot be fitted any more.
    fn unfitted(&mut self, keeps: bool, now: Instant) {
        // What keeps the objective stays, whatever the model says of it.
        if keeps && self.fits > 0 { self.settle(now) } else { self.fall_back(now) }
    }

    /// The plan stands.
    fn settle(&mut self, now: Instant) {
        for measured in self.plan.measured.clone() {
            let on = self.plan.parts.iter().find(|part| part.node == measured.node);
            let publishers = on.map_or(0, |part| u32::try_from(part.publishers.len()).unwrap_or(u32::MAX));
            let delay_us_p99 = measured.delay_us_p99;
            self.plan.why.push(Reason::Kept { node: measured.node, publishers, delay_us_p99 });
        }
        self.plan.elapsed = now.since(self.began);
        self.waits = Waits::Nothing;
        self.order = Some(PlanOrder::Done(Box::new(mem::take(&mut self.plan))));
    }

    fn fail(&mut self, cause: Cause, missing_per_s: f64, now: Instant) {
        self.plan.elapsed = now.since(self.began);
        self.waits = Waits::Nothing;
        let best = mem::take(&mut self.plan);
        self.order =
            Some(PlanOrder::OutOfNodes(Box::new(Shortfall { missing_per_s: missing_per_s.abs(), cause, best })));
    }

    /// The paper's rounds, on the nodes themselves.
    fn fall_back(&mut self, now: Instant) {
        self.plan.why.push(Reason::FellBack);
        let loads = self.nodes.iter().map(|node| (node.load, node.usable)).collect();
        let mut fallback = Fallback::new(self.demand.clone(), loads, self.revision, self.round, now);
        self.order = fallback.poll(&mut self.plan, self.began);
        self.fallback = Some(Box::new(fallback));
        self.waits = Waits::Fallback;
    }

    /// A node cannot be used: if it has a part, another placement is looked for.
    fn without(&mut self, at: usize, now: Instant) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        node.usable = false;
        let has_part = self.plan.parts.iter().any(|part| part.node.0 as usize == at);
        match self.waits {
            Waits::Assigned | Waits::Watched if has_part => {
                self.confirm = None;
                self.search(false, None, now);
            }
            Waits::Searched { keeps } => {
                let measured = self.search.take().and_then(|search| search.measured());
                self.search(keeps && !has_part, measured, now);
            }
            Waits::Placed => self.place(now),
            _ => {}
        }
    }
}

impl Planner for Modelled {
    fn on_event(&mut self, event: PlanEvent, now: Instant) {
        if let Some(fallback) = &mut self.fallback {
            fallback.on_event(event, now);
            return;
        }
        match (event, self.waits) {
            (PlanEvent::Begin { nodes }, Waits::Begin) => self.begin(&nodes, now),
            (PlanEvent::Assigned { revision }, Waits::Placed) if revision == self.revision => self.record(),
            (PlanEvent::Assigned { revision }, Waits::Assigned) if revision == self.revision => self.watch(),
            (PlanEvent::NotAssigned { revision, node }, Waits::Placed | Waits::Assigned)
                if revision == self.revision =>
            {
                let at = node.0 as usize;
                let Some(known) = self.nodes.get_mut(at) else { return };
                known.not_ready += 1;
                if known.not_ready > 1 {
                    self.without(at, now);
                } else {
                    let parts = mem::take(&mut self.plan.parts);
                    self.assign(parts, self.waits);
                }
            }
            (PlanEvent::Recorded { arrivals }, Waits::Recorded) => {
                self.on_recorded(&arrivals);
                self.search(false, None, now);
            }
            (PlanEvent::Watched { round, results }, Waits::Watched) if round == self.round => {
                self.on_reading(results, false, now);
            }
            (PlanEvent::Measured { round, results }, Waits::Watched) if round == self.round => {
                self.on_reading(results, true, now);
            }
            (PlanEvent::NodeAdded(_, load), waits) if waits != Waits::Begin && self.nodes.len() < NODES_MAX => {
                self.nodes.push(Node { load, usable: true, not_ready: 0 });
            }
            (PlanEvent::NodeGone(node), waits) if !matches!(waits, Waits::Begin | Waits::Nothing) => {
                self.without(node.0 as usize, now);
            }
            // What belongs to an order that was replaced says nothing.
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.search.as_ref().map(|_| self.searched)
    }

    /// Another piece of a search.
    fn on_timeout(&mut self, now: Instant) {
        let Waits::Searched { keeps } = self.waits else { return };
        let Some(mut search) = self.search.take() else { return };
        self.searched = now;
        match search.step(self, now) {
            None => self.search = Some(search),
            Some(outcome) => {
                self.service = search.service();
                self.on_outcome(outcome, keeps, now);
            }
        }
    }

    fn poll_output(&mut self) -> Option<PlanOrder> {
        if self.order.is_none()
            && let Some(fallback) = &mut self.fallback
        {
            self.order = fallback.poll(&mut self.plan, self.began);
        }
        self.order.take()
    }
}

impl Modelled {
    /// The traffic is known from now on.
    fn on_recorded(&mut self, arrivals: &[Recorded]) {
        self.traffic = Some(TrafficModel::of(arrivals, &self.demand.publishers));
    }
}

fn number(at: usize) -> NodeNo {
    NodeNo(u32::try_from(at).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
