//! A disk for tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Files;

/// Files in memory, with room for a while.
#[derive(Clone, Default)]
pub(crate) struct MemoryFiles(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Bytes that can still be added to files; `None` for no bound.
    room: Option<usize>,
    /// Cutting files fails too.
    cut_fails: bool,
    /// Reading fails.
    read_fails: bool,
    /// Syncing all files at once fails.
    folder_sync_fails: bool,
    file_syncs: usize,
    folder_syncs: usize,
    lists: usize,
}

impl MemoryFiles {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// From now on so many bytes can be added to files.
    pub(crate) fn set_room(&self, room: Option<usize>) {
        self.disk().room = room;
    }

    /// From now on files can(not) be cut.
    pub(crate) fn set_cut_fails(&self, fails: bool) {
        self.disk().cut_fails = fails;
    }

    /// From now on files can(not) be read.
    pub(crate) fn set_read_fails(&self, fails: bool) {
        self.disk().read_fails = fails;
    }

    /// From now on all files can(not) be synced at once.
    pub(crate) fn set_folder_sync_fails(&self, fails: bool) {
        self.disk().folder_sync_fails = fails;
    }

    /// How often one file was synced, and how often all were.
    pub(crate) fn syncs(&self) -> (usize, usize) {
        let disk = self.disk();
        (disk.file_syncs, disk.folder_syncs)
    }

    /// How often the folder was listed.
    pub(crate) fn lists(&self) -> usize {
        self.disk().lists
    }

    /// All names, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.disk().files.keys().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// A file's contents.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.disk().files[&Path::new("/d").join(name)].clone()).unwrap()
    }

    /// Changes a file, made if need be.
    pub(crate) fn with<T>(&self, name: &str, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        change(self.disk().files.entry(Path::new("/d").join(name)).or_default())
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Files for MemoryFiles {
    type File = PathBuf;

    fn open(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk().files.contains_key(path).then(|| path.to_owned()).ok_or_else(not_found)
    }

    fn open_write(&self, path: &Path, fresh: bool) -> io::Result<PathBuf> {
        let mut disk = self.disk();
        if !disk.files.contains_key(path) && disk.room == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let contents = disk.files.entry(path.to_owned()).or_default();
        if fresh {
            contents.clear();
        }
        Ok(path.to_owned())
    }

    fn len(&self, file: &PathBuf) -> io::Result<u64> {
        Ok(self.disk().files.get(file).ok_or_else(not_found)?.len() as u64)
    }

    fn read_at(&self, file: &PathBuf, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let disk = self.disk();
        if disk.read_fails {
            return Err(io::Error::other("bad sector"));
        }
        let contents = disk.files.get(file).ok_or_else(not_found)?;
        let rest = contents.get(usize::try_from(at).unwrap()..).unwrap_or(&[]);
        // In pieces, as a system may.
        let len = rest.len().min(buffer.len()).min(17);
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_all_at(&self, file: &PathBuf, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut disk = self.disk();
        let room = disk.room.unwrap_or(usize::MAX);
        let fits = bytes.len().min(room);
        let contents = disk.files.get_mut(file).ok_or_else(not_found)?;
        let at = usize::try_from(at).unwrap();
        contents.resize(contents.len().max(at + fits), 0);
        contents[at..at + fits].copy_from_slice(&bytes[..fits]);
        if let Some(room) = &mut disk.room {
            *room -= fits;
        }
        if fits == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn set_len(&self, file: &PathBuf, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.cut_fails {
            return Err(io::Error::other("read-only"));
        }
        disk.files.get_mut(file).ok_or_else(not_found)?.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync(&self, _: &PathBuf) -> io::Result<()> {
        self.disk().file_syncs += 1;
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.folder_syncs += 1;
        if disk.folder_sync_fails { Err(io::Error::other("not this file system")) } else { Ok(()) }
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let gone = disk.files.remove(path).ok_or_else(not_found)?;
        if let Some(room) = &mut disk.room {
            *room += gone.len();
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let contents = disk.files.remove(from).ok_or_else(not_found)?;
        disk.files.insert(to.to_owned(), contents);
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        self.disk().lists += 1;
        Ok(self.disk().files.keys().map(|path| path.file_name().unwrap().to_owned()).collect())
    }
}
