//! What one flow gets of its class's window.

use super::bytes_in;

/// No flow gets more: what TCP can announce.
pub const SHARE_MAX: u64 = 1 << 30;

/// Headers of a segment, which the class's rate counts and a window does not.
const HEADER_BYTES: u64 = 66;
/// Longest base that is made up for.
const FAR_MAX_NS: u64 = 1_000_000_000;
/// The class's window covers a base up to this: what the first window of a class is made for.
const NEAR_MAX_NS: u64 = 200_000;
/// A flow is far if its base is longer than twice the class's by this.
const FAR_MARGIN_NS: u64 = 100_000;

/// What a flow's share follows from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The class's window in nanoseconds of its drain.
    pub window_ns: u64,
    /// Flows that share it; at least 1.
    pub flows: u64,
    /// The class's drain in bytes per second.
    pub rate: u64,
    /// What [`far_ns`] says of the flow.
    pub far_ns: u64,
    /// Payload of the flow's full segments, in bytes; at least 1.
    pub mss: u64,
}

/// A flow's share of its class's window, in bytes: equal shares, and to a far flow what a flow of equal rate has outside
/// the queue. At least 9/4 segments, so that two whole ones are left after rounding, and at most [`SHARE_MAX`].
#[must_use]
pub fn share(of: Share) -> u64 {
    // A far flow's window fills only 31/32 of its way, and with payload: the controller adds what is missing to the window, up to its
    // largest, but could not take away a surplus of more than the smallest.
    let way = bytes_in(of.rate, of.far_ns - of.far_ns / 32);
    let payload = way.saturating_mul(of.mss) / of.mss.saturating_add(HEADER_BYTES);
    let bytes = bytes_in(of.rate, of.window_ns).saturating_add(payload) / of.flows;
    bytes.max(of.mss.saturating_mul(9) / 4).min(SHARE_MAX)
}

/// By how much a flow's round trip without the queue is longer than what the class's window covers, in nanoseconds; 0 for
/// flows that are not far.
///
/// A far flow is given the same rate as others and not the same window: with that its rate would be lower by the ratio of
/// the round trips. The class's window covers at most `NEAR_MAX_NS`, 200 us, so that a class with far flows alone, whose base is
/// theirs, is not held to the largest window of a class.
#[must_use]
pub fn far_ns(flow_base_ns: u64, class_base_ns: u64) -> u64 {
    let near_ns = class_base_ns.min(NEAR_MAX_NS);
    let flow_base_ns = flow_base_ns.min(FAR_MAX_NS);
    if flow_base_ns > 2 * near_ns + FAR_MARGIN_NS { flow_base_ns - near_ns } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Share = Share { window_ns: 200_000, flows: 1, rate: 125_000_000, far_ns: 0, mss: 1_448 };

    #[test]
    fn shares_are_equal_and_leave_two_whole_segments_at_least() {
        assert_eq!(share(NEAR), 25_000);
        assert_eq!(share(Share { flows: 4, ..NEAR }), 6_250);
        assert_eq!(share(Share { flows: 16, ..NEAR }), 3_258);
        assert_eq!(share(Share { window_ns: u64::MAX, ..NEAR }), SHARE_MAX);
    }

    #[test]
    fn a_far_flow_gets_what_an_equal_rate_needs() {
        // 100 ms at a quarter of 1 Gbit/s are 3.1 MB, 2.99 MB of these payload.
        let far = share(Share { flows: 4, far_ns: far_ns(100_070_000, 70_000), ..NEAR });
        assert_eq!(far, 2_901_622, "31/32 of 2,989 kB, and 6 kB of the class's window");
        assert_eq!(far_ns(240_000, 70_000), 0, "not far");
        assert_eq!(far_ns(100_000_000, 100_000_000), 99_800_000, "alone, it is far all the same");
    }
}
