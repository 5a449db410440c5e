//! The thread that writes lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
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

/// Writes what comes until the log is closed and empty.
pub(super) fn run(shared: &Shared, sink: &mut Sink) {
    let mut lines = Vec::new();
    let mut failing = false;
    loop {
        let (count, reopen, closed) = {
            let mut buffer = shared.buffer();
            buffer.asleep = true;
            let wanted = |buffer: &mut super::Buffer| buffer.lines.is_empty() && !buffer.reopen && !buffer.closed;
            let mut buffer = shared.filled.wait_while(buffer, wanted).unwrap_or_else(PoisonError::into_inner);
            buffer.asleep = false;
            if !buffer.closed {
                // More come with the first; they need not wake anybody.
                let pause = shared.filled.wait_timeout_while(buffer, PAUSE, |buffer| !buffer.closed && !buffer.reopen);
                buffer = pause.unwrap_or_else(PoisonError::into_inner).0;
            }
            lines.clear();
            std::mem::swap(&mut lines, &mut buffer.lines);
            (std::mem::take(&mut buffer.count), std::mem::take(&mut buffer.reopen), buffer.closed)
        };
        let opened = if reopen || sink.is_stale() { sink.reopen() } else { Ok(()) };
        let outcome = opened.and_then(|()| sink.write(&lines));
        let counter = if outcome.is_ok() { &shared.written } else { &shared.dropped };
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
