//! A reverse proxy in which no tenant can hurt another, with no number to tune.
//!
//! | module | its one job |
//! |---|---|
//! | `config` | `[proxy]` of `tidegate.toml`, checked once (feature `io`) |
//! | `error` | why a proxy does not start (feature `io`) |
//! | `io` | the proxy itself: sockets, TLS, HTTP and time around the machines (feature `io`) |
//! | [`machine`] | who may use how much of what: the limiters as state machines; pure |
//!
//! Shares hold for one proxy. A `rate_limit` may be one of several proxies, of which each is granted a part.

#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
pub mod error;
#[cfg(feature = "io")]
pub mod io;
pub mod machine;
