//! The files under a disk queue.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::layout::read_full;

/// What a disk queue needs of a file system. The real one is [`SystemFiles`]; tests have one that fills up and breaks.
pub trait Files {
    /// An open file; positions are given with each access.
    type File;

    /// Opens to read.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens to write, creating what is missing; `fresh` drops what is there.
    fn open_write(&self, path: &Path, fresh: bool) -> io::Result<Self::File>;
    /// Bytes in the file.
    fn len(&self, file: &Self::File) -> io::Result<u64>;
    /// Reads some bytes at `at`; 0 at the end.
    fn read_at(&self, file: &Self::File, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all bytes at `at`; after an error, any part of them may be there.
    fn write_all_at(&self, file: &Self::File, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Cuts or extends.
    fn set_len(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Returns when the file's bytes are on the device.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Returns when all that was written to any file in the folder is on the device, and so are the files' names.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Returns when the names of the folder's files are on the device.
    fn sync_names(&self, folder: &Path) -> io::Result<()>;
    /// Removes.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The names in a folder, in any order.
    fn list(&self, folder: &Path) -> io::Result<Vec<OsString>>;
}

/// The system's files, with nsqd's permissions: for the owner only.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemFiles;

impl Files for SystemFiles {
    type File = File;

    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn open_write(&self, path: &Path, fresh: bool) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(fresh).mode(0o600).open(path)
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match file.read_at(buffer, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write_all_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Syncs the whole file system: for very many files that is far quicker than one after the other.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(folder)?)?)
    }

    fn sync_names(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }
}

/// The whole of a file.
pub(crate) fn read_whole<F: Files>(files: &F, path: &Path) -> io::Result<Vec<u8>> {
    let file = files.open(path)?;
    let mut contents = vec![0; usize::try_from(files.len(&file)?).map_err(io::Error::other)?];
    let filled = read_full(files, &file, &mut contents, 0)?;
    contents.truncate(filled);
    Ok(contents)
}

/// Replaces the file `name` of `folder`: after a crash either the old one or the new one is there, whole.
pub(crate) fn replace<F: Files>(files: &F, folder: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let (path, new): (PathBuf, PathBuf) = (folder.join(name), folder.join(format!("{name}.tmp")));
    let write = || {
        let file = files.open_write(&new, true)?;
        files.write_all_at(&file, contents, 0)?;
        files.sync(&file)?;
        files.rename(&new, &path)?;
        // Only the folder's own sync makes the new name last.
        files.sync_names(folder)
    };
    write().inspect_err(|_| drop(files.remove(&new)))
}
