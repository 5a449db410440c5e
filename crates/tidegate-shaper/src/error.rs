//! Why a shaper does not start, or cannot change.

use std::io;
use std::path::PathBuf;

use crate::io::netlink::NetlinkError;
use crate::machine::class_id::ClassId;
use crate::machine::plan::Foreign;

/// Why a shaper does not start, or a device is not shaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShaperError {
    /// This process may not change devices.
    #[error("the tree of {device} may not be changed by this process")]
    NotPermitted {
        /// Its name.
        device: String,
        /// What the kernel said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Somebody else shapes the device.
    #[error("{device} is shaped by somebody else")]
    Foreign {
        /// Its name.
        device: String,
        /// What is there.
        #[source]
        source: Foreign,
    },
    /// The kernel's module has no such parameter, or we may not write it.
    #[error("batch_timers cannot be set")]
    BatchTimers {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another agent runs.
    #[error("another agent shapes {device}")]
    Taken {
        /// Its name.
        device: String,
    },
    /// Whether another agent runs cannot be told.
    #[error("{device} cannot be locked in /run/tidegate")]
    Lock {
        /// Its name.
        device: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A namespace cannot be entered.
    #[error("the namespace {} cannot be entered", path.display())]
    Namespace {
        /// Its file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The kernel did not do it.
    #[error("{device}: {doing} failed")]
    Kernel {
        /// Its name.
        device: String,
        /// What was tried.
        doing: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// A class of somebody else's tree is not there.
    #[error("{device} has no class {classid}")]
    NoSuchClass {
        /// Its name.
        device: String,
        /// As configured.
        classid: ClassId,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread {
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ShaperError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotPermitted { .. } => {
                "run it as root, or give it CAP_NET_ADMIN (and CAP_SYS_ADMIN for other namespaces and for programs)"
            }
            Self::Foreign { .. } => {
                "set mode = \"attach\" to keep the queues of its classes short, or remove it: tc qdisc del dev DEVICE root"
            }
            Self::BatchTimers { .. } => {
                "set shaper.batch_timers = false: it needs root, and the parameter htb_hysteresis of the module sch_htb"
            }
            Self::Taken { .. } => "stop it first: its trees stay, and are taken over as they are",
            Self::Lock { .. } => "run it as root, and let /run be writable",
            Self::Namespace { .. } => "expected a file such as /run/netns/NAME or /proc/PID/ns/net that root may open",
            Self::Kernel { .. } => "the kernel needs CONFIG_NET_SCH_HTB; its log may say more: dmesg",
            Self::NoSuchClass { .. } => "tc class show dev DEVICE lists the classes that are there",
            Self::Thread { .. } => "the system is out of threads or memory",
        }
    }
}
