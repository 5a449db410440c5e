//! A folder of one test, for its sockets.

use std::fs;
use std::path::{Path, PathBuf};

/// Removed with all that is in it when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// An empty folder for the test of this name.
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-rpc-{test}-{}", std::process::id()));
        fs::create_dir(&path).expect("no two tests of a process have the same name");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in a folder that the system cleans.
        let _ = fs::remove_dir_all(&self.0);
    }
}
