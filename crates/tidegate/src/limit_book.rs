//! The limits that were set live, and their history, in the control store.
//!
//! | key | value |
//! |---|---|
//! | `limit/{topic}`, `limit/{topic}/{channel}` | the contract in force |
//! | `limit-change/{number}` | one change; the latest hundred are kept, those that can be undone, and those that can be redone |
//!
//! A change and its record are one transaction, so that neither can be there without the other. Two writers cannot
//! both change the same limit from the same state: the slower one tries again on what the faster one left.

use serde::{Deserialize, Serialize};
use tidegate_broker::io::admin::{Cause, Change, Edit, KEPT_CHANGES, LimitStore, LimitStoreError, Plan, Target};
use tidegate_broker::machine::limiter::Contract;
use tidegate_core::limit::Limit;
use tidegate_runtime::store::{ControlStore, Entry, Expect, MAX_WRITES, Outcome, Transaction, Write};

use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

const LIMIT: &str = "limit/";
const CHANGE: &str = "limit-change/";
/// As many topics as a broker has been seen with, times ten; a bound all the same.
const MOST_LIMITS: usize = 100_000;
/// Those that are kept, and those that a change that could not forget them all left.
const MOST_CHANGES: usize = 2 * KEPT_CHANGES;
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
    // Stores of earlier versions have none of these: there, every change counts as one that somebody asked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    undo_of: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redo_of: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    undone_by: Option<u64>,
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

    fn change(&self, edit: &Edit) -> Result<Option<(Change, Option<Change>)>, LimitStoreError> {
        for _ in 0..TRIES {
            let (entries, _) = self.store.range(CHANGE, MOST_CHANGES)?;
            let journal = entries.iter().map(change_of).collect::<Result<Vec<_>, _>>()?;
            let mut found = None;
            let plan = Plan::of(&journal, edit, |target| {
                found = self.store.get(&key_of(target))?;
                found.as_ref().map(contract_of).transpose()
            });
            let Some(Plan { change, marked, forgotten }) = plan? else { return Ok(None) };

            let key = key_of(&change.target);
            let record = record_of(change.revision);
            let mut writes = vec![Write::put(&record, json(&StoredChange::from(&change)))];
            writes.push(match change.after {
                Some(contract) => Write::put(&key, json(&StoredContract::from(contract))),
                None => Write::delete(&key),
            });
            let unchanged = found.as_ref().map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
            let mut expect = vec![(key, unchanged), (record, Expect::Absent)];
            if let Some(marked) = &marked {
                let record = record_of(marked.revision);
                let as_read = entries.iter().find(|entry| entry.key == record);
                let unchanged = as_read.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
                expect.push((record.clone(), unchanged));
                writes.push(Write::put(record, json(&StoredChange::from(marked))));
            }
            // What does not fit is forgotten with the next change.
            let room = MAX_WRITES - writes.len();
            writes.extend(forgotten.iter().take(room).map(|revision| Write::delete(record_of(*revision))));
            if let Outcome::Committed(_) = self.store.txn(Transaction { expect, writes })? {
                return Ok(Some((change, marked)));
            }
        }
        Err(LimitStoreError::Contended)
    }

    fn history(&self) -> Result<Vec<Change>, LimitStoreError> {
        let (entries, _) = self.store.range(CHANGE, MOST_CHANGES)?;
        entries.iter().rev().map(change_of).collect()
    }
}

fn key_of(target: &Target) -> String {
    format!("{LIMIT}{target}")
}

fn record_of(revision: u64) -> String {
    format!("{CHANGE}{revision:020}")
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
        by: stored.by,
        target: stored.target.parse().map_err(|_| bad(entry))?,
        before: stored.before.map(Into::into),
        after: stored.after.map(Into::into),
        cause: match (stored.undo_of, stored.redo_of) {
            (Some(of), _) => Cause::Undo(of),
            (None, Some(of)) => Cause::Redo(of),
            (None, None) => Cause::Set,
        },
        undone_by: stored.undone_by,
    })
}

impl From<&Change> for StoredChange {
    fn from(change: &Change) -> Self {
        let (undo_of, redo_of) = match change.cause {
            Cause::Set => (None, None),
            Cause::Undo(of) => (Some(of), None),
            Cause::Redo(of) => (None, Some(of)),
        };
        Self {
            at_ms: change.at_ms,
            target: change.target.to_string(),
            before: change.before.map(Into::into),
            after: change.after.map(Into::into),
            by: change.by.clone(),
            undo_of,
            redo_of,
            undone_by: change.undone_by,
        }
    }
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

    use tidegate_broker::io::admin::{Action, HISTORY};

    use super::*;
    use crate::scratch::Folder;

    fn book(folder: &Folder) -> LimitBook {
        let store = EmbeddedStore::open(folder.path().join("control.redb"), Options::default()).unwrap();
        LimitBook::new(Box::new(store))
    }

    fn set(book: &LimitBook, target: &Target, after: Option<Contract>, at_ms: i64) -> Change {
        let edit = Edit { action: Action::Set(target.clone(), after), at_ms, by: "test".to_owned() };
        book.change(&edit).unwrap().unwrap().0
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
        set(&first, &topic, Some(third), 1);
        set(&first, &channel, Some(contract(Rate::per_s(5), 1)), 2);
        set(&first, &channel, None, 3);
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
            set(&book, &target, Some(contract(Rate::per_s(1), 1)), n);
        }
        let history = book.history().unwrap();
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].at_ms, history[99].at_ms), (103, 4));
    }

    #[test]
    fn a_hundred_changes_are_undone_and_redone_over_restarts() {
        let folder = Folder::new("book-undo").unwrap();
        let target: Target = "orders".parse().unwrap();
        let first = book(&folder);
        for n in 1..=105 {
            set(&first, &target, Some(contract(Rate::per_s(n), 1)), 0);
        }
        drop(first);
        let act = |book: &LimitBook, action: Action| {
            let edit = Edit { action, at_ms: 7, by: "test".to_owned() };
            book.change(&edit).unwrap().map(|(change, _)| change.after.unwrap().limit.rate)
        };
        let second = book(&folder);
        let undone: Vec<_> = std::iter::from_fn(|| act(&second, Action::Undo(None))).collect();
        assert_eq!((undone.len(), undone[99]), (100, Rate::per_s(5)));
        assert_eq!(act(&second, Action::Redo(None)), Some(Rate::per_s(6)));
        assert_eq!(act(&second, Action::Undo(None)), Some(Rate::per_s(5)));
        drop(second);
        let third = book(&folder);
        assert_eq!(act(&third, Action::Redo(None)), Some(Rate::per_s(6)));
        act(&third, Action::Undo(None)).unwrap();
        // A hundred changes are forgotten at once with this one.
        set(&third, &target, None, 8);
        assert_eq!(act(&third, Action::Redo(None)), None);
        assert_eq!(act(&third, Action::Undo(None)), Some(Rate::per_s(5)));
        assert!(third.history().unwrap().len() <= 2 * HISTORY);
    }

    #[test]
    fn a_store_of_an_earlier_version_opens_and_is_undone() {
        let folder = Folder::new("book-old").unwrap();
        let old = book(&folder);
        let limit = r#"{"rate":"2/s","burst":1,"unit":"messages","discipline":"wait","mode":"enforce"}"#;
        let change = format!(r#"{{"at_ms":5,"target":"orders","before":null,"after":{limit}}}"#);
        let writes = vec![Write::put("limit/orders", limit), Write::put(record_of(1), change)];
        old.store.txn(Transaction { expect: Vec::new(), writes }).unwrap();
        let history = old.history().unwrap();
        assert_eq!((history[0].cause, history[0].undone_by, history[0].by.as_str()), (Cause::Set, None, ""));
        let edit = Edit { action: Action::Undo(None), at_ms: 6, by: String::new() };
        let (change, undone) = old.change(&edit).unwrap().unwrap();
        assert_eq!((change.after, change.cause, undone.unwrap().undone_by), (None, Cause::Undo(1), Some(2)));
        assert!(old.limits().unwrap().is_empty());
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
                        set(book, target, Some(contract(Rate::per_s(n), thread + 1)), 0);
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
