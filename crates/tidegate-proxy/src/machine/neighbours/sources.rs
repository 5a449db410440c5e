//! Where names come from that anybody can make up.
//!
//! Each source is a crowd: the names that it was the first to say share like one claimant. A name that several sources say
//! stands with the one that says the fewest others, so whoever says very many names takes none of them away from those who
//! use one, and whoever has `n` addresses has `n` shares at most.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::share::NONE;

/// Where a connection comes from: an address of IPv4, or a network of 64 bits of IPv6, since a host has as many addresses
/// there as it likes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source(u64);

impl Source {
    /// That of an address; of IPv4 in IPv6 that of IPv4.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            // No network of IPv6 begins with 32 zeros and is routed.
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }

    /// What the place is called that its names share for which there is no room of their own. No host is called so.
    pub(super) fn rest(self) -> String {
        match u32::try_from(self.0) {
            Ok(address) => format!("names from {}", std::net::Ipv4Addr::from_bits(address)),
            Err(_) => format!("names from {}/64", std::net::Ipv6Addr::from_bits(u128::from(self.0) << 64)),
        }
    }
}

/// The sources that have names in the table, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    by_source: HashMap<Source, u32, RandomState>,
    list: Vec<Entry>,
    free: Vec<u32>,
    /// Names of all of them.
    names: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    source: Source,
    names: u32,
}

impl Sources {
    /// Whether crowd `number` is that of `source`.
    #[inline]
    pub(super) fn is_of(&self, number: u32, source: Source) -> bool {
        self.list.get(number as usize).is_some_and(|entry| entry.source == source)
    }

    /// That of crowd `number`.
    pub(super) fn source(&self, number: u32) -> Option<Source> {
        Some(self.list.get(number as usize)?.source)
    }

    /// The crowd of `source`, or [`NONE`] if it has no names.
    pub(super) fn crowd_of(&self, source: Source) -> u32 {
        self.by_source.get(&source).copied().unwrap_or(NONE)
    }

    /// Names of `source`.
    pub(super) fn names_of(&self, source: Source) -> u32 {
        self.names_in(self.crowd_of(source))
    }

    /// Names of all sources.
    pub(super) fn names(&self) -> u32 {
        self.names
    }

    /// Names of crowd `number`.
    pub(super) fn names_in(&self, number: u32) -> u32 {
        self.list.get(number as usize).map_or(0, |entry| entry.names)
    }

    /// One name more of `source`; the number of its crowd.
    pub(super) fn enter(&mut self, source: Source) -> u32 {
        let Self { by_source, list, free, names } = self;
        *names += 1;
        let number = *by_source.entry(source).or_insert_with(|| {
            let entry = Entry { source, names: 0 };
            if let Some(number) = free.pop() {
                list[number as usize] = entry;
                return number;
            }
            list.push(entry);
            u32::try_from(list.len() - 1).expect("no more sources than names, which are below 2^20")
        });
        list[number as usize].names += 1;
        number
    }

    /// One name less of crowd `number`; one without names is forgotten.
    pub(super) fn leave(&mut self, number: u32) {
        if number == NONE {
            return;
        }
        self.names -= 1;
        let entry = &mut self.list[number as usize];
        entry.names -= 1;
        if entry.names == 0 {
            self.by_source.remove(&entry.source);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn hosts_of_one_network_of_ipv6_are_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("192.0.2.1").rest(), "names from 192.0.2.1");
        assert_eq!(source("2001:db8::1").rest(), "names from 2001:db8::/64");
    }

    #[test]
    fn a_source_without_names_leaves_its_number_to_the_next() {
        let mut sources = Sources::default();
        let a = sources.enter(source("192.0.2.1"));
        assert_eq!(sources.enter(source("192.0.2.1")), a);
        let b = sources.enter(source("192.0.2.2"));
        assert_eq!((sources.names_in(a), sources.names_in(b), sources.names()), (2, 1, 3));
        sources.leave(a);
        sources.leave(a);
        assert_eq!(sources.names_of(source("192.0.2.1")), 0);
        assert_eq!(sources.enter(source("192.0.2.3")), a);
        assert!(sources.is_of(a, source("192.0.2.3")) && !sources.is_of(a, source("192.0.2.1")));
    }
}
