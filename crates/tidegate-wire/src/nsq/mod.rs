//! The NSQ TCP protocol, version 2.

mod name;

pub use name::{BadName, ChannelName, TopicName};
