//! The file of an embedded store: its tables, its history, and the leases of the process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{
    CommitError, Database, DatabaseError, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageError, Table, TableDefinition, TableError, TransactionError, WriteTransaction,
};
use tidegate_core::Instant;
use tokio::sync::watch;

use super::Options;
use crate::store::entry::{Entry, Event, LeaseId, Page, Revision, after};
use crate::store::error::StoreError;
use crate::store::transaction::{Outcome, Transaction, Write};

/// Created, modified, lease (0 for none), value.
type Row = (u64, u64, u64, &'static [u8]);
const ENTRIES: TableDefinition<&str, Row> = TableDefinition::new("entries");
/// Key, new value; `None` is a removal.
type Change = (&'static str, Option<&'static [u8]>);
/// Keyed by revision and the write's place in its transaction.
const HISTORY: TableDefinition<(u64, u32), Change> = TableDefinition::new("history");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Raised when an older program could not read the file.
const LAYOUT: u64 = 1;
/// Events that a watch is given at once, and those of the last transaction among them.
const BATCH: usize = 1_000;

/// The open file.
pub(super) struct StoreFile {
    path: PathBuf,
    options: Options,
    database: Database,
    /// The newest revision. Set after a commit only, so a panic in between leaves it right.
    committed: watch::Sender<Revision>,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
}

#[derive(Clone, Copy)]
struct Lease {
    ttl: Duration,
    ends: Instant,
}

impl StoreFile {
    /// Opens the file, or makes it, and ends the leases of the process before.
    pub(super) fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|source| StoreError::Io { path: path.to_path_buf(), source })?;
        }
        let database = Database::create(path).map_err(|error| open_error(path, error))?;
        let committed = watch::Sender::new(Revision::default());
        let path = path.to_path_buf();
        let file = Self { path, options, database, committed, leases: BTreeMap::new(), last_lease: 0 };
        let revision = file.set_up()?;
        file.committed.send_replace(revision);
        file.drop_keys_of(|_| true)?;
        Ok(file)
    }

    /// Told of every commit.
    pub(super) fn committed(&self) -> watch::Receiver<Revision> {
        self.committed.subscribe()
    }

    fn revision(&self) -> Revision {
        *self.committed.borrow()
    }

    /// Makes the tables, checks the layout, reads the revision.
    fn set_up(&self) -> Result<Revision, StoreError> {
        let write = self.begin()?;
        let revision;
        {
            write.open_table(ENTRIES).map_err(|e| self.table(e))?;
            write.open_table(HISTORY).map_err(|e| self.table(e))?;
            let mut meta = write.open_table(META).map_err(|e| self.table(e))?;
            let layout = meta.get("layout").map_err(|e| self.storage(e))?.map_or(LAYOUT, |found| found.value());
            if layout > LAYOUT {
                return Err(StoreError::TooNew { path: self.path.clone(), found: layout, supported: LAYOUT });
            }
            meta.insert("layout", LAYOUT).map_err(|e| self.storage(e))?;
            revision = meta.get("revision").map_err(|e| self.storage(e))?.map_or(0, |found| found.value());
        }
        self.commit(write)?;
        Ok(Revision(revision))
    }

    /// How long it is until the next lease ends.
    pub(super) fn next_end(&self) -> Option<Duration> {
        let next = self.leases.values().map(|lease| lease.ends).min()?;
        Some(next.since((self.options.clock)()))
    }

    /// Takes the keys of leases that have run out along with them.
    pub(super) fn end_leases(&mut self) -> Result<(), StoreError> {
        let now = (self.options.clock)();
        let ended = |lease: &Lease| lease.ends <= now;
        if self.leases.values().any(ended) {
            self.drop_keys_of(|id| self.leases.get(&id).is_none_or(ended))?;
            self.leases.retain(|_, lease| !ended(lease));
        }
        Ok(())
    }

    /// Removes, as one transaction, every key whose lease `ended`.
    fn drop_keys_of(&self, ended: impl Fn(LeaseId) -> bool) -> Result<(), StoreError> {
        let mut writes = Vec::new();
        for row in self.entries()?.iter().map_err(|e| self.storage(e))? {
            let (key, row) = row.map_err(|e| self.storage(e))?;
            if row.value().2 != 0 && ended(LeaseId(row.value().2)) {
                writes.push(Write::delete(key.value()));
            }
        }
        self.apply(&writes)?;
        Ok(())
    }

    /// Writes `writes` under the next revision, durably, and wakes the watches; if they change nothing, nothing is written.
    fn apply(&self, writes: &[Write]) -> Result<Revision, StoreError> {
        if writes.is_empty() {
            return Ok(self.revision());
        }
        let revision = self.revision().0 + 1;
        let transaction = self.begin()?;
        let mut changed = false;
        {
            let mut entries = transaction.open_table(ENTRIES).map_err(|e| self.table(e))?;
            let mut history = transaction.open_table(HISTORY).map_err(|e| self.table(e))?;
            let mut meta = transaction.open_table(META).map_err(|e| self.table(e))?;
            for (place, write) in (0_u32..).zip(writes) {
                if write_row(&mut entries, write, revision).map_err(|e| self.storage(e))? {
                    history.insert((revision, place), (write.key(), write.value())).map_err(|e| self.storage(e))?;
                    changed = true;
                }
            }
            let forgotten = revision.saturating_sub(self.options.history);
            history.retain_in(..(forgotten + 1, 0), |_, _| false).map_err(|e| self.storage(e))?;
            meta.insert("revision", revision).map_err(|e| self.storage(e))?;
        }
        if !changed {
            transaction.abort().map_err(|e| self.storage(e))?;
            return Ok(self.revision());
        }
        self.commit(transaction)?;
        self.committed.send_replace(Revision(revision));
        Ok(Revision(revision))
    }

    /// The entry at `key`.
    pub(super) fn entry(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let row = self.entries()?.get(key).map_err(|e| self.storage(e))?;
        Ok(row.map(|row| entry(key, row.value())))
    }

    /// At most `limit` entries under `prefix`, from the key `from` on.
    pub(super) fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Page, StoreError> {
        let entries = self.entries()?;
        let mut page = Page { entries: Vec::new(), revision: self.revision(), next: None };
        for row in entries.range(from..).map_err(|e| self.storage(e))? {
            let (key, row) = row.map_err(|e| self.storage(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            if page.entries.len() == limit {
                page.next = page.entries.last().map(|last| after(&last.key));
                break;
            }
            page.entries.push(entry(key.value(), row.value()));
        }
        Ok(page)
    }

    /// Commits `transaction`, which is within its bounds.
    pub(super) fn transact(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        for (key, expect) in &transaction.expect {
            let found = self.entry(key)?;
            if !expect.holds(found.as_ref()) {
                return Ok(Outcome::Conflict { key: key.clone(), found });
            }
        }
        let ended = |lease: &LeaseId| !self.leases.contains_key(lease);
        if let Some(lease) = transaction.writes.iter().filter_map(Write::lease).find(ended) {
            return Err(StoreError::LeaseEnded { lease });
        }
        self.apply(&transaction.writes).map(Outcome::Committed)
    }

    /// Whether history holds all that comes after `seen`.
    pub(super) fn remembers(&self, seen: Revision) -> Result<(), StoreError> {
        let oldest = Revision(self.revision().0.saturating_sub(self.options.history));
        if seen < oldest { Err(StoreError::Compacted { seen, oldest }) } else { Ok(()) }
    }

    /// The next events under `prefix` after `seen`, and the revision that they reach to.
    pub(super) fn events(&self, prefix: &str, seen: Revision) -> Result<(Vec<Event>, Revision), StoreError> {
        self.remembers(seen)?;
        let read = self.read()?;
        let history = read.open_table(HISTORY).map_err(|e| self.table(e))?;
        let mut events: Vec<Event> = Vec::new();
        for row in history.range((seen.0 + 1, 0)..).map_err(|e| self.storage(e))? {
            let (at, row) = row.map_err(|e| self.storage(e))?;
            let revision = Revision(at.value().0);
            if let Some(last) = events.last().filter(|last| events.len() >= BATCH && last.revision < revision) {
                let reached = last.revision;
                return Ok((events, reached));
            }
            let (key, value) = row.value();
            if key.starts_with(prefix) {
                events.push(Event { revision, key: key.to_owned(), value: value.map(<[u8]>::to_vec) });
            }
        }
        Ok((events, self.revision().max(seen)))
    }

    /// A new lease.
    pub(super) fn grant(&mut self, ttl: Duration) -> LeaseId {
        self.last_lease += 1;
        let id = LeaseId(self.last_lease);
        self.leases.insert(id, Lease { ttl, ends: (self.options.clock)() + ttl });
        id
    }

    /// Lets a lease live for its whole time again.
    pub(super) fn keep_alive(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let held = self.leases.get_mut(&lease).ok_or(StoreError::LeaseEnded { lease })?;
        held.ends = (self.options.clock)() + held.ttl;
        Ok(())
    }

    /// Ends a lease now.
    pub(super) fn revoke(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        self.drop_keys_of(|id| id == lease)?;
        self.leases.remove(&lease);
        Ok(())
    }

    fn entries(&self) -> Result<ReadOnlyTable<&'static str, Row>, StoreError> {
        self.read()?.open_table(ENTRIES).map_err(|e| self.table(e))
    }

    fn read(&self) -> Result<ReadTransaction, StoreError> {
        self.database.begin_read().map_err(|e| self.transaction(e))
    }

    fn begin(&self) -> Result<WriteTransaction, StoreError> {
        self.database.begin_write().map_err(|e| self.transaction(e))
    }

    fn commit(&self, transaction: WriteTransaction) -> Result<(), StoreError> {
        transaction.commit().map_err(|error| match error {
            CommitError::Storage(error) => self.storage(error),
            other => self.damaged(&other),
        })
    }

    fn storage(&self, error: StorageError) -> StoreError {
        storage_error(&self.path, error)
    }

    fn table(&self, error: TableError) -> StoreError {
        match error {
            TableError::Storage(error) => self.storage(error),
            other => self.damaged(&other),
        }
    }

    fn transaction(&self, error: TransactionError) -> StoreError {
        match error {
            TransactionError::Storage(error) => self.storage(error),
            other => self.damaged(&other),
        }
    }

    fn damaged(&self, found: &dyn std::fmt::Display) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), found: found.to_string() }
    }
}

fn entry(key: &str, (created, modified, lease, value): (u64, u64, u64, &[u8])) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.to_vec(),
        created: Revision(created),
        modified: Revision(modified),
        lease: (lease != 0).then_some(LeaseId(lease)),
    }
}

/// Says whether it changed anything.
fn write_row(entries: &mut Table<'_, &str, Row>, write: &Write, revision: u64) -> Result<bool, StorageError> {
    match write {
        Write::Put { key, value, lease } => {
            let created = entries.get(key.as_str())?.map_or(revision, |row| row.value().0);
            let lease = lease.map_or(0, |lease| lease.0);
            entries.insert(key.as_str(), (created, revision, lease, value.as_slice()))?;
            Ok(true)
        }
        Write::Delete { key } => Ok(entries.remove(key.as_str())?.is_some()),
    }
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: path.to_path_buf() },
        DatabaseError::Storage(error) => storage_error(path, error),
        other => StoreError::Damaged { path: path.to_path_buf(), found: other.to_string() },
    }
}

fn storage_error(path: &Path, error: StorageError) -> StoreError {
    let path = path.to_path_buf();
    match error {
        // redb reports a file that does not begin as its own as invalid data, and one cut short as an early end.
        StorageError::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::Io { path, source }
        }
        StorageError::Corrupted(found) => StoreError::Damaged { path, found },
        other => StoreError::Damaged { path, found: other.to_string() },
    }
}
