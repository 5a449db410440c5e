//! Many random sessions: crashing clients, slow and failing logs, paused readers, restarts.
//!
//! A failing seed is named; `SEED=n cargo test -p tidegate-broker --test simulation` replays it alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::session::{Session, Step, settings};
use tidegate_core::rng::Rng;

const SEEDS: u64 = 60;
const STEPS: usize = 250;

/// Runs the session of `seed`; answers its trace's hash and how many messages were finished.
fn run(seed: u64) -> (u64, usize) {
    let mut rng = Rng::stream(seed, 2);
    let mut session = Session::new(settings(seed));
    for _ in 0..STEPS {
        session.apply(Step::random(&mut rng));
        session.check();
    }
    let finished = session.finish_all();
    (session.broker.trace_hash, finished)
}

#[test]
fn no_message_is_lost_or_finished_twice() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().unwrap());
    let mut finished = 0;
    for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let Ok((_, count)) = outcome else {
            panic!("replay with SEED={seed} cargo test -p tidegate-broker --test simulation")
        };
        finished += count;
    }
    assert!(only.is_some() || finished > 6_500, "the sessions do something: {finished}");
}

#[test]
fn one_seed_gives_one_trace() {
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0);
}
