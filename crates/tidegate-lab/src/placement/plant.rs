//! Carries out a planner's orders.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_control::machine::distributor::Distributor;
use tidegate_control::machine::model::lane::{self, Batch};
use tidegate_control::machine::modelled::Modelled;
use tidegate_control::machine::types::{
    Cause, Measured, NodeNo, Part, Plan, PlanEvent, PlanOrder, Planner, PublisherNo, Reason, Recorded, Shortfall,
};
use tidegate_core::limit::Limit;
use tidegate_core::replay::Passed;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_sim::workload::{Arrival, Poisson, Publishers};

use super::scenario::{PlannerName, QUANTILE, Scenario, ScenarioError};
use crate::statistics::float;

/// Orders that are carried out at most; a planner that goes on is stopped.
const ORDERS_MAX: u32 = 10_000;
/// What nodes are called here.
const KIND: &str = "broker";
/// Streams of random numbers of measurements begin here: one for the publishers, one for the brokers of each.
const MEASUREMENTS: u64 = 16;

/// What a placement came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Played {
    /// The topic's whole limit.
    pub limit: Limit,
    /// What each broker of the plan showed, measured once more; of a planner that found no plan, how far it came.
    pub assignment: Vec<BrokerFigures>,
    /// Why there is no plan.
    pub cause: Option<Cause>,
    /// The rate that is on no broker.
    pub missing_per_s: f64,
    /// Measurements of each iteration.
    pub rounds: Vec<u32>,
    /// From the topic's arrival to the end, in seconds of virtual time.
    pub seconds: f64,
    /// From the topic's arrival until the placement that it ended with was in force.
    pub placed_s: f64,
    /// A model and a measurement disagreed.
    pub disagreed: bool,
    /// The middle of all messages, from arrival to the end of processing.
    pub us_p50: f64,
    /// The p99 of all messages.
    pub us_p99: f64,
    /// The p99 of waiting for tokens alone.
    pub access_us_p99: f64,
    /// True if all publishers have a broker and the topic's p99 is within the objective.
    pub meets_slo: bool,
    /// Seconds of each measurement that were simulated.
    pub simulated_s: f64,
    /// The decisions in their order, and the cause.
    pub why: Vec<String>,
}

/// A broker of a plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BrokerFigures {
    /// Which, from 1.
    pub broker: u32,
    /// Of the topic.
    pub publishers: u32,
    /// Its part of the limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Messages per second of other topics.
    pub preload_per_s: f64,
    /// Messages of the topic that were measured.
    pub messages: u64,
    /// From arrival to the end of processing.
    pub us_p99: f64,
    /// Waiting for tokens alone.
    pub access_us_p99: f64,
    /// Of its messages, those beyond the objective.
    pub share_over: f64,
}

/// Places the topic by the planner of the scenario.
///
/// # Errors
/// If the scenario cannot be.
pub fn place(scenario: &Scenario) -> Result<Played, ScenarioError> {
    scenario.check()?;
    let limit = scenario.limit()?;
    let demand = scenario.demand(limit);
    Ok(match scenario.planner {
        PlannerName::Paper => play(scenario, limit, &mut Distributor::new(demand)),
        PlannerName::Model => play(scenario, limit, &mut Modelled::new(demand, scenario.model())),
    })
}

/// Carries out the orders of `planner`, which was asked for this scenario's topic, until the last one.
pub fn play(scenario: &Scenario, limit: Limit, planner: &mut dyn Planner) -> Played {
    let mut plant =
        Plant { scenario, now: Instant::ZERO, parts: Vec::new(), placed_at: Instant::ZERO, assigned: 0, measured: 0 };
    let shortfall = plant.run(planner);
    plant.figures(limit, shortfall)
}

struct Plant<'a> {
    scenario: &'a Scenario,
    now: Instant,
    parts: Vec<Part>,
    /// When these parts came in force.
    placed_at: Instant,
    assigned: u32,
    measured: u64,
}

impl Plant<'_> {
    /// What the planner ends with: a plan that stands is one of which nothing is missing.
    fn run(&mut self, planner: &mut dyn Planner) -> Result<Plan, Box<Shortfall>> {
        planner.on_event(PlanEvent::Begin { nodes: self.scenario.nodes() }, self.now);
        let mut early = None;
        for _ in 0..ORDERS_MAX {
            let event = match early.take().or_else(|| planner.poll_output()) {
                Some(PlanOrder::Assign { revision, parts }) => {
                    let fit = &self.scenario.fit;
                    self.pass(if self.assigned == 0 { fit.place } else { fit.settle });
                    if self.parts != parts {
                        (self.parts, self.placed_at) = (parts, self.now);
                    }
                    self.assigned += 1;
                    PlanEvent::Assigned { revision }
                }
                Some(PlanOrder::Measure { round, nodes, span }) => {
                    let results = self.measure(&nodes, span).iter().map(Tally::measured).collect();
                    self.pass(span);
                    PlanEvent::Measured { round, results }
                }
                Some(PlanOrder::Watch { round, nodes, span, every }) => {
                    early = self.watch(planner, round, &nodes, (span, every));
                    continue;
                }
                Some(PlanOrder::Record { span }) => {
                    let arrivals = self.record(span);
                    self.pass(span);
                    PlanEvent::Recorded { arrivals }
                }
                Some(PlanOrder::Done(plan)) => return Ok(*plan),
                Some(PlanOrder::OutOfNodes(shortfall)) => return Err(shortfall),
                None => {
                    let Some(at) = planner.next_timeout() else { break };
                    self.now = self.now.max(at);
                    planner.on_timeout(self.now);
                    continue;
                }
            };
            planner.on_event(event, self.now);
        }
        let best = Plan { parts: self.parts.clone(), ..Plan::default() };
        Err(Box::new(Shortfall { missing_per_s: 0.0, cause: Cause::TooManyRounds, best }))
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.plus_nanos(nanos(span));
    }

    /// How much of a measurement is simulated.
    fn simulated(&self, span: Duration) -> Duration {
        span.min(Duration::from_secs(self.scenario.simulated_s_max.into()))
    }

    /// The number of the next measurement's stream of publishers; that of its brokers follows.
    fn next_stream(&mut self) -> u64 {
        self.measured += 1;
        MEASUREMENTS + 2 * self.measured
    }

    /// These brokers, each with the part that is in force, and for every publisher the one that it is on.
    fn lanes(&self, nodes: &[NodeNo], stream: u64) -> (Vec<Lane>, Vec<Option<usize>>) {
        let mut rng = Rng::stream(self.scenario.seed, stream + 1);
        let mut lanes: Vec<Lane> = Vec::new();
        let mut owner: BTreeMap<u32, usize> = BTreeMap::new();
        for part in self.parts.iter().filter(|part| nodes.contains(&part.node)) {
            owner.extend(part.publishers.iter().map(|publisher| (publisher.0, lanes.len())));
            lanes.push(Lane::new(self.scenario, part, &mut rng));
        }
        let owner = (0..self.scenario.publishers).map(|at| owner.get(&at).copied()).collect();
        (lanes, owner)
    }

    /// What these brokers show.
    fn measure(&mut self, nodes: &[NodeNo], span: Duration) -> Vec<Tally> {
        let stream = self.next_stream();
        let end = Instant::ZERO.plus_nanos(nanos(self.simulated(span)));
        let (mut lanes, owner) = self.lanes(nodes, stream);
        for arrival in self.scenario.traffic(stream).take_while(|arrival| arrival.at < end) {
            if let Some(Some(lane)) = owner.get(arrival.publisher as usize) {
                lanes[*lane].arrive(arrival.at, arrival.messages);
            }
        }
        lanes.into_iter().map(|lane| lane.finish(end)).collect()
    }

    /// The same, told every so often; the planner's order that ended it early. It is simulated as long as it takes.
    fn watch(
        &mut self,
        planner: &mut dyn Planner,
        round: u64,
        nodes: &[NodeNo],
        (span, every): (Duration, Duration),
    ) -> Option<PlanOrder> {
        let stream = self.next_stream();
        let (mut lanes, owner) = self.lanes(nodes, stream);
        let mut traffic = self.scenario.traffic(stream).peekable();
        let (began, mut elapsed) = (self.now, Duration::ZERO);
        loop {
            elapsed = (elapsed + every.max(Duration::from_millis(1))).min(span);
            let until = Instant::ZERO + elapsed;
            while let Some(arrival) = traffic.next_if(|arrival| arrival.at < until) {
                if let Some(Some(lane)) = owner.get(arrival.publisher as usize) {
                    lanes[*lane].arrive(arrival.at, arrival.messages);
                }
            }
            self.now = began + elapsed;
            if elapsed >= span {
                let results = lanes.into_iter().map(|lane| lane.finish(until).measured()).collect();
                planner.on_event(PlanEvent::Measured { round, results }, self.now);
                return None;
            }
            for lane in &mut lanes {
                lane.others_until(until);
            }
            let results = lanes.iter().map(|lane| lane.tally.measured()).collect();
            planner.on_event(PlanEvent::Watched { round, results }, self.now);
            // Computing takes no virtual time.
            while planner.next_timeout().is_some_and(|at| at <= self.now) {
                planner.on_timeout(self.now);
            }
            if let Some(order) = planner.poll_output() {
                return Some(order);
            }
        }
    }

    /// The batches of all publishers that are on a broker.
    fn record(&mut self, span: Duration) -> Vec<Recorded> {
        let stream = self.next_stream();
        let mut is_on = vec![false; self.scenario.publishers as usize];
        for publisher in self.parts.iter().flat_map(|part| &part.publishers) {
            if let Some(is_on) = is_on.get_mut(publisher.0 as usize) {
                *is_on = true;
            }
        }
        let traffic = self.scenario.traffic(stream).take_while(|arrival| arrival.at.as_nanos() < nanos(span));
        traffic
            .filter(|arrival| is_on.get(arrival.publisher as usize).is_some_and(|is_on| *is_on))
            .map(|arrival| Recorded {
                at: self.now.plus_nanos(arrival.at.as_nanos()),
                publisher: PublisherNo(arrival.publisher),
                messages: arrival.messages,
            })
            .collect()
    }

    /// Measures the plan once more, which takes no time of it.
    fn figures(&mut self, limit: Limit, ended: Result<Plan, Box<Shortfall>>) -> Played {
        let (plan, cause, missing_per_s) = match ended {
            Ok(plan) => (plan, None, 0.0),
            Err(shortfall) => (shortfall.best, Some(shortfall.cause), shortfall.missing_per_s),
        };
        self.parts.clone_from(&plan.parts);
        let nodes: Vec<NodeNo> = self.parts.iter().map(|part| part.node).collect();
        let tallies = self.measure(&nodes, self.scenario.fit.round);
        let mut whole = Tally::new(NodeNo(0), self.scenario);
        for tally in &tallies {
            whole.add(tally);
        }
        let figures = |(part, tally): (&Part, &Tally)| {
            let measured = tally.measured();
            BrokerFigures {
                broker: part.node.0 + 1,
                publishers: u32::try_from(part.publishers.len()).unwrap_or(u32::MAX),
                limit: part.limit,
                preload_per_s: self.scenario.preload_of(part.node.0 as usize).as_per_s(),
                messages: measured.messages,
                us_p99: measured.delay_us_p99,
                access_us_p99: measured.access_us_p99,
                share_over: float(measured.over_slo) / float(measured.messages.max(1)),
            }
        };
        let measured = whole.measured();
        let disagreed = plan.why.iter().any(|reason| matches!(reason, Reason::Disagreed { .. }));
        let decisions = plan.why.iter().map(|reason| reason.in_words(KIND, |node| format!("{KIND} {}", node.0 + 1)));
        let why = decisions.chain(cause.map(|cause| cause.in_words(KIND))).collect();
        Played {
            limit,
            cause,
            missing_per_s,
            assignment: self.parts.iter().zip(&tallies).map(figures).collect(),
            rounds: plan.rounds,
            seconds: self.now.since(Instant::ZERO).as_secs_f64(),
            placed_s: self.placed_at.since(Instant::ZERO).as_secs_f64(),
            disagreed,
            us_p50: float(whole.total_ns.value_at_quantile(0.5)) / 1e3,
            us_p99: measured.delay_us_p99,
            access_us_p99: measured.access_us_p99,
            meets_slo: cause.is_none() && measured.delay_us_p99 <= self.scenario.slo_us,
            simulated_s: self.simulated(self.scenario.fit.round).as_secs_f64(),
            why,
        }
    }
}

/// Batches of other topics.
type Beside = std::iter::Map<Poisson, fn(Arrival) -> Batch>;

/// A broker that is measured.
struct Lane {
    lane: lane::Lane<Beside>,
    tally: Tally,
}

impl Lane {
    fn new(scenario: &Scenario, part: &Part, rng: &mut Rng) -> Self {
        let rate = scenario.preload_of(part.node.0 as usize);
        let (traffic, own) = (rng.split(), rng.split());
        let batch: fn(Arrival) -> Batch = |arrival| Batch { at: arrival.at, messages: arrival.messages };
        let beside = (!rate.is_zero()).then(|| {
            let publishers = Publishers { count: 1, rate, batch: scenario.preload_batch };
            Poisson::new(publishers, Instant::ZERO, traffic).map(batch)
        });
        Self {
            lane: lane::Lane::new(part.limit, scenario.service, beside, own),
            tally: Tally::new(part.node, scenario),
        }
    }

    fn arrive(&mut self, at: Instant, messages: u32) {
        self.lane.arrive(Batch { at, messages }, |passed| self.tally.count(passed));
    }

    /// Batches of other topics that come up to `at`.
    fn others_until(&mut self, at: Instant) {
        self.lane.others_until(at, |passed| self.tally.count(passed));
    }

    fn finish(mut self, end: Instant) -> Tally {
        let refused = self.lane.finish(end, |passed| self.tally.count(passed));
        // Who was turned away is late in any case.
        self.tally.messages += refused;
        self.tally.over_slo += refused;
        self.tally
    }
}

/// What a broker showed.
struct Tally {
    node: NodeNo,
    slo_ns: u64,
    messages: u64,
    over_slo: u64,
    total_ns: Histogram<u64>,
    access_ns: Histogram<u64>,
}

impl Tally {
    fn new(node: NodeNo, scenario: &Scenario) -> Self {
        let histogram = || Histogram::<u64>::new(3).expect("three digits are within its range");
        let slo_ns = tidegate_core::number::whole(scenario.slo_us * 1e3);
        Self { node, slo_ns, messages: 0, over_slo: 0, total_ns: histogram(), access_ns: histogram() }
    }

    fn count(&mut self, passed: Passed) {
        self.messages += 1;
        self.over_slo += u64::from(passed.total_ns > self.slo_ns);
        self.total_ns.record(passed.total_ns).expect("the histogram grows");
        self.access_ns.record(passed.access_ns).expect("the histogram grows");
    }

    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.over_slo += other.over_slo;
        self.total_ns.add(&other.total_ns).expect("the histogram grows");
        self.access_ns.add(&other.access_ns).expect("the histogram grows");
    }

    fn measured(&self) -> Measured {
        let us = |histogram: &Histogram<u64>| float(histogram.value_at_quantile(QUANTILE)) / 1e3;
        Measured {
            node: self.node,
            messages: self.messages,
            over_slo: self.over_slo,
            delay_us_p99: us(&self.total_ns),
            access_us_p99: us(&self.access_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

    use super::super::scenario::{ArrivalLaw, Policy};
    use super::*;

    fn short(scenario: Scenario) -> Scenario {
        Scenario { simulated_s_max: 3, profile_messages: 300_000, ..scenario }
    }

    #[test]
    fn a_topic_that_fits_is_on_one_broker_after_one_round() {
        let played = place(&short(Scenario::default())).unwrap();
        assert!(played.meets_slo, "{played:?}");
        assert_eq!((played.assignment.len(), &played.rounds), (1, &vec![1]));
        // 1.9 s to place, 60 s to measure, 2.1 s to put in force.
        assert!((played.seconds - 64.0).abs() < 1e-9, "{}", played.seconds);
        assert_eq!(played.assignment[0].limit, played.limit);
        assert_eq!(played.assignment[0].publishers, 1_000);
    }

    #[test]
    fn groups_take_more_brokers_and_their_parts_sum_to_the_limit() {
        let scenario = short(Scenario { group: 20, ..Scenario::default() });
        let played = place(&scenario).unwrap();
        assert!(played.assignment.len() > 1 && played.rounds.len() > 1, "{played:?}");
        assert_eq!(played, place(&scenario).unwrap(), "same seed, same answer");
        let bursts: u64 = played.assignment.iter().map(|broker| broker.limit.burst).sum();
        assert_eq!(bursts, played.limit.burst);
        assert_eq!(played.assignment.iter().map(|broker| broker.publishers).sum::<u32>(), 1_000);
    }

    #[test]
    fn load_balancing_pays_for_the_split() {
        let lb = place(&short(Scenario { policy: Policy::Lb, ..Scenario::default() })).unwrap();
        let conc = place(&short(Scenario { policy: Policy::Conc, ..Scenario::default() })).unwrap();
        assert_eq!((lb.assignment.len(), conc.assignment.len()), (6, 1));
        assert!(!lb.meets_slo && conc.meets_slo && lb.us_p99 > 3.0 * conc.us_p99, "{} {}", lb.us_p99, conc.us_p99);
        assert!(lb.access_us_p99 > lb.us_p99 / 2.0, "it is the wait for tokens");
    }

    #[test]
    fn what_is_on_a_broker_already_takes_its_cores() {
        let preload = vec![Rate::per_s(60_000); 6];
        let busy = place(&short(Scenario { preload, mcap: Rate::per_s(80_000), ..Scenario::default() })).unwrap();
        let idle = place(&short(Scenario::default())).unwrap();
        assert!(busy.us_p50 > idle.us_p50, "{} {}", busy.us_p50, idle.us_p50);
        let full = Scenario { preload: vec![Rate::per_s(62_000); 6], ..Scenario::default() };
        let played = place(&short(full)).unwrap();
        assert_eq!((played.cause, played.meets_slo), (Some(Cause::Capacity), false));
        assert!((played.missing_per_s - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn periodic_publishers_are_the_same_ones_in_every_round() {
        let scenario = Scenario { arrivals: ArrivalLaw::Periodic, group: 10, ..Scenario::default() };
        let first: Vec<_> = scenario.traffic(1).take(100).collect();
        assert_eq!(first, scenario.traffic(2).take(100).collect::<Vec<_>>());
        let scenario = Scenario { arrivals: ArrivalLaw::Poisson, ..scenario };
        assert_ne!(scenario.traffic(1).next(), scenario.traffic(2).next());
    }

    #[test]
    fn a_model_places_within_seconds_and_confirms_within_a_minute() {
        let scenario = Scenario { planner: PlannerName::Model, group: 10, ..Scenario::default() };
        let played = place(&short(scenario.clone())).unwrap();
        assert!(played.meets_slo && !played.disagreed, "{played:?}");
        // Placed to be recorded in 1.9 s, recorded for 5 s, placed in 2.1 s.
        assert!((played.placed_s - 9.0).abs() < 1e-9 || (played.placed_s - 1.9).abs() < 1e-9, "{}", played.placed_s);
        assert!(played.seconds <= 60.0, "{}", played.seconds);
        assert_eq!(played, place(&short(scenario)).unwrap(), "same seed, same answer");
    }

    #[test]
    fn the_largest_groups_of_table_1_are_placed_in_ten_seconds_and_confirmed_in_a_minute() {
        let played = place(&short(Scenario { planner: PlannerName::Model, group: 30, ..Scenario::default() })).unwrap();
        assert!(played.placed_s <= 10.0 && played.seconds <= 60.0, "{} {}", played.placed_s, played.seconds);
        assert!(played.cause.is_none() && !played.disagreed && played.assignment.len() >= 5, "{played:?}");
    }

    #[test]
    fn a_planner_without_an_end_is_stopped() {
        struct Idle;
        impl Planner for Idle {
            fn on_event(&mut self, _: PlanEvent, _: Instant) {}
            fn next_timeout(&self) -> Option<Instant> {
                None
            }
            fn on_timeout(&mut self, _: Instant) {}
            fn poll_output(&mut self) -> Option<PlanOrder> {
                None
            }
        }
        let played = play(&Scenario::default(), Limit::new(Rate::per_s(1), 1), &mut Idle);
        assert_eq!((played.cause, played.assignment.len()), (Some(Cause::TooManyRounds), 0));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = |scenario: Scenario| place(&scenario).unwrap_err().to_string();
        let preload = vec![Rate::per_s(1); 7];
        assert_eq!(
            wrong(Scenario { preload, ..Scenario::default() }),
            "the loads of 7 brokers are given, and there are 6"
        );
        assert_eq!(wrong(Scenario { group: 0, ..Scenario::default() }), "group: 0 is not from 1 to 1000");
    }
}
