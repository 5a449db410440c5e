//! What the programs of a device are told: its classes and how packets are put into them.

use core::time::Duration;
use std::collections::BTreeMap;

use super::class_id::ClassId;
use super::device::{Control, Device, Hook, Match, Mode, Occupancy};
use super::kinds::Condition;
use super::tree::{burst_of, class_of_slot};

/// Rules of a device at most.
pub const RULES_MAX: usize = 4_096;

/// What the programs of a device are told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceProgram {
    /// By slot. Only classes that carry packets.
    pub classes: BTreeMap<usize, ClassProgram>,
    /// In their order: the first that a packet meets says its class.
    pub rules: Vec<Rule>,
    /// The slot of packets that meet no rule. `None`: they are left alone.
    pub default: Option<usize>,
    /// Whether packets are put into classes; in a tree of somebody else they are only recognised.
    pub classifies: bool,
    /// Whether marks of the network are taken as congestion too.
    pub ecn: bool,
    /// Where they are attached.
    pub hook: Hook,
    /// Where queues are read.
    pub occupancy: Occupancy,
}

/// What the programs are told of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassProgram {
    /// Number by which the kernel knows the class.
    pub classid: ClassId,
    /// Bytes a second, guaranteed.
    pub rate: u64,
    /// Bytes a second with what others leave; at least `rate`.
    pub ceil: u64,
    /// Whether sparse flows go to a leaf of their own.
    pub isolation: bool,
    /// What keeps its queue short.
    pub control: Control,
    /// How long a packet may wait.
    pub delay: Duration,
    /// What it may send at once after it was idle, as a span of its rate.
    pub burst: Duration,
    /// How much of that HTB lets it owe: its burst with batched timers, else nothing.
    pub debt: Duration,
}

/// What the kernel says that a class may send, in bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelRates {
    /// Guaranteed.
    pub rate: u64,
    /// With what others leave.
    pub ceil: u64,
}

/// A packet of which all of `when` holds belongs to the class of slot `slot`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its class.
    pub slot: usize,
    /// The condition.
    pub when: Match,
}

impl DeviceProgram {
    /// Programs of `device`, whose class `i` has slot `slots[i]`. `rates[i]` is what the kernel says of a class of somebody else's
    /// tree.
    #[must_use]
    pub fn new(device: &Device, slots: &[usize], rates: &[Option<KernelRates>]) -> Self {
        let (mut classes, mut rules) = (BTreeMap::new(), Vec::new());
        for (index, class) in device.classes.iter().enumerate() {
            let slot = slots[index];
            let given = class
                .rate
                .map(|rate| KernelRates { rate: rate.bytes_per_s(), ceil: class.ceil.unwrap_or(rate).bytes_per_s() });
            let Some(KernelRates { rate, ceil }) = given.or_else(|| rates.get(index).copied().flatten()) else {
                continue;
            };
            let ceil = ceil.max(rate);
            if device.has_children(index) {
                continue;
            }
            let classid = class.classid.unwrap_or_else(|| class_of_slot(slot));
            let (isolation, control, delay) = (device.isolation, device.control, device.delay);
            let burst = burst_of(device, rate);
            let debt = if device.batch_timers { burst } else { Duration::ZERO };
            classes.insert(slot, ClassProgram { classid, rate, ceil, isolation, control, delay, burst, debt });
            rules.extend(class.matches.iter().map(|when| Rule { slot, when: when.clone() }));
        }
        let default = device.default_class.map(|index| slots[index]);
        let (classifies, Device { ecn, hook, occupancy, .. }) = (device.mode == Mode::Own, device);
        Self { classes, rules, default, classifies, ecn: *ecn, hook: *hook, occupancy: *occupancy }
    }

    /// Whether programs that were told this can be told `other` while packets pass. What else there is, is fixed when they are
    /// attached.
    #[must_use]
    pub fn can_become(&self, other: &Self) -> bool {
        let fixed = |program: &Self| (program.classifies, program.ecn, program.hook, program.occupancy);
        fixed(self) == fixed(other)
    }

    /// Whether packets are put into the same classes.
    #[must_use]
    pub fn has_rules_of(&self, other: &Self) -> bool {
        (&self.rules, self.default) == (&other.rules, other.default) && self.conditions() == other.conditions()
    }

    /// By which packets are known, with their slots, in their order; in a tree of somebody else, then by the class that the
    /// packet was put into.
    #[must_use]
    pub fn conditions(&self) -> Vec<(usize, Condition)> {
        let rules = self.rules.iter().map(|rule| (rule.slot, Condition { when: rule.when.clone(), priority: None }));
        let known = self.classes.iter().filter(|_| !self.classifies);
        let known =
            known.map(|(&slot, class)| (slot, Condition { when: Match::default(), priority: Some(class.classid.0) }));
        rules.chain(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::device::Class;
    use crate::machine::tree::tests::{class, device};

    #[test]
    fn only_classes_that_carry_packets_are_told() {
        let rule = Match { vlan: Some(7), ..Match::default() };
        let child = Class { parent: Some(0), matches: vec![rule.clone()], ..class("a", "1 Gbit/s") };
        let mut device = device(vec![class("all", "2 Gbit/s"), child]);
        device.default_class = Some(1);
        let program = DeviceProgram::new(&device, &[0, 5], &[]);
        assert_eq!(program.classes.keys().collect::<Vec<_>>(), [&5]);
        assert_eq!((program.classes[&5].classid, program.classes[&5].rate), (class_of_slot(5), 125_000_000));
        assert_eq!((program.rules, program.default), (vec![Rule { slot: 5, when: rule }], Some(5)));
    }

    #[test]
    fn bursts_are_those_of_the_tree() {
        let mut device = device(vec![class("a", "1 Gbit/s"), class("slow", "1 Mbit/s")]);
        let told = |device: &Device| {
            let classes = DeviceProgram::new(device, &[0, 1], &[]).classes;
            classes
                .values()
                .flat_map(|class| [class.burst, class.debt])
                .map(|span| span.as_micros())
                .collect::<Vec<_>>()
        };
        // At 1 Mbit/s a frame takes longer.
        assert_eq!(told(&device), [500, 0, 12_800, 0]);
        device.batch_timers = true;
        assert_eq!(told(&device), [128, 128, 12_800, 12_800]);
    }

    #[test]
    fn classes_of_somebody_else_have_the_kernels_rate() {
        let theirs = Class { rate: None, ceil: None, classid: Some(ClassId::new(1, 16)), ..class("a", "1 Gbit/s") };
        let mut device = device(vec![theirs]);
        device.mode = Mode::Attach;
        let rates = KernelRates { rate: 1_000_000, ceil: 2_000_000 };
        let program = DeviceProgram::new(&device, &[0], &[Some(rates)]);
        let told = program.classes[&0];
        assert_eq!((told.classid, program.classifies), (ClassId::new(1, 16), false));
        assert_eq!((told.rate, told.ceil), (1_000_000, 2_000_000));
        assert_eq!(DeviceProgram::new(&device, &[0], &[None]).classes.len(), 0);
    }
}
