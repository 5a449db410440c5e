//! Where a packet of a class with isolation waits: the less a flow sends, the sooner it is served.
//!
//! TCP that windows hold has leaves that take turns, and so has all that no window can hold. What sends little goes ahead of
//! both, as long as all of that together stays within a half of the class.

use tidegate_core::Instant;
use tidegate_core::control::window::span_of;

use super::flow::FlowKey;
use super::flow::table::Recent;
use super::leaves::BULK_LEAVES;

/// Leaves of what no window can hold.
pub const OTHER_LEAVES: u8 = 8;
/// Most flows that are known at once of those that no window can hold.
const OTHERS_MAX: usize = 16_384;
/// What a flow that no window can hold may send at once and go ahead, as time at its share of the class.
const SPARSE_DEBT_NS: u64 = 2_000_000;
/// A flow that sent much goes ahead again after this at most.
const SPARSE_DEBT_MOST_NS: u64 = 20_000_000;
/// Its share of the class is a 64th.
const SPARSE_SHARE: u64 = 64;
/// What may go ahead together: a half of the class over this span.
const SPARSE_BUDGET_NS: u64 = 10_000_000;

/// Where a packet is queued in isolation mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Leaf {
    /// With what sends little, ahead of the others.
    Sparse,
    /// In this one of the [`BULK_LEAVES`], with TCP that windows hold.
    Bulk(u8),
    /// In this one of the [`OTHER_LEAVES`], with what no window can hold.
    Other(u8),
}

/// What goes ahead in one class.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// Bytes per second that the class has of its own.
    rate: u64,
    /// When what went ahead is paid for.
    paid_at: Instant,
    /// By flow and protocol.
    others: Recent<(FlowKey, u8), Other>,
}

/// A flow that no window can hold.
#[derive(Clone, Copy, Debug, Default)]
struct Other {
    /// When all it sent is paid for by its share.
    paid_at: Instant,
    /// True from when it had more than may go ahead until it has paid for all: what it sends then must not overtake what waits.
    in_turn: bool,
}

impl Ahead {
    pub(super) fn new(rate: u64) -> Self {
        Self { rate, paid_at: Instant::ZERO, others: Recent::new(OTHERS_MAX) }
    }

    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// The leaf of a packet of a flow that sends little, and that a window could hold.
    pub(super) fn of_sparse(&mut self, key: &FlowKey, wire_bytes: u32, now: Instant) -> Leaf {
        if self.pays(wire_bytes, now) { Leaf::Sparse } else { Leaf::Bulk(turn(key, BULK_LEAVES)) }
    }

    /// The leaf of a packet that no window can hold.
    pub(super) fn of_other(&mut self, key: FlowKey, protocol: u8, wire_bytes: u32, now: Instant) -> Leaf {
        let cost_ns = SPARSE_SHARE * span_of(wire_bytes.into(), self.rate);
        let other = self.others.entry((key, protocol), Other::default());
        if other.paid_at <= now {
            *other = Other { paid_at: now, in_turn: false };
        }
        other.paid_at = other.paid_at.plus_nanos(cost_ns).min(now.plus_nanos(SPARSE_DEBT_MOST_NS));
        let Other { paid_at, mut in_turn } = *other;
        if !in_turn {
            in_turn = paid_at.nanos_since(now) > SPARSE_DEBT_NS || !self.pays(wire_bytes, now);
            self.others.entry((key, protocol), Other::default()).in_turn = in_turn;
        }
        if in_turn { Leaf::Other(turn(&key, OTHER_LEAVES)) } else { Leaf::Sparse }
    }

    /// Takes a packet from what may go ahead together, if there is enough left.
    fn pays(&mut self, wire_bytes: u32, now: Instant) -> bool {
        if self.paid_at.nanos_since(now) > SPARSE_BUDGET_NS {
            return false;
        }
        self.paid_at = self.paid_at.max(now).plus_nanos(2 * span_of(wire_bytes.into(), self.rate));
        true
    }
}

/// The same leaf for all packets of a flow.
fn turn(key: &FlowKey, leaves: u8) -> u8 {
    let word = |address: &[u8; 16], at: usize| {
        u32::from_be_bytes(*address[at..].first_chunk().expect("an address has four words"))
    };
    let (local, remote) = (&key.local, &key.remote);
    let mut hash = [4, 12].into_iter().fold(0, |hash, at| hash ^ word(&local.address, at) ^ word(&remote.address, at));
    hash ^= u32::from(local.port) << 16 | u32::from(remote.port);
    let leaf = (hash.wrapping_mul(0x9e37_79b1) >> 16) % u32::from(leaves);
    u8::try_from(leaf).expect("below the number of leaves")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::packet::Endpoint;

    const GIGABIT: u64 = 125_000_000;

    fn key(port: u16) -> FlowKey {
        let end = |port| Endpoint { address: [7; 16], port };
        FlowKey { local: end(port), remote: end(53) }
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    /// Packets of 1,500 bytes, of so many that come one after another so far apart, that go ahead.
    fn ahead(class: &mut Ahead, flow: u16, packets: u64, gap_us: u64) -> usize {
        let leaf = |packet| class.of_other(key(flow), 17, 1_500, at(1_000_000 + packet * gap_us));
        (0..packets).map(leaf).filter(|leaf| *leaf == Leaf::Sparse).count()
    }

    #[test]
    fn what_no_window_can_hold_goes_ahead_up_to_a_64th_of_the_class() {
        // A packet takes 12 us, and 768 us of a 64th: two at once, and then one in so long.
        let mut class = Ahead::new(GIGABIT);
        assert_eq!(ahead(&mut class, 1, 10, 0), 2);
        let late = |us: u64| class.of_other(key(1), 17, 1_500, at(1_000_000 + us));
        assert_eq!(
            [7_000, 30_000].map(late),
            [Leaf::Other(turn(&key(1), OTHER_LEAVES)), Leaf::Sparse],
            "once all is paid for"
        );
        assert_eq!(ahead(&mut Ahead::new(GIGABIT), 2, 1_000, 768), 1_000);
        // One that sends twice as much is soon in debt, and stays there.
        let mut class = Ahead::new(GIGABIT);
        assert_eq!(ahead(&mut class, 3, 1_000, 384), 4);
        assert_eq!(class.of_other(key(3), 17, 1_500, at(1_000_000 + 384_000 + 20_000)), Leaf::Sparse, "later again");
        assert_eq!(class.of_other(key(1), 6, 1_500, at(2_000_000)), Leaf::Sparse, "another protocol, another flow");
    }

    #[test]
    fn what_goes_ahead_together_is_half_of_the_class() {
        let mut class = Ahead::new(GIGABIT);
        // For half a second, each 12 us a packet: as much as the class carries.
        let sent = 500_000 / 12;
        let each = |packet: u64| class.of_sparse(&key(u16::try_from(packet / 2).unwrap()), 1_500, at(packet * 12));
        let mut found: Vec<Leaf> = (0..sent).map(each).collect();
        let ahead = found.iter().filter(|leaf| **leaf == Leaf::Sparse).count() as u64;
        assert!((sent / 2..sent / 2 + 500).contains(&ahead), "{ahead} of {sent}");
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 17, "the others take turns with those of TCP");
    }

    #[test]
    fn a_flow_stays_in_its_leaf() {
        let mut class = Ahead::new(1);
        let first = class.of_other(key(9), 17, 1_500, at(1));
        assert!(matches!(first, Leaf::Other(leaf) if leaf < OTHER_LEAVES));
        assert_eq!(class.of_other(key(9), 17, 1_500, at(2)), first);
    }
}
