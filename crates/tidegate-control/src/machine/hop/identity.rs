//! Names of publishers: unique among the connections of one hop.

use std::collections::{BTreeMap, BTreeSet};

/// Longest identity, bytes.
pub const IDENTITY_BYTES_MAX: usize = 128;

/// Bytes kept for `#` and a number.
const NUMBER_BYTES: usize = 11;

/// The name of one connection, which no other connection of the hop has at the same time.
///
/// The first connection of a base is called like it, further ones `base#2`, `base#3`: the lowest number that is free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    base: String,
    number: u32,
    text: String,
}

impl Identity {
    /// The name, 1 to [`IDENTITY_BYTES_MAX`] bytes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The names that are taken. No larger than the number of connections.
#[derive(Debug, Default)]
pub struct Identities {
    taken: BTreeMap<String, Numbers>,
}

/// Numbers of one base, from 1: all below `next` are taken but those that are free.
#[derive(Debug)]
struct Numbers {
    next: u32,
    free: BTreeSet<u32>,
}

impl Identities {
    /// Takes the first free name of `base`, which is cut to fit. A `#` in it becomes `-`, as it stands before numbers, and so
    /// do control characters, which brokers refuse. O(log n).
    pub fn take(&mut self, base: &str) -> Identity {
        let kept = base.floor_char_boundary(IDENTITY_BYTES_MAX - NUMBER_BYTES);
        let base = base[..kept].replace(|c: char| c == '#' || c.is_control(), "-");
        let numbers = self.taken.entry(base.clone()).or_insert(Numbers { next: 1, free: BTreeSet::new() });
        let number = numbers.free.pop_first().unwrap_or_else(|| {
            // Each number is a connection, and no process has 2^32 of them.
            let number = numbers.next;
            numbers.next = number.saturating_add(1);
            number
        });
        let text = if number == 1 { base.clone() } else { format!("{base}#{number}") };
        Identity { base, number, text }
    }

    /// Gives a name back that was taken here.
    pub fn release(&mut self, identity: &Identity) {
        let Some(numbers) = self.taken.get_mut(&identity.base) else { return };
        if identity.number < numbers.next {
            numbers.free.insert(identity.number);
        }
        while numbers.next > 1 && numbers.free.last().is_some_and(|last| *last == numbers.next - 1) {
            numbers.free.pop_last();
            numbers.next -= 1;
        }
        if numbers.next == 1 {
            self.taken.remove(&identity.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_numbered_from_the_second_connection_on() {
        let mut identities = Identities::default();
        let [a, b, c] = ["svc@host"; 3].map(|base| identities.take(base));
        assert_eq!([a.as_str(), b.as_str(), c.as_str()], ["svc@host", "svc@host#2", "svc@host#3"]);
        identities.release(&b);
        assert_eq!(identities.take("svc@host").as_str(), "svc@host#2", "the lowest free number");
        for identity in [&a, &b, &c] {
            identities.release(identity);
        }
        assert!(identities.taken.is_empty(), "nothing is kept of names that nobody has");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let mut identities = Identities::default();
        let long = "é".repeat(100);
        let (a, b) = (identities.take(&long), identities.take(&long));
        assert!(a.as_str().len() <= IDENTITY_BYTES_MAX && b.as_str().len() <= IDENTITY_BYTES_MAX);
        assert_ne!(a.as_str(), b.as_str());
        assert_eq!(identities.take("a#2\r\n").as_str(), "a-2--");
    }

    proptest! {
        #[test]
        fn no_two_connections_have_one_name(steps in proptest::collection::vec((0..3_usize, any::<bool>()), 0..200)) {
            let mut identities = Identities::default();
            let mut held: Vec<Identity> = Vec::new();
            for (pick, take) in steps {
                if take || held.is_empty() {
                    let identity = identities.take(["a", "a#2", "b"][pick]);
                    prop_assert!(held.iter().all(|other| other.as_str() != identity.as_str()));
                    held.push(identity);
                } else {
                    let identity = held.swap_remove(pick % held.len());
                    identities.release(&identity);
                }
            }
            for identity in &held {
                identities.release(identity);
            }
            prop_assert!(identities.taken.is_empty());
        }
    }
}
