//! How much of the processors' time this process may use: the processors that it may run on, and the quotas of its control
//! groups.
//!
//! A quota holds for a group and all groups below it, so those of all groups around the process are read, and the least is
//! in force. Both versions of control groups are, since a machine may have both at once. It can change at any time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Processor time for each period; when it is used up, no thread of the group runs until the next period begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Of all processors together.
    pub time: Duration,
    /// Not zero.
    pub period: Duration,
}

impl Quota {
    /// Nanoseconds of processor time for each second.
    #[must_use]
    pub fn ns_per_s(&self) -> u64 {
        let ns = self.time.as_nanos().saturating_mul(1_000_000_000) / self.period.as_nanos().max(1);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// What it is worth in processors.
    #[must_use]
    pub fn cores(&self) -> f64 {
        Duration::from_nanos(self.ns_per_s()).as_secs_f64()
    }
}

/// How often the quota was used up, since the group was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Throttled {
    /// Periods in which it was.
    pub periods: u64,
    /// For how long threads were kept from running, on all processors together.
    pub time: Duration,
}

/// What the process may use now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuLimits {
    /// Processors that it may run on, at least 1.
    pub processors: usize,
    /// The least quota; `None` if there is none.
    pub quota: Option<Quota>,
    /// What became of it; `None` if there is none.
    pub throttled: Option<Throttled>,
}

impl CpuLimits {
    /// Reads them anew.
    #[must_use]
    pub fn read() -> Self {
        let file = |name: &str| fs::read_to_string(name).unwrap_or_default();
        let groups = groups(&file("/proc/self/mountinfo"), &file("/proc/self/cgroup"));
        let least = least(&groups, |path| fs::read_to_string(path).ok());
        // Of the first thread: others may have been bound to fewer. A change of the group's set changes each thread's.
        let processors = sched_getaffinity(Some(getpid())).map_or(1, |set| count(&set));
        Self {
            processors: processors.max(1),
            quota: least.map(|(quota, _)| quota),
            throttled: least.map(|(_, throttled)| throttled),
        }
    }

    /// Threads that can run at a time: a part of a processor counts as one.
    #[must_use]
    pub fn cores(&self) -> usize {
        let worth = self.quota.map_or(u64::MAX, |quota| quota.ns_per_s().div_ceil(1_000_000_000));
        usize::try_from(worth).unwrap_or(usize::MAX).clamp(1, self.processors.max(1))
    }
}

/// Threads of this process that can run at a time, at least 1: as many as it may use processors, or as its quota is worth,
/// rounded up.
#[must_use]
pub fn cores() -> usize {
    CpuLimits::read().cores()
}

fn count(set: &CpuSet) -> usize {
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).count()
}

/// The process's group in one hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct GroupPath {
    version: Version,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// Where its group is; `mount` itself or below it.
    folder: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// From `/proc/self/mountinfo` and `/proc/self/cgroup`: the hierarchies that may have quotas.
fn groups(mounts: &str, groups: &str) -> Vec<GroupPath> {
    mounts.lines().filter_map(|line| group(line, groups)).collect()
}

/// A line such as `32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu`; the fourth field is the group that
/// is mounted.
fn group(mount: &str, groups: &str) -> Option<GroupPath> {
    let (left, right) = mount.split_once(" - ")?;
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1)?);
    let version = match kind {
        "cgroup" if has_cpu(options) => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (unescaped(left.next()?), PathBuf::from(unescaped(left.next()?)));
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = if version == Version::V2 { controllers.is_empty() } else { has_cpu(controllers) };
        is_it.then_some(path)
    })?;
    // What is not below the mounted group cannot be seen from here: then that one stands for it.
    let below = Path::new(own).strip_prefix(&root).unwrap_or(Path::new(""));
    let is_inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let folder = if is_inside { mount.iter().chain(below).collect() } else { mount.clone() };
    Some(GroupPath { version, mount, folder })
}

fn has_cpu(list: &str) -> bool {
    list.split(',').any(|one| one == "cpu")
}

/// Paths in `mountinfo` have blanks as `\040`, and a few more so.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

/// The least quota of all groups around, and what became of it.
fn least(groups: &[GroupPath], read: impl Fn(&Path) -> Option<String>) -> Option<(Quota, Throttled)> {
    let folders = groups.iter().flat_map(|group| {
        let around = group.folder.ancestors().take_while(|folder| folder.starts_with(&group.mount));
        around.map(|folder| (group.version, folder))
    });
    let quotas = folders.filter_map(|(version, folder)| {
        let quota = match version {
            Version::V1 => {
                cfs_quota(&read(&folder.join("cpu.cfs_quota_us"))?, &read(&folder.join("cpu.cfs_period_us"))?)
            }
            Version::V2 => cpu_max(&read(&folder.join("cpu.max"))?),
        };
        Some((quota?, folder))
    });
    let (quota, folder) = quotas.min_by_key(|(quota, _)| quota.ns_per_s())?;
    Some((quota, throttled(&read(&folder.join("cpu.stat")).unwrap_or_default())))
}

/// Version 2: `max 100000` is none, `50000 100000` half of a processor, in microseconds.
fn cpu_max(text: &str) -> Option<Quota> {
    let mut words = text.split_whitespace();
    let (time, period) = (words.next()?, words.next()?);
    quota(time, period)
}

/// Version 1: -1 is none.
fn cfs_quota(time: &str, period: &str) -> Option<Quota> {
    quota(time.trim(), period.trim())
}

fn quota(time: &str, period: &str) -> Option<Quota> {
    let (time, period) = (time.parse().ok()?, period.parse().ok().filter(|period| *period > 0)?);
    Some(Quota { time: Duration::from_micros(time), period: Duration::from_micros(period) })
}

/// From lines such as `nr_throttled 7` and `throttled_usec 350000`; version 1 says `throttled_time`, in nanoseconds.
fn throttled(stat: &str) -> Throttled {
    let number = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    let time = number("throttled_usec").map(Duration::from_micros);
    Throttled {
        periods: number("nr_throttled").unwrap_or(0),
        time: time.or_else(|| number("throttled_time").map(Duration::from_nanos)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    fn ms(time: u64, period: u64) -> Quota {
        Quota { time: Duration::from_millis(time), period: Duration::from_millis(period) }
    }

    /// The least of what these files say.
    fn found(mounts: &str, own: &str, files: &[(&str, &str)]) -> Option<(Quota, Throttled)> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        least(&groups(mounts, own), read)
    }

    #[test]
    fn a_quota_is_read_of_either_version() {
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(cpu_max("50000 100000\n"), Some(ms(50, 100)));
        assert_eq!(cfs_quota("-1\n", "100000\n"), None);
        assert_eq!(cfs_quota("250000\n", "100000\n"), Some(ms(250, 100)));
        assert_eq!([cpu_max(""), cpu_max("50000"), cpu_max("50000 0"), cfs_quota("", "100000")], [None; 4]);
        assert_eq!((ms(50, 100).ns_per_s(), ms(250, 100).ns_per_s()), (500_000_000, 2_500_000_000));
    }

    #[test]
    fn the_least_of_all_groups_around_is_in_force() {
        let files = [
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "20000 10000\n"),
            ("/sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_periods 5\nnr_throttled 3\nthrottled_usec 70\n"),
            ("/sys/fs/cgroup/cpu.max", "300000 100000\n"),
        ];
        let (quota, throttled) = found(V2, "0::/a/b\n", &files).unwrap();
        assert_eq!(quota, ms(20, 10));
        assert_eq!(throttled, Throttled { periods: 3, time: Duration::from_micros(70) });
        assert_eq!(found(V2, "0::/\n", &files).unwrap().0, ms(300, 100), "a container sees its own group as the root");
        assert_eq!(found(V2, "0::/a/b\n", &[]), None, "the machine's root has no such files");
        assert_eq!(found("", "", &files), None);
    }

    #[test]
    fn a_machine_with_both_versions_is_asked_for_both() {
        let own = "2:cpu,cpuacct:/x\n3:cpuset:/y\n0::/z\n";
        let files = [
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.stat", "nr_periods 5\nnr_throttled 2\nthrottled_time 5000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        let (quota, throttled) = found(HYBRID, own, &files).unwrap();
        assert_eq!((quota, throttled.periods), (ms(50, 100), 2));
        assert_eq!(throttled.time, Duration::from_micros(5), "version 1 counts nanoseconds");
        let mut more = files.to_vec();
        more.push(("/sys/fs/cgroup/unified/z/cpu.max", "10000 100000\n"));
        assert_eq!(found(HYBRID, own, &more).unwrap().0, ms(10, 100));
    }

    #[test]
    fn a_container_without_a_namespace_of_groups_finds_its_own() {
        let mount = "9 8 0:29 /docker/1f /sys/fs/cgroup/cpu\\040x ro - cgroup cgroup rw,cpu\n";
        let at = |own: &str| groups(mount, own).first().map(|group| group.folder.display().to_string());
        assert_eq!(at("2:cpu:/docker/1f/in\n").unwrap(), "/sys/fs/cgroup/cpu x/in");
        assert_eq!(at("2:cpu:/docker/1f\n").unwrap(), "/sys/fs/cgroup/cpu x");
        assert_eq!(at("2:cpu:/elsewhere\n").unwrap(), "/sys/fs/cgroup/cpu x");
        assert_eq!(at("2:cpu:/docker/1f/../../up\n").unwrap(), "/sys/fs/cgroup/cpu x");
        assert_eq!(at("2:cpuset:/docker/1f\n"), None);
    }

    #[test]
    fn a_part_of_a_processor_is_a_thread() {
        let limits = |processors, quota| CpuLimits { processors, quota, throttled: None };
        let cores = |processors, quota| limits(processors, quota).cores();
        assert_eq!([cores(4, None), cores(4, Some(ms(250, 100))), cores(2, Some(ms(250, 100)))], [4, 3, 2]);
        assert_eq!([cores(4, Some(ms(1, 100))), cores(4, Some(ms(200, 100)))], [1, 2]);
        let here = CpuLimits::read();
        assert!((1..=here.processors).contains(&here.cores()) && here.cores() == super::cores());
    }
}
