//! nsqd's options under nsqd's names, and Tidegate's own, checked once.
//!
//! | module | its one job |
//! |---|---|
//! | [`value`] | what users write for an option, in Go's grammar where nsqd uses Go's |
//! | [`options`] | the table of all options, as flags and as TOML keys; each may be left out |
//! | [`checked`] | [`Config`]: every option with its default applied and its bounds checked |
//!
//! A command line and a file each become [`Options`]; [`Options::over`] puts the former on top of the latter, and
//! [`Config::from_options`] makes domain types of the result. Nothing downstream checks again.

pub mod checked;
mod lend;
pub mod options;
pub mod value;

pub use checked::{Address, Config, ConfigError, Host, ServerTls, Statsd, Tls, Warning};
pub use lend::LendAddress;
pub use options::{Action, CommandLine, FLAGS, Flag, FlagError, Options};
pub use value::{ClientAuth, Durability, LogLevel, QueuePolicy, Takes, TlsRequired, TlsVersion};
