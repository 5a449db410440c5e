//! Notices that files changed.
//!
//! By looking at them once a second: the name of a file may be a link that is moved to another one, as orchestrators do,
//! which a watch on the file itself would not see.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Some files as they were when they were last looked at.
#[derive(Debug)]
pub(super) struct Watched {
    files: Vec<(PathBuf, Option<Print>)>,
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
    /// These files, as they are now.
    pub(super) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().map(|file| (file.clone(), print_of(&file))).collect() }
    }

    /// Whether one of them is another than at the last look. One that is gone is being replaced: it is another when it
    /// is back.
    pub(super) fn changed(&mut self) -> bool {
        let mut changed = false;
        for (file, before) in &mut self.files {
            let Some(now) = print_of(file) else { continue };
            changed |= before.replace(now) != Some(now);
        }
        changed
    }
}

fn print_of(file: &PathBuf) -> Option<Print> {
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
        let mut watched = Watched::new([file.clone()]);
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
}
