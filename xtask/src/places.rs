//! Where things are: the source tree, the target folder and what we keep in it.

use std::path::PathBuf;

use miette::{IntoDiagnostic, Result, WrapErr as _};

/// The folders every command works with.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The workspace's root.
    pub(crate) root: PathBuf,
    /// Cargo's target folder: `CARGO_TARGET_DIR`, else `target` in the root.
    pub(crate) target: PathBuf,
}

impl Places {
    /// Finds them from what Cargo tells a program that it runs.
    pub(crate) fn find() -> Self {
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = here.parent().map_or_else(|| here.clone(), PathBuf::from);
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Self { root, target }
    }

    /// Programs of NSQ, built from their Go modules.
    pub(crate) fn peers(&self) -> PathBuf {
        self.target.join("peers/bin")
    }

    /// The release binary.
    pub(crate) fn tidegate(&self) -> PathBuf {
        self.target.join("release/tidegate")
    }

    /// The release binary with a feature.
    pub(crate) fn tidegate_with(&self, feature: &str) -> PathBuf {
        self.target.join("xtask").join(format!("tidegate-{feature}"))
    }

    /// The console's pages and their package.json.
    pub(crate) fn web(&self) -> PathBuf {
        self.root.join("crates/tidegate-console/web")
    }

    /// Logs of the steps, one file each.
    pub(crate) fn logs(&self) -> PathBuf {
        self.target.join("xtask/logs")
    }

    /// A new empty folder, removed again when the value is dropped.
    pub(crate) fn scratch(&self, name: &str) -> Result<Scratch> {
        let path = self.target.join("xtask/scratch").join(format!("{name}-{}", std::process::id()));
        if path.exists() {
            std::fs::remove_dir_all(&path).into_diagnostic()?;
        }
        std::fs::create_dir_all(&path).into_diagnostic().wrap_err_with(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch { path })
    }
}

/// A folder that lives as long as this value.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Where it is.
    pub(crate) path: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What remains is in the target folder, so a failure costs disk space only.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
