//! The control store: a small, ordered, revisioned map for what must outlive a process, and what several share.
//!
//! Limits and their history live here; counters and messages never do. The contract is etcd's: a committed transaction
//! gets a higher revision than all before it, a write may depend on the revision that its writer has seen, and a watch
//! continues from any revision that history still holds.
//!
//! | part | its one job |
//! |---|---|
//! | [`ControlStore`], [`Watch`] | the contract; `tests/conformance` holds both adapters to it |
//! | [`EmbeddedStore`] | one redb file, for one process |
//! | `EtcdStore` | the nodes of an etcd, for many processes (feature `etcd`) |
//! | [`list()`] | everything under a prefix, page by page |
//! | [`commit()`] | a transaction, sent again where its answer is lost, and decided |
//! | [`Follower`] | everything under a prefix, and then each change; reads again after compaction |
//! | [`KeptLease`] | a lease that is renewed until it is dropped |
//!
//! Calls are futures, which block no thread. One that is dropped early may or may not have written.

mod commit;
mod contract;
mod embedded;
mod entry;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod etcd_options;
mod follow;
mod kept_lease;
mod list;
mod transaction;

pub use commit::commit;
pub use contract::{ControlStore, Pending, Watch};
pub use embedded::{EmbeddedStore, Options};
pub use entry::{Entry, Event, LeaseId, MAX_PAGE, NodeHealth, NodeState, Page, Revision, Scan};
pub use error::StoreError;
#[cfg(feature = "etcd")]
pub use etcd::EtcdStore;
pub use etcd_options::{EtcdOptions, EtcdOptionsError, EtcdTls, EtcdUser, MAX_ENDPOINTS, PASSWORD_VARIABLE};
pub use follow::Follower;
pub use kept_lease::KeptLease;
pub use list::list;
pub use transaction::{
    Expect, MAX_KEY_BYTES, MAX_TRANSACTION_BYTES, MAX_VALUE_BYTES, MAX_WRITES, Outcome, Transaction, Write,
};
