use core::time::Duration;

use proptest::prelude::*;
use tidegate_core::Rate;
use tidegate_core::number::float;

use super::super::types::{FitConfig, GroupNo, Principles, Publisher, Slo};
use super::*;

fn publishers(many: u32) -> Vec<Publisher> {
    (0..many).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / 10) }).collect()
}

fn demand(many: u32) -> Demand {
    Demand {
        limit: Limit::new(Rate::per_s(u64::from(many) * 11), 100),
        slo: Slo { quantile: 0.99, within: Duration::from_millis(1) },
        publishers: publishers(many),
        principles: Principles::SRTM,
        fit: FitConfig::default(),
        force_nodes: None,
        seed: 1,
    }
}

fn idle(many: usize) -> Vec<NodeLoad> {
    vec![NodeLoad { mcap_per_s: 60e3, allocated_per_s: 0.0 }; many]
}

/// A world in which a delay is what `delay_us` says of the node and the publishers on it.
struct Played {
    last: PlanOrder,
    /// Publishers by node, as they were last assigned.
    on: Vec<usize>,
    measures: u32,
}

fn play(demand: &Demand, nodes: Vec<NodeLoad>, delay_us: impl FnMut(usize, usize) -> f64) -> Played {
    play_with(demand, nodes, delay_us, |_, _| {})
}

fn play_with(
    demand: &Demand,
    nodes: Vec<NodeLoad>,
    mut delay_us: impl FnMut(usize, usize) -> f64,
    mut meanwhile: impl FnMut(&mut Distributor, &PlanOrder),
) -> Played {
    let mut on = vec![0; nodes.len()];
    let mut planner = Distributor::new(demand.clone());
    planner.on_event(PlanEvent::Begin { nodes }, Instant::ZERO);
    let (mut now, mut measures) = (Instant::ZERO, 0);
    for _ in 0..10_000 {
        let order = planner.poll_output().expect("it always wants something until it ends");
        meanwhile(&mut planner, &order);
        match order {
            PlanOrder::Assign { revision, parts } => {
                judge(demand, &parts);
                on.fill(0);
                for part in &parts {
                    on[part.node.0 as usize] = part.publishers.len();
                }
                planner.on_event(PlanEvent::Assigned { revision }, now);
            }
            PlanOrder::Measure { round, nodes, span } => {
                now += span;
                measures += 1;
                let one = |&node: &NodeNo| Measured {
                    node,
                    messages: 1,
                    over_slo: 0,
                    delay_us_p99: delay_us(node.0 as usize, on[node.0 as usize]),
                    access_us_p99: 0.0,
                };
                let results = nodes.iter().map(one).collect();
                planner.on_event(PlanEvent::Measured { round, results }, now);
            }
            last => {
                assert!(planner.poll_output().is_none());
                return Played { last, on, measures };
            }
        }
    }
    panic!("it does not end");
}

/// No two nodes have one publisher, and the parts never exceed the contract.
fn judge(demand: &Demand, parts: &[Part]) {
    let mut seen: Vec<PublisherNo> = parts.iter().flat_map(|part| part.publishers.iter().copied()).collect();
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "a publisher is at two nodes");
    let burst: u64 = parts.iter().map(|part| part.limit.burst).sum();
    let rate = |limit: Limit| float(limit.rate.tokens()) / float(limit.rate.period_ns());
    let rates: f64 = parts.iter().map(|part| rate(part.limit)).sum();
    let whole = rate(demand.limit);
    assert!(burst <= demand.limit.burst && rates <= whole * (1.0 + 1e-9));
    if all == demand.publishers.len() {
        assert!(burst == demand.limit.burst && rates >= whole * (1.0 - 1e-9), "{burst} {rates}");
    }
}

fn done(played: Played) -> Plan {
    match played.last {
        PlanOrder::Done(plan) => *plan,
        other => panic!("{other:?}"),
    }
}

fn shortfall(played: Played) -> Shortfall {
    match played.last {
        PlanOrder::OutOfNodes(shortfall) => *shortfall,
        other => panic!("{other:?}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "few")]
fn up_to(capacity: f64) -> impl FnMut(usize, usize) -> f64 {
    move |_, on| on as f64 / capacity * 1_000.0
}

#[test]
fn one_node_that_fits_takes_one_round() {
    let plan = done(play(&demand(1_000), idle(6), up_to(1_000.0)));
    assert_eq!((plan.rounds.as_slice(), plan.parts.len(), plan.elapsed), ([1].as_slice(), 1, Duration::from_mins(1)));
    assert_eq!(plan.parts[0].limit, demand(1_000).limit);
    assert!(matches!(plan.why[..], [Reason::LeastNodes { nodes: 1, .. }, Reason::Kept { publishers: 1_000, .. }]));
}

#[test]
fn iterations_go_on_until_nobody_is_left() {
    let played = play(&demand(1_000), idle(6), up_to(400.0));
    assert_eq!(played.on.iter().sum::<usize>(), 1_000);
    assert!(played.on.iter().all(|&on| on <= 400), "{:?}", played.on);
    let measures = played.measures;
    let plan = done(played);
    assert_eq!((plan.rounds.len(), plan.rounds.iter().sum::<u32>()), (3, measures));
    // 1,000 and 500 miss it, 250 is too few, 375 is within a fifth; the rest goes on in the same way.
    assert_eq!(plan.rounds[0], 4);
    assert_eq!(plan.measured.len(), plan.parts.len());
}

#[test]
fn a_rest_that_no_node_keeps_is_dealt_anew_with_the_fullest() {
    // A node keeps up to 900 and no fewer than 50: less of the limit than that delays even a single burst.
    let delay_us = |_: usize, on: usize| if (50..=900).contains(&on) { 500.0 } else { 1_500.0 };
    let played = play(&demand(920), idle(3), delay_us);
    assert_eq!(played.on.iter().sum::<usize>(), 920);
    assert!(played.on.iter().all(|&on| on == 0 || (50..=900).contains(&on)), "{:?}", played.on);
    let plan = done(played);
    assert!(plan.why.iter().any(|why| matches!(why, Reason::DealtAnew { node: NodeNo(0), .. })), "{:?}", plan.why);
    // So are those of the emptiest, if no other is left: it keeps ten of the twenty.
    let some = |_: usize, on: usize| if on <= 10 || (50..=900).contains(&on) { 500.0 } else { 1_500.0 };
    assert_eq!(play(&demand(920), idle(2), some).on, [460, 460]);
    // Who has nowhere to go is still said.
    let short = shortfall(play(&demand(920), idle(1), delay_us));
    assert!(short.missing_per_s > 0.0 && short.cause == Cause::Capacity, "{short:?}");
}

#[test]
fn of_loaded_nodes_those_with_most_room_come_first() {
    let load = |thousands: f64| NodeLoad { mcap_per_s: 62e3, allocated_per_s: thousands * 1e3 };
    let nodes = [80.0, 10.0, 40.0, 50.0, 60.0, 70.0].map(load).to_vec();
    let played = play(&demand(8_000), nodes, |_, _| 500.0);
    assert_eq!(played.on, [0, 4_600, 2_200, 1_200, 0, 0]);
}

#[test]
fn without_concentration_all_nodes_are_measured_once() {
    let even = Demand { principles: Principles::LB, ..demand(600) };
    let played = play(&even, idle(6), |_, _| 5_000.0);
    assert_eq!((played.on.as_slice(), played.measures), ([100; 6].as_slice(), 1));
    assert_eq!(done(played).measured.len(), 6);
}

#[test]
fn so_many_nodes_as_are_forced_are_taken() {
    let forced = Demand { force_nodes: Some(3), ..demand(600) };
    let played = play(&forced, idle(6), |_, _| 5_000.0);
    assert_eq!((played.on.as_slice(), played.measures), ([200, 200, 200, 0, 0, 0].as_slice(), 1));
    let too_many = Demand { force_nodes: Some(7), ..demand(600) };
    assert_eq!(shortfall(play(&too_many, idle(6), |_, _| 1.0)).cause, Cause::Capacity);
}

#[test]
fn out_of_nodes_says_how_much_is_missing_and_why() {
    let short = shortfall(play(&demand(9_000), idle(1), |_, _| 1.0));
    assert_eq!((short.cause, short.missing_per_s), (Cause::Capacity, 30e3));
    assert_eq!(shortfall(play(&demand(10), Vec::new(), |_, _| 1.0)).cause, Cause::NoNode);
    let unmet = shortfall(play(&demand(100), idle(2), |_, _| 2_000.0));
    assert_eq!((unmet.cause, unmet.missing_per_s), (Cause::SloUnmet { best_us_p99: 2_000.0 }, 0.0));
    assert!(unmet.best.why.iter().any(|why| matches!(why, Reason::Full { kept: 0, .. })));
    let mut large = demand(10);
    large.publishers[3].rate_per_s = 61e3;
    let cause = shortfall(play(&large, idle(2), |_, _| 1.0)).cause;
    assert!(matches!(cause, Cause::PublisherTooLarge { publisher: PublisherNo(3), .. }), "{cause:?}");
    let shallow = Demand { limit: Limit::new(Rate::per_s(110), 1), force_nodes: Some(2), ..demand(10) };
    assert_eq!(shortfall(play(&shallow, idle(2), |_, _| 1.0)).cause, Cause::BurstTooSmall { burst: 1, parts: 2 });
}

#[test]
fn rounds_are_bounded() {
    let mut few = demand(1_000);
    few.fit.rounds_max = 3;
    let played = play(&few, idle(6), up_to(100.0));
    assert_eq!(played.measures, 3);
    assert_eq!(shortfall(played).cause, Cause::TooManyRounds);
}

#[test]
fn a_node_that_goes_gives_its_publishers_to_others() {
    let mut is_first = true;
    let played = play_with(
        &demand(100),
        idle(2),
        |_, _| 1.0,
        |planner, order| {
            if matches!(order, PlanOrder::Measure { .. }) && mem::take(&mut is_first) {
                planner.on_event(PlanEvent::NodeGone(NodeNo(0)), Instant::ZERO);
            }
        },
    );
    assert_eq!(played.on, [0, 100]);
    assert_eq!(done(played).parts[0].node, NodeNo(1));
}

#[test]
fn a_node_that_is_twice_not_ready_is_left_out() {
    let mut planner = Distributor::new(demand(100));
    planner.on_event(PlanEvent::Begin { nodes: idle(2) }, Instant::ZERO);
    for expected in [0, 0, 1] {
        let Some(PlanOrder::Assign { revision, parts }) = planner.poll_output() else { panic!("it assigns") };
        if parts.is_empty() {
            // Nobody is placed: the next iteration follows at once.
            planner.on_event(PlanEvent::Assigned { revision }, Instant::ZERO);
            let Some(PlanOrder::Assign { parts, .. }) = planner.poll_output() else { panic!("it assigns") };
            assert_eq!(parts[0].node, NodeNo(expected));
            return;
        }
        assert_eq!(parts[0].node, NodeNo(expected));
        planner.on_event(PlanEvent::NotAssigned { revision, node: NodeNo(0) }, Instant::ZERO);
    }
    panic!("another node was asked for");
}

#[test]
fn publishers_that_nobody_tries_are_where_nobody_measures() {
    let mut demand = demand(150);
    demand.fit.excess = Excess::NextNode;
    let mut planner = Distributor::new(demand);
    let nodes = vec![NodeLoad { mcap_per_s: 1e3, allocated_per_s: 0.0 }; 4];
    planner.on_event(PlanEvent::Begin { nodes }, Instant::ZERO);
    planner.poll_output();
    planner.on_event(PlanEvent::Assigned { revision: 1 }, Instant::ZERO);
    let Some(PlanOrder::Measure { round, nodes, .. }) = planner.poll_output() else { panic!("it measures") };
    assert_eq!(nodes, [NodeNo(0), NodeNo(1)]);
    let missed =
        |&node: &NodeNo| Measured { node, messages: 1_000, over_slo: 500, delay_us_p99: 9e6, access_us_p99: 0.0 };
    planner.on_event(PlanEvent::Measured { round, results: nodes.iter().map(missed).collect() }, Instant::ZERO);
    let Some(PlanOrder::Assign { parts, .. }) = planner.poll_output() else { panic!("it assigns") };
    let on: Vec<(u32, usize)> = parts.iter().map(|part| (part.node.0, part.publishers.len())).collect();
    // Of 75 each, both try the half; the rest is on the third.
    assert_eq!(on, [(0, 37), (1, 37), (2, 76)]);
}

#[test]
fn a_node_without_a_result_keeps_nobody() {
    let mut planner = Distributor::new(demand(100));
    planner.on_event(PlanEvent::Begin { nodes: idle(2) }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Assign { revision: 1, .. })));
    planner.on_event(PlanEvent::Assigned { revision: 1 }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Measure { round: 1, .. })));
    planner.on_event(PlanEvent::Measured { round: 1, results: Vec::new() }, Instant::ZERO);
    let Some(PlanOrder::Assign { parts, .. }) = planner.poll_output() else { panic!("it assigns") };
    assert_eq!((parts[0].node, parts[0].publishers.len()), (NodeNo(1), 100));
}

#[test]
fn what_belongs_to_a_replaced_order_says_nothing() {
    let mut planner = Distributor::new(demand(100));
    planner.on_event(PlanEvent::Begin { nodes: idle(2) }, Instant::ZERO);
    assert!(matches!(planner.poll_output(), Some(PlanOrder::Assign { revision: 1, .. })));
    planner.on_event(PlanEvent::Assigned { revision: 0 }, Instant::ZERO);
    planner.on_event(PlanEvent::Measured { round: 1, results: Vec::new() }, Instant::ZERO);
    planner.on_event(PlanEvent::Begin { nodes: idle(3) }, Instant::ZERO);
    assert!(planner.poll_output().is_none());
}

proptest! {
    #[test]
    fn whatever_is_measured_it_ends_with_everybody_placed_or_a_cause(
        many in 1u32..300,
        nodes in proptest::collection::vec((10.0..5e3f64, 0.0..1e3f64), 1..8),
        delays in proptest::collection::vec(0.0..2_000.0f64, 1..40),
        excess_goes_on: bool,
    ) {
        let mut demand = demand(many);
        demand.fit.excess = if excess_goes_on { Excess::NextNode } else { Excess::Held };
        let nodes = nodes.into_iter().map(|(mcap_per_s, allocated_per_s)| NodeLoad { mcap_per_s, allocated_per_s });
        let mut at = 0;
        let played = play(&demand, nodes.collect(), |_, _| {
            at += 1;
            delays[at % delays.len()]
        });
        let on: usize = played.on.iter().sum();
        match played.last {
            PlanOrder::Done(plan) => {
                prop_assert_eq!(on, many as usize);
                prop_assert_eq!(plan.parts.iter().map(|part| part.publishers.len()).sum::<usize>(), many as usize);
            }
            PlanOrder::OutOfNodes(short) => prop_assert!(short.missing_per_s >= 0.0),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
