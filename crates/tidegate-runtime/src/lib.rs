//! The outside world: clock, configuration, control store, telemetry, TLS.
//!
//! | module | its one job |
//! |---|---|
//! | [`clock`] | the only reader of clocks |
//! | [`config`] | TOML files read into types, with errors that say what to write instead |
//! | [`store`] | the control store: a revisioned map for what must outlive the process |

pub mod clock;
pub mod config;
pub mod store;
