//! SRTM's Load Distributor: as few nodes as possible, found by measuring.
//!
//! In iterations: the least number of nodes with room for the publishers that are left; their rate divided among these;
//! each group of publishers spread over them. Then all are measured together. A node that misses the objective keeps as
//! many publishers as meet it, found by binary search, all such nodes at the same time, and is full from then on. Whom it
//! does not keep goes to the next iteration. Source: §3 and §5.1 of the paper.
//!
//! Departure: if a node can keep none of a rest, however few it tries, the rest's part of the limit is smaller than its own
//! bursts, and no other node can keep it either. Then the publishers of the fullest node are dealt anew with the rest, over
//! both nodes; if all nodes are full, with those of the emptiest one. This happens at most once in a plan, and only if both
//! will have fewer than the fullest had. Policies that do not know the groups, which the paper compares SRTM with, keep its
//! rule.
//!
//! The limit is divided in proportion to the rates of all publishers, those included that are nowhere for the moment:
//! their part of it is held back, so that a node is measured with the bucket that it will have.

use core::mem;

use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rng};

use super::capacity::{least_nodes, limits, quotas};
use super::search::{Search, Step};
use super::select::deal;
use super::types::{
    Cause, Demand, Excess, Measured, NODES_MAX, NodeLoad, NodeNo, PUBLISHERS_MAX, Part, Plan, PlanEvent, PlanOrder,
    Planner, PublisherNo, Reason, Shortfall,
};

/// The planner of the paper.
#[derive(Debug)]
pub struct Distributor {
    demand: Demand,
    rng: Rng,
    nodes: Vec<Node>,
    /// Publishers without a node.
    left: Vec<PublisherNo>,
    /// Nodes that had nobody and could keep none of what this iteration brought.
    kept_none: Vec<usize>,
    /// Publishers that were kept were dealt anew.
    dealt_anew: bool,
    waits: Waits,
    revision: u64,
    round: u64,
    rounds_in_all: u32,
    began: Instant,
    plan: Plan,
    order: Option<PlanOrder>,
}

#[derive(Debug)]
struct Node {
    load: NodeLoad,
    state: State,
    /// Publishers that were measured there and stay.
    kept: Vec<PublisherNo>,
    /// Publishers that this iteration assigned to it. The first `on` of them are placed on it now.
    fresh: Vec<PublisherNo>,
    on: usize,
    search: Option<Search>,
    /// It could not be made ready so many times.
    not_ready: u32,
    rounds: u32,
    seen: Option<Measured>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// It missed the objective with more, or could not be made ready.
    Full,
    Gone,
}

/// What must happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Begin,
    /// Then a measurement follows, or the plan stands.
    Assigned {
        is_last: bool,
    },
    Measured,
    Nothing,
}

impl Node {
    fn new(load: NodeLoad) -> Self {
        Self {
            load,
            state: State::Open,
            kept: Vec::new(),
            fresh: Vec::new(),
            on: 0,
            search: None,
            not_ready: 0,
            rounds: 0,
            seen: None,
        }
    }

    fn publishers(&self) -> impl Iterator<Item = PublisherNo> {
        self.kept.iter().chain(&self.fresh[..self.on]).copied()
    }

    /// All publishers that this iteration left to it stay.
    fn keep(&mut self) {
        self.kept.append(&mut self.fresh);
        (self.on, self.search) = (0, None);
    }
}

impl Distributor {
    /// Nothing is placed. The first event is [`PlanEvent::Begin`].
    #[must_use]
    pub fn new(demand: Demand) -> Self {
        let rng = Rng::new(demand.seed);
        Self {
            demand,
            rng,
            nodes: Vec::new(),
            left: Vec::new(),
            kept_none: Vec::new(),
            dealt_anew: false,
            waits: Waits::Begin,
            revision: 0,
            round: 0,
            rounds_in_all: 0,
            began: Instant::ZERO,
            plan: Plan::default(),
            order: None,
        }
    }

    fn rate_of(&self, publishers: impl IntoIterator<Item = PublisherNo>) -> f64 {
        let rate = |publisher: PublisherNo| {
            self.demand.publishers.get(publisher.0 as usize).map_or(0.0, |publisher| publisher.rate_per_s)
        };
        publishers.into_iter().map(rate).sum()
    }

    /// The node without what this topic has there.
    fn rcap_per_s(&self, node: &Node) -> f64 {
        (node.load.rcap_per_s() - self.rate_of(node.publishers())).max(0.0)
    }

    fn begin(&mut self, nodes: Vec<NodeLoad>, now: Instant) {
        self.began = now;
        if nodes.len() > NODES_MAX || self.demand.publishers.len() > PUBLISHERS_MAX {
            return self.fail(Cause::TooMany, 0.0, now);
        }
        self.nodes = nodes.into_iter().map(Node::new).collect();
        self.left = (0..).map(PublisherNo).take(self.demand.publishers.len()).collect();
        let largest_mcap_per_s = self.nodes.iter().map(|node| node.load.mcap_per_s).fold(0.0, f64::max);
        let rates = self.demand.publishers.iter().map(|publisher| publisher.rate_per_s);
        if let Some((publisher, rate_per_s)) = (0..).map(PublisherNo).zip(rates).max_by(|a, b| a.1.total_cmp(&b.1))
            && rate_per_s > largest_mcap_per_s
            && !self.nodes.is_empty()
        {
            return self.fail(Cause::PublisherTooLarge { publisher, rate_per_s, largest_mcap_per_s }, rate_per_s, now);
        }
        self.iterate(now);
    }

    /// Gives those that are left to nodes.
    fn iterate(&mut self, now: Instant) {
        if self.left.is_empty() {
            return self.assign(true, now);
        }
        let at_least = self.deal_anew();
        let mut open: Vec<usize> = (0..self.nodes.len()).filter(|&at| self.nodes[at].state == State::Open).collect();
        if open.is_empty() {
            return match self.best_of_none_us() {
                // More nodes like these help nothing.
                Some(best_us_p99) => self.fail(Cause::SloUnmet { best_us_p99 }, 0.0, now),
                None if self.nodes.is_empty() => self.fail(Cause::NoNode, self.left_per_s(), now),
                None => self.fail(Cause::Capacity, self.left_per_s(), now),
            };
        }
        let rate_per_s = self.rate_of(self.left.iter().copied());
        let mut rooms: Vec<f64> = self.nodes.iter().map(|node| self.rcap_per_s(node)).collect();
        if self.demand.principles.concentrate {
            open.sort_by(|&a, &b| rooms[b].total_cmp(&rooms[a]).then(a.cmp(&b)));
            rooms = open.iter().map(|&at| rooms[at]).collect();
            let room: f64 = rooms.iter().sum();
            let forced = self.demand.force_nodes.map(|nodes| nodes as usize);
            let Some(many) = forced
                .filter(|&many| many <= open.len())
                .or_else(|| if forced.is_some() { None } else { least_nodes(rate_per_s, &rooms) })
                .map(|many| many.max(at_least).min(open.len()))
            else {
                return self.fail(Cause::Capacity, (rate_per_s - room).max(0.0), now);
            };
            open.truncate(many);
            let nodes = u32::try_from(many).unwrap_or(u32::MAX);
            let rcap_per_s = rooms[..many].iter().sum();
            self.plan.why.push(Reason::LeastNodes { nodes, rate_per_s, rcap_per_s });
        }
        let loads: Vec<NodeLoad> = open
            .iter()
            .map(|&at| {
                let node = &self.nodes[at];
                let allocated_per_s = node.load.allocated_per_s + self.rate_of(node.publishers());
                NodeLoad { allocated_per_s, ..node.load }
            })
            .collect();
        let quotas = quotas(self.demand.principles.share, rate_per_s, &loads);
        let left = mem::take(&mut self.left);
        let by_groups = self.demand.principles.by_groups;
        let dealt = deal(&self.demand.publishers, &left, &quotas, by_groups, &mut self.rng);
        for (at, fresh) in open.into_iter().zip(dealt) {
            let node = &mut self.nodes[at];
            (node.on, node.fresh, node.rounds) = (fresh.len(), fresh, 0);
        }
        self.plan.rounds.push(0);
        self.assign(false, now);
    }

    fn left_per_s(&self) -> f64 {
        self.rate_of(self.left.iter().copied())
    }

    /// The best p99 that was measured, if every node was and none kept the objective with anybody.
    fn best_of_none_us(&self) -> Option<f64> {
        let is_of_none = self.nodes.iter().all(|node| node.kept.is_empty() && node.seen.is_some());
        let seen = self.nodes.iter().filter_map(|node| node.seen).map(|seen| seen.delay_us_p99);
        seen.min_by(f64::total_cmp).filter(|_| is_of_none)
    }

    /// If a node could keep none of the rest, or none is open for it, the publishers of the fullest node join it, with those
    /// of the emptiest, as long as both will have fewer than the fullest had. On how many nodes they are to be at least.
    fn deal_anew(&mut self) -> usize {
        let took_nobody = mem::take(&mut self.kept_none);
        if self.dealt_anew || !self.demand.principles.by_groups {
            return 1;
        }
        let rate = |at: usize| self.rate_of(self.nodes[at].kept.iter().copied());
        let gives = |&at: &usize| self.nodes[at].state == State::Full && !self.nodes[at].kept.is_empty();
        let by_rate = |&a: &usize, &b: &usize| rate(a).total_cmp(&rate(b)).then(b.cmp(&a));
        let Some(fullest) = (0..self.nodes.len()).filter(gives).max_by(by_rate) else { return 1 };
        let is_empty = |&at: &usize| self.nodes[at].state == State::Full && self.nodes[at].kept.is_empty();
        let emptiest = took_nobody.iter().copied().find(is_empty).or_else(|| {
            let is_out = !self.nodes.iter().any(|node| node.state == State::Open);
            (0..self.nodes.len()).filter(|&at| is_out && at != fullest).filter(gives).min_by(by_rate)
        });
        let Some(emptiest) = emptiest else { return 1 };
        let left_per_s = self.rate_of(self.left.iter().copied());
        if rate(emptiest) + 2.0 * left_per_s > rate(fullest) {
            return 1;
        }
        let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
        let (node, of) = (NodeNo(count(fullest)), count(self.nodes[fullest].kept.len()));
        self.plan.why.push(Reason::DealtAnew { node, of, left: count(self.left.len()) });
        self.dealt_anew = true;
        for at in [fullest, emptiest] {
            self.empty(at, State::Open);
        }
        for at in took_nobody {
            if self.nodes[at].state == State::Full {
                self.nodes[at].state = State::Open;
            }
        }
        2
    }

    fn assign(&mut self, is_last: bool, now: Instant) {
        match self.parts() {
            Ok(parts) => {
                self.revision += 1;
                self.plan.parts.clone_from(&parts);
                self.order = Some(PlanOrder::Assign { revision: self.revision, parts });
                self.waits = Waits::Assigned { is_last };
            }
            Err(cause) => self.fail(cause, 0.0, now),
        }
    }

    /// The limit in parts, with one more that nobody gets for those that are nowhere.
    fn parts(&self) -> Result<Vec<Part>, Cause> {
        let mut publishers: Vec<Vec<PublisherNo>> = self.nodes.iter().map(|node| node.publishers().collect()).collect();
        if self.demand.fit.excess == Excess::NextNode {
            self.lend_room(&mut publishers);
        }
        let has_some: Vec<usize> = (0..publishers.len()).filter(|&at| !publishers[at].is_empty()).collect();
        let mut rates: Vec<f64> = has_some.iter().map(|&at| self.rate_of(publishers[at].iter().copied())).collect();
        let placed: usize = publishers.iter().map(Vec::len).sum();
        if placed < self.demand.publishers.len() {
            let whole = self.rate_of((0..).map(PublisherNo).take(self.demand.publishers.len()));
            rates.push((whole - rates.iter().sum::<f64>()).max(0.0));
        }
        let limits: Vec<Limit> = limits(self.demand.limit, &rates)?;
        let number = |at: usize| NodeNo(u32::try_from(at).unwrap_or(u32::MAX));
        let part =
            |(at, limit): (usize, Limit)| Part { node: number(at), limit, publishers: mem::take(&mut publishers[at]) };
        Ok(has_some.into_iter().zip(limits).map(part).collect())
    }

    /// While nodes are measured, the publishers that nobody tries are on nodes that are not, those with most room first: on
    /// another one they would be measured in place of its own. Where no such node has room, those that a node searches without
    /// are on the next open one, and those that have none stay where they are.
    fn lend_room(&self, publishers: &mut [Vec<PublisherNo>]) {
        let many = self.nodes.len();
        let is_open = |at: usize| self.nodes[at].state == State::Open;
        let idle = (0..many).filter(|&at| is_open(at) && self.nodes[at].fresh.is_empty());
        let mut spare: Vec<(usize, f64)> = idle.map(|at| (at, self.rcap_per_s(&self.nodes[at]))).collect();
        spare.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut spare = spare.into_iter().peekable();
        let next = |at: usize| (1..many).map(|step| (at + step) % many).find(|&next| is_open(next)).unwrap_or(at);
        let excess = self.nodes.iter().enumerate().flat_map(|(at, node)| {
            let next = node.search.map(|_| next(at));
            node.fresh[node.on..].iter().map(move |&publisher| (publisher, next))
        });
        for (publisher, next) in excess.chain(self.left.iter().map(|&publisher| (publisher, None))) {
            let rate_per_s = self.rate_of([publisher]);
            while spare.next_if(|(_, room)| *room < rate_per_s).is_some() {}
            let on = spare.peek_mut().map(|(spare, room)| {
                *room -= rate_per_s;
                *spare
            });
            if let Some(on) = on.or(next) {
                publishers[on].push(publisher);
            }
        }
    }

    /// Measures those that this iteration is about and that have not ended.
    fn measure(&mut self, now: Instant) {
        let searching = |node: &Node| node.state == State::Open && !node.fresh.is_empty();
        let nodes: Vec<NodeNo> =
            (0..).map(NodeNo).zip(&self.nodes).filter(|(_, node)| searching(node)).map(|(number, _)| number).collect();
        if nodes.is_empty() {
            return self.iterate(now);
        }
        if self.rounds_in_all >= self.demand.fit.rounds_max {
            return self.fail(Cause::TooManyRounds, self.left_per_s(), now);
        }
        self.round += 1;
        self.rounds_in_all += 1;
        if let Some(rounds) = self.plan.rounds.last_mut() {
            *rounds += 1;
        }
        self.order = Some(PlanOrder::Measure { round: self.round, nodes, span: self.demand.fit.round });
        self.waits = Waits::Measured;
    }

    fn on_measured(&mut self, results: &[Measured], now: Instant) {
        let is_fitted = self.demand.principles.concentrate && self.demand.force_nodes.is_none();
        // What did not answer is not counted on.
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let is_asked = node.state == State::Open && !node.fresh.is_empty();
            if is_asked && !results.iter().any(|result| result.node.0 as usize == at) {
                self.empty(at, State::Full);
            }
        }
        for &result in results {
            let Some(node) = self.nodes.get_mut(result.node.0 as usize) else { continue };
            node.seen = Some(result);
            node.rounds += 1;
            if node.state != State::Open || node.fresh.is_empty() {
                continue;
            }
            let within_us = self.demand.slo.within.as_secs_f64() * 1e6;
            let step = match &mut node.search {
                Some(search) => search.on_measured(result.delay_us_p99, self.demand.slo, &self.demand.fit),
                None if result.delay_us_p99 <= within_us || !is_fitted => Step::Ended(node.fresh.len()),
                None => {
                    let search = *node.search.insert(Search::new(node.fresh.len()));
                    if search.next().is_some() { Step::Goes } else { Step::Ended(0) }
                }
            };
            match step {
                Step::Goes => node.on = node.search.and_then(|search| search.next()).unwrap_or(0),
                Step::Ended(kept) => self.end_search(result, kept),
            }
        }
        let goes_on = self.nodes.iter().any(|node| node.search.is_some());
        if goes_on { self.assign(false, now) } else { self.iterate(now) }
    }

    /// The node keeps so many of those that this iteration brought.
    fn end_search(&mut self, result: Measured, kept: usize) {
        let node = &mut self.nodes[result.node.0 as usize];
        let of = node.fresh.len();
        let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
        if node.search.is_some() {
            node.state = State::Full;
            if kept == 0 && node.kept.is_empty() {
                self.kept_none.push(result.node.0 as usize);
            }
            self.left.extend(node.fresh.drain(kept..));
            self.plan.why.push(Reason::Full {
                node: result.node,
                kept: count(kept),
                of: count(of),
                rounds: node.rounds,
                delay_us_p99: result.delay_us_p99,
            });
        } else {
            let publishers = count(node.kept.len() + of);
            self.plan.why.push(Reason::Kept { node: result.node, publishers, delay_us_p99: result.delay_us_p99 });
        }
        node.keep();
    }

    /// What a node had goes elsewhere.
    fn empty(&mut self, at: usize, state: State) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        (node.state, node.search, node.on) = (state, None, 0);
        self.left.append(&mut node.kept);
        self.left.append(&mut node.fresh);
    }

    fn fail(&mut self, cause: Cause, missing_per_s: f64, now: Instant) {
        self.finish(now);
        let best = mem::take(&mut self.plan);
        self.order =
            Some(PlanOrder::OutOfNodes(Box::new(Shortfall { missing_per_s: missing_per_s.abs(), cause, best })));
    }

    fn finish(&mut self, now: Instant) {
        self.waits = Waits::Nothing;
        self.plan.elapsed = now.since(self.began);
        self.plan.measured =
            self.nodes.iter().filter(|node| !node.kept.is_empty()).filter_map(|node| node.seen).collect();
    }
}

impl Planner for Distributor {
    fn on_event(&mut self, event: PlanEvent, now: Instant) {
        match (event, self.waits) {
            (PlanEvent::Begin { nodes }, Waits::Begin) => self.begin(nodes, now),
            (PlanEvent::Assigned { revision }, Waits::Assigned { is_last }) if revision == self.revision => {
                if is_last && self.left.is_empty() {
                    self.finish(now);
                    self.order = Some(PlanOrder::Done(Box::new(mem::take(&mut self.plan))));
                } else if is_last {
                    self.iterate(now);
                } else {
                    self.measure(now);
                }
            }
            (PlanEvent::NotAssigned { revision, node }, Waits::Assigned { is_last }) if revision == self.revision => {
                let at = node.0 as usize;
                if let Some(known) = self.nodes.get_mut(at) {
                    known.not_ready += 1;
                    if known.not_ready > 1 {
                        self.empty(at, State::Full);
                    }
                }
                self.assign(is_last, now);
            }
            (PlanEvent::Measured { round, results }, Waits::Measured) if round == self.round => {
                self.on_measured(&results, now);
            }
            (PlanEvent::NodeAdded(_, load), waits) if waits != Waits::Begin && self.nodes.len() < NODES_MAX => {
                self.nodes.push(Node::new(load));
            }
            (PlanEvent::NodeGone(node), waits) if waits != Waits::Begin => self.empty(node.0 as usize, State::Gone),
            // What belongs to an order that was replaced says nothing.
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _now: Instant) {}

    fn poll_output(&mut self) -> Option<PlanOrder> {
        self.order.take()
    }
}

#[cfg(test)]
mod tests;
