//! One request: from its head to its line in the log.
//!
//! | module | its one job |
//! |---|---|
//! | `service`, `whose`, `forward` | a request: judged, its tenant, sent to its upstream, answered |
//! | `host` | the host that it is for |
//! | `gate` | limits by hand |
//! | `headers`, `refuse`, `grpc`, `quota`, `date` | what the proxy adds to messages, and its own answers |
//! | `body`, `response` | bodies on their way |
//! | `bounds`, `error` | their bounds, and why they broke off |
//! | `trace` | the trace that a request belongs to |
//! | `measured`, `times` | response times, for metrics |
//! | `log`, [`access_log`] | what is written about requests |

pub mod access_log;
pub(crate) mod body;
pub(crate) mod bounds;
pub(crate) mod date;
pub(crate) mod error;
pub(crate) mod forward;
pub(crate) mod gate;
pub(crate) mod grpc;
pub(crate) mod headers;
pub(crate) mod host;
pub(crate) mod log;
pub(crate) mod measured;
pub(crate) mod quota;
pub(crate) mod refuse;
pub(crate) mod response;
pub(crate) mod service;
pub(crate) mod times;
pub(crate) mod trace;
pub(crate) mod whose;
