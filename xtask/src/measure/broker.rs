//! A broker under measurement: on CPU 0, on ports that were free, in a folder of its own.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use super::bench::Bench;
use crate::clock;
use crate::process::Group;

/// Starting takes milliseconds, reading a large data folder longer.
const START_LIMIT: Duration = Duration::from_mins(1);

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The real one.
    Nsqd,
    /// The release binary.
    Ours,
}

impl Kind {
    /// The other one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Nsqd => Self::Ours,
            Self::Ours => Self::Nsqd,
        }
    }

    /// For tables and file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nsqd => "nsqd",
            Self::Ours => "ours",
        }
    }
}

/// Every bar is measured with one shard and with two.
pub(super) const SHARDS: [u32; 2] = [1, 2];

/// As much memory as all messages of a run need, so that no broker writes them to disk. nsqd counts messages only.
pub(super) const IN_MEMORY: [&str; 2] = ["-mem-queue-size=4000000", "-max-queue-bytes=8589934592"];

/// Flags that nsqd does not have.
const OURS_ONLY: [&str; 2] = ["-shards=", "-max-queue-bytes="];

/// For tables.
pub(super) fn shards_in_words(shards: u32) -> String {
    if shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") }
}

/// Where a broker listens. A broker that is started again is found at the same place.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    /// For clients.
    pub(super) tcp: String,
    /// nsqd's API.
    pub(super) http: String,
    /// Tidegate's own, if it is to have one.
    pub(super) admin: Option<String>,
}

impl Addresses {
    /// Free ones for clients and nsqd's API.
    pub(super) fn free() -> Result<Self> {
        Ok(Self { tcp: free_address()?, http: free_address()?, admin: None })
    }

    /// The same and one for the admin API.
    pub(super) fn with_admin() -> Result<Self> {
        Ok(Self { admin: Some(free_address()?), ..Self::free()? })
    }
}

/// A running broker.
#[derive(Debug)]
pub(super) struct Broker {
    group: Group,
    /// Where clients connect.
    pub(super) tcp: String,
    /// nsqd's API; empty if it was started from a configuration file.
    pub(super) http: String,
}

impl Broker {
    /// Starts one of `kind` with nsqd's flags on `data`. Those that nsqd lacks are for ours only.
    pub(super) fn start(bench: &Bench, kind: Kind, data: &Path, flags: &[&str]) -> Result<Self> {
        Self::start_at(bench, kind, data, &Addresses::free()?, flags)
    }

    /// Starts one at `addresses`.
    pub(super) fn start_at(
        bench: &Bench,
        kind: Kind,
        data: &Path,
        addresses: &Addresses,
        flags: &[&str],
    ) -> Result<Self> {
        let Addresses { tcp, http, admin } = addresses;
        let mut command = pinned("0");
        match kind {
            Kind::Nsqd => command.arg(bench.places.peers().join("nsqd")),
            Kind::Ours => command.arg(bench.places.tidegate()).arg("broker"),
        };
        command
            .arg("-data-path")
            .arg(data)
            .args(["-tcp-address", tcp, "-http-address", http, "-log-level", "warn"])
            .args(flags.iter().filter(|flag| kind == Kind::Ours || !OURS_ONLY.iter().any(|own| flag.starts_with(own))));
        if let (Kind::Ours, Some(admin)) = (kind, admin) {
            command.args(["-admin-address", admin]);
        }
        let broker = Self::spawn(&mut command, data, tcp.clone(), kind.name())?;
        Ok(Self { http: http.clone(), ..broker })
    }

    /// Starts `tidegate up` with a configuration file that names `tcp`.
    pub(super) fn up(bench: &Bench, config: &Path, data: &Path, tcp: String) -> Result<Self> {
        let mut command = pinned("0");
        command.arg(bench.places.tidegate()).arg("up").arg("-c").arg(config);
        Self::spawn(&mut command, data, tcp, "up")
    }

    /// Starts a server that answers each `request_bytes` bytes with an OK and does nothing else.
    pub(super) fn echo(bench: &Bench, request_bytes: usize) -> Result<Self> {
        let tcp = free_address()?;
        let mut command = pinned("0");
        command.arg(bench.places.tidegate()).args(["bench", "nsq", "echo"]);
        command.arg(format!("address={tcp}")).arg(format!("request_bytes={request_bytes}"));
        Self::spawn(&mut command, &bench.folder("echo")?, tcp, "echo")
    }

    fn spawn(command: &mut Command, data: &Path, tcp: String, name: &str) -> Result<Self> {
        std::fs::create_dir_all(data).into_diagnostic()?;
        let log = data.with_extension(format!("{name}.log"));
        let file = File::create(&log).into_diagnostic()?;
        command.stdin(Stdio::null()).stdout(file.try_clone().into_diagnostic()?).stderr(file);
        let mut group = Group::spawn(command)?;
        let ready = clock::poll(START_LIMIT, || match group.wait(Duration::ZERO) {
            Ok(None) => TcpStream::connect(&tcp).ok().map(|_| true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        if ready != Some(true) {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            miette::bail!("{name} does not listen on {tcp}; it said:\n{said}");
        }
        Ok(Self { group, tcp, http: String::new() })
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.group.id()
    }

    /// SIGTERM, and the wait for its end.
    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.group.terminate(Duration::from_mins(2))?;
        if status.is_none() {
            miette::bail!("it did not end on SIGTERM");
        }
        Ok(())
    }

    /// SIGKILL, and the wait for its end.
    pub(super) fn kill(self) {
        drop(self.group);
    }

    /// SIGTERM now; the caller waits with [`Self::stop`].
    pub(super) fn ask_to_end(&mut self) -> Result<()> {
        self.group.terminate(Duration::ZERO).map(|_| ())
    }

    /// Holds it still for `span`, as a busy machine would.
    pub(super) fn hold_still(&self, span: Duration) -> Result<()> {
        self.group.suspend(span)
    }
}

/// `taskset` becomes the program it starts, so its id is the program's.
pub(super) fn pinned(cpu: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cpu]);
    command
}

/// An address on which nobody listens now.
pub(super) fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").into_diagnostic()?;
    Ok(listener.local_addr().into_diagnostic()?.to_string())
}
