//! Names and contents of a disk queue's files: facts of nsqd's format.

use std::io;
use std::path::{Path, PathBuf};

use super::files::Files;

/// Bytes of the length in front of each record.
pub(super) const LENGTH_BYTES: usize = 4;

/// A place in a queue: the number of a file and an offset in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Position {
    pub(super) file: u64,
    pub(super) at: u64,
}

impl Position {
    /// The start of the next file.
    pub(super) fn next_file(self) -> Self {
        Self { file: self.file + 1, at: 0 }
    }
}

/// What the meta file says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Meta {
    pub(super) depth: u64,
    pub(super) read: Position,
    pub(super) write: Position,
}

impl Meta {
    /// Three lines: the depth, then file and offset of the reader, then those of the writer.
    pub(super) fn to_text(self) -> String {
        let Self { depth, read, write } = self;
        format!("{depth}\n{},{}\n{},{}\n", read.file, read.at, write.file, write.at)
    }

    /// `None` if the text is not of that form. A depth below zero, which nsqd can write after corruption, reads as 0.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(text).ok()?.lines();
        let depth = lines.next()?.trim().parse::<i64>().ok()?;
        let mut position = || {
            let (file, at) = lines.next()?.split_once(',')?;
            Some(Position { file: file.trim().parse().ok()?, at: at.trim().parse().ok()? })
        };
        Some(Self { depth: u64::try_from(depth).unwrap_or(0), read: position()?, write: position()? })
    }
}

/// The paths of one queue.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    folder: PathBuf,
    name: String,
}

impl Paths {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self { folder: folder.to_owned(), name: name.to_owned() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn meta(&self) -> PathBuf {
        self.folder.join(format!("{}.diskqueue.meta.dat", self.name))
    }

    pub(super) fn meta_new(&self) -> PathBuf {
        self.folder.join(format!("{}.diskqueue.meta.dat.tmp", self.name))
    }

    pub(super) fn data(&self, file: u64) -> PathBuf {
        self.folder.join(format!("{}.diskqueue.{file:06}.dat", self.name))
    }

    /// Where a file goes that cannot be read on.
    pub(super) fn bad(&self, file: u64) -> PathBuf {
        self.folder.join(format!("{}.diskqueue.{file:06}.dat.bad", self.name))
    }
}

/// The queue and the number of the data file called `file_name`, if it is one.
pub(super) fn data_file(file_name: &str) -> Option<(&str, u64)> {
    let (name, digits) = file_name.strip_suffix(".dat")?.rsplit_once('.')?;
    let number = (digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())??;
    Some((name.strip_suffix(".diskqueue")?, number))
}

/// What a record may be long, without the length in front of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordLen {
    /// At least.
    pub min: u32,
    /// At most.
    pub max: u32,
}

impl RecordLen {
    /// Timestamp, attempts and id in front of the body.
    const HEADER: u32 = 26;

    /// The records of messages whose bodies have at most `max_msg_size` bytes.
    #[must_use]
    pub const fn for_messages(max_msg_size: u32) -> Self {
        Self { min: Self::HEADER, max: max_msg_size.saturating_add(Self::HEADER) }
    }

    /// The whole size, length included, of the record that starts `bytes`.
    pub(super) fn record(self, bytes: &[u8]) -> Head {
        let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else { return Head::Short };
        let length = u32::from_be_bytes(*length);
        if length < self.min || length > self.max {
            Head::Bad(length)
        } else {
            Head::Size(LENGTH_BYTES as u64 + u64::from(length))
        }
    }
}

/// What stands where a record should begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    /// A record of so many bytes, length included.
    Size(u64),
    /// Fewer bytes than a length has.
    Short,
    /// A length that no record has.
    Bad(u32),
}

/// Counts the whole records of a file from `from` on; answers their number and where the last one ends.
pub(super) fn scan<F: Files>(files: &F, file: &F::File, from: u64, lengths: RecordLen) -> io::Result<(u64, u64)> {
    const WINDOW: usize = 64 * 1024;
    let size = files.len(file)?;
    let mut window = vec![0; WINDOW];
    let (mut records, mut at) = (0, from);
    let (mut start, mut filled) = (from, 0);
    loop {
        let skip = usize::try_from(at - start).unwrap_or(usize::MAX);
        if filled < LENGTH_BYTES || skip > filled - LENGTH_BYTES {
            start = at;
            filled = read_full(files, file, &mut window, start)?;
            if filled < LENGTH_BYTES {
                return Ok((records, at));
            }
            continue;
        }
        match lengths.record(&window[skip..filled]) {
            Head::Size(bytes) if at + bytes <= size => {
                records += 1;
                at += bytes;
            }
            _ => return Ok((records, at)),
        }
    }
}

/// Fills `buffer` from `at` on, as far as the file goes.
pub(super) fn read_full<F: Files>(files: &F, file: &F::File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match files.read_at(file, &mut buffer[filled..], at + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_is_nsqds_three_lines() {
        let meta = Meta { depth: 7, read: Position { file: 1, at: 20 }, write: Position { file: 3, at: 0 } };
        assert_eq!(meta.to_text(), "7\n1,20\n3,0\n");
        assert_eq!(Meta::parse(b"7\n1,20\n3,0\n"), Some(meta));
        assert_eq!(Meta::parse(b"-3\n0,0\n0,0\n"), Some(Meta::default()));
        for bad in [&b""[..], b"7", b"7\n1,20", b"x\n0,0\n0,0\n", b"7\n1;20\n3,0\n", b"7\n-1,20\n3,0\n", b"\xff"] {
            assert_eq!(Meta::parse(bad), None);
        }
    }

    #[test]
    fn names_are_nsqds() {
        let paths = Paths::new(Path::new("/d"), "t:c");
        assert_eq!(paths.meta(), Path::new("/d/t:c.diskqueue.meta.dat"));
        assert_eq!(paths.data(12), Path::new("/d/t:c.diskqueue.000012.dat"));
        assert_eq!(paths.data(1_234_567), Path::new("/d/t:c.diskqueue.1234567.dat"));
        assert_eq!(data_file("t:c.diskqueue.000012.dat"), Some(("t:c", 12)));
        assert_eq!(data_file("t.diskqueue.1234567.dat"), Some(("t", 1_234_567)));
        for other in ["nsqd.dat", "t:c.diskqueue.meta.dat", "t:c.diskqueue.000012.dat.bad", "t:c.diskqueue.12.dat"] {
            assert_eq!(data_file(other), None);
        }
    }
}
