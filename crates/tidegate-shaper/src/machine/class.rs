//! What is done with each packet of a class.

use tidegate_core::Instant;
use tidegate_core::control::window::{Announcement, ClassConfig, ClassWindow, FLOOR_SEGMENTS, Share, announce, share};

use super::flow::{Flow, FlowKey, Flows, Scale};
use super::packet::{Flags, Segment};

/// Bulk leaves of a class in isolation mode.
pub const BULK_LEAVES: u8 = 16;

/// What a class's packets met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassCounters {
    /// TCP segments that went out.
    pub sent: u64,
    /// TCP segments that came in.
    pub received: u64,
    /// Of these, those whose window was rewritten.
    pub rewritten: u64,
    /// Of these, those that echoed a CE mark.
    pub marked: u64,
    /// Of these, those whose window scale is unknown: their windows are left alone.
    pub unscaled: u64,
}

/// What is told with each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The class's queue in bytes with its token debt; below zero, so many bytes could pass at once.
    pub queue: i64,
    /// When.
    pub now: Instant,
}

/// Where a packet is queued in isolation mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// With the flows that no window holds, ahead of the others.
    Sparse,
    /// In this one of the [`BULK_LEAVES`].
    Bulk(u8),
}

/// One class of a rate limiter: its controller and its counters. The flows stand outside, in the table that all classes
/// of a host share.
#[derive(Clone, Debug)]
pub struct Class {
    window: ClassWindow,
    counters: ClassCounters,
    /// Flows ever put into bulk leaves: the next one's leaf follows from it.
    bulk_flows: u64,
}

impl Class {
    /// A class that has seen nothing yet.
    #[must_use]
    pub fn new(config: ClassConfig, now: Instant) -> Self {
        Self { window: ClassWindow::new(config, now), counters: ClassCounters::default(), bulk_flows: 0 }
    }

    /// Its controller.
    #[must_use]
    pub fn window(&self) -> &ClassWindow {
        &self.window
    }

    /// What its packets met.
    #[must_use]
    pub fn counters(&self) -> ClassCounters {
        self.counters
    }

    /// Puts `config` in force.
    pub fn set_config(&mut self, config: ClassConfig) {
        self.window.set_config(config);
    }

    /// A segment goes out, before it is queued. `gso_bytes` is the payload of each packet that it is cut into, 0 if it is
    /// whole. Where isolation queues it.
    pub fn on_egress(&mut self, flows: &mut Flows, segment: &Segment, gso_bytes: u32, seen: Seen) -> Leaf {
        let flow = flows.entry(FlowKey::of_egress(segment));
        let idle = flow.in_flight() == 0;
        flow.on_sent(segment, gso_bytes, seen.now);
        if flow.is_held() {
            self.window.on_limited(&mut flow.census, seen.now);
            if flow.bulk.is_none() {
                let leaf = u8::try_from(self.bulk_flows % u64::from(BULK_LEAVES)).expect("below the number of leaves");
                flow.bulk = Some(leaf);
                self.bulk_flows += 1;
            }
        } else if idle {
            // Nothing of it waits any more that a packet ahead could overtake.
            flow.bulk = None;
        }
        let leaf = flow.bulk.map_or(Leaf::Sparse, Leaf::Bulk);
        self.counters.sent += 1;
        self.observe(seen);
        leaf
    }

    /// A segment comes in. The window field to write into it, if it is to be another one; `coin` is any number, drawn anew
    /// for each.
    pub fn on_ingress(&mut self, flows: &mut Flows, segment: &Segment, coin: u64, seen: Seen) -> Option<u16> {
        self.counters.received += 1;
        let key = FlowKey::of_ingress(segment);
        let opens = segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK);
        let flow = if opens { flows.entry(key) } else { flows.lookup(&key)? };
        if let Some(rtt_ns) = flow.on_received(segment, seen.now) {
            self.window.on_rtt(rtt_ns);
        }
        self.observe(seen);
        if segment.flags.has(Flags::ECE) {
            self.counters.marked += 1;
        }
        if !segment.flags.has(Flags::ACK) || segment.flags.has(Flags::RST) {
            return None;
        }
        let Scale::Known(scale) = flow.scale else {
            self.counters.unscaled += 1;
            return None;
        };
        let scale = if segment.flags.has(Flags::SYN) { 0 } else { scale };
        let announced = announce(Announcement {
            window: self.share_of(flow, coin),
            in_flight: in_flight_after(flow, segment.ack),
            field: segment.window,
            scale,
        });
        flow.given = announced.map(|field| u64::from(field) << scale);
        self.counters.rewritten += u64::from(announced.is_some());
        announced
    }

    fn share_of(&self, flow: &Flow, coin: u64) -> u64 {
        let mss = u64::from(flow.mss.max(1));
        let share = share(Share {
            window: self.window.window(),
            flows: self.window.flows(),
            rate: self.window.config().rate,
            rtt_min_ns: flow.rtt_min_ns,
            mss,
            coin,
        });
        share.min(flow.network.window()).max(FLOOR_SEGMENTS * mss)
    }

    fn observe(&mut self, seen: Seen) {
        self.window.sample(seen.queue);
        self.window.on_timeout(seen.now);
    }
}

/// Bytes sent beyond `ack`; an acknowledgement older than the latest has more.
fn in_flight_after(flow: &Flow, ack: u32) -> u64 {
    flow.sent.map_or(0, |sent| {
        let beyond = sent.nxt.wrapping_sub(ack);
        // An acknowledgement of what was never sent has nothing beyond it.
        if beyond > u32::MAX / 2 { 0 } else { beyond.into() }
    })
}

#[cfg(test)]
mod tests {
    use tidegate_core::control::window::Mode;

    use super::*;
    use crate::machine::packet::{Endpoint, SynOptions};

    const CONFIG: ClassConfig = ClassConfig { rate: 125_000_000, delay_ns: 60_000, mss: 1_448, mode: Mode::Integral };
    const OFFER: SynOptions = SynOptions { window_scale: Some(7), mss: Some(1_460), timestamps: true };

    /// A class with its flows, told of one flow's segments.
    struct Bench {
        class: Class,
        flows: Flows,
        now: u64,
    }

    impl Bench {
        fn new() -> Self {
            Self { class: Class::new(CONFIG, Instant::ZERO), flows: Flows::new(4), now: 0 }
        }

        fn seen(&mut self) -> Seen {
            self.now += 10_000;
            Seen { queue: 7_500, now: Instant::from_nanos(self.now) }
        }

        fn out(&mut self, seq: u32, payload: u32) -> Leaf {
            let seen = self.seen();
            let out = Segment { seq, payload, ..segment(Flags::ACK) };
            self.class.on_egress(&mut self.flows, &out, 1_448, seen)
        }

        fn back(&mut self, ack: u32, window: u16) -> Option<u16> {
            let seen = self.seen();
            let back = reversed(Segment { ack, window, ..segment(Flags::ACK) });
            self.class.on_ingress(&mut self.flows, &back, u64::MAX, seen)
        }

        fn open(&mut self) {
            let seen = self.seen();
            self.class.on_egress(&mut self.flows, &Segment { options: OFFER, ..segment(Flags::SYN) }, 0, seen);
            let reply = Segment { ack: 1, window: 65_535, options: OFFER, ..segment(Flags::SYN.with(Flags::ACK)) };
            let seen = self.seen();
            let first = self.class.on_ingress(&mut self.flows, &reversed(reply), u64::MAX, seen);
            assert_eq!(first, Some(17 * 1_448), "the first window is held too, and is never scaled");
        }
    }

    fn segment(flags: Flags) -> Segment {
        let end = |port| Endpoint { address: [1; 16], port };
        let options = SynOptions::default();
        Segment { source: end(1), destination: end(2), seq: 0, ack: 0, flags, window: 0, payload: 0, options }
    }

    fn reversed(segment: Segment) -> Segment {
        Segment { source: segment.destination, destination: segment.source, ..segment }
    }

    #[test]
    fn a_flow_is_given_its_share_from_the_handshake_on() {
        let mut bench = Bench::new();
        bench.open();
        bench.out(1, 5 * 1_448);
        let field = bench.back(1 + 1_448, 2_000).unwrap();
        let window = u64::from(field) << 7;
        assert!((16 * 1_448..18 * 1_448).contains(&window), "{window}");
        assert_eq!(bench.back(1 + 2 * 1_448, 3), None, "the peer has less room than that");
        assert_eq!(bench.back(1 + 2 * 1_448, 0), None);
        assert_eq!(bench.class.counters().rewritten, 2);
    }

    #[test]
    fn a_flow_that_was_open_is_left_alone() {
        let mut bench = Bench::new();
        bench.out(1, 5 * 1_448);
        assert_eq!(bench.back(1 + 1_448, 2_000), None);
        assert_eq!(bench.class.counters().unscaled, 1);
        let key = FlowKey::of_egress(&segment(Flags::ACK));
        bench.flows.entry(key).scale = Scale::Known(7);
        assert!(bench.back(1 + 2 * 1_448, 2_000).is_some());
    }

    #[test]
    fn the_right_edge_never_goes_left_of_what_was_sent() {
        let mut bench = Bench::new();
        bench.open();
        // 64 KB went out by the peer's own window before this program was there.
        bench.out(1, 65_000);
        let field = bench.back(1_449, 2_000).unwrap();
        assert!(u64::from(field) << 7 >= 65_000 - 1_448);
    }

    #[test]
    fn a_held_flow_goes_to_one_bulk_leaf_and_returns_when_nothing_of_it_waits() {
        let mut bench = Bench::new();
        bench.open();
        assert_eq!(bench.out(1, 1_448), Leaf::Sparse);
        assert_eq!(bench.out(1_449, 16 * 1_448), Leaf::Bulk(0));
        assert_eq!(bench.class.window().flows(), 1);
        bench.back(1 + 16 * 1_448, 2_000);
        assert_eq!(bench.out(1 + 17 * 1_448, 1_448), Leaf::Bulk(0), "a segment ahead is still on its way");
        bench.back(1 + 18 * 1_448, 2_000);
        assert_eq!(bench.out(1 + 18 * 1_448, 1_448), Leaf::Sparse);
    }

    #[test]
    fn marks_of_the_network_hold_a_flow_below_its_share() {
        let mut bench = Bench::new();
        bench.open();
        let mut seq = 1;
        let mut window = u64::MAX;
        for _ in 0..20 {
            bench.out(seq, 4 * 1_448);
            seq += 4 * 1_448;
            let seen = bench.seen();
            let flags = Flags::ACK.with(Flags::ECE);
            let back = reversed(Segment { ack: seq, window: 2_000, ..segment(flags) });
            let field = bench.class.on_ingress(&mut bench.flows, &back, u64::MAX, seen);
            window = field.map_or(u64::MAX, |field| u64::from(field) << 7);
        }
        assert!((2 * 1_448..3 * 1_448).contains(&window), "{window}");
        assert_eq!(bench.class.counters().marked, 20);
    }

    #[test]
    fn a_stray_acknowledgement_makes_no_flow() {
        let mut bench = Bench::new();
        assert_eq!(bench.back(1, 2_000), None);
        assert!(bench.flows.is_empty());
    }
}
