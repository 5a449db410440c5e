//! The limits that were set live, and their history, in the control store.
//!
//! | key | value |
//! |---|---|
//! | `limit/{topic}`, `limit/{topic}/{channel}` | the contract in force |
//! | `limit-change/{number}` | one change; the latest hundred are kept, those that can be undone, and those that can be redone |
//!
//! A change and its record are one transaction, so that neither can be there without the other. Two writers cannot
//! both change the same limit from the same state: the slower one tries again on what the faster one left. Where the
//! answer to a change is lost, its record tells whether it was made: of two transactions with the same number, one is
//! committed at most.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_broker::io::admin::{
    Cause, Change, Edit, KEPT_CHANGES, LimitFeed, LimitStore, LimitStoreError, LimitStorePending, Plan, Target,
};
use tidegate_broker::machine::limiter::Contract;
use tidegate_core::limit::Limit;
use tidegate_runtime::store::{
    ControlStore, Entry, Expect, Follower, MAX_WRITES, Outcome, StoreError, Transaction, Write, list,
};

use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

const LIMIT: &str = "limit/";
const CHANGE: &str = "limit-change/";
/// As many topics as a broker has been seen with, times ten; a bound all the same.
const MOST_LIMITS: usize = 100_000;
/// Those that are kept, and those that a change that could not forget them all left.
const MOST_CHANGES: usize = 2 * KEPT_CHANGES;
/// Each try loses only to a writer that got through.
const TRIES: usize = 16;

/// The book of limits.
pub(crate) struct LimitBook {
    store: Arc<dyn ControlStore>,
    writers: Writers,
}

/// Who writes to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writers {
    /// This process alone.
    One,
    /// Several.
    Many,
}

/// A change whose answer was lost.
struct Doubt {
    change: Change,
    marked: Option<Change>,
    lost: StoreError,
}

/// How a try to make a change ended.
enum Try {
    /// The change is made, or there is nothing to undo or redo.
    Ended(Option<Box<Changed>>),
    /// Another writer was faster, or the answer is lost.
    InVain,
}

/// A change, and the earlier one that it took back or made again.
type Changed = (Change, Option<Change>);

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
    pub(crate) fn new(store: Arc<dyn ControlStore>, writers: Writers) -> Self {
        Self { store, writers }
    }

    async fn read_limits(&self) -> Result<Vec<(Target, Contract)>, LimitStoreError> {
        let (entries, _) = list(&*self.store, LIMIT, MOST_LIMITS).await?;
        entries.iter().map(|entry| Ok((target_of(entry)?, contract_of(entry)?))).collect()
    }

    async fn read_limit(&self, target: &Target) -> Result<Option<Contract>, LimitStoreError> {
        self.store.get(&key_of(target)).await?.as_ref().map(contract_of).transpose()
    }

    async fn read_history(&self) -> Result<Vec<Change>, LimitStoreError> {
        let (entries, _) = list(&*self.store, CHANGE, MOST_CHANGES).await?;
        entries.iter().rev().map(change_of).collect()
    }

    async fn make(&self, edit: &Edit) -> Result<Option<Changed>, LimitStoreError> {
        let mut doubt = None;
        for _ in 0..TRIES {
            match self.try_to_make(edit, &mut doubt).await {
                Ok(Try::Ended(changed)) => return Ok(changed.map(|changed| *changed)),
                Ok(Try::InVain) => {}
                // While an earlier try may have been committed, that is what there is to say.
                Err(error) => return Err(doubt.map_or(error, |doubt| doubt.lost.into())),
            }
        }
        Err(doubt.map_or(LimitStoreError::Contended, |doubt| doubt.lost.into()))
    }

    /// One try, from what the store holds now. If its answer is lost, `doubt` tells the next try.
    async fn try_to_make(&self, edit: &Edit, doubt: &mut Option<Doubt>) -> Result<Try, LimitStoreError> {
        let (entries, _) = list(&*self.store, CHANGE, MOST_CHANGES).await?;
        let journal = entries.iter().map(change_of).collect::<Result<Vec<_>, _>>()?;
        if let Some(made) = doubt.take_if(|doubt| journal.iter().any(|change| is_same(change, &doubt.change))) {
            return Ok(Try::Ended(Some(Box::new((made.change, made.marked)))));
        }
        let Some(target) = Plan::target_of(&journal, edit) else { return Ok(Try::Ended(None)) };
        let found = self.store.get(&key_of(&target)).await?;
        let before = found.as_ref().map(contract_of).transpose()?;
        let Some(plan) = Plan::of(&journal, edit, |_| Ok::<_, LimitStoreError>(before))? else {
            return Ok(Try::Ended(None));
        };
        match self.store.txn(transaction_of(&plan, found.as_ref(), &entries)).await {
            Ok(Outcome::Committed(_)) => Ok(Try::Ended(Some(Box::new((plan.change, plan.marked))))),
            Ok(Outcome::Conflict { .. }) => Ok(Try::InVain),
            Err(lost @ StoreError::OutcomeUnknown { .. }) => {
                *doubt = Some(Doubt { change: plan.change, marked: plan.marked, lost });
                Ok(Try::InVain)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes `plan` where the limit was `found` and the journal `entries`.
fn transaction_of(plan: &Plan, found: Option<&Entry>, entries: &[Entry]) -> Transaction {
    let Plan { change, marked, forgotten } = plan;
    let (key, record) = (key_of(&change.target), record_of(change.revision));
    let as_read = |entry: Option<&Entry>| entry.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
    let mut writes = vec![Write::put(&record, json(&StoredChange::from(change)))];
    writes.push(match change.after {
        Some(contract) => Write::put(&key, json(&StoredContract::from(contract))),
        None => Write::delete(&key),
    });
    let mut expect = vec![(key, as_read(found)), (record, Expect::Absent)];
    if let Some(marked) = marked {
        let record = record_of(marked.revision);
        expect.push((record.clone(), as_read(entries.iter().find(|entry| entry.key == record))));
        writes.push(Write::put(record, json(&StoredChange::from(marked))));
    }
    // What does not fit is forgotten with the next change, and so is what is marked now: a key is written once.
    let marked = marked.as_ref().map(|marked| marked.revision);
    let unneeded = forgotten.iter().filter(|revision| Some(**revision) != marked);
    let room = MAX_WRITES - writes.len();
    writes.extend(unneeded.take(room).map(|revision| Write::delete(record_of(*revision))));
    Transaction { expect, writes, marker: None }
}

/// Whether a record is that of a change that was sent; others may have taken it back by now.
fn is_same(found: &Change, sent: &Change) -> bool {
    let plain = |change: &Change| Change { undone_by: None, ..change.clone() };
    plain(found) == plain(sent)
}

impl LimitStore for LimitBook {
    fn limits(&self) -> LimitStorePending<'_, Vec<(Target, Contract)>> {
        Box::pin(self.read_limits())
    }

    fn limit<'a>(&'a self, target: &'a Target) -> LimitStorePending<'a, Option<Contract>> {
        Box::pin(self.read_limit(target))
    }

    fn change<'a>(&'a self, edit: &'a Edit) -> LimitStorePending<'a, Option<Changed>> {
        Box::pin(self.make(edit))
    }

    fn history(&self) -> LimitStorePending<'_, Vec<Change>> {
        Box::pin(self.read_history())
    }

    fn follow(&self) -> LimitStorePending<'_, Option<Box<dyn LimitFeed>>> {
        Box::pin(async move {
            if self.writers == Writers::One {
                return Ok(None);
            }
            let (_, follower) = Follower::start(Arc::clone(&self.store), LIMIT, MOST_LIMITS).await?;
            let feed: Box<dyn LimitFeed> = Box::new(BookFeed { follower });
            Ok(Some(feed))
        })
    }
}

/// What happens in the book.
struct BookFeed {
    follower: Follower,
}

impl LimitFeed for BookFeed {
    fn next(&mut self) -> LimitStorePending<'_, Vec<Target>> {
        Box::pin(async move {
            loop {
                let events = self.follower.next().await?;
                let parsed =
                    events.iter().map(|event| event.key.strip_prefix(LIMIT).and_then(|target| target.parse().ok()));
                // What is no limit is none for the reader of all limits either, which says so.
                let targets: Vec<Target> = parsed.flatten().collect();
                if !targets.is_empty() {
                    return Ok(targets);
                }
            }
        })
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
    use tidegate_runtime::store::{EmbeddedStore, LeaseId, NodeHealth, Options, Page, Pending, Revision, Scan, Watch};

    use std::sync::Mutex;
    use std::time::Duration;

    use tidegate_broker::io::admin::{Action, HISTORY};

    use super::*;
    use crate::scratch::Folder;

    fn book(folder: &Folder) -> LimitBook {
        let store = EmbeddedStore::open(folder.path().join("control.redb"), Options::default()).unwrap();
        LimitBook::new(Arc::new(store), Writers::Many)
    }

    async fn set(book: &LimitBook, target: &Target, after: Option<Contract>, at_ms: i64) -> Change {
        let edit = Edit { action: Action::Set(target.clone(), after), at_ms, by: "test".to_owned() };
        book.change(&edit).await.unwrap().unwrap().0
    }

    fn contract(rate: Rate, burst: u64) -> Contract {
        Contract {
            limit: Limit::new(rate, burst),
            unit: Unit::Bytes,
            discipline: Discipline::Refuse,
            mode: Mode::Shadow,
        }
    }

    #[tokio::test]
    async fn limits_survive_a_restart_exactly() {
        let folder = Folder::new("book-restart").unwrap();
        let third = contract(Rate::per(1, Duration::from_secs(3)), 7);
        let (topic, channel) = ("orders".parse().unwrap(), "orders/archive".parse().unwrap());
        let first = book(&folder);
        set(&first, &topic, Some(third), 1).await;
        set(&first, &channel, Some(contract(Rate::per_s(5), 1)), 2).await;
        set(&first, &channel, None, 3).await;
        drop(first);
        let second = book(&folder);
        assert_eq!(second.limits().await.unwrap(), [(topic.clone(), third)]);
        let history = second.history().await.unwrap();
        let told: Vec<_> = history.iter().map(|change| (change.at_ms, change.target.to_string())).collect();
        assert_eq!(
            told,
            [(3, "orders/archive".to_owned()), (2, "orders/archive".to_owned()), (1, "orders".to_owned())]
        );
        assert_eq!((history[2].before, history[2].after), (None, Some(third)));
    }

    #[tokio::test]
    async fn history_keeps_the_latest_hundred() {
        let folder = Folder::new("book-history").unwrap();
        let book = book(&folder);
        let target: Target = "orders".parse().unwrap();
        for n in 1..=103 {
            set(&book, &target, Some(contract(Rate::per_s(1), 1)), n).await;
        }
        let history = book.history().await.unwrap();
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].at_ms, history[99].at_ms), (103, 4));
    }

    #[tokio::test]
    async fn a_hundred_changes_are_undone_and_redone_over_restarts() {
        let folder = Folder::new("book-undo").unwrap();
        let target: Target = "orders".parse().unwrap();
        let first = book(&folder);
        for n in 1..=105 {
            set(&first, &target, Some(contract(Rate::per_s(n), 1)), 0).await;
        }
        drop(first);
        let act = async |book: &LimitBook, action: Action| {
            let edit = Edit { action, at_ms: 7, by: "test".to_owned() };
            book.change(&edit).await.unwrap().map(|(change, _)| change.after.unwrap().limit.rate)
        };
        let second = book(&folder);
        let mut undone = Vec::new();
        while let Some(rate) = act(&second, Action::Undo(None)).await {
            undone.push(rate);
        }
        assert_eq!((undone.len(), undone[99]), (100, Rate::per_s(5)));
        assert_eq!(act(&second, Action::Redo(None)).await, Some(Rate::per_s(6)));
        assert_eq!(act(&second, Action::Undo(None)).await, Some(Rate::per_s(5)));
        drop(second);
        let third = book(&folder);
        assert_eq!(act(&third, Action::Redo(None)).await, Some(Rate::per_s(6)));
        act(&third, Action::Undo(None)).await.unwrap();
        // A hundred changes are forgotten at once with this one.
        set(&third, &target, None, 8).await;
        assert_eq!(act(&third, Action::Redo(None)).await, None);
        assert_eq!(act(&third, Action::Undo(None)).await, Some(Rate::per_s(5)));
        assert!(third.history().await.unwrap().len() <= 2 * HISTORY);
    }

    #[tokio::test]
    async fn a_store_of_an_earlier_version_opens_and_is_undone() {
        let folder = Folder::new("book-old").unwrap();
        let old = book(&folder);
        let limit = r#"{"rate":"2/s","burst":1,"unit":"messages","discipline":"wait","mode":"enforce"}"#;
        let change = format!(r#"{{"at_ms":5,"target":"orders","before":null,"after":{limit}}}"#);
        let writes = vec![Write::put("limit/orders", limit), Write::put(record_of(1), change)];
        old.store.txn(Transaction::of(writes)).await.unwrap();
        let history = old.history().await.unwrap();
        assert_eq!((history[0].cause, history[0].undone_by, history[0].by.as_str()), (Cause::Set, None, ""));
        let edit = Edit { action: Action::Undo(None), at_ms: 6, by: String::new() };
        let (change, undone) = old.change(&edit).await.unwrap().unwrap();
        assert_eq!((change.after, change.cause, undone.unwrap().undone_by), (None, Cause::Undo(1), Some(2)));
        assert!(old.limits().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn changes_at_the_same_time_are_all_recorded() {
        let folder = Folder::new("book-race").unwrap();
        let book = book(&folder);
        let target: Target = "orders".parse().unwrap();
        let book = Arc::new(book);
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4 {
            let (book, target) = (Arc::clone(&book), target.clone());
            writers.spawn(async move {
                for n in 1..=5 {
                    set(&book, &target, Some(contract(Rate::per_s(n), writer + 1)), 0).await;
                }
            });
        }
        writers.join_all().await;
        let history = book.history().await.unwrap();
        assert_eq!(history.len(), 20);
        // Each change began where the one before it ended.
        for pair in history.windows(2) {
            assert_eq!(pair[0].before, pair[1].after);
        }
    }

    /// What becomes of a transaction whose answer is lost.
    #[derive(Clone, Copy, Debug)]
    enum Lost {
        Written,
        NotWritten,
    }

    /// Loses the answer of the next transaction, if it is told how.
    struct Lossy {
        store: EmbeddedStore,
        loses: Mutex<Option<Lost>>,
    }

    impl ControlStore for Lossy {
        fn txn(&self, transaction: Transaction) -> Pending<'_, Outcome> {
            let lost = self.loses.lock().unwrap().take();
            Box::pin(async move {
                match lost {
                    None => return self.store.txn(transaction).await,
                    Some(Lost::Written) => drop(self.store.txn(transaction).await?),
                    Some(Lost::NotWritten) => {}
                }
                Err(StoreError::OutcomeUnknown { store: "test".to_owned(), found: "lost".to_owned() })
            })
        }
        fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
            self.store.get(key)
        }
        fn range<'a>(&'a self, scan: Scan<'a>) -> Pending<'a, Page> {
            self.store.range(scan)
        }
        fn watch_from<'a>(&'a self, prefix: &'a str, seen: Revision) -> Pending<'a, Box<dyn Watch>> {
            self.store.watch_from(prefix, seen)
        }
        fn lease_grant(&self, ttl: Duration) -> Pending<'_, LeaseId> {
            self.store.lease_grant(ttl)
        }
        fn lease_keepalive(&self, lease: LeaseId) -> Pending<'_, ()> {
            self.store.lease_keepalive(lease)
        }
        fn lease_revoke(&self, lease: LeaseId) -> Pending<'_, ()> {
            self.store.lease_revoke(lease)
        }
        fn nodes(&self) -> Pending<'_, Vec<NodeHealth>> {
            self.store.nodes()
        }
    }

    #[tokio::test]
    async fn a_change_whose_answer_is_lost_is_made_once() {
        for lost in [Lost::Written, Lost::NotWritten] {
            let folder = Folder::new("book-lost").unwrap();
            let store = EmbeddedStore::open(folder.path().join("control.redb"), Options::default()).unwrap();
            let store = Arc::new(Lossy { store, loses: Mutex::new(None) });
            let book = LimitBook::new(Arc::clone(&store) as Arc<dyn ControlStore>, Writers::Many);
            let target: Target = "orders".parse().unwrap();
            set(&book, &target, Some(contract(Rate::per_s(1), 1)), 1).await;
            *store.loses.lock().unwrap() = Some(lost);
            let change = set(&book, &target, Some(contract(Rate::per_s(2), 1)), 2).await;
            let history = book.history().await.unwrap();
            assert_eq!((history.len(), &history[0]), (2, &change), "{lost:?}");
            assert_eq!(book.limit(&target).await.unwrap(), Some(contract(Rate::per_s(2), 1)));

            // An undo too is made once.
            *store.loses.lock().unwrap() = Some(lost);
            let edit = Edit { action: Action::Undo(None), at_ms: 3, by: "test".to_owned() };
            let (undo, undone) = book.change(&edit).await.unwrap().unwrap();
            assert_eq!((undo.revision, undone.unwrap().revision), (3, 2), "{lost:?}");
            assert_eq!(book.history().await.unwrap().len(), 3);
            assert_eq!(book.limit(&target).await.unwrap(), Some(contract(Rate::per_s(1), 1)));
        }
    }

    #[tokio::test]
    async fn one_book_tells_what_another_changes() {
        let folder = Folder::new("book-follow").unwrap();
        let store = EmbeddedStore::open(folder.path().join("control.redb"), Options::default()).unwrap();
        let store: Arc<dyn ControlStore> = Arc::new(store);
        let first = LimitBook::new(Arc::clone(&store), Writers::Many);
        let second = LimitBook::new(Arc::clone(&store), Writers::Many);
        let (topic, channel): (Target, Target) = ("orders".parse().unwrap(), "orders/archive".parse().unwrap());
        set(&first, &topic, Some(contract(Rate::per_s(1), 1)), 1).await;
        let mut feed = second.follow().await.unwrap().unwrap();
        set(&first, &channel, Some(contract(Rate::per_s(2), 1)), 2).await;
        assert_eq!(feed.next().await.unwrap(), [channel]);
        set(&first, &topic, None, 3).await;
        assert_eq!(feed.next().await.unwrap(), std::slice::from_ref(&topic));
        assert_eq!(second.limit(&topic).await.unwrap(), None);
        assert!(LimitBook::new(store, Writers::One).follow().await.unwrap().is_none());
    }
}
