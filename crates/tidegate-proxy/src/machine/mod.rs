//! The limiters as state machines: told what happened and when, they decide. No clock, no socket, no thread.
//!
//! | module | its one job |
//! |---|---|
//! | [`resource`] | what tenants use of a machine, and in which unit |

pub mod resource;

pub use resource::{Kind, Resource};
