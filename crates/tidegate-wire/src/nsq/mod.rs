//! The NSQ TCP protocol, version 2.
//!
//! [`command`] is what clients send, [`frame`] what the broker answers and what its log holds.

pub mod command;
pub mod frame;
mod name;

pub use name::{BadName, ChannelName, TopicName};
