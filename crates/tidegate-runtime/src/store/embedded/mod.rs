//! The store of a single machine: one redb file, fsynced by every commit, and the one thread that works on it.

mod file;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tidegate_core::Instant;
use tokio::sync::{Semaphore, oneshot, watch};

use self::file::StoreFile;
use super::contract::{ControlStore, Pending, Watch};
use super::entry::{Entry, Event, LeaseId, NodeHealth, NodeState, Page, Revision, Scan};
use super::error::StoreError;
use super::transaction::{Outcome, Transaction};
use crate::clock;

/// Calls that wait for the thread; further ones wait to be among them.
const WAITING: usize = 256;
/// Least wait for the end of a lease, so that a clock that stands still costs little.
const LEAST_WAIT: Duration = Duration::from_millis(10);
/// Wait after the removal of an ended lease's keys failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

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
/// Dropping it waits for the call under way, and closes the file.
pub struct EmbeddedStore {
    desk: Desk,
    committed: watch::Receiver<Revision>,
    thread: Option<JoinHandle<()>>,
}

type Work = Box<dyn FnOnce(&mut StoreFile) + Send>;

enum Order {
    Work(Work),
    Stop,
}

/// Where work for the thread is handed in.
#[derive(Clone)]
struct Desk {
    path: Arc<Path>,
    orders: mpsc::Sender<Order>,
    /// Places of calls that wait: what bounds `orders`.
    places: Arc<Semaphore>,
}

impl EmbeddedStore {
    /// Opens the store at `path`, or makes it, with the folders it needs. A store whose process was killed repairs
    /// itself here. Blocks for the disk.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another process has it; [`StoreError::Damaged`] for any other file.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let path: PathBuf = path.as_ref().to_path_buf();
        let file = StoreFile::open(&path, options)?;
        let committed = file.committed();
        let (orders, receiver) = mpsc::channel();
        let thread = Builder::new()
            .name("control-store".to_owned())
            .spawn(move || serve(file, &receiver))
            .map_err(|source| StoreError::Io { path: path.clone(), source })?;
        let desk = Desk { path: path.into(), orders, places: Arc::new(Semaphore::new(WAITING)) };
        Ok(Self { desk, committed, thread: Some(thread) })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // A thread that is gone has nothing left to be told, and its panic was reported where it happened.
        let _ = self.desk.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Works until it is told to stop, and ends leases at their time.
fn serve(mut file: StoreFile, orders: &mpsc::Receiver<Order>) {
    let mut least = LEAST_WAIT;
    loop {
        let order = match file.next_end() {
            Some(wait) => match orders.recv_timeout(wait.max(least)) {
                Ok(order) => Some(order),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            },
            None => match orders.recv() {
                Ok(order) => Some(order),
                Err(mpsc::RecvError) => return,
            },
        };
        match order {
            Some(Order::Work(work)) => work(&mut file),
            Some(Order::Stop) => return,
            None => {
                least = match file.end_leases() {
                    Ok(()) => LEAST_WAIT,
                    Err(error) => {
                        tracing::error!(%error, "the keys of an ended lease are still there");
                        AFTER_FAILURE
                    }
                };
            }
        }
    }
}

impl Desk {
    /// Hands `work` in; its result comes through the receiver. It runs after the leases that are over have ended.
    async fn hand_in<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoreFile) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, StoreError>>, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| self.closed())?;
        let (answer, answered) = oneshot::channel();
        let order = Order::Work(Box::new(move |file: &mut StoreFile| {
            let result = file.end_leases().and_then(|()| work(file));
            // Whoever asked may have gone away.
            answer.send(result).ok();
            drop(place);
        }));
        self.orders.send(order).map_err(|_| self.closed())?;
        Ok(answered)
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoreFile) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.hand_in(work).await?.await.map_err(|_| self.closed())?
    }

    fn closed(&self) -> StoreError {
        StoreError::Unavailable { store: self.path.display().to_string(), found: "it is closed".to_owned() }
    }
}

impl ControlStore for EmbeddedStore {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
        let key = key.to_owned();
        Box::pin(self.desk.ask(move |file| file.entry(&key)))
    }

    fn range<'a>(&'a self, scan: Scan<'a>) -> Pending<'a, Page> {
        let (prefix, from, limit) = (scan.prefix.to_owned(), scan.start().to_owned(), scan.bound());
        Box::pin(self.desk.ask(move |file| file.page(&prefix, &from, limit)))
    }

    fn txn(&self, transaction: Transaction) -> Pending<'_, Outcome> {
        Box::pin(async move {
            transaction.check()?;
            let answered = self.desk.hand_in(move |file| file.transact(&transaction)).await?;
            answered.await.map_err(|_| StoreError::OutcomeUnknown {
                store: self.desk.path.display().to_string(),
                found: "it was closed meanwhile".to_owned(),
            })?
        })
    }

    fn watch_from<'a>(&'a self, prefix: &'a str, seen: Revision) -> Pending<'a, Box<dyn Watch>> {
        Box::pin(async move {
            // Told now rather than at the first event.
            self.desk.ask(move |file| file.remembers(seen)).await?;
            let (desk, committed) = (self.desk.clone(), self.committed.clone());
            let watch: Box<dyn Watch> = Box::new(EmbeddedWatch { desk, committed, prefix: prefix.to_owned(), seen });
            Ok(watch)
        })
    }

    fn lease_grant(&self, ttl: Duration) -> Pending<'_, LeaseId> {
        Box::pin(self.desk.ask(move |file| Ok(file.grant(ttl))))
    }

    fn lease_keepalive(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(self.desk.ask(move |file| file.keep_alive(lease)))
    }

    fn lease_revoke(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(self.desk.ask(move |file| file.revoke(lease)))
    }

    fn nodes(&self) -> Pending<'_, Vec<NodeHealth>> {
        Box::pin(async move {
            self.desk.ask(|_| Ok(())).await?;
            let name = self.desk.path.display().to_string();
            Ok(vec![NodeHealth { name, state: NodeState::Leads, version: None }])
        })
    }
}

/// History is its queue: a watch that is slow costs no memory, only its place.
struct EmbeddedWatch {
    desk: Desk,
    committed: watch::Receiver<Revision>,
    prefix: String,
    seen: Revision,
}

impl Watch for EmbeddedWatch {
    fn next(&mut self) -> Pending<'_, Vec<Event>> {
        Box::pin(async move {
            loop {
                let seen = self.seen;
                self.committed.wait_for(|newest| *newest > seen).await.map_err(|_| self.desk.closed())?;
                let prefix = self.prefix.clone();
                let (events, seen) = self.desk.ask(move |file| file.events(&prefix, seen)).await?;
                self.seen = seen;
                if !events.is_empty() {
                    return Ok(events);
                }
            }
        })
    }
}
