//! Bytes to messages and back, parsed here only.
//!
//! [`nsq`] is the NSQ TCP protocol, version 2.

pub mod nsq;
