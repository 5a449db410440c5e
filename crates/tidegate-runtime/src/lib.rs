//! The outside world: clock, configuration, access, processors, control store, telemetry, process.
//!
//! | module | its one job |
//! |---|---|
//! | [`access`] | who may ask an admin API what |
//! | [`causes`] | errors told whole, in one line |
//! | [`clock`] | the only reader of clocks |
//! | [`cpu`] | the processors and the quota that this process may use |
//! | `config` | TOML files read into types, with errors that say what to write instead (feature `config`) |
//! | `http` | what admin APIs answer alike: errors, and whom they let ask (feature `http`) |
//! | [`process`] | this process, as its supervisor and its kernel see it |
//! | [`mod@slice`] | how soon a thread runs that wakes; the only unsafe code |
//! | `store` | the control store: a revisioned map for what must outlive the process (feature `store`) |
//! | `telemetry` | logging, at a level that can change live (feature `telemetry`) |
//!
//! ```
//! use std::time::Duration;
//!
//! use tidegate_runtime::clock;
//!
//! let deadline = clock::now() + Duration::from_secs(90);
//! assert!(deadline > clock::now());
//! ```
//!
//! It knows no protocol and takes no decision; what it reads, the machines are told.

pub mod access;
pub mod causes;
pub mod clock;
#[cfg(feature = "config")]
pub mod config;
pub mod cpu;
#[cfg(feature = "http")]
pub mod http;
pub mod process;
pub mod slice;
#[cfg(feature = "store")]
pub mod store;
#[cfg(feature = "telemetry")]
pub mod telemetry;
