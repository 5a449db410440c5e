use super::*;

const OFFER: SynOptions = SynOptions { window_scale: Some(9), mss: Some(1_460), timestamps: true };

fn segment(seq: u32, payload: u32) -> Segment {
    let end = Endpoint { address: [0; 16], port: 1 };
    Segment {
        source: end,
        destination: end,
        seq,
        ack: 0,
        flags: Flags::ACK,
        window: 100,
        payload,
        options: SynOptions::default(),
    }
}

fn ack(ack: u32) -> Segment {
    Segment { ack, ..segment(0, 0) }
}

fn syn(flags: Flags, options: SynOptions) -> Segment {
    Segment { flags, options, ..segment(99, 0) }
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

/// A flow after its handshake; we opened it if `ours`.
fn opened(ours: bool, first: SynOptions, second: SynOptions) -> Flow {
    let mut flow = Flow::default();
    let (first, second) = (syn(Flags::SYN, first), syn(Flags::SYN.with(Flags::ACK), second));
    if ours {
        flow.on_sent(&first, 0, at(0));
        flow.on_received(&Segment { ack: 100, ..second }, at(70));
    } else {
        flow.on_received(&first, at(0));
        flow.on_sent(&second, 0, at(0));
        flow.on_received(&ack(100), at(70));
    }
    flow
}

#[test]
fn the_peers_scale_is_learnt_whoever_opens() {
    let peer = SynOptions { window_scale: Some(3), mss: Some(1_400), timestamps: true };
    for (ours, first, second) in [(true, OFFER, peer), (false, peer, OFFER)] {
        let flow = opened(ours, first, second);
        assert_eq!(flow.scale, Scale::Known(3), "we opened: {ours}");
        assert_eq!(flow.mss, 1_388, "the smaller one, less the timestamps");
        assert_eq!(flow.rtt_min_ns, 70_000, "the handshake measures a round trip");
        assert_eq!(flow.in_flight(), 0);
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
fn a_flow_that_was_open_before_has_no_known_scale() {
    let mut flow = Flow::default();
    flow.on_sent(&segment(500, 100), 0, at(0));
    assert_eq!(flow.on_received(&ack(600), at(50)), Some(50_000));
    assert_eq!(flow.scale, Scale::Unknown);
}

#[test]
fn what_is_in_flight_follows_both_ways_across_the_wrap() {
    let start = u32::MAX - 1_000;
    let mut flow = Flow::default();
    flow.on_sent(&segment(start, 3_000), 1_000, at(0));
    assert_eq!((flow.in_flight(), flow.mss), (3_000, 1_000));
    flow.on_received(&ack(start.wrapping_add(1_000)), at(10));
    assert_eq!(flow.in_flight(), 2_000);
    flow.on_received(&ack(start.wrapping_add(9_000)), at(10));
    assert_eq!(flow.in_flight(), 2_000, "what was never sent is not acknowledged");
    flow.on_received(&ack(start), at(10));
    assert_eq!(flow.in_flight(), 2_000, "an old one changes nothing");
}

#[test]
fn a_segment_sent_twice_measures_nothing() {
    let mut flow = Flow::default();
    flow.on_sent(&segment(0, 100), 0, at(0));
    flow.on_sent(&segment(0, 100), 0, at(300));
    assert_eq!(flow.on_received(&ack(100), at(310)), None);
    flow.on_sent(&segment(100, 100), 0, at(400));
    assert_eq!(flow.on_received(&ack(200), at(450)), Some(50_000));
    assert_eq!(flow.rtt_min_ns, 50_000);
}

#[test]
fn a_syn_repeated_measures_nothing_and_another_one_is_another_flow() {
    let mut flow = Flow::default();
    flow.on_sent(&syn(Flags::SYN, OFFER), 0, at(0));
    flow.on_sent(&syn(Flags::SYN, OFFER), 0, at(1_000));
    let reply = Segment { ack: 100, ..syn(Flags::SYN.with(Flags::ACK), OFFER) };
    assert_eq!(flow.on_received(&reply, at(1_001)), None);
    assert_eq!(flow.scale, Scale::Known(9));
    flow.given = Some(3_000);
    flow.on_sent(&Segment { seq: 7_000, ..syn(Flags::SYN, OFFER) }, 0, at(2_000));
    assert_eq!((flow.given, flow.scale), (None, Scale::Offered(OFFER)));
    assert_eq!(flow.sent, Some(Sent { una: 7_000, nxt: 7_001 }));
}

#[test]
fn a_flow_is_held_when_no_full_segment_fits_in_the_window_it_was_given() {
    let mut flow = Flow::default();
    flow.on_sent(&segment(0, 2_000), 1_000, at(0));
    assert!(!flow.is_held(), "its peer's own window holds it, if any");
    flow.given = Some(3_000);
    assert!(!flow.is_held());
    flow.given = Some(2_999);
    assert!(flow.is_held());
}
