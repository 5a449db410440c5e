//! The limits that were set live, and their history, in the control store.
//!
//! | key | value |
//! |---|---|
//! | `limit/{topic}`, `limit/{topic}/{channel}` | the contract in force |
//! | `limit-change/{number}` | one change; the latest hundred are kept |
//!
//! A change and its record are one transaction, so that neither can be there without the other. Two writers cannot
//! both change the same limit from the same state: the slower one tries again on what the faster one left.

use serde::{Deserialize, Serialize};
use tidegate_broker::io::admin::{Change, HISTORY, LimitStore, LimitStoreError, Target};
use tidegate_broker::machine::limiter::Contract;
use tidegate_core::limit::Limit;
use tidegate_runtime::store::{ControlStore, Entry, Expect, Outcome, Transaction, Write};

use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

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
    at_ms: i64,
    target: String,
    before: Option<StoredContract>,
    after: Option<StoredContract>,
}

impl LimitBook {
    pub(crate) fn new(store: Box<dyn ControlStore>) -> Self {
        Self { store }
    }
}

impl LimitStore for LimitBook {
    fn limits(&self) -> Result<Vec<(Target, Contract)>, LimitStoreError> {
        let (entries, _) = self.store.range(LIMIT, MOST_LIMITS)?;
        entries.iter().map(|entry| Ok((target_of(entry)?, contract_of(entry)?))).collect()
    }

    fn set(&self, target: &Target, after: Option<Contract>, at_ms: i64) -> Result<Change, LimitStoreError> {
        let key = format!("{LIMIT}{target}");
        for _ in 0..TRIES {
            let found = self.store.get(&key)?;
            let before = found.as_ref().map(contract_of).transpose()?;
            let (changes, _) = self.store.range(CHANGE, 2 * HISTORY)?;
            let number = changes.last().map(number_of).transpose()?.map_or(1, |last| last + 1);
            let record = format!("{CHANGE}{number:020}");

            let (from, to) = (before.map(Into::into), after.map(Into::into));
            let stored = StoredChange { at_ms, target: target.to_string(), before: from, after: to };
            let mut writes = vec![Write::put(&record, json(&stored))];
            writes.push(match after {
                Some(contract) => Write::put(&key, json(&StoredContract::from(contract))),
                None => Write::delete(&key),
            });
            let surplus = (changes.len() + 1).saturating_sub(HISTORY);
            writes.extend(changes.iter().take(surplus).map(|entry| Write::delete(&entry.key)));

            let unchanged = found.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
            let expect = vec![(key.clone(), unchanged), (record, Expect::Absent)];
            if let Outcome::Committed(_) = self.store.txn(Transaction { expect, writes })? {
                return Ok(Change { revision: number, at_ms, target: target.clone(), before, after });
            }
        }
        Err(LimitStoreError::Contended)
    }

    fn history(&self) -> Result<Vec<Change>, LimitStoreError> {
        let (entries, _) = self.store.range(CHANGE, 2 * HISTORY)?;
        entries.iter().rev().take(HISTORY).map(change_of).collect()
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain fields with text keys have a JSON form")
}

fn bad(entry: &Entry) -> LimitStoreError {
    LimitStoreError::BadRow { key: entry.key.clone() }
}

fn target_of(entry: &Entry) -> Result<Target, LimitStoreError> {
    entry.key.strip_prefix(LIMIT).and_then(|target| target.parse().ok()).ok_or_else(|| bad(entry))
}

fn number_of(entry: &Entry) -> Result<u64, LimitStoreError> {
    entry.key.strip_prefix(CHANGE).and_then(|number| number.parse().ok()).ok_or_else(|| bad(entry))
}

fn contract_of(entry: &Entry) -> Result<Contract, LimitStoreError> {
    let stored: StoredContract = serde_json::from_slice(&entry.value).map_err(|_| bad(entry))?;
    Ok(stored.into())
}

fn change_of(entry: &Entry) -> Result<Change, LimitStoreError> {
    let stored: StoredChange = serde_json::from_slice(&entry.value).map_err(|_| bad(entry))?;
    Ok(Change {
        revision: number_of(entry)?,
        at_ms: stored.at_ms,
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

    use std::time::Duration;

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

    #[test]
    fn limits_survive_a_restart_exactly() {
        let folder = Folder::new("book-restart").unwrap();
        let third = contract(Rate::per(1, Duration::from_secs(3)), 7);
        let (topic, channel) = ("orders".parse().unwrap(), "orders/archive".parse().unwrap());
        let first = book(&folder);
        first.set(&topic, Some(third), 1).unwrap();
        first.set(&channel, Some(contract(Rate::per_s(5), 1)), 2).unwrap();
        first.set(&channel, None, 3).unwrap();
        drop(first);
        let second = book(&folder);
        assert_eq!(second.limits().unwrap(), [(topic.clone(), third)]);
        let history = second.history().unwrap();
        let told: Vec<_> = history.iter().map(|change| (change.at_ms, change.target.to_string())).collect();
        assert_eq!(
            told,
            [(3, "orders/archive".to_owned()), (2, "orders/archive".to_owned()), (1, "orders".to_owned())]
        );
        assert_eq!((history[2].before, history[2].after), (None, Some(third)));
    }

    #[test]
    fn history_keeps_the_latest_hundred() {
        let folder = Folder::new("book-history").unwrap();
        let book = book(&folder);
        let target: Target = "orders".parse().unwrap();
        for n in 1..=103 {
            book.set(&target, Some(contract(Rate::per_s(1), 1)), n).unwrap();
        }
        let history = book.history().unwrap();
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].at_ms, history[99].at_ms), (103, 4));
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
                        book.set(target, Some(contract(Rate::per_s(n), thread + 1)), 0).unwrap();
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
