//! Work in rounds of the processor, not in time: a core that is taken away from it does not shorten it.

use std::hint::black_box;

use tidegate_runtime::clock::process_cpu_ns;

/// Computes `rounds` rounds of one to two nanoseconds.
pub(crate) fn compute(rounds: u64) -> u64 {
    (0..rounds).fold(0x9e37_79b9_7f4a_7c15, |x: u64, round| black_box(x.rotate_left(7).wrapping_mul(5) ^ round))
}

/// Rounds that take `us` microseconds of this processor, by the fastest of several tries.
pub(crate) fn rounds_of(us: u64) -> u64 {
    const TRY: u64 = 2_000_000;
    let fastest = (0..20).map(|_| {
        let start = process_cpu_ns();
        black_box(compute(TRY));
        process_cpu_ns() - start
    });
    let ns = fastest.min().unwrap_or(1).max(1);
    us * 1_000 * TRY / ns
}
