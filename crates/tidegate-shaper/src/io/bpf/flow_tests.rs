//! Whose flows the programs hold when there are more than the table has room for.

use libbpf_rs::ProgramInput;
use tidegate_core::Instant;

use super::object::Object;
use super::rule_tests::device;
use super::under_test::load;
use crate::machine::device::Match;
use crate::machine::flow::{FLOWS_MAX, Seen};
use crate::machine::program::{DeviceProgram, Rule};

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const SECOND_NS: u64 = 1 << 30;

fn at(ns: u64) -> Seen {
    Seen { queue_ns: 0, drained: 0, now: Instant::from_nanos(ns) }
}

/// Two classes, by VLAN.
fn two_classes() -> DeviceProgram {
    let rule = |slot: usize| {
        let vlan = Some(u16::try_from(slot + 1).unwrap());
        Rule { slot, when: Match { vlan, ..Match::default() } }
    };
    device(vec![rule(0), rule(1)], None)
}

struct Flow {
    class: u8,
    number: u32,
}

impl Flow {
    /// A segment of the flow, with the option of a window scale if it has SYN.
    fn frame(&self, is_out: bool, flags: u8, seq: u32, ack: u32) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([0x81, 0x00, 0, self.class + 1]);
        let options: &[u8] = if flags & SYN == 0 { &[] } else { &[1, 3, 3, 7] };
        let length = u8::try_from(40 + options.len()).unwrap();
        bytes.extend([0x08, 0x00, 0x45, 0, 0, length, 0, 0, 0, 0, 64, 6, 0, 0]);
        let (local, remote) = ([10, 0, 0, self.class], (0x0b00_0000 + self.number).to_be_bytes());
        let ends = [(local, 80_u16), (remote, 5_000)];
        let (from, to) = if is_out { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        bytes.extend(from.0);
        bytes.extend(to.0);
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend(seq.to_be_bytes());
        bytes.extend(ack.to_be_bytes());
        bytes.extend([length / 4 * 16 - 0x50, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes
    }

    fn out(&self, object: &Object, flags: u8, seq: u32) {
        run(object, true, &self.frame(true, flags, seq, 1));
    }

    /// The peer's SYN, our answer, and our first segment after the handshake.
    fn open(&self, object: &Object) {
        run(object, false, &self.frame(false, SYN, 0, 0));
        self.out(object, SYN | ACK, 0);
        self.out(object, ACK, 1);
    }
}

fn run(object: &Object, is_out: bool, frame: &[u8]) {
    let program = if is_out { object.egress() } else { object.ingress() };
    program.test_run(ProgramInput { data_in: Some(frame), ..ProgramInput::default() }).expect("the kernel runs it");
}

fn flows_of(class: u8, count: u32) -> impl Iterator<Item = Flow> {
    (0..count).map(move |number| Flow { class, number })
}

/// As of a class: held, and without room.
fn of_class(object: &mut Object, class: usize) -> (u64, u64) {
    object.flows().of_class(class).unwrap()
}

#[test]
fn a_flood_of_one_class_takes_no_flow_of_another() {
    let Some(mut object) = load(&two_classes()) else { return };
    object.tell(at(SECOND_NS), 0);
    flows_of(1, 1_000).for_each(|flow| flow.open(&object));
    assert_eq!(of_class(&mut object, 1), (1_000, 0));
    // SYNs that come in, and that go out.
    for flow in (0..70_000).map(|number| Flow { class: 0, number }) {
        run(&object, false, &flow.frame(false, SYN, 0, 0));
        flow.out(&object, SYN, 0);
    }
    assert_eq!((of_class(&mut object, 0), of_class(&mut object, 1)), ((0, 0), (1_000, 0)));
    // Flows that open as they should.
    flows_of(0, 70_000).for_each(|flow| flow.open(&object));
    let most = u64::try_from(FLOWS_MAX - 1_000).unwrap() * 2 / 3;
    let (held, unheld) = of_class(&mut object, 0);
    assert!(held.abs_diff(most) <= 1, "{held}, two thirds of what the other leaves are {most}");
    assert_eq!((held + unheld, of_class(&mut object, 1)), (70_000, (1_000, 0)));
    // The other class has room still.
    (1_000..5_000).map(|number| Flow { class: 1, number }).for_each(|flow| flow.open(&object));
    assert_eq!(of_class(&mut object, 1), (5_000, 0));
    let table = object.flows().of_all().unwrap();
    assert_eq!((table.known, table.unheld_total, table.evicted_total), (held + 5_000, unheld, 0));
}

#[test]
fn a_crowded_class_forgets_idle_flows_of_its_own_and_they_are_counted() {
    let Some(mut object) = load(&two_classes()) else { return };
    object.tell(at(SECOND_NS), 0);
    flows_of(0, 50_000).for_each(|flow| flow.open(&object));
    flows_of(1, 1_000).for_each(|flow| flow.open(&object));
    let (held, _) = of_class(&mut object, 0);
    let sweep = |object: &mut Object| (0..10).map(|_| object.flows().of_all().unwrap()).last().unwrap();
    assert_eq!(sweep(&mut object).evicted_total, 0, "none of them was idle");
    // Two minutes later a hundred of them are used, and another one opens.
    object.tell(at(120 * SECOND_NS), 0);
    flows_of(0, 100).for_each(|flow| flow.out(&object, ACK, 1));
    Flow { class: 0, number: 60_000 }.open(&object);
    let table = sweep(&mut object);
    assert_eq!(table.evicted_total, 8_192);
    assert_eq!((of_class(&mut object, 0).0, of_class(&mut object, 1)), (held - 8_192, (1_000, 0)));
    assert_eq!(table.known, held - 8_192 + 1_000);
    // Now there is room; those that were used are held still, and end as others do.
    Flow { class: 0, number: 60_001 }.open(&object);
    assert_eq!(of_class(&mut object, 0).0, held - 8_192 + 1);
    flows_of(0, 100).for_each(|flow| flow.out(&object, ACK | RST, 1));
    assert_eq!(of_class(&mut object, 0).0, held - 8_192 + 1 - 100);
}

#[test]
fn what_anybody_can_forge_ends_no_control() {
    let Some(mut object) = load(&two_classes()) else { return };
    object.tell(at(SECOND_NS), 0);
    let flow = Flow { class: 0, number: 1 };
    flow.open(&object);
    for flags in [SYN, SYN | ACK, RST, RST | ACK] {
        run(&object, false, &flow.frame(false, flags, 77, 88));
        flow.out(&object, ACK, 1);
        assert_eq!(of_class(&mut object, 0), (1, 0), "flags {flags}");
    }
    // It is over, and says no more.
    flow.out(&object, RST, 1);
    assert_eq!(of_class(&mut object, 0), (0, 0));
}

#[test]
fn other_rules_put_flows_into_other_classes_and_hold_them_still() {
    let Some(mut object) = load(&two_classes()) else { return };
    object.tell(at(SECOND_NS), 0);
    flows_of(0, 100).for_each(|flow| flow.open(&object));
    let mut swapped = two_classes();
    swapped.rules[0].slot = 1;
    object.set_rules(&swapped).unwrap();
    flows_of(0, 40).for_each(|flow| flow.out(&object, ACK, 1));
    assert_eq!((of_class(&mut object, 0), of_class(&mut object, 1)), ((60, 0), (40, 0)));
    // Nothing is of their class any more.
    swapped.rules.remove(0);
    object.set_rules(&swapped).unwrap();
    flows_of(0, 100).for_each(|flow| flow.out(&object, ACK, 1));
    assert_eq!((of_class(&mut object, 0), of_class(&mut object, 1)), ((0, 0), (0, 0)));
    assert_eq!(object.flows().of_all().unwrap().known, 0);
}
