//! What a flow's share becomes in the window field of an acknowledgement.

use super::FLOOR_SEGMENTS;

/// Larger shares are several packets for the sender's segmentation offload: of these the window opens with each
/// acknowledgement, since the last packet of a clump would be too short to keep the class busy for a round trip.
const CLUMP_MAX: u64 = 65_536;

/// An acknowledgement on its way to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Bytes that the flow may have in flight.
    pub share: u64,
    /// Bytes sent beyond what is acknowledged here.
    pub in_flight: u64,
    /// Bytes from what is acknowledged here to the right edge announced before, 0 if that is behind.
    pub room: u64,
    /// True for a flow with a far peer, whose window opens with each acknowledgement.
    pub far: bool,
    /// Payload of a full segment, in bytes; at least 1.
    pub mss: u64,
    /// The receiver's window scale, 0 to 14; 0 for segments with SYN, which are never scaled.
    pub scale: u8,
    /// Any number, drawn anew for each acknowledgement.
    pub coin: u16,
}

/// The window to announce, in units of the scale; more than a window field holds if the share is. The receiver's own window
/// is to be announced if that is smaller.
///
/// Clumps: the right edge stays where it is until all but a segment is acknowledged. Then it moves by the whole share, and
/// the sender sends that as one large packet: few packets, one of each flow in the queue. The edge is never left of what
/// was sent: a sender may not repeat what lies beyond it.
///
/// The share is rounded to whole segments and then down to the scale's unit: the last segment is a little short, where
/// rounding up would send tails of a few bytes with headers of their own. Which neighbour it becomes is left to the coin, so
/// that the mean is the share. Two whole segments always fit.
#[must_use]
pub fn announce(to: Announcement) -> u64 {
    let scale = to.scale.min(14);
    let unit = 1_u64 << scale;
    let down = |bytes: u64| bytes & !(unit - 1);
    let up = |bytes: u64| down(bytes + unit - 1);
    if clumps(to.share, to.far) && to.in_flight > to.mss {
        return up(to.room.max(to.in_flight)) >> scale;
    }
    let whole = to.share / to.mss * to.mss;
    let low = down(whole).max(up(FLOOR_SEGMENTS * to.mss));
    let high = down(whole + to.mss).max(low + unit);
    let above = to.share.saturating_sub(low);
    let window = if above > 0 && (u64::from(to.coin) * (high - low)) >> 16 < above { high } else { low };
    up(window.max(to.in_flight)) >> scale
}

/// True if a flow's window opens in clumps; false if with each acknowledgement, as of far flows and of shares that are
/// several packets. Of the latter a sender leaves some of the window unused while that is less than the packet that it wants
/// to send next.
#[must_use]
pub const fn clumps(share: u64, far: bool) -> bool {
    share <= CLUMP_MAX && !far
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 1_448;
    const ACK: Announcement =
        Announcement { share: 25_000, in_flight: 0, room: 0, far: false, mss: MSS, scale: 7, coin: u16::MAX };

    #[test]
    fn a_share_is_rounded_to_whole_segments_and_down_to_the_unit() {
        assert_eq!(announce(ACK), 17 * MSS / 128);
        assert_eq!(announce(Announcement { coin: 0, ..ACK }), 18 * MSS / 128);
        assert_eq!(announce(Announcement { scale: 0, ..ACK }), 17 * MSS);
        assert_eq!(announce(Announcement { share: 9 * MSS / 4, scale: 14, ..ACK }), 1);
    }

    #[test]
    fn the_edge_stays_until_all_but_a_segment_is_acknowledged() {
        let ack = Announcement { in_flight: MSS + 1, room: 20_000, ..ACK };
        assert_eq!(announce(ack), 20_096 / 128);
        assert_eq!(announce(Announcement { room: 0, ..ack }), 1_536 / 128, "what was sent stays within it");
        assert_eq!(announce(Announcement { in_flight: MSS, ..ack }), 17 * MSS / 128);
        let far = announce(Announcement { far: true, ..ack });
        assert_eq!(far, 17 * MSS / 128);
        assert_eq!(announce(Announcement { share: 70_000, ..ack }), 48 * MSS / 128);
    }

    proptest! {
        #[test]
        fn two_segments_and_what_was_sent_always_fit(
            share in 3_258_u64..1 << 30, in_flight in 0_u64..1 << 31, room in 0_u64..1 << 31, far: bool,
            scale in 0_u8..=14, coin: u16,
        ) {
            let bytes = announce(Announcement { share, in_flight, room, far, scale, coin, ..ACK }) << scale;
            prop_assert!(bytes >= in_flight);
            prop_assert!(in_flight > MSS || bytes >= 2 * MSS);
            prop_assert!(bytes <= share.max(in_flight).max(room) + MSS + (1 << scale));
        }

        #[test]
        fn the_mean_of_the_windows_is_the_share_but_for_a_unit(share in 4_000_u64..60_000, scale in 0_u8..=10, seed: u64) {
            let mut rng = crate::Rng::new(seed);
            let draws = 4_000;
            let sum: u64 = (0..draws)
                .map(|_| announce(Announcement { share, scale, coin: (rng.u64() >> 48) as u16, ..ACK }) << scale)
                .sum();
            prop_assert!((sum / draws).abs_diff(share) <= MSS / 16 + (1 << scale), "{} for {share}", sum / draws);
        }
    }
}
