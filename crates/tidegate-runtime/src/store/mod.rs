//! The control store: a small, ordered, revisioned map for what must outlive the process.
//!
//! Limits and their history live here; counters and messages never do. The contract is etcd's, so that a cluster's
//! store can stand in for the embedded one: every committed transaction gets the next revision, a write may depend
//! on the revision that its writer has seen, and a watch continues from any revision that history still holds.
//!
//! Calls block for a disk write, or for a network round trip in an adapter that has one; asynchronous callers hand
//! them to a blocking thread.

mod embedded;

use std::path::PathBuf;
use std::time::Duration;

pub use embedded::{EmbeddedStore, Options};

/// The number of a committed transaction: 1, 2, 3 ... without a gap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// A claim on keys that ends by itself unless it is kept alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value, as it was put.
    pub value: Vec<u8>,
    /// The transaction that made the key.
    pub created: Revision,
    /// The transaction that last wrote it; what [`Expect::Unchanged`] compares.
    pub modified: Revision,
    /// The lease that the key ends with.
    pub lease: Option<LeaseId>,
}

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
}

/// Writes that happen together, or not at all.
#[derive(Clone, Default, Debug)]
pub struct Transaction {
    /// All of them must hold.
    pub expect: Vec<(String, Expect)>,
    /// In this order; at most [`MAX_WRITES`].
    pub writes: Vec<Write>,
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is durable, under this revision.
    Committed(Revision),
    /// Somebody else was faster: the first expectation that does not hold, and what is there instead.
    Conflict {
        /// The key.
        key: String,
        /// Its entry now, if it has one.
        found: Option<Entry>,
    },
}

/// A committed write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The transaction it belongs to; several events may share it.
    pub revision: Revision,
    /// The key.
    pub key: String,
    /// The new value; `None` for a key that was removed or whose lease ended.
    pub value: Option<Vec<u8>>,
}

/// A stream of the writes under a prefix, in order of revision, none missing and none twice.
pub trait Watch: Send {
    /// The next events, or none if nothing happened within `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when history no longer holds what comes next: read everything again, then watch
    /// from there.
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, StoreError>;
}

/// Longest key. Topic and channel names are at most 64 bytes each.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest value, as in etcd's default of 1.5 MiB, rounded down.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Most writes of a transaction, as in etcd.
pub const MAX_WRITES: usize = 128;

/// A revisioned map with transactions, watches and leases.
pub trait ControlStore: Send + Sync {
    /// The entry at `key`.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// The first `limit` entries whose key starts with `prefix`, in order of key, and the revision they are from.
    fn range(&self, prefix: &str, limit: usize) -> Result<(Vec<Entry>, Revision), StoreError>;

    /// Commits `transaction` if everything it expects holds. Durable when this returns.
    fn txn(&self, transaction: Transaction) -> Result<Outcome, StoreError>;

    /// Sets one key if `expect` holds.
    fn put_if(&self, key: &str, value: Vec<u8>, expect: Expect) -> Result<Outcome, StoreError> {
        self.txn(Transaction { expect: vec![(key.to_owned(), expect)], writes: vec![Write::put(key, value)] })
    }

    /// Follows the writes under `prefix` that come after revision `seen`.
    fn watch_from(&self, prefix: &str, seen: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// A new lease that ends after `ttl`, with every key put under it.
    fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Lets `lease` live for its whole time to live again.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`]: its keys are gone, and whatever they claimed may be another's by now.
    fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError>;
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the file.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The store's file.
        path: PathBuf,
    },
    /// The file is not a store, or was damaged by something other than a crash.
    #[error("{} is damaged or is no control store: {found}", path.display())]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The file's layout is of a later version.
    #[error("{} has layout {found}, and this version reads up to {supported}", path.display())]
    TooNew {
        /// The store's file.
        path: PathBuf,
        /// The layout's number in the file.
        found: u64,
        /// The newest layout this version knows.
        supported: u64,
    },
    /// The system refused to read or write.
    #[error("cannot use {}", path.display())]
    Io {
        /// The store's file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A key, value or transaction is over its bound.
    #[error("{what} of {size} exceeds the limit of {limit}")]
    TooLarge {
        /// `key`, `value` or `transaction`.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// History no longer reaches back to what a watch has seen.
    #[error("history begins after revision {}, and the watch has only seen revision {}", oldest.0, seen.0)]
    Compacted {
        /// What the watch has seen.
        seen: Revision,
        /// The newest revision that history has forgotten.
        oldest: Revision,
    },
    /// There is no such lease any more.
    #[error("lease {} has ended", lease.0)]
    LeaseEnded {
        /// The lease.
        lease: LeaseId,
    },
}

impl StoreError {
    /// What a person can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Locked { .. } => Some("stop the other tidegate, or give this one its own file with store.path"),
            Self::Damaged { .. } => Some(
                "move the file away: limits then come from the configuration alone, and changes made live are lost",
            ),
            Self::TooNew { .. } => Some("start the newer tidegate, or give this one its own file with store.path"),
            Self::Io { .. } => Some("check the folder's permissions and free space"),
            _ => None,
        }
    }
}
