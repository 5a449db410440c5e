//! The thread that writes lines.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
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
pub(super) struct Sink {
    /// `None` for standard output.
    path: Option<PathBuf>,
    file: File,
    /// What was written last ends in the middle of a line.
    torn: bool,
}

impl Sink {
    pub(super) fn open(to: &LogTarget) -> io::Result<Self> {
        let (path, file) = match to {
            // Not by way of the library's lock: who holds it while nobody reads stops all who print something.
            LogTarget::Stdout => (None, File::from(io::stdout().as_fd().try_clone_to_owned()?)),
            LogTarget::File(path) => (Some(path.clone()), append(path)?),
        };
        Ok(Self { path, file, torn: false })
    }

    /// The file of this name now, which perhaps another took the place of.
    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            let file = append(path)?;
            self.torn &= is_same(&file.metadata()?, &self.file.metadata()?);
            self.file = file;
        }
        Ok(())
    }

    /// Whether what we write is no longer what the path names.
    fn is_stale(&self) -> bool {
        let Some(path) = &self.path else { return false };
        match (std::fs::metadata(path), self.file.metadata()) {
            (Ok(named), Ok(ours)) => !is_same(&named, &ours),
            _ => true,
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Writes `lines` and tells `wrote` how many of them are whole, piece by piece. Where it fails, the middle of a line may be
/// the last that there is of it: then it is `torn`, and the next one begins on a line of its own.
fn write(out: &mut impl Write, torn: &mut bool, mut lines: &[u8], mut wrote: impl FnMut(u64)) -> io::Result<()> {
    if *torn && !lines.is_empty() {
        out.write_all(b"\n")?;
        *torn = false;
    }
    while !lines.is_empty() {
        let written = match out.write(lines) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let (piece, rest) = lines.split_at(written);
        *torn = piece.last() != Some(&b'\n');
        wrote(piece.split(|&byte| byte == b'\n').count() as u64 - 1);
        lines = rest;
    }
    Ok(())
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
        take(shared, &mut lines);
        let opened = if reopen || sink.is_stale() { sink.reopen() } else { Ok(()) };
        let outcome =
            opened.and_then(|()| write(&mut sink.file, &mut sink.torn, &lines, |written| shared.wrote(written)));
        shared.lost();
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

/// Takes all lines there are in hand.
pub(super) fn take(shared: &Shared, lines: &mut Vec<u8>) {
    let mut count = 0;
    // A way to the log that is gone leaves its buffer when that is empty.
    lock(&shared.buffers).retain(|buffer| {
        let is_used = Arc::strong_count(buffer) > 1;
        let mut buffer = lock(buffer);
        count += std::mem::take(&mut buffer.count);
        lines.append(&mut buffer.lines);
        is_used
    });
    // Numbers to compare and to add: nothing else depends on them.
    shared.in_hand.fetch_add(count, Ordering::Relaxed);
    shared.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    struct Disk {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_behind_half_a_line_is_one_of_its_own_and_whole_lines_are_counted() {
        let mut disk = Disk { taken: Vec::new(), room: 6 };
        let (mut torn, mut count) = (false, 0);
        let mut put = |disk: &mut Disk, lines: &str| {
            write(disk, &mut torn, lines.as_bytes(), |written| count += written).map(|()| count).map_err(|_| count)
        };
        assert_eq!(put(&mut disk, "one\ntwo\nthree\n"), Err(1));
        assert_eq!(put(&mut disk, "four\n"), Err(1));
        disk.room = 100;
        assert_eq!(put(&mut disk, "five\n"), Ok(2));
        assert_eq!(put(&mut disk, "six\n"), Ok(3));
        assert_eq!(disk.taken, b"one\ntw\nfive\nsix\n");
        // At the end of a line nothing is torn.
        disk.room = 6;
        assert_eq!(put(&mut disk, "seven\neight\n"), Err(4));
        disk.room = 100;
        assert_eq!(put(&mut disk, "nine\n"), Ok(5));
        assert_eq!(disk.taken, b"one\ntw\nfive\nsix\nseven\nnine\n");
    }
}
