//! This process, as its supervisor and its kernel see it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::gettid;

/// A third of the share of a thread that does not stand back, and it runs at once when it wakes.
const STAND_BACK_NICE: i32 = 5;

/// Lets threads that hand on messages or requests go before the calling one, where they share a CPU.
pub fn stand_back() {
    // Linux keeps niceness for each thread, and takes a thread's id here. Without it the thread works all the same.
    let _ = setpriority_process(Some(gettid()), STAND_BACK_NICE);
}

/// Bytes of this process in memory; `None` where there is no `/proc`.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// What tells this boot of the machine from every other one; `None` where there is no `/proc`.
#[must_use]
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Open file descriptors; `None` where there is no `/proc`.
#[must_use]
pub fn open_files() -> Option<usize> {
    // The folder being read is itself one.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// Raises the number of files that may be open as far as the system lets us, and returns it. Each connection is one.
///
/// The usual limit of 1,024 is there for programs that use `select`; we do not.
#[must_use]
pub fn raise_open_files_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    if raised { maximum } else { current }.unwrap_or(u64::MAX)
}

/// How many files may be open now. Each connection is one.
#[must_use]
pub fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Most descriptors that are kept free of connections, see [`is_scarce`].
pub const RESERVED_FILES_MAX: u64 = 64;

/// Which connections a listener takes while descriptors are scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// Connections of clients: they leave a quarter of all descriptors, at most [`RESERVED_FILES_MAX`], to others.
    Clients,
    /// Connections of operators' tools: they leave half of that, to files.
    Tools,
}

/// Whether `descriptor`, opened just now, is among the last ones that this process may open.
///
/// The kernel gives out the lowest free number, so a high number means that all lower ones are in use. Connections that
/// stop here leave room for the files that messages are saved in.
#[must_use]
pub fn is_scarce(descriptor: BorrowedFd<'_>, reserve: Reserve) -> bool {
    let number = u64::try_from(descriptor.as_raw_fd()).unwrap_or(0);
    number >= connections_below(open_files_limit(), reserve)
}

/// Whether the next descriptor would be scarce, or could not be had at all. `any` is an open one to try with.
#[must_use]
pub fn next_is_scarce(any: BorrowedFd<'_>, reserve: Reserve) -> bool {
    rustix::io::fcntl_dupfd_cloexec(any, 0).map_or(true, |next| is_scarce(next.as_fd(), reserve))
}

fn connections_below(limit: u64, reserve: Reserve) -> u64 {
    let reserved = (limit / 4).min(RESERVED_FILES_MAX);
    limit - if reserve == Reserve::Clients { reserved } else { reserved / 2 }
}

/// Bytes of memory that this process may use: those of the machine, or fewer if one of its control groups (version 2) says
/// so; `None` where there is no `/proc`.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let machine = memory_total(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = group_folders(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    // Without a limit a group's file says `max`, which is no number.
    let limits =
        groups.iter().filter_map(|group| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok());
    Some(limits.fold(machine, u64::min))
}

/// From a line such as `MemTotal:       24684148 kB`.
fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The folder of the process's control group and those of the groups that it is in, from a line such as
/// `0::/system.slice/tidegate.service`.
fn group_folders(groups: &str) -> Vec<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let root = Path::new("/sys/fs/cgroup");
    own.map_or_else(Vec::new, |own| {
        root.join(own).ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_path_buf).collect()
    })
}

/// What a supervisor wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Every listener is open.
    Ready,
    /// It is shutting down.
    Stopping,
}

/// Tells systemd, if it started us and asked (`Type=notify`). Without it, does nothing.
pub fn notify_supervisor(phase: Phase) -> io::Result<()> {
    tell_supervisor(match phase {
        Phase::Ready => "READY=1",
        Phase::Stopping => "STOPPING=1",
    })
}

/// Tells systemd which process is the service from now on: one that took over from this one, which may end then.
pub fn notify_main_process(pid: u32) -> io::Result<()> {
    tell_supervisor(&format!("MAINPID={pid}"))
}

fn tell_supervisor(message: &str) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(path) => notify(path.as_encoded_bytes(), message),
        None => Ok(()),
    }
}

fn notify(path: &[u8], message: &str) -> io::Result<()> {
    let address = match path {
        // systemd writes the zero byte that begins an abstract name as `@`.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(String::from_utf8_lossy(path).as_ref())?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_somewhere_between_a_page_and_a_terabyte() {
        let bytes = resident_bytes().unwrap();
        assert!((4_096..1 << 40).contains(&bytes), "{bytes}");
    }

    #[test]
    fn an_open_file_is_counted() {
        // Other tests of this process open files too, so only the lower bound is certain.
        let _files: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files().unwrap() >= 50);
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_its_maximum() {
        let raised = raise_open_files_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(raised, limit.maximum.unwrap_or(u64::MAX));
        assert_eq!(raised, open_files_limit());
    }

    #[test]
    fn connections_leave_the_last_descriptors_to_tools_and_files() {
        assert_eq!([Reserve::Clients, Reserve::Tools].map(|r| connections_below(1_000_000, r)), [999_936, 999_968]);
        assert_eq!([Reserve::Clients, Reserve::Tools].map(|r| connections_below(64, r)), [48, 56]);
        let file = fs::File::open("/dev/null").unwrap();
        assert!(!is_scarce(file.as_fd(), Reserve::Clients) && !next_is_scarce(file.as_fd(), Reserve::Clients));
    }

    #[test]
    fn memory_is_bounded_by_the_machine_and_by_every_group_around() {
        assert_eq!(memory_total("MemFree: 1 kB\nMemTotal:       24684148 kB\n"), Some(24_684_148 * 1024));
        assert_eq!(memory_total("MemTotal: much\n"), None);
        let folders = group_folders("1:name=systemd:/x\n0::/a.slice/b.service\n");
        let expected = ["/sys/fs/cgroup/a.slice/b.service", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(folders, expected.map(PathBuf::from));
        assert!(group_folders("4:memory:/x\n").is_empty());
        assert!(memory_limit().unwrap() > resident_bytes().unwrap());
    }

    #[test]
    fn a_supervisor_hears_that_we_are_ready() {
        let name = format!("tidegate-test-notify-{}", std::process::id());
        let supervisor = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        notify(format!("@{name}").as_bytes(), "READY=1").unwrap();
        notify(format!("@{name}").as_bytes(), "MAINPID=7").unwrap();
        let mut heard = [0; 64];
        for expected in [&b"READY=1"[..], b"MAINPID=7"] {
            let length = supervisor.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], expected);
        }
    }
}
