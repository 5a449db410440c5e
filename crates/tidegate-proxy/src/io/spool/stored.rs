//! The file of one body.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::FallocateFlags;
use tidegate_runtime::clock;
use tokio::task::JoinHandle;

use super::room::Holder;
use crate::io::conn::account::Account;
use crate::io::conn::limiter::Cause;
use crate::io::spool::folder::{READ, Spool};

/// Where holes begin: the kernel gives whole blocks back only, and those of most file systems are as long.
const BLOCK: u64 = 4 * 1024;

/// A file of one body, and the room it takes.
#[derive(Debug)]
pub(super) struct Stored {
    /// Made with the first bytes.
    file: Option<File>,
    spool: Arc<Spool>,
    /// Whose room it takes.
    holder: Holder,
    /// The room is shared out among tenants; else it is anybody's.
    shares: bool,
    reserved: u64,
    /// Where in the file the next byte goes.
    end: u64,
    /// Up to here it was taken,
    taken: u64,
    /// and up to here the disk has its blocks back.
    freed: u64,
}

/// Bytes that the disk did not take. What was put in before is whole.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub(super) stored: Stored,
    pub(super) bytes: Bytes,
}

impl Stored {
    /// An empty one of the tenant that pays on `account`.
    pub(super) fn new(spool: &Arc<Spool>, account: &Account) -> Self {
        let (spool, holder, shares) = (Arc::clone(spool), account.spool_holder(), account.is_restricted());
        Self { file: None, spool, holder, shares, reserved: 0, end: 0, taken: 0, freed: 0 }
    }

    /// Bytes that were put in and not taken out.
    pub(super) fn len(&self) -> u64 {
        self.end - self.taken
    }

    /// Bytes of the longest body that there is ever room for.
    pub(super) fn most(&self) -> u64 {
        // A tenant that is alone gets half.
        if self.shares { self.spool.max_bytes / 2 } else { self.spool.max_bytes }
    }

    /// Where it is.
    pub(super) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// Takes room for `bytes` more; it is given back as they are taken out, or with the body.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<(), Cause> {
        self.spool.room().take(&self.holder, bytes, self.shares, clock::now())?;
        self.reserved += bytes;
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.reserved);
        self.reserved -= bytes;
        self.spool.room().give_back(&self.holder, bytes);
    }

    /// Writes `bytes`, which have room, to the end, on a thread of the pool. If the disk does not take them, their room is
    /// given back, and for a while there is none.
    pub(super) fn append(mut self, bytes: Bytes) -> JoinHandle<Result<Self, Unwritten>> {
        let threads = self.spool.threads.clone();
        threads.spawn_blocking(move || match self.write(&bytes) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.give_back(bytes.len() as u64);
                self.spool.failed_to_write(&error);
                Err(Unwritten { stored: self, bytes })
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.spool.create()?),
        };
        if let Err(error) = file.write_all_at(bytes, self.end) {
            // What the disk did take of them.
            let _ = file.set_len(self.end);
            return Err(error);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Up to a piece from `at`.
    pub(super) fn read(&self, at: u64) -> io::Result<Bytes> {
        self.read_piece(at).inspect_err(|error| self.spool.failed_to_read(error))
    }

    fn read_piece(&self, at: u64) -> io::Result<Bytes> {
        let len = usize::try_from(self.end - at).map_or(READ, |left| left.min(READ));
        let mut piece = vec![0; len];
        if let Some(file) = &self.file {
            file.read_exact_at(&mut piece, at)?;
        }
        Ok(Bytes::from(piece))
    }

    /// Takes the next piece out, on a thread of the pool.
    pub(super) fn take(mut self) -> JoinHandle<io::Result<(Self, Bytes)>> {
        let threads = self.spool.threads.clone();
        threads.spawn_blocking(move || {
            let piece = self.read(self.taken)?;
            self.taken += piece.len() as u64;
            self.free();
            Ok((self, piece))
        })
    }

    /// Gives the disk back what was taken, and then the room. All of it on every file system; a part where files can have
    /// holes.
    fn free(&mut self) {
        let Some(file) = &self.file else { return };
        if self.taken == self.end {
            if file.set_len(0).is_ok() {
                (self.end, self.taken, self.freed) = (0, 0, 0);
                self.give_back(self.reserved);
            }
            return;
        }
        // The block that an earlier hole ended in was only emptied.
        let from = self.freed - self.freed % BLOCK;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(file, hole, from, self.taken - from).is_ok() {
            self.give_back(self.taken - self.freed);
            self.freed = self.taken;
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return self.give_back(self.reserved) };
        let (spool, holder, reserved) = (Arc::clone(&self.spool), self.holder.clone(), self.reserved);
        // It has no name, so this frees its blocks: a millisecond and more for some megabytes.
        let end = move || {
            drop(file);
            spool.room().give_back(&holder, reserved);
        };
        drop(self.spool.threads.spawn_blocking(end));
    }
}

#[cfg(test)]
impl Stored {
    /// From now on the disk is full. The file of before is what holds its bytes.
    pub(super) fn fill(&mut self) -> Option<File> {
        self.file.replace(crate::io::spool::folder::tests::disk_that_is_full())
    }

    pub(super) fn set_file(&mut self, file: Option<File>) {
        self.file = file;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::io::spool::folder::tests::{Disk, account, pattern};

    #[test]
    fn room_is_given_back_as_it_is_read() {
        let disk = Disk::new("stored", 64 << 20);
        let mut stored = Stored::new(&disk.spool, &account("a"));
        let written = pattern(16 * READ);
        let mut read = Vec::new();
        for round in 1..=2 {
            stored.reserve(written.len() as u64).unwrap();
            stored = disk.wait(stored.append(written.clone())).unwrap();
            while stored.len() > 0 {
                let (less, piece) = disk.wait(stored.take()).unwrap();
                stored = less;
                read.extend_from_slice(&piece);
                assert_eq!(disk.spool.room().used(), stored.len(), "after {} bytes", read.len());
                let blocks = stored.file.as_ref().unwrap().metadata().unwrap().blocks();
                assert!(blocks * 512 <= stored.len() + 2 * BLOCK, "{blocks} blocks for {} bytes", stored.len());
            }
            assert!(read == written.repeat(round), "it comes back as it was");
        }
    }

    #[test]
    fn what_the_disk_does_not_take_comes_back_with_what_it_took() {
        let disk = Disk::new("full", 1 << 20);
        let mut stored = Stored::new(&disk.spool, &account("a"));
        stored.reserve(100_000).unwrap();
        stored = disk.wait(stored.append(pattern(100_000))).unwrap();
        let whole = stored.fill();
        stored.reserve(50_000).unwrap();
        let Unwritten { mut stored, bytes } = disk.wait(stored.append(pattern(50_000))).unwrap_err();
        assert!(bytes == pattern(50_000));
        assert_eq!((stored.len(), disk.spool.room().used()), (100_000, 100_000));
        assert_eq!(stored.reserve(1), Err(Cause::SystemFull), "for a while");
        assert_eq!(disk.spool.failures.counts(), (1, 0));
        stored.file = whole;
        assert!(stored.read(0).unwrap() == pattern(100_000)[..READ]);
    }

    #[test]
    fn a_file_that_cannot_be_made_leaves_the_bytes() {
        let disk = Disk::new("no-file", 1 << 20);
        let mut stored = Stored::new(&disk.spool, &account("a"));
        std::fs::remove_dir(&disk.spool.directory).unwrap();
        stored.reserve(10).unwrap();
        let unwritten = disk.wait(stored.append(pattern(10))).unwrap_err();
        std::fs::create_dir(&disk.spool.directory).unwrap();
        assert_eq!((unwritten.bytes.len(), disk.spool.room().used()), (10, 0));
    }

    #[test]
    fn the_room_of_a_body_that_is_given_up_is_given_back() {
        let disk = Disk::new("given-up", 1 << 20);
        let mut stored = Stored::new(&disk.spool, &account("a"));
        stored.reserve(512 << 10).unwrap();
        assert_eq!(stored.reserve(1), Err(Cause::OverShare));
        drop(disk.wait(stored.append(Bytes::from(vec![1; 512 << 10]))));
        // The pool has one thread.
        disk.wait(disk.spool.threads.spawn_blocking(|| ()));
        assert_eq!(disk.spool.room().used(), 0);
    }
}
