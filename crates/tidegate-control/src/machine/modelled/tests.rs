use core::time::Duration;

use tidegate_core::limit::Limit;
use tidegate_core::theory::md1::{Traffic, smallest_burst};
use tidegate_core::{Rate, Rng};

use super::super::model::replay::{World, replay};
use super::super::types::{FitConfig, GroupNo, Principles, Publisher, Slo};
use super::*;

const MS: Duration = Duration::from_millis(1);
const GROUP: u32 = 10;

/// Publishers of 10 messages a second in batches of ten, in groups of ten.
fn demand(many: u32) -> Demand {
    let rate_per_s = f64::from(many) * 10.0;
    let traffic = Traffic { rate_per_s, batch: 10 * GROUP };
    let burst = smallest_burst(traffic, 1.1 * rate_per_s, 0.999).unwrap();
    Demand {
        limit: Limit::new(Rate::per_s(u64::from(many) * 11), burst),
        slo: Slo { quantile: 0.99, within: MS },
        publishers: (0..many).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / GROUP) }).collect(),
        principles: Principles::SRTM,
        fit: FitConfig { rounds_max: 12, ..FitConfig::default() },
        force_nodes: None,
        seed: 1,
    }
}

fn config() -> ModelConfig {
    ModelConfig { horizon: Duration::from_mins(1), messages_max: 120_000, ..ModelConfig::default() }
}

fn idle(many: usize) -> Vec<NodeLoad> {
    vec![NodeLoad { mcap_per_s: 62e3, allocated_per_s: 0.0 }; many]
}

/// Groups that send at the same instant, as a Poisson process, once a second on average.
fn arrivals(publishers: u32, seconds: f64, rng: &mut Rng) -> Vec<Recorded> {
    let mut all = Vec::new();
    for group in 0..publishers / GROUP {
        let mut at = rng.exponential();
        while at < seconds {
            let when = Instant::from_nanos(tidegate_core::number::whole(at * 1e9));
            all.extend((0..GROUP).map(|member| Recorded {
                at: when,
                publisher: PublisherNo(group * GROUP + member),
                messages: 10,
            }));
            at += rng.exponential();
        }
    }
    all.sort_by_key(|batch| (batch.at, batch.publisher));
    all
}

/// Nodes whose true service times are the model's times `factor`.
struct Plant {
    rng: Rng,
    nodes: Vec<NodeLoad>,
    service: ServiceModel,
    publishers: u32,
    now: Instant,
    parts: Vec<Part>,
    orders: Vec<&'static str>,
    placed_at: Instant,
}

impl Plant {
    fn new(publishers: u32, nodes: usize, factor: f64) -> Self {
        let own = ModelConfig::default().service;
        let times = |ns: u32| u32::try_from(tidegate_core::number::whole(f64::from(ns) * factor)).unwrap();
        let service = ServiceModel { batch_ns: times(own.batch_ns), message_ns: times(own.message_ns), ..own };
        Self {
            rng: Rng::new(77),
            nodes: idle(nodes),
            service,
            publishers,
            now: Instant::ZERO,
            parts: Vec::new(),
            orders: Vec::new(),
            placed_at: Instant::ZERO,
        }
    }

    fn seen(&mut self, seconds: f64, slo: Slo) -> Vec<Measured> {
        let trace = arrivals(self.publishers, seconds, &mut self.rng);
        let seed = self.rng.u64();
        let world = World { nodes: &self.nodes, service: self.service, beside_batch: 10, slo, seed };
        replay(&[trace], &self.parts, world).nodes
    }

    fn run(&mut self, planner: &mut Modelled) -> PlanOrder {
        planner.on_event(PlanEvent::Begin { nodes: self.nodes.clone() }, self.now);
        let slo = planner.demand.slo;
        for _ in 0..1_000 {
            match ordered(planner, self.now) {
                PlanOrder::Record { span } => {
                    self.orders.push("record");
                    self.now += span;
                    let arrivals = arrivals(self.publishers, span.as_secs_f64(), &mut self.rng);
                    planner.on_event(PlanEvent::Recorded { arrivals }, self.now);
                }
                PlanOrder::Assign { revision, parts } => {
                    self.orders.push("assign");
                    self.now += planner.demand.fit.settle;
                    (self.parts, self.placed_at) = (parts, self.now);
                    planner.on_event(PlanEvent::Assigned { revision }, self.now);
                }
                PlanOrder::Watch { round, span, every, .. } => {
                    self.orders.push("watch");
                    self.watch(planner, round, span, every, slo);
                }
                PlanOrder::Measure { round, span, nodes } => {
                    self.orders.push("measure");
                    self.now += span;
                    let mut results = self.seen(20.0, slo);
                    results.retain(|result| nodes.contains(&result.node));
                    planner.on_event(PlanEvent::Measured { round, results }, self.now);
                }
                last => return last,
            }
        }
        panic!("it does not end");
    }

    /// Each reading has all that was seen since the measurement began.
    fn watch(&mut self, planner: &mut Modelled, round: u64, span: Duration, every: Duration, slo: Slo) {
        let began = self.now;
        let trace = arrivals(self.publishers, span.as_secs_f64(), &mut self.rng);
        let seed = self.rng.u64();
        while self.now < began + span {
            self.now += every;
            let until = Instant::ZERO + self.now.since(began);
            let arrived: Vec<Recorded> = trace.iter().take_while(|batch| batch.at < until).copied().collect();
            let world = World { nodes: &self.nodes, service: self.service, beside_batch: 10, slo, seed };
            let results = replay(&[arrived], &self.parts, world).nodes;
            if self.now < began + span {
                planner.on_event(PlanEvent::Watched { round, results }, self.now);
                if planner.order.is_some() || planner.search.is_some() || planner.fallback.is_some() {
                    return;
                }
            } else {
                planner.on_event(PlanEvent::Measured { round, results }, self.now);
            }
        }
    }
}

/// What it wants next, when it has computed.
fn ordered(planner: &mut Modelled, now: Instant) -> PlanOrder {
    loop {
        if let Some(order) = planner.poll_output() {
            return order;
        }
        assert!(planner.next_timeout().expect("it always wants something until it ends") <= now);
        planner.on_timeout(now);
    }
}

fn done(order: PlanOrder) -> Plan {
    match order {
        PlanOrder::Done(plan) => *plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_topic_is_recorded_placed_and_confirmed() {
    let mut world = Plant::new(200, 4, 1.0);
    let mut planner = Modelled::new(demand(200), config());
    let plan = done(world.run(&mut planner));
    assert_eq!(world.orders, ["record", "assign", "watch"]);
    assert!(world.placed_at <= Instant::ZERO + Duration::from_secs(10), "{:?}", world.placed_at);
    // In virtual time.
    assert!(plan.elapsed <= Duration::from_mins(1), "{:?}", plan.elapsed);
    assert_eq!(plan.parts.iter().map(|part| part.publishers.len()).sum::<usize>(), 200);
    assert_eq!((plan.predicted.len(), plan.measured.len()), (plan.parts.len(), plan.parts.len()));
    assert!(plan.why.iter().any(|why| matches!(why, Reason::Predicted { .. })));
    assert!(!plan.why.iter().any(|why| matches!(why, Reason::Disagreed { .. } | Reason::FellBack)), "{:?}", plan.why);
}

#[test]
fn a_model_that_is_wrong_by_half_is_found_out() {
    for factor in [0.5, 1.6] {
        let mut world = Plant::new(200, 4, factor);
        let mut planner = Modelled::new(demand(200), config());
        let plan = done(world.run(&mut planner));
        assert!(plan.why.iter().any(|why| matches!(why, Reason::Disagreed { .. })), "{factor}: {:?}", plan.why);
        world.parts = plan.parts;
        let slo = planner.demand.slo;
        let shown = world.seen(100.0, slo);
        assert!(shown.iter().all(|node| node.delay_us_p99 <= 1_000.0), "{factor}: {shown:?}");
    }
}

#[test]
fn without_fits_a_wrong_model_is_given_up_for_rounds() {
    let mut world = Plant::new(200, 4, 1.6);
    let mut planner = Modelled::new(demand(200), ModelConfig { fits: 0, ..config() });
    let plan = done(world.run(&mut planner));
    assert!(plan.why.contains(&Reason::FellBack), "{:?}", plan.why);
    assert!(world.orders.contains(&"measure"), "{:?}", world.orders);
    assert!(plan.rounds.len() >= 2);
}

#[test]
fn what_no_placement_can_hold_is_named() {
    let cause = |demand: Demand, nodes: Vec<NodeLoad>| {
        let mut planner = Modelled::new(demand, config());
        planner.on_event(PlanEvent::Begin { nodes }, Instant::ZERO);
        while let Some(PlanOrder::Record { .. }) = planner.order {
            planner.order = None;
            planner.on_event(PlanEvent::Recorded { arrivals: Vec::new() }, Instant::ZERO);
        }
        match ordered(&mut planner, Instant::ZERO) {
            PlanOrder::OutOfNodes(shortfall) => shortfall.cause,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cause(demand(100), Vec::new()), Cause::NoNode);
    let small = vec![NodeLoad { mcap_per_s: 500.0, allocated_per_s: 0.0 }];
    assert_eq!(cause(demand(100), small), Cause::Capacity);
    let mut large = demand(10);
    large.publishers[3].rate_per_s = 70e3;
    assert!(matches!(cause(large, idle(2)), Cause::PublisherTooLarge { publisher: PublisherNo(3), .. }));
}

#[test]
fn a_node_that_goes_has_its_placement_searched_anew() {
    let mut planner = Modelled::new(demand(100), config());
    planner.on_event(PlanEvent::Begin { nodes: idle(3) }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Record { .. })));
    let arrivals = arrivals(100, 5.0, &mut Rng::new(1));
    planner.on_event(PlanEvent::Recorded { arrivals }, Instant::ZERO);
    let PlanOrder::Assign { parts, revision: 1 } = ordered(&mut planner, Instant::ZERO) else { panic!("it assigns") };
    planner.on_event(PlanEvent::NodeGone(parts[0].node), Instant::ZERO);
    let PlanOrder::Assign { parts: other, revision: 2 } = ordered(&mut planner, Instant::ZERO) else {
        panic!("it assigns")
    };
    assert!(other.iter().all(|part| part.node != parts[0].node));
    // Twice not ready is as good as gone.
    let node = other[0].node;
    planner.on_event(PlanEvent::NotAssigned { revision: 2, node }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Assign { revision: 3, .. })));
    planner.on_event(PlanEvent::NotAssigned { revision: 3, node }, Instant::ZERO);
    let PlanOrder::Assign { parts: last, .. } = ordered(&mut planner, Instant::ZERO) else { panic!("it assigns") };
    assert!(last.iter().all(|part| part.node != node && part.node != parts[0].node));
}

#[test]
fn a_search_is_done_in_pieces_and_a_node_may_go_meanwhile() {
    let mut planner = Modelled::new(demand(100), config());
    planner.on_event(PlanEvent::Begin { nodes: idle(3) }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Record { .. })));
    assert_eq!(planner.next_timeout(), None);
    let arrivals = arrivals(100, 5.0, &mut Rng::new(1));
    planner.on_event(PlanEvent::Recorded { arrivals }, Instant::ZERO);
    // Eight traces are made, and one trial plays all of them.
    for piece in 0..16 {
        assert!(planner.poll_output().is_none() && planner.next_timeout() == Some(Instant::ZERO), "{piece}");
        planner.on_timeout(Instant::ZERO);
    }
    planner.on_event(PlanEvent::NodeGone(NodeNo(0)), Instant::ZERO);
    let PlanOrder::Assign { parts, revision: 1 } = ordered(&mut planner, Instant::ZERO) else { panic!("it assigns") };
    assert!(parts.iter().all(|part| part.node != NodeNo(0)), "{parts:?}");
    assert_eq!(planner.next_timeout(), None, "nothing is left to compute");
}
