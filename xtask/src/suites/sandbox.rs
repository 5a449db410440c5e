//! A private network and process table for one suite.
//!
//! Several suites have nsqd's ports in their sources, and a developer may well run an nsqd. In a network namespace of
//! its own a suite has all ports to itself and no way out; the process table makes sure that nothing outlives it.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use crate::places::Places;
use crate::{process, steps};

/// The longest suite (go-nsq's) takes under a minute on nsqd.
const LIMIT: Duration = Duration::from_secs(400);

/// Runs this program again, as `xtask suite-inside ARGUMENTS`, inside new namespaces.
pub(super) fn run(places: &Places, name: &str, arguments: &[&OsStr]) -> Result<()> {
    let mut command = unshare();
    command.arg("--").arg(std::env::current_exe().into_diagnostic()?).arg("suite-inside").args(arguments);
    command.current_dir(&places.root);
    let mut probe = unshare();
    probe.args(["--", "true"]);
    if let Err(report) = process::output(&mut probe) {
        return Err(report.wrap_err(
            "this machine gives no network namespaces: run as root, or allow them to users with `sysctl kernel.unprivileged_userns_clone=1`",
        ));
    }
    let done = steps::run(places, &format!("suite {name}"), &mut command, LIMIT, steps::quiet)?;
    steps::finish(&command, &done)
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

/// A new network's loopback is down at first.
pub(super) fn raise_loopback() -> Result<()> {
    process::output(Command::new("ip").args(["link", "set", "lo", "up"])).map(|_| ())
}
