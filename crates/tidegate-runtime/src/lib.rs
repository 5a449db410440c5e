//! The outside world: clock, configuration, access, control store, telemetry, process.
//!
//! | module | its one job |
//! |---|---|
//! | [`access`] | who may ask an admin API what |
//! | [`clock`] | the only reader of clocks |
//! | [`config`] | TOML files read into types, with errors that say what to write instead |
//! | `http` | what admin APIs answer alike: errors, and whom they let ask (feature `http`) |
//! | [`process`] | this process, as its supervisor and its kernel see it |
//! | [`mod@slice`] | how soon a thread runs that wakes; the only unsafe code |
//! | [`store`] | the control store: a revisioned map for what must outlive the process |
//! | [`telemetry`] | logging, at a level that can change live |
//!
//! ```
//! use tidegate_runtime::config::units::Span;
//! use tidegate_runtime::clock;
//!
//! let Span(patience) = "1m30s".parse().unwrap();
//! let deadline = clock::now() + patience;
//! assert!(deadline > clock::now());
//! ```
//!
//! It knows no protocol and takes no decision; what it reads, the machines are told.

pub mod access;
pub mod clock;
pub mod config;
#[cfg(feature = "http")]
pub mod http;
pub mod process;
pub mod slice;
pub mod store;
pub mod telemetry;
