use core::time::Duration;

use tidegate_rpc::config::Scheme;

use super::tally::Figures;
use super::{Graph, Tree};
use crate::rpc::{Service, ServiceLaw};

const MS: Duration = Duration::from_millis(1);

/// Seven services with a short leaf.
fn tree() -> Tree {
    Tree {
        depth: 3,
        fan_out: 2,
        cores: 6,
        short_cores: 2,
        service: Service { law: ServiceLaw::Constant, mean: MS },
        after: MS / 5,
        round_trip: MS / 5,
        deadline: 40 * MS,
        coupled: true,
        callers: 20,
        warm_up: 1_000 * MS,
        duration: 2_000 * MS,
    }
}

fn run(scheme: &str, load: f64) -> Figures {
    let tree = tree();
    let scheme = Scheme::named(scheme).unwrap();
    Graph::new(&tree, &scheme, load, 1).unwrap().run().figures(&tree)
}

#[test]
fn services_are_numbered_row_by_row() {
    let tree = tree();
    assert_eq!((tree.services(), tree.short()), (7, 6));
    assert_eq!((tree.below(0), tree.below(2), tree.below(3)), (1..3, 5..7, 0..0));
    assert_eq!(Tree { depth: 40, ..tree }.mistake().map(|(key, _)| key), Some("depth"));
}

#[test]
fn at_half_of_the_capacity_all_are_answered_in_the_time_that_they_take() {
    for scheme in ["tidegate", "none"] {
        let figures = run(scheme, 0.5);
        assert!(figures.goodput > 0.45 && figures.wasted < 1e-3, "{scheme}: {figures:?}");
        // Down to the leaf and back: three times 1 ms, twice 0.2 ms, three round trips.
        assert!(figures.p99_us > 4_000.0 && figures.p99_us < 12_000.0, "{scheme}: {figures:?}");
    }
}

#[test]
fn without_control_the_work_for_calls_that_end_at_the_short_leaf_is_thrown_away() {
    let figures = run("none", 2.0);
    assert!(figures.wasted > 0.3, "{figures:?}");
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    assert_eq!(run("tidegate", 3.0), run("tidegate", 3.0));
}

#[test]
fn what_the_short_leaf_would_refuse_is_mostly_refused_before_any_work() {
    let alone = Tree { coupled: false, ..tree() };
    let alone = Graph::new(&alone, &Scheme::default(), 2.0, 1).unwrap().run().figures(&alone);
    let coupled = run("tidegate", 2.0);
    assert!(coupled.goodput > 0.9 && coupled.wasted < alone.wasted / 2.0, "{coupled:?} {alone:?}");
}
