//! The rules of a device, written while those before them are in force.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::cgroup::cgroup;
use super::error::BpfError;
use super::layout::{NO_CLASS, address_and_mask, words};
use super::object::key;
use crate::machine::device::{Match, Protocol};
use crate::machine::kinds::{Arranged, Condition, KINDS_MAX, Kind, Place, arrange};
use crate::machine::program::{DeviceProgram, RULES_MAX};

const CGROUP: u32 = 1;
const MARK: u32 = 2;
const PORT: u32 = 16;
const VLAN: u32 = 32;
const PROTOCOL: u32 = 64;
const PRIORITY: u32 = 128;

/// By path: number and depth.
type Cgroups = BTreeMap<PathBuf, (u64, u32)>;

/// The tables of rules: two sets, of which one is in force.
pub(super) struct RuleSets {
    number: MapHandle,
    sets: MapHandle,
    kinds: MapHandle,
    rules: MapHandle,
    /// How often rules were put in force. The last bit says in which half they are.
    count: u32,
    /// By half: keys of its rules.
    written: [Vec<Vec<u8>>; 2],
}

impl RuleSets {
    pub(super) fn new(table: impl Fn(&'static str) -> Result<MapHandle, BpfError>) -> Result<Self, BpfError> {
        let (number, sets, kinds, rules) =
            (table("rules_number")?, table("rule_sets")?, table("kinds")?, table("rules")?);
        Ok(Self { number, sets, kinds, rules, count: 0, written: [Vec::new(), Vec::new()] })
    }

    /// Puts the rules of `program` in force at once: no packet meets a part of them.
    pub(super) fn put(&mut self, program: &DeviceProgram) -> Result<(), BpfError> {
        let set = RuleSet::of(program)?;
        let count = self.count.wrapping_add(1);
        let half = usize::from(count % 2 == 1);
        // Nothing has looked at these since the last time but one.
        for key in std::mem::take(&mut self.written[half]) {
            self.rules.delete(&key).map_err(|source| BpfError::Table { table: "rules", source })?;
        }
        let write = |table: &MapHandle, name: &'static str, key: &[u8], value: &[u8]| {
            table.update(key, value, MapFlags::ANY).map_err(|source| BpfError::Table { table: name, source })
        };
        for (index, kind) in set.kinds.iter().enumerate() {
            write(&self.kinds, "kinds", &key(half * KINDS_MAX + index), kind)?;
        }
        for rule in &set.rules {
            let key = rule.key(half);
            write(&self.rules, "rules", &key, &rule.value)?;
            self.written[half].push(key);
        }
        let kinds = u32::try_from(set.kinds.len()).expect("there are KINDS_MAX at most");
        write(&self.sets, "rule_sets", &key(half), &words(&[kinds, set.default]))?;
        write(&self.number, "rules_number", &key(0), &count.to_ne_bytes())?;
        self.count = count;
        Ok(())
    }
}

/// Rules as the programs have them.
struct RuleSet {
    /// `struct kind`.
    kinds: Vec<Vec<u8>>,
    rules: Vec<Written>,
    default: u32,
}

struct Written {
    /// `struct rule_key` up to its kind.
    fields: Vec<u8>,
    place: Place,
    /// `struct rule`.
    value: Vec<u8>,
}

impl Written {
    fn key(&self, half: usize) -> Vec<u8> {
        let narrow = |number: usize| u16::try_from(number).expect("arrange() bounds it").to_ne_bytes();
        [&self.fields[..], &narrow(half * KINDS_MAX + self.place.kind), &narrow(self.place.same)].concat()
    }
}

fn slot_number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(NO_CLASS)
}

impl RuleSet {
    fn of(program: &DeviceProgram) -> Result<Self, BpfError> {
        let conditions = program.conditions();
        if conditions.len() > RULES_MAX {
            return Err(BpfError::TooManyRules { found: conditions.len(), most: RULES_MAX });
        }
        let (slots, conditions): (Vec<usize>, Vec<Condition>) = conditions.into_iter().unzip();
        let mut cgroups = Cgroups::new();
        for path in conditions.iter().filter_map(|condition| condition.when.cgroup.as_ref()) {
            cgroups.insert(path.clone(), cgroup(path)?);
        }
        let depth_of = |path: &Path| cgroups.get(path).map_or(0, |(_, depth)| *depth);
        let Arranged { kinds, places } = arrange(&conditions, depth_of).map_err(BpfError::Crowded)?;
        let mut rules = Vec::new();
        for (index, (slot, condition)) in slots.into_iter().zip(&conditions).enumerate() {
            let Some(place) = places[index] else { continue };
            let ports = condition.when.ports.clone().unwrap_or(0..=0);
            let mut value = words(&[u32::try_from(index).expect("there are RULES_MAX at most"), slot_number(slot)]);
            value.extend([*ports.start(), *ports.end()].iter().flat_map(|port| port.to_ne_bytes()));
            value.extend(words(&[place.has_more.into()]));
            rules.push(Written { fields: fields(condition, &cgroups), place, value });
        }
        let kinds = kinds.iter().map(|(kind, first)| kind_bytes(kind, *first, &conditions[*first].when)).collect();
        Ok(Self { kinds, rules, default: program.default.map_or(NO_CLASS, slot_number) })
    }
}

/// `struct kind`; `first` is its first rule, whose masks are those of all.
fn kind_bytes(kind: &Kind, first: usize, of_first: &Match) -> Vec<u8> {
    let flags = [
        (CGROUP, kind.cgroup_depth.is_some()),
        (MARK, kind.mark_mask.is_some()),
        (PORT, kind.ports),
        (VLAN, kind.vlan),
        (PROTOCOL, kind.protocol),
        (PRIORITY, kind.priority),
    ];
    let flags = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum();
    let first = u32::try_from(first).expect("there are RULES_MAX at most");
    let mut bytes = words(&[flags, first, kind.cgroup_depth.unwrap_or(0), kind.mark_mask.unwrap_or(0)]);
    for prefix in [of_first.source, of_first.destination] {
        bytes.extend(words(&prefix.map_or([0; 4], |prefix| address_and_mask(prefix).1)));
    }
    bytes
}

/// `struct rule_key` up to its kind.
fn fields(condition: &Condition, cgroups: &Cgroups) -> Vec<u8> {
    let Condition { when, priority } = condition;
    let id = when.cgroup.as_ref().and_then(|path| cgroups.get(path)).map_or(0, |(id, _)| *id);
    let mut bytes = id.to_ne_bytes().to_vec();
    for prefix in [when.source, when.destination] {
        bytes.extend(words(&prefix.map_or([0; 4], |prefix| address_and_mask(prefix).0)));
    }
    bytes.extend(words(&[when.mark.map_or(0, |mark| mark.value), priority.unwrap_or(0)]));
    let protocol = match when.protocol {
        None => 0_u16,
        Some(Protocol::Tcp) => 6,
        Some(Protocol::Udp) => 17,
    };
    bytes.extend([when.vlan.unwrap_or(0), protocol].iter().flat_map(|value| value.to_ne_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::device::Mark;

    #[test]
    fn rules_have_the_size_that_the_programs_expect() {
        let when = Match { vlan: Some(7), mark: Some(Mark { value: 1, mask: 3 }), ..Match::default() };
        let condition = Condition { when, priority: None };
        let Arranged { kinds, places } = arrange(std::slice::from_ref(&condition), |_| 0).unwrap();
        let kind = kind_bytes(&kinds[0].0, 0, &condition.when);
        assert_eq!((kind.len(), u32::from_ne_bytes(kind[..4].try_into().unwrap())), (48, VLAN | MARK));
        let written = Written { fields: fields(&condition, &Cgroups::new()), place: places[0].unwrap(), value: vec![] };
        let key = written.key(1);
        assert_eq!((key.len(), &key[48..]), (56, &[7, 0, 0, 0, 64, 0, 0, 0][..]));
    }
}
