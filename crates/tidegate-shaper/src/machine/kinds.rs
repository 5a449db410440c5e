//! Rules by what they look at, so that a packet's class is found by a lookup for each kind of rule, however many rules there
//! are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::device::{Mark, Match, Prefix, Protocol};

/// Kinds of rules on a device at most: a packet is looked up once for each.
pub const KINDS_MAX: usize = 64;
/// Rules at most that differ in ports alone: they are looked at one after another.
pub const SAME_MAX: usize = 64;

/// What a rule holds of a packet: a condition, and in a tree of somebody else the class that the packet was put into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// Fields of the packet.
    pub when: Match,
    /// Its priority.
    pub priority: Option<u32>,
}

/// The fields that rules of a kind look at, and how much of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says of a field whether it is looked at")]
pub struct Kind {
    /// How deep the cgroup stands.
    pub cgroup_depth: Option<u32>,
    /// Bits of the mark.
    pub mark_mask: Option<u32>,
    /// Length of the source's prefix.
    pub source: Option<Length>,
    /// Length of the destination's prefix.
    pub destination: Option<Length>,
    /// Whether ports are looked at.
    pub ports: bool,
    /// Whether the VLAN is.
    pub vlan: bool,
    /// Whether the transport is.
    pub protocol: bool,
    /// Whether the priority is.
    pub priority: bool,
}

/// Length of a prefix, which is not the same in both versions of IP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Length {
    /// Whether it is of IPv4.
    pub is_ipv4: bool,
    /// In bits.
    pub bits: u8,
}

/// Where a rule is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its kind, an index into [`Arranged::kinds`].
    pub kind: usize,
    /// Which it is of the rules that differ in ports alone.
    pub same: usize,
    /// Whether another one follows that does.
    pub has_more: bool,
}

/// Rules by kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arranged {
    /// In the order of their first rules, with the places of these.
    pub kinds: Vec<(Kind, usize)>,
    /// By rule; `None` for one that is never the first to fit, since an earlier one of the same fields holds the same of them.
    pub places: Vec<Option<Place>>,
}

/// Why rules cannot be arranged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Crowded {
    /// Too many kinds.
    #[error(
        "rules of {found} kinds, each of which looks at other fields, lengths of prefixes or bits of marks; at most {KINDS_MAX}"
    )]
    Kinds {
        /// As many.
        found: usize,
    },
    /// Too many that differ in ports alone.
    #[error("{found} rules that differ in ports alone; at most {SAME_MAX}")]
    Ports {
        /// As many.
        found: usize,
    },
}

/// What the fields of a kind hold, ports apart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Fields {
    kind: usize,
    cgroup: Option<PathBuf>,
    mark: Option<Mark>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    protocol: Option<Protocol>,
    vlan: Option<u16>,
    priority: Option<u32>,
}

impl Fields {
    fn of(kind: usize, condition: &Condition) -> Self {
        let Match { cgroup, mark, source, destination, protocol, vlan, .. } = condition.when.clone();
        Self { kind, cgroup, mark, source, destination, protocol, vlan, priority: condition.priority }
    }
}

impl Kind {
    fn of(condition: &Condition, depth_of: impl Fn(&Path) -> u32) -> Self {
        let Condition { when, priority } = condition;
        let length = |prefix: Prefix| Length { is_ipv4: prefix.address.is_ipv4(), bits: prefix.length };
        Self {
            cgroup_depth: when.cgroup.as_deref().map(depth_of),
            mark_mask: when.mark.map(|mark| mark.mask),
            source: when.source.map(length),
            destination: when.destination.map(length),
            ports: when.ports.is_some(),
            vlan: when.vlan.is_some(),
            protocol: when.protocol.is_some(),
            priority: priority.is_some(),
        }
    }
}

/// Arranges rules, the first of which that fits decides. `depth_of` says how deep a cgroup stands.
///
/// # Errors
/// [`Crowded`] if they are too many in one way or another.
pub fn arrange(rules: &[Condition], depth_of: impl Fn(&Path) -> u32) -> Result<Arranged, Crowded> {
    let mut kinds: Vec<(Kind, usize)> = Vec::new();
    let mut numbers = BTreeMap::new();
    // The last rule with these fields.
    let mut last = BTreeMap::<Fields, usize>::new();
    let mut places: Vec<Option<Place>> = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let kind = Kind::of(rule, &depth_of);
        let number = *numbers.entry(kind).or_insert_with(|| {
            kinds.push((kind, index));
            kinds.len() - 1
        });
        let fields = Fields::of(number, rule);
        let before = last.get(&fields).copied();
        if before.is_some() && !kind.ports {
            // The earlier one is met by all that meet this one.
            places.push(None);
            continue;
        }
        let before = before.and_then(|before| places[before].as_mut());
        let same = before.as_ref().map_or(0, |before| before.same + 1);
        if let Some(before) = before {
            before.has_more = true;
        }
        places.push(Some(Place { kind: number, same, has_more: false }));
        last.insert(fields, index);
    }
    if kinds.len() > KINDS_MAX {
        return Err(Crowded::Kinds { found: kinds.len() });
    }
    let most = places.iter().flatten().map(|place| place.same + 1).max().unwrap_or(0);
    if most > SAME_MAX {
        return Err(Crowded::Ports { found: most });
    }
    Ok(Arranged { kinds, places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::device::Mark;

    fn vlan(vlan: u16) -> Match {
        Match { vlan: Some(vlan), ..Match::default() }
    }

    fn arranged(rules: &[Match]) -> Result<Arranged, Crowded> {
        let rules: Vec<_> = rules.iter().map(|when| Condition { when: when.clone(), priority: None }).collect();
        arrange(&rules, |_| 1)
    }

    #[test]
    fn rules_that_look_at_the_same_fields_are_of_a_kind() {
        let mark = Match { mark: Some(Mark { value: 7, mask: 0xff }), ..Match::default() };
        let of = arranged(&[vlan(1), mark, vlan(2), Match { ports: Some(1..=2), ..vlan(2) }]).unwrap();
        assert_eq!(of.kinds.iter().map(|(_, first)| *first).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(of.places.iter().flatten().map(|place| place.kind).collect::<Vec<_>>(), [0, 1, 0, 2]);
    }

    #[test]
    fn a_rule_behind_its_like_is_left_out_unless_it_has_other_ports() {
        let ports = |first| Match { ports: Some(first..=first), ..vlan(1) };
        let of = arranged(&[vlan(1), vlan(1), ports(80), vlan(2), ports(90), vlan(1), ports(70)]).unwrap();
        let same: Vec<_> = of.places.iter().map(|place| place.map(|place| (place.same, place.has_more))).collect();
        let alone = Some((0, false));
        assert_eq!(same, [alone, None, Some((0, true)), alone, Some((1, true)), None, Some((2, false))]);
    }

    #[test]
    fn a_thousand_addresses_are_one_kind_and_prefixes_of_each_length_are_many() {
        let from = |text: &str| Match { source: Prefix::parse(text), ..Match::default() };
        let hosts: Vec<_> = (0..1_000).map(|host| from(&format!("10.0.{}.{}", host / 250, host % 250))).collect();
        assert_eq!(arranged(&hosts).unwrap().kinds.len(), 1);
        let of = |length: u32| [from(&format!("0.0.0.0/{}", length % 33)), from(&format!("::/{}", length % 129))];
        let lengths: Vec<_> = (0..64).flat_map(of).collect();
        assert_eq!(arranged(&lengths), Err(Crowded::Kinds { found: 33 + 64 }));
        let ports: Vec<_> = (1..=65).map(|port| Match { ports: Some(port..=port), ..Match::default() }).collect();
        assert_eq!(arranged(&ports), Err(Crowded::Ports { found: 65 }));
    }
}
