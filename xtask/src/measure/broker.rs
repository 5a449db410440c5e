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

/// A running broker.
#[derive(Debug)]
pub(super) struct Broker {
    group: Group,
    /// Where clients connect.
    pub(super) tcp: String,
}

impl Broker {
    /// Starts one of `kind` with nsqd's flags on `data`.
    pub(super) fn start(bench: &Bench, kind: Kind, data: &Path, flags: &[&str]) -> Result<Self> {
        let (tcp, http) = (free_address()?, free_address()?);
        let mut command = pinned("0");
        match kind {
            Kind::Nsqd => command.arg(bench.places.peers().join("nsqd")),
            Kind::Ours => command.arg(bench.places.tidegate()).arg("broker"),
        };
        command
            .arg("-data-path")
            .arg(data)
            .args(["-tcp-address", &tcp, "-http-address", &http, "-log-level", "warn"])
            .args(flags);
        Self::spawn(&mut command, data, tcp, kind.name())
    }

    /// Starts `tidegate up` with a configuration file that names `tcp`.
    pub(super) fn up(bench: &Bench, config: &Path, data: &Path, tcp: String) -> Result<Self> {
        let mut command = pinned("0");
        command.arg(bench.places.tidegate()).arg("up").arg("-c").arg(config);
        Self::spawn(&mut command, data, tcp, "up")
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
        Ok(Self { group, tcp })
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
