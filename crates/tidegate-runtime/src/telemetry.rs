//! Logging: one line on standard error for each event, for people or for machines, at a level that can change live.

use std::io::{self, IsTerminal};

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// What a log line looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// One line of text; in colours on a terminal.
    #[default]
    Human,
    /// One JSON object.
    Json,
}

/// Why logging cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The filter makes no sense.
    #[error("`{filter}` is no log filter; expected a level such as `info`, or `info,tidegate_broker=debug`")]
    BadFilter {
        /// As given.
        filter: String,
        /// What the parser said.
        #[source]
        source: ParseError,
    },
    /// Some other subscriber is in place.
    #[error("logging is already set up")]
    AlreadySetUp,
}

/// Changes what is logged while the process runs.
#[derive(Clone, Debug)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl LogControl {
    /// Logs what `filter` lets through from now on.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        let filter = parse(filter)?;
        self.filter.reload(filter).map_err(|_| TelemetryError::AlreadySetUp)
    }

    /// The filter in force.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Sends this process's events that pass `filter`, such as `info` or `info,tidegate_broker=debug`, to standard error.
///
/// # Errors
/// [`TelemetryError::AlreadySetUp`] if called twice.
pub fn init(format: Format, filter: &str) -> Result<LogControl, TelemetryError> {
    init_with_prefix(format, filter, "")
}

/// The same with `prefix` in front of each line of text. Lines of JSON have none.
///
/// # Errors
/// [`TelemetryError::AlreadySetUp`] if called twice.
pub fn init_with_prefix(format: Format, filter: &str, prefix: &str) -> Result<LogControl, TelemetryError> {
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    match format {
        Format::Human => {
            let lines = lines.with_ansi(io::stderr().is_terminal());
            registry.with(lines.map_event_format(|format| Prefixed { format, prefix: prefix.to_owned() })).try_init()
        }
        Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .map_err(|_| TelemetryError::AlreadySetUp)?;
    Ok(LogControl { filter: handle })
}

/// Lines of `format` behind a prefix.
struct Prefixed<F> {
    format: F,
    prefix: String,
}

impl<S, N, F> FormatEvent<S, N> for Prefixed<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        to.write_str(&self.prefix)?;
        self.format.format_event(context, to, event)
    }
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .with_default_directive(LevelFilter::ERROR.into())
        .parse(filter)
        .map_err(|source| TelemetryError::BadFilter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_bad_filter_says_what_would_be_a_good_one() {
        assert!(parse("info").is_ok());
        assert!(parse("info,tidegate_broker=debug").is_ok());
        let error = parse("tidegate=lots").unwrap_err().to_string();
        assert!(error.starts_with("`tidegate=lots` is no log filter"), "{error}");
    }

    #[test]
    fn each_line_begins_with_the_prefix() {
        let path = std::env::temp_dir().join(format!("tidegate-log-prefix-{}", std::process::id()));
        let written = Arc::new(File::create(&path).unwrap());
        let format = Prefixed { format: fmt::format().without_time().with_target(false), prefix: "[nsqd] ".to_owned() };
        let lines = fmt::layer().with_ansi(false).with_writer(written).event_format(format);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::info!(topics = 3, "first");
            tracing::warn!("second");
        });
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "[nsqd]  INFO first topics=3\n[nsqd]  WARN second\n");
    }

    #[test]
    fn the_filter_changes_while_running() {
        let (layer, filter) = reload::Layer::<_, Registry>::new(parse("warn").unwrap());
        let control = LogControl { filter };
        assert_eq!(control.filter(), "warn");
        control.set("debug").unwrap();
        assert_eq!(control.filter(), "debug");
        assert!(control.set("a=b=c").is_err());
        assert_eq!(control.filter(), "debug", "a bad filter never replaces a good one");
        drop(layer);
    }
}
