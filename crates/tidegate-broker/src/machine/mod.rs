//! The broker as a state machine.
//!
//! One shard owns a share of the topics with everything behind them: channels, messages, subscribers, limits. It is
//! told what arrived and when, and answers with effects; it opens no socket, reads no clock and starts no thread.
//!
//! | module | its one job |
//! |---|---|
//! | [`admin`] | what the HTTP APIs may ask of a shard, and its answers |
//! | [`auth`] | what a client may do, as its AUTH server said |
//! | [`contracts`] | the contracts by name, and the tokens that outlive what they were on |
//! | [`lanes`] | how the gate of one topic is spread over several shards |
//! | [`lending`] | how parts of a limit lend each other tokens |
//! | [`limiter`] | the contract of a topic or channel |
//! | [`log`] | the seam to the message log: commands out, events in |
//! | [`output`] | what a shard tells its driver to do |
//! | [`parts`] | the node's parts of topics' limits |
//! | [`publishers`] | the publishers of a topic, and how much each of them sent |
//! | [`seconds`] | what a topic saw in each of the last seconds |
//! | [`shard`] | connections, topics and channels of one thread, and their timers |
//! | [`snapshot`] | a shard's state as plain numbers |
//! | [`trace`] | recordings of topics |
//! | [`watch`] | what is counted of a topic for planners |
//!
//! Behind the shard: `protocol` reads commands, `publish` takes messages in, `flow` moves them, `catalog` makes and deletes topics and channels,
//! `logging` hears of the log, `peers` carries publishes from shard to shard, `control` serves the HTTP APIs, with
//! `part_orders` for parts of limits, `loans` for what they lend, `hosting` and `laning` for lanes, and `steering` for what
//! moves publishers from node to node.
//! State is in
//! `client`, `topic`, `channel`, `messages` (with `store` for bodies), `queue` (with `queue_log` for its part on disk),
//! `deferred` and `acks`; `arena` gives places and keys.

mod acks;
pub mod admin;
mod arena;
pub mod auth;
mod catalog;
mod channel;
mod client;
pub mod contracts;
mod control;
mod deferred;
mod flow;
mod home;
mod hosting;
pub mod lanes;
mod laning;
pub mod lending;
pub mod limiter;
mod loans;
pub mod log;
mod logging;
mod messages;
pub mod output;
mod part_orders;
pub mod parts;
mod peers;
mod protocol;
mod publish;
pub mod publishers;
mod queue;
mod queue_log;
pub mod seconds;
pub mod shard;
pub mod snapshot;
mod steering;
mod store;
mod survey;
mod timers;
mod topic;
pub mod trace;
pub mod watch;
mod watching;
mod who;

#[cfg(feature = "io")]
pub(crate) use client::host_of;
pub use home::home_shard;
pub use trace::Passage;
