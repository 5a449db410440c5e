//! The NSQ TCP protocol, version 2.
//!
//! [`command`] is what clients send, [`frame`] what the broker answers and what its log holds; [`client`] is both
//! seen from the other end.

pub mod client;
pub mod command;
pub mod frame;
mod name;

pub use name::{BadName, ChannelName, TopicName};
