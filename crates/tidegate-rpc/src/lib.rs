//! Overload control for RPC: a server hands out credits from its queueing delay, and clients send only with credit.
//!
//! | module | its one job |
//! |---|---|
//! | [`config`] | a scheme by its name and settings |
//! | `error` | how a call can end without an answer (feature `io`) |
//! | `io` | sockets and layers around them (feature `io`) |
//! | [`machine`] | every scheme as a pair of pure state machines of one shape |
//! | `telemetry` | what a server does and lacks, for programs and people (feature `io`) |
//!
//! Without the feature `io` the crate is pure.

pub mod config;
#[cfg(feature = "io")]
pub mod error;
#[cfg(feature = "io")]
pub mod io;
pub mod machine;
#[cfg(feature = "io")]
pub mod telemetry;
