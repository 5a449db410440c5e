//! Windows that keep the queue of a rate limiter short without leaving it empty.
//!
//! The limiter stands at the source of its traffic, so that nearly all bytes in flight beyond rate times round trip are
//! in its own queue: `queue = window - rate * rtt`. A controller for each class holds the sum of the windows where the
//! queue has its setpoint ([`ClassWindow`]), each flow gets a [`share`](share()) of it, and what the network marks caps
//! a flow further ([`NetworkWindow`]).
//!
//! A C program in the kernel mirrors this module: plain 64-bit integers, no floats, no allocation, no signed division. Its
//! numbers are bytes, nanoseconds and bytes per second.
//!
//! Source: He et al., "Improving Latency and Burst-tolerance for Software Rate Limiters". The paper names its signals and
//! its lever, no constants and no algorithm: those are ours.

mod class;
mod network;
mod share;

pub use class::{Census, ClassConfig, ClassWindow, Mode};
pub use network::{NETWORK_WINDOW_MAX, NetworkAck, NetworkWindow};
pub use share::{Announcement, FLOOR_SEGMENTS, NEAR_NS, Share, announce, share};

const SECOND_NS: u64 = 1_000_000_000;

/// Bytes that pass in `ns` at `rate` bytes per second, rounded down. Exact up to 18 GB/s for spans of up to a second.
#[must_use]
pub const fn bytes_in(rate: u64, ns: u64) -> u64 {
    rate.saturating_mul(ns) / SECOND_NS
}
