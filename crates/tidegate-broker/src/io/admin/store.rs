//! Where limits that were set live outlast the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use tidegate_runtime::store::StoreError;

use super::limits::Target;
use crate::machine::limiter::Contract;

/// Changes that can be looked up and undone.
pub const HISTORY: usize = 100;

/// A change of one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its number; later changes have higher ones.
    pub revision: u64,
    /// Unix time, ms.
    pub at_ms: i64,
    /// What it holds for.
    pub target: Target,
    /// What was set live before.
    pub before: Option<Contract>,
    /// What is set live since.
    pub after: Option<Contract>,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitStoreError {
    /// The control store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row of the control store is no limit.
    #[error("the control store holds something else at {key}")]
    BadRow {
        /// Its key.
        key: String,
    },
    /// Other writers of the same control store were faster each time.
    #[error("the limit is being changed by others; try again")]
    Contended,
}

/// Keeps limits and their history. Calls may wait for a disk; they come one at a time, but for reads.
pub trait LimitStore: Send + Sync + 'static {
    /// Every limit that was set and not removed.
    fn limits(&self) -> Result<Vec<(Target, Contract)>, LimitStoreError>;

    /// Sets or removes the limit of `target` and records the change, together; durable when it returns.
    fn set(&self, target: &Target, after: Option<Contract>, at_ms: i64) -> Result<Change, LimitStoreError>;

    /// The latest [`HISTORY`] changes, newest first.
    fn history(&self) -> Result<Vec<Change>, LimitStoreError>;
}

/// Keeps limits as long as the process lives, for brokers without a store.
#[derive(Default, Debug)]
pub struct Transient(Mutex<Kept>);

#[derive(Default, Debug)]
struct Kept {
    limits: BTreeMap<Target, Contract>,
    /// Newest first.
    history: VecDeque<Change>,
}

impl LimitStore for Transient {
    fn limits(&self) -> Result<Vec<(Target, Contract)>, LimitStoreError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.limits.iter().map(|(target, contract)| (target.clone(), *contract)).collect())
    }

    fn set(&self, target: &Target, after: Option<Contract>, at_ms: i64) -> Result<Change, LimitStoreError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match after {
            Some(contract) => kept.limits.insert(target.clone(), contract),
            None => kept.limits.remove(target),
        };
        let revision = kept.history.front().map_or(0, |newest| newest.revision) + 1;
        let change = Change { revision, at_ms, target: target.clone(), before, after };
        kept.history.push_front(change.clone());
        kept.history.truncate(HISTORY);
        Ok(change)
    }

    fn history(&self) -> Result<Vec<Change>, LimitStoreError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.history.iter().cloned().collect())
    }
}
