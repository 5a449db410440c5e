//! How the programs know a cgroup, and whether it is still the same: one that is removed and made anew has another number.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::BpfError;
use crate::machine::program::Rule;

/// The number by which the kernel knows a cgroup, and how deep it stands below the root.
type Identity = (u64, u32);

/// Identity of a cgroup that is not there: no packet has it.
const NOWHERE: Identity = (u64::MAX, 0);
/// `CGROUP2_SUPER_MAGIC`.
const VERSION_2: u64 = 0x6367_7270;

/// How the programs know the cgroup of a folder; one that is not there matches no packet.
pub(super) fn cgroup(path: &Path) -> Result<Identity, BpfError> {
    match identity(path) {
        Ok(identity) => Ok(identity),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NOWHERE),
        Err(source) => Err(BpfError::Cgroup { path: path.display().to_string(), source }),
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let canonical = path.canonicalize()?;
    if u64::try_from(rustix::fs::statfs(&canonical)?.f_type).ok() != Some(VERSION_2) {
        return Err(io::Error::other("it is no cgroup of version 2, which `mount -t cgroup2` lists"));
    }
    let metadata = canonical.metadata()?;
    // The root of the hierarchy is the last folder upwards on the same file system.
    let is_inside = |folder: &&Path| folder.metadata().is_ok_and(|above| above.dev() == metadata.dev());
    let depth = canonical.ancestors().take_while(is_inside).count().saturating_sub(1);
    Ok((metadata.ino(), u32::try_from(depth).unwrap_or(u32::MAX)))
}

/// The cgroups of rules, as they were looked up last.
pub(super) struct Cgroups(Vec<(PathBuf, Identity)>);

impl Cgroups {
    /// The cgroups that `rules` name.
    pub(super) fn of(rules: &[Rule]) -> Self {
        let mut paths: Vec<_> = rules.iter().filter_map(|rule| rule.when.cgroup.clone()).collect();
        paths.sort_unstable();
        paths.dedup();
        let cgroups = Self(paths.into_iter().map(|path| (look(&path), path)).map(|(now, path)| (path, now)).collect());
        for (path, _) in cgroups.0.iter().filter(|(_, now)| *now == NOWHERE) {
            tracing::warn!(cgroup = %path.display(), "the cgroup is not there; until it is its rule matches nothing");
        }
        cgroups
    }

    /// Whether one has come, gone or was made anew since this was asked last.
    pub(super) fn have_changed(&mut self) -> bool {
        let mut have_changed = false;
        for (path, before) in &mut self.0 {
            // One call for each as a rule: there may be thousands.
            let is_as_before = path.metadata().map_or(*before == NOWHERE, |now| now.ino() == before.0);
            let now = if is_as_before { *before } else { look(path) };
            if now != *before {
                tracing::info!(cgroup = %path.display(), is_there = now != NOWHERE, "the cgroup is another one");
                (*before, have_changed) = (now, true);
            }
        }
        have_changed
    }
}

fn look(path: &Path) -> Identity {
    identity(path).unwrap_or(NOWHERE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_that_is_not_there_is_nowhere_and_an_ordinary_folder_is_an_error() {
        assert_eq!(cgroup(Path::new("/sys/fs/cgroup/nobody/has/this")).unwrap(), NOWHERE);
        let error = cgroup(Path::new("/proc")).unwrap_err();
        assert_eq!(error.to_string(), "the cgroup /proc cannot be read");
    }
}
