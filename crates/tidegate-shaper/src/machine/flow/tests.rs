use super::*;
use crate::machine::packet::{Ecn, SynOptions};

const OFFER: SynOptions = SynOptions { window_scale: Some(9), mss: Some(1_460), timestamps: true };

fn segment(seq: u32, payload: u32) -> Segment {
    let end = Endpoint { address: [0; 16], port: 1 };
    let options = SynOptions::default();
    let ecn = Ecn::NOT_ECT;
    Segment { ecn, source: end, destination: end, seq, ack: 0, flags: Flags::ACK, window: 100, payload, options }
}

fn ack(ack: u32) -> Segment {
    Segment { ack, ..segment(0, 0) }
}

fn syn(flags: Flags, options: SynOptions) -> Segment {
    Segment { flags, options, ..segment(99, 0) }
}

fn seen(us: u64) -> Seen {
    Seen { queue_ns: 0, drained: 0, now: at(us) }
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

fn open(next: u32) -> Flow {
    Flow::new(Scale::Known(7), next)
}

/// A flow after its handshake; we opened it if `ours`.
fn opened(ours: bool, first: SynOptions, second: SynOptions) -> Flow {
    let mut flow = open(0);
    let (first, second) = (syn(Flags::SYN, first), syn(Flags::SYN.with(Flags::ACK), second));
    if ours {
        flow.on_syn_sent(&first);
        flow.on_syn_received(&second);
    } else {
        flow.on_syn_received(&first);
        flow.on_syn_sent(&second);
    }
    flow
}

#[test]
fn the_peers_scale_is_learnt_whoever_opens() {
    let peer = SynOptions { window_scale: Some(3), mss: Some(1_400), timestamps: true };
    for (ours, first, second) in [(true, OFFER, peer), (false, peer, OFFER)] {
        let flow = opened(ours, first, second);
        assert_eq!(flow.scale, Scale::Known(3), "we opened: {ours}");
        assert_eq!((flow.mss, flow.una, flow.next), (1_388, 100, 100));
    }
}

#[test]
fn a_scale_counts_only_if_both_offer_one() {
    let none = SynOptions { window_scale: None, ..OFFER };
    for (ours, first, second) in [(true, OFFER, none), (true, none, OFFER), (false, OFFER, none), (false, none, OFFER)]
    {
        assert_eq!(opened(ours, first, second).scale, Scale::Known(0));
    }
}

#[test]
fn another_handshake_is_another_flow_and_a_repeated_answer_is_not() {
    let mut flow = opened(true, OFFER, OFFER);
    flow.on_data(&segment(100, 3_000), 1_000, seen(0));
    flow.on_syn_received(&syn(Flags::SYN.with(Flags::ACK), SynOptions { window_scale: Some(1), ..OFFER }));
    assert_eq!((flow.scale, flow.next), (Scale::Known(9), 3_100));
    flow.on_syn_sent(&Segment { seq: 7_000, ..syn(Flags::SYN, OFFER) });
    assert_eq!((flow.scale, flow.una, flow.next), (Scale::Offered(Some(0)), 7_001, 7_001));
}

#[test]
fn what_is_in_flight_follows_both_ways_across_the_wrap() {
    let start = u32::MAX - 1_000;
    let mut flow = open(start);
    flow.on_data(&segment(start, 3_000), 1_000, seen(0));
    assert_eq!((flow.in_flight(flow.una), flow.mss), (3_000, 1_000));
    flow.on_ack(&ack(start.wrapping_add(1_000)), Marks::Guests, at(10)).unwrap();
    assert_eq!(flow.on_ack(&ack(start), Marks::Guests, at(10)), Err(Stray));
    assert_eq!(flow.in_flight(flow.una), 2_000);
    flow.on_ack(&ack(start.wrapping_add(3_001)), Marks::Guests, at(10)).unwrap();
    assert_eq!(
        (flow.in_flight(flow.una), flow.next),
        (0, start.wrapping_add(3_001)),
        "the end of a flow counts as a byte"
    );
}

#[test]
fn a_round_trip_is_measured_without_the_queue_and_not_of_what_was_sent_twice() {
    let mut flow = open(0);
    flow.on_data(&segment(0, 100), 0, Seen { queue_ns: 30_000, drained: 0, now: at(0) });
    assert_eq!(flow.on_ack(&ack(100), Marks::Guests, at(100)), Ok(Some(70_000)));
    flow.on_data(&segment(100, 100), 0, seen(200));
    flow.on_data(&segment(100, 100), 0, seen(300));
    assert_eq!(flow.on_ack(&ack(200), Marks::Guests, at(310)), Ok(None));
    flow.on_data(&segment(200, 100), 0, Seen { queue_ns: -90_000, drained: 0, now: at(400) });
    assert_eq!(
        flow.on_ack(&ack(300), Marks::Guests, at(462)),
        Ok(Some(62_000)),
        "a class with tokens to spare adds nothing"
    );
    assert_eq!(flow.base_ns, 69_000);
}

#[test]
fn a_flow_is_held_when_no_full_segment_fits_into_its_window() {
    let mut flow = open(0);
    flow.edge = 3_000;
    assert!(!flow.on_data(&segment(0, 2_000), 1_000, seen(0)));
    assert!(flow.on_data(&segment(2_000, 1), 1_000, seen(0)));
    assert!(flow.on_data(&segment(2_001, 5_000), 1_000, seen(0)), "beyond it");
}

#[test]
fn guests_that_negotiate_marks_themselves_keep_them() {
    let offer = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
    let answer = Flags::SYN.with(Flags::ACK);
    let after = |first: Flags, second: Flags| {
        let mut flow = open(0);
        flow.on_syn_sent(&syn(first, OFFER));
        flow.on_syn_received(&syn(second, OFFER));
        flow.ecn
    };
    assert_eq!(after(offer, answer.with(Flags::ECE)), GuestEcn::Native);
    assert_eq!(after(offer, answer), GuestEcn::Offered, "the peer declines");
    assert_eq!(after(Flags::SYN, answer.with(Flags::ECE)), GuestEcn::None, "nobody asked");
}

#[test]
fn an_answer_to_another_syn_tells_no_scale() {
    let mut flow = open(0);
    flow.on_syn_sent(&syn(Flags::SYN, OFFER));
    let answer = Flags::SYN.with(Flags::ACK);
    let forged = Segment { ack: 5_000_000, ..syn(answer, OFFER) };
    flow.on_syn_received(&forged);
    assert!(matches!(flow.scale, Scale::Offered(_)), "{:?}", flow.scale);
    flow.on_syn_received(&Segment { ack: flow.next, ..forged });
    assert!(matches!(flow.scale, Scale::Known(_)));
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_changes_nothing() {
    let mut flow = open(0);
    flow.on_data(&segment(0, 1_000), 0, seen(0));
    let before = flow;
    assert_eq!(flow.on_ack(&ack(1_002), Marks::Guests, at(10)), Err(Stray));
    assert_eq!(flow, before);
    assert!(flow.on_ack(&ack(1_001), Marks::Guests, at(10)).is_ok(), "the end of the flow");
}
