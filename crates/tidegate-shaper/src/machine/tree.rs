//! The HTB tree of a device: which classes there are, and what each may send.
//!
//! Class k of a device, counted from 0, has the number `(k + 1) * 0x20` below our handle. With isolation it is an inner
//! class with a leaf for sparse flows and sixteen for the others, between which HTB takes turns by bytes:
//!
//! ```text
//! 71de:                 our qdisc
//! └── 71de:1            the device's total rate, if one is given
//!     ├── 71de:20       class 0: rate, ceil
//!     │   ├── 71de:21   sparse flows, priority 0
//!     │   └── 71de:22 .. 71de:31   the others, priority 1
//!     └── 71de:40       class 1
//! ```
//!
//! A packet goes to the leaf that `skb->priority` names; without one it goes to the default class.

use core::time::Duration;
use std::collections::BTreeMap;

use super::class_id::ClassId;
use super::device::{CLASSES_MAX, Class, Device};

/// Major number of our qdiscs: how a tree is known as our own.
pub const HANDLE: u16 = 0x71de;
/// Our qdisc itself.
pub const QDISC: ClassId = ClassId::new(HANDLE, 0);
/// The class with the device's total rate.
pub const TOTAL: ClassId = ClassId::new(HANDLE, 1);
/// Leaves for flows that are not sparse.
pub const BULK_LEAVES: u16 = 16;
/// Levels of classes that the kernel takes (`TC_HTB_MAXDEPTH`).
pub const DEPTH_MAX: usize = 8;

/// Numbers from a class to the next.
const STEP: u16 = 0x20;
/// A burst is what passes in this span: tc's default of one packet loses tokens whenever a timer is late by more.
const BURST: Duration = Duration::from_micros(500);
/// Smallest burst in bytes: a frame of 1,514 bytes and its headers.
const BURST_MIN: u64 = 1_600;
/// What siblings send in turn when they share the rest of their parent: bytes that pass in this span, so that shares follow
/// the rates from 120 Mbit/s to 4.8 Gbit/s.
const QUANTUM: Duration = Duration::from_micros(100);
/// Largest quantum: more would let a class hold the others up for long.
const QUANTUM_MAX: u64 = 60_000;
/// Quantum between flows of a class: two full packets.
const BULK_QUANTUM: u32 = 3_028;
/// A leaf for flows that are not sparse is guaranteed this part of its class's rate. The rest it borrows, at its class's
/// level, where all sparse flows have been served.
const BULK_PART: u64 = 4_096;
/// Nanoseconds of a tick in which the kernel counts buffers (`PSCHED_SHIFT`).
const TICK_NS: u128 = 64;
/// A device whose queue is shorter gets queues of this many packets. Docker makes devices with none at all, and HTB would
/// give their classes room for one packet.
const QUEUE_PACKETS: u32 = 1_000;
/// Bytes of Ethernet's header.
const HEADER: u32 = 14;

/// What of the device itself counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Largest packet in bytes, without Ethernet's header.
    pub mtu: u32,
    /// Packets that a queue of it holds.
    pub queue_packets: u32,
}

/// The tree of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Where packets go that name no leaf: a minor number. 0: past the tree, unshaped.
    pub default: u16,
    /// All classes.
    pub nodes: BTreeMap<ClassId, Node>,
}

/// A class of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// [`ClassId::ROOT`] below the qdisc.
    pub parent: ClassId,
    /// Whether packets wait here.
    pub is_leaf: bool,
    /// What it may send.
    pub htb: Htb,
    /// Packets of a queue of its own. `None`: as the device says.
    pub queue_packets: Option<u32>,
}

/// What a class may send, as the kernel keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Htb {
    /// Bytes a second, guaranteed.
    pub rate: u64,
    /// Bytes a second at most.
    pub ceil: u64,
    /// Time that the burst at `rate` takes, in ticks.
    pub buffer: u32,
    /// Time that the burst at `ceil` takes, in ticks.
    pub cbuffer: u32,
    /// Bytes sent in turn with siblings. Of leaves.
    pub quantum: u32,
    /// Smaller ones borrow first. Of leaves.
    pub priority: u32,
}

/// The leaves of a class with isolation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaves {
    /// For sparse flows.
    pub sparse: ClassId,
    /// The first of [`BULK_LEAVES`] for the others.
    pub bulk: ClassId,
}

/// The class of slot `slot`.
///
/// # Panics
/// From slot [`CLASSES_MAX`] on.
#[must_use]
pub fn class_of_slot(slot: usize) -> ClassId {
    assert!(slot < CLASSES_MAX, "slots are assigned below the most classes of a device");
    let minor = (slot + 1) * usize::from(STEP);
    ClassId::new(HANDLE, u16::try_from(minor).expect("256 classes take 8,224 numbers"))
}

/// The leaves of `class` with isolation.
#[must_use]
pub const fn leaves_of(class: ClassId) -> Leaves {
    Leaves { sparse: ClassId(class.0 + 1), bulk: ClassId(class.0 + 2) }
}

/// Gives each class a slot: that of `before` to classes of the same name, so that a class that stays keeps its queue;
/// to the others the lowest that are free.
#[must_use]
pub fn assign_slots(before: &[(String, usize)], classes: &[Class]) -> Vec<usize> {
    let kept = |class: &Class| before.iter().find(|(name, _)| *name == class.name).map(|(_, slot)| *slot);
    let mut slots: Vec<Option<usize>> = classes.iter().map(kept).collect();
    let mut taken = [false; CLASSES_MAX];
    for slot in slots.iter().flatten() {
        taken[*slot] = true;
    }
    let mut free = (0..CLASSES_MAX).filter(|slot| !taken[*slot]);
    for slot in &mut slots {
        *slot = slot.or_else(|| free.next());
    }
    slots.into_iter().map(|slot| slot.expect("a device has at most as many classes as slots")).collect()
}

/// Levels of classes in the tree of `device`.
#[must_use]
pub fn depth(device: &Device) -> usize {
    let of = |index: usize| {
        // A chain is no longer than there are classes; in a circle it would be.
        let chain = core::iter::successors(Some(index), |&index| device.classes[index].parent);
        let leaves = usize::from(device.isolation && !device.has_children(index));
        chain.take(device.classes.len() + 1).count() + leaves
    };
    usize::from(device.rate.is_some()) + (0..device.classes.len()).map(of).max().unwrap_or(0)
}

impl Tree {
    /// The tree of `device`, whose class `i` has slot `slots[i]`.
    #[must_use]
    pub fn new(device: &Device, slots: &[usize], link: Link) -> Self {
        let mut nodes = BTreeMap::new();
        let top = match device.rate {
            Some(rate) => {
                let htb = Htb::new(rate.bytes_per_s(), rate.bytes_per_s(), link);
                nodes.insert(TOTAL, Node::inner(ClassId::ROOT, htb));
                TOTAL
            }
            None => ClassId::ROOT,
        };
        let queue_packets = (link.queue_packets < QUEUE_PACKETS).then_some(QUEUE_PACKETS);
        for (index, class) in device.classes.iter().enumerate() {
            let Some(rate) = class.rate else { continue };
            let ceil = class.ceil.unwrap_or(rate).max(rate);
            let id = class_of_slot(slots[index]);
            let parent = class.parent.map_or(top, |parent| class_of_slot(slots[parent]));
            let htb = Htb::new(rate.bytes_per_s(), ceil.bytes_per_s(), link);
            let node = Node { parent, is_leaf: true, htb, queue_packets };
            if device.has_children(index) {
                nodes.insert(id, Node::inner(parent, htb));
            } else if device.isolation {
                nodes.insert(id, Node::inner(parent, htb));
                insert_leaves(&mut nodes, id, node, link);
            } else {
                nodes.insert(id, node);
            }
        }
        let default = device.default_class.map_or(0, |index| {
            let class = class_of_slot(slots[index]);
            if device.isolation { leaves_of(class).bulk.minor() } else { class.minor() }
        });
        Self { default, nodes }
    }
}

fn insert_leaves(nodes: &mut BTreeMap<ClassId, Node>, class: ClassId, node: Node, link: Link) {
    let Leaves { sparse, bulk } = leaves_of(class);
    // With the class's own rate a sparse flow is served at the lowest level, before any other that has to borrow.
    nodes.insert(sparse, Node { parent: class, ..node });
    let bulk_htb = Htb::new((node.htb.rate / BULK_PART).max(1), node.htb.ceil, link);
    let htb = Htb { quantum: BULK_QUANTUM.max(link.mtu + HEADER), priority: 1, ..bulk_htb };
    for at in 0..BULK_LEAVES {
        nodes.insert(ClassId(bulk.0 + u32::from(at)), Node { parent: class, htb, ..node });
    }
}

impl Node {
    fn inner(parent: ClassId, htb: Htb) -> Self {
        Self { parent, is_leaf: false, htb, queue_packets: None }
    }
}

impl Htb {
    /// With safe bursts and quantum.
    fn new(rate: u64, ceil: u64, link: Link) -> Self {
        let packet = u64::from(link.mtu + HEADER);
        let quantum = bytes_in(QUANTUM, rate).clamp(packet.min(QUANTUM_MAX), QUANTUM_MAX);
        Self {
            rate,
            ceil,
            buffer: burst_ticks(rate, packet),
            cbuffer: burst_ticks(ceil, packet),
            quantum: u32::try_from(quantum).expect("it is at most QUANTUM_MAX"),
            priority: 0,
        }
    }

    /// Whether the kernel, which has `self`, needs no change to have `wanted`. It keeps quantum and priority of leaves only.
    #[must_use]
    pub(crate) fn is_as(&self, wanted: &Node) -> bool {
        let of_leaf = |htb: &Self| if wanted.is_leaf { (htb.quantum, htb.priority) } else { (0, 0) };
        let of_any = |htb: &Self| (htb.rate, htb.ceil, htb.buffer, htb.cbuffer);
        of_any(self) == of_any(&wanted.htb) && of_leaf(self) == of_leaf(&wanted.htb)
    }
}

fn bytes_in(span: Duration, rate: u64) -> u64 {
    u64::try_from(u128::from(rate) * span.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long the burst of a class takes at `rate`, in ticks.
fn burst_ticks(rate: u64, packet: u64) -> u32 {
    let burst = bytes_in(BURST, rate).max(BURST_MIN).max(packet);
    let ns = (u128::from(burst) * 1_000_000_000).div_ceil(u128::from(rate));
    u32::try_from(ns.div_ceil(TICK_NS)).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::device::{Control, Hook, Mode, Occupancy};
    use crate::machine::line_rate::LineRate;

    pub(crate) const LINK: Link = Link { mtu: 1_500, queue_packets: 1_000 };

    pub(crate) fn class(name: &str, rate: &str) -> Class {
        let rate: LineRate = rate.parse().unwrap();
        let name = name.to_owned();
        Class { name, rate: Some(rate), ceil: Some(rate), parent: None, classid: None, matches: Vec::new() }
    }

    pub(crate) fn device(classes: Vec<Class>) -> Device {
        Device {
            name: "eth0".to_owned(),
            namespace: None,
            mode: Mode::Own,
            rate: None,
            control: Control::Integral,
            isolation: false,
            delay: Duration::from_micros(60),
            ecn: false,
            hook: Hook::Auto,
            occupancy: Occupancy::Auto,
            default_class: None,
            classes,
        }
    }

    fn tree(device: &Device) -> Tree {
        Tree::new(device, &assign_slots(&[], &device.classes), LINK)
    }

    #[test]
    fn a_gigabit_has_a_burst_of_half_a_millisecond() {
        let tree = tree(&device(vec![class("a", "1 Gbit/s")]));
        let node = tree.nodes[&ClassId::new(HANDLE, 0x20)];
        assert_eq!((node.htb.rate, node.htb.ceil, node.htb.quantum), (125_000_000, 125_000_000, 12_500));
        // 62,500 bytes in ticks of 64 ns, which hold 8 bytes each.
        assert_eq!((node.htb.buffer, node.htb.cbuffer), (7_813, 7_813));
        assert_eq!((node.parent, node.is_leaf, tree.default), (ClassId::ROOT, true, 0));
    }

    #[test]
    fn a_burst_holds_a_packet_and_a_quantum_is_bounded_at_any_rate() {
        for (rate, mtu) in [("8 kbit/s", 1_500), ("1 Mbit/s", 9_000), ("40 Gbit/s", 1_280), ("1 Tbit/s", 65_535)] {
            let rate: LineRate = rate.parse().unwrap();
            let htb = Htb::new(rate.bytes_per_s(), rate.bytes_per_s(), Link { mtu, queue_packets: 1_000 });
            let burst = rate.bytes_in(Duration::from_nanos(u64::from(htb.buffer) * 64));
            assert!(burst >= u64::from(mtu + 14), "{rate}: {burst}");
            assert!(htb.quantum >= mtu.min(60_000) && htb.quantum <= 60_000, "{rate}: {}", htb.quantum);
        }
    }

    #[test]
    fn isolation_makes_a_sparse_leaf_and_sixteen_others() {
        let mut device = device(vec![class("a", "1 Gbit/s"), class("b", "100 Mbit/s")]);
        (device.isolation, device.default_class) = (true, Some(1));
        let tree = tree(&device);
        assert_eq!((tree.nodes.len(), tree.default), (2 * 18, 0x42));
        let (a, sparse) = (ClassId::new(HANDLE, 0x20), tree.nodes[&ClassId::new(HANDLE, 0x21)]);
        assert!(!tree.nodes[&a].is_leaf);
        assert_eq!((sparse.parent, sparse.htb.priority, sparse.htb.rate), (a, 0, 125_000_000));
        let bulk = tree.nodes[&ClassId::new(HANDLE, 0x31)];
        assert_eq!((bulk.parent, bulk.htb.priority, bulk.htb.quantum), (a, 1, 3_028));
        assert_eq!((bulk.htb.rate, bulk.htb.ceil), (30_517, 125_000_000));
        assert!(!tree.nodes.contains_key(&ClassId::new(HANDLE, 0x32)));
    }

    #[test]
    fn classes_borrow_from_their_parent_and_the_total() {
        let mut parent = class("all", "1 Gbit/s");
        parent.ceil = Some("2 Gbit/s".parse().unwrap());
        let child = Class { parent: Some(0), ..class("a", "100 Mbit/s") };
        let mut device = device(vec![parent, child]);
        device.rate = Some("10 Gbit/s".parse().unwrap());
        assert_eq!(depth(&device), 3);
        let tree = tree(&device);
        let all = tree.nodes[&ClassId::new(HANDLE, 0x20)];
        assert_eq!((all.parent, all.is_leaf, all.htb.ceil), (TOTAL, false, 250_000_000));
        assert_eq!(tree.nodes[&ClassId::new(HANDLE, 0x40)].parent, ClassId::new(HANDLE, 0x20));
        assert_eq!(tree.nodes[&TOTAL].parent, ClassId::ROOT);
    }

    #[test]
    fn a_device_without_a_queue_gets_some() {
        let device = device(vec![class("a", "1 Gbit/s")]);
        let tree = Tree::new(&device, &[0], Link { mtu: 1_500, queue_packets: 0 });
        assert_eq!(tree.nodes[&class_of_slot(0)].queue_packets, Some(1_000));
    }

    #[test]
    fn a_class_that_stays_keeps_its_slot() {
        let before = [("a".to_owned(), 0), ("b".to_owned(), 1), ("c".to_owned(), 2)];
        let now = [class("c", "1 Mbit/s"), class("new", "1 Mbit/s"), class("b", "1 Mbit/s"), class("d", "1 Mbit/s")];
        assert_eq!(assign_slots(&before, &now), [2, 0, 1, 3]);
        assert_eq!(class_of_slot(255), ClassId::new(HANDLE, 0x2000));
    }
}
