//! Bytes to messages and back, parsed here only.
//!
//! [`nsq`] is the NSQ TCP protocol, version 2; [`rpc`] is `tidegate-rpc`.

pub mod nsq;
pub mod rpc;
