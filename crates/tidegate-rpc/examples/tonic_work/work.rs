//! Work in rounds of the processor, not in time: a core that is taken away from it does not shorten it.

use std::hint::black_box;

/// Computes `rounds` rounds of one to two nanoseconds.
pub(crate) fn compute(rounds: u64) -> u64 {
    (0..rounds).fold(0x9e37_79b9_7f4a_7c15, |x: u64, round| black_box(x.rotate_left(7).wrapping_mul(5) ^ round))
}
