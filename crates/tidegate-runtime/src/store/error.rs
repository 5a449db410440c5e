//! Why a store did not do it.

use std::path::PathBuf;

use super::entry::{LeaseId, Revision};

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
    /// A key, value, transaction or list is over its bound.
    #[error("{what} of {size} exceeds the limit of {limit}")]
    TooLarge {
        /// Such as `key`, `value` or `transaction`.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// A transaction writes a key twice.
    #[error("a transaction writes {key} twice")]
    WrittenTwice {
        /// The key.
        key: String,
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
    /// Nothing answers in time. Nothing was written.
    #[error("the control store at {store} cannot be reached: {found}")]
    Unavailable {
        /// The file, or the endpoints.
        store: String,
        /// What the last try ended with.
        found: String,
    },
    /// A transaction was sent, and the answer is lost: it may be committed, may be committed later, or may never be.
    #[error("the control store at {store} did not say whether it has written: {found}")]
    OutcomeUnknown {
        /// The file, or the endpoint that was asked.
        store: String,
        /// What the try ended with.
        found: String,
    },
    /// The store answered, and does not do it. Nothing was written.
    #[error("the control store at {store} refused: {found}")]
    Refused {
        /// The endpoint that answered.
        store: String,
        /// Its words.
        found: String,
    },
    /// A certificate, a key or a password for the store is not to be used.
    #[error("the control store needs {place}, which cannot be used")]
    Credentials {
        /// The file, or the environment's variable.
        place: String,
        /// What is wrong with it.
        #[source]
        source: std::io::Error,
    },
    /// Another program's key is where only keys of ours are.
    #[error("the control store holds a key that is none of Tidegate's: {key}")]
    Foreign {
        /// The key, as far as it is text.
        key: String,
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
            Self::Unavailable { .. } => {
                Some("check that most of the nodes in store.endpoints run, and can be reached from here")
            }
            Self::OutcomeUnknown { .. } => Some("look at what holds now before doing it again"),
            Self::Credentials { .. } => Some("check ca_file, cert_file, key_file and password_file in [store]"),
            Self::Foreign { .. } => Some("give Tidegate a prefix of its own with store.prefix"),
            _ => None,
        }
    }

    /// Whether the store may do the same a little later, without anybody's help.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }
}
