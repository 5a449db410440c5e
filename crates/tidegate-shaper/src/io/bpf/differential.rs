//! Holds the programs to the machine that the simulator runs: both see the same frames at the same times with the same queue,
//! and must write the same windows and reach the same state. It needs the right to load programs; without it, it says so.

mod frames;

use std::collections::BTreeSet;
use std::time::Duration;

use frames::{ACK, CE, ECE, FIN, Frame, RST, SYN, Shape, build, build_datagram, options};
use libbpf_rs::{ProgramInput, ProgramMut};
use tidegate_core::control::window::{ClassConfig, Mode};
use tidegate_core::{Instant, Rng};

use super::object::Object;
use super::under_test;
use crate::machine::ahead::Leaf;
use crate::machine::class::{Class, Sizes};
use crate::machine::class_id::ClassId;
use crate::machine::device::{Control, Hook, Occupancy};
use crate::machine::flow::{FlowKey, Flows, Seen};
use crate::machine::packet::{Endpoint, parse, set_ecn, set_flags, set_window};
use crate::machine::program::{ClassProgram, DeviceProgram};
use crate::machine::tree::number_of_leaf;

const RATE: u64 = 125_000_000;
const DELAY: Duration = Duration::from_micros(100);
/// As in the kernel's tree.
const CLASS: u32 = 0x71de_0020;
/// Size of the context of a program at tc, and offsets of its fields that count here.
const CONTEXT_BYTES: usize = 192;
const PRIORITY_AT: usize = 32;
const GSO_SEGS_AT: usize = 164;
const GSO_SIZE_AT: usize = 176;

/// Runs a program on a frame. What it made of it, and the class that it put it into.
fn run(program: &ProgramMut<'_>, frame: &[u8], gso_bytes: u32) -> (Vec<u8>, u32) {
    let (mut context, mut after) = ([0; CONTEXT_BYTES], [0; CONTEXT_BYTES]);
    let segments = u32::from(gso_bytes > 0) * 2;
    context[GSO_SEGS_AT..GSO_SEGS_AT + 4].copy_from_slice(&segments.to_ne_bytes());
    context[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&gso_bytes.to_ne_bytes());
    let mut out = vec![0; frame.len()];
    let input = ProgramInput {
        context_in: Some(&mut context),
        context_out: Some(&mut after),
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let output = program.test_run(input).expect("the kernel runs it");
    assert_eq!(output.return_value.cast_signed(), -1, "other programs go on with the packet");
    let class = after[PRIORITY_AT..].first_chunk().expect("the context is longer");
    (out, u32::from_ne_bytes(*class))
}

/// What is played.
#[derive(Clone, Copy)]
struct Play {
    control: Control,
    ecn: bool,
    rate: u64,
    ceil: u64,
    isolation: bool,
    /// Packets come at most so far apart.
    gap_ns: u64,
}

const PLAIN: Play =
    Play { control: Control::Integral, ecn: false, rate: RATE, ceil: RATE, isolation: false, gap_ns: 60_000 };

/// Both sides, told the same.
struct Pair {
    object: Object,
    class: Class,
    flows: Flows,
    now: u64,
    drained: u64,
    /// The fastest drain that was measured.
    fastest: u64,
    isolation: bool,
    gap_ns: u64,
    /// Leaves that packets were put into.
    leaves: BTreeSet<Leaf>,
    /// Whether all frames have the tag of one VLAN: the machine's flows are those of one.
    vlan: bool,
    rng: Rng,
}

impl Pair {
    fn new(play: Play, seed: u64) -> Option<Self> {
        let Play { control, ecn, rate, ceil, isolation, gap_ns } = play;
        let (burst, debt) = (Duration::from_micros(500), Duration::ZERO);
        let classid = ClassId(CLASS);
        let program = ClassProgram { classid, rate, ceil, isolation, control, delay: DELAY, burst, debt };
        let device = DeviceProgram {
            classes: [(0, program)].into(),
            rules: Vec::new(),
            default: Some(0),
            classifies: true,
            ecn,
            hook: Hook::Auto,
            occupancy: Occupancy::Auto,
        };
        let object = under_test::load(&device)?;
        let mode = if control == Control::Dctcp { Mode::Dctcp } else { Mode::Integral };
        let setpoint_ns = u64::try_from(DELAY.as_nanos()).unwrap();
        let mut class = Class::new(ClassConfig { rate, ceil, setpoint_ns, mode }, 1_448, Instant::ZERO);
        if ecn {
            class.use_marks();
        }
        if isolation {
            class.isolate();
        }
        let (flows, leaves, mut rng) = (Flows::default(), BTreeSet::new(), Rng::new(seed));
        let vlan = rng.chance(0.3);
        Some(Self { object, class, flows, now: 1_000, drained: 0, fastest: 0, isolation, gap_ns, leaves, vlan, rng })
    }

    /// Time goes on. What both are told with the next packet, and the coin.
    fn tell(&mut self) -> (Seen, u16) {
        self.now += self.rng.below(self.gap_ns);
        let queue_ns = i64::try_from(self.rng.below(400_000)).unwrap() - 120_000;
        let coin = u16::try_from(self.rng.below(65_536)).unwrap();
        self.told(queue_ns, coin)
    }

    /// Both are told this.
    fn told(&mut self, queue_ns: i64, coin: u16) -> (Seen, u16) {
        // At times the class is let pass less, and at times more than its ceiling.
        self.drained += self.rng.below(15_000 << (self.now >> 23 & 1));
        let seen = Seen { queue_ns, drained: self.drained, now: Instant::from_nanos(self.now) };
        self.object.tell(seen, coin.into());
        (seen, coin)
    }

    /// Both put a packet that goes out into the same leaf.
    fn expect_leaf(&mut self, found: u32, leaf: Leaf) {
        let number = if self.isolation { number_of_leaf(leaf).into() } else { 0 };
        assert_eq!(found, CLASS + number, "{leaf:?} at {} ns", self.now);
        self.leaves.insert(leaf);
    }

    /// A datagram of UDP goes out.
    fn see_datagram(&mut self, port: u16, payload: usize) {
        let (seen, _) = self.tell();
        let bytes = build_datagram(port, payload);
        let (out, class) = run(&self.object.egress(), &bytes, 0);
        assert_eq!(out, bytes, "nothing is written into it");
        let end = |last, port| {
            let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
            Endpoint { address, port }
        };
        let key = FlowKey { local: end(1, port), remote: end(2, 53) };
        let leaf = self.class.on_other(key, 17, u32::try_from(bytes.len()).unwrap(), seen.now);
        self.expect_leaf(class, leaf);
    }

    /// The window that both say, of a frame that comes in; of one that goes out, the window in it.
    fn see(&mut self, shape: Shape, frame: Frame<'_>, gso_bytes: u32) -> u16 {
        let told = self.tell();
        let bytes = build(shape, frame);
        let at = parse(&bytes, u32::try_from(bytes.len()).unwrap()).unwrap().header_at + 14;
        let out = self.see_bytes(&bytes, frame.outgoing, gso_bytes, told);
        u16::from_be_bytes([out[at], out[at + 1]])
    }

    /// What both make of any bytes, and of what they are told beside.
    fn see_bytes(&mut self, bytes: &[u8], outgoing: bool, gso_bytes: u32, (seen, coin): (Seen, u16)) -> Vec<u8> {
        let program = if outgoing { self.object.egress() } else { self.object.ingress() };
        let (out, class) = run(&program, bytes, gso_bytes);
        let wire_bytes = u32::try_from(bytes.len()).unwrap();
        let Ok(parsed) = parse(bytes, wire_bytes) else {
            assert_eq!(out, bytes, "what is no segment of TCP passes as it is");
            return out;
        };
        let rewrite = if outgoing {
            let sizes = Sizes { gso_bytes, wire_bytes };
            let (leaf, rewrite) = self.class.on_egress(&mut self.flows, &parsed.segment, sizes, seen);
            self.expect_leaf(class, leaf);
            rewrite
        } else {
            self.class.on_ingress(&mut self.flows, &parsed.segment, coin, seen)
        };
        let mut expected = bytes.to_vec();
        rewrite.window.into_iter().for_each(|field| set_window(&mut expected, &parsed, field));
        rewrite.flags.into_iter().for_each(|flags| set_flags(&mut expected, &parsed, flags));
        rewrite.ecn.into_iter().for_each(|ecn| set_ecn(&mut expected, &parsed, ecn));
        assert_eq!(out, expected, "at {} ns", self.now);
        let state = self.object.class_state(0).unwrap();
        let window = self.class.window();
        let flows = u64::from(state.limited_now.max(state.limited_last).max(1));
        assert_eq!(
            (state.window_ns, state.drain.clamp(window.config().rate, window.config().ceil), state.base_ns, flows),
            (window.window_ns(), window.drain(), window.base_ns(), window.flows()),
            "at {} ns",
            self.now
        );
        self.fastest = self.fastest.max(window.drain());
        out
    }
}

/// One flow as its two ends have it.
struct Ends {
    shape: Shape,
    scale: u8,
    next: u32,
    una: u32,
    edge: u32,
    received: u32,
}

impl Ends {
    fn open(pair: &mut Pair, number: u16) -> Self {
        let ipv6 = pair.rng.chance(0.3);
        let shape = Shape { ipv6, vlan: pair.vlan, extension: ipv6 && pair.rng.chance(0.5), port: 40_000 + number };
        let first = u32::try_from(pair.rng.u64() >> 32).unwrap();
        let scale = pair.rng.chance(0.9).then(|| u8::try_from(pair.rng.below(15)).unwrap());
        let (ours, theirs) = (options(Some(7)), options(scale));
        let quiet =
            Frame { outgoing: true, seq: first, ack: 0, flags: SYN, window: 64_000, options: &[], payload: 0, ecn: 0 };
        let mut window = 64_000;
        if pair.rng.chance(0.5) {
            pair.see(shape, Frame { options: &ours, ..quiet }, 0);
            let answer = Frame { outgoing: false, ack: first.wrapping_add(1), flags: SYN | ACK, ..quiet };
            window = pair.see(shape, Frame { options: &theirs, ..answer }, 0);
        } else {
            pair.see(shape, Frame { outgoing: false, options: &theirs, seq: 7, ..quiet }, 0);
            pair.see(shape, Frame { options: &ours, flags: SYN | ACK, ack: 8, ..quiet }, 0);
        }
        let next = first.wrapping_add(1);
        let edge = next.wrapping_add(window.into());
        Self { shape, scale: scale.unwrap_or(0), next, una: next, edge, received: next }
    }

    /// Sends what the window and an application's whim allow.
    fn send(&mut self, pair: &mut Pair) {
        let room = usize::try_from(self.edge.wrapping_sub(self.next)).unwrap();
        let payload = room.min(usize::try_from(pair.rng.below(2_900)).unwrap());
        if payload == 0 || room > 1 << 30 {
            return;
        }
        let gso_bytes = if payload > 588 { 588 } else { 0 };
        let again = pair.rng.chance(0.03) && self.una != self.next;
        let seq = if again { self.una } else { self.next };
        let payload = if again { payload.min(500) } else { payload };
        let data = Frame { outgoing: true, seq, ack: 1, flags: ACK, window: 500, options: &[], payload, ecn: 0 };
        pair.see(self.shape, data, if again { 0 } else { gso_bytes });
        if !again {
            self.next = self.next.wrapping_add(u32::try_from(payload).unwrap());
        }
        self.received = self.next;
    }

    /// Acknowledges all or a part of what was received, perhaps with a mark.
    fn acknowledge(&mut self, pair: &mut Pair) {
        let beyond = u64::from(self.received.wrapping_sub(self.una));
        let all = pair.rng.chance(0.7);
        let step = if all { beyond } else { pair.rng.below(beyond + 1) };
        let ack = self.una.wrapping_add(u32::try_from(step).unwrap());
        let old = pair.rng.chance(0.02);
        let window = if pair.rng.chance(0.05) { 3 } else { 60_000 };
        let frame = Frame {
            outgoing: false,
            seq: 1,
            ack: if old { self.una.wrapping_sub(100) } else { ack },
            flags: if pair.rng.chance(0.2) { ACK | ECE } else { ACK },
            window,
            options: &[],
            payload: if pair.rng.chance(0.1) { 64 } else { 0 },
            ecn: if pair.rng.chance(0.1) { CE } else { 0 },
        };
        let field = pair.see(self.shape, frame, 0);
        if !old {
            self.una = ack;
            self.edge = ack.wrapping_add(u32::from(field) << self.scale);
        }
    }

    /// Acknowledges what its peer said.
    fn say_nothing(&self, pair: &mut Pair) {
        let nothing =
            Frame { outgoing: true, seq: self.next, ack: 1, flags: ACK, window: 500, options: &[], payload: 0, ecn: 0 };
        pair.see(self.shape, nothing, 0);
    }

    fn close(&self, pair: &mut Pair) {
        let fin = Frame {
            outgoing: true,
            seq: self.next,
            ack: 1,
            flags: FIN | ACK,
            window: 500,
            options: &[],
            payload: 0,
            ecn: 0,
        };
        pair.see(self.shape, fin, 0);
    }
}

/// Both sides after it; `None` if it was not run.
fn play(what: Play, seed: u64) -> Option<Pair> {
    let mut pair = Pair::new(what, seed)?;
    let mut ends: Vec<Ends> = Vec::new();
    for number in 0..1_500 {
        if ends.len() < 3 || pair.rng.chance(0.01) && ends.len() < 40 {
            let opened = Ends::open(&mut pair, number);
            ends.push(opened);
        }
        let at = usize::try_from(pair.rng.below(ends.len() as u64)).unwrap();
        ends[at].send(&mut pair);
        if pair.rng.chance(0.8) {
            ends[at].acknowledge(&mut pair);
        }
        if pair.rng.chance(0.003) {
            ends.swap_remove(at).close(&mut pair);
        }
        if what.isolation {
            beside(&mut pair);
            if let Some(end) = ends.first() {
                end.say_nothing(&mut pair);
            }
        }
    }
    Some(pair)
}

/// What no window holds: datagrams, some of them of flows that send much, flows whose handshake nobody saw, and answers to stray
/// segments.
fn beside(pair: &mut Pair) {
    let few = pair.rng.chance(0.5);
    let port = u16::try_from(pair.rng.below(if few { 3 } else { 400 })).unwrap();
    let large = pair.rng.chance(0.5);
    let payload = usize::try_from(pair.rng.below(if large { 1_400 } else { 100 })).unwrap();
    if pair.rng.chance(0.5) {
        pair.see_datagram(port, payload);
    }
    let shape = Shape { ipv6: false, vlan: false, extension: false, port };
    let data = Frame { outgoing: true, seq: 5, ack: 1, flags: ACK, window: 9, options: &[], payload, ecn: 0 };
    if pair.rng.chance(0.3) {
        pair.see(shape, data, 0);
    }
    if pair.rng.chance(0.05) {
        pair.see(Shape { port: port + 1_000, ..shape }, Frame { flags: RST, payload: 0, ..data }, 0);
    }
}

#[test]
fn the_programs_do_as_the_machine_with_the_integral() {
    for pair in (1..=6).filter_map(|seed| play(PLAIN, seed)) {
        assert_eq!(pair.fastest, RATE);
    }
}

#[test]
fn the_programs_do_as_the_machine_with_dctcp() {
    (11..=16).for_each(|seed| drop(play(Play { control: Control::Dctcp, ..PLAIN }, seed)));
}

#[test]
fn the_programs_do_as_the_machine_when_the_class_borrows() {
    let borrows = Play { ceil: 4 * RATE, ..PLAIN };
    let integral = (31..=36).filter_map(|seed| play(borrows, seed));
    let dctcp = (41..=43).filter_map(|seed| play(Play { control: Control::Dctcp, ..borrows }, seed));
    for pair in integral.chain(dctcp) {
        assert!(pair.fastest > RATE);
    }
}

#[test]
fn the_programs_do_as_the_machine_with_isolation() {
    let fast = Play { isolation: true, ..PLAIN };
    for pair in (51..=53).filter_map(|seed| play(fast, seed)) {
        assert!(pair.leaves.contains(&Leaf::Sparse) && pair.leaves.contains(&Leaf::Bulk(0)), "{:?}", pair.leaves);
    }
    // More than may go ahead, and more than the share of one flow.
    let slow = Play { rate: RATE / 8, ceil: RATE / 8, gap_ns: 3_000, ..fast };
    let all: BTreeSet<Leaf> = (61..=64).filter_map(|seed| play(slow, seed)).flat_map(|pair| pair.leaves).collect();
    assert!(all.is_empty() || all.len() == 1 + 16 + 8, "{all:?}");
}

#[test]
fn the_programs_do_as_the_machine_with_marks_of_the_network() {
    (21..=26).for_each(|seed| drop(play(Play { ecn: true, ..PLAIN }, seed)));
}

/// Frames of flows with one byte changed: versions, lengths, options, flags, numbers, ports.
fn play_broken(control: Control, ecn: bool, seed: u64) {
    /// Where headers end, those of IPv6 with tags, extensions and options too.
    const HEADERS_END: u64 = 140;
    let Some(mut pair) = Pair::new(Play { control, ecn, ..PLAIN }, seed) else { return };
    let mut ends: Vec<Ends> = (0..4).map(|number| Ends::open(&mut pair, number)).collect();
    for _ in 0..3_000 {
        let at = usize::try_from(pair.rng.below(4)).unwrap();
        let end = &ends[at];
        let junk: Vec<u8> = (0..40).map(|_| u8::try_from(pair.rng.below(12)).unwrap()).collect();
        let options = 4 * usize::try_from(pair.rng.below(11)).unwrap();
        let frame = Frame {
            outgoing: pair.rng.chance(0.5),
            seq: end.next.wrapping_add(u32::try_from(pair.rng.below(4_000)).unwrap()),
            ack: end.una.wrapping_add(u32::try_from(pair.rng.below(4_000)).unwrap()),
            flags: [SYN, SYN | ACK, ACK, ACK | ECE, FIN, 4, 0xff, 0][usize::try_from(pair.rng.below(8)).unwrap()],
            window: [0, 1, 500, 0xffff][usize::try_from(pair.rng.below(4)).unwrap()],
            options: &junk[..options],
            payload: usize::try_from(pair.rng.below(300)).unwrap(),
            ecn: CE,
        };
        let mut bytes = build(end.shape, frame);
        // The machine's flows are those of one VLAN.
        let from = if end.shape.vlan { 18 } else { 12 };
        let place = from + usize::try_from(pair.rng.below(HEADERS_END)).unwrap() % (bytes.len() - from);
        if pair.rng.chance(0.7) {
            bytes[place] = u8::try_from(pair.rng.below(256)).unwrap();
        }
        pair.now += pair.rng.below(60_000);
        let queue_ns = i64::try_from(pair.rng.below(400_000)).unwrap() - 120_000;
        let told = pair.told(queue_ns, 7);
        pair.see_bytes(&bytes, frame.outgoing, 0, told);
        // What means no ill goes on between.
        ends[at].send(&mut pair);
        ends[at].acknowledge(&mut pair);
        if pair.rng.chance(0.05) {
            ends[at] = Ends::open(&mut pair, u16::try_from(at).unwrap());
        }
    }
}

#[test]
fn the_programs_do_as_the_machine_with_what_is_malformed_or_forged() {
    (31..=42).for_each(|seed| play_broken(Control::Integral, seed % 2 == 0, seed));
}

#[test]
fn an_hour_without_a_packet_changes_no_window() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    for control in [Control::Integral, Control::Dctcp] {
        let Some(mut pair) = Pair::new(Play { control, ..PLAIN }, 41) else { return };
        let mut ends: Vec<Ends> = (0..6).map(|number| Ends::open(&mut pair, number)).collect();
        for turn in 0..600 {
            let at = turn % ends.len();
            ends[at].send(&mut pair);
            ends[at].acknowledge(&mut pair);
        }
        let before = pair.object.class_state(0).unwrap();
        pair.now += HOUR_NS;
        // One of them has something to say again: what was under way before the hour is acknowledged first.
        ends[0].acknowledge(&mut pair);
        let after = pair.object.class_state(0).unwrap();
        let (window, limit) = (before.window_ns, u64::try_from(DELAY.as_nanos()).unwrap() / 4);
        assert!(after.window_ns.abs_diff(window) <= limit.max(window / 4), "one step: {window} to {}", after.window_ns);
        assert!(after.base_ns <= before.base_ns + before.base_ns / 32, "an hour is no round trip");
        let acknowledged = ends[0].una;
        for _ in 0..600 {
            ends[0].send(&mut pair);
            ends[0].acknowledge(&mut pair);
        }
        assert!(ends[0].una.wrapping_sub(acknowledged) > 20 * 1_448, "the flow goes on");
        let state = pair.object.class_state(0).unwrap();
        assert!(state.limited_now.max(state.limited_last) <= 1, "flows of an hour ago do not count");
    }
}
