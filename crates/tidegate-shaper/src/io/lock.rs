//! One agent for each device: a second one would attach its programs beside those of the first.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::netns::NamespaceId;

/// Where locks are: only root writes there, so that nobody else can keep an agent from a device.
const FOLDER: &str = "/run/tidegate";
/// An agent that ends removes its file; another one may have opened it in that moment, and tries so often.
const ATTEMPTS: usize = 8;

/// A device that is ours while this is held. It goes with the process, however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    /// Its lock is the kernel's.
    _file: File,
}

impl Lock {
    /// The lock of a device of a namespace; `None` if another agent has it.
    pub(super) fn take(namespace: NamespaceId, device: &str) -> io::Result<Option<Self>> {
        Self::take_in(Path::new(FOLDER), &format!("shaper-{namespace}-{device}.lock"))
    }

    fn take_in(folder: &Path, name: &str) -> io::Result<Option<Self>> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = folder.join(name);
        for _ in 0..ATTEMPTS {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Its last owner may have removed the file after we had opened it.
            let locked = file.metadata()?;
            if fs::metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())) {
                return Ok(Some(Self { path, _file: file }));
            }
        }
        Ok(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked: who has opened it by now finds that it is gone. One that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("tidegate-shaper-lock-{}", std::process::id()));
        let take = || Lock::take_in(&folder, "a.lock").unwrap();
        let first = take();
        assert!(first.is_some());
        assert!(take().is_none());
        drop(first);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        drop(take().expect("it is free again"));
        fs::remove_dir(&folder).unwrap();
    }
}
