//! What one flow is told of its class's window.

use super::bytes_in;

/// No flow gets less. With one segment in flight, each would wait for the receiver's delayed acknowledgement, 40 ms.
pub const FLOOR_SEGMENTS: u64 = 2;

/// The class's window covers round trips up to this; of a longer one the rest is added to the flow's share. In
/// nanoseconds: what the first window of a class is made for.
pub const NEAR_NS: u64 = 200_000;

/// Longest round trip that is made up for.
const FAR_MAX_NS: u64 = 1_000_000_000;

/// What a flow's share follows from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The class's window in bytes.
    pub window: u64,
    /// Flows that share it; at least 1.
    pub flows: u64,
    /// The class's rate in bytes per second.
    pub rate: u64,
    /// The flow's shortest round trip seen, in nanoseconds; 0 if none was.
    pub rtt_min_ns: u64,
    /// Payload of the flow's full segments, in bytes; at least 1.
    pub mss: u64,
    /// Any number, drawn anew for each answer.
    pub coin: u64,
}

/// A flow's share of its class's window, in bytes: whole segments, at least [`FLOOR_SEGMENTS`].
///
/// A fraction of a segment becomes a whole one as often as its size says, so that the sum of the shares is the window. A
/// flow with a far peer also gets what a flow of equal rate has outside the queue: `rate / flows` times the round trip
/// beyond [`NEAR_NS`]. Without it, equal windows would give it a rate lower by the ratio of the round trips.
#[must_use]
pub fn share(of: Share) -> u64 {
    let far_ns = of.rtt_min_ns.min(FAR_MAX_NS).saturating_sub(NEAR_NS);
    let bytes = of.window.saturating_add(bytes_in(of.rate, far_ns)) / of.flows;
    let whole = bytes / of.mss;
    let segments = if of.coin % of.mss < bytes % of.mss { whole + 1 } else { whole };
    segments.max(FLOOR_SEGMENTS).saturating_mul(of.mss)
}

/// An acknowledgement on its way to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Bytes that the flow may have in flight.
    pub window: u64,
    /// Bytes sent beyond what is acknowledged here.
    pub in_flight: u64,
    /// The window field as the receiver wrote it.
    pub field: u16,
    /// The receiver's window scale, 0 to 14; 0 for segments with SYN, which are never scaled.
    pub scale: u8,
}

/// The window field to write instead of the receiver's own; `None` leaves that as it is.
///
/// Never above the receiver's own. The right edge, acknowledgement plus window, is not moved to the left of what was sent
/// already: senders tolerate less, but may not repeat what lies beyond it. Rounded up to the scale's unit, so never zero
/// unless the receiver's own is.
#[must_use]
pub fn announce(to: Announcement) -> Option<u16> {
    let scale = to.scale.min(14);
    let bytes = to.window.max(to.in_flight).max(1);
    let units = bytes.saturating_add((1 << scale) - 1) >> scale;
    u16::try_from(units).ok().filter(|&units| units < to.field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEAR: Share =
        Share { window: 25_000, flows: 1, rate: 125_000_000, rtt_min_ns: 50_000, mss: 1_448, coin: u64::MAX };

    #[test]
    fn shares_are_whole_segments_and_never_less_than_two() {
        assert_eq!(share(Share { coin: 1_447, ..NEAR }), 17 * 1_448);
        assert_eq!(share(Share { coin: 0, ..NEAR }), 18 * 1_448, "a coin below the remainder of 384");
        assert_eq!(share(Share { flows: 16, ..NEAR }), 2 * 1_448);
        assert_eq!(share(Share { window: 0, flows: u64::MAX, ..NEAR }), 2 * 1_448);
    }

    #[test]
    fn a_far_flow_gets_what_an_equal_rate_needs() {
        // 100 ms at a quarter of 1 Gbit/s are 3.1 MB.
        let far = share(Share { flows: 4, rtt_min_ns: 100_200_000, ..NEAR });
        assert!(far.abs_diff(3_125_000) < 10_000, "{far}");
    }

    #[test]
    fn a_window_is_only_ever_made_smaller() {
        let ack = Announcement { window: 2_896, in_flight: 0, field: 500, scale: 7 };
        assert_eq!(announce(ack), Some(23));
        assert_eq!(announce(Announcement { field: 23, ..ack }), None);
        assert_eq!(announce(Announcement { field: 0, ..ack }), None, "a closed window stays closed");
        assert_eq!(announce(Announcement { scale: 14, field: 2, ..ack }), Some(1), "one unit is the least");
        assert_eq!(announce(Announcement { scale: 0, field: 65_535, ..ack }), Some(2_896));
        assert_eq!(announce(Announcement { window: 1 << 20, scale: 0, field: 65_535, ..ack }), None);
    }

    #[test]
    fn what_was_sent_stays_within_the_window() {
        let ack = Announcement { window: 2_896, in_flight: 20_000, field: 60_000, scale: 3 };
        assert_eq!(announce(ack), Some(2_500));
    }

    proptest! {
        #[test]
        fn dithered_shares_sum_to_the_window(window in 100_000_u64..10_000_000, flows in 1_u64..16, seed: u64) {
            let mut rng = crate::Rng::new(seed);
            let draws = 4_000;
            let sum: u64 = (0..draws).map(|_| share(Share { window, flows, coin: rng.u64(), ..NEAR })).sum();
            prop_assert!((sum / draws * flows).abs_diff(window) <= flows * 1_448 / 16);
        }

        #[test]
        fn an_announced_window_holds_the_share_and_what_is_in_flight(
            window in 1_u64..1 << 40, in_flight in 0_u64..1 << 32, field: u16, scale in 0_u8..=14,
        ) {
            if let Some(units) = announce(Announcement { window, in_flight, field, scale }) {
                prop_assert!(units > 0 && units < field);
                prop_assert!(u64::from(units) << scale >= window.max(in_flight));
            }
        }
    }
}
