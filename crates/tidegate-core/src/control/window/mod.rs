//! Windows that keep the queue of a rate limiter short without leaving it empty.
//!
//! The limiter stands at the source of its traffic, so that nearly all bytes in flight beyond rate times round trip are
//! in its own queue: `queue = window - round trip`, each as time at the class's rate. A controller for each class holds the
//! sum of the windows where the queue has its setpoint ([`ClassWindow`]), each flow gets a [`share`](share()) of it, which
//! [`announce`] turns into a window field, and what the network marks caps a flow further ([`NetworkWindow`]).
//!
//! A C program in the kernel mirrors this module: plain 64-bit integers, no floats, no allocation, no signed division.
//! Queues and windows of a class are nanoseconds of its drain, which is its rate unless it borrows: so a changed rate changes no
//! state. What a flow gets is bytes of payload.
//!
//! Source: He et al., "Improving Latency and Burst-tolerance for Software Rate Limiters". The paper names its signals and
//! its lever, no constants and no algorithm: those are ours.

mod announce;
mod class;
mod drain;
mod network;
mod share;

pub use announce::{Announcement, announce, clumps};
pub use class::{Census, ClassConfig, ClassWindow, Mode, follow_base};
pub use network::{NETWORK_WINDOW_MAX, NetworkAck, NetworkWindow};
pub use share::{SHARE_MAX, Share, far_ns, share};

const SECOND_NS: u64 = 1_000_000_000;

/// No flow has less than so many whole segments of room: with a single one in flight, each would wait for the receiver's
/// delayed acknowledgement, 40 ms.
const FLOOR_SEGMENTS: u64 = 2;

/// Bytes that pass in `ns` at `rate` bytes per second, rounded down. Exact to a byte for rates up to 125 GB/s and spans up
/// to an hour.
#[must_use]
pub const fn bytes_in(rate: u64, ns: u64) -> u64 {
    (rate / 1_000_000).saturating_mul(ns) / 1_000 + (rate % 1_000_000).saturating_mul(ns) / SECOND_NS
}

/// Nanoseconds that `bytes` take at `rate` bytes per second, which is above zero, rounded down.
#[must_use]
pub const fn span_of(bytes: u64, rate: u64) -> u64 {
    bytes.saturating_mul(SECOND_NS) / rate
}
