//! The limits that were set live, and their history, in the control store.
//!
//! | key | value |
//! |---|---|
//! | `limit/{topic}`, `limit/{topic}/{channel}` | the contract in force |
//! | `limit-change/{number}` | one change; the latest [`HISTORY`] are kept |
//!
//! A change and its record are one transaction, so that neither can be there without the other. Two writers cannot
//! both change the same limit from the same state: the slower one tries again on what the faster one left.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_broker::machine::limiter::Contract;
use tidegate_core::limit::Limit;
use tidegate_runtime::store::{ControlStore, Entry, Expect, Outcome, Revision, StoreError, Transaction, Write};

use crate::target::Target;
use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

/// Changes that can be looked up.
pub(crate) const HISTORY: usize = 100;
const LIMIT: &str = "limit/";
const CHANGE: &str = "limit-change/";
/// As many topics as a broker has been seen with, times ten; a bound all the same.
const MOST_LIMITS: usize = 100_000;
/// Each try loses only to a writer that got through.
const TRIES: usize = 16;

/// The book of limits. Its calls block for a disk write.
pub(crate) struct LimitBook {
    store: Box<dyn ControlStore>,
}

/// A change of one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    /// Unix time.
    pub(crate) at: Duration,
    pub(crate) target: Target,
    pub(crate) before: Option<Contract>,
    pub(crate) after: Option<Contract>,
}

/// Why the book could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BookError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row of the store is none of ours.
    #[error("the control store holds something else at {key}")]
    BadRow {
        /// Its key.
        key: String,
    },
    /// Other writers were faster each time.
    #[error("the limit is being changed by others; try again")]
    Contended,
}

/// A contract as it is stored. The text of a rate is exact.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct StoredContract {
    rate: RateText,
    burst: u64,
    unit: UnitWord,
    discipline: DisciplineWord,
    mode: ModeWord,
}

#[derive(Serialize, Deserialize)]
struct StoredChange {
    at_ms: u64,
    target: String,
    before: Option<StoredContract>,
    after: Option<StoredContract>,
}

impl LimitBook {
    pub(crate) fn new(store: Box<dyn ControlStore>) -> Self {
        Self { store }
    }

    /// Every limit that was set and not removed, by target.
    pub(crate) fn limits(&self) -> Result<Vec<(Target, Contract)>, BookError> {
        let (entries, _) = self.store.range(LIMIT, MOST_LIMITS)?;
        entries.iter().map(|entry| Ok((target_of(entry, LIMIT)?, contract_of(entry)?))).collect()
    }

    /// Puts `after` in force for `target`, or nothing, and records it. `at` is Unix time.
    pub(crate) fn set(&self, target: &Target, after: Option<Contract>, at: Duration) -> Result<Change, BookError> {
        let key = format!("{LIMIT}{target}");
        for _ in 0..TRIES {
            let found = self.store.get(&key)?;
            let before = found.as_ref().map(contract_of).transpose()?;
            let (changes, _) = self.store.range(CHANGE, 2 * HISTORY)?;
            let number = changes.last().map(|last| number_of(last)).transpose()?.map_or(0, |last| last + 1);
            let record = format!("{CHANGE}{number:020}");

            let mut writes = vec![match after {
                Some(contract) => Write::put(&key, json(&StoredContract::from(contract))),
                None => Write::delete(&key),
            }];
            let stored = StoredChange {
                at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
                target: target.to_string(),
                before: before.map(Into::into),
                after: after.map(Into::into),
            };
            writes.push(Write::put(&record, json(&stored)));
            let surplus = (changes.len() + 1).saturating_sub(HISTORY);
            writes.extend(changes.iter().take(surplus).map(|entry| Write::delete(&entry.key)));

            let unchanged = found.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
            let expect = vec![(key.clone(), unchanged), (record, Expect::Absent)];
            if let Outcome::Committed(revision) = self.store.txn(Transaction { expect, writes })? {
                return Ok(Change { revision, at, target: target.clone(), before, after });
            }
        }
        Err(BookError::Contended)
    }

    /// The latest changes, newest first.
    pub(crate) fn history(&self) -> Result<Vec<Change>, BookError> {
        let (entries, _) = self.store.range(CHANGE, 2 * HISTORY)?;
        entries.iter().rev().take(HISTORY).map(change_of).collect()
    }

    /// Takes the newest change back, as a change of its own. `None` if there was none.
    ///
    /// Doing it twice redoes the change, as both directions are recorded alike.
    pub(crate) fn undo(&self, at: Duration) -> Result<Option<Change>, BookError> {
        match self.history()?.into_iter().next() {
            Some(newest) => self.set(&newest.target, newest.before, at).map(Some),
            None => Ok(None),
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain fields with text keys have a JSON form")
}

fn bad(entry: &Entry) -> BookError {
    BookError::BadRow { key: entry.key.clone() }
}

fn target_of(entry: &Entry, prefix: &str) -> Result<Target, BookError> {
    entry.key.strip_prefix(prefix).and_then(|target| target.parse().ok()).ok_or_else(|| bad(entry))
}

fn number_of(entry: &Entry) -> Result<u64, BookError> {
    entry.key.strip_prefix(CHANGE).and_then(|number| number.parse().ok()).ok_or_else(|| bad(entry))
}

fn contract_of(entry: &Entry) -> Result<Contract, BookError> {
    let stored: StoredContract = serde_json::from_slice(&entry.value).map_err(|_| bad(entry))?;
    Ok(stored.into())
}

fn change_of(entry: &Entry) -> Result<Change, BookError> {
    let stored: StoredChange = serde_json::from_slice(&entry.value).map_err(|_| bad(entry))?;
    Ok(Change {
        revision: entry.modified,
        at: Duration::from_millis(stored.at_ms),
        target: stored.target.parse().map_err(|_| bad(entry))?,
        before: stored.before.map(Into::into),
        after: stored.after.map(Into::into),
    })
}

impl From<StoredContract> for Contract {
    fn from(stored: StoredContract) -> Self {
        Self {
            limit: Limit::new(stored.rate.0, stored.burst),
            unit: stored.unit.into(),
            discipline: stored.discipline.into(),
            mode: stored.mode.into(),
        }
    }
}

impl From<Contract> for StoredContract {
    fn from(contract: Contract) -> Self {
        Self {
            rate: RateText(contract.limit.rate),
            burst: contract.limit.burst,
            unit: contract.unit.into(),
            discipline: contract.discipline.into(),
            mode: contract.mode.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_broker::machine::limiter::{Discipline, Mode, Unit};
    use tidegate_core::Rate;
    use tidegate_runtime::store::{EmbeddedStore, Options};

    use super::*;
    use crate::scratch::Folder;

    fn book(folder: &Folder) -> LimitBook {
        let store = EmbeddedStore::open(folder.path().join("control.redb"), Options::default()).unwrap();
        LimitBook::new(Box::new(store))
    }

    fn contract(rate: Rate, burst: u64) -> Contract {
        Contract {
            limit: Limit::new(rate, burst),
            unit: Unit::Bytes,
            discipline: Discipline::Refuse,
            mode: Mode::Shadow,
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn limits_survive_a_restart_exactly() {
        let folder = Folder::new("book-restart").unwrap();
        let third = contract(Rate::per(1, Duration::from_secs(3)), 7);
        let (topic, channel) = ("orders".parse().unwrap(), "orders/archive".parse().unwrap());
        let first = book(&folder);
        first.set(&topic, Some(third), at(1)).unwrap();
        first.set(&channel, Some(contract(Rate::per_s(5), 1)), at(2)).unwrap();
        first.set(&channel, None, at(3)).unwrap();
        drop(first);
        let second = book(&folder);
        assert_eq!(second.limits().unwrap(), [(topic.clone(), third)]);
        let history = second.history().unwrap();
        let told: Vec<_> = history.iter().map(|change| (change.at, change.target.to_string())).collect();
        assert_eq!(
            told,
            [(at(3), "orders/archive".to_owned()), (at(2), "orders/archive".to_owned()), (at(1), "orders".to_owned())]
        );
        assert_eq!((history[2].before, history[2].after), (None, Some(third)));
    }

    #[test]
    fn undo_takes_the_newest_change_back_and_twice_does_it_again() {
        let folder = Folder::new("book-undo").unwrap();
        let book = book(&folder);
        assert_eq!(book.undo(at(0)).unwrap(), None);
        let target: Target = "orders".parse().unwrap();
        let (old, new) = (contract(Rate::per_s(1), 1), contract(Rate::per_s(2), 2));
        book.set(&target, Some(old), at(1)).unwrap();
        book.set(&target, Some(new), at(2)).unwrap();
        let undone = book.undo(at(3)).unwrap().unwrap();
        assert_eq!((undone.before, undone.after), (Some(new), Some(old)));
        assert_eq!(book.limits().unwrap(), [(target.clone(), old)]);
        book.undo(at(4)).unwrap();
        assert_eq!(book.limits().unwrap(), [(target, new)]);
    }

    #[test]
    fn history_keeps_the_latest_hundred() {
        let folder = Folder::new("book-history").unwrap();
        let book = book(&folder);
        let target: Target = "orders".parse().unwrap();
        for n in 1..=103 {
            book.set(&target, Some(contract(Rate::per_s(n), 1)), at(n)).unwrap();
        }
        let history = book.history().unwrap();
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].at, history[99].at), (at(103), at(4)));
    }

    #[test]
    fn changes_at_the_same_time_are_all_recorded() {
        let folder = Folder::new("book-race").unwrap();
        let book = book(&folder);
        let target: Target = "orders".parse().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (book, target) = (&book, &target);
                scope.spawn(move || {
                    for n in 1..=5 {
                        book.set(target, Some(contract(Rate::per_s(n), thread + 1)), at(n)).unwrap();
                    }
                });
            }
        });
        let history = book.history().unwrap();
        assert_eq!(history.len(), 20);
        // Each change began where the one before it ended.
        for pair in history.windows(2) {
            assert_eq!(pair[0].before, pair[1].after);
        }
    }
}
