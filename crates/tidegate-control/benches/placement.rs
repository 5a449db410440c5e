//! What placing costs: `cargo bench -p tidegate-control --bench placement`.
//!
//! `place_100000_on_100` is all that a plan computes before the first measurement: from the publishers to the parts of the
//! limit. The bar is 200 ms. `one_comes_and_goes` is a change of one publisher in a plan of that size, with its node and the
//! new parts of all nodes; the bar is 1 ms. Publishers are in groups of ten.

use core::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tidegate_control::machine::distributor::Distributor;
use tidegate_control::machine::standing::Standing;
use tidegate_control::machine::types::{
    Demand, FitConfig, GroupNo, NodeLoad, Part, Plan, PlanEvent, PlanOrder, Planner, Principles, Publisher, Slo,
};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};

const PUBLISHERS: u32 = 100_000;
const NODES: usize = 100;
const LIMIT: Limit = Limit::new(Rate::per_s(1_100_000), 20_000);

fn demand() -> Demand {
    Demand {
        limit: LIMIT,
        slo: Slo { quantile: 0.99, within: core::time::Duration::from_millis(1) },
        publishers: (0..PUBLISHERS).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / 10) }).collect(),
        principles: Principles::SRTM,
        fit: FitConfig::default(),
        force_nodes: None,
        seed: 1,
    }
}

fn nodes() -> Vec<NodeLoad> {
    vec![NodeLoad { mcap_per_s: 10_050.0, allocated_per_s: 0.0 }; NODES]
}

fn place(demand: Demand) -> Vec<Part> {
    let mut planner = Distributor::new(demand);
    planner.on_event(PlanEvent::Begin { nodes: nodes() }, Instant::ZERO);
    match planner.poll_output() {
        Some(PlanOrder::Assign { parts, .. }) => parts,
        other => panic!("it assigns, and does not order {other:?}"),
    }
}

fn bench(c: &mut Criterion) {
    let whole = demand();
    assert_eq!(place(whole.clone()).len(), NODES, "all nodes are needed");
    c.bench_function("place_100000_on_100", |b| {
        b.iter_batched(|| whole.clone(), |demand| black_box(place(demand)), BatchSize::LargeInput);
    });
    let plan = Plan { parts: place(whole.clone()), ..Plan::default() };
    let mut standing = Standing::of(&plan, &nodes(), &whole.publishers);
    c.bench_function("one_comes_and_goes", |b| {
        b.iter(|| {
            let (publisher, node) = standing.add_publisher(10.0);
            black_box((node, standing.portions(LIMIT, |_| false)));
            standing.remove_publisher(publisher);
        });
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
