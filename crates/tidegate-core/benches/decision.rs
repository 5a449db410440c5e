//! What one decision costs: `cargo bench -p tidegate-core --bench decision`.
//!
//! Virtual time advances by the mean gap of a load just below the rate, so that buckets grant nearly always and refill
//! each time, as in the steady state of a conforming topic.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Barrier;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::limit::{Gate, Limit, SharedBucket, TokenBucket};
use tidegate_core::{Instant, Rate, TimerWheel};

/// 10,000 messages a second against a rate of 11,000: the paper's profile.
const GAP_NS: u64 = 100_000;

fn limit() -> Limit {
    Limit::new(Rate::per_s(11_000), 26)
}

fn token_bucket(c: &mut Criterion) {
    let mut bucket = TokenBucket::new(limit(), Instant::ZERO);
    let mut now = Instant::ZERO;
    c.bench_function("token_bucket/try_take", |b| {
        b.iter(|| {
            now = now.plus_nanos(GAP_NS);
            bucket.try_take(black_box(1), black_box(now))
        });
    });
}

fn shared_bucket(c: &mut Criterion) {
    let bucket = SharedBucket::new(limit(), Instant::ZERO);
    let mut now = Instant::ZERO;
    c.bench_function("shared_bucket/uncontended", |b| {
        b.iter(|| {
            now = now.plus_nanos(GAP_NS);
            bucket.try_take(black_box(1), black_box(now))
        });
    });
    // So many tokens that both threads are always granted: each decision writes the contended line.
    let bucket = SharedBucket::new(Limit::new(Rate::per_s(1_000_000_000), 1 << 40), Instant::ZERO);
    let (running, ready) = (AtomicBool::new(true), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ready.wait();
            let mut now = Instant::ZERO;
            // Relaxed: it only ends the noise.
            while running.load(Ordering::Relaxed) {
                now = now.plus_nanos(GAP_NS);
                let _ = black_box(bucket.try_take(black_box(1), now));
            }
        });
        ready.wait();
        let mut now = Instant::ZERO;
        c.bench_function("shared_bucket/two_threads", |b| {
            b.iter(|| {
                now = now.plus_nanos(GAP_NS);
                bucket.try_take(black_box(1), black_box(now))
            });
        });
        running.store(false, Ordering::Relaxed);
    });
}

fn gate(c: &mut Criterion) {
    let mut gate = Gate::new(limit(), 1_000, Instant::ZERO);
    let mut now = Instant::ZERO;
    c.bench_function("gate/push_pop", |b| {
        b.iter(|| {
            now = now.plus_nanos(GAP_NS);
            let _ = gate.push(black_box(7u64), 1, now);
            gate.pop(black_box(now))
        });
    });
}

fn timer_wheel(c: &mut Criterion) {
    let mut wheel = TimerWheel::new(Duration::from_millis(1), Instant::ZERO);
    let mut now = Instant::ZERO;
    // A message timeout is started for each delivery and nearly always cancelled by the FIN.
    c.bench_function("timer_wheel/insert_cancel_among_10000", |b| {
        let mut held: Vec<_> =
            (0..10_000u64).map(|i| wheel.insert(now.plus_nanos(60_000_000_000 + i * GAP_NS), i)).collect();
        let mut oldest = 0;
        b.iter(|| {
            now = now.plus_nanos(GAP_NS);
            let key = wheel.insert(now.plus_nanos(60_000_000_000), black_box(1));
            let cancelled = wheel.cancel(core::mem::replace(&mut held[oldest], key));
            oldest = (oldest + 1) % held.len();
            (cancelled, wheel.pop(now))
        });
    });
}

criterion_group!(decision, token_bucket, shared_bucket, gate, timer_wheel);
criterion_main!(decision);
