//! A message broker that NSQ clients and tools use unchanged, with exact limits per topic.
//!
//! | module | its one job |
//! |---|---|
//! | [`config`] | nsqd's options under nsqd's names, and Tidegate's own, checked once |
//! | [`machine`] | the broker as a state machine: protocol, topics, channels, limits; pure |
//! | `io` | sockets, files and HTTP around the machine; behind the feature `io` |
//!
//! It does not place topics on several brokers and keeps no log that survives power loss.

pub mod config;
#[cfg(feature = "io")]
pub mod io;
pub mod machine;
