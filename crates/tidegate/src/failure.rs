//! What ends a command early: what went wrong, where, what to do about it, and the exit code.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};
use tidegate_runtime::config::ConfigError;
use tidegate_runtime::store::StoreError;

/// Exit codes, the same for every verb; 0 is success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Something else went wrong.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A file is wrong.
    ConfigInvalid = 3,
    /// It ran, and what it measured misses its objective.
    SloMissed = 4,
}

/// The end of a command, as a person reads it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    help: Option<String>,
    place: Option<Box<Place>>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Debug)]
struct Place {
    source: NamedSource<Arc<str>>,
    label: LabeledSpan,
}

impl Failure {
    /// Something went wrong that is neither the command line nor a file.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string(), help: None, place: None, cause: None }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Usage, ..Self::new(message) }
    }

    /// A file is wrong, in a way that has no place in it.
    pub(crate) fn config(message: impl fmt::Display) -> Self {
        Self { exit: Exit::ConfigInvalid, ..Self::new(message) }
    }

    /// What was measured misses its objective.
    pub(crate) fn slo_missed(message: impl fmt::Display) -> Self {
        Self { exit: Exit::SloMissed, ..Self::new(message) }
    }

    /// Adds what to do about it.
    pub(crate) fn help(self, help: impl fmt::Display) -> Self {
        Self { help: Some(help.to_string()), ..self }
    }

    /// Says first what was tried before.
    pub(crate) fn behind(self, said: impl fmt::Display) -> Self {
        Self { message: format!("{said}; and {}", self.message), ..self }
    }

    /// Adds what it comes from.
    pub(crate) fn because(self, cause: impl Error + Send + Sync + 'static) -> Self {
        // Whatever was tried: without descriptors there is one remedy.
        let help = if lacks_descriptors(&cause) { Some(MORE_DESCRIPTORS.to_owned()) } else { self.help };
        Self { help, cause: Some(Box::new(cause)), ..self }
    }
}

/// What to do when no more files can be opened.
pub(crate) const MORE_DESCRIPTORS: &str = "raise the limit of open files: `ulimit -n 65536` in the shell that starts it, LimitNOFILE=65536 in a systemd unit; \
     each connection is one open file";

/// Whether `error` comes from the limit of open files, of the process or of the machine.
fn lacks_descriptors(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let code = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let cause: &(dyn Error + 'static) = self.cause.as_deref()?;
        // A failure that speaks in its cause's own words does not say them twice.
        if cause.to_string() == self.message { cause.source() } else { Some(cause) }
    }
}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        Some(Box::new(std::iter::once(place.label.clone())))
    }
}

/// Raises the limit of open files as far as the system lets us, for a process with `shards` shards and a proxy of
/// `threads` threads with `listeners` ports, if there are such.
///
/// # Errors
/// If the limit is too low to start with.
pub(crate) fn enough_descriptors(shards: usize, threads: usize, listeners: usize) -> Result<(), Failure> {
    let limit = tidegate_runtime::process::raise_open_files_limit();
    let of_threads = (DESCRIPTORS_OF_THREAD + DESCRIPTORS_OF_PORT * listeners as u64) * threads as u64;
    let needed = DESCRIPTORS + DESCRIPTORS_OF_SHARD * shards as u64 + of_threads;
    if limit < needed {
        let broker = (shards > 0).then(|| format!("a broker with {shards} shards"));
        let proxy = (threads > 0).then(|| format!("a proxy with {threads} threads and {listeners} ports"));
        let who = broker.into_iter().chain(proxy).collect::<Vec<_>>().join(" and ");
        let found = format!("at most {limit} files may be open at once, and {who} needs {needed}");
        return Err(Failure::new(found).help(MORE_DESCRIPTORS));
    }
    tracing::debug!(limit, "connections are bounded by open files");
    Ok(())
}

/// Files of a process without shards: 20 from the start on, a quarter of the rest kept for queues, and some connections.
const DESCRIPTORS: u64 = 40;
/// A shard waits with three; the fourth is for its queues.
const DESCRIPTORS_OF_SHARD: u64 = 4;
/// A thread of the proxy waits with three; two connections more are the least that it is good for.
const DESCRIPTORS_OF_THREAD: u64 = 5;
/// Of each port a thread has a socket, a place where it waits for it, and a file to spare when there are no more.
const DESCRIPTORS_OF_PORT: u64 = 3;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Invalid(problem) => {
                let at = format!("{}:{}", problem.file.display(), problem.line);
                let key = if problem.key.is_empty() { String::new() } else { format!("{}: ", problem.key) };
                let name = problem.file.display().to_string();
                let label = LabeledSpan::new_primary_with_span(Some("here".to_owned()), problem.span.clone());
                Self {
                    help: problem.remedy(),
                    place: Some(Box::new(Place { source: NamedSource::new(name, Arc::clone(&problem.text)), label })),
                    ..Self::config(format!("{at}: {key}{}", problem.found))
                }
            }
            ConfigError::Unreadable { ref file, .. } => {
                let help = format!("is {} the right file, and may this user read it?", file.display());
                Self::config(error.to_string()).help(help).because(error)
            }
            error => Self::config(error),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let help = error.remedy().map(str::to_owned);
        Self { help, ..Self::new(&error).because(error) }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::causes::with_causes;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read a.toml")]
    struct Unreadable(#[source] std::io::Error);

    #[test]
    fn a_failure_is_told_with_its_causes() {
        let cause = || Unreadable(std::io::Error::other("it is locked"));
        assert_eq!(
            with_causes(&Failure::new("no start").because(cause())),
            "no start: cannot read a.toml: it is locked"
        );
        let twice = Failure::new("no start: cannot read a.toml").because(cause());
        assert_eq!(with_causes(&twice), "no start: cannot read a.toml: it is locked");
    }

    #[test]
    fn nothing_is_said_twice() {
        let cause = || Unreadable(std::io::Error::other("it is locked"));
        let said = |failure: &Failure| failure.source().map(ToString::to_string);
        assert_eq!(said(&Failure::new(cause()).because(cause())).as_deref(), Some("it is locked"));
        assert_eq!(said(&Failure::new("no start").because(cause())).as_deref(), Some("cannot read a.toml"));
    }
}
