//! A disk that loses what was not synced.
//!
//! What a process has written stays when it is killed. When the power goes, of each file stays what was synced and any
//! part of the later writes, a write that is missing before one that is there reads as zeros, and the last one that is
//! there may be torn. Creations, renames and removals are in one journal, as with ext4 and XFS: they last in their order,
//! a sync of any file or folder makes those before it last, and of the later ones a part from the front lasts.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tidegate_broker::io::disk_queue::Files;
use tidegate_core::Rng;

/// The file system of a machine. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct SimFiles(Rc<RefCell<Disk>>);

#[derive(Default)]
struct Disk {
    files: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    journal: Vec<NameChange>,
    /// No file takes more bytes.
    full: bool,
    /// Nothing can be read.
    unreadable: bool,
    /// The process dies after so many more changes: later ones fail and do nothing.
    last_changes: Option<u64>,
}

#[derive(Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Clone)]
enum NameChange {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Self::Write(at, bytes) => {
                contents.resize(contents.len().max(at + bytes.len()), 0);
                contents[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::Cut(len) => contents.resize(*len, 0),
        }
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Create(path, file) => drop(names.insert(path, file)),
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(&from) {
                    names.insert(to, file);
                }
            }
            Self::Remove(path) => drop(names.remove(&path)),
        }
    }
}

impl Disk {
    /// Asked before each change.
    fn may_change(&mut self) -> io::Result<()> {
        match &mut self.last_changes {
            Some(0) => Err(io::Error::other("the process is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn has_room(&self) -> io::Result<()> {
        if self.full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn rename(&mut self, change: NameChange) {
        self.journal.push(change.clone());
        change.apply(&mut self.names);
    }

    fn commit_names(&mut self) {
        for change in self.journal.drain(..) {
            change.apply(&mut self.durable_names);
        }
    }

    fn change(&mut self, file: usize, change: Change) {
        let inode = &mut self.files[file];
        change.apply(&mut inode.now);
        inode.pending.push(change);
    }
}

impl SimFiles {
    fn disk(&self) -> RefMut<'_, Disk> {
        self.0.borrow_mut()
    }

    /// Files can(not) grow from now on.
    pub(crate) fn set_full(&self, full: bool) {
        self.disk().full = full;
    }

    /// Files can(not) be read from now on.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.disk().unreadable = unreadable;
    }

    /// After so many changes the process is dead; `None` for a new one.
    pub(crate) fn dies_after(&self, changes: Option<u64>) {
        self.disk().last_changes = changes;
    }

    /// The power goes, and comes back.
    pub(crate) fn lose_power(&self, rng: &mut Rng) {
        let mut disk = self.disk();
        let lasting = below(rng, disk.journal.len() + 1);
        let journal = std::mem::take(&mut disk.journal);
        for change in journal.into_iter().take(lasting) {
            change.apply(&mut disk.durable_names);
        }
        disk.names = disk.durable_names.clone();
        for file in &mut disk.files {
            // Often all or nothing of it is there, and else any part.
            let share = [0.0, 0.5, 0.9, 1.0][below(rng, 4)];
            let mut kept: Vec<Change> = std::mem::take(&mut file.pending);
            kept.retain(|_| rng.chance(share));
            if let Some(Change::Write(_, bytes)) = kept.last_mut()
                && rng.chance(0.5)
            {
                bytes.truncate(below(rng, bytes.len() + 1));
            }
            for change in kept {
                change.apply(&mut file.durable);
            }
            file.now.clone_from(&file.durable);
        }
    }
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below a usize")
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Files for SimFiles {
    type File = usize;

    fn open(&self, path: &Path) -> io::Result<usize> {
        self.disk().names.get(path).copied().ok_or_else(not_found)
    }

    fn open_write(&self, path: &Path, fresh: bool) -> io::Result<usize> {
        let mut disk = self.disk();
        let known = disk.names.get(path).copied();
        if let Some(file) = known {
            if fresh && !disk.files[file].now.is_empty() {
                disk.may_change()?;
                disk.change(file, Change::Cut(0));
            }
            return Ok(file);
        }
        disk.has_room()?;
        disk.may_change()?;
        let file = disk.files.len();
        disk.files.push(Inode::default());
        disk.rename(NameChange::Create(path.to_owned(), file));
        Ok(file)
    }

    fn len(&self, file: &usize) -> io::Result<u64> {
        Ok(self.disk().files[*file].now.len() as u64)
    }

    fn read_at(&self, file: &usize, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let disk = self.disk();
        if disk.unreadable {
            return Err(io::Error::other("input/output error"));
        }
        let rest = disk.files[*file].now.get(usize::try_from(at).unwrap()..).unwrap_or(&[]);
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_all_at(&self, file: &usize, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.may_change()?;
        let at = usize::try_from(at).unwrap();
        // A full disk takes a part.
        let room =
            if disk.full { disk.files[*file].now.len().saturating_sub(at).max(bytes.len() / 2) } else { bytes.len() };
        let fits = room.min(bytes.len());
        disk.change(*file, Change::Write(at, bytes[..fits].to_vec()));
        if fits == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn set_len(&self, file: &usize, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.may_change()?;
        disk.change(*file, Change::Cut(usize::try_from(len).unwrap()));
        Ok(())
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        let mut disk = self.disk();
        disk.may_change()?;
        let inode = &mut disk.files[*file];
        for change in inode.pending.drain(..) {
            change.apply(&mut inode.durable);
        }
        disk.commit_names();
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        let files = self.disk().files.len();
        for file in 0..files {
            self.sync(&file)?;
        }
        self.disk().commit_names();
        Ok(())
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.may_change()?;
        disk.commit_names();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        if !disk.names.contains_key(path) {
            return Err(not_found());
        }
        disk.may_change()?;
        disk.rename(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        if !disk.names.contains_key(from) {
            return Err(not_found());
        }
        disk.may_change()?;
        disk.rename(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.disk().names.keys().map(|path| path.file_name().unwrap().to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/d/a";

    fn contents(files: &SimFiles, name: &str) -> Option<Vec<u8>> {
        let file = files.open(Path::new(name)).ok()?;
        let mut buffer = vec![0; usize::try_from(files.len(&file).unwrap()).unwrap()];
        files.read_at(&file, &mut buffer, 0).unwrap();
        Some(buffer)
    }

    #[test]
    fn what_was_synced_outlives_the_power_and_the_rest_may_not() {
        let (mut torn, mut whole, mut gone) = (0, 0, 0);
        for seed in 0..200 {
            let files = SimFiles::default();
            let file = files.open_write(Path::new(A), true).unwrap();
            files.write_all_at(&file, b"synced", 0).unwrap();
            files.sync(&file).unwrap();
            files.write_all_at(&file, b"later", 6).unwrap();
            files.rename(Path::new(A), Path::new("/d/b")).unwrap();
            files.lose_power(&mut Rng::new(seed));
            let kept = contents(&files, A).xor(contents(&files, "/d/b")).expect("it has one name");
            assert!(kept.starts_with(b"synced") && b"syncedlater".starts_with(&kept[..]));
            match kept.len() {
                6 => gone += 1,
                11 => whole += 1,
                _ => torn += 1,
            }
        }
        assert!(torn > 10 && whole > 10 && gone > 10, "{torn} {whole} {gone}");
    }

    #[test]
    fn a_file_that_nobody_synced_may_never_have_been() {
        let lasts = |seed| {
            let files = SimFiles::default();
            files.open_write(Path::new(A), true).unwrap();
            files.lose_power(&mut Rng::new(seed));
            contents(&files, A).is_some()
        };
        let lasting = (0..100).filter(|seed| lasts(*seed)).count();
        assert!((20..80).contains(&lasting), "{lasting}");
    }
}
