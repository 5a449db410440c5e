//! What is written about each request.
//!
//! A serving thread makes its line in memory of its own, and adds it to a buffer that one writer thread empties several
//! times a second. The buffer is bounded: when the disk does not keep up, lines are dropped and counted, and nobody
//! waits. A file is opened again when it was moved away, as log rotation does, and on [`AccessLog::reopen`].

mod line;
mod writer;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
    buffer: Mutex<Buffer>,
    filled: Condvar,
    written: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Buffer {
    lines: Vec<u8>,
    count: u64,
    /// The writer waits without an end, and must be woken.
    asleep: bool,
    reopen: bool,
    closed: bool,
}

/// One thread's way to the log.
#[derive(Clone, Debug)]
pub struct Lines {
    shared: Arc<Shared>,
    /// Used again for each line.
    line: Vec<u8>,
}

impl AccessLog {
    /// Opens what `config` names and starts the writer.
    pub fn start(config: &config::AccessLog) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            format: config.format,
            buffer: Mutex::default(),
            filled: Condvar::new(),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
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
        Lines { shared: Arc::clone(&self.shared), line: Vec::with_capacity(512) }
    }

    /// Opens the file again: what was moved away is left alone.
    pub fn reopen(&self) {
        let mut buffer = self.shared.buffer();
        buffer.reopen = true;
        drop(buffer);
        self.shared.filled.notify_one();
    }

    /// Lines written, and lines that were dropped because the writer could not keep up or the disk was full.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        // Counters of their own; nothing else is ordered by them.
        (self.shared.written.load(Ordering::Relaxed), self.shared.dropped.load(Ordering::Relaxed))
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.buffer().closed = true;
        self.shared.filled.notify_one();
        if let Some(writer) = self.writer.take() {
            // It has nothing to say but that it ended.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// A panic under this lock leaves whole lines behind, so what it guards is sound.
    fn buffer(&self) -> std::sync::MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    /// Adds a line about `entry`, or counts that there was no room.
    pub fn write(&mut self, entry: &Entry<'_>) {
        self.line.clear();
        line::write(&mut self.line, self.shared.format, entry);
        let mut buffer = self.shared.buffer();
        if buffer.lines.len() + self.line.len() > MOST_WAITING {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        buffer.lines.extend_from_slice(&self.line);
        buffer.count += 1;
        if std::mem::take(&mut buffer.asleep) {
            drop(buffer);
            self.shared.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
