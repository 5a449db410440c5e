//! Bytes to messages and back, parsed here only.
//!
//! [`nsq`] is the NSQ TCP protocol, version 2; [`rpc`] is `tidegate-rpc`. [`tls_hello`] and [`proxy_protocol`] are what
//! a connection to the proxy begins with, and [`http1`] guards the requests that follow.

pub mod http1;
pub mod nsq;
pub mod proxy_protocol;
pub mod rpc;
pub mod tls_hello;
