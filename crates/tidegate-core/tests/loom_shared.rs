//! Every interleaving of threads that draw from one shared bucket.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-core --test loom_shared`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use tidegate_core::limit::{Limit, SharedBucket};
use tidegate_core::{Instant, Rate};

/// In all interleavings, what the threads are granted of their asks, each a cost and a time, sums to one of `sums`.
fn check(limit: Limit, asks: [&'static [(u64, u64)]; 2], sums: core::ops::RangeInclusive<u64>) {
    loom::model(move || {
        let bucket = Arc::new(SharedBucket::new(limit, Instant::ZERO));
        let threads = asks.map(|asks| {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || draw(&bucket, asks))
        });
        let sums = sums.clone();
        let granted: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(sums.contains(&granted), "{granted}");
    });
}

fn draw(bucket: &SharedBucket, asks: &[(u64, u64)]) -> u64 {
    let grant = |&(cost, ns)| if bucket.try_take(cost, Instant::from_nanos(ns)).is_ok() { cost } else { 0 };
    asks.iter().map(grant).sum()
}

#[test]
fn a_token_is_given_once() {
    check(Limit::new(Rate::per_s(1), 3), [&[(1, 0), (1, 0)], &[(1, 0), (1, 0)]], 3..=3);
}

#[test]
fn what_is_minted_meanwhile_is_given_once() {
    // Full with 2 at 0, one more at 10 ns unless the bucket is asked at 10 ns first and had no room for it.
    let rate = Rate::from_fraction(1, 10).unwrap();
    check(Limit::new(rate, 2), [&[(2, 0), (1, 10)], &[(1, 10)]], 2..=3);
}
