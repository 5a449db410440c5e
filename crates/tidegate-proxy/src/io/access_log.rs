//! What is written about each request.
//!
//! A serving thread adds its lines to a buffer of its own, and one writer thread empties all of them several times a
//! second: so a thread of the overflow lane, which may lose the processor at any instant, holds up no other. The buffers
//! are bounded together: when the disk does not keep up, lines are dropped and counted, and nobody waits. A file is opened
//! again when it was moved away, as log rotation does, and on [`AccessLog::reopen`]. A log that another takes the place of
//! goes on until each thread has taken the other.

mod line;
mod writer;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::config::{self, LogFormat};

pub use self::line::{Entry, Refused};

/// Bytes of lines that wait for the writer. Ten thousand requests are about 5 MB.
const MOST_WAITING: usize = 8 << 20;

/// A log that is being written. Dropping it writes what is left.
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
        let writer = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer::run(&writing, &mut sink))?;
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
        if let Some(writer) = self.writer.take() {
            // It has nothing to say but that it ended.
            let _ = writer.join();
        }
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
            totals,
        }
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
