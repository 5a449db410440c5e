//! Servers that a suite starts: ready when they answer, gone when dropped.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};

use super::Subject;
use crate::clock;
use crate::places::Places;
use crate::process::Group;

/// Where the suites' servers listen, in a network of their own; those that other people's tests insist on.
pub(super) const NSQD_TCP: &str = "127.0.0.1:4150";
pub(super) const NSQD_HTTP: &str = "127.0.0.1:4151";
pub(super) const LOOKUPD_TCP: &str = "127.0.0.1:4160";
pub(super) const LOOKUPD_HTTP: &str = "127.0.0.1:4161";
pub(super) const NSQADMIN: &str = "127.0.0.1:4171";

/// A server takes far less; a busy machine may take more.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    group: Group,
    log: PathBuf,
}

impl Server {
    /// Starts `command` and waits until all of `addresses` accept connections.
    pub(super) fn start(command: &mut Command, log: &Path, addresses: &[&str]) -> Result<Self> {
        let file = File::create(log).into_diagnostic()?;
        command.stdin(Stdio::null()).stdout(file.try_clone().into_diagnostic()?).stderr(file);
        let mut server = Self { group: Group::spawn(command)?, log: log.to_owned() };
        for address in addresses {
            let ready = clock::poll(START_LIMIT, || match server.group.wait(Duration::ZERO) {
                Ok(None) => TcpStream::connect(address).ok().map(|_| true),
                Ok(Some(_)) | Err(_) => Some(false),
            });
            if ready != Some(true) {
                miette::bail!("no server at {address}; it said:\n{}", server.said());
            }
        }
        Ok(server)
    }

    /// A broker with nsqd's own ports, its data in a new folder below the scratch folder.
    pub(super) fn nsqd(subject: &Subject, name: &str, arguments: &[&str]) -> Result<Self> {
        let data = subject.scratch.join(format!("{name}-data"));
        std::fs::create_dir_all(&data).into_diagnostic()?;
        let mut command = Command::new(subject.nsqd());
        command.arg("-data-path").arg(&data).args(["-tcp-address", NSQD_TCP, "-http-address", NSQD_HTTP]);
        command.args(["-broadcast-address", "127.0.0.1"]).args(arguments);
        command.current_dir(&subject.scratch);
        Self::start(&mut command, &subject.scratch.join(format!("{name}.log")), &[NSQD_TCP, NSQD_HTTP])
    }

    /// The real nsqlookupd.
    pub(super) fn nsqlookupd(places: &Places, subject: &Subject) -> Result<Self> {
        let mut command = Command::new(places.peers().join("nsqlookupd"));
        command.args(["-tcp-address", LOOKUPD_TCP, "-http-address", LOOKUPD_HTTP, "-broadcast-address", "127.0.0.1"]);
        Self::start(&mut command, &subject.scratch.join("nsqlookupd.log"), &[LOOKUPD_TCP, LOOKUPD_HTTP])
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> Result<ExitStatus> {
        let status = self.group.terminate(Duration::from_secs(15))?;
        status.ok_or_else(|| miette::miette!("it did not end on SIGTERM; it said:\n{}", self.said()))
    }

    /// The end of what it printed.
    pub(super) fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Makes a certificate authority and, signed by it, `server.pem` and `client.pem` with their keys, in `folder`.
pub(super) fn make_certificates(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).into_diagnostic()?;
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(folder);
        crate::process::output(&mut command).wrap_err("openssl")
    };
    let key = "-newkey rsa:2048 -nodes -sha256";
    openssl(&format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"))?;
    for name in ["server", "client"] {
        openssl(&format!("req {key} -subj /CN=localhost -keyout {name}.key -out {name}.csr"))?;
        std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").into_diagnostic()?;
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -sha256 -extfile names -out {name}.pem"
        ))?;
    }
    Ok(())
}
