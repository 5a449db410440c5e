//! A first-in first-out queue of records in nsqd's files.
//!
//! The files are those of nsqd 1.3.0, in both directions: `NAME.diskqueue.NNNNNN.dat` holds records back to back, each
//! a big-endian `u32` length and so many bytes; `NAME.diskqueue.meta.dat` holds depth, read and write position. A file
//! that would grow past its bound is left for the next one; a file read to its end is removed; a file with bytes that
//! cannot be records is renamed to `.bad` and left, as nsqd does.
//!
//! Departures, none visible to nsqd: records are appended and read in batches; what was read ahead stays in the queue
//! until [`DiskQueue::advance`] commits it, so a killed process repeats messages but loses none; an append is all or
//! nothing; and after a kill the records beyond the meta file's write position are counted again.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

mod files;
mod group;
mod layout;
mod listing;
#[cfg(test)]
pub(crate) mod memory;

pub use files::{Files, SystemFiles};
pub(crate) use files::{read_whole, replace};
pub use group::{Unsynced, sync_all};
pub use layout::RecordLen;
pub use listing::Listing;

use layout::{Head, LENGTH_BYTES, Meta, Paths, Position, read_full, scan};

/// Bounds and habits of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskQueueOptions {
    /// A file does not grow past this, but holds at least one record.
    pub max_bytes_per_file: u64,
    /// Lengths of records; others are refused on append and taken for corruption on read.
    pub record_len: RecordLen,
    /// Records appended and advanced over between two syncs.
    pub sync_every: u64,
}

/// What went wrong with a queue's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskQueueError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Bytes given to append that are not `count` records of allowed lengths.
    #[error("{bytes} bytes are not {count} records of allowed lengths")]
    NotRecords {
        /// How many bytes were given.
        bytes: usize,
        /// How many records they should be.
        count: u32,
    },
}

/// Where the reader left a file, and what is to become of the file when all its records are advanced over.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    at: u64,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Remove,
    SetAside,
}

/// What stands behind the end of the file being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tail {
    /// Nothing.
    Clean,
    /// Nothing, but bytes may have been cut off, by this process or the one before, and the cut not be on the device.
    /// Until it is, nothing is written there: a power cut may keep the bytes, drop the cut and what was written in
    /// their place, and keep what was written behind that.
    Cut,
    /// Perhaps bytes of a failed append, because cutting them off failed too.
    Torn,
}

/// The queue. Single-threaded; nothing but the meta file is written behind the caller's back.
#[derive(Debug)]
pub struct DiskQueue<F: Files = SystemFiles> {
    files: F,
    paths: Paths,
    options: DiskQueueOptions,
    /// All before it is advanced over.
    committed: Position,
    /// All before it has been read.
    cursor: Position,
    /// The end.
    write: Position,
    /// Records from `committed` on.
    depth: u64,
    /// Sizes of the records between `committed` and `cursor`, length included.
    ahead: VecDeque<u32>,
    /// The ends of the files between `committed` and `cursor`.
    crossings: VecDeque<Crossing>,
    writer: Option<F::File>,
    reader: Option<Reader<F::File>>,
    tail: Tail,
    /// The file being written may have bytes that are not on the device.
    unflushed: bool,
    /// Records appended or advanced over since the last sync.
    unsynced: u64,
    /// The meta file is behind for another reason.
    stale: bool,
    /// The meta file may name a file that a failed append has left again. What is appended before it is written anew stands in
    /// front of the end that it names, and would not be counted after a crash.
    ahead_of_write: bool,
}

#[derive(Debug)]
struct Reader<File> {
    file: File,
    /// Bytes in the file, once it is not written any more; until then `write.at` counts.
    len: Option<u64>,
}

impl DiskQueue<SystemFiles> {
    /// Opens or creates the queue `name` (`topic` or `topic:channel`) in `folder`.
    pub fn open(folder: &Path, name: &str, options: DiskQueueOptions) -> Result<Self, DiskQueueError> {
        Self::open_on(SystemFiles, folder, name, options)
    }
}

impl<F: Files> DiskQueue<F> {
    /// The same on other files than the system's.
    pub fn open_on(files: F, folder: &Path, name: &str, options: DiskQueueOptions) -> Result<Self, DiskQueueError> {
        let listed = |files: &F| {
            let listing = Listing::read(files, folder).map_err(|e| failed("list", folder.to_owned(), e))?;
            Ok(listing.numbers(name).to_owned())
        };
        Self::open_listed(files, folder, name, options, listed)
    }

    /// The same where it is known which files there are: `listed` answers the numbers of the queue's data files, in
    /// order. It is only asked if there is no meta file, which would say so.
    pub fn open_listed(
        files: F,
        folder: &Path,
        name: &str,
        options: DiskQueueOptions,
        listed: impl FnOnce(&F) -> Result<Vec<u64>, DiskQueueError>,
    ) -> Result<Self, DiskQueueError> {
        let mut queue = Self {
            files,
            paths: Paths::new(folder, name),
            options,
            committed: Position::default(),
            cursor: Position::default(),
            write: Position::default(),
            depth: 0,
            ahead: VecDeque::new(),
            crossings: VecDeque::new(),
            writer: None,
            reader: None,
            tail: Tail::Clean,
            unflushed: false,
            unsynced: 0,
            stale: false,
            ahead_of_write: false,
        };
        match queue.read_meta()? {
            Some(meta) => queue.resume(meta)?,
            None => queue.salvage(listed(&queue.files)?)?,
        }
        queue.cursor = queue.committed;
        Ok(queue)
    }

    /// `topic` or `topic:channel`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.paths.name()
    }

    /// Records not yet advanced over.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Appends `count` records, each with its length in front, as one write for each file they fall into. After an
    /// error none of them is in the queue, now or after a restart.
    pub fn append(&mut self, records: &[u8], count: u32) -> Result<(), DiskQueueError> {
        self.check(records, count)?;
        if records.is_empty() {
            return Ok(());
        }
        self.heal()?;
        if self.ahead_of_write {
            self.sync()?;
        }
        if self.tail == Tail::Cut {
            self.sync_data()?;
        }
        let (before, depth) = (self.write, self.depth);
        let full = self.fitting(records).0 == 0;
        if let Err(error) = self.write_out(records) {
            self.undo(before, depth);
            return Err(error);
        }
        if full && self.cursor == before {
            // The reader has seen all of the file that was just left.
            self.leave_file(Fate::Remove);
        }
        self.count_towards_sync(u64::from(count));
        Ok(())
    }

    /// Reads on from the cursor into `out`, at most `max_bytes` of one file but always one record, and answers how many
    /// records it read; 0 at the end. They stay in the queue until [`DiskQueue::advance`].
    pub fn read(&mut self, max_bytes: u32, out: &mut Vec<u8>) -> Result<u32, DiskQueueError> {
        let start = out.len();
        loop {
            if self.cursor >= self.write {
                // Only here the depth can be checked against the truth; after corruption it was too high.
                self.depth = self.ahead.len() as u64;
                return Ok(0);
            }
            let Some(end) = self.open_reader()? else {
                self.leave_file(Fate::Remove);
                continue;
            };
            if self.cursor.at >= end {
                self.leave_file(Fate::Remove);
                continue;
            }
            let available = end - self.cursor.at;
            let mut want = available.min(u64::from(max_bytes).max(LENGTH_BYTES as u64));
            loop {
                let got = self.read_at_cursor(want, out)?;
                let (count, whole, next) = self.split(&out[start..]);
                if count > 0 {
                    out.truncate(start + whole);
                    self.cursor.at += whole as u64;
                    if self.cursor.file < self.write.file && self.cursor.at >= end {
                        self.leave_file(Fate::Remove);
                    }
                    return Ok(count);
                }
                out.truncate(start);
                match next {
                    Head::Size(size) if size <= available && size > want && got == want => want = size,
                    _ => break,
                }
            }
            warn!(
                queue = self.paths.name(),
                file = self.cursor.file,
                at = self.cursor.at,
                "bytes on disk are no records; the rest of the file is set aside"
            );
            self.leave_file(Fate::SetAside);
        }
    }

    /// Commits the next `count` records that were read (all of them if there are fewer).
    pub fn advance(&mut self, count: u32) {
        for _ in 0..count {
            let Some(size) = self.ahead.pop_front() else { break };
            self.committed.at += u64::from(size);
            self.depth = self.depth.saturating_sub(1);
            self.settle();
        }
        self.count_towards_sync(u64::from(count));
    }

    /// Forgets all records and removes their files.
    pub fn empty(&mut self) -> Result<(), DiskQueueError> {
        let outcome = self.remove_data();
        self.write = self.write.next_file();
        self.committed = self.write;
        self.cursor = self.write;
        self.depth = 0;
        self.sync()?;
        outcome
    }

    /// Whether something would be lost with the machine's power that a sync would save.
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        self.unsynced > 0 || self.stale || self.tail == Tail::Torn
    }

    /// Brings all records and then the meta file to the device.
    pub fn sync(&mut self) -> Result<(), DiskQueueError> {
        self.stale = true;
        self.heal()?;
        self.sync_data()?;
        self.write_meta()?;
        self.unsynced = 0;
        (self.stale, self.ahead_of_write) = (false, false);
        Ok(())
    }

    /// Syncs what there is to sync, and closes; what was read and not advanced over is there again on the next open.
    pub fn close(mut self) -> Result<(), DiskQueueError> {
        if self.needs_sync() { self.sync() } else { Ok(()) }
    }

    /// Closes its files until they are needed again. Nothing is lost by it: what is not synced stays due.
    pub fn release(&mut self) {
        self.writer = None;
        self.reader = None;
    }

    /// Whether it has files open.
    #[must_use]
    pub fn holds_files(&self) -> bool {
        self.writer.is_some() || self.reader.is_some()
    }

    /// Closes and removes all files but those set aside.
    pub fn delete(mut self) -> Result<(), DiskQueueError> {
        let outcome = self.remove_data();
        self.remove_if_there(self.paths.meta())?;
        outcome
    }

    fn read_meta(&self) -> Result<Option<Meta>, DiskQueueError> {
        // Far above three lines of numbers; a longer file is no meta file.
        const LONGEST: usize = 256;
        let path = self.paths.meta();
        let file = match self.files.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", path, error)),
        };
        let mut text = [0; LONGEST];
        let len = read_full(&self.files, &file, &mut text, 0).map_err(|e| failed("read", path, e))?;
        let meta = Meta::parse(&text[..len]);
        if meta.is_none() {
            warn!(queue = self.paths.name(), "unreadable meta file; all records on disk are delivered again");
        }
        Ok(meta)
    }

    /// Goes on where the meta file says, and counts what was appended after it was written.
    fn resume(&mut self, meta: Meta) -> Result<(), DiskQueueError> {
        self.depth = meta.depth;
        self.committed = meta.read;
        self.write = meta.write;
        loop {
            let file = match self.files.open(&self.paths.data(self.write.file)) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed("open", self.paths.data(self.write.file), error)),
            };
            let size = file.as_ref().map_or(Ok(0), |file| self.len(file, self.write.file))?;
            if size == self.write.at {
                break;
            }
            let Some(file) = file.filter(|_| size > self.write.at) else {
                // The end of the file is lost. Writing on would leave a gap that reads as corruption.
                self.write = self.write.next_file();
                continue;
            };
            let (records, end) = self.count(self.write.file, self.write.at)?;
            debug!(queue = self.paths.name(), records, "found records that the meta file does not know");
            self.depth += records;
            self.stale = true;
            let last = !self.exists(self.write.file + 1)?;
            if end == size && last {
                self.write.at = size;
                // The process before was killed before it had synced, and perhaps after it had cut something off.
                (self.unflushed, self.tail) = (true, Tail::Cut);
                break;
            }
            // It is not written on, so no later sync would reach it.
            if let Err(error) = self.files.sync(&file) {
                warn!(queue = self.paths.name(), file = self.write.file, %error, "a file of records cannot be synced");
            }
            self.write = self.write.next_file();
        }
        if self.committed > self.write {
            warn!(queue = self.paths.name(), "read position beyond the end; the queue is taken for empty");
            self.committed = self.write;
            self.depth = 0;
        }
        Ok(())
    }

    /// Without a meta file, takes up all data files that are there. nsqd would write over the first of them.
    fn salvage(&mut self, numbers: Vec<u64>) -> Result<(), DiskQueueError> {
        let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        for file in numbers {
            self.depth += self.count(file, 0)?.0;
        }
        self.committed = Position { file: first, at: 0 };
        self.write = Position { file: last + 1, at: 0 };
        self.stale = true;
        Ok(())
    }

    fn count(&self, number: u64, from: u64) -> Result<(u64, u64), DiskQueueError> {
        let path = self.paths.data(number);
        let file = self.files.open(&path).map_err(|e| failed("open", path.clone(), e))?;
        scan(&self.files, &file, from, self.options.record_len).map_err(|e| failed("read", path, e))
    }

    fn exists(&self, number: u64) -> Result<bool, DiskQueueError> {
        let path = self.paths.data(number);
        match self.files.open(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("open", path, error)),
        }
    }

    fn len(&self, file: &F::File, number: u64) -> Result<u64, DiskQueueError> {
        self.files.len(file).map_err(|e| failed("measure", self.paths.data(number), e))
    }

    fn check(&self, records: &[u8], count: u32) -> Result<(), DiskQueueError> {
        let (found, whole) = count_whole(self.options.record_len, records);
        if found == count && whole == records.len() {
            Ok(())
        } else {
            Err(DiskQueueError::NotRecords { bytes: records.len(), count })
        }
    }

    /// Bytes and number of the leading records that go into the file being written.
    fn fitting(&self, records: &[u8]) -> (usize, u64) {
        let (mut bytes, mut count) = (0, 0);
        while let Head::Size(size) = self.options.record_len.record(&records[bytes..]) {
            let end = self.write.at + bytes as u64 + size;
            if end > self.options.max_bytes_per_file && self.write.at + bytes as u64 > 0 {
                break;
            }
            bytes += usize::try_from(size).expect("a record in memory");
            count += 1;
        }
        (bytes, count)
    }

    fn write_out(&mut self, mut records: &[u8]) -> Result<(), DiskQueueError> {
        while !records.is_empty() {
            let (bytes, count) = self.fitting(records);
            if bytes == 0 {
                self.roll()?;
                continue;
            }
            let (now, later) = records.split_at(bytes);
            let at = self.write.at;
            self.open_writer()?;
            let writer = self.writer.as_ref().expect("just opened");
            self.files
                .write_all_at(writer, now, at)
                .map_err(|e| failed("write to", self.paths.data(self.write.file), e))?;
            self.unflushed = true;
            self.write.at += bytes as u64;
            self.depth += count;
            records = later;
        }
        Ok(())
    }

    /// Leaves the file being written for the next. The meta file must say so before the next file has a record, else
    /// nsqd would write over it after a crash.
    fn roll(&mut self) -> Result<(), DiskQueueError> {
        self.sync_data()?;
        self.writer = None;
        self.write = self.write.next_file();
        self.write_meta()
    }

    /// Takes back a failed append.
    fn undo(&mut self, before: Position, depth: u64) {
        for file in before.file + 1..=self.write.file {
            // If this fails, the file is cut to nothing when its turn to be written comes.
            let _ = self.remove_if_there(self.paths.data(file));
        }
        if self.write.file != before.file {
            self.writer = None;
            (self.stale, self.ahead_of_write) = (true, true);
        }
        self.write = before;
        self.depth = depth;
        self.tail = Tail::Torn;
        if self.heal().is_ok() && self.stale {
            // The meta file may name the file that was just removed. If it cannot be written, the sync that is due and the
            // next append try again; until then a crash costs nothing but a skipped file number.
            let _ = self.sync();
        }
    }

    /// Cuts off what a failed append may have left.
    fn heal(&mut self) -> Result<(), DiskQueueError> {
        if self.tail == Tail::Torn {
            let at = self.write.at;
            if at > 0 || self.writer.is_some() || self.exists(self.write.file)? {
                self.open_writer()?;
                let writer = self.writer.as_ref().expect("just opened");
                self.files.set_len(writer, at).map_err(|e| failed("cut", self.paths.data(self.write.file), e))?;
                (self.unflushed, self.tail) = (true, Tail::Cut);
            } else {
                self.tail = Tail::Clean;
            }
        }
        Ok(())
    }

    /// The file that was being written is left or removed: nothing is owed to its end any more.
    fn forget_tail(&mut self) {
        (self.tail, self.unflushed) = (Tail::Clean, false);
    }

    /// Brings the records of the file being written to the device.
    fn sync_data(&mut self) -> Result<(), DiskQueueError> {
        if self.unflushed {
            self.open_writer()?;
            let writer = self.writer.as_ref().expect("just opened");
            self.files.sync(writer).map_err(|e| failed("sync", self.paths.data(self.write.file), e))?;
            (self.unflushed, self.tail) = (false, Tail::Clean);
        }
        Ok(())
    }

    fn open_writer(&mut self) -> Result<(), DiskQueueError> {
        if self.writer.is_none() {
            let path = self.paths.data(self.write.file);
            let writer = self.files.open_write(&path, self.write.at == 0).map_err(|e| failed("open", path, e))?;
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// Opens the file under the cursor and answers where its records end; `None` if there is no such file.
    fn open_reader(&mut self) -> Result<Option<u64>, DiskQueueError> {
        if self.reader.is_none() {
            let path = self.paths.data(self.cursor.file);
            let file = match self.files.open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    warn!(queue = self.paths.name(), file = self.cursor.file, "file of records is missing");
                    return Ok(None);
                }
                Err(error) => return Err(failed("open", path, error)),
            };
            self.reader = Some(Reader { file, len: None });
        }
        if self.cursor.file == self.write.file {
            return Ok(Some(self.write.at));
        }
        let reader = self.reader.as_ref().expect("just opened");
        let len = reader.len.map_or_else(|| self.len(&reader.file, self.cursor.file), Ok)?;
        if let Some(reader) = &mut self.reader {
            reader.len = Some(len);
        }
        Ok(Some(len))
    }

    /// Appends up to `want` bytes at the cursor to `out`; answers how many there were.
    fn read_at_cursor(&self, want: u64, out: &mut Vec<u8>) -> Result<u64, DiskQueueError> {
        let reader = self.reader.as_ref().expect("opened by the caller");
        let start = out.len();
        out.resize(start + usize::try_from(want).expect("bounded by u32"), 0);
        let got = read_full(&self.files, &reader.file, &mut out[start..], self.cursor.at);
        out.truncate(start + got.as_ref().map_or(0, |got| *got));
        got.map(|got| got as u64).map_err(|e| failed("read", self.paths.data(self.cursor.file), e))
    }

    /// Notes the whole records at the front of `bytes` as read ahead; answers their number and size, and what follows.
    fn split(&mut self, bytes: &[u8]) -> (u32, usize, Head) {
        let (mut count, mut whole) = (0, 0);
        loop {
            match self.options.record_len.record(&bytes[whole..]) {
                Head::Size(size) if whole as u64 + size <= bytes.len() as u64 => {
                    self.ahead.push_back(u32::try_from(size).expect("checked against u32 bounds"));
                    whole += usize::try_from(size).expect("within a buffer");
                    count += 1;
                }
                next => return (count, whole, next),
            }
        }
    }

    /// Moves the cursor to the next file.
    fn leave_file(&mut self, fate: Fate) {
        self.crossings.push_back(Crossing { at: self.cursor.at, fate });
        self.reader = None;
        if self.cursor.file == self.write.file {
            // It cannot be read on, so it is not written on either.
            self.writer = None;
            self.forget_tail();
            self.write = self.write.next_file();
        }
        self.cursor = self.cursor.next_file();
        self.settle();
    }

    /// Disposes of the files that are advanced over.
    fn settle(&mut self) {
        while let Some(crossing) = self.crossings.front().filter(|crossing| crossing.at == self.committed.at) {
            let (file, fate) = (self.committed.file, crossing.fate);
            self.crossings.pop_front();
            self.committed = self.committed.next_file();
            // The meta file first, so that after a crash it does not name a missing file. If it cannot be written
            // the file goes all the same: on a full disk that is what makes room again.
            if let Err(error) = self.sync() {
                debug!(queue = self.paths.name(), %error, "meta file is behind");
            }
            let outcome = match fate {
                Fate::Remove => self.remove_if_there(self.paths.data(file)),
                Fate::SetAside => {
                    let path = self.paths.data(file);
                    self.files.rename(&path, &self.paths.bad(file)).map_err(|e| failed("rename", path, e))
                }
            };
            if let Err(error) = outcome {
                warn!(queue = self.paths.name(), %error, "a file that was read stays behind");
            }
        }
    }

    fn count_towards_sync(&mut self, records: u64) {
        self.unsynced += records;
        if self.unsynced >= self.options.sync_every
            && let Err(error) = self.sync()
        {
            // The records are in the page cache and the sync that is due by time tries again.
            debug!(queue = self.paths.name(), %error, "sync failed");
            self.unsynced = 0;
        }
    }

    fn write_meta(&self) -> Result<(), DiskQueueError> {
        let write = || {
            let file = self.draft_meta()?;
            self.files.sync(&file)?;
            self.files.rename(&self.paths.meta_new(), &self.paths.meta())
        };
        write().map_err(|error| self.drop_draft(error))
    }

    /// Writes the next meta file beside the one in force.
    fn draft_meta(&self) -> io::Result<F::File> {
        let text = Meta { depth: self.depth, read: self.committed, write: self.write }.to_text();
        let file = self.files.open_write(&self.paths.meta_new(), true)?;
        self.files.write_all_at(&file, text.as_bytes(), 0)?;
        Ok(file)
    }

    fn drop_draft(&self, error: io::Error) -> DiskQueueError {
        let _ = self.files.remove(&self.paths.meta_new());
        failed("write", self.paths.meta(), error)
    }

    fn remove_data(&mut self) -> Result<(), DiskQueueError> {
        self.writer = None;
        self.reader = None;
        self.forget_tail();
        self.ahead.clear();
        self.crossings.clear();
        let mut outcome = Ok(());
        for file in self.committed.file..=self.write.file {
            outcome = outcome.and(self.remove_if_there(self.paths.data(file)));
        }
        outcome
    }

    fn remove_if_there(&self, path: PathBuf) -> Result<(), DiskQueueError> {
        match self.files.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
            _ => Ok(()),
        }
    }
}

/// The whole records at the front of `bytes`: their number and size.
fn count_whole(lengths: RecordLen, bytes: &[u8]) -> (u32, usize) {
    let (mut count, mut whole) = (0, 0);
    while let Head::Size(size) = lengths.record(&bytes[whole..]) {
        let Some(end) = usize::try_from(size).ok().map(|size| whole + size).filter(|end| *end <= bytes.len()) else {
            break;
        };
        whole = end;
        count += 1;
    }
    (count, whole)
}

fn failed(action: &'static str, path: PathBuf, source: io::Error) -> DiskQueueError {
    DiskQueueError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
