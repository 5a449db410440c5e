//! The outside world: clock, configuration, control store, telemetry, TLS.
//!
//! | module | its one job |
//! |---|---|
//! | [`clock`] | the only reader of clocks |

pub mod clock;
