//! Servers of calls under measurement, on CPU 0 and on ports that were free, and what loads on CPU 1 report of them.

use std::path::Path;
use std::process::{Command, Stdio};

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use super::bench::Bench;
use super::broker::pinned;
pub(super) use crate::server::Server;

/// Starts `command`, whose program pins itself or not as the caller chose.
pub(super) fn start(bench: &Bench, name: &str, command: &mut Command) -> Result<Server> {
    Server::start(&bench.folder(name)?, name, command)
}

/// Runs a load on CPU 1 and reads the JSON that it prints, whether or not it finds that the run counts.
pub(super) fn load(program: &Path, arguments: &str) -> Result<Value> {
    let mut command = pinned("1");
    command.arg(program).args(arguments.split_whitespace()).stdin(Stdio::null());
    let said = command.output().into_diagnostic().wrap_err("a load")?;
    let Ok(report) = serde_json::from_slice(&said.stdout) else {
        miette::bail!("{} {arguments}: {}", program.display(), String::from_utf8_lossy(&said.stderr));
    };
    Ok(report)
}
