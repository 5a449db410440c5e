//! A folder for the length of a run.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidegate_runtime::clock;

/// A new folder below the system's temporary one, that only its owner can read; gone with its content when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// `name` says what for.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let unique = format!("tidegate-{name}-{}-{:x}", std::process::id(), clock::now().as_nanos());
        let path = std::env::temp_dir().join(unique);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nobody is left to tell, and the system clears its temporary folder by itself.
        let _ = fs::remove_dir_all(&self.path);
    }
}
