//! What is written about each request.
//!
//! A serving thread adds its lines to a buffer of its own, and one writer thread empties all of them several times a
//! second: so a thread of the overflow lane, which may lose the processor at any instant, holds up no other. The buffers
//! are bounded together: when the disk does not keep up, lines are dropped and counted, and nobody waits. A file is opened
//! again when it was moved away, as log rotation does, and on [`AccessLog::reopen`]. A log that another takes the place of
//! goes on until each thread has taken the other. At the end the writer has a second for what is left: it may wait for a
//! reader that takes nothing.

mod line;
mod writer;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::config::{self, LogFormat};

pub use self::line::{Entry, Refused};

/// Bytes of lines that wait for the writer. Ten thousand requests are about 5 MB.
const MOST_WAITING: usize = 8 << 20;

/// How long the end waits for what is left to be written. Two buffers' worth take a tenth of it where the disk keeps up.
const PATIENCE: Duration = Duration::from_secs(1);

/// A log that is being written. Dropping it writes what is left, or gives that up after a second.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    /// One for each way to the log.
    buffers: Mutex<Vec<Arc<Mutex<Buffer>>>>,
    /// Bytes in all buffers.
    waiting: AtomicUsize,
    /// The writer waits without an end, and must be woken.
    asleep: AtomicBool,
    told: Mutex<Told>,
    changed: Condvar,
    /// The writer has ended.
    over: Condvar,
    /// Lines that the writer took, and of which it is not known yet what became of them.
    in_hand: AtomicU64,
    totals: Arc<Totals>,
}

/// Lines of a log, and of those whose place it took.
#[derive(Default, Debug)]
pub(crate) struct Totals {
    written: AtomicU64,
    dropped: AtomicU64,
}

/// The way to a log, for threads that will write to it.
#[derive(Clone, Debug)]
pub(crate) struct Way(Arc<Shared>);

/// Lines of one thread.
#[derive(Debug, Default)]
struct Buffer {
    lines: Vec<u8>,
    count: u64,
}

/// What the writer is told.
#[derive(Debug, Default)]
struct Told {
    filled: bool,
    reopen: bool,
    end: End,
    is_over: bool,
}

/// Whether the writer ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum End {
    #[default]
    No,
    /// When nobody has a way to the log any more.
    Retired,
    /// Now.
    Closed,
}

/// One thread's way to the log.
#[derive(Debug)]
pub struct Lines {
    shared: Arc<Shared>,
    buffer: Arc<Mutex<Buffer>>,
    /// Used again for each line.
    line: Vec<u8>,
}

impl AccessLog {
    /// Opens what `config` names and starts the writer.
    pub fn start(config: &config::AccessLog) -> io::Result<Self> {
        Self::start_counting(config, Arc::default())
    }

    /// The same, and adds its lines to `totals`.
    pub(crate) fn start_counting(config: &config::AccessLog, totals: Arc<Totals>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config.format, totals));
        let mut sink = writer::Sink::open(&config.to)?;
        let writing = Arc::clone(&shared);
        let writer = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            let _over = Over(&writing);
            writer::run(&writing, &mut sink);
        })?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// A way to the log for one thread.
    #[must_use]
    pub fn lines(&self) -> Lines {
        Lines::new(&self.shared)
    }

    /// The way to it, which is followed by [`Way::lines`].
    pub(crate) fn way(&self) -> Way {
        Way(Arc::clone(&self.shared))
    }

    /// Ends when nobody has a way to it any more, and all lines are written.
    pub(crate) fn retire(&self) {
        self.shared.tell(|told| told.end = End::Retired);
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.writer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Opens the file again: what was moved away is left alone.
    pub fn reopen(&self) {
        self.shared.tell(|told| told.reopen = true);
    }

    /// Ends `logs`, as dropping them does, and waits no longer than for one.
    pub(crate) fn close(mut logs: Vec<Self>) {
        let deadline = clock::now() + PATIENCE;
        for log in &logs {
            log.shared.tell(|told| told.end = End::Closed);
        }
        for log in &mut logs {
            log.end_by(deadline);
        }
    }

    /// Waits until the writer has written everything, or leaves it with what it has. The process ends with it or without.
    fn end_by(&mut self, deadline: Instant) {
        let Some(writer) = self.writer.take() else { return };
        let left = deadline.since(clock::now());
        let told = self.shared.over.wait_timeout_while(lock(&self.shared.told), left, |told| !told.is_over);
        let is_over = told.unwrap_or_else(PoisonError::into_inner).0.is_over;
        if is_over {
            // It has nothing to say but that it ended.
            let _ = writer.join();
            return;
        }
        let lines = self.shared.give_up();
        tracing::warn!(lines, "the access log takes nothing: its last lines are lost");
    }

    /// Lines written, and lines that were dropped because the writer could not keep up or the disk was full.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.shared.totals.get()
    }
}

impl Totals {
    /// Written, and dropped.
    pub(crate) fn get(&self) -> (u64, u64) {
        // Counters of their own; nothing else is ordered by them.
        (self.written.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }
}

impl Way {
    /// One thread's.
    pub(crate) fn lines(&self) -> Lines {
        Lines::new(&self.0)
    }

    /// Whether both lead to the same log, or to none.
    pub(crate) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one.0, &other.0),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.tell(|told| told.end = End::Closed);
        self.end_by(clock::now() + PATIENCE);
    }
}

/// Tells that the writer has ended, however it did.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        lock(&self.0.told).is_over = true;
        self.0.over.notify_all();
    }
}

impl Shared {
    fn new(format: LogFormat, totals: Arc<Totals>) -> Self {
        Self {
            format,
            buffers: Mutex::default(),
            waiting: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            told: Mutex::default(),
            changed: Condvar::new(),
            over: Condvar::new(),
            in_hand: AtomicU64::new(0),
            totals,
        }
    }

    /// Counts `lines` of those in hand as written. Who gave them up has counted them before.
    fn wrote(&self, lines: u64) {
        let take = |held: u64| Some(held.saturating_sub(lines));
        // Counters of their own; nothing else is ordered by them.
        let held = self.in_hand.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or_default();
        self.totals.written.fetch_add(lines.min(held), Ordering::Relaxed);
    }

    /// Counts the rest of those in hand as dropped.
    fn lost(&self) -> u64 {
        let lines = self.in_hand.swap(0, Ordering::Relaxed);
        self.totals.dropped.fetch_add(lines, Ordering::Relaxed);
        lines
    }

    /// Counts as dropped what nobody has written so far, and how many lines these are.
    fn give_up(&self) -> u64 {
        writer::take(self, &mut Vec::new());
        self.lost()
    }

    fn tell(&self, tell: impl FnOnce(&mut Told)) {
        tell(&mut lock(&self.told));
        self.changed.notify_one();
    }
}

/// A panic under these locks leaves whole lines behind, so what they guard is sound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    fn new(shared: &Arc<Shared>) -> Self {
        let buffer = Arc::default();
        lock(&shared.buffers).push(Arc::clone(&buffer));
        Self { shared: Arc::clone(shared), buffer, line: Vec::with_capacity(512) }
    }

    /// Adds a line about `entry`, or counts that there was no room.
    pub fn write(&mut self, entry: &Entry<'_>) {
        self.line.clear();
        line::write(&mut self.line, self.shared.format, entry);
        // A number to compare: nothing else depends on it.
        let waiting = self.shared.waiting.fetch_add(self.line.len(), Ordering::Relaxed);
        if waiting + self.line.len() > MOST_WAITING {
            self.shared.waiting.fetch_sub(self.line.len(), Ordering::Relaxed);
            self.shared.totals.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut buffer = lock(&self.buffer);
        buffer.lines.extend_from_slice(&self.line);
        buffer.count += 1;
        drop(buffer);
        // The writer says that it sleeps before it looks into the buffers for the last time. If it did not see this line,
        // it had this buffer's lock before, and so its word is seen here. Only who takes the word back tells the writer.
        if self.shared.asleep.load(Ordering::Relaxed) && self.shared.asleep.swap(false, Ordering::Relaxed) {
            self.shared.tell(|told| told.filled = true);
        }
    }
}

#[cfg(test)]
mod tests;
