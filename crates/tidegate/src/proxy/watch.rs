//! Notices that files changed.
//!
//! By looking at them once a second: the name of a file may be a link that is moved to another one, as orchestrators do,
//! which a watch on the file itself would not see.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most looks from one reading that failed to the next: about a minute.
const PAUSE_MAX: u32 = 64;

/// Some files as they were when they were last looked at.
///
/// A file is entered before it is read: what is written while it is read is a change then, and read at the next look.
#[derive(Default, Debug)]
pub(crate) struct Watched {
    files: Vec<(PathBuf, Option<Print>)>,
}

/// Decides when files are read again.
#[derive(Debug)]
pub(super) struct Follower {
    watched: Watched,
    /// Readings in a row that failed.
    failed: u32,
    /// Looks until the next reading after one that failed.
    pause: u32,
}

/// What is different when a file was written or replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Print {
    device: u64,
    inode: u64,
    bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Watched {
    /// This file, as it is now.
    pub(crate) fn new(file: &Path) -> Self {
        let mut this = Self::default();
        this.enter(file);
        this
    }

    /// The file that was entered first.
    pub(super) fn first(&self) -> Option<PathBuf> {
        self.files.first().map(|(file, _)| file.clone())
    }

    /// One file more, as it is now.
    pub(super) fn enter(&mut self, file: &Path) {
        self.files.push((file.to_owned(), print_of(file)));
    }

    /// Whether one of them is another than at the last look. One that is gone is being replaced: it is another when it
    /// is back.
    fn changed(&mut self) -> bool {
        let mut changed = false;
        for (file, before) in &mut self.files {
            let Some(now) = print_of(file) else { continue };
            changed |= before.replace(now) != Some(now);
        }
        changed
    }
}

impl Follower {
    /// For files that were read after they were entered in `watched`.
    pub(super) fn new(watched: Watched) -> Self {
        Self { watched, failed: 0, pause: 0 }
    }

    /// Looks once; whether the files are to be read now. What could not be read or used may be well the next time though
    /// none of them changed, if there were no file descriptors left, say: so it is tried again, less and less often.
    pub(super) fn look(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.watched.changed() || (self.failed > 0 && self.pause == 0)
    }

    /// Has `read` read them, which enters each before; it says whether all went well.
    pub(super) fn read(&mut self, read: impl FnOnce(&mut Watched) -> bool) {
        let mut watched = Watched::default();
        if read(&mut watched) {
            self.failed = 0;
        } else {
            self.pause = 1u32.checked_shl(self.failed).unwrap_or(PAUSE_MAX).min(PAUSE_MAX);
            self.failed = self.failed.saturating_add(1);
        }
        self.watched = watched;
    }
}

fn print_of(file: &Path) -> Option<Print> {
    let found = fs::metadata(file).ok()?;
    Some(Print {
        device: found.dev(),
        inode: found.ino(),
        bytes: found.len(),
        changed_s: found.ctime(),
        changed_ns: found.ctime_nsec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Folder;

    #[test]
    fn a_file_that_was_written_or_replaced_is_another() {
        let folder = Folder::new("watch").unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "one").unwrap();
        let mut watched = Watched::new(&file);
        assert!(!watched.changed());
        fs::write(&file, "three").unwrap();
        assert!(watched.changed() && !watched.changed());
        fs::write(folder.path().join("b"), "three").unwrap();
        fs::rename(folder.path().join("b"), &file).unwrap();
        assert!(watched.changed(), "same size, another file");
        fs::remove_file(&file).unwrap();
        assert!(!watched.changed(), "it is being replaced");
        fs::write(&file, "three").unwrap();
        assert!(watched.changed());
    }

    #[test]
    fn what_is_written_while_a_file_is_read_is_read_next() {
        let folder = Folder::new("watch-race").unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "one").unwrap();
        let mut follower = Follower::new(Watched::new(&file));
        fs::write(&file, "three").unwrap();
        assert!(follower.look(), "it changed before the first look");
        follower.read(|watched| {
            watched.enter(&file);
            let read = fs::read(&file).is_ok();
            fs::write(&file, "fourteen").unwrap();
            read
        });
        assert!(follower.look());
        follower.read(|watched| {
            watched.enter(&file);
            true
        });
        assert!(!follower.look());
    }

    #[test]
    fn what_failed_is_tried_again_less_and_less_often() {
        let folder = Folder::new("watch-again").unwrap();
        let (file, key) = (folder.path().join("a"), folder.path().join("key"));
        fs::write(&file, "needs the key").unwrap();
        let mut follower = Follower::new(Watched::new(&file));
        let read = |watched: &mut Watched| {
            watched.enter(&file);
            watched.enter(&key);
            key.exists()
        };
        follower.read(read);
        let mut tries = Vec::new();
        for look in 1..300 {
            if follower.look() {
                tries.push(look);
                follower.read(read);
            }
        }
        assert_eq!(tries, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
        fs::write(&key, "key").unwrap();
        assert!(follower.look(), "the file that it named and that was not there is watched");
        follower.read(read);
        assert!((0..100).all(|_| !follower.look()), "all is well");
    }
}
