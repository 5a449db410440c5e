//! Ranges of addresses.

use std::net::IpAddr;

/// The addresses that begin with the same bits, such as 10.0.0.0/8.
///
/// IPv4 addresses are kept in their IPv6 form, `::ffff:0:0/96`, so that a client on a socket for both is the same client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Prefix {
    first: u128,
    last: u128,
}

impl Prefix {
    /// All addresses whose first `bits` are those of `network`, whose other bits do not matter; `None` if `network` has
    /// not so many.
    #[must_use]
    pub fn new(network: IpAddr, bits: u8) -> Option<Self> {
        let bits = match network {
            IpAddr::V4(_) if bits <= 32 => bits + 96,
            IpAddr::V6(_) if bits <= 128 => bits,
            _ => return None,
        };
        let rest = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
        let address = number(network);
        Some(Self { first: address & !rest, last: address | rest })
    }
}

/// Many ranges; whether an address is in one of them is found in O(log n).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixSet {
    /// In order, apart from each other.
    ranges: Vec<Prefix>,
}

impl PrefixSet {
    /// True if `address` is in one of the ranges.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = number(address);
        let after = self.ranges.partition_point(|range| range.first <= address);
        after.checked_sub(1).is_some_and(|place| address <= self.ranges[place].last)
    }

    /// True if there is no range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl FromIterator<Prefix> for PrefixSet {
    fn from_iter<T: IntoIterator<Item = Prefix>>(prefixes: T) -> Self {
        let mut sorted: Vec<_> = prefixes.into_iter().collect();
        sorted.sort_unstable();
        let mut ranges: Vec<Prefix> = Vec::with_capacity(sorted.len());
        for prefix in sorted {
            match ranges.last_mut() {
                Some(last) if prefix.first <= last.last => last.last = last.last.max(prefix.last),
                _ => ranges.push(prefix),
            }
        }
        Self { ranges }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn set(ranges: &[(&str, u8)]) -> PrefixSet {
        ranges.iter().map(|(network, bits)| Prefix::new(network.parse().unwrap(), *bits).unwrap()).collect()
    }

    fn has(set: &PrefixSet, address: &str) -> bool {
        set.contains(address.parse().unwrap())
    }

    #[test]
    fn ranges_end_where_their_bits_say() {
        let set = set(&[("10.1.2.3", 8), ("192.0.2.7", 32), ("2001:db8::", 32)]);
        assert!(has(&set, "10.0.0.0") && has(&set, "10.255.255.255") && has(&set, "192.0.2.7"));
        assert!(has(&set, "2001:db8:ffff::1"));
        for outside in ["9.255.255.255", "11.0.0.0", "192.0.2.6", "192.0.2.8", "2001:db9::", "::"] {
            assert!(!has(&set, outside), "{outside}");
        }
    }

    #[test]
    fn an_ipv4_client_of_a_socket_for_both_is_the_same_client() {
        assert!(has(&set(&[("10.0.0.0", 8)]), "::ffff:10.1.1.1"));
        assert!(!has(&set(&[("0.0.0.0", 0)]), "2001:db8::1"), "all of IPv4 is not all");
        assert!(has(&set(&[("::", 0)]), "10.1.1.1"));
    }

    #[test]
    fn no_network_has_more_bits_than_its_addresses() {
        assert_eq!(Prefix::new(Ipv4Addr::LOCALHOST.into(), 33), None);
        assert_eq!(Prefix::new(Ipv6Addr::LOCALHOST.into(), 129), None);
        assert!(PrefixSet::default().is_empty() && !has(&PrefixSet::default(), "::1"));
    }

    proptest! {
        #[test]
        fn a_set_has_what_one_of_its_ranges_has(
            networks in proptest::collection::vec((any::<u32>(), 0u8..=32), 0..20),
            addresses in proptest::collection::vec(any::<u32>(), 1..50),
        ) {
            let set: PrefixSet =
                networks.iter().map(|&(network, bits)| Prefix::new(Ipv4Addr::from(network).into(), bits).unwrap()).collect();
            // Addresses next to the ranges' own are where a bound would be off by one.
            let near = networks.iter().flat_map(|&(network, _)| [network, network.wrapping_add(1), network.wrapping_sub(1)]);
            for address in addresses.into_iter().chain(near) {
                let inside = networks.iter().any(|&(network, bits)| {
                    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                    (network ^ address) & mask == 0
                });
                prop_assert_eq!(set.contains(Ipv4Addr::from(address).into()), inside);
            }
        }
    }
}
