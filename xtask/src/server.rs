//! Servers that say in their first line of output where they listen, and in their last what they counted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use crate::clock;
use crate::process::Group;

/// Starting takes milliseconds, measuring the processor up to a second; a debug build on a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_mins(1);
const END_LIMIT: Duration = Duration::from_secs(20);
/// A server that ends with its input does so within this.
const INPUT_LIMIT: Duration = Duration::from_secs(2);

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    group: Group,
    /// Examples and peers end when this does.
    input: Option<ChildStdin>,
    output: PathBuf,
    /// Its first line.
    said: Value,
}

impl Server {
    /// Starts `command`; what it prints goes to `folder`, which is made if it is not there.
    pub(crate) fn start(folder: &Path, name: &str, command: &mut Command) -> Result<Self> {
        std::fs::create_dir_all(folder).into_diagnostic()?;
        let output = folder.join("stdout");
        let errors = File::create(folder.join("stderr")).into_diagnostic()?;
        command.stdin(Stdio::piped()).stdout(File::create(&output).into_diagnostic()?).stderr(errors);
        let mut group = Group::spawn(command)?;
        let input = group.stdin();
        let first_line = || {
            let text = std::fs::read_to_string(&output).ok()?;
            text.split_once('\n').map(|(line, _)| line.to_owned())
        };
        let line = clock::poll(START_LIMIT, || match group.wait(Duration::ZERO) {
            Ok(None) => first_line().map(Some),
            Ok(Some(_)) | Err(_) => Some(None),
        });
        let Some(Some(line)) = line else {
            let said = std::fs::read_to_string(folder.join("stderr")).unwrap_or_default();
            miette::bail!("{name} does not say where it listens; it said:\n{said}");
        };
        let said = serde_json::from_str(&line).into_diagnostic().wrap_err_with(|| format!("{name} said {line}"))?;
        Ok(Self { group, input, output, said })
    }

    /// A text of its first line.
    pub(crate) fn said(&self, key: &str) -> Result<&str> {
        self.said[key].as_str().ok_or_else(|| miette::miette!("the server did not say its {key}"))
    }

    /// A number of its first line.
    pub(crate) fn said_number(&self, key: &str) -> Result<u64> {
        self.said[key].as_u64().ok_or_else(|| miette::miette!("the server did not say its {key}"))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.group.id()
    }

    /// Time that its threads were on a CPU, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id())).into_diagnostic()? {
            // A thread may end between being listed and being read.
            let text = std::fs::read_to_string(task.into_diagnostic()?.path().join("schedstat")).unwrap_or_default();
            sum += text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Resident memory in bytes.
    pub(crate) fn rss_bytes(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id())).into_diagnostic()?;
        let kib =
            text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0).ok_or_else(|| miette::miette!("the server's memory is not to be read"))
    }

    /// Ends it and returns its last line, if that is JSON.
    pub(crate) fn stop(mut self) -> Result<Value> {
        // Its input ends; a server that does not read it is told by a signal.
        let has_input = self.input.take().is_some();
        let first = if has_input { self.group.wait(INPUT_LIMIT)? } else { None };
        if first.is_none() && self.group.terminate(END_LIMIT)?.is_none() {
            miette::bail!("a server did not end on SIGTERM");
        }
        let text = std::fs::read_to_string(&self.output).into_diagnostic()?;
        Ok(text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null))
    }
}
