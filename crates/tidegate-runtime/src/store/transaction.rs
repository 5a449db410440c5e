//! Writes that happen together, what they depend on, and how they end.

use std::collections::BTreeSet;

use super::entry::{Entry, LeaseId, Revision};
use super::error::StoreError;

/// Longest key. Topic and channel names are at most 64 bytes each.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Most writes of a transaction, and most expectations, as in etcd (`--max-txn-ops`).
pub const MAX_WRITES: usize = 128;
/// Largest sum of all keys and values of a transaction: etcd takes requests of 1.5 MiB (`--max-request-bytes`), and the
/// rest is for its prefix and framing.
pub const MAX_TRANSACTION_BYTES: usize = MAX_VALUE_BYTES + (256 << 10);

/// What a writer believes about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing: write over whatever is there.
    Anything,
    /// The key does not exist.
    Absent,
    /// The key exists and was last written by this transaction.
    Unchanged(Revision),
}

impl Expect {
    /// Whether it is so, where `found` is at the key.
    pub(super) fn holds(self, found: Option<&Entry>) -> bool {
        match self {
            Self::Anything => true,
            Self::Absent => found.is_none(),
            Self::Unchanged(revision) => found.is_some_and(|entry| entry.modified == revision),
        }
    }
}

/// One write of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Sets a key.
    Put {
        /// The key, at most [`MAX_KEY_BYTES`].
        key: String,
        /// The value, at most [`MAX_VALUE_BYTES`].
        value: Vec<u8>,
        /// The key ends with this lease.
        lease: Option<LeaseId>,
    },
    /// Removes a key; nothing if it is not there.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// Sets `key` for good.
    #[must_use]
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: None }
    }

    /// Sets `key` for as long as `lease` lives.
    #[must_use]
    pub fn leased(key: impl Into<String>, value: impl Into<Vec<u8>>, lease: LeaseId) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: Some(lease) }
    }

    /// Removes `key`.
    #[must_use]
    pub fn delete(key: impl Into<String>) -> Self {
        Self::Delete { key: key.into() }
    }

    /// The key it writes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    /// What it puts; `None` if it removes.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Put { value, .. } => Some(value),
            Self::Delete { .. } => None,
        }
    }

    /// The lease that it puts the key under.
    pub(super) fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Put { lease, .. } => *lease,
            Self::Delete { .. } => None,
        }
    }
}

/// Writes that happen together, or not at all.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// All of them must hold; at most [`MAX_WRITES`].
    pub expect: Vec<(String, Expect)>,
    /// In this order, each of another key; at most [`MAX_WRITES`].
    pub writes: Vec<Write>,
    /// How `commit` decides whether it was committed when the answer is lost: a key that it puts with a value that only
    /// this transaction puts there, and that it expects absent or unchanged. No other writer may touch the key for as
    /// long as this one asks.
    pub marker: Option<String>,
}

impl Transaction {
    /// `writes`, whatever is there.
    #[must_use]
    pub fn of(writes: impl Into<Vec<Write>>) -> Self {
        Self { writes: writes.into(), ..Self::default() }
    }

    /// The value of the marker, if there is one that decides: put here, and expected absent or unchanged, so that of two
    /// copies of this transaction only one can be committed.
    pub(super) fn mark(&self) -> Option<(&str, &[u8])> {
        let marker = self.marker.as_deref()?;
        let guards = |(key, expect): &(String, Expect)| key == marker && *expect != Expect::Anything;
        let put = self.writes.iter().find(|write| write.key() == marker)?.value()?;
        self.expect.iter().any(guards).then_some((marker, put))
    }

    /// Holds it to the bounds of every store.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let within = |what, size, limit| {
            if size > limit { Err(StoreError::TooLarge { what, size, limit }) } else { Ok(()) }
        };
        within("transaction", self.writes.len(), MAX_WRITES)?;
        within("expectations", self.expect.len(), MAX_WRITES)?;
        let (mut bytes, mut keys) = (0, BTreeSet::new());
        for (key, _) in &self.expect {
            within("key", key.len(), MAX_KEY_BYTES)?;
            bytes += key.len();
        }
        for write in &self.writes {
            let (key, value) = (write.key(), write.value().map_or(0, <[u8]>::len));
            within("key", key.len(), MAX_KEY_BYTES)?;
            within("value", value, MAX_VALUE_BYTES)?;
            bytes += key.len() + value;
            if !keys.insert(key) {
                return Err(StoreError::WrittenTwice { key: key.to_owned() });
            }
        }
        within("bytes of a transaction", bytes, MAX_TRANSACTION_BYTES)
    }
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is durable, under this revision. One that changed nothing (only removals of what was not there) has the newest
    /// revision before it.
    Committed(Revision),
    /// Somebody else was faster: the first expectation that does not hold, and what is there instead.
    Conflict {
        /// The key.
        key: String,
        /// Its entry now, if it has one.
        found: Option<Entry>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_decides_only_where_one_copy_excludes_the_other() {
        let with = |expect, writes| Transaction { expect, writes, marker: Some("m".to_owned()) };
        let put = || vec![Write::put("a", "1"), Write::put("m", "me")];
        let guarded = vec![("m".to_owned(), Expect::Absent)];
        assert_eq!(with(guarded.clone(), put()).mark(), Some(("m", &b"me"[..])));
        assert_eq!(with(Vec::new(), put()).mark(), None, "two copies could both commit");
        assert_eq!(with(vec![("m".to_owned(), Expect::Anything)], put()).mark(), None);
        assert_eq!(with(guarded, vec![Write::delete("m")]).mark(), None, "what is gone tells nothing");
        assert_eq!(Transaction::of(put()).mark(), None);
    }

    #[test]
    fn bounds_are_those_of_the_strictest_store() {
        assert!(Transaction::of([Write::put("k", vec![0; MAX_VALUE_BYTES])]).check().is_ok());
        let refused = |writes: Vec<Write>| Transaction::of(writes).check().unwrap_err();
        let large = || vec![0; MAX_VALUE_BYTES];
        assert!(matches!(refused(vec![Write::put("k", vec![0; MAX_VALUE_BYTES + 1])]), StoreError::TooLarge { .. }));
        assert!(matches!(
            refused(vec![Write::put("a", large()), Write::put("b", large())]),
            StoreError::TooLarge { what: "bytes of a transaction", .. }
        ));
        let many = (0..=MAX_WRITES).map(|n| Write::delete(n.to_string())).collect();
        assert!(matches!(refused(many), StoreError::TooLarge { what: "transaction", .. }));
        let twice = refused(vec![Write::put("a", "1"), Write::delete("a")]);
        assert!(matches!(twice, StoreError::WrittenTwice { key } if key == "a"));
    }
}
