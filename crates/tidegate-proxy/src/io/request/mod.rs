//! One request: from its head to its line in the log.
//!
//! | module | its one job |
//! |---|---|
//! | `host` | the host that it is for |
//! | `bounds`, `error` | their bounds, and why they broke off |

pub(crate) mod bounds;
pub(crate) mod error;
pub(crate) mod host;
