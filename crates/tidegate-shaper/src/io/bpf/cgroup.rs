//! How the programs know a cgroup.

use std::path::Path;

use super::error::BpfError;

/// The number by which the kernel knows a cgroup, and how deep it stands below the root.
pub(super) fn cgroup(path: &Path) -> Result<(u64, u32), BpfError> {
    use std::os::unix::fs::MetadataExt;
    let failed = |source| BpfError::Cgroup { path: path.display().to_string(), source };
    let canonical = path.canonicalize().map_err(failed)?;
    let metadata = canonical.metadata().map_err(failed)?;
    // The root of the hierarchy is the last folder upwards on the same file system.
    let is_inside = |folder: &&Path| folder.metadata().is_ok_and(|above| above.dev() == metadata.dev());
    let depth = canonical.ancestors().take_while(is_inside).count().saturating_sub(1);
    Ok((metadata.ino(), u32::try_from(depth).unwrap_or(u32::MAX)))
}
