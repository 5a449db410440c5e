//! One request: from its head to its line in the log.
//!
//! | module | its one job |
//! |---|---|
//! | `bounds` | their bounds, and why they broke off |

pub(crate) mod bounds;
