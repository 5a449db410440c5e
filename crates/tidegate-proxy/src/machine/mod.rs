//! The limiters as state machines: told what happened and when, they decide. No clock, no socket, no thread.
//!
//! | module | its one job |
//! |---|---|
//! | [`rate_limit`] | Traffic Server's plugin of that name, option by option |
//! | [`resource`] | what tenants use of a machine, and in which unit |
//! | [`upstream`] | which server gets a request, whether it is well, what may be tried again |

pub mod rate_limit;
pub mod resource;
pub mod upstream;

pub use resource::{Kind, Resource};
