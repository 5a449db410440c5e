//! Holds the programs to the machine that the simulator runs: both see the same frames at the same times with the same queue,
//! and must write the same windows and reach the same state. It needs the right to load programs; without it, it says so.

use std::time::Duration;

use libbpf_rs::{ProgramInput, ProgramMut};
use tidegate_core::control::window::{ClassConfig, Mode};
use tidegate_core::{Instant, Rng};

use super::object::Object;
use super::under_test;
use crate::machine::class::Class;
use crate::machine::class_id::ClassId;
use crate::machine::device::{Control, Hook, Occupancy};
use crate::machine::flow::{Flows, Seen};
use crate::machine::packet::{parse, set_ecn, set_flags, set_window};
use crate::machine::program::{ClassProgram, DeviceProgram};

const RATE: u64 = 125_000_000;
const DELAY: Duration = Duration::from_micros(100);
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;
const ECE: u8 = 64;
const CE: u8 = 3;
/// Size of the context of a program at tc, and offsets of its fields that count here.
const CONTEXT_BYTES: usize = 192;
const GSO_SEGS_AT: usize = 164;
const GSO_SIZE_AT: usize = 176;

/// How a flow's frames look.
#[derive(Clone, Copy)]
struct Shape {
    ipv6: bool,
    vlan: bool,
    extension: bool,
    port: u16,
}

/// A segment to be built.
#[derive(Clone, Copy)]
struct Frame<'a> {
    outgoing: bool,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: &'a [u8],
    payload: usize,
    /// ECN bits of the IP header.
    ecn: u8,
}

fn build(shape: Shape, frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    if shape.vlan {
        bytes.extend([0x81, 0x00, 0x00, 0x07]);
    }
    let (local, remote) = ((1_u8, shape.port), (2_u8, 5_201_u16));
    let (from, to) = if frame.outgoing { (local, remote) } else { (remote, local) };
    let tcp_bytes = 20 + frame.options.len() + frame.payload;
    if shape.ipv6 {
        let extension = if shape.extension { 16 } else { 0 };
        let length = u16::try_from(tcp_bytes + extension).unwrap();
        bytes.extend([0x86, 0xdd, 0x60, frame.ecn << 4, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([if shape.extension { 60 } else { 6 }, 64]);
        for end in [from.0, to.0] {
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        }
        if shape.extension {
            bytes.extend([6, 1]);
            bytes.extend([0; 14]);
        }
    } else {
        bytes.extend([0x08, 0x00, 0x45, frame.ecn]);
        bytes.extend(u16::try_from(20 + tcp_bytes).unwrap().to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, from.0, 10, 0, 0, to.0]);
    }
    bytes.extend(from.1.to_be_bytes());
    bytes.extend(to.1.to_be_bytes());
    bytes.extend(frame.seq.to_be_bytes());
    bytes.extend(frame.ack.to_be_bytes());
    bytes.push(u8::try_from((20 + frame.options.len()) / 4).unwrap() << 4);
    bytes.push(frame.flags);
    bytes.extend(frame.window.to_be_bytes());
    bytes.extend([0x12, 0x34, 0, 0]);
    bytes.extend(frame.options);
    bytes.extend(std::iter::repeat_n(0x61, frame.payload));
    bytes
}

/// Runs a program on a frame and returns what it made of it.
fn run(program: &ProgramMut<'_>, frame: &[u8], gso_bytes: u32) -> Vec<u8> {
    let mut context = [0; CONTEXT_BYTES];
    let segments = u32::from(gso_bytes > 0) * 2;
    context[GSO_SEGS_AT..GSO_SEGS_AT + 4].copy_from_slice(&segments.to_ne_bytes());
    context[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&gso_bytes.to_ne_bytes());
    let mut out = vec![0; frame.len()];
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let output = program.test_run(input).expect("the kernel runs it");
    assert_eq!(output.return_value.cast_signed(), -1, "other programs go on with the packet");
    out
}

/// Both sides, told the same.
struct Pair {
    object: Object,
    class: Class,
    flows: Flows,
    now: u64,
    drained: u64,
    /// The fastest drain that was measured.
    fastest: u64,
    rng: Rng,
}

impl Pair {
    fn new(control: Control, ecn: bool, ceil: u64, seed: u64) -> Option<Self> {
        let (burst, debt) = (Duration::from_micros(500), Duration::ZERO);
        let classid = ClassId::new(0x71de, 0x20);
        let program = ClassProgram { classid, rate: RATE, ceil, isolation: false, control, delay: DELAY, burst, debt };
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
        let mut class = Class::new(ClassConfig { rate: RATE, ceil, setpoint_ns, mode }, 1_448, Instant::ZERO);
        if ecn {
            class.use_marks();
        }
        Some(Self { object, class, flows: Flows::default(), now: 1_000, drained: 0, fastest: 0, rng: Rng::new(seed) })
    }

    /// The window that both say, of a frame that comes in; of one that goes out, the window in it.
    fn see(&mut self, shape: Shape, frame: Frame<'_>, gso_bytes: u32) -> u16 {
        self.now += self.rng.below(60_000);
        let queue_ns = i64::try_from(self.rng.below(400_000)).unwrap() - 120_000;
        let coin = u16::try_from(self.rng.below(65_536)).unwrap();
        let bytes = build(shape, frame);
        let at = parse(&bytes, u32::try_from(bytes.len()).unwrap()).unwrap().header_at + 14;
        let out = self.see_bytes(&bytes, frame.outgoing, gso_bytes, (queue_ns, coin));
        u16::from_be_bytes([out[at], out[at + 1]])
    }

    /// What both make of any bytes; `queue_ns` and `coin` are what they are told beside.
    fn see_bytes(&mut self, bytes: &[u8], outgoing: bool, gso_bytes: u32, (queue_ns, coin): (i64, u16)) -> Vec<u8> {
        // At times the class is let pass less, and at times more than its ceiling.
        self.drained += self.rng.below(15_000 << (self.now >> 23 & 1));
        let seen = Seen { queue_ns, drained: self.drained, now: Instant::from_nanos(self.now) };
        self.object.tell(seen, coin.into());
        let program = if outgoing { self.object.egress() } else { self.object.ingress() };
        let out = run(&program, bytes, gso_bytes);
        let Ok(parsed) = parse(bytes, u32::try_from(bytes.len()).unwrap()) else {
            assert_eq!(out, bytes, "what is no segment of TCP passes as it is");
            return out;
        };
        let rewrite = if outgoing {
            self.class.on_egress(&mut self.flows, &parsed.segment, gso_bytes, seen).1
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
            (state.window_ns, state.drain.clamp(RATE, window.config().ceil), state.base_ns, flows),
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

/// Offers of a SYN: a largest segment, no timestamps, perhaps a scale.
fn options(scale: Option<u8>) -> Vec<u8> {
    let mut options = vec![2, 4, 2, 88];
    if let Some(scale) = scale {
        options.extend([1, 3, 3, scale]);
    }
    options
}

impl Ends {
    fn open(pair: &mut Pair, number: u16) -> Self {
        let ipv6 = pair.rng.chance(0.3);
        let shape =
            Shape { ipv6, vlan: pair.rng.chance(0.2), extension: ipv6 && pair.rng.chance(0.5), port: 40_000 + number };
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

/// The fastest drain that was measured; `None` if it was not run.
fn play(control: Control, ecn: bool, ceil: u64, seed: u64) -> Option<u64> {
    let mut pair = Pair::new(control, ecn, ceil, seed)?;
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
    }
    Some(pair.fastest)
}

#[test]
fn the_programs_do_as_the_machine_with_the_integral() {
    assert!((1..=6).all(|seed| play(Control::Integral, false, RATE, seed).is_none_or(|fastest| fastest == RATE)));
}

#[test]
fn the_programs_do_as_the_machine_with_dctcp() {
    assert!((11..=16).all(|seed| play(Control::Dctcp, false, RATE, seed).is_none_or(|fastest| fastest == RATE)));
}

#[test]
fn the_programs_do_as_the_machine_when_the_class_borrows() {
    let borrows = |control, seed| play(control, false, 4 * RATE, seed).is_none_or(|fastest| fastest > RATE);
    assert!((31..=36).all(|seed| borrows(Control::Integral, seed)));
    assert!((41..=43).all(|seed| borrows(Control::Dctcp, seed)));
}

#[test]
fn the_programs_do_as_the_machine_with_marks_of_the_network() {
    assert!((21..=26).all(|seed| play(Control::Integral, true, RATE, seed).is_none_or(|fastest| fastest == RATE)));
}

/// Frames of flows with one byte changed: versions, lengths, options, flags, numbers, ports.
fn play_broken(control: Control, ecn: bool, seed: u64) {
    /// Where headers end, those of IPv6 with tags, extensions and options too.
    const HEADERS_END: u64 = 140;
    let Some(mut pair) = Pair::new(control, ecn, RATE, seed) else { return };
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
        let queue = i64::try_from(pair.rng.below(400_000)).unwrap() - 120_000;
        pair.see_bytes(&bytes, frame.outgoing, 0, (queue, 7));
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
    (31..=36).for_each(|seed| play_broken(Control::Integral, seed % 2 == 0, seed));
}

#[test]
fn an_hour_without_a_packet_changes_no_window() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    for control in [Control::Integral, Control::Dctcp] {
        let Some(mut pair) = Pair::new(control, false, RATE, 41) else { return };
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
