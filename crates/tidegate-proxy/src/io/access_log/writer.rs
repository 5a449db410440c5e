//! The thread that writes lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{End, Shared, Told, lock};
use crate::config::LogTarget;

/// Between two writes while lines come: a reader who follows the file sees them soon, and each write is of many lines.
const PAUSE: Duration = Duration::from_millis(50);

/// Where lines go.
pub(super) enum Sink {
    Stdout,
    File { path: PathBuf, file: File },
}

impl Sink {
    pub(super) fn open(to: &LogTarget) -> io::Result<Self> {
        match to {
            LogTarget::Stdout => Ok(Self::Stdout),
            LogTarget::File(path) => Ok(Self::File { file: append(path)?, path: path.clone() }),
        }
    }

    /// The file of this name now, which another took the place of.
    fn reopen(&mut self) -> io::Result<()> {
        if let Self::File { path, file } = self {
            *file = append(path)?;
        }
        Ok(())
    }

    /// Whether what we write is no longer what the path names.
    fn is_stale(&self) -> bool {
        let Self::File { path, file } = self else { return false };
        let same = |a: &std::fs::Metadata, b: &std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        match (std::fs::metadata(path), file.metadata()) {
            (Ok(named), Ok(ours)) => !same(&named, &ours),
            _ => true,
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines).and_then(|()| out.flush())
            }
            Self::File { file, .. } => file.write_all(lines),
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// The log itself, and its writer.
const OWNERS: usize = 2;

/// Writes what comes until the log is closed and empty.
pub(super) fn run(shared: &Arc<Shared>, sink: &mut Sink) {
    let mut lines = Vec::new();
    let mut failing = false;
    loop {
        let (reopen, closed) = wait(shared);
        let closed = closed || has_no_ways(shared);
        lines.clear();
        let count = take(shared, &mut lines);
        let opened = if reopen || sink.is_stale() { sink.reopen() } else { Ok(()) };
        let outcome = opened.and_then(|()| sink.write(&lines));
        let counter = if outcome.is_ok() { &shared.totals.written } else { &shared.totals.dropped };
        counter.fetch_add(count, Ordering::Relaxed);
        match outcome {
            // Once for each failure, however many lines it takes with it.
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "the access log cannot be written; its lines are dropped until it can");
            }
            Err(_) => {}
            Ok(()) => failing = false,
        }
        if closed {
            return;
        }
    }
}

/// Whether it is retired and nobody writes to it any more: what is in the buffers now is all.
fn has_no_ways(shared: &Arc<Shared>) -> bool {
    let is_last = lock(&shared.told).end == End::Retired && Arc::strong_count(shared) <= OWNERS;
    // What was written before a way was given up is seen behind it.
    fence(Ordering::Acquire);
    is_last
}

/// Waits until there is something to do: whether the file is to be opened again, and whether this is the end.
fn wait(shared: &Shared) -> (bool, bool) {
    shared.asleep.store(true, Ordering::Relaxed);
    let is_empty = lock(&shared.buffers).iter().all(|buffer| lock(buffer).lines.is_empty());
    let mut told = lock(&shared.told);
    if is_empty {
        let nothing = |told: &mut Told| !told.filled && !told.reopen && told.end == End::No;
        told = shared.changed.wait_while(told, nothing).unwrap_or_else(PoisonError::into_inner);
    }
    shared.asleep.store(false, Ordering::Relaxed);
    // More come with the first; they need not wake anybody.
    let pause = shared.changed.wait_timeout_while(told, PAUSE, |told| told.end != End::Closed && !told.reopen);
    let mut told = pause.unwrap_or_else(PoisonError::into_inner).0;
    told.filled = false;
    (std::mem::take(&mut told.reopen), told.end == End::Closed)
}

/// Takes all lines there are; how many.
fn take(shared: &Shared, lines: &mut Vec<u8>) -> u64 {
    let mut count = 0;
    // A way to the log that is gone leaves its buffer when that is empty.
    lock(&shared.buffers).retain(|buffer| {
        let is_used = Arc::strong_count(buffer) > 1;
        let mut buffer = lock(buffer);
        count += std::mem::take(&mut buffer.count);
        lines.append(&mut buffer.lines);
        is_used
    });
    // A number to compare: nothing else depends on it.
    shared.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
    count
}
