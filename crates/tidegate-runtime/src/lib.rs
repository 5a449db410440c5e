//! The outside world: clock, configuration, control store, telemetry, TLS.
