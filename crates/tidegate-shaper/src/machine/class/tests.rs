use tidegate_core::control::window::Mode;

use super::*;
use crate::machine::packet::{Endpoint, SynOptions};

const CONFIG: ClassConfig =
    ClassConfig { rate: 125_000_000, ceil: 125_000_000, setpoint_ns: 100_000, mode: Mode::Integral };
const OFFER: SynOptions = SynOptions { window_scale: Some(7), mss: Some(1_460), timestamps: true };
const MSS: u32 = 1_448;

/// A class with its flows, told of one flow's segments.
struct Bench {
    class: Class,
    flows: Flows,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        Self { class: Class::new(CONFIG, MSS.into(), Instant::ZERO), flows: Flows::new(4), now: 0 }
    }

    fn seen(&mut self) -> Seen {
        self.now += 10_000;
        Seen { queue_ns: 100_000, drained: 0, now: Instant::from_nanos(self.now) }
    }

    fn out(&mut self, seq: u32, payload: u32) -> Leaf {
        let seen = self.seen();
        let out = Segment { seq, payload, ..segment(Flags::ACK) };
        self.class.on_egress(&mut self.flows, &out, sizes(MSS), seen).0
    }

    fn back(&mut self, ack: u32, window: u16) -> Option<u16> {
        self.back_with(Flags::ACK, ack, window)
    }

    fn back_with(&mut self, flags: Flags, ack: u32, window: u16) -> Option<u16> {
        let seen = self.seen();
        let back = reversed(Segment { ack, window, ..segment(flags) });
        self.class.on_ingress(&mut self.flows, &back, u16::MAX, seen).window
    }

    /// The field of the peer's answer to our SYN.
    fn open(&mut self) -> Option<u16> {
        let seen = self.seen();
        self.class.on_egress(&mut self.flows, &Segment { options: OFFER, ..segment(Flags::SYN) }, sizes(0), seen);
        let reply = Segment { ack: 1, window: 65_535, options: OFFER, ..segment(Flags::SYN.with(Flags::ACK)) };
        let seen = self.seen();
        self.class.on_ingress(&mut self.flows, &reversed(reply), u16::MAX, seen).window
    }

    fn flow(&mut self) -> &mut Flow {
        self.flows.lookup(&FlowKey::of_egress(&segment(Flags::ACK))).unwrap()
    }
}

fn segment(flags: Flags) -> Segment {
    let end = |port| Endpoint { address: [1; 16], port };
    let options = SynOptions::default();
    Segment {
        source: end(1),
        destination: end(2),
        seq: 0,
        ack: 0,
        flags,
        window: 0,
        payload: 0,
        ecn: Ecn::NOT_ECT,
        options,
    }
}

fn sizes(gso_bytes: u32) -> Sizes {
    Sizes { gso_bytes, wire_bytes: 1_514 }
}

fn reversed(segment: Segment) -> Segment {
    Segment { source: segment.destination, destination: segment.source, ..segment }
}

fn bytes(field: Option<u16>) -> u32 {
    u32::from(field.unwrap()) << 7
}

#[test]
fn a_flow_is_given_its_share_from_the_handshake_on() {
    let mut bench = Bench::new();
    let first = bench.open();
    assert_eq!(first, Some(17 * 1_448), "200 us at 1 Gbit/s; a SYN's window is never scaled");
    bench.out(1, 5 * MSS);
    let window = bytes(bench.back(1 + 5 * MSS, 2_000));
    assert!((16 * MSS..=18 * MSS).contains(&window), "{window}");
    assert_eq!(bench.back(1 + 5 * MSS, 3), None, "the peer has less room than that");
    assert_eq!(bench.back(1 + 5 * MSS, 0), None, "a closed window stays closed");
    assert_eq!(bench.class.counters().rewritten, 2);
}

#[test]
fn the_edge_moves_when_the_last_segment_is_acknowledged() {
    let mut bench = Bench::new();
    bench.open();
    bench.out(1, 17 * MSS);
    let edge = |bench: &mut Bench, segments: u32| {
        let ack = 1 + segments * MSS;
        ack + bytes(bench.back(ack, 2_000))
    };
    let first = edge(&mut bench, 2);
    let second = edge(&mut bench, 10);
    assert!(first.abs_diff(1 + 17 * MSS) < 256 && second.abs_diff(first) < 256, "{first} {second}");
    assert!(edge(&mut bench, 16) > 1 + 30 * MSS);
}

#[test]
fn a_flow_whose_handshake_was_not_seen_is_left_alone_until_its_scale_is_told() {
    let mut bench = Bench::new();
    assert_eq!(bench.out(1, 5 * MSS), Leaf::Sparse);
    assert_eq!(bench.back(1 + MSS, 2_000), None);
    assert_eq!(bench.class.counters().unscaled, 1);
    // As the agent does, whatever was in flight then.
    *bench.flow() = Flow::of_open(Scale::Known(7));
    assert_eq!(bench.back(1 + MSS, 2_000), None, "its class is known by what goes out");
    bench.out(1 + 5 * MSS, MSS);
    assert!(bench.back(1 + 6 * MSS, 2_000).is_some());
    assert_eq!(bench.flow().una, 1 + 6 * MSS);
}

#[test]
fn a_flow_is_forgotten_when_both_have_closed_or_one_gave_up() {
    let mut bench = Bench::new();
    bench.open();
    bench.out(1, MSS);
    let seen = bench.seen();
    let fin = Segment { seq: 1 + MSS, ..segment(Flags::ACK.with(Flags::FIN)) };
    bench.class.on_egress(&mut bench.flows, &fin, sizes(0), seen);
    assert_eq!(bench.flows.held(), 1);
    bench.back_with(Flags::ACK.with(Flags::FIN), 2 + MSS, 2_000);
    assert!(bench.flows.held() == 0);
    bench.open();
    bench.out(1, 0);
    bench.back_with(Flags::ACK.with(Flags::RST), 1, 2_000);
    assert!(bench.flows.held() == 0);
    assert_eq!((bench.class.counters().flows_made, bench.class.counters().flows_ended), (2, 2));
    // The reset was forged: the flow goes on.
    bench.out(1, MSS);
    assert_eq!(bench.flows.held(), 1);
    assert!(bench.back(1 + MSS, 2_000).is_some());
    let seen = bench.seen();
    bench.class.on_egress(&mut bench.flows, &segment(Flags::RST), sizes(0), seen);
    assert!(bench.flows.held() == 0, "the answer to a stray segment");
}

#[test]
fn the_right_edge_never_goes_left_of_what_was_sent() {
    let mut bench = Bench::new();
    bench.open();
    // 65 kB went out by the peer's own window before this program was there.
    bench.out(1, 65_000);
    assert!(bytes(bench.back(1 + MSS, 2_000)) >= 65_000 - MSS);
}

#[test]
fn an_old_acknowledgement_is_left_alone() {
    let mut bench = Bench::new();
    bench.open();
    bench.out(1, 5 * MSS);
    assert!(bench.back(1 + 2 * MSS, 2_000).is_some());
    assert_eq!(bench.back(1 + MSS, 2_000), None);
}

#[test]
fn a_flow_with_much_in_flight_is_not_sparse_though_no_window_holds_it() {
    let mut bench = Bench::new();
    bench.class.isolate();
    bench.open();
    // The handshake is long ago.
    bench.now += 40_000_000;
    bench.back(1, 2_000);
    assert_eq!(bench.out(1, 11 * MSS), Leaf::Sparse);
    assert_eq!(bench.out(1 + 11 * MSS, MSS), Leaf::Bulk(0));
    assert_eq!(bench.class.counters().limited, 0);
    bench.back(1 + 11 * MSS, 2_000);
    assert_eq!(bench.out(1 + 12 * MSS, 1), Leaf::Bulk(0), "a segment ahead may still wait");
    bench.back(2 + 12 * MSS, 2_000);
    assert_eq!(bench.out(2 + 12 * MSS, 1), Leaf::Sparse);
}

#[test]
fn a_held_flow_goes_to_one_bulk_leaf_and_returns_when_it_is_idle_for_two_epochs() {
    let mut bench = Bench::new();
    bench.open();
    bench.class.window.on_timeout(0, Instant::from_nanos(15_000_000));
    bench.now = 40_000_000;
    assert_eq!(bench.out(1, MSS), Leaf::Sparse, "the handshake is long ago");
    assert_eq!(bench.out(1 + MSS, 16 * MSS), Leaf::Bulk(0));
    assert_eq!(bench.class.window().flows(), 1);
    bench.back(1 + 16 * MSS, 2_000);
    bench.now += 50_000_000;
    assert_eq!(bench.out(1 + 17 * MSS, MSS), Leaf::Bulk(0), "a segment ahead may still wait");
    bench.back(1 + 18 * MSS, 2_000);
    assert_eq!(bench.out(1 + 18 * MSS, MSS), Leaf::Sparse);
}

#[test]
fn marks_of_the_network_hold_a_flow_below_its_share() {
    let mut bench = Bench::new();
    bench.class.use_marks();
    bench.open();
    let mut seq = 1;
    let mut window = u32::MAX;
    for _ in 0..20 {
        bench.out(seq, 4 * MSS);
        seq += 4 * MSS;
        window = bytes(bench.back_with(Flags::ACK.with(Flags::ECE), seq, 2_000));
    }
    assert!((2 * MSS..3 * MSS).contains(&window), "{window}");
    assert_eq!(bench.class.counters().marked, 20);
}

#[test]
fn a_far_flow_neither_slows_the_class_nor_is_held_to_a_near_flows_window() {
    let mut bench = Bench::new();
    bench.open();
    bench.class.window.on_base(70_000);
    bench.flow().base_ns = 100_000_000;
    bench.out(1, MSS);
    // 100 ms at 1 Gbit/s are 12.5 MB, more than the peer's largest window at this scale.
    assert_eq!(bench.back(1 + MSS, u16::MAX), None);
    bench.flow().scale = Scale::Known(8);
    bench.out(1 + MSS, MSS);
    let window = u64::from(bench.back(1 + 2 * MSS, u16::MAX).unwrap()) << 8;
    assert!(window > 8_500_000, "{window}: two round trips of 10 us brought its base to 77 ms");
    assert!(bench.class.window().base_ns() < 80_000);
}

#[test]
fn marks_stay_between_the_shapers_of_both_hosts() {
    let mut bench = Bench::new();
    bench.class.use_marks();
    bench.open();
    let seen = bench.seen();
    let data = Segment { seq: 1, payload: MSS, ..segment(Flags::ACK) };
    let (_, out) = bench.class.on_egress(&mut bench.flows, &data, sizes(0), seen);
    assert_eq!(out, Rewrite { ecn: Some(Ecn::ECT0), ..Rewrite::default() });
    let marked = Segment { ack: 1 + MSS, window: 1, ecn: Ecn::CE, ..segment(Flags::ACK.with(Flags::ECE)) };
    let back = bench.class.on_ingress(&mut bench.flows, &reversed(marked), 0, seen);
    assert_eq!(back, Rewrite { window: None, flags: Some(Flags::ACK), ecn: Some(Ecn::NOT_ECT) });
    let echo =
        |bench: &mut Bench| bench.class.on_egress(&mut bench.flows, &segment(Flags::ACK), sizes(0), seen).1.flags;
    assert_eq!(echo(&mut bench), Some(Flags::ACK.with(Flags::ECE)));
    assert_eq!(echo(&mut bench), None, "once for each");
}

#[test]
fn without_marks_nothing_of_them_is_touched() {
    let mut bench = Bench::new();
    bench.open();
    let seen = bench.seen();
    let marked = Segment { ack: 1, window: 1, ecn: Ecn::CE, ..segment(Flags::ACK.with(Flags::ECE)) };
    assert_eq!(bench.class.on_ingress(&mut bench.flows, &reversed(marked), 0, seen), Rewrite::default());
    let data = Segment { seq: 1, payload: MSS, ..segment(Flags::ACK) };
    assert_eq!(bench.class.on_egress(&mut bench.flows, &data, sizes(0), seen).1, Rewrite::default());
}
