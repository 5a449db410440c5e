//! Why the programs are not there.

use crate::io::netlink::NetlinkError;
use crate::machine::kinds::Crowded;

/// Why the programs are not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The kernel refuses the programs, whichever way the queue is read.
    #[error("the kernel does not take the programs")]
    Refused(#[source] libbpf_rs::Error),
    /// This process has not the rights to load them.
    #[error("this process may not load programs, which takes CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON")]
    NotPermitted(#[source] libbpf_rs::Error),
    /// They are loaded, and cannot be attached.
    #[error("the programs cannot be attached to device {index}")]
    Attach {
        /// The device's number.
        index: u32,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A table of theirs cannot be read or written.
    #[error("the programs' table `{table}` cannot be used")]
    Table {
        /// Its name.
        table: &'static str,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
    /// More rules than the programs look at.
    #[error("{found} rules; the programs look at {most} at most")]
    TooManyRules {
        /// As configured.
        found: usize,
        /// As the programs have room for.
        most: usize,
    },
    /// Rules that the programs cannot tell apart by a lookup for each kind of them.
    #[error("the programs cannot look at these rules")]
    Crowded(#[source] Crowded),
    /// The kernel does not list the sockets that are open.
    #[error("the open sockets cannot be listed")]
    OpenFlows(#[source] NetlinkError),
    /// A rule names a cgroup that is not there.
    #[error("the cgroup {path} cannot be read")]
    Cgroup {
        /// As configured.
        path: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}
