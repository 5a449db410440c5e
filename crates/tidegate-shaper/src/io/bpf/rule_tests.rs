//! The class of a packet, as the programs find it and by looking at one rule after another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use libbpf_rs::ProgramInput;
use tidegate_core::Rng;

use super::object::Object;
use super::under_test::load;
use crate::machine::class_id::ClassId;
use crate::machine::device::{Control, Hook, Mark, Match, Occupancy, Prefix, Protocol};
use crate::machine::kinds::KINDS_MAX;
use crate::machine::program::{ClassProgram, DeviceProgram, RULES_MAX, Rule};
use crate::machine::tree::class_of_slot;

const MARK_AT: usize = 8;
const PRIORITY_AT: usize = 32;
const CONTEXT_BYTES: usize = 192;
/// Slots of classes.
const CLASSES: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Packet {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    is_tcp: bool,
    ports: (u16, u16),
    vlan: Option<u16>,
    mark: u32,
}

impl Packet {
    fn any(rng: &mut Rng) -> Self {
        let mut address = || Ipv4Addr::from_bits(0x0a00_0000 | small(rng, 4) << 8 | small(rng, 6));
        let (source, destination) = (address(), address());
        let ports = (port(rng), port(rng));
        let vlan = rng.chance(0.3).then(|| u16::try_from(1 + rng.below(3)).unwrap());
        Self { source, destination, is_tcp: rng.chance(0.3), ports, vlan, mark: small(rng, 8) }
    }

    fn frame(self) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        if let Some(vlan) = self.vlan {
            bytes.extend([0x81, 0x00]);
            bytes.extend(vlan.to_be_bytes());
        }
        bytes.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, if self.is_tcp { 6 } else { 17 }, 0, 0]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        // Of TCP: an acknowledgement.
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 16, 1, 0, 0, 0, 0, 0]);
        bytes
    }

    fn meets(self, when: &Match) -> bool {
        let within = |prefix: Option<Prefix>, address: Ipv4Addr| {
            let Some(Prefix { address: IpAddr::V4(first), length }) = prefix else { return prefix.is_none() };
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            address.to_bits() & mask == first.to_bits()
        };
        let has_port =
            |ports: &core::ops::RangeInclusive<u16>| ports.contains(&self.ports.0) || ports.contains(&self.ports.1);
        when.mark.is_none_or(|mark| self.mark & mark.mask == mark.value)
            && within(when.source, self.source)
            && within(when.destination, self.destination)
            && when.protocol.is_none_or(|protocol| (protocol == Protocol::Tcp) == self.is_tcp)
            && when.ports.as_ref().is_none_or(has_port)
            && when.vlan.is_none_or(|vlan| self.vlan == Some(vlan))
    }
}

fn small(rng: &mut Rng, below: u64) -> u32 {
    u32::try_from(rng.below(below)).unwrap()
}

fn port(rng: &mut Rng) -> u16 {
    u16::try_from(1 + rng.below(12)).unwrap()
}

fn any_rule(rng: &mut Rng) -> Match {
    let prefix = |rng: &mut Rng| {
        let length = [8, 24, 32][usize::try_from(rng.below(3)).unwrap()];
        let bits = 0x0a00_0000 | small(rng, 4) << 8 | small(rng, 6);
        let mask = u32::MAX << (32 - length);
        let address = IpAddr::V4(Ipv4Addr::from_bits(bits & mask));
        Prefix { address, length: u8::try_from(length).unwrap() }
    };
    let mark = |rng: &mut Rng| {
        let mask = [7, u32::MAX][usize::try_from(rng.below(2)).unwrap()];
        Mark { value: small(rng, 8) & mask, mask }
    };
    Match {
        cgroup: None,
        mark: rng.chance(0.2).then(|| mark(rng)),
        source: rng.chance(0.4).then(|| prefix(rng)),
        destination: rng.chance(0.4).then(|| prefix(rng)),
        protocol: rng.chance(0.1).then(|| if rng.chance(0.5) { Protocol::Tcp } else { Protocol::Udp }),
        ports: rng.chance(0.2).then(|| {
            let first = port(rng);
            first..=first + u16::try_from(rng.below(3)).unwrap()
        }),
        vlan: rng.chance(0.2).then(|| u16::try_from(1 + rng.below(3)).unwrap()),
    }
}

/// A device with `CLASSES` classes and these rules.
pub(super) fn device(rules: Vec<Rule>, default: Option<usize>) -> DeviceProgram {
    let class = |slot| ClassProgram {
        classid: class_of_slot(slot),
        rate: 125_000_000,
        ceil: 125_000_000,
        isolation: false,
        control: Control::Integral,
        delay: Duration::from_micros(100),
        burst: Duration::from_micros(500),
        debt: Duration::ZERO,
    };
    let classes: BTreeMap<_, _> = (0..CLASSES).map(|slot| (slot, class(slot))).collect();
    let (hook, occupancy) = (Hook::Auto, Occupancy::Auto);
    DeviceProgram { classes, rules, default, classifies: true, ecn: false, hook, occupancy }
}

/// The class that a packet is put into, and how long that took on the average over `times`, in nanoseconds.
fn class_of(object: &Object, packet: Packet, times: u32) -> (Option<ClassId>, u64) {
    let (mut context, mut context_out) = ([0; CONTEXT_BYTES], [0; CONTEXT_BYTES]);
    context[MARK_AT..MARK_AT + 4].copy_from_slice(&packet.mark.to_ne_bytes());
    let frame = packet.frame();
    let input = ProgramInput {
        context_in: Some(&mut context),
        context_out: Some(&mut context_out),
        data_in: Some(&frame),
        repeat: times,
        ..ProgramInput::default()
    };
    let took = object.egress().test_run(input).expect("the kernel runs it").duration;
    let priority = u32::from_ne_bytes(context_out[PRIORITY_AT..PRIORITY_AT + 4].try_into().unwrap());
    ((priority != 0).then_some(ClassId(priority)), u64::try_from(took.as_nanos()).unwrap())
}

#[test]
fn the_first_rule_that_fits_decides() {
    for seed in 1..=8 {
        let mut rng = Rng::new(seed);
        let mut put: Option<Object> = None;
        // The same programs are told one set after another.
        for _ in 0..6 {
            let count = 1 + rng.below(60);
            let rule = |rng: &mut Rng| Rule { slot: usize::try_from(rng.below(16)).unwrap(), when: any_rule(rng) };
            let rules: Vec<_> = (0..count).map(|_| rule(&mut rng)).collect();
            let default = rng.chance(0.5).then(|| usize::try_from(rng.below(16)).unwrap());
            let program = device(rules.clone(), default);
            let object = match put.take() {
                Some(mut object) => {
                    object.set_rules(&program).unwrap();
                    object
                }
                None => match load(&program) {
                    Some(object) => object,
                    None => return,
                },
            };
            for _ in 0..200 {
                let packet = Packet::any(&mut rng);
                let first = rules.iter().find(|rule| packet.meets(&rule.when)).map(|rule| rule.slot);
                let expected = first.or(default).map(class_of_slot);
                assert_eq!(class_of(&object, packet, 1).0, expected, "seed {seed}: {packet:?} of {rules:?}");
            }
            put = Some(object);
        }
    }
}

/// As many pods as a host may have: each with an address of its own.
fn pods(count: usize) -> Vec<Rule> {
    let rule = |pod: usize| {
        let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0000 + u32::try_from(pod).unwrap()));
        Rule { slot: pod % CLASSES, when: Match { source: Some(Prefix { address, length: 32 }), ..Match::default() } }
    };
    (0..count).map(rule).collect()
}

#[test]
fn a_host_has_thousands_of_rules() {
    let Some(mut object) = load(&device(pods(RULES_MAX), None)) else { return };
    let of_pod = |pod: u32| {
        let source = Ipv4Addr::from_bits(0x0a01_0000 + pod);
        let destination = Ipv4Addr::new(10, 0, 0, 1);
        Packet { source, destination, is_tcp: false, ports: (1, 2), vlan: None, mark: 0 }
    };
    for pod in [0, 1, 63, 64, 1_023, 4_095] {
        let expected = class_of_slot(usize::try_from(pod).unwrap() % CLASSES);
        assert_eq!(class_of(&object, of_pod(pod), 1).0, Some(expected), "pod {pod}");
    }
    assert_eq!(class_of(&object, of_pod(4_096), 1).0, None);
    let all = class_of(&object, of_pod(4_095), 100_000).1;
    object.set_rules(&device(pods(1), None)).unwrap();
    let one = class_of(&object, of_pod(0), 100_000).1;
    assert_eq!(class_of(&object, of_pod(1), 1).0, None, "rules that were in force before are not any more");
    let of_kind = |number: u32| Match { mark: Some(Mark { value: 1, mask: 2 * number + 1 }), ..Match::default() };
    let kinds = (0..u32::try_from(KINDS_MAX).unwrap()).map(|number| Rule { slot: 0, when: of_kind(number) });
    object.set_rules(&device(kinds.collect(), None)).unwrap();
    let (class, kinds) = class_of(&object, of_pod(0), 100_000);
    assert_eq!(class, None);
    // Figures, not bars. A loop over rules took 60 ns with one and 250 ns with 64.
    println!("{one} ns a packet with a rule, {all} ns with {RULES_MAX} of a kind, {kinds} ns with {KINDS_MAX} kinds");
}
