//! Child processes: each leads a process group of its own, and nothing of it outlives the step that started it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use std::os::unix::process::CommandExt as _;

use miette::{Context as _, IntoDiagnostic, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// A log file ends here: a step that prints without end must not fill the disk.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Lines kept for the message of a failed step.
const TAIL_LINES: usize = 60;

/// Groups that run now. A signal to us ends them, since a terminal's Ctrl-C does not reach other groups.
static LIVE: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// How a finished process ended, and what it said last.
#[derive(Debug)]
pub(crate) struct Finished {
    /// `None`: its time was up and it was killed.
    pub(crate) status: Option<ExitStatus>,
    /// Its last lines, at most [`TAIL_LINES`].
    pub(crate) tail: String,
    /// Everything it printed, up to [`LOG_BYTES_MAX`].
    pub(crate) log: PathBuf,
}

impl Finished {
    /// It ended by itself and says that all is well.
    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, in words.
    pub(crate) fn ending(&self) -> String {
        self.status.map_or_else(|| "was out of time and was killed".to_owned(), |status| format!("ended with {status}"))
    }
}

/// Ends every running group when we are told to stop.
pub(crate) fn end_children_on_signal() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).into_diagnostic()?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for group in live().drain(..) {
                // It may have ended by itself meanwhile.
                let _ = kill_process_group(group, Signal::KILL);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Runs `command` to its end, at most for `limit`; its output goes to `log` and line by line to `on_line`.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    log: &Path,
    on_line: impl FnMut(&str) + Send + 'static,
) -> Result<Finished> {
    let (reader, writer) = std::io::pipe().into_diagnostic()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().into_diagnostic()?).stderr(writer);
    let mut group = Group::spawn(command)?;
    // The command holds the pipe's writing ends too; without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).into_diagnostic()?;
    }
    let file = File::create(log).into_diagnostic().wrap_err_with(|| format!("cannot write {}", log.display()))?;
    let copier = std::thread::spawn(move || copy_lines(reader, file, on_line));
    let status = group.wait(limit)?;
    group.kill();
    let tail = copier.join().map_err(|_| miette::miette!("the copier of a step's output panicked"))?;
    Ok(Finished { status, tail, log: log.to_owned() })
}

/// Runs `command` quietly and returns what it printed on stdout; an error carries the end of its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().into_diagnostic().wrap_err_with(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        miette::bail!("{name} ended with {}: {}", output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies lines until the last writer is gone; returns the last of them.
fn copy_lines(reader: PipeReader, mut log: File, mut on_line: impl FnMut(&str)) -> String {
    let mut reader = BufReader::new(reader);
    let (mut line, mut written) = (Vec::new(), 0_u64);
    let mut tail = std::collections::VecDeque::with_capacity(TAIL_LINES);
    loop {
        line.clear();
        // A line without end is cut, so that memory stays bounded.
        match reader.by_ref().take(1 << 16).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(length) => written += length as u64,
        }
        if written <= LOG_BYTES_MAX {
            // A full disk shows in the step itself; the tail is kept anyway.
            let _ = log.write_all(&line);
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        on_line(text);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text.to_owned());
    }
    Vec::from(tail).join("\n")
}

/// A process that leads its own group. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Child,
    group: Pid,
}

impl Group {
    /// Starts `command` as the leader of a new group.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let leader =
            command.process_group(0).spawn().into_diagnostic().wrap_err_with(|| format!("cannot start {name}"))?;
        let group = Pid::from_child(&leader);
        live().push(group);
        Ok(Self { leader, group })
    }

    /// Waits for the leader; `None` when `limit` is over.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if let Some(status) = self.leader.try_wait().into_diagnostic()? {
            return Ok(Some(status));
        }
        let (ended, end) = mpsc::channel();
        let pid = self.group;
        // Waits without reaping, so that the id stays ours until `try_wait` below collects it.
        std::thread::spawn(move || {
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            // Nobody listens any more when the limit came first.
            let _ = ended.send(());
        });
        match end.recv_timeout(limit) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => self.leader.wait().into_diagnostic().map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Sends SIGTERM to the leader alone and waits; `None` when it did not end within `limit`.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        // An error means that it has ended already, which `wait` reports.
        let _ = rustix::process::kill_process(self.group, Signal::TERM);
        self.wait(limit)
    }

    /// Stops the leader for `span`, then lets it go on.
    pub(crate) fn suspend(&self, span: Duration) -> Result<()> {
        self.signal(Signal::STOP)?;
        let paused = crate::clock::poll(span, || None::<()>);
        debug_assert!(paused.is_none());
        self.signal(Signal::CONT)
    }

    /// Sends `signal` to the leader alone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(self.group, signal).into_diagnostic()
    }

    /// The leader's id.
    pub(crate) fn id(&self) -> u32 {
        self.leader.id()
    }

    /// The leader's input, when it was started with one.
    pub(crate) fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.leader.stdin.take()
    }

    /// The same, to write to it and leave it open.
    pub(crate) fn stdin_mut(&mut self) -> Option<&mut std::process::ChildStdin> {
        self.leader.stdin.as_mut()
    }

    fn kill(&mut self) {
        // ESRCH is the usual answer here: everything ended by itself.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.leader.wait();
        live().retain(|group| *group != self.group);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn live() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-{name}-{}.log", std::process::id()))
    }

    #[test]
    fn a_finished_step_keeps_its_last_lines() {
        let path = log("tail");
        let done = run(Command::new("seq").arg("100"), Duration::from_secs(20), &path, |_| {}).unwrap();
        assert!(done.success());
        assert_eq!(done.tail.lines().count(), TAIL_LINES);
        assert!(done.tail.ends_with("100"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 100);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_step_out_of_time_is_killed_with_its_children() {
        let path = log("limit");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & sleep 1000"]);
        // Returns only when every writer of the pipe is gone, the background child too.
        let done = run(&mut command, Duration::from_millis(100), &path, |_| {}).unwrap();
        assert!(done.status.is_none() && !done.success());
        std::fs::remove_file(path).unwrap();
    }
}
