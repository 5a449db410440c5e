//! A reverse proxy in which no tenant can hurt another, with no number to tune.
//!
//! | module | its one job |
//! |---|---|
//! | [`machine`] | who may use how much of what: the limiters as state machines; pure |
//!
//! Limits hold for one proxy; several proxies do not share them.

pub mod machine;
