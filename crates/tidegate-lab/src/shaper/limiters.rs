//! The tree of classes that the shaper builds, as the simulator's HTB has it.

use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_shaper::machine::ahead::Leaf;
use tidegate_shaper::machine::class_id::ClassId;
use tidegate_shaper::machine::device::{Class, Control, Device, Hook, Mode, Occupancy};
use tidegate_shaper::machine::line_rate::LineRate;
use tidegate_shaper::machine::tree::{Link, Node, TCP_INNER, Tree, assign_slots, class_of_slot, number_of_leaf};
use tidegate_sim::packets::htb::{ClassConfig, LeafConfig};

use super::scenario::{Scenario, Scheme, bytes_per_s};

/// Nanoseconds of a tick in which the kernel counts buffers.
const TICK_NS: u64 = 64;
/// Packets that a leaf holds: the length of the device's queue.
const PACKETS: usize = 1_000;

/// The limiters of a host.
pub(super) struct Limiters {
    /// All classes of the tree, those above others first.
    pub(super) classes: Vec<ClassConfig>,
    /// Place of each class in `classes`.
    places: BTreeMap<ClassId, usize>,
    /// Number of each limiter.
    ids: Vec<ClassId>,
    isolates: bool,
}

impl Limiters {
    /// The limiters of a scenario; the first has a guarantee of `first_mbit`.
    pub(super) fn new(scenario: &Scenario, scheme: Scheme, first_mbit: u64) -> Self {
        let device = device(scenario, scheme, first_mbit);
        let slots = assign_slots(&[], &device.classes);
        let tree = Tree::new(&device, &slots, Link { mtu: 1_500, queue_packets: 1_000 });
        let places: BTreeMap<ClassId, usize> = tree.nodes.keys().enumerate().map(|(place, &id)| (id, place)).collect();
        let classes = tree.nodes.values().map(|node| class(node, scheme, &places)).collect();
        let parents = device.classes.len() - scenario.limiter_count();
        let ids = slots[parents..].iter().map(|&slot| class_of_slot(slot)).collect();
        Self { classes, places, ids, isolates: device.isolation }
    }

    /// Place of a limiter's own class.
    pub(super) fn own(&self, limiter: usize) -> usize {
        self.places[&self.ids[limiter]]
    }

    /// Place of the class where TCP of a limiter waits that windows hold.
    pub(super) fn tcp(&self, limiter: usize) -> usize {
        self.below(limiter, TCP_INNER)
    }

    /// Place of a limiter's leaf.
    pub(super) fn leaf(&self, limiter: usize, leaf: Leaf) -> usize {
        self.below(limiter, number_of_leaf(leaf))
    }

    fn below(&self, limiter: usize, number: u16) -> usize {
        let id = self.ids[limiter];
        self.places[&ClassId(id.0 + if self.isolates { u32::from(number) } else { 0 })]
    }
}

fn class(node: &Node, scheme: Scheme, places: &BTreeMap<ClassId, usize>) -> ClassConfig {
    let htb = node.htb;
    let bytes_max = scheme.bytes_max(htb.ceil);
    let leaf = LeafConfig {
        priority: u8::try_from(htb.priority).expect("HTB has few"),
        quantum: htb.quantum,
        packets_max: if bytes_max.is_some() { usize::MAX } else { PACKETS },
        bytes_max: bytes_max.unwrap_or(u64::MAX),
    };
    ClassConfig {
        parent: places.get(&node.parent).copied(),
        rate: htb.rate,
        ceil: htb.ceil,
        buffer_ns: u64::from(htb.buffer) * TICK_NS,
        ceil_buffer_ns: u64::from(htb.cbuffer) * TICK_NS,
        leaf: node.is_leaf.then_some(leaf),
    }
}

/// What an operator would write: parents first, then the limiters.
fn device(scenario: &Scenario, scheme: Scheme, first_mbit: u64) -> Device {
    let rate = |mbit: u64| LineRate::of_bytes(bytes_per_s(mbit));
    let class = |name: String, mbit: u64, parent: Option<usize>| Class {
        name,
        rate: Some(rate(mbit)),
        ceil: scenario.total_mbit.map(rate),
        parent,
        classid: None,
        matches: Vec::new(),
    };
    let each = u64::from(scenario.limiters / scenario.parents.max(1));
    let parents = (0..scenario.parents).map(|at| class(format!("parent {at}"), each * scenario.rate_mbit, None));
    let limiters = (0..scenario.limiters).map(|at| {
        let parent = (scenario.parents > 0).then(|| scenario.parent_of(at));
        class(format!("limiter {at}"), if at == 0 { first_mbit } else { scenario.rate_mbit }, parent)
    });
    Device {
        name: "host".to_owned(),
        namespace: None,
        mode: Mode::Own,
        rate: scenario.total_mbit.map(rate),
        control: Control::Integral,
        isolation: scheme == Scheme::Isolation,
        delay: Duration::from_micros(scenario.setpoint_us),
        ecn: false,
        batch_timers: false,
        hook: Hook::Auto,
        occupancy: Occupancy::Auto,
        default_class: None,
        classes: parents.chain(limiters).collect(),
    }
}
