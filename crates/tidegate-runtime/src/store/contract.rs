//! The contract of every control store.

use std::pin::Pin;
use std::time::Duration;

use super::entry::{Entry, Event, LeaseId, NodeHealth, Page, Revision, Scan};
use super::error::StoreError;
use super::transaction::{Expect, Outcome, Transaction, Write};

/// A call under way. Boxed, so that stores can be exchanged at run time; a call costs a disk write or a round trip.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A stream of the writes under a prefix, in order of revision, none missing and none twice.
pub trait Watch: Send {
    /// The next events, at least one; those of one transaction come together. Waits until there are some, also while the
    /// store cannot be reached. May be dropped and called again without losing any.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when history no longer holds what comes next: read everything again, then watch from
    /// there. [`StoreError::Refused`] and [`StoreError::Foreign`] end a watch too. [`StoreError::Unavailable`] once it has
    /// ended, or its store is gone.
    fn next(&mut self) -> Pending<'_, Vec<Event>>;
}

/// A revisioned map with transactions, watches and leases.
///
/// Reads see every write that was acknowledged before they began, whoever made it. Any call may end in
/// [`StoreError::Unavailable`] or [`StoreError::Refused`]; what else, its own words say.
pub trait ControlStore: Send + Sync {
    /// The entry at `key`.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>>;

    /// A page of the entries under a prefix. `list` puts the pages together.
    fn range<'a>(&'a self, scan: Scan<'a>) -> Pending<'a, Page>;

    /// Commits `transaction` if everything it expects holds. Durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::OutcomeUnknown`] if the answer is lost; `commit` finds out. [`StoreError::TooLarge`] and
    /// [`StoreError::WrittenTwice`] for what no store takes. [`StoreError::LeaseEnded`] if a lease of its writes has; of
    /// several, the first is named.
    fn txn(&self, transaction: Transaction) -> Pending<'_, Outcome>;

    /// Sets one key if `expect` holds.
    fn put_if<'a>(&'a self, key: &str, value: Vec<u8>, expect: Expect) -> Pending<'a, Outcome> {
        let expect = vec![(key.to_owned(), expect)];
        self.txn(Transaction { expect, writes: vec![Write::put(key, value)], marker: None })
    }

    /// Follows the writes under `prefix` that come after revision `seen`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`], here or at the first [`Watch::next`].
    fn watch_from<'a>(&'a self, prefix: &'a str, seen: Revision) -> Pending<'a, Box<dyn Watch>>;

    /// A new lease that ends `ttl` after this began, or later, with every key put under it. A store may give it more: etcd
    /// counts whole seconds, and gives 2 at least.
    fn lease_grant(&self, ttl: Duration) -> Pending<'_, LeaseId>;

    /// Lets `lease` live for its whole time to live again, from some moment within this call on. Its holder counts from
    /// the beginning of the call.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`]: its keys are gone, and whatever they claimed may be another's by now.
    fn lease_keepalive(&self, lease: LeaseId) -> Pending<'_, ()>;

    /// Ends `lease` now, with every key put under it. Nothing if it has ended.
    fn lease_revoke(&self, lease: LeaseId) -> Pending<'_, ()>;

    /// The processes that keep the store, in the order of its configuration.
    fn nodes(&self) -> Pending<'_, Vec<NodeHealth>>;
}
