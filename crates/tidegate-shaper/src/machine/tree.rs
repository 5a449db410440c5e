//! The HTB tree of a device: which classes there are, and what each may send.
//!
//! Class k of a device, counted from 0, has the number `(k + 1) * 0x20` below our handle. With isolation it is an inner
//! class with a leaf for sparse flows, sixteen for those of TCP that its windows hold, and eight for all else; between
//! leaves of a kind HTB takes turns by bytes:
//!
//! ```text
//! 71de:                            our qdisc
//! └── 71de:1                       the device's total rate, if one is given
//!     ├── 71de:20                  class 0: rate, ceil
//!     │   ├── 71de:21              sparse flows, priority 0
//!     │   ├── 71de:22              TCP that windows hold
//!     │   │   └── 71de:23 .. 32    its leaves, priority 1
//!     │   └── 71de:33              all else
//!     │       └── 71de:34 .. 3b    its leaves, priority 1
//!     └── 71de:40                  class 1
//! ```
//!
//! TCP and all else have inner classes of their own, since the kernel counts there what has left: so the programs know the
//! queue of TCP alone.
//!
//! A packet goes to the leaf that `skb->priority` names; without one it goes to the default class.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;

use super::ahead::Leaf;
use super::class_id::ClassId;
use super::device::{CLASSES_MAX, Class, Device};

/// Major number of our qdiscs: how a tree is known as our own.
pub const HANDLE: u16 = 0x71de;
/// Our qdisc itself.
pub const QDISC: ClassId = ClassId::new(HANDLE, 0);
/// The class with the device's total rate.
pub const TOTAL: ClassId = ClassId::new(HANDLE, 1);
/// Levels of classes that the kernel takes (`TC_HTB_MAXDEPTH`).
pub const DEPTH_MAX: usize = 8;

/// Numbers from a class to the next.
const STEP: u16 = 0x20;
/// A burst is what passes in this span: tc's default of one packet loses tokens whenever a timer is late by more.
const BURST: Duration = Duration::from_micros(500);
/// The same where a class sends its whole burst at each timer: a burst is then a queue for the next hop.
const BATCHED_BURST: Duration = Duration::from_micros(128);
/// Smallest burst in bytes: a frame of 1,514 bytes and its headers.
const BURST_MIN: u64 = 1_600;
/// What siblings send in turn when they share the rest of their parent: bytes that pass in this span, so that shares follow
/// the rates from 120 Mbit/s to 4.8 Gbit/s.
const QUANTUM: Duration = Duration::from_micros(100);
/// Largest quantum: more would let a class hold the others up for long.
const QUANTUM_MAX: u64 = 60_000;
/// Packets between flows of a class.
const LEAF_QUANTUM_PACKETS: u64 = 2;
/// Nanoseconds of a tick in which the kernel counts buffers (`PSCHED_SHIFT`).
const TICK_NS: u128 = 64;
/// A device whose queue is shorter gets queues of this many packets. Docker makes devices with none at all, and HTB would
/// give their classes room for one packet.
const QUEUE_PACKETS: u32 = 1_000;
/// Bytes of Ethernet's header.
const HEADER: u32 = 14;

/// Properties of a device from which bursts, quanta and queues follow.
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

/// Classes of a kind below a class with isolation. The programs in the kernel have the same numbers.
struct Kind {
    /// Offset of the inner class around the leaves; 0: the leaves are the class's own.
    inner: u16,
    /// Its guarantee is the class's rate divided by this.
    part: u64,
    /// Offset of the first leaf.
    first: u16,
    leaves: u16,
    /// The guarantee of a leaf is the class's rate divided by this. The rest it borrows. `None`: [`LEAF_RATE`].
    leaf_part: Option<u64>,
    priority: u32,
}

/// Guarantee of a leaf that borrows all it sends, in bytes a second: with a larger one the kernel's timer would go off for what
/// each leaf owes, 5,200 times a second with sixteen leaves at 1 Gbit/s. Their turns follow from their quantum.
const LEAF_RATE: u64 = 1_000;

/// Guarantees sum to 7/8 of the class's rate. A sparse flow has half of it as its own, so that it is served at the lowest
/// level, before any other that has to borrow, and never waits for what its class owes.
const SPARSE: Kind = Kind { inner: 0, part: 1, first: 1, leaves: 1, leaf_part: Some(2), priority: 0 };
const TCP: Kind = Kind { inner: 2, part: 4, first: 3, leaves: 16, leaf_part: None, priority: 1 };
const OTHER: Kind = Kind { inner: 19, part: 8, first: 20, leaves: 8, leaf_part: None, priority: 1 };

/// Offset of the class around the leaves of TCP, whose bytes are counted for its queue.
pub const TCP_INNER: u16 = TCP.inner;

/// The number of a leaf, from that of its class.
#[must_use]
pub fn number_of_leaf(leaf: Leaf) -> u16 {
    match leaf {
        Leaf::Sparse => SPARSE.first,
        Leaf::Bulk(leaf) => TCP.first + u16::from(leaf),
        Leaf::Other(leaf) => OTHER.first + u16::from(leaf),
    }
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

/// The numbers of `class` and all that isolation puts below it.
#[must_use]
pub fn with_leaves(class: ClassId) -> Range<ClassId> {
    class..ClassId(class.0 + u32::from(STEP))
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
        let below = if device.isolation && !device.has_children(index) { 2 } else { 0 };
        chain.take(device.classes.len() + 1).count() + below
    };
    usize::from(device.rate.is_some()) + (0..device.classes.len()).map(of).max().unwrap_or(0)
}

impl Tree {
    /// The tree of `device`, whose class `i` has slot `slots[i]`.
    #[must_use]
    pub fn new(device: &Device, slots: &[usize], link: Link) -> Self {
        let frame = Frame { bytes: u64::from(link.mtu + HEADER), burst: burst_span(device.batch_timers) };
        let mut nodes = BTreeMap::new();
        let top = match device.rate {
            Some(rate) => {
                let htb = Htb::new(rate.bytes_per_s(), rate.bytes_per_s(), frame);
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
            let htb = Htb::new(rate.bytes_per_s(), ceil.bytes_per_s(), frame);
            let node = Node { parent, is_leaf: true, htb, queue_packets };
            if device.has_children(index) {
                nodes.insert(id, Node::inner(parent, htb));
            } else if device.isolation {
                nodes.insert(id, Node::inner(parent, htb));
                insert_leaves(&mut nodes, id, node, frame);
            } else {
                nodes.insert(id, node);
            }
        }
        let default = device.default_class.map_or(0, |index| {
            let class = class_of_slot(slots[index]);
            // What no program has seen is not held by a window.
            if device.isolation { class.minor() + OTHER.first } else { class.minor() }
        });
        Self { default, nodes }
    }
}

fn insert_leaves(nodes: &mut BTreeMap<ClassId, Node>, class: ClassId, node: Node, frame: Frame) {
    let below = |number: u16| ClassId(class.0 + u32::from(number));
    let part_of_rate = |part: u64| (node.htb.rate / part).max(1);
    for kind in [SPARSE, TCP, OTHER] {
        let parent = below(kind.inner);
        if kind.inner > 0 {
            nodes.insert(parent, Node::inner(class, Htb::new(part_of_rate(kind.part), node.htb.ceil, frame)));
        }
        // Slow classes have too little for so many of these.
        let least = part_of_rate(128).min(LEAF_RATE);
        let htb = Htb::new(kind.leaf_part.map_or(least, part_of_rate), node.htb.ceil, frame);
        let quantum = (LEAF_QUANTUM_PACKETS * frame.bytes).min(QUANTUM_MAX);
        let quantum = u32::try_from(quantum).expect("it is at most QUANTUM_MAX");
        let htb = Htb { quantum, priority: kind.priority, ..htb };
        for at in 0..kind.leaves {
            nodes.insert(below(kind.first + at), Node { parent, htb, ..node });
        }
    }
}

/// Frame size and burst length, from which bursts and quanta follow.
#[derive(Clone, Copy)]
struct Frame {
    /// Size of the largest frame.
    bytes: u64,
    /// How long a burst lasts.
    burst: Duration,
}

impl Node {
    fn inner(parent: ClassId, htb: Htb) -> Self {
        Self { parent, is_leaf: false, htb, queue_packets: None }
    }
}

impl Htb {
    /// With safe bursts and quantum.
    fn new(rate: u64, ceil: u64, frame: Frame) -> Self {
        let quantum = bytes_in(QUANTUM, rate).clamp(frame.bytes.min(QUANTUM_MAX), QUANTUM_MAX);
        Self {
            rate,
            ceil,
            buffer: burst_ticks(rate, frame),
            cbuffer: burst_ticks(ceil, frame),
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

fn burst_span(batch_timers: bool) -> Duration {
    if batch_timers { BATCHED_BURST } else { BURST }
}

/// How long the burst of a class of `device` takes at `rate`, whatever the size of a frame.
pub(crate) fn burst_of(device: &Device, rate: u64) -> Duration {
    let least = u128::from(BURST_MIN) * 1_000_000_000 / u128::from(rate.max(1));
    burst_span(device.batch_timers).max(Duration::from_nanos(u64::try_from(least).unwrap_or(u64::MAX)))
}

/// How long the burst of a class takes at `rate`, in ticks.
fn burst_ticks(rate: u64, frame: Frame) -> u32 {
    let burst = bytes_in(frame.burst, rate).max(BURST_MIN).max(frame.bytes);
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
            batch_timers: false,
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
            let frame = Frame { bytes: u64::from(mtu + HEADER), burst: BURST };
            let htb = Htb::new(rate.bytes_per_s(), rate.bytes_per_s(), frame);
            let burst = rate.bytes_in(Duration::from_nanos(u64::from(htb.buffer) * 64));
            assert!(burst >= u64::from(mtu + 14), "{rate}: {burst}");
            assert!(htb.quantum >= mtu.min(60_000) && htb.quantum <= 60_000, "{rate}: {}", htb.quantum);
        }
    }

    #[test]
    fn isolation_makes_leaves_for_sparse_flows_for_tcp_and_for_all_else() {
        let mut device = device(vec![class("a", "1 Gbit/s"), class("b", "100 Mbit/s")]);
        (device.isolation, device.default_class) = (true, Some(1));
        assert_eq!(depth(&device), 3);
        let tree = tree(&device);
        assert_eq!((tree.nodes.len(), tree.default), (2 * 28, 0x54));
        let node = |minor| tree.nodes[&ClassId::new(HANDLE, minor)];
        let of =
            |minor| (node(minor).parent.minor(), node(minor).is_leaf, node(minor).htb.rate, node(minor).htb.priority);
        assert_eq!(of(0x21), (0x20, true, 62_500_000, 0));
        assert_eq!([of(0x22), of(0x33)], [(0x20, false, 31_250_000, 0), (0x20, false, 15_625_000, 0)]);
        assert_eq!([of(0x23), of(0x32)], [(0x22, true, 1_000, 1); 2]);
        assert_eq!([of(0x34), of(0x3b)], [(0x33, true, 1_000, 1); 2]);
        assert!(!tree.nodes.contains_key(&ClassId::new(HANDLE, 0x3c)));
        for (id, leaf) in tree.nodes.iter().filter(|(_, node)| node.is_leaf) {
            assert_eq!((leaf.htb.quantum, leaf.htb.ceil >= 12_500_000), (3_028, true), "{id}");
        }
        // What is guaranteed below a class is no more than its own guarantee.
        for (id, inner) in tree.nodes.iter().filter(|(_, node)| !node.is_leaf) {
            let below = tree.nodes.values().filter(|node| node.parent == *id);
            assert!(below.map(|node| node.htb.rate).sum::<u64>() <= inner.htb.rate, "{id}");
        }
    }

    #[test]
    fn batched_timers_have_shorter_bursts() {
        let mut device = device(vec![class("a", "1 Gbit/s")]);
        device.batch_timers = true;
        // 128 us are 2,000 ticks.
        assert_eq!(tree(&device).nodes[&class_of_slot(0)].htb.buffer, 2_000);
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
