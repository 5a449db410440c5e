//! Control groups that a row makes for itself and removes, and programs that take all the processor time they can get.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr as _};

use super::broker::pinned;
use crate::process::Group;

/// A control group with a limit or a share of its own of the processors' time.
#[derive(Debug)]
pub(super) struct ControlGroup {
    folder: PathBuf,
    is_v2: bool,
}

impl ControlGroup {
    /// Makes one below the group of this program.
    pub(super) fn new(name: &str) -> Result<Self> {
        let read = |file: &str| std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| file.to_owned());
        let (parent, is_v2) = parent(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?).ok_or_else(|| {
            miette::miette!(
                help = "mount one: mount -t cgroup2 none /sys/fs/cgroup",
                "no hierarchy of control groups with the controller `cpu` is mounted"
            )
        })?;
        // In a container the path may be one that is seen from outside only.
        let parent = parent.ancestors().find(|at| at.is_dir()).map_or_else(PathBuf::new, Path::to_path_buf);
        if is_v2 {
            std::fs::write(parent.join("cgroup.subtree_control"), "+cpu").into_diagnostic().wrap_err_with(|| {
                let folder = parent.display();
                format!("cannot give `cpu` to groups in {folder}: it needs root, and a group without programs in it")
            })?;
        }
        let folder = parent.join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).into_diagnostic().wrap_err_with(|| {
            format!("cannot make {}: it needs root, and a hierarchy that is not mounted read-only", folder.display())
        })?;
        Ok(Self { folder, is_v2 })
    }

    /// So much processor time in each period, in microseconds.
    pub(super) fn set_quota(&self, quota_us: u32, period_us: u32) -> Result<()> {
        let write = |file: &str, text: String| {
            let file = self.folder.join(file);
            std::fs::write(&file, text).into_diagnostic().wrap_err_with(|| file.display().to_string())
        };
        if self.is_v2 {
            return write("cpu.max", format!("{quota_us} {period_us}"));
        }
        write("cpu.cfs_period_us", period_us.to_string())?;
        write("cpu.cfs_quota_us", quota_us.to_string())
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Its programs have ended; one that has not stays, and so does an empty group, which costs nothing.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// The group of this program in the hierarchy that has the controller `cpu`, and whether that is of version 2.
fn parent(mounts: &str, groups: &str) -> Option<(PathBuf, bool)> {
    let own = |is_it: &dyn Fn(&str) -> bool| -> Option<&str> {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            is_it(controllers).then_some(path)
        })
    };
    let mount = |wanted: &dyn Fn(&str, &str) -> bool| -> Option<PathBuf> {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let (kind, options) = (right.next()?, right.nth(1)?);
            wanted(kind, options).then(|| left.split(' ').nth(4).map(PathBuf::from))?
        })
    };
    let has_cpu = |list: &str| list.split(',').any(|one| one == "cpu");
    if let Some(mount) = mount(&|kind, options| kind == "cgroup" && has_cpu(options)) {
        let own = own(&has_cpu)?;
        return Some((mount.join(own.trim_start_matches('/')), false));
    }
    let mount = mount(&|kind, _| kind == "cgroup2")?;
    let own = own(&str::is_empty)?;
    Some((mount.join(own.trim_start_matches('/')), true))
}

/// A command on CPU 0, in a group if there is one.
pub(super) fn placed(group: Option<&Path>) -> Command {
    let Some(folder) = group else { return pinned("0") };
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec taskset -c 0 \"$@\""]).arg(folder);
    command
}

/// A program that takes all of CPU 0 that it is given, until it is dropped.
pub(super) fn busy(group: Option<&Path>) -> Result<Group> {
    let mut command = placed(group);
    command.args(["sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
    Group::spawn(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_with_the_controller_is_found() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "2:cpu,cpuacct:/a\n0::/b\n";
        assert_eq!(parent(hybrid, groups), Some((PathBuf::from("/sys/fs/cgroup/cpu/a"), false)));
        let unified = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(parent(unified, "0::/b/c\n"), Some((PathBuf::from("/sys/fs/cgroup/b/c"), true)));
        assert_eq!(parent("", groups), None);
    }
}
