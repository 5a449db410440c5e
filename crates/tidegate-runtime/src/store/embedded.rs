//! The store of a single machine: one redb file, fsynced by every commit.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redb::{
    CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, Table, TableDefinition,
    TableError, TransactionError, WriteTransaction,
};
use tidegate_core::Instant;

use super::{
    ControlStore, Entry, Event, Expect, LeaseId, MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_WRITES, Outcome, Revision,
    StoreError, Transaction, Watch, Write,
};
use crate::clock;

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

/// How an [`EmbeddedStore`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Transactions that a watch can be behind before it has to read everything again.
    pub history: u64,
    /// What leases are timed by.
    pub clock: fn() -> Instant,
}

impl Default for Options {
    fn default() -> Self {
        // A console edit is one transaction; a thousand of them are a busy day.
        Self { history: 1_000, clock: clock::now }
    }
}

/// A [`ControlStore`] in one file, for one process at a time.
///
/// Its leases are timed by this process's clock and end with the process: whoever held one cannot have outlived it.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    options: Options,
    database: Database,
    state: Mutex<State>,
    /// Signalled after every commit.
    committed: Condvar,
}

#[derive(Default)]
struct State {
    revision: Revision,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
}

#[derive(Clone, Copy)]
struct Lease {
    ttl: Duration,
    ends: Instant,
}

impl EmbeddedStore {
    /// Opens the store at `path`, or makes it, with the folders it needs. A store whose process was killed repairs
    /// itself here.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another process has it; [`StoreError::Damaged`] for any other file.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let path = path.as_ref().to_path_buf();
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|source| StoreError::Io { path: path.clone(), source })?;
        }
        let database = Database::create(&path).map_err(|error| open_error(&path, error))?;
        let shared = Shared { path, options, database, state: Mutex::new(State::default()), committed: Condvar::new() };
        let revision = shared.set_up()?;
        shared.lock().revision = revision;
        let store = Self { shared: Arc::new(shared) };
        store.shared.drop_keys_of(&mut store.shared.lock(), |_| true)?;
        Ok(store)
    }
}

impl Shared {
    /// The state is replaced only after a commit, so a panic in between leaves it whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The state, after the leases that have run out took their keys along.
    fn current(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut state = self.lock();
        let now = (self.options.clock)();
        if state.leases.values().any(|lease| lease.ends <= now) {
            let ended = |state: &State, id: LeaseId| state.leases.get(&id).is_none_or(|lease| lease.ends <= now);
            let ids: Vec<LeaseId> = state.leases.keys().copied().filter(|id| ended(&state, *id)).collect();
            self.drop_keys_of(&mut state, |id| ids.contains(&id))?;
            for id in ids {
                state.leases.remove(&id);
            }
        }
        Ok(state)
    }

    /// Removes, as one transaction, every key whose lease `ended`.
    fn drop_keys_of(&self, state: &mut State, ended: impl Fn(LeaseId) -> bool) -> Result<(), StoreError> {
        let mut writes = Vec::new();
        {
            let read = self.database.begin_read().map_err(|e| self.transaction(e))?;
            let entries = read.open_table(ENTRIES).map_err(|e| self.table(e))?;
            for row in entries.iter().map_err(|e| self.storage(e))? {
                let (key, row) = row.map_err(|e| self.storage(e))?;
                if row.value().2 != 0 && ended(LeaseId(row.value().2)) {
                    writes.push(Write::delete(key.value()));
                }
            }
        }
        if !writes.is_empty() {
            self.apply(state, &writes)?;
        }
        Ok(())
    }

    /// Writes `writes` under the next revision, durably, and wakes the watches.
    fn apply(&self, state: &mut State, writes: &[Write]) -> Result<Revision, StoreError> {
        let revision = state.revision.0 + 1;
        let transaction = self.begin()?;
        {
            let mut entries = transaction.open_table(ENTRIES).map_err(|e| self.table(e))?;
            let mut history = transaction.open_table(HISTORY).map_err(|e| self.table(e))?;
            let mut meta = transaction.open_table(META).map_err(|e| self.table(e))?;
            for (place, write) in (0_u32..).zip(writes) {
                write_row(&mut entries, write, revision).map_err(|e| self.storage(e))?;
                let value = match write {
                    Write::Put { value, .. } => Some(value.as_slice()),
                    Write::Delete { .. } => None,
                };
                history.insert((revision, place), (write.key(), value)).map_err(|e| self.storage(e))?;
            }
            let forgotten = revision.saturating_sub(self.options.history);
            history.retain_in(..(forgotten + 1, 0), |_, _| false).map_err(|e| self.storage(e))?;
            meta.insert("revision", revision).map_err(|e| self.storage(e))?;
        }
        self.commit(transaction)?;
        state.revision = Revision(revision);
        self.committed.notify_all();
        Ok(state.revision)
    }

    fn entry(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let read = self.database.begin_read().map_err(|e| self.transaction(e))?;
        let entries = read.open_table(ENTRIES).map_err(|e| self.table(e))?;
        let row = entries.get(key).map_err(|e| self.storage(e))?;
        Ok(row.map(|row| entry(key, row.value())))
    }

    /// The events under `prefix` after `seen`; the caller holds the state, so that none commits meanwhile.
    fn events(&self, prefix: &str, seen: Revision, state: &State) -> Result<Vec<Event>, StoreError> {
        let oldest = Revision(state.revision.0.saturating_sub(self.options.history));
        if seen < oldest {
            return Err(StoreError::Compacted { seen, oldest });
        }
        let read = self.database.begin_read().map_err(|e| self.transaction(e))?;
        let history = read.open_table(HISTORY).map_err(|e| self.table(e))?;
        let mut events = Vec::new();
        for row in history.range((seen.0 + 1, 0)..).map_err(|e| self.storage(e))? {
            let (at, row) = row.map_err(|e| self.storage(e))?;
            let (key, value) = row.value();
            if key.starts_with(prefix) {
                let revision = Revision(at.value().0);
                events.push(Event { revision, key: key.to_owned(), value: value.map(<[u8]>::to_vec) });
            }
        }
        Ok(events)
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

impl ControlStore for EmbeddedStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let _state = self.shared.current()?;
        self.shared.entry(key)
    }

    fn range(&self, prefix: &str, limit: usize) -> Result<(Vec<Entry>, Revision), StoreError> {
        let shared = &self.shared;
        let state = shared.current()?;
        let read = shared.database.begin_read().map_err(|e| shared.transaction(e))?;
        let entries = read.open_table(ENTRIES).map_err(|e| shared.table(e))?;
        let mut found = Vec::new();
        for row in entries.range(prefix..).map_err(|e| shared.storage(e))?.take(limit) {
            let (key, row) = row.map_err(|e| shared.storage(e))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push(entry(key.value(), row.value()));
        }
        Ok((found, state.revision))
    }

    fn txn(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        check_size(&transaction)?;
        let mut state = self.shared.current()?;
        for (key, expect) in &transaction.expect {
            let found = self.shared.entry(key)?;
            let holds = match expect {
                Expect::Anything => true,
                Expect::Absent => found.is_none(),
                Expect::Unchanged(revision) => found.as_ref().is_some_and(|entry| entry.modified == *revision),
            };
            if !holds {
                return Ok(Outcome::Conflict { key: key.clone(), found });
            }
        }
        for write in &transaction.writes {
            if let Write::Put { lease: Some(lease), .. } = write
                && !state.leases.contains_key(lease)
            {
                return Err(StoreError::LeaseEnded { lease: *lease });
            }
        }
        self.shared.apply(&mut state, &transaction.writes).map(Outcome::Committed)
    }

    fn watch_from(&self, prefix: &str, seen: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let watch = EmbeddedWatch { shared: Arc::clone(&self.shared), prefix: prefix.to_owned(), seen };
        // Told now rather than at the first event.
        self.shared.events(prefix, seen, &self.shared.lock())?;
        Ok(Box::new(watch))
    }

    fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let mut state = self.shared.current()?;
        state.last_lease += 1;
        let id = LeaseId(state.last_lease);
        state.leases.insert(id, Lease { ttl, ends: (self.shared.options.clock)() + ttl });
        Ok(id)
    }

    fn lease_keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut state = self.shared.current()?;
        let held = state.leases.get_mut(&lease).ok_or(StoreError::LeaseEnded { lease })?;
        held.ends = (self.shared.options.clock)() + held.ttl;
        Ok(())
    }
}

/// History is its queue: a watch that is slow costs no memory, only its place.
struct EmbeddedWatch {
    shared: Arc<Shared>,
    prefix: String,
    seen: Revision,
}

impl Watch for EmbeddedWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, StoreError> {
        let mut state = self.shared.current()?;
        if state.revision == self.seen {
            let waited = self.shared.committed.wait_timeout_while(state, timeout, |state| state.revision == self.seen);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let events = self.shared.events(&self.prefix, self.seen, &state)?;
        self.seen = state.revision;
        Ok(events)
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

fn write_row(entries: &mut Table<'_, &str, Row>, write: &Write, revision: u64) -> Result<(), StorageError> {
    match write {
        Write::Put { key, value, lease } => {
            let created = entries.get(key.as_str())?.map_or(revision, |row| row.value().0);
            let lease = lease.map_or(0, |lease| lease.0);
            entries.insert(key.as_str(), (created, revision, lease, value.as_slice()))?;
        }
        Write::Delete { key } => {
            entries.remove(key.as_str())?;
        }
    }
    Ok(())
}

fn check_size(transaction: &Transaction) -> Result<(), StoreError> {
    let check = |what, size, limit| if size > limit { Err(StoreError::TooLarge { what, size, limit }) } else { Ok(()) };
    check("transaction", transaction.writes.len(), MAX_WRITES)?;
    for write in &transaction.writes {
        check("key", write.key().len(), MAX_KEY_BYTES)?;
        if let Write::Put { value, .. } = write {
            check("value", value.len(), MAX_VALUE_BYTES)?;
        }
    }
    Ok(())
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
