//! The broker as a state machine.
//!
//! One shard owns a share of the topics with everything behind them: channels, messages, subscribers, limits. It is
//! told what arrived and when, and answers with effects; it opens no socket, reads no clock and starts no thread.
//!
//! | module | its one job |
//! |---|---|
//! | [`admin`] | what the HTTP APIs may ask of a shard, and its answers |
//! | [`auth`] | what a client may do, as its AUTH server said |
//! | [`limiter`] | the contract of a topic or channel |
//! | [`log`] | the seam to the message log: commands out, events in |
//! | [`snapshot`] | a shard's state as plain numbers |

pub mod admin;
pub mod auth;
pub mod limiter;
pub mod log;
pub mod snapshot;
