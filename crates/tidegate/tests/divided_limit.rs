//! One limit over real proxies, which control divides by demand: the whole holds, whatever happens to one of them.

#[path = "../examples/divided_limit/load.rs"]
#[expect(dead_code, reason = "what the example shows beside")]
mod load;
#[path = "../examples/divided_limit/world.rs"]
#[expect(dead_code, reason = "what the example splits evenly")]
mod world;

use std::time::Duration;

use load::{Asked, Load, judge, send};
use tidegate_control::config::Lend;
use tidegate_control::io::division::DivisionView;
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_runtime::clock;
use world::{World, ask};

/// For everything that takes some seconds; far more than it needs on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(90);

async fn until(world: &World, what: &str, holds: impl Fn(&DivisionView) -> bool) -> DivisionView {
    let began = clock::now();
    loop {
        let view = world.view().expect("control runs");
        if holds(&view) {
            return view;
        }
        assert!(clock::now().since(began) < PATIENCE, "never {what}: {view:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_limit_follows_the_demand_over_two_proxies_and_outlives_one() {
    let limit = Limit::new(Rate::per_s(200), 20);
    let mut world = World::start(2, limit, "two").await;
    let addresses: Vec<_> = world.nodes.iter().map(|node| node.address).collect();
    let few = Load { per_s: 50.0, busy: 0.5, shift: Duration::from_mins(1), length: Duration::from_secs(1), seed: 1 };
    let closed = send(&addresses, few).await;
    assert!(!closed.is_empty() && closed.iter().all(|one| one.status == 429), "nothing passes without a part");
    world.divide(2, Lend::Off);
    let even = until(&world, "an even split", |view| view.parts.iter().all(|part| part.in_force)).await;
    assert_eq!(even.parts.iter().map(|part| part.limit_burst).collect::<Vec<_>>(), [10, 10]);
    // Four of five requests come to the first proxy.
    let busy = Load { per_s: 180.0, busy: 0.8, length: Duration::from_secs(12), ..few };
    let mut asked: Vec<Asked> = send(&addresses, busy).await;
    let view = until(&world, "a split by demand", |view| view.parts[0].limit_rate_per_s > 140.0).await;
    assert!(view.parts[1].limit_rate_per_s < 60.0 && view.parts[1].limit_burst >= 1, "{view:#?}");
    let (status, parts) = ask(&world.nodes[0].admin, "GET /api/v1/parts", "").await;
    assert_eq!((status, &parts["parts"][0]["on_lapse"]), (200, &"closed".into()), "{parts}");
    // One dies: the other has all of it when its lease is over.
    world.kill(0).await;
    until(&world, "all of it at one proxy", |view| view.parts[1].limit_burst == 20 && view.parts[1].in_force).await;
    let one = Load { per_s: 150.0, busy: 1.0, length: Duration::from_secs(3), ..few };
    asked.extend(send(&addresses[1..], one).await);
    let verdict = judge(&asked, limit, Instant::ZERO..Instant::MAX);
    assert_eq!((verdict.violations, verdict.failed), (0, 0), "{verdict:?}");
    assert!(verdict.admitted > verdict.requests / 2, "{verdict:?}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_that_lend_refuse_little_that_others_have_tokens_for() {
    let limit = Limit::new(Rate::per_s(200), 60);
    let mut world = World::start(3, limit, "lend").await;
    let addresses: Vec<_> = world.nodes.iter().map(|node| node.address).collect();
    world.divide(10, Lend::On);
    until(&world, "an even split", |view| view.parts.iter().all(|part| part.in_force)).await;
    // Nine of ten requests come to one proxy, which has a third of the rate: without loans it refuses more than half.
    let busy = Load { per_s: 150.0, busy: 0.9, shift: Duration::from_secs(3), length: Duration::from_secs(9), seed: 2 };
    let began = clock::now();
    let asked = send(&addresses, busy).await;
    // Buckets begin empty, and are full after a third of a second.
    let verdict = judge(&asked, limit, began + Duration::from_secs(2)..Instant::MAX);
    assert_eq!((verdict.violations, verdict.failed), (0, 0), "{verdict:?}");
    assert!(verdict.refused_with_tokens * 4 < verdict.requests, "{verdict:?}");
    world.stop().await;
}
