//! Network namespaces: sockets of another one, and whether a path still names the same.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Which namespace it is: no two that exist have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// The kernel's own number for it.
    #[must_use]
    pub fn inode(self) -> u64 {
        self.inode
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.device, self.inode)
    }
}

/// A network namespace that is kept open.
#[derive(Debug)]
pub struct Namespace {
    path: PathBuf,
    file: File,
    id: NamespaceId,
}

impl Namespace {
    /// The namespace of the calling thread.
    const OWN: &'static str = "/proc/thread-self/ns/net";

    /// The namespace of the file `path`; without one, that of this thread.
    ///
    /// # Errors
    /// If there is none, or it may not be opened.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let path = path.unwrap_or(Path::new(Self::OWN)).to_owned();
        let file = File::open(&path)?;
        let id = id_of(&file.metadata()?);
        Ok(Self { path, file, id })
    }

    /// The same namespace, kept open once more.
    ///
    /// # Errors
    /// If the process has no room for another file.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), file: self.file.try_clone()?, id: self.id })
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Whether its path names it still. A namespace that was made anew under the same path is another one.
    #[must_use]
    pub fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|now| id_of(&now) == self.id)
    }

    /// Does `work` in a thread that is in the namespace: this one if it is. What it opens stays there.
    ///
    /// # Errors
    /// If the system has no thread, or we may not enter: that takes `CAP_SYS_ADMIN`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if Self::open(None)?.id == self.id {
            return Ok(work());
        }
        thread::scope(|scope| {
            let enter = move || {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            };
            let thread = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, enter)?;
            thread.join().expect("its work returns its errors")
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn id_of(file: &fs::Metadata) -> NamespaceId {
    NamespaceId { device: file.dev(), inode: file.ino() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_is_current() {
        let own = Namespace::open(None).unwrap();
        assert!(own.is_current());
        assert_eq!(own.id(), Namespace::open(Some(Path::new("/proc/self/ns/net"))).unwrap().id());
        assert!(Namespace::open(Some(Path::new("/nonexistent"))).is_err());
    }
}
