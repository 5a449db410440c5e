//! One limit over three proxies, real ones: what a static split refuses that one undivided limit would admit, and what
//! control leaves of that by moving the parts after the demand, without and with proxies that lend each other tokens.
//!
//! `cargo run --release -p tidegate --example divided_limit [SECONDS]` prints a line of JSON for each.

mod load;
mod world;

use std::time::Duration;

use serde_json::json;
use tidegate_control::config::Lend;
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_runtime::clock;

use self::load::{Load, judge, send};
use self::world::World;

const PROXIES: usize = 3;
const LIMIT: Limit = Limit::new(Rate::per_s(400), 60);
/// Not counted at the beginning, but in the law: buckets begin empty.
const WARM_UP: Duration = Duration::from_secs(8);
/// Nobody asks before the rush, in which three times the rate is asked for.
const QUIET: Duration = Duration::from_secs(2);
const RUSH: Duration = Duration::from_secs(6);
/// The next proxy is the busy one after this.
const SHIFT: Duration = Duration::from_secs(30);

#[tokio::main]
#[expect(clippy::print_stdout, reason = "that is what it is for")]
async fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100);
    for scheme in ["static", "adaptor", "both"] {
        let mut world = World::start(PROXIES, LIMIT, scheme).await;
        if scheme == "static" {
            world.split_evenly().await;
        } else {
            world.divide(2, if scheme == "both" { Lend::On } else { Lend::Off });
            while world.view().is_none_or(|view| !view.parts.iter().all(|part| part.in_force)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let addresses: Vec<_> = world.nodes.iter().map(|node| node.address).collect();
        let load = Load {
            per_s: 0.9 * LIMIT.rate.as_per_s(),
            busy: 0.6,
            shift: SHIFT,
            length: WARM_UP + Duration::from_secs(seconds),
            seed: 21,
        };
        let began = clock::now();
        let mut asked = send(&addresses, load).await;
        let counted = began + WARM_UP..clock::now();
        // All buckets fill, and then more is asked for than there is: what is admitted now is the most that ever is.
        tokio::time::sleep(QUIET).await;
        let rush = Load { per_s: 3.0 * LIMIT.rate.as_per_s(), shift: RUSH / 3, length: RUSH, ..load };
        asked.extend(send(&addresses, rush).await);
        let verdict = judge(&asked, LIMIT, counted);
        let late = asked.iter().map(|one| one.sent.since(one.due)).max().unwrap_or_default();
        println!(
            "{}",
            json!({
                "scheme": scheme, "requests": verdict.requests, "admitted": verdict.admitted,
                "refused_with_tokens": verdict.refused_with_tokens, "refused_undivided": verdict.refused_undivided,
                "failed": verdict.failed, "violations": verdict.violations, "excess_max": verdict.excess_max,
                "sent_late_ms_max": late.as_secs_f64() * 1e3,
            })
        );
        world.stop().await;
    }
}
