//! One request: from its head to its line in the log.
//!
//! | module | its one job |
//! |---|---|
//! | `host` | the host that it is for |
//! | `body`, `response` | bodies on their way |
//! | `bounds`, `error` | their bounds, and why they broke off |

pub(crate) mod body;
pub(crate) mod bounds;
pub(crate) mod error;
pub(crate) mod host;
pub(crate) mod response;
